import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import relations
from keras_transformer.layers import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    TokenEmbedding,
)
from keras_transformer.layers.residual import Residual
from keras_transformer.ops import GrowingCache, StaticCache

from .block_makers import decoder_block, encoder_block

# On JAX every new shape compiles for seconds: one case of each law runs there.
neutral = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
X, MEMORY = RANDOM.normal(size=(2, 5, 8)).astype("float32"), RANDOM.normal(size=(2, 4, 6)).astype("float32")
PADDING = np.arange(5) < np.array([[5], [3]])
MEMORY_PADDING = np.arange(4) < np.array([[2], [4]])
BLOCKS = {"encoder": (encoder_block, (X,)), "decoder": (decoder_block, (X, MEMORY))}
NORMALIZATIONS = ("pre", "post")


def randomise(layer):
    for weight in layer.trainable_weights:
        weight.assign(RANDOM.normal(size=weight.shape) * 0.4)
    return layer


def built(kind, **options):
    block, inputs = BLOCKS[kind]
    layer = block(**options)
    layer.build(*(x.shape for x in inputs))
    return randomise(layer)


def wired(normalization, residual, x, sublayer):
    """Pre: x + f(norm(x)); post: norm(x + f(x)), with a normalisation written here."""
    gamma, beta = residual.norm.get_weights()

    def norm(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + residual.epsilon) * gamma + beta

    if normalization == "pre":
        return x + np.asarray(sublayer(norm(x)))
    return norm(x + np.asarray(sublayer(x)))


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_an_encoder_block_is_attention_then_feed_forward_each_in_a_residual(normalization):
    block = built("encoder", normalization=normalization)
    hidden = wired(
        normalization, block.attention_residual, X, lambda x: block.attention(x, padding_mask=PADDING)
    )
    expected = wired(normalization, block.feed_forward_residual, hidden, block.feed_forward)
    np.testing.assert_allclose(block(X, padding_mask=PADDING), expected, **CLOSE)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_a_decoder_block_is_self_attention_cross_attention_and_feed_forward(normalization):
    block = built("decoder", normalization=normalization)
    assert block.self_attention.relation == relations.Causal()
    assert block.cross_attention.relation == relations.Full()
    hidden = wired(
        normalization,
        block.self_attention_residual,
        X,
        lambda x: block.self_attention(x, padding_mask=PADDING),
    )
    hidden = wired(
        normalization,
        block.cross_attention_residual,
        hidden,
        lambda x: block.cross_attention(x, MEMORY, padding_mask=MEMORY_PADDING),
    )
    expected = wired(normalization, block.feed_forward_residual, hidden, block.feed_forward)
    found = block(X, MEMORY, padding_mask=PADDING, memory_padding_mask=MEMORY_PADDING)
    np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_padding_changes_nothing_at_other_positions(normalization):
    moved, memory = X.copy(), MEMORY.copy()
    moved[~PADDING] += 9
    memory[~MEMORY_PADDING] -= 9
    block = built("encoder", normalization=normalization)
    before, after = (np.asarray(block(x, padding_mask=PADDING)) for x in (X, moved))
    np.testing.assert_array_equal(after[PADDING], before[PADDING])
    block = built("decoder", normalization=normalization)
    masks = {"padding_mask": PADDING, "memory_padding_mask": MEMORY_PADDING}
    before, after = (np.asarray(block(x, m, **masks)) for x, m in ((X, MEMORY), (moved, memory)))
    np.testing.assert_array_equal(after[PADDING], before[PADDING])


def test_a_decoder_block_is_causal_and_an_encoder_block_only_on_request():
    moved = X.copy()
    moved[:, 3] += 1
    for kind, options, causal in (
        ("decoder", {}, True),
        ("encoder", {}, False),
        ("encoder", {"relation": "causal"}, True),
        ("decoder", {"relation": None}, False),
    ):
        block, more = built(kind, **options), BLOCKS[kind][1][1:]
        before, after = np.asarray(block(X, *more)), np.asarray(block(moved, *more))
        assert np.array_equal(before[:, :3], after[:, :3]) == causal
        assert not np.allclose(before[:, 3:], after[:, 3:])


