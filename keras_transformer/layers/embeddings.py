"""Token embeddings, and the output projection."""

import contextlib
import contextvars
import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.configuration import ConfiguredLayer
from keras_transformer.layers.quantization import matrix_arguments
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive, check_positive_integer

_NAN_FOR_UNKNOWN_ROWS: contextvars.ContextVar[bool] = contextvars.ContextVar("unknown_rows", default=False)


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(ConfiguredLayer):
    r"""Map token ids to vectors, and hidden states to logits, by default with the same matrix.

    $$x_t = \sqrt{D}\, E_{w_t}, \qquad \mathrm{logits}_t = h_t W, \qquad W = E^\top \text{ if tied}$$

    With a soft cap c, the logits are $c \tanh(h_t W / c)$.

    Args:
        vocabulary_size: the number of rows of E.
        model_dim: D.
        scale: whether to multiply embeddings by √D, which gives them unit variance with the default initializer.
        pad_id: the padding id, which the Keras mask hides, or None for no mask.
        embeddings_initializer: initializer of E and W, by default normal with a standard deviation of 1/√D.
        tied: whether W is Eᵀ; otherwise it is a separate matrix.
        soft_cap: c, or None for no cap.
        **kwargs: arguments of `keras.layers.Layer`.

    Shapes:
        ids: (B, T)
        output: (B, T, D)
        logits: (B, T, D) → (B, T, vocabulary_size), float32

    Example:
        >>> embedding = TokenEmbedding(100, 16)
        >>> embedding.logits(embedding(keras.ops.array([[5, 7]]))).shape
        TensorShape([1, 2, 100])

    References:
        Vaswani et al. (2017), section 3.4; Press and Wolf, "Using the Output Embedding to Improve Language
        Models" (2017); soft cap: Gemma Team, "Gemma 2" (2024), section 2.
    """

    def __init__(
        self,
        vocabulary_size: int,
        model_dim: int,
        scale: bool = True,
        pad_id: int | None = 0,
        embeddings_initializer: Any = None,
        tied: bool = True,
        soft_cap: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer(vocabulary_size=vocabulary_size, model_dim=model_dim)
        if soft_cap is not None:
            check_positive(soft_cap=soft_cap)
        self.vocabulary_size = vocabulary_size
        self.model_dim = model_dim
        self.scale = scale
        self.pad_id = pad_id
        self.embeddings_initializer = keras.initializers.get(
            keras.initializers.RandomNormal(stddev=model_dim**-0.5)
            if embeddings_initializer is None
            else embeddings_initializer
        )
        self.tied, self.soft_cap = tied, soft_cap
        # Keras' layer supports LoRA and quantisation.
        self.embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size,
            model_dim,
            tie_weights=tied,
            embeddings_initializer=self.embeddings_initializer,
            reverse_dtype="float32",
            logit_soft_cap=soft_cap,
            name="embedding",
            **matrix_arguments(self.dtype_policy),
        )
        self.embedding.supports_masking = True  # or `logits` would warn of the mask

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create E."""
        self.embedding.build(input_shape)

    def call(self, ids: Tensor, training: bool | None = None) -> Tensor:
        """Return the embeddings of the ids, (B, T, D)."""
        vectors = embed(self.embedding, ids, training)
        return (
            vectors * ops.convert_to_tensor(math.sqrt(self.model_dim), vectors.dtype)
            if self.scale
            else vectors
        )

    def logits(self, hidden: Tensor, kernel: Tensor | None = None) -> Tensor:
        """Return hidden · W in float32; `kernel` is the precomputed output of `output_kernel`, if any."""
        if kernel is None:
            return ops.cast(
                self.embedding(hidden, reverse=True), "float32"
            )  # quantized, it has its own dtype
        logits = ops.matmul(ops.cast(hidden, kernel.dtype), kernel)
        return logits if self.soft_cap is None else ops.tanh(logits / self.soft_cap) * self.soft_cap

    def output_kernel(self, token_ids: Sequence[int] | None = None) -> Tensor | None:
        """Return W, float32 (D, vocabulary_size), to compute it once before a loop; None if it is quantized.

        With ids, integers (S,), it has their columns only, (D, S).
        """
        if self.embedding.quantization_mode is not None:
            return None
        tied = self.embedding.tie_weights
        kernel = self.embedding.embeddings if tied else self.embedding.reverse_embeddings
        if token_ids is not None:
            kernel = ops.take(kernel, ops.convert_to_tensor(token_ids, "int32"), axis=0 if tied else 1)
        return ops.cast(ops.transpose(kernel) if tied else kernel, "float32")

    def compute_mask(self, ids: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """Return the mask of tokens, or None without a `pad_id`."""
        return None if self.pad_id is None else ops.not_equal(ids, self.pad_id)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return (…, D)."""
        return (*input_shape, self.model_dim)


def take_rows(table: Tensor, indices: Tensor, training: bool | None = None) -> Tensor:
    """Return rows (…, D) of a table (V, D); in training, the gradient is dense.

    On TensorFlow, the gradient of `ops.take` has a separate entry for every time that a row is read. Keras optimizers
    that square gradients, such as Adam, square each entry instead of their sum. `ops.reshape` sums them.
    """
    rows = ops.take(ops.reshape(table, table.shape) if training else table, indices, axis=0)
    return nan_if_unknown(rows, ops.expand_dims(indices, -1), table.shape[0])


def embed(layer: keras.layers.Embedding, ids: Tensor, training: bool | None = None) -> Tensor:
    """Return `layer(ids)` (…, D); in training, the gradient is dense, see `take_rows`."""
    if training and layer.quantization_mode is None:
        return ops.cast(take_rows(layer.embeddings, ids, training), layer.compute_dtype)
    return nan_if_unknown(layer(ids), ops.expand_dims(ids, -1), layer.input_dim)


@contextlib.contextmanager
def nan_for_unknown_rows() -> Iterator[None]:
    """Return NaN for rows that a table does not have, of which JAX and XLA return others without an error."""
    token = _NAN_FOR_UNKNOWN_ROWS.set(True)
    try:
        yield
    finally:
        _NAN_FOR_UNKNOWN_ROWS.reset(token)


def nan_if_unknown(rows: Tensor, indices: Tensor, size: int | Tensor, minimum: int = 0) -> Tensor:
    """Replace rows (…, D) by NaN where one of their K indices (…, K) is unknown, inside `nan_for_unknown_rows`.

    Args:
        rows: the rows.
        indices: integers, known in [minimum, size).
        size: the number of rows of the table.
        minimum: the smallest index.
    """
    if not _NAN_FOR_UNKNOWN_ROWS.get():
        return rows
    indices = ops.convert_to_tensor(indices)
    is_unknown = ops.any(ops.logical_or(indices < minimum, indices >= size), axis=-1, keepdims=True)
    return ops.where(is_unknown, ops.cast(float("nan"), rows.dtype), rows)
