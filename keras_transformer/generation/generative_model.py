"""The interface of models for `generate`."""

from typing import Any, Protocol

from keras_transformer import ops as kt_ops
from keras_transformer.typing import Tensor

Context = Any
Cache = Any


class GenerativeModel(Protocol):
    """A model that predicts the next token with a key/value cache, such as `models.Transformer` and `models.GPT`.

    An encoder–decoder reads the source in `encode`. A decoder-only model continues its prompt; either it has no
    `encode`, or it sets `is_encoder_decoder` to False and its `encode` returns None.

    Optional attributes: `max_length`, the number of positions; `output_kernel`, see `models.GPT.output_kernel`;
    `hidden_step` and `logits`, required for `Contrastive`, see `models.GPT`; `select`, required for models with a
    recurrent state, whose `step` takes `trace`, see `layers.RecurrentMixer`; `take_rows`, so that rows that have ended
    leave the batch in exports, see `models.GPT.take_rows`; `source_is_ids`, False for an encoder–decoder whose source
    is audio (B, N) or frames of it (B, T, F), as of `models.Whisper`.

    Attributes:
        vocabulary_size: the number of ids.
        pad_id: the padding id. It may be None for decoder-only models: then `step` takes a `padding_mask`, and finished
            sequences are padded with `end_id`.
        end_id: the id that ends a sequence.
        start_id: the decoder start token of an encoder–decoder; decoder-only models need none.
        variables: the Keras variables of the model.
    """

    vocabulary_size: int
    pad_id: int | None
    end_id: int
    variables: list[Any]
    start_id: int | None

    def encode(self, source_ids: Tensor) -> Context | None:
        """Return the context of `step` for source ids (B, S): any structure of tensors, or None if decoder-only."""

    def empty_cache(
        self,
        batch_size: Any,
        length: Any,
        hypotheses: int = 1,
        kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
    ) -> Cache:
        """Return a cache for `length` entries, any structure of tensors; each position has `hypotheses` entries."""

    def step(
        self,
        ids: Tensor,
        cache: Cache,
        context: Context | None = None,
        *,
        cache_index: Any,
        positions: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
    ) -> tuple[Tensor, Cache]:
        """Return the next-token logits (B, T, V) of T new tokens, and the cache with these tokens.

        Args:
            ids: integers (B, T), the new tokens.
            cache: the return value of `empty_cache` or of an earlier step.
            context: the return value of `encode`; not passed to a decoder-only model.
            cache_index: integer scalar, the number of tokens in the cache.
            positions: integers (B, T), the positions of the new tokens.
            padding_mask: booleans (B, T), False for padding; passed only for prompts.
            attention_mask: booleans (B, R, S) or (1, R, S), True where each of R hypotheses may attend to a token of
                the cache; passed only for several hypotheses.
            kv_cache: how the cache is stored, the same as in `empty_cache`.
        """


def is_encoder_decoder(model: Any) -> bool:
    """Return True for a model that encodes a source, False for one that continues a prompt."""
    return bool(getattr(model, "is_encoder_decoder", hasattr(model, "encode")))


def source_is_ids(model: Any) -> bool:
    """Return True for a model whose source is ids, False for audio."""
    return bool(getattr(model, "source_is_ids", True))
