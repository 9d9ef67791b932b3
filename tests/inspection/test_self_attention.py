import keras
import numpy as np
import pytest

from keras_transformer import inspection, models

pytestmark = pytest.mark.backend_neutral

IDS = np.array([[5, 6, 7, 3], [8, 9, 3, 0]])


def spread(model):
    """The model with weights large enough for attention to be far from uniform."""
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
def test_weights_equal_vits_own(layer):
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


def test_model_with_head_uses_its_encoder():
    encoder = bert()
    classifier = models.SequenceClassifier(encoder, 3)
    inputs = {"token_ids": IDS, "segment_ids": np.array([[0, 0, 1, 1], [0, 1, 1, 0]])}
    found = inspection.self_attention_weights(classifier, inputs, layer=0)
    np.testing.assert_array_equal(found, inspection.self_attention_weights(encoder, inputs, layer=0))
    without = inspection.self_attention_weights(encoder, IDS, layer=0)
    assert np.abs(found - without).max() > 1e-3  # segments count


def test_model_is_unchanged():
    model = gpt()
    before = keras.ops.convert_to_numpy(model(IDS))
    inspection.self_attention_weights(model, IDS)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(IDS)), before)
    assert all("call" not in vars(block.self_attention) for block in model.blocks)


def test_failing_call_leaves_the_model_unchanged():
    model = gpt()
    with pytest.raises(ValueError, match="max_length"):
        inspection.self_attention_weights(model, np.ones((1, 7), int))
    assert all("call" not in vars(block.self_attention) for block in model.blocks)


@pytest.mark.parametrize("layer", [2, -3])
def test_unknown_layer_is_refused(layer):
    with pytest.raises(ValueError, match=f"`layer` must be in \\[-2, 2\\). Received: layer={layer}"):
        inspection.self_attention_weights(gpt(), IDS, layer)


def test_model_without_blocks_is_refused():
    with pytest.raises(ValueError, match="`model` must have `blocks`"):
        inspection.self_attention_weights(keras.Sequential([keras.layers.Dense(1)]), IDS)
