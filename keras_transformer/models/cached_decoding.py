"""The base class of models that decode with a cache: decoder-only models and encoder–decoders."""

import abc
from collections.abc import Sequence
from typing import Any

from keras import ops, tree

from keras_transformer import ops as kt_ops
from keras_transformer.models.model import Model
from keras_transformer.ops.kv_cache import State
from keras_transformer.typing import Tensor


class CachedDecoding(Model):
    """Base class of models that predict the next token, given a cache of the earlier ones.

    A subclass creates `embedding`, and implements `cached_blocks`, `hidden_step` and `logits`.
    """

    returns_logits = True

    embedding: Any

    @abc.abstractmethod
    def cached_blocks(self) -> list[Any]:
        """Return the blocks of the decoder."""

    @abc.abstractmethod
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

    @abc.abstractmethod
    def logits(self, hidden: Tensor, kernel: Any = None) -> Tensor:
        """Return float32 logits (B, T, vocabulary_size) of last hidden states (B, T, D); see `output_kernel`."""

    def output_kernel(self, token_ids: Sequence[int] | None = None) -> Any:
        """Return the matrix that `logits` derives from the weights, to compute it once before a loop.

        Args:
            token_ids: the ids (S,) of the tokens whose logits (B, T, S) `logits` returns with this matrix; by default
                all.

        Returns:
            (D, V) or (D, S), with a bias a tuple of matrix and bias; None if the weights are quantized.
        """
        return self.embedding.output_kernel(token_ids)

    def empty_cache(self, batch_size: Any, length: Any, **options: Any) -> list[State]:
        """Create a cache for `step`; the options are those of `layers.MultiHeadAttention.empty_cache`."""
        return [
            block.self_attention.empty_cache(batch_size, length, **options) for block in self.cached_blocks()
        ]

    def select(self, cache: list[State], index: Tensor) -> list[State]:
        """Return the cache in which hypothesis r continues hypothesis `index[:, r]`, integers (B, R)."""
        return [
            block.self_attention.select(block_cache, index)
            for block, block_cache in zip(self.cached_blocks(), cache, strict=True)
        ]

    def take_rows(self, values: Any, index: Tensor) -> Any:
        """Return the context or the cache of some rows of the batch, for exports.

        All tensors must have the axis of rows first: override this method if a context has others.

        Args:
            values: the return value of `encode`, or a cache.
            index: integers (B',), the indices of the rows.
        """
        return tree.map_structure(lambda value: ops.take(value, index, axis=0), values)

    def step(
        self,
        token_ids: Tensor,
        cache: list[State],
        context: Any = None,
        *,
        cache_index: Tensor,
        positions: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_kernel: Any = None,
        kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
        trace: bool = False,
    ) -> tuple[Tensor, list[State]]:
        """Return the next-token logits of T new tokens, given those in the cache.

        Args:
            token_ids: integers (B, T), the new tokens; of a decoder-only model, padded on either side.
            cache: the return value of `empty_cache` or of an earlier step.
            context: the return value of `encode`.
            cache_index: integer scalar, the number of tokens written before.
            positions: integers (B, T), the positions of the new tokens.
            padding_mask: booleans (B, T), False for padding, by default where the id is `pad_id`. In a decoder-only
                model, tokens with the `pad_id` are always padding; in an encoder–decoder, a start token with that id at
                position 0 is not, by default.
            attention_mask: booleans (B, T, S), True where a new token may attend to a cache entry, including those of
                new tokens; for caches with several hypotheses.
            output_kernel: the return value of `output_kernel`, if precomputed.
            kv_cache: how the cache is stored, the same as in `empty_cache`.
            trace: whether recurrent layers keep the states after each token, for `select`.

        Returns:
            Logits (B, T, vocabulary_size) in float32, and the new cache.
        """
        hidden, cache = self.hidden_step(
            token_ids,
            cache,
            context,
            cache_index=cache_index,
            positions=positions,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            kv_cache=kv_cache,
            trace=trace,
        )
        return self.logits(hidden, output_kernel), cache
