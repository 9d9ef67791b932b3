import numpy as np
import pytest

from keras_transformer import relations
from keras_transformer.layers import (
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
)
from tests.random_weights import randomise

from .block_makers import decoder_block, encoder_block

# JAX compiles every new shape for seconds: run only one case of each law there.
neutral = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
X, MEMORY = RANDOM.normal(size=(2, 5, 8)).astype("float32"), RANDOM.normal(size=(2, 4, 6)).astype("float32")
PADDING = np.arange(5) < np.array([[5], [3]])
MEMORY_PADDING = np.arange(4) < np.array([[2], [4]])
BLOCKS = {"encoder": (encoder_block, (X,)), "decoder": (decoder_block, (X, MEMORY))}
NORMALIZATIONS = ("pre", "post")


def built(kind, **options):
    block, inputs = BLOCKS[kind]
    layer = block(**options)
    layer.build(*(x.shape for x in inputs))
    return randomise(layer)


def wired(normalization, residual, x, sublayer):
    """Compute pre-norm x + f(norm(x)) or post-norm norm(x + f(x)), with a reference norm."""
    gamma, beta = residual.norm.get_weights()

    def norm(x):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + residual.epsilon) * gamma + beta

    if normalization == "pre":
        return x + np.asarray(sublayer(norm(x)))
    return norm(x + np.asarray(sublayer(x)))


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_an_encoder_block_is_attention_and_feed_forward_with_residuals(normalization):
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


@pytest.mark.slow
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_a_decoder_block_without_memory_is_a_causal_encoder_block(normalization):
    options = {"normalization": normalization, "position_encoding": "rotary"}
    encoder = built("encoder", relation="causal", **options)
    decoder = decoder_block(cross=False, **options)
    decoder.build(X.shape)
    assert decoder.cross_attention is None
    decoder.set_weights(encoder.get_weights())
    more = {"padding_mask": PADDING, "segment_ids": np.array([[1, 1, 2, 2, 2]] * 2)}
    np.testing.assert_allclose(decoder(X, **more), encoder(X, **more), **CLOSE)


@pytest.mark.parametrize("kind", BLOCKS)
def test_sizes_biases_and_norms_can_be_set(kind):
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


def test_built_sublayers_keep_their_weights():
    attention = MultiHeadAttention(2, name="attention")
    attention.build(X.shape)
    weights = attention.get_weights()
    block = EncoderBlock(attention, FeedForward(12))
    block(X)
    for before, after in zip(weights, block.attention.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
