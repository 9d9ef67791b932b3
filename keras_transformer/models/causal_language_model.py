"""The base class of decoder-only language models."""

from typing import Any, Self

import keras
from keras import ops

from keras_transformer.models.block_arguments import padding_arguments, real_tokens, relation_positions
from keras_transformer.models.cached_decoding import CachedDecoding
from keras_transformer.models.input_specs import InputSpec, InputSpecs
from keras_transformer.ops.kv_cache import State
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_ids, check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class CausalLanguageModel(CachedDecoding):
    r"""Base class of decoder-only language models, which predict the next token at each position.

    $$h_0 = \mathrm{Embed}(w), \qquad h_l = \mathrm{Block}_l(h_{l-1}), \qquad P(w_{t+1} \mid w_1 \dots w_t) =
    \mathrm{softmax}(\mathrm{norm}(h_L)\, W)$$

    The constructor of a subclass creates `embedding` (a `TokenEmbedding`), `blocks` (a list of `DecoderBlock`) and
    optionally `positions` (added to the embeddings), `drop` (their dropout) and `final_norm`, and calls
    `_build_weights` at its end. Blocks may differ in the relation, score and head size of their self-attention, and may
    have a `RecurrentMixer` instead. Arguments that are attributes of the same names are in the config.

    Args:
        vocabulary_size: the number of tokens.
        num_layers: L, the number of blocks.
        model_dim: D.
        pad_id: the padding id, never attended to; None for padding by a `padding_mask` only.
        end_id: the id that ends a text.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: ids (B, T); or {"token_ids": (B, T)}, optionally with "padding_mask" (B, T), False for padding. If
            several texts are packed in one sequence, also with "segment_ids" (B, T), which restrict attention to each
            text, and "positions" (B, T), which restart in each. "lengths" (B,), the lengths of sequences padded at the
            end (see `data.with_lengths`), replace the padding mask.

    Shapes:
        output: (B, T, vocabulary_size), float32 logits of the next token at each position
    """

    is_encoder_decoder = False

    blocks: list[Any]
    positions: Any = None
    drop: Any = None
    final_norm: Any = None
    max_length: int | None = None

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        model_dim: int,
        pad_id: int | None,
        end_id: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer(vocabulary_size=vocabulary_size, num_layers=num_layers, model_dim=model_dim)
        check_ids(vocabulary_size, end_id=end_id, **({} if pad_id is None else {"pad_id": pad_id}))
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.model_dim = model_dim
        self.pad_id, self.end_id = pad_id, end_id

    def call(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Return the logits of the next token at each position."""
        return self.logits(self.hidden(inputs, training=training))

    def hidden(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Return the last hidden states (B, T, D), the inputs of `logits`, for the inputs of a call."""
        named = self.named_inputs(inputs)
        ids = named["token_ids"]  # (B, T)
        padding = padding_arguments(self._padding_mask(ids, named.get("padding_mask")), named.get("lengths"))
        hidden = self._embed(ids, named.get("positions"), training)  # (B, T, D)
        segment_ids = named.get("segment_ids")
        for block in self.blocks:
            positions = relation_positions(block.self_attention, named.get("positions"))
            hidden = block(hidden, **padding, segment_ids=segment_ids, positions=positions, training=training)
        return self._normalized(hidden)

    def input_specs(self) -> InputSpecs:
        """Return the integer inputs of a call, by name."""
        return {
            "token_ids": InputSpec(self.vocabulary_size, max_length=self.max_length, positions="positions"),
            "padding_mask": InputSpec(2, required=False, exported=self.pad_id is None, dtype="bool"),
            "segment_ids": InputSpec(None, required=False),
            "positions": InputSpec(self.max_length, required=False),
            "lengths": InputSpec(None, ("B",), required=False),
        }

    def encode(self, source_ids: Tensor) -> None:
        """Return None, because a decoder-only model has no source."""

    def cached_blocks(self) -> list[Any]:
        """Return the blocks."""
        return self.blocks

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
        positions = ops.reshape(positions, ops.shape(token_ids))  # sets the static shape in a graph
        padding_mask = self._padding_mask(token_ids, padding_mask)
        hidden = self._embed(token_ids, positions)
        new_cache = []
        for block, block_cache in zip(self.blocks, cache, strict=True):
            hidden, block_cache = block.step(
                hidden, block_cache, positions=positions, padding_mask=padding_mask, **options
            )
            new_cache.append(block_cache)
        return self._normalized(hidden), new_cache

    def logits(self, hidden: Tensor, kernel: Any = None) -> Tensor:
        """Return float32 logits (B, T, vocabulary_size) of last hidden states (B, T, D); see `output_kernel`."""
        return self.embedding.logits(hidden, kernel)

    def resize_token_embeddings(self, vocabulary_size: int) -> Self:
        """Copy the model with a different number of token embeddings.

        The first embeddings are kept. New tokens have the last ids and newly initialized embeddings.

        Args:
            vocabulary_size: the new number of rows of E, larger or smaller.

        Returns:
            A new model, not compiled. The weights are copies.
        """
        check_positive_integer(vocabulary_size=vocabulary_size)
        model = type(self).from_config({**self.get_config(), "vocabulary_size": int(vocabulary_size)})
        kept = min(self.vocabulary_size, vocabulary_size)
        for old, new in zip(self.weights, model.weights, strict=True):
            same = old.shape == new.shape
            new.assign(old if same else ops.concatenate([old[:kept], new[kept:]], axis=0))
        return model

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Tensor | None:
        """Return the mask (B, T), False for padding; None for a model without `pad_id` if `inputs` have no padding."""
        named = inputs if isinstance(inputs, dict) else {"token_ids": inputs}
        ids = named["token_ids"]
        return real_tokens(ids, self._padding_mask(ids, named.get("padding_mask")), named.get("lengths"))

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the output shape (B, T, vocabulary_size)."""
        shape = input_shape["token_ids"] if isinstance(input_shape, dict) else input_shape
        return (*shape, self.vocabulary_size)

    def _build_weights(self) -> None:
        shape = (None, None, self.model_dim)
        self.embedding.build((None, None))
        for layer in (self.positions, self.drop, *self.blocks, self.final_norm):
            if layer is not None:
                layer.build(shape)
        self.built = True

    def _padding_mask(self, ids: Tensor, padding_mask: Tensor | None) -> Tensor | None:
        """Return the mask (B, T), False for the `pad_id` and where `padding_mask` is False; None without padding."""
        if self.pad_id is None:
            return padding_mask
        by_id = ops.not_equal(ids, self.pad_id)
        return by_id if padding_mask is None else ops.logical_and(by_id, padding_mask)

    def _embed(self, ids: Tensor, positions: Tensor | None, training: bool | None = None) -> Tensor:
        """Return the inputs (B, T, D) of the first block."""
        hidden = self.embedding(ids)
        if self.positions is not None:
            hidden = self.positions(hidden, positions=positions)
        return hidden if self.drop is None else self.drop(hidden, training=training)

    def _normalized(self, hidden: Tensor) -> Tensor:
        return hidden if self.final_norm is None else self.final_norm(hidden)