@pytest.mark.slow_variants
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize(
    ("kv_cache", "lengths", "room"),
    [
        (StaticCache(), (3, 1, 1), 6),
        (StaticCache(in_place=False), (1,) * 5, 5),
        (GrowingCache(rolling=False), (2, 2, 1), 0),
    ],
    ids=["in-place", "static", "growing"],
)
def test_steps_equal_one_call(normalization, kv_cache, lengths, room):
    block = built("decoder", normalization=normalization)
    expected = block(X, MEMORY, memory_padding_mask=MEMORY_PADDING)
    cache, projected = (
        block.self_attention.empty_cache(2, room, kv_cache=kv_cache),
        block.cross_attention.project(MEMORY),
    )
    outputs, cache_index = [], 0
    for length in lengths:
        positions = np.broadcast_to(np.arange(cache_index, cache_index + length, dtype="int32"), (2, length))
        output, cache = block.step(
            X[:, cache_index : cache_index + length],
            cache,
            projected,
            cache_index=cache_index,
            positions=positions,
            memory_padding_mask=MEMORY_PADDING,
            kv_cache=kv_cache,
        )
        outputs.append(output)
        cache_index += length
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_without_a_memory_a_decoder_block_is_a_causal_encoder_block(normalization):
    options = {"normalization": normalization, "position_encoding": "rotary"}
    encoder = built("encoder", relation="causal", **options)
    decoder = decoder_block(cross=False, **options)
    decoder.build(X.shape)
    assert decoder.cross_attention is None
    decoder.set_weights(encoder.get_weights())
    more = {"padding_mask": PADDING, "segment_ids": np.array([[1, 1, 2, 2, 2]] * 2)}
    np.testing.assert_allclose(decoder(X, **more), encoder(X, **more), **CLOSE)
    cache, outputs = decoder.self_attention.empty_cache(2, 5), []
    for cache_index in range(5):
        at = np.full((2, 1), cache_index, "int32")
        output, cache = decoder.step(
            X[:, cache_index : cache_index + 1], cache, cache_index=cache_index, positions=at
        )
        outputs.append(output)
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), encoder(X), **CLOSE)


@neutral
def test_a_memory_goes_with_a_block_that_was_built_with_one():
    without_memory = decoder_block()
    without_memory.build(X.shape)
    with pytest.raises(ValueError, match="`memory` must be given .*Received: one for a block built without"):
        without_memory(X, MEMORY)
    with pytest.raises(ValueError, match="`memory` must be given .*Received: none for a block built with"):
        built("decoder")(X)


def test_a_functional_decoder_only_model_reloads_equal(tmp_path):
    x = keras.Input((None, 8))
    model = randomise(keras.Model(x, decoder_block(cross=False)(x)))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_allclose(again(X), model(X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", BLOCKS)
def test_sizes_biases_and_norms_are_the_blocks_too(kind):
    block = built(kind, key_dim=3, use_bias=False, norm="rms", epsilon=0.1, hidden_dropout=0.5)
    attentions = [layer for layer in (getattr(block, "cross_attention", None),) if layer is not None]
    attentions.append(block.attention if kind == "encoder" else block.self_attention)
    assert {attention.query_projection.kernel.shape for attention in attentions} == {(8, 6)}
    assert {weight.name for weight in block.weights} == {"kernel", "scale"}
    assert block.feed_forward_residual.norm.epsilon == 0.1
    assert (block.feed_forward.dropout, block.feed_forward_residual.dropout) == (0.5, 0.0)
    other = built(kind, dropout=0.1, attention_dropout=0.2, qkv_bias=False)
    attention = other.attention if kind == "encoder" else other.cross_attention
    assert (attention.dropout, other.feed_forward.dropout) == (0.2, 0.1)
    assert (attention.key_projection.use_bias, attention.output_projection.use_bias) == (False, True)
    assert type(other).from_config(other.get_config()).get_config() == other.get_config()
    again = type(block).from_config(block.get_config())
    assert again.get_config() == block.get_config()


class TestKerasMasks:
    ids = np.array([[4, 5, 6, 0, 0], [7, 0, 0, 0, 0]])
    padding = ids != 0

    @pytest.mark.slow_variants
    @pytest.mark.parametrize("normalization", NORMALIZATIONS)
    @pytest.mark.parametrize("depth", [1, 2])
    def test_are_passed_to_every_encoder_block(self, normalization, depth):
        blocks = [built("encoder", normalization=normalization) for _ in range(depth)]
        hidden = TokenEmbedding(10, 8)(self.ids)
        bare = np.asarray(hidden)
        for block in blocks:
            hidden, bare = block(hidden), np.asarray(block(bare, padding_mask=self.padding))
        np.testing.assert_allclose(hidden, bare, **CLOSE)

    @pytest.mark.parametrize("normalization", NORMALIZATIONS)
    def test_and_a_given_padding_mask_hide_together(self, normalization):
        block = built("encoder", normalization=normalization)
        x = TokenEmbedding(10, 8)(self.ids)
        given = np.array([[False, True, True, True, True]] * 2)
        expected = block(np.asarray(x), padding_mask=given & self.padding)
        np.testing.assert_allclose(block(x, padding_mask=given), expected, **CLOSE)

    @pytest.mark.slow_variants
    @pytest.mark.parametrize("normalization", NORMALIZATIONS)
    @pytest.mark.parametrize("depth", [1, 2])
    def test_of_target_and_memory_are_passed_to_every_decoder_block(self, normalization, depth):
        embedding = TokenEmbedding(10, 8)
        memory = embedding(self.ids[::-1])
        blocks = [decoder_block(relation=None, normalization=normalization) for _ in range(depth)]
        hidden = embedding(self.ids)
        bare, bare_memory = np.asarray(hidden), np.asarray(memory)
        masks = {"padding_mask": self.padding, "memory_padding_mask": self.padding[::-1]}
        for block in blocks:
            block.build(bare.shape, bare.shape)
            randomise(block)
            hidden, bare = block(hidden, memory), np.asarray(block(bare, bare_memory, **masks))
        np.testing.assert_allclose(hidden, bare, **CLOSE)


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_dropout_only_while_training(kind, normalization):
    block, inputs = built(kind, dropout=0.3, normalization=normalization), BLOCKS[kind][1]
    np.testing.assert_array_equal(block(*inputs), block(*inputs, training=False))
    first = np.asarray(block(*inputs, training=True))
    assert not np.allclose(first, block(*inputs))
    assert not np.allclose(first, block(*inputs, training=True))


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {
            "relation": ~relations.Causal(),
            "activation": "gelu",
            "normalization": "post",
            "dropout": 0.2,
            "dtype": "mixed_float16",
            "name": "block",
        },
    ],
    ids=["defaults", "everything"],
)
@neutral
def test_config_round_trip_is_the_identity(kind, arguments):
    block = BLOCKS[kind][0](**arguments)
    config = block.get_config()
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(block))
    assert again.get_config() == type(block).from_config(config).get_config() == config
    for name in set(arguments) - {"dtype", "relation", "activation"}:
        assert config[name] == arguments[name]


