"""The base class of encoder–decoder models, with teacher forcing and cached decoding."""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer import relations
from keras_transformer.layers.multi_head_attention import recorded_attention_weights
from keras_transformer.models.block_arguments import (
    causal_relation,
    padding_arguments,
    positions_of,
    real_tokens,
    relation_positions,
)
from keras_transformer.models.cached_decoding import CachedDecoding
from keras_transformer.models.input_specs import InputSpec, InputSpecs
from keras_transformer.ops.kv_cache import State
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_ids, check_positive_integer

Context = dict[str, Any]

PACKED_INPUTS = {
    f"{side}_{name}": InputSpec(None, ("B", axis), required=False)
    for side, axis in (("source", "S"), ("target", "T"))
    for name in ("segment_ids", "positions")
}
"""The optional inputs for several pairs packed in a row, as in `data.translation_pairs(packed=True)`."""


class AttentionWeights(NamedTuple):
    """The attention weights of an encoder–decoder, as lists with one tensor for each block.

    Attributes:
        encoder: weights of the encoder's self-attention, (B, N, S, S).
        decoder: weights of the decoder's masked self-attention, (B, N, T, T).
        cross: weights of the cross-attention, (B, N, T, S).
    """

    encoder: list[Any]
    decoder: list[Any]
    cross: list[Any]


