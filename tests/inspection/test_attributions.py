"""Attribution of predictions to attention weights."""

import numpy as np
import pytest
from keras import ops

from keras_transformer import inspection, models
from tests.laws.cases import randomise

IDS = np.array([[5, 6, 7, 3], [8, 9, 3, 0]])
SIZES = {"num_layers": 2, "num_heads": 2, "model_dim": 8, "max_length": 6, "dropout": 0.0}


def classifier():
    return randomise(models.SequenceClassifier(models.BERT(12, **SIZES), 3))


def without_heads(model, inputs, layer):
    """Return the outputs where the heads of a block are zero."""
    attention = (model.encoder if hasattr(model, "encoder") else model).blocks[layer]
    attention = getattr(attention, "self_attention", None) or attention.attention
    kernel = attention.output_projection.kernel
    saved = ops.copy(kernel)
    kernel.assign(ops.zeros(kernel.shape))
    outputs = ops.convert_to_numpy(model(inputs))
    kernel.assign(saved)
    return outputs


@pytest.mark.slow_variants
@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("target", [None, 1, [2, 0]])
def test_attributions_sum_to_the_difference_of_predictions(layer, target):
    model = classifier()
    logits, baseline = ops.convert_to_numpy(model(IDS)), without_heads(model, IDS, layer)
    classes = logits.argmax(axis=-1) if target is None else np.broadcast_to(target, 2)
    attributions = inspection.attention_attributions(model, IDS, target, layer, steps=20)
    assert attributions.shape == (2, 2, 4, 4)
    difference = (logits - baseline)[[0, 1], classes]
    np.testing.assert_allclose(attributions.sum(axis=(1, 2, 3)), difference, atol=1e-4)
    assert (attributions[1, :, :, 3] == 0).all()  # padding


def test_attributions_of_a_linear_model_are_the_effects_of_removing_weights():
    """With one block of attention and a linear head, each attribution is the change if a weight becomes zero."""
    model = randomise(models.GPT(12, **{**SIZES, "num_layers": 1}, normalization="pre", num_kv_heads=1))
    block = model.blocks[0]
    model.final_norm = None
    block.feed_forward.call = lambda inputs, **options: ops.zeros_like(inputs)

    def logit(outputs):
        return outputs[:, 2, 5]

    attributions = inspection.attention_attributions(model, IDS, logit, steps=1)
    weights = inspection.self_attention_weights(model, IDS)
    attention = block.self_attention
    hidden = block.self_attention_residual.normalize_input(model.positions(model.embedding(IDS)))
    values = ops.convert_to_numpy(attention.project(hidden)["value"])[:, 0]  # shared by the heads
    effects = np.zeros_like(attributions)
    for head in range(2):
        heads = np.zeros((2, 4, 2, 4), "float32")
        heads[:, :, head] = values
        projected = ops.matmul(ops.reshape(heads, (2, 4, 8)), attention.output_projection.kernel)
        effects[:, head, 2] = weights[:, head, 2] * ops.convert_to_numpy(model.logits(projected))[..., 5]
    np.testing.assert_allclose(attributions, effects, atol=1e-5)


def test_invalid_arguments_are_rejected():
    model = classifier()
    with pytest.raises(ValueError, match="`steps` must be a positive integer. Received: steps=0"):
        inspection.attention_attributions(model, IDS, steps=0)
    with pytest.raises(ValueError, match=r"`layer` must be in \[-2, 2\). Received: layer=2"):
        inspection.attention_attributions(model, IDS, layer=2)
    with pytest.raises(
        ValueError, match=r"`target` must be a function for outputs that are not logits \(B, C\)"
    ):
        inspection.attention_attributions(randomise(models.GPT(12, **SIZES)), IDS, 1)
    encoder_decoder = models.Transformer(12, num_layers=1, num_heads=2, model_dim=8, hidden_dim=8)
    with pytest.raises(ValueError, match="`model` must be an encoder or decoder"):
        inspection.attention_attributions(encoder_decoder, {"source_ids": IDS, "target_ids": IDS})
