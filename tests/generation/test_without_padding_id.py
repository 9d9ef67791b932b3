"""Models without a padding id, like GPT-2: masks mark padding, and end tokens in prompts are normal tokens."""

import keras
import numpy as np
import pytest

from keras_transformer import generation as g
from keras_transformer.models import GPT, Transformer

END = 3
PROMPTS = [[END], [END, 5, 6, END, 7], [4, END], [8, 9, 10, 11, 4, 5]]
NEW = 6


def model_of(pad_id, seed=0, layers=1):
    options = {"max_length": 24, "dropout": 0.0, "pad_id": pad_id, "end_id": END}
    model, random = GPT(12, layers, 2, 8, **options), np.random.default_rng(seed)
    for weight in model.trainable_weights:
        if "gamma" not in weight.path:
            weight.assign(random.normal(size=weight.shape) * 1.4 / np.sqrt(weight.shape[0]))
    return model


@pytest.fixture(scope="module")
def model():
    return model_of(None)


def padded(rows, value, left=False):
    length = max(map(len, rows))
    ids, mask = np.full((len(rows), length), value), np.zeros((len(rows), length), bool)
    for i, row in enumerate(rows):
        place = slice(length - len(row), None) if left else slice(len(row))
        ids[i, place], mask[i, place] = row, True
    return ids, mask


@pytest.mark.slow
def test_a_mask_of_targets_equals_padding_after_the_end(model):
    ids, mask = padded(PROMPTS, 0)
    out = g.generate(model, ids, max_new_tokens=NEW, padding_mask=mask)
    found = g.score(model, ids, out.best, padding_mask=mask)
    lengths = np.arange(NEW) < out.lengths
    masked = g.score(model, ids, out.best, padding_mask=mask, target_padding_mask=lengths)
    np.testing.assert_array_equal(masked.scores, found.scores)


@pytest.mark.parametrize("left", [False, True])
def test_masked_forward_equals_single_rows(model, left):
    ids, mask = padded(PROMPTS, 0, left)
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    inputs = {"token_ids": ids, "positions": positions, "padding_mask": mask}
    found = keras.ops.convert_to_numpy(model(inputs))
    for i, row in enumerate(PROMPTS):
        single = keras.ops.convert_to_numpy(model(np.array([row])))[0]
        np.testing.assert_allclose(found[i, mask[i]], single, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda: model_of(0), lambda: Transformer(12, 1, 2, 8, 16)])
def test_padding_mask_equals_padding_id(make):
    model = make()
    rows = [[5, 6], [8, 9, 10, 11]]
    ids, mask = padded(rows, 7)
    expected = g.generate(model, np.where(mask, ids, 0), max_new_tokens=NEW)
    found = g.generate(model, ids, max_new_tokens=NEW, padding_mask=mask)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.ones((2, 3), bool), r"`padding_mask` must be booleans of shape \(2, 2\).*shape=\(2, 3\)"),
        (np.ones((2, 2)), "dtype=float64"),
        ([[True, True], [False, False]], "a token in each row. Received: only padding in row 1"),
    ],
)
def test_invalid_masks_are_rejected(model, mask, message):
    with pytest.raises(ValueError, match=message):
        g.generate(model, np.array([[4, 5], [6, 7]]), max_new_tokens=2, padding_mask=mask)


def test_encoder_decoder_needs_padding_id():
    model = Transformer(12, 1, 2, 8, 16)
    model.pad_id = None
    with pytest.raises(TypeError, match="must have a `pad_id`"):
        g.generate(model, np.array([[4, 5]]))
