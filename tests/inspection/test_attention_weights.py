import functools

import keras
import numpy as np
import pytest

from keras_transformer import generation, inspection, layers, models
from keras_transformer.relations import SlidingWindow

pytestmark = pytest.mark.backend_neutral

IDS = np.array([[5, 6, 7, 3], [8, 9, 3, 0]])


def spread(model):
    """Return the model with weights large enough for attention to be far from uniform."""
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        if len(weight.shape) > 1:
            weight.assign(rng.normal(size=weight.shape).astype("float32") * 0.5)
    return model


def gpt(**options):
    return spread(models.GPT(12, num_layers=2, num_heads=2, model_dim=8, max_length=6, **options))


def bert():
    return spread(models.BERT(12, num_layers=2, num_heads=2, model_dim=8, max_length=6))


@pytest.mark.parametrize("layer", [0, 1, -1])
def test_weights_equal_the_attention_weights_of_vit(layer):
    model = spread(models.ViT(4, 2, 3, num_layers=2, num_heads=2, model_dim=8, hidden_dim=8, num_channels=1))
    images = np.random.default_rng(0).uniform(0, 255, (2, 4, 4, 1)).astype("float32")
    own = keras.ops.convert_to_numpy(model.attention_weights(images)[layer])
    found = inspection.self_attention_weights(model, images, layer)
    np.testing.assert_allclose(found, own, atol=1e-6)
    assert found.shape == (2, 2, 5, 5)


@pytest.mark.parametrize("position_encoding", ["learned", "rotary", "relative_bias"])
def test_gpt_weights_are_causal_and_ignore_padding(position_encoding):
    weights = inspection.self_attention_weights(gpt(position_encoding=position_encoding), IDS)
    assert weights.shape == (2, 2, 4, 4)
    assert weights.dtype == np.float32
    assert (np.triu(weights, 1) == 0).all()
    assert (weights[1, :, :, 3] == 0).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
    assert weights.max() > 0.6


def test_packed_texts_do_not_attend_to_each_other():
    inputs = {
        "token_ids": IDS[:1],
        "segment_ids": np.array([[1, 1, 2, 2]]),
        "positions": np.array([[0, 1, 0, 1]]),
    }
    weights = inspection.self_attention_weights(gpt(), inputs)
    assert (weights[:, :, 2:, :2] == 0).all()
    # The second text's weights equal those of the text without the first.
    single = inspection.self_attention_weights(gpt(), IDS[:1, 2:])
    np.testing.assert_allclose(weights[:, :, 2:, 2:], single, atol=1e-5)


def test_a_model_with_a_head_uses_its_encoder():
    encoder = bert()
    classifier = models.SequenceClassifier(encoder, 3)
    inputs = {"token_ids": IDS, "segment_ids": np.array([[0, 0, 1, 1], [0, 1, 1, 0]])}
    found = inspection.self_attention_weights(classifier, inputs, layer=0)
    np.testing.assert_array_equal(found, inspection.self_attention_weights(encoder, inputs, layer=0))
    without = inspection.self_attention_weights(encoder, IDS, layer=0)
    assert np.abs(found - without).max() > 1e-3  # segment ids change the weights


def test_model_is_unchanged():
    model = gpt()
    before = keras.ops.convert_to_numpy(model(IDS))
    inspection.self_attention_weights(model, IDS)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(IDS)), before)
    assert all("call" not in vars(block.self_attention) for block in model.blocks)


def test_a_failed_call_leaves_the_model_unchanged():
    model = gpt()
    with pytest.raises(ValueError, match="max_length"):
        inspection.self_attention_weights(model, np.ones((1, 7), int))
    assert all("call" not in vars(block.self_attention) for block in model.blocks)


def test_lengths_are_equivalent_to_a_padding_mask():
    with_lengths = inspection.self_attention_weights(gpt(), {"token_ids": IDS, "lengths": np.array([4, 3])})
    np.testing.assert_array_equal(with_lengths, inspection.self_attention_weights(gpt(), IDS))