@pytest.mark.slow_variants
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_a_functional_model_of_blocks_saves_and_reloads_equal(normalization, tmp_path):
    x, memory = keras.Input((None, 8)), keras.Input((None, 6))
    padding = keras.Input((None,), dtype="bool")
    options = {"normalization": normalization, "dropout": 0.1}
    hidden = encoder_block(relation="causal", **options)(x, padding_mask=padding)
    hidden = decoder_block(**options)(hidden, memory, padding_mask=padding)
    model = randomise(keras.Model([x, memory, padding], hidden))
    assert model.output_shape == (None, None, 8)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    inputs = [X, MEMORY, PADDING]
    np.testing.assert_allclose(again(inputs), model(inputs), rtol=1e-6, atol=1e-6)


@pytest.mark.slow_variants
@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_is_half_all_through_and_finite(kind, policy):
    block, inputs = BLOCKS[kind]
    layer = block(dropout=0.2, dtype=policy)
    output = layer(*inputs, padding_mask=np.zeros((2, 5), bool), training=True)
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
    assert {weight.dtype for weight in layer.trainable_weights} == {"float32"}
    assert np.isfinite(np.asarray(ops.cast(output, "float32"))).all()


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 3}, "`num_heads` must divide `model_dim`. Received: num_heads=3, model_dim=8"),
        ({"num_heads": 0}, "`num_heads` must be a positive integer. Received: num_heads=0"),
        ({"hidden_dim": 0}, "`hidden_dim` must be a positive integer. Received: hidden_dim=0"),
        ({"normalization": "both"}, "`normalization` must be one of .*Received: normalization='both'"),
        ({"dropout": 1}, r"`dropout` must be in \[0, 1\). Received: dropout=1"),
        ({"relation": "future"}, "`relation` must be .*Received: relation='future'"),
    ],
    ids=str,
)
@neutral
def test_errors_name_the_argument_and_its_value(kind, arguments, message):
    block, inputs = BLOCKS[kind]
    with pytest.raises(ValueError, match=message):
        block(**arguments)(*inputs)


def test_parts_of_other_types_are_refused_by_name():
    with pytest.raises(TypeError, match="`attention` must be a layer. Received: attention=2"):
        EncoderBlock(2, FeedForward(12))
    with pytest.raises(TypeError, match="`feed_forward` must be a layer. Received: feed_forward=12"):
        DecoderBlock(MultiHeadAttention(2), 12)


def test_parts_that_are_built_keep_their_weights():
    attention = MultiHeadAttention(2, name="attention")
    attention.build(X.shape)
    weights = attention.get_weights()
    block = EncoderBlock(attention, FeedForward(12))
    block(X)
    for before, after in zip(weights, block.attention.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_residual_config_round_trip_is_the_identity():
    config = Residual("post", 0.1, 1e-5).get_config()
    assert Residual.from_config(config).get_config() == config
    assert (config["normalization"], config["dropout"], config["epsilon"]) == ("post", 0.1, 1e-5)