class EncoderDecoder(CachedDecoding):
    """Base class of encoder–decoders with one vocabulary for source and target.

    A subclass creates `embedding`, `drop`, `encoder_blocks`, `decoder_blocks` and `final_norms` in its constructor,
    calls `_build_weights` at its end, and implements `logits`.

    Args:
        vocabulary_size: the size of the vocabulary of source and target.
        num_layers: the number of encoder blocks.
        num_decoder_layers: the number of decoder blocks, by default `num_layers`.
        pad_id: the padding id, never attended to.
        start_id: the id of the decoder's first input; may be the `pad_id`.
        end_id: the id that ends a sequence.
        encoder_relation: which source positions may attend to which (see `relations`), by default all.
        decoder_relation: which target positions may attend to which, by default "causal"; never to later ones.
        **kwargs: arguments of `keras.Model`.
    """

    is_encoder_decoder = True

    drop: Any
    encoder_blocks: list[Any]
    decoder_blocks: list[Any]
    final_norms: dict[str, Any]
    model_dim: int
    max_length: int | None = None

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_decoder_layers: int | None,
        pad_id: int,
        start_id: int,
        end_id: int,
        encoder_relation: Any = None,
        decoder_relation: Any = "causal",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        num_decoder_layers = num_layers if num_decoder_layers is None else num_decoder_layers
        check_positive_integer(
            vocabulary_size=vocabulary_size, num_layers=num_layers, num_decoder_layers=num_decoder_layers
        )
        check_ids(vocabulary_size, pad_id=pad_id, start_id=start_id, end_id=end_id)
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_decoder_layers = num_decoder_layers
        self.pad_id, self.start_id, self.end_id = pad_id, start_id, end_id
        self.encoder_relation = relations.get(encoder_relation, "encoder_relation")
        self.decoder_relation = causal_relation(decoder_relation, "decoder_relation")
        # A Keras mask would hide a start token whose id is the padding id.
        self._masked_id = None if start_id == pad_id else pad_id

    def call(self, inputs: dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Return the logits of every target position (teacher forcing)."""
        named = self.named_inputs(inputs)
        source_lengths = named.get("source_lengths")
        source_segments, target_segments = named.get("source_segment_ids"), named.get("target_segment_ids")
        if (source_segments is None) != (target_segments is None):
            raise ValueError(
                "`inputs` must have both or neither of 'source_segment_ids' and 'target_segment_ids'. "
                f"Received: the keys {sorted(named)}"
            )
        memory, source_padding = self.encoder_states(
            named["source_ids"],
            training,
            source_lengths,
            segment_ids=source_segments,
            positions=named.get("source_positions"),
        )
        hidden = self.decoder_states(
            named["target_ids"],
            memory,
            source_padding,
            training,
            source_lengths=source_lengths,
            target_lengths=named.get("target_lengths"),
            source_segment_ids=source_segments,
            target_segment_ids=target_segments,
            positions=named.get("target_positions"),
        )
        return self.logits(hidden)

    def input_specs(self) -> InputSpecs:
        """Return the integer inputs of a call, by name."""
        return {
            "source_ids": InputSpec(
                self.vocabulary_size, ("B", "S"), max_length=self.max_length, positions="source_positions"
            ),
            "target_ids": InputSpec(
                self.vocabulary_size, max_length=self.max_length, positions="target_positions"
            ),
            "source_lengths": InputSpec(None, ("B",), required=False),
            "target_lengths": InputSpec(None, ("B",), required=False),
            **PACKED_INPUTS,
        }

    def encoder_states(
        self,
        source_ids: Tensor,
        training: bool | None = None,
        source_lengths: Tensor | None = None,
        *,
        segment_ids: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the encoder's output (B, S, D) and its mask (B, S), False for padding.

        The `source_lengths` (B,) of sources padded at the end replace the mask in attention. With `segment_ids` (B, S),
        tokens attend to their own segment only; `positions` (B, S) restart in each segment.
        """
        padding_mask = ops.not_equal(source_ids, self.pad_id)
        padding = padding_arguments(padding_mask, source_lengths)
        hidden = self._embed("encoder", source_ids, positions, training)
        for block in self.encoder_blocks:
            hidden = block(
                hidden,
                **padding,
                segment_ids=segment_ids,
                positions=relation_positions(block.attention, positions),
                training=training,
            )
        return self._final_norm("encoder_norm", hidden, training), padding_mask

    def decoder_states(
        self,
        target_ids: Tensor,
        memory: Any,
        padding_mask: Tensor,
        training: bool | None = None,
        *,
        source_lengths: Tensor | None = None,
        target_lengths: Tensor | None = None,
        source_segment_ids: Tensor | None = None,
        target_segment_ids: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the decoder's output (B, T, D) for target ids (B, T), given a memory and its mask (B, S).

        The memory is the encoder's output (B, S, D) or a `RetrievalMemory` of it. The lengths (B,) of sources and
        targets padded at the end replace their masks. With segment ids (B, S) and (B, T) for several pairs in a row,
        tokens attend to targets and sources of their own segment; `positions` (B, T) are the positions of targets.
        """
        target_mask = self._target_padding(target_ids, ops.arange(ops.shape(target_ids)[1]))
        target_padding = padding_arguments(target_mask, target_lengths)
        same_segment = None
        if source_segment_ids is not None and target_segment_ids is not None:
            same_segment = ops.equal(
                target_segment_ids[:, :, None], source_segment_ids[:, None, :]
            )  # (B, T, S)
        hidden = self._embed("decoder", target_ids, positions, training)
        for block in self.decoder_blocks:
            hidden = block(
                hidden,
                memory=memory,
                **target_padding,
                memory_padding_mask=padding_mask if source_lengths is None else None,
                memory_lengths=source_lengths,
                segment_ids=target_segment_ids,
                positions=relation_positions(block.self_attention, positions),
                memory_attention_mask=same_segment,
                training=training,
            )
        return self._final_norm("decoder_norm", hidden, training)

    def encode(self, source_ids: Tensor) -> Context:
        """Run the encoder, and project its output to the keys and values of each decoder layer's cross-attention.

        Args:
            source_ids: integers (B, S).

        Returns:
            {"projected": a dictionary {"key", "value"} of (B, N, S, H) for each decoder layer, "padding_mask": booleans
            (B, S), False for padding}.
        """
        return self.context_of(*self.encoder_states(source_ids, training=False))

    def context_of(self, memory: Tensor, padding_mask: Tensor) -> Context:
        """Return the output of `encode` for a memory (B, S, D), the encoder's output, and its mask (B, S)."""
        projected = [block.cross_attention.project(memory) for block in self.decoder_blocks]
        return {"projected": projected, "padding_mask": padding_mask}

    def cached_blocks(self) -> list[Any]:
        """Return the blocks of the decoder."""
        return self.decoder_blocks

    def hidden_step(
        self,
        token_ids: Tensor,
        cache: list[State],
        context: Any = None,
        *,
        positions: Tensor,
        padding_mask: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, list[State]]:
        """Do the same as `step`, but return the last hidden states (B, T, D) instead of the logits."""
        hidden = self._embed("decoder", token_ids, positions)
        if padding_mask is None:
            padding_mask = self._target_padding(token_ids, positions)
        new_cache = []
        for block, block_cache, projected in zip(
            self.decoder_blocks, cache, context["projected"], strict=True
        ):
            hidden, block_cache = block.step(
                hidden,
                block_cache,
                projected,
                positions=positions,
                padding_mask=padding_mask,
                memory_padding_mask=context["padding_mask"],
                **options,
            )
            new_cache.append(block_cache)
        return self._final_norm("decoder_norm", hidden), new_cache

    def attention_weights(self, inputs: dict[str, Tensor]) -> AttentionWeights:
        """Return the weights of all attention layers in a call with these inputs, float32, for inspection."""
        encoder = [block.attention for block in self.encoder_blocks]
        decoder = [block.self_attention for block in self.decoder_blocks]
        cross = [block.cross_attention for block in self.decoder_blocks]
        with recorded_attention_weights([*encoder, *decoder, *cross]) as weights:
            self(inputs, training=False)
        first, second = len(encoder), len(encoder) + len(decoder)
        return AttentionWeights(weights[:first], weights[first:second], weights[second:])

    def cross_attention_weights(self, source_ids: Tensor, target_ids: Tensor) -> list[Tensor]:
        """Return the cross-attention weights of each decoder block, float32 (B, N, T, S), for inspection."""
        return self.attention_weights({"source_ids": source_ids, "target_ids": target_ids}).cross

    def compute_mask(self, inputs: dict[str, Tensor], previous_mask: Any = None) -> Tensor:
        """Return the mask (B, T) of targets, False for padding."""
        ids = inputs["target_ids"]
        padding_mask = self._target_padding(ids, positions_of(ids))
        return real_tokens(ids, padding_mask, inputs.get("target_lengths"))

    def compute_output_shape(self, input_shape: dict[str, Any]) -> tuple[int | None, ...]:
        """Return the output shape (B, T, vocabulary_size)."""
        return (*input_shape["target_ids"], self.vocabulary_size)

    def _target_padding(self, target_ids: Tensor, positions: Tensor) -> Tensor:
        """Return the mask (B, T), False for padding; if `start_id` is `pad_id`, position 0 is never padding."""
        real = ops.not_equal(target_ids, self.pad_id)
        return ops.logical_or(real, ops.equal(positions, 0)) if self.start_id == self.pad_id else real

    def _embed(
        self, side: str, ids: Tensor, positions: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        """Embed ids (B, T) at `positions`, by default 0, 1, 2, …, as the inputs (B, T, D) of the first block.

        The `side` is "encoder" or "decoder".
        """
        return self.drop(self.embedding(ids), training=training)

    def _final_norm(self, name: str, hidden: Tensor, training: bool | None = None) -> Tensor:
        """Normalize the output of the last block, if it has a final norm."""
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


def size_of_decoder(name: str, value: int | None, default: int) -> int:
    """Return a size of the decoder, by default that of the encoder."""
    if value is None:
        return default
    check_positive_integer(**{name: value})
    return value