SOURCES = np.array([[5, 6, 7, 8, 3], [9, 10, 7, 3, 0]])
TARGETS = np.array([[8, 4, 9, 3], [7, 3, 0, 0]])
SIZES = {"num_layers": 2, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
PAIRS = {
    "transformer": lambda **options: models.Transformer(12, **SIZES, **options),
    "t5": lambda **options: models.T5(12, **SIZES, key_dim=4, start_id=2, end_id=3, **options),
}
pairs = pytest.mark.parametrize("name", PAIRS)


def pair_inputs():
    return {"source_ids": SOURCES, "target_ids": np.concatenate([[[2], [2]], TARGETS[:, :-1]], axis=1)}


@pytest.fixture(params=PAIRS)
def pair_model(request):
    windows = {"encoder_relation": SlidingWindow(1, 1), "decoder_relation": SlidingWindow(1)}
    return spread(PAIRS[request.param](**windows))


def test_weights_times_values_equal_the_output_of_each_attention(pair_model, monkeypatch):
    inputs, calls = pair_inputs(), {}
    original = layers.MultiHeadAttention.call

    @functools.wraps(original)
    def call(layer, query, value=None, *args, **options):
        output = original(layer, query, value, *args, **options)
        calls[id(layer)] = (query if value is None else value, output)
        return output

    monkeypatch.setattr(layers.MultiHeadAttention, "call", call)
    pair_model(inputs)
    monkeypatch.undo()
    weights = inspection.attention_weights(pair_model, inputs)
    attentions = [
        [block.attention for block in pair_model.encoder_blocks],
        [block.self_attention for block in pair_model.decoder_blocks],
        [block.cross_attention for block in pair_model.decoder_blocks],
    ]
    for maps, group in zip(weights, attentions, strict=True):
        assert len(maps) == len(group) == 2
        for layer_weights, attention in zip(maps, group, strict=True):
            np.testing.assert_allclose(layer_weights.sum(axis=-1), 1, rtol=1e-5)
            value, output = calls[id(attention)]
            heads = attention.project(value)["value"]  # (B, N, S, V)
            merged = np.einsum("bnts,bnsv->btnv", layer_weights, keras.ops.convert_to_numpy(heads))
            projected = attention.output_projection(merged.reshape(*merged.shape[:2], -1))
            np.testing.assert_allclose(projected, keras.ops.convert_to_numpy(output), rtol=1e-4, atol=1e-4)


def test_encoder_decoder_weights_are_zero_outside_relations_and_at_padding(pair_model):
    encoder, decoder, cross = inspection.attention_weights(pair_model, pair_inputs())
    assert [encoder[0].shape, decoder[0].shape, cross[0].shape] == [(2, 2, 5, 5), (2, 2, 4, 4), (2, 2, 4, 5)]
    assert {each.dtype for maps in (encoder, decoder, cross) for each in maps} == {np.dtype("float32")}
    for layer in encoder:
        assert (layer[:, :, ~SlidingWindow(1, 1).matrix(5)] == 0).all()
    for layer in decoder:
        assert (layer[:, :, ~SlidingWindow(1).matrix(4)] == 0).all()
    for layer in (*encoder, *cross):
        assert (layer[1, :, :, 4:] == 0).all()


@pytest.mark.slow
def test_cross_attention_weights_equal_align(pair_model):
    weights = inspection.attention_weights(pair_model, pair_inputs())
    for layer in (0, 1):
        aligned = generation.align(pair_model, SOURCES, TARGETS, layer=layer)
        real = TARGETS != 0
        np.testing.assert_allclose(aligned[real], weights.cross[layer].mean(1)[real], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pairs
def test_packed_pairs_attend_within_their_segment(name):
    inputs = {
        "source_ids": np.array([[5, 6, 3, 7, 3]]),
        "target_ids": np.array([[2, 8, 9, 2, 4]]),
        **{f"{side}_segment_ids": np.array([[1, 1, 1, 2, 2]]) for side in ("source", "target")},
        **{f"{side}_positions": np.array([[0, 1, 2, 0, 1]]) for side in ("source", "target")},
    }
    same = np.equal.outer([1, 1, 1, 2, 2], [1, 1, 1, 2, 2])
    for maps in inspection.attention_weights(spread(PAIRS[name]()), inputs):
        assert all((layer[:, :, ~same] == 0).all() for layer in maps)
