"""Models without a padding id, like GPT-2: masks mark padding, and end tokens in prompts are normal tokens."""

import keras
import numpy as np
import pytest

from keras_transformer import generation as g
from keras_transformer.models import GPT, Transformer

END = 3
PROMPTS = [[END], [END, 5, 6, END, 7], [4, END], [8, 9, 10, 11, 4, 5]]
NEW = 6
SAMPLERS = [
    g.Beam(3, num_return=2),
    g.Sample(4.0, seed=5),
    pytest.param(g.Contrastive(top_k=3), marks=pytest.mark.slow),
]


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


def uncached(model, row):
    """Compute greedy ids with a full forward pass for each token."""
    ids = list(row)
    for _ in range(NEW):
        logits = keras.ops.convert_to_numpy(model(np.array([ids])))[0, -1]
        ids.append(int(logits.argmax()))
        if ids[-1] == END:
            break
    new = ids[len(row) :]
    return [*new, *[END] * (NEW - len(new))]


@pytest.mark.slow_variants
@pytest.mark.parametrize("left", [False, True])
def test_greedy_equals_uncached_forward_passes(model, left):
    ids, mask = padded(PROMPTS, 7, left)
    out = g.generate(model, ids, max_new_tokens=NEW, padding_mask=mask)
    np.testing.assert_array_equal(out.best, [uncached(model, row) for row in PROMPTS])


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_padded_batch_equals_single_rows(model, sampler):
    ids, mask = padded(PROMPTS, END)
    out = g.generate(model, ids, sampler, max_new_tokens=NEW, padding_mask=mask)
    for i, row in enumerate(PROMPTS):
        single = g.generate(model, np.array([row]), sampler, max_new_tokens=NEW, rows=[i])
        np.testing.assert_array_equal(out.ids[i], single.ids[0])
        np.testing.assert_allclose(out.scores[i], single.scores[0], rtol=1e-4)


@pytest.mark.slow
def test_sequences_are_padded_with_end_id(model):
    ids, mask = padded(PROMPTS, 0)
    out = g.generate(model, ids, g.Sample(4.0, seed=5), max_new_tokens=NEW, padding_mask=mask)
    assert out.lengths.min() < NEW
    for row, (length,) in zip(out.best, out.lengths, strict=True):
        assert (row[length:] == END).all()


@pytest.mark.slow
def test_speculative_ids_equal_greedy(model):
    ids, mask = padded(PROMPTS, END)
    expected = g.generate(model, ids, max_new_tokens=NEW, padding_mask=mask)
    draft = g.Speculative(model_of(None, seed=3), num_tokens=3)
    found = g.generate(model, ids, draft, max_new_tokens=NEW, padding_mask=mask)
    np.testing.assert_array_equal(found.ids, expected.ids)


@pytest.mark.slow
def test_streamed_tokens_equal_generated_ones(model):
    ids, mask = padded(PROMPTS, 0)
    out = g.generate(model, ids, max_new_tokens=NEW, padding_mask=mask)
    streamed = np.stack(list(g.stream(model, ids, max_new_tokens=NEW, padding_mask=mask)), axis=1)
    np.testing.assert_array_equal(streamed, out.best[:, : streamed.shape[1]])


@pytest.mark.slow
def test_forced_scores_equal_generated_ones(model):
    ids, mask = padded(PROMPTS, 0)
    out = g.generate(model, ids, max_new_tokens=NEW, padding_mask=mask)
    found = g.score(model, ids, out.best, padding_mask=mask)
    np.testing.assert_array_equal(found.lengths, out.lengths[:, 0])
    np.testing.assert_allclose(found.scores, out.scores[:, 0], rtol=1e-4)
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


@pytest.mark.slow
def test_ensemble_of_models_without_padding_id_generates(model):
    ids, mask = padded(PROMPTS, 0)
    single = g.generate(model, ids, max_new_tokens=NEW, padding_mask=mask)
    both = g.generate(g.Ensemble([model, model]), ids, max_new_tokens=NEW, padding_mask=mask)
    np.testing.assert_array_equal(both.ids, single.ids)


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
