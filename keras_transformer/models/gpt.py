"""GPT: a decoder-only language model."""

from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.layers import DecoderBlock, Dropout, LearnedPositions, TokenEmbedding
from keras_transformer.layers.cached_attention import Cache
from keras_transformer.layers.feed_forward import get_activation, serialize_activation
from keras_transformer.layers.positions import attention_encodings
from keras_transformer.layers.rematerialization import check_mode
from keras_transformer.layers.residual import new_norm
from keras_transformer.models.base import (
    Model,
    PublishedSizes,
    causal_relation,
    padding_arguments,
    relation_positions,
)
from keras_transformer.models.input_checks import InputSpec, InputSpecs
from keras_transformer.ops.random import check_rate
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_ids, check_positive_integer


@keras.saving.register_keras_serializable(package="keras_transformer")
class GPT(PublishedSizes, Model):
    r"""Decoder-only language model: each position attends to earlier ones and predicts the next token.

    $$h_0 = E_w + P, \qquad h_l = \mathrm{Block}_l(h_{l-1}), \qquad P(w_{t+1} \mid w_1 \dots w_t) =
    \mathrm{softmax}(\mathrm{norm}(h_L) E^\top)$$

    E_w is the embedding of token w and P that of its position. The defaults are GPT-2's. With `normalization="post"` it
    is GPT-1, without the norm before the logits; with `position_encoding="rotary", norm="rms", activation="swiglu",
    use_bias=False` it has the blocks of later models such as Llama.

    Args:
        vocabulary_size: the number of rows of E.
        num_layers: L, the number of blocks.
        num_heads: the number of attention heads, a divisor of `model_dim`.
        model_dim: D.
        hidden_dim: the hidden size of the feed-forward networks, by default 4 D.
        max_length: the number of learned positions; other position encodings do not limit the length.
        dropout: dropout rate for embeddings, attention weights and sublayer outputs.
        activation: the activation of the feed-forward networks, including gated ones such as "swiglu".
        normalization: "pre" (GPT-2), "post" (GPT-1) or "sandwich" (before and after each sublayer).
        norm: "layer" or "rms".
        position_encoding: "learned" (added to the embeddings), or the position encoding of attention: "rotary",
            "alibi", "relative_bias", a layer, or None.
        num_kv_heads: the number of key/value heads, see `layers.MultiHeadAttention`.
        relation: which positions may attend to which (see `relations`), by default "causal"; never to later ones.
        use_bias: whether attention and feed-forward networks have biases.
        attention_dropout: dropout rate for attention weights, by default `dropout`.
        embedding_dropout: dropout rate for embeddings, by default `dropout`.
        epsilon: the epsilon of the norms.
        pad_id: the padding id, never attended to; None, as in GPT-1 and GPT-2, for padding by a `padding_mask` only.
        end_id: the id that ends a text.
        rematerialize: "blocks" to compute each block again in the backward pass, for less memory; None to keep all.
        **kwargs: arguments of `keras.Model`.

    Call arguments:
        inputs: ids (B, T); or {"token_ids": (B, T)}, optionally with "padding_mask" (B, T), False for padding. If
            several texts are packed in one sequence, also with "segment_ids" (B, T), which restrict attention to each
            text, and "positions" (B, T), which restart in each. "lengths" (B,), the numbers of tokens of rows padded at
            the end (see `data.with_lengths`), replace the padding mask.

    Shapes:
        output: (B, T, vocabulary_size), float32 logits of the next token at each position

    Raises:
        ValueError: if `num_heads` does not divide `model_dim`, a size is not positive, an id is not in the vocabulary,
            or `relation` relates a token to a later one.

    Example:
        >>> model = GPT(100, num_layers=1, num_heads=2, model_dim=16, max_length=8)
        >>> model(keras.ops.array([[5, 6, 3]])).shape
        TensorShape([1, 3, 100])

    References:
        Radford et al., "Improving Language Understanding by Generative Pre-Training" (2018), section 3.1: GPT-1.
        Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.3: GPT-2. Weights are
        initialized as there: N(0, 0.02), output projections of sublayers divided by √(2L).
    """

    is_encoder_decoder = False

    # Layers, heads and D as published (GPT-2's smallest has 124 million parameters, not the 117 of its paper).
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "gpt": {
            "vocabulary_size": 40478,
            "num_layers": 12,
            "num_heads": 12,
            "model_dim": 768,
            "max_length": 512,
            "normalization": "post",
            "pad_id": None,
            "end_id": 0,
        },
        **{
            name: {
                "vocabulary_size": 50257,
                "num_layers": layers,
                "num_heads": heads,
                "model_dim": size,
                "max_length": 1024,
                "pad_id": None,
                "end_id": 50256,
            }
            for name, layers, heads, size in (
                ("gpt2", 12, 12, 768),
                ("gpt2_medium", 24, 16, 1024),
                ("gpt2_large", 36, 20, 1280),
                ("gpt2_xl", 48, 25, 1600),
            )
        },
    }

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int = 12,
        num_heads: int = 12,
        model_dim: int = 768,
        hidden_dim: int | None = None,
        max_length: int | None = 1024,
        dropout: float = 0.1,
        activation: Any = "gelu_tanh",
        normalization: str = "pre",
        norm: str = "layer",
        *,
        position_encoding: Any = "learned",
        num_kv_heads: int | None = None,
        relation: Any = "causal",
        use_bias: bool = True,
        attention_dropout: float | None = None,
        embedding_dropout: float | None = None,
        epsilon: float = 1e-5,
        pad_id: int | None = 0,
        end_id: int = 3,
        rematerialize: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer(vocabulary_size=vocabulary_size, num_layers=num_layers, model_dim=model_dim)
        check_ids(vocabulary_size, end_id=end_id, **({} if pad_id is None else {"pad_id": pad_id}))
        learned = position_encoding == "learned"
        if learned and max_length is None:
            raise ValueError("`max_length` must be given for learned positions. Received: max_length=None")
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.model_dim = model_dim
        self.hidden_dim = 4 * model_dim if hidden_dim is None else hidden_dim
        self.max_length = max_length if learned else None
        self.dropout = check_rate("dropout", dropout)
        self.attention_dropout = check_rate("attention_dropout", attention_dropout, dropout)
        self.embedding_dropout = check_rate("embedding_dropout", embedding_dropout, dropout)
        self.activation = get_activation(activation)
        self.normalization, self.norm = normalization, norm
        # Stored as a config: only the layers of the blocks are built.
        self.position_encoding = (
            "learned"
            if learned
            else keras.saving.serialize_keras_object(attention_encodings.get(position_encoding, num_heads))
        )
        self.num_kv_heads = num_kv_heads
        self.relation = causal_relation(relation)
        self.use_bias, self.epsilon = use_bias, epsilon
        self.pad_id, self.end_id = pad_id, end_id
        self.rematerialize = check_mode(rematerialize)
        dtype = {"dtype": self.dtype_policy}
        self.embedding = TokenEmbedding(
            vocabulary_size,
            model_dim,
            scale=False,
            pad_id=pad_id,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="embedding",
            **dtype,
        )
        self.positions = None
        if learned and max_length is not None:
            self.positions = LearnedPositions(max_length, name="positions", **dtype)
        self.drop = Dropout(self.embedding_dropout, name="dropout", **dtype)
        self.blocks = [
            DecoderBlock(
                num_heads,
                self.hidden_dim,
                self.relation,
                activation=activation,
                normalization=normalization,
                dropout=dropout,
                norm=norm,
                num_kv_heads=num_kv_heads,
                # A new layer for each block.
                position_encoding=None if learned else attention_encodings.get(self._encoding(), num_heads),
                use_bias=use_bias,
                epsilon=epsilon,
                hidden_dropout=0.0,
                attention_dropout=attention_dropout,
                kernel_initializer=keras.initializers.RandomNormal(stddev=0.02),
                output_initializer=keras.initializers.RandomNormal(stddev=0.02 / (2 * num_layers) ** 0.5),
                rematerialize=rematerialize == "blocks",
                name=f"block_{i}",
                **dtype,
            )
            for i in range(num_layers)
        ]
        # Only post-norm blocks normalize their output.
        self.final_norm = (
            None if normalization == "post" else new_norm(norm, epsilon=epsilon, name="final_norm", **dtype)
        )
        self._build_weights()

    def call(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Return the logits of the next token at each position."""
        return self.logits(self.hidden(inputs, training=training))

    def hidden(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> Tensor:
        """Return the last hidden states (B, T, D), the inputs of `logits`, for the inputs of a call."""
        given = self.named_inputs(inputs)
        ids = given["token_ids"]
        padding = padding_arguments(self._padding_mask(ids, given.get("padding_mask")), given.get("lengths"))
        hidden = self.drop(self._embed(ids, given.get("positions")), training=training)
        positions = relation_positions(self.relation, given.get("positions"))
        segment_ids = given.get("segment_ids")
        for block in self.blocks:
            hidden = block(hidden, **padding, segment_ids=segment_ids, positions=positions, training=training)
        return self._normalized(hidden)

    def input_specs(self) -> InputSpecs:
        """Return the integer inputs of a call, by name."""
        return {
            "token_ids": InputSpec(self.vocabulary_size),
            "padding_mask": InputSpec(2, required=False, exported=self.pad_id is None, dtype="bool"),
            "segment_ids": InputSpec(None, required=False),
            "positions": InputSpec(self.max_length, required=False),
            "lengths": InputSpec(None, ("B",), required=False),
        }

    def encode(self, source_ids: Tensor) -> None:
        """Return None, since a decoder-only model encodes no source."""

    def empty_cache(self, batch_size: Any, length: Any, **options: Any) -> list[Cache]:
        """Create a cache for `step`; the options are those of `layers.MultiHeadAttention.empty_cache`."""
        return [block.self_attention.empty_cache(batch_size, length, **options) for block in self.blocks]

    def step(
        self,
        token_ids: Tensor,
        cache: list[Cache],
        context: None = None,
        *,
        cache_index: Tensor,
        positions: Tensor,
        padding_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_kernel: Tensor | None = None,
        kv_cache: kt_ops.KVCache = kt_ops.StaticCache(),
    ) -> tuple[Tensor, list[Cache]]:
        """Return the next-token logits of T new tokens, given those in the cache.

        Args:
            token_ids: integers (B, T), the new tokens, padded on either side.
            cache: the return value of `empty_cache` or of an earlier step.
            context: None, the return value of `encode`.
            cache_index: integer scalar, the number of tokens written before.
            positions: integers (B, T), the positions of the new tokens.
            padding_mask: booleans (B, T), False for padding; tokens with the `pad_id` are padding too.
            attention_mask: booleans (B, T, S), True where a new token may attend to a cache entry, including those of
                new tokens; for caches with several hypotheses.
            output_kernel: the return value of `output_kernel`, if precomputed.
            kv_cache: how the cache is stored, the same as in `empty_cache`.

        Returns:
            Logits (B, T, vocabulary_size) in float32, and the new cache.
        """
        hidden, cache = self.hidden_step(
            token_ids,
            cache,
            cache_index=cache_index,
            positions=positions,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            kv_cache=kv_cache,
        )
        return self.logits(hidden, output_kernel), cache

    def hidden_step(
        self,
        token_ids: Tensor,
        cache: list[Cache],
        context: None = None,
        *,
        positions: Tensor,
        padding_mask: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, list[Cache]]:
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

    def logits(self, hidden: Tensor, kernel: Tensor | None = None) -> Tensor:
        """Return float32 logits (B, T, vocabulary_size) of last hidden states (B, T, D); see `output_kernel`."""
        return self.embedding.logits(hidden, kernel)

    def output_kernel(self) -> Tensor | None:
        """Return the matrix that `logits` derives from the weights, to compute it once before a loop."""
        return self.embedding.output_kernel()

    def resize_token_embeddings(self, vocabulary_size: int) -> "GPT":
        """Copy the model with a different number of token embeddings.

        The first embeddings are kept. New tokens get the last ids, and embeddings drawn as at initialization.

        Args:
            vocabulary_size: the new number of rows of E, larger or smaller.

        Returns:
            A new model, not compiled. The weights are copies.

        Raises:
            ValueError: if `vocabulary_size` is not a positive integer, or `pad_id` or `end_id` would be outside it.
        """
        check_positive_integer(vocabulary_size=vocabulary_size)
        model = type(self).from_config({**self.get_config(), "vocabulary_size": int(vocabulary_size)})
        kept = min(self.vocabulary_size, vocabulary_size)
        for old, new in zip(self.weights, model.weights, strict=True):
            same = old.shape == new.shape
            new.assign(old if same else ops.concatenate([old[:kept], new[kept:]], axis=0))
        return model

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the output shape (B, T, vocabulary_size)."""
        shape = input_shape["token_ids"] if isinstance(input_shape, dict) else input_shape
        return (*shape, self.vocabulary_size)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "model_dim": self.model_dim,
            "hidden_dim": self.hidden_dim,
            "max_length": self.max_length,
            "dropout": self.dropout,
            "activation": serialize_activation(self.activation),
            "normalization": self.normalization,
            "norm": self.norm,
            "position_encoding": self._encoding(),
            "num_kv_heads": self.num_kv_heads,
            "relation": keras.saving.serialize_keras_object(self.relation),
            "use_bias": self.use_bias,
            "attention_dropout": self.attention_dropout,
            "embedding_dropout": self.embedding_dropout,
            "epsilon": self.epsilon,
            "pad_id": self.pad_id,
            "end_id": self.end_id,
            "rematerialize": self.rematerialize,
        }

    def _encoding(self) -> Any:
        encoding = self.position_encoding
        return dict(encoding) if isinstance(encoding, dict) else encoding

    def _build_weights(self) -> None:
        shape = (None, None, self.model_dim)
        self.embedding.build((None, None))
        for layer in (self.positions, self.drop, *self.blocks, self.final_norm):
            if layer is not None:
                layer.build(shape)
        self.built = True

    def _padding_mask(self, ids: Tensor, padding_mask: Tensor | None) -> Tensor | None:
        """Return the mask (B, T), False for the `pad_id` and for padding in the given mask; None without padding."""
        if self.pad_id is None:
            return padding_mask
        by_id = ops.not_equal(ids, self.pad_id)
        return by_id if padding_mask is None else ops.logical_and(by_id, padding_mask)

    def _embed(self, ids: Tensor, positions: Tensor | None) -> Tensor:
        hidden = self.embedding(ids)
        return hidden if self.positions is None else self.positions(hidden, positions=positions)

    def _normalized(self, hidden: Tensor) -> Tensor:
        return hidden if self.final_norm is None else self.final_norm(hidden)
