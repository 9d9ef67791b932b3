"""Sentence embeddings of an encoder such as BERT."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.models.bert_heads import HeadedEncoder, mean_of_tokens
from keras_transformer.models.input_specs import InputSpec, InputSpecs
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of

POOLINGS = ("mean", "first", "last", "max", "mean_sqrt_length", "weighted_mean", "pooler")
Pooling = str | tuple[str, ...]


@keras.saving.register_keras_serializable(package="keras_transformer")
class SentenceEncoder(HeadedEncoder):
    r"""Embed the N texts of each example with one encoder, for contrastive training.

    Train it on pairs of texts (`data.sentence_pairs`, N = 2) with `training.InfoNCE`; `pipelines.Embedding` then embeds
    texts with it. The hidden states h₁, …, h_T of a text's tokens, including special tokens, are pooled to one vector:

    | `pooling` | vector |
    |---|---|
    | "mean" | $\frac{1}{T} \sum_t h_t$ |
    | "mean_sqrt_length" | $\frac{1}{\sqrt{T}} \sum_t h_t$ |
    | "weighted_mean" | $\sum_t t\, h_t \,/ \sum_t t$ |
    | "max" | $\max_t h_t$, for each feature |
    | "first", "last" | $h_1$, $h_T$ |
    | "pooler" | the output of the encoder's pooler for $h_1$ |

    Args:
        encoder: a `BERT`.
        pooling: a name in the table, or several names, whose vectors are concatenated.
        head: layers that transform the pooled vectors, one after another, such as `keras.layers.Dense`.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: ids (B, N, T), or {"token_ids": (B, N, T)}.

    Attributes:
        embedding_dim: E, the size of the vectors: the output size of `head` or, without head, D times the number of
            poolings.

    Shapes:
        output: (B, N, E), float32, not normalised

    Example:
        >>> from keras_transformer.models import BERT
        >>> encoder = BERT(100, num_layers=1, num_heads=2, model_dim=16, max_length=8)
        >>> model = SentenceEncoder(encoder, ("mean", "max"), [keras.layers.Dense(4, "tanh")])
        >>> model(keras.ops.array([[[2, 5, 6, 3], [2, 7, 3, 0]]])).shape
        TensorShape([1, 2, 4])

    References:
        Reimers and Gurevych, "Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks" (2019), section 3.
        Weighted mean: Muennighoff, "SGPT: GPT Sentence Embeddings for Semantic Search" (2022), equation 2.
    """

    returns_logits = False

    def __init__(
        self,
        encoder: Any,
        pooling: str | Sequence[str] = "mean",
        head: Sequence[keras.layers.Layer] = (),
        **kwargs: Any,
    ) -> None:
        pooling = check_pooling(pooling)
        super().__init__(encoder, "pooler" in _names(pooling), **kwargs)
        self.pooling = pooling
        self.head = list(head)
        size = pooled_dim(encoder, pooling)
        for layer in self.head:
            if not layer.built:
                layer.build((None, size))
            size = layer.compute_output_shape((None, size))[-1]
        self.embedding_dim = size
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Tensor:
        """Return the vectors (B, N, E)."""
        ids = self.named_inputs(inputs)["token_ids"]
        _, count, length = ops.shape(ids)
        flat = {"token_ids": ops.reshape(ids, [-1, length])}
        vectors = self.embed(self.encoder(flat, training=training), flat)
        return ops.reshape(vectors, [-1, count, self.embedding_dim])

    def embed(self, hidden: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """Return the vectors (B, E), float32, of the encoder's hidden states (B, T, D) for its inputs."""
        vectors = pool(self.encoder, hidden, inputs, self.pooling)
        for layer in self.head:
            vectors = layer(vectors)  # Keras passes `training` of the enclosing call
        return ops.cast(vectors, "float32")

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the output shape (B, N, E)."""
        shape = input_shape["token_ids"] if isinstance(input_shape, dict) else input_shape
        return (*shape[:2], self.embedding_dim)

    def input_specs(self) -> InputSpecs:
        """Return the integer inputs of a call, by name."""
        return {"token_ids": InputSpec(self.encoder.vocabulary_size, ("B", "N", "T"))}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Create the model from its config."""
        head = [
            keras.saving.deserialize_keras_object(layer, custom_objects=custom_objects)
            for layer in config.get("head", ())
        ]
        return super().from_config({**config, "head": head}, custom_objects)


def check_pooling(pooling: str | Sequence[str]) -> Pooling:
    """Return the name of a pooling, or a tuple of several."""
    names = (pooling,) if isinstance(pooling, str) else tuple(pooling)
    for name in names or ((),):
        check_one_of(POOLINGS, pooling=name)
    return names[0] if len(names) == 1 else names


def pooled_dim(encoder: Any, pooling: Pooling) -> int:
    """Return the size of the vectors of `pool`."""
    return int(encoder.model_dim) * len(_names(pooling))


def pool(encoder: Any, hidden: Tensor, inputs: dict[str, Tensor], pooling: Pooling) -> Tensor:
    """Return the pooled vectors (B, D), or (B, D · P) of P poolings, float32.

    Args:
        encoder: the encoder.
        hidden: its hidden states (B, T, D).
        inputs: its inputs.
        pooling: a name in `POOLINGS`, or several. A row without tokens gives zeros, except with "first" and "pooler".
    """
    mask = encoder.padding_mask(inputs)
    vectors = [_pool(encoder, hidden, mask, name) for name in _names(pooling)]
    return vectors[0] if len(vectors) == 1 else ops.concatenate(vectors, axis=-1)


def _pool(encoder: Any, hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Return the vectors (B, D), float32, of one pooling of (B, T, D), given the padding mask (B, T)."""
    if pooling == "pooler":
        return ops.cast(encoder.pool(hidden), "float32")
    if pooling == "first":
        return ops.cast(hidden[:, 0], "float32")
    if pooling == "mean":
        return mean_of_tokens(hidden, mask)
    hidden = ops.cast(hidden, "float32")
    if pooling == "max":
        largest = ops.max(ops.where(mask[..., None], hidden, _LOWEST), axis=1, initial=_LOWEST)
        return ops.where(ops.any(mask, axis=1, keepdims=True), largest, 0.0)
    weights = ops.cast(mask, "float32")
    numbers = weights * ops.arange(1, ops.shape(mask)[1] + 1, dtype="float32")  # (B, T), 0 for padding
    if pooling == "weighted_mean":
        weights = numbers
    elif pooling == "last":
        last = ops.max(numbers, axis=1, keepdims=True, initial=0)
        weights = weights * ops.cast(ops.equal(numbers, last), "float32")
    total = ops.sum(hidden * weights[..., None], axis=1)
    norm = ops.maximum(ops.sum(weights, axis=1, keepdims=True), 1)
    return total / (ops.sqrt(norm) if pooling == "mean_sqrt_length" else norm)


_LOWEST = -65504.0  # the lowest float16, to which exports are converted


def _names(pooling: Pooling) -> tuple[str, ...]:
    return (pooling,) if isinstance(pooling, str) else pooling
