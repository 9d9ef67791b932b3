"""What encoder–decoder models share: teacher forcing, and decoding step by step with a cache."""

import abc
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.arguments import check_positive
from keras_transformer.layers.blocks import CrossAttend
from keras_transformer.layers.multi_head_attention import Cache

Tensor = Any
Context = dict[str, Any]


class EncoderDecoder(keras.Model):
    """An encoder–decoder with one vocabulary.

    A subclass makes `embedding`, `drop`, `encoder_blocks`, `decoder_blocks` and `final_norms` in its constructor, calls
    `_build_weights` at its end, and says what `logits` are.

    Args:
        vocabulary_size: of source and target alike.
        num_layers: blocks in the encoder.
        num_decoder_layers: blocks in the decoder, by default `num_layers`.
        pad_id: fills up short rows; never attended to.
        start_id: what the decoder starts from; may be the `pad_id`.
        end_id: ends a sequence.
        **kwargs: for `keras.Model`.

    Raises:
        ValueError: where a size is not positive or an id is none of the vocabulary's.
    """

    embedding: Any
    drop: Any
    encoder_blocks: list[Any]
    decoder_blocks: list[Any]
    final_norms: dict[str, Any]
    model_dim: int

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_decoder_layers: int | None,
        pad_id: int,
        start_id: int,
        end_id: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        num_decoder_layers = num_layers if num_decoder_layers is None else num_decoder_layers
        check_positive(
            vocabulary_size=vocabulary_size, num_layers=num_layers, num_decoder_layers=num_decoder_layers
        )
        for name, id_ in (("pad_id", pad_id), ("start_id", start_id), ("end_id", end_id)):
            if not 0 <= id_ < vocabulary_size:
                raise ValueError(f"`{name}` must be in [0, {vocabulary_size}). Received: {name}={id_}")
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_decoder_layers = num_decoder_layers
        self.pad_id, self.start_id, self.end_id = pad_id, start_id, end_id
        # A Keras mask would hide a start token that looks like padding.
        self._masked_id = None if start_id == pad_id else pad_id

    @abc.abstractmethod
    def logits(self, hidden: Tensor, kernel: Tensor | None = None) -> Tensor:
        """Float32 logits (B, T, vocabulary_size) of last hidden states (B, T, D); see `output_kernel`."""

    def output_kernel(self) -> Tensor | None:
        """What `logits` makes of the weights at every call, for loops to make it once."""
        return self.embedding.output_kernel()

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Logits for every target position (teacher forcing)."""
        memory, source_padding = self.encoder_states(inputs["source_ids"], training)
        return self.decode(inputs["target_ids"], memory, source_padding, training)

    def encoder_states(self, source_ids: Tensor, training: bool | None = None) -> tuple[Tensor, Tensor]:
        """The encoder's output (B, S, D), and which of it is not padding (B, S)."""
        padding_mask = ops.not_equal(source_ids, self.pad_id)
        hidden = self._embed(source_ids, training=training)
        for block in self.encoder_blocks:
            hidden = block(hidden, padding_mask=padding_mask, training=training)
        return self._final_norm("encoder_norm", hidden, training), padding_mask

    def decode(
        self,
        target_ids: Tensor,
        memory: Any,
        padding_mask: Tensor,
        training: bool | None = None,
        cross_attend: CrossAttend | None = None,
    ) -> Tensor:
        """Logits (B, T, vocabulary_size) of target ids (B, T), given the encoder's states and which are padding.

        With `cross_attend` (see `DecoderBlock`), `memory` is a list of what each block's takes.
        """
        memories = [memory] * self.num_decoder_layers if cross_attend is None else memory
        hidden = self._embed(target_ids, training=training)
        for block, block_memory in zip(self.decoder_blocks, memories, strict=True):
            hidden = block(
                hidden,
                block_memory,
                padding_mask=self._target_padding(target_ids, ops.arange(ops.shape(target_ids)[1])),
                memory_padding_mask=padding_mask,
                cross_attend=cross_attend,
                training=training,
            )
        return self.logits(self._final_norm("decoder_norm", hidden, training))

    def encode(self, source_ids: Tensor) -> Context:
        """What decoding needs of the source: every layer's projected memory, and which of it is padding.

        Args:
            source_ids: integers (B, S).

        Returns:
            {"projected": [{"key", "value"}: (B, N, S, H)] per layer, "padding_mask": bool (B, S)}.
        """
        memory, padding_mask = self.encoder_states(source_ids, training=False)
        projected = [block.cross_attention.project(memory) for block in self.decoder_blocks]
        return {"projected": projected, "padding_mask": padding_mask}

    def empty_cache(self, batch_size: Any, length: Any, hypotheses: int = 1) -> list[Cache]:
        """A cache for `step` with room for `length` tokens, `hypotheses` of them for each position."""
        return [
            block.self_attention.empty_cache(batch_size, length, hypotheses) for block in self.decoder_blocks
        ]

    def step(
        self,
        target_ids: Tensor,
        cache: list[Cache],
        context: Context,
        *,
        cache_index: Tensor,
        positions: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_kernel: Tensor | None = None,
        update: Callable[[Tensor, Tensor, Tensor], Tensor] = kt_ops.slice_update,
    ) -> tuple[Tensor, list[Cache]]:
        """Logits of the tokens that follow T new target tokens, given those in the cache.

        Args:
            target_ids: integers (B, T), the new tokens.
            cache: as `empty_cache` makes it and earlier steps return it.
            context: as `encode` returns it.
            cache_index: integer scalar, where in the cache to write.
            positions: integers (B, T) of the new tokens.
            padding_mask: booleans (B, T), False where a new token is padding, by default where it has padding's id and
                is no start token, at position 0, that has it too.
            attention_mask: booleans (B, T, S), which of the tokens in the cache, the new ones included, each new
                token may attend to, where they are alternatives for one position.
            output_kernel: as `output_kernel` returns it, where it was called before.
            update: how to write into the cache.

        Returns:
            Logits (B, T, vocabulary_size) in float32, and the cache with the new tokens in it.
        """
        hidden, cache = self.hidden_step(
            target_ids,
            cache,
            context,
            cache_index=cache_index,
            positions=positions,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            update=update,
        )
        return self.logits(hidden, output_kernel), cache

    def hidden_step(
        self,
        target_ids: Tensor,
        cache: list[Cache],
        context: Context,
        *,
        cache_index: Tensor,
        positions: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        update: Callable[[Tensor, Tensor, Tensor], Tensor] = kt_ops.slice_update,
        cross_attend: CrossAttend | None = None,
    ) -> tuple[Tensor, list[Cache]]:
        """As `step`, with the last hidden states (B, T, D), from which `logits` are made, in their place.

        With `cross_attend` (see `DecoderBlock`), `context["projected"]` is a list of what each block's takes.
        """
        hidden = self._embed(target_ids, positions)
        if padding_mask is None:
            padding_mask = self._target_padding(target_ids, positions)
        new_cache = []
        for block, block_cache, projected in zip(
            self.decoder_blocks, cache, context["projected"], strict=True
        ):
            hidden, block_cache = block.step(
                hidden,
                block_cache,
                projected,
                cache_index=cache_index,
                positions=positions,
                padding_mask=padding_mask,
                memory_padding_mask=context["padding_mask"],
                attention_mask=attention_mask,
                update=update,
                cross_attend=cross_attend,
            )
            new_cache.append(block_cache)
        return self._final_norm("decoder_norm", hidden), new_cache

    def cross_attention_weights(self, source_ids: Tensor, target_ids: Tensor) -> list[Tensor]:
        """How each decoder block attends to the source: float32 (B, N, T, S) per block, for looking."""
        memory, source_padding = self.encoder_states(source_ids, training=False)
        padding_mask = self._target_padding(target_ids, ops.arange(ops.shape(target_ids)[1]))
        hidden = self._embed(target_ids)
        weights = []
        for block in self.decoder_blocks:
            weights.append(block.cross_attention_weights(hidden, memory, padding_mask, source_padding))
            hidden = block(hidden, memory, padding_mask=padding_mask, memory_padding_mask=source_padding)
        return weights

    def compute_output_shape(self, input_shape: dict[str, Any]) -> tuple[int | None, ...]:
        """(B, T, vocabulary_size)."""
        return (*input_shape["target_ids"], self.vocabulary_size)

    def _target_padding(self, target_ids: Tensor, positions: Tensor) -> Tensor:
        """False where the target is padding. Where the start token looks like it, position 0 is never padding."""
        real = ops.not_equal(target_ids, self.pad_id)
        return ops.logical_or(real, ops.equal(positions, 0)) if self.start_id == self.pad_id else real

    def _embed(self, ids: Tensor, positions: Tensor | None = None, training: bool | None = None) -> Tensor:
        """What the first block gets: (B, T, D) of ids (B, T) at `positions`, by default 0, 1, 2, …"""
        return self.drop(self.embedding(ids), training=training)

    def _final_norm(self, name: str, hidden: Tensor, training: bool | None = None) -> Tensor:
        """What the last block's output becomes."""
        return self.final_norms[name](hidden) if name in self.final_norms else hidden

    def _build_weights(self) -> None:
        shape = (None, None, self.model_dim)
        self.embedding.build((None, None))
        self.drop.build(shape)
        for block in self.encoder_blocks:
            block.build(shape)
        for block in self.decoder_blocks:
            block.build(shape, shape)
        for norm in self.final_norms.values():
            norm.build(shape)
        self.built = True
