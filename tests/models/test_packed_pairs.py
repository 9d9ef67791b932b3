import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import models, training
from keras_transformer.relations import Causal, GlobalTokens, SlidingWindow

pytestmark = pytest.mark.backend_neutral

RANDOM = np.random.default_rng(0)
PAIRS = [(RANDOM.integers(4, 20, s), RANDOM.integers(4, 20, t)) for s, t in ((3, 5), (6, 2), (4, 4))]
START, END = 2, 3


def row(parts, length):
    """Join arrays to a row of `length`, padded with 0."""
    return np.pad(np.concatenate(parts), (0, length - sum(map(len, parts)))).astype("int32")[None]


def batch(pairs, length, packed):
    """Return inputs and labels of one row with all `pairs`, or of one row per pair."""
    sources = [[*source, END] for source, _ in pairs]
    labels = [[*target, END] for _, target in pairs]
    targets = [[START, *target] for _, target in pairs]
    inputs = {"source_ids": row(sources, length), "target_ids": row(targets, length)}
    if packed:
        for side, texts in (("source", sources), ("target", targets)):
            inputs[f"{side}_segment_ids"] = row(
                [np.full(len(text), number) for number, text in enumerate(texts, 1)], length
            )
            inputs[f"{side}_positions"] = row([np.arange(len(text)) for text in texts], length)
    return inputs, row(labels, length)


GLOBAL = SlidingWindow(1, 1) | GlobalTokens([0])  # of each pair
MODELS = {
    "Transformer": lambda: models.Transformer(20, 1, 2, 8, 16, dropout=0.0),
    "global tokens": lambda: models.Transformer(
        20, 1, 2, 8, 16, dropout=0.0, encoder_relation=GLOBAL, decoder_relation=GLOBAL & Causal()
    ),
    "T5": lambda: models.T5(20, 1, 2, 8, 16, dropout=0.0, start_id=START, end_id=END),
}


def logits(model, pairs, length, packed=False):
    inputs, _ = batch(pairs, length, packed)
    return ops.convert_to_numpy(model(inputs))[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_packed_row_has_the_logits_of_separate_pairs(name):
    keras.utils.set_random_seed(0)
    model = MODELS[name]()
    found = logits(model, PAIRS, 20, packed=True)
    expected = np.concatenate([logits(model, [pair], 7)[: len(pair[1]) + 1] for pair in PAIRS])
    np.testing.assert_allclose(found[: len(expected)], expected, rtol=0, atol=1e-5)
    unpacked = logits(model, PAIRS, 20)
    assert np.abs(unpacked[: len(expected)] - expected).max() > 1e-2
    assert np.isfinite(found).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_packed_row_has_the_loss_and_gradient_of_separate_pairs(name):
    """A step of plain gradient descent changes the weights by the gradient of the sum of losses."""
    weights, losses = [], []
    for packed in (True, False):
        keras.utils.set_random_seed(0)
        model = MODELS[name]()
        model.compile(keras.optimizers.SGD(0.1), training.LabelSmoothedCrossentropy(0.1, normalizer=1.0))
        if packed:
            inputs, labels = batch(PAIRS, 20, packed)
        else:
            rows = [batch([pair], 7, packed) for pair in PAIRS]
            inputs = {key: np.concatenate([each[key] for each, _ in rows]) for key in rows[0][0]}
            labels = np.concatenate([each for _, each in rows])
        losses.append(float(model.train_on_batch(inputs, labels)))
        weights.append([ops.convert_to_numpy(weight) for weight in model.trainable_weights])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for weight, found, expected in zip(model.trainable_weights, *weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=weight.path)


def test_segment_ids_of_one_side_only_are_rejected():
    inputs, _ = batch(PAIRS, 20, packed=True)
    del inputs["target_segment_ids"]
    with pytest.raises(ValueError, match="both or neither of 'source_segment_ids' and 'target_segment_ids'"):
        MODELS["Transformer"]()(inputs)
