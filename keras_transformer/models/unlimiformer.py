"""Unlimiformer: encoder–decoders for inputs of any length, without additional weights.

Axes: B batch, T targets, S source tokens, C chunks, L tokens of a chunk, D model size.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.layers.retrieval_attention import RetrievalMemory, key_matrix
from keras_transformer.models.encoder_decoder import PACKED_INPUTS, Context, EncoderDecoder
from keras_transformer.models.input_specs import InputSpecs
from keras_transformer.models.model import Model
from keras_transformer.ops.kv_cache import State
from keras_transformer.ops.scores import ScaledDotProduct
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class Unlimiformer(Model):
    """Wrap an encoder–decoder, trained or not, for sources longer than its encoder's maximum length.

    The source is encoded in overlapping chunks, and the middle of each chunk, which has context on both sides, is kept.
    The hidden states of all chunks form the store, a `layers.RetrievalMemory`: each head of each cross-attention
    attends only to the k states with the highest scores. All layers and heads share the store, and keys and values are
    computed only for retrieved states, so that memory apart from the store does not grow with the source.
    If k is at least the source's length, it equals full cross-attention to the same states; for a source of one chunk,
    it equals the wrapped model.

    Gradients flow through the retrieved states into the encoder. The wrapper adds no weights. It can also be the
    encoder of an `EncoderDecoderClassifier`.

    Args:
        model: an encoder–decoder such as `models.Transformer`.
        top_k: k, the number of states that a head attends to for a query.
        chunk_length: L, the number of tokens of a chunk, at most the model's `max_length`, if it has one.
        overlap: the number of tokens by which consecutive chunks overlap, by default L // 2, as in the paper.
        **kwargs: arguments of `keras.Model`; the default dtype policy is that of `model`.

    Call arguments:
        inputs: {"source_ids": (B, S), "target_ids": (B, T)} of integers, sources padded on the right.

    Shapes:
        output: (B, T, vocabulary_size), float32 logits of the next token at each target position

    Raises:
        ValueError: if the model has no cross-attention or its score is not a dot product without soft cap, `top_k` or
            `chunk_length` is not positive, `chunk_length` exceeds the model's `max_length`, or `overlap` is not below
            `chunk_length`.

    Example:
        >>> from keras_transformer.models import Transformer
        >>> model = Transformer(100, num_layers=1, num_heads=2, model_dim=16, hidden_dim=32)
        >>> long = Unlimiformer(model, top_k=8, chunk_length=16)
        >>> long({"source_ids": keras.ops.ones((1, 200), "int32"), "target_ids": keras.ops.array([[2, 5]])}).shape
        TensorShape([1, 2, 100])

    References:
        Bertsch et al., "Unlimiformer: Long-Range Transformers with Unlimited Length Input" (2023), sections 2.1 to
        2.3. The paper uses an approximate index; here the search is exact.
    """

    returns_logits = True
    parts = ("model",)

    def __init__(
        self, model: EncoderDecoder, top_k: int, chunk_length: int, overlap: int | None = None, **kwargs: Any
    ) -> None:
        overlap = chunk_length // 2 if overlap is None else overlap
        check_positive_integer(top_k=top_k, chunk_length=chunk_length)
        if not 0 <= overlap < chunk_length:
            raise ValueError(
                f"`overlap` must be in [0, chunk_length). Received: overlap={overlap}, chunk_length={chunk_length}"
            )
        if not isinstance(model, EncoderDecoder):
            raise ValueError(
                "`model` must be an encoder–decoder with cross-attention, such as models.Transformer. "
                f"Received: model of type {type(model).__name__}"
            )
        limit = getattr(model, "max_length", None)
        expectation = f"be at most {limit}, the model's `max_length`"
        check(limit is None or chunk_length <= limit, expectation, chunk_length=chunk_length)
        for block in model.decoder_blocks:
            score = block.cross_attention.score
            if not isinstance(score, ScaledDotProduct) or score.soft_cap is not None:
                raise ValueError(
                    f"`model` must have a scaled dot-product score without soft cap. Received: score={score}"
                )
        super().__init__(**{"dtype": model.dtype_policy, **kwargs})
        self.model = model
        model.build_as_sublayer()
        self.top_k = top_k
        self.chunk_length = chunk_length
        self.overlap = overlap
        self.built = True

    max_length = None  # of a source

    @property
    def model_dim(self) -> int:
        """The model's size D."""
        return self.model.model_dim

    @property
    def dropout(self) -> float:
        """The model's dropout rate."""
        rate: float = self.model.dropout
        return rate

    @property
    def vocabulary_size(self) -> int:
        """The model's vocabulary size."""
        return self.model.vocabulary_size

    @property
    def pad_id(self) -> int:
        """The model's padding id."""
        return self.model.pad_id

    @property
    def start_id(self) -> int:
        """The id of the decoder's first input."""
        return self.model.start_id

    @property
    def end_id(self) -> int:
        """The id that ends a sequence."""
        return self.model.end_id

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Return the logits of every target position (teacher forcing), encoding all chunks of sources in parallel."""
        named = self.named_inputs(inputs)
        memory, padding_mask = self.encoder_states(named["source_ids"], training)
        hidden = self.decoder_states(named["target_ids"], memory, padding_mask, training)
        return self.model.logits(hidden)

    def encoder_states(
        self, source_ids: Tensor, training: bool | None = None
    ) -> tuple[RetrievalMemory, Tensor]:
        """Encode all chunks of sources (B, S) in parallel; return their store, and its mask (B, S')."""
        store, padding_mask = self._parallel_store(source_ids, training)
        return RetrievalMemory(store, self.top_k), padding_mask

    def decoder_states(
        self, target_ids: Tensor, memory: RetrievalMemory, padding_mask: Tensor, training: bool | None = None
    ) -> Tensor:
        """Return the decoder's output (B, T, D) for target ids (B, T), which retrieves from a store."""
        return self.model.decoder_states(target_ids, memory, padding_mask, training)

    def last_chunk(self, source_ids: Tensor) -> Tensor:
        """Return the last L tokens of each source (B, S), or all of a shorter one, padded (B, min(S, L))."""
        length = ops.shape(source_ids)[1]
        if isinstance(length, int) and length <= self.chunk_length:
            return source_ids
        start = ops.maximum(self._ends(source_ids) - self.chunk_length, 0)
        index = start + ops.arange(ops.minimum(length, self.chunk_length))
        return ops.take_along_axis(source_ids, index, axis=1)

    def input_specs(self) -> InputSpecs:
        """Return the integer inputs of the wrapped model, except the inputs for several pairs packed in a row."""
        specs = self.model.input_specs()
        specs = {name: spec for name, spec in specs.items() if name not in PACKED_INPUTS}
        return {**specs, "source_ids": specs["source_ids"]._replace(max_length=None)}

    def encode(self, source_ids: Tensor, kv_cache: kt_ops.StaticCache = kt_ops.StaticCache()) -> Context:
        """Encode the source sequentially, chunk by chunk.

        Args:
            source_ids: integers (B, S).
            kv_cache: the cache whose `insert` writes the states of a chunk.

        Returns:
            {"store": the hidden states (B, S', D), where S' is the length padded to a number of full chunks;
            "padding_mask": booleans (B, S'); "key_matrices": each layer's key projection}.
        """
        store, padding_mask = self._sequential_store(source_ids, kv_cache)
        key_matrices = [
            key_matrix(block.cross_attention, self.model.model_dim) for block in self.model.decoder_blocks
        ]
        return {"store": store, "padding_mask": padding_mask, "key_matrices": key_matrices}

    def empty_cache(self, batch_size: Any, length: Any, **options: Any) -> list[State]:
        """Create the model's cache."""
        return self.model.empty_cache(batch_size, length, **options)

    def select(self, cache: list[State], index: Tensor) -> list[State]:
        """Return the cache in which hypothesis r continues hypothesis `index[:, r]`, integers (B, R)."""
        return self.model.select(cache, index)

    def step(
        self, target_ids: Tensor, cache: list[State], context: Context, **options: Any
    ) -> tuple[Tensor, list[State]]:
        """Return the next-token logits (B, T, vocabulary_size) of new tokens; see `models.Transformer.step`."""
        hidden, cache = self.hidden_step(target_ids, cache, context, **options)
        return self.logits(hidden), cache

    def hidden_step(
        self, target_ids: Tensor, cache: list[State], context: Context, **options: Any
    ) -> tuple[Tensor, list[State]]:
        """Do the same as `step`, but return the last hidden states (B, T, D) instead of the logits."""
        memories = [
            RetrievalMemory(context["store"], self.top_k, matrix) for matrix in context["key_matrices"]
        ]
        context = {"projected": memories, "padding_mask": context["padding_mask"]}
        return self.model.hidden_step(target_ids, cache, context, **options)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits (B, T, vocabulary_size) of last hidden states (B, T, D)."""
        return self.model.logits(hidden)

    def compute_mask(self, inputs: dict[str, Tensor], previous_mask: Any = None) -> Any:
        """Return the mask (B, T) of targets, False for padding."""
        return self.model.compute_mask(inputs, previous_mask)

    def compute_output_shape(self, input_shape: dict[str, Any]) -> tuple[int | None, ...]:
        """Return the output shape (B, T, vocabulary_size)."""
        return (*input_shape["target_ids"], self.vocabulary_size)

    @property
    def _stride(self) -> int:
        return self.chunk_length - self.overlap

    def _parallel_store(self, source_ids: Tensor, training: bool | None) -> tuple[Tensor, Tensor]:
        """Return hidden states (B, S', D) and their mask; encode all chunks as one batch."""
        source_ids, count, last = self._chunks(source_ids)
        starts = ops.arange(count) * self._stride
        index = ops.reshape(starts[:, None] + ops.arange(self.chunk_length), [-1])  # (C·L,)
        chunks = ops.reshape(ops.take(source_ids, index, axis=1), [-1, self.chunk_length])  # (B·C, L)
        states, _ = self.model.encoder_states(chunks, training)
        states = ops.reshape(states, [-1, count * self.chunk_length, states.shape[-1]])
        position = ops.arange(ops.shape(source_ids)[1])
        chunk = ops.maximum(position - self.overlap // 2, 0) // self._stride
        chunk = ops.minimum(chunk, last)  # (B, S')
        index = chunk * self.chunk_length + position - chunk * self._stride
        index = ops.minimum(index, count * self.chunk_length - 1)  # only padding exceeds it
        return ops.take_along_axis(states, index[:, :, None], axis=1), self._real(source_ids)

    def _sequential_store(self, source_ids: Tensor, kv_cache: kt_ops.StaticCache) -> tuple[Tensor, Tensor]:
        """Do the same as `_parallel_store`, but encode one chunk at a time, which uses less memory."""
        source_ids, count, last = self._chunks(source_ids)
        within = ops.arange(self.chunk_length)

        def add(chunk: Tensor, store: Tensor) -> Tensor:
            start = chunk * self._stride
            states, _ = self.model.encoder_states(ops.take(source_ids, start + within, axis=1), False)
            kept = ops.logical_or(within >= self.overlap // 2, ops.equal(chunk, 0))
            kept = ops.logical_and(kept, chunk <= last)  # (B, L)
            states = ops.where(kept[:, :, None], states, ops.take(store, start + within, axis=1))
            return kv_cache.insert(store, states, start)

        batch_size, length = ops.shape(source_ids)
        empty = ops.zeros((batch_size, length, self.model.model_dim), self.model.compute_dtype)
        return ops.fori_loop(0, count, add, empty), self._real(source_ids)

    def _chunks(self, source_ids: Tensor) -> tuple[Tensor, Any, Tensor]:
        """Return the source (B, S') padded to full chunks, their number, and the index (B, 1) of each row's last chunk.

        The last chunk of a row is the first one with the row's last token, so it does not depend on padding; its states
        are kept up to the end.
        """
        source_ids = ops.cast(source_ids, "int32")
        length = ops.shape(source_ids)[1]
        num_further = self._num_further_chunks(
            max(length - self.chunk_length, 0)
            if isinstance(length, int)
            else ops.maximum(length - self.chunk_length, 0)
        )
        padding = self.chunk_length + num_further * self._stride - length
        padded = ops.pad(source_ids, [[0, 0], [0, padding]], constant_values=self.pad_id)
        last = self._num_further_chunks(ops.maximum(self._ends(padded) - self.chunk_length, 0))
        return padded, num_further + 1, last

    def _ends(self, source_ids: Tensor) -> Tensor:
        """Return the number of tokens up to the last one that is not padding (B, 1)."""
        position = ops.arange(ops.shape(source_ids)[1])
        return ops.max(ops.where(self._real(source_ids), position + 1, 0), axis=1, keepdims=True, initial=0)

    def _num_further_chunks(self, count: Any) -> Any:
        """Return the number of chunks that cover `count` tokens after the first chunk."""
        return (count + self._stride - 1) // self._stride

    def _real(self, source_ids: Tensor) -> Tensor:
        return ops.not_equal(source_ids, self.pad_id)
