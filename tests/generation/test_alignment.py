import numpy as np
import pytest
from keras import ops

from keras_transformer import generation

from .reference import decoder

pytestmark = pytest.mark.backend_neutral

SOURCES = np.array([[5, 6, 7, 3], [9, 3, 0, 0], [0, 0, 0, 0]])
TARGETS = np.array([[8, 9, 10, 11, 3], [12, 3, 0, 0, 0], [0, 0, 0, 0, 0]])


def test_alignment_rows_sum_to_one_and_equal_model_weights(random_transformer):
    model = random_transformer(3, num_layers=2)
    weights = generation.align(model, SOURCES, TARGETS)
    assert weights.shape == (3, 5, 4)
    np.testing.assert_allclose(weights.sum(axis=-1), (TARGETS != 0).astype(float), rtol=1e-5)
    assert (weights[1, :, 2:] == 0).all()
    inputs = np.concatenate([np.full((3, 1), model.start_id), TARGETS[:, :-1]], axis=1)
    expected = [ops.convert_to_numpy(layer) for layer in model.cross_attention_weights(SOURCES, inputs)]
    np.testing.assert_allclose(weights[0], expected[-1][0].mean(axis=0), rtol=1e-4, atol=1e-6)
    one = generation.align(model, SOURCES, TARGETS, layer=0, head=1)
    np.testing.assert_allclose(one[0], expected[0][0, 1], rtol=1e-4, atol=1e-6)
    both = generation.align(model, SOURCES, TARGETS, layer=0, head=[0, 1])
    np.testing.assert_allclose(both[0], expected[0][0].mean(axis=0), rtol=1e-4, atol=1e-6)
    assert (np.abs(one[0] - both[0]) > 1e-3).any()


@pytest.mark.slow
def test_rows_do_not_depend_on_other_rows(random_transformer):
    model = random_transformer(3)
    together = generation.align(model, SOURCES, TARGETS)
    single = generation.align(model, SOURCES[1:2, :2], TARGETS[1:2, :2])
    np.testing.assert_allclose(together[1, :2, :2], single[0], rtol=1e-4, atol=1e-6)
    assert generation.align(model, SOURCES[:0], TARGETS[:0]).shape == (0, 5, 4)


OUTSIDE = [
    *({"layer": layer} for layer in (1, -2)),
    *({"head": head} for head in (2, [0, 5], [], -1)),
]
NO_INTEGERS = [
    *({"layer": layer} for layer in (1.0, "a", None, True)),
    *({"head": head} for head in (1.5, 0.0, "a", True, [[0, 1]], [[0], [0, 1]], [True])),
]
INVALID = {
    **{
        f"{name}={value!r}": (
            lambda model, _, wrong=wrong: generation.align(model, SOURCES, TARGETS, **wrong),
            rf"`{name}` must {expected}.*Received: {name}=",
        )
        for expected, cases in {"": OUTSIDE, "be .*integer": NO_INTEGERS}.items()
        for wrong in cases
        for name, value in wrong.items()
    },
    "model": (
        lambda _, decoder: generation.align(decoder(), SOURCES, TARGETS),
        "`model` must have `cross_attention_weights`",
    ),
    "another number of rows": (
        lambda model, _: generation.align(model, SOURCES, TARGETS[:1]),
        "`target_ids` must have as many rows",
    ),
    "padding before tokens": (
        lambda model, _: generation.align(model, SOURCES[:1], [[5, 0, 6]]),
        "`target_ids` must have padding after",
    ),
}


@pytest.fixture(scope="module")
def model(random_transformer):
    return random_transformer(3)


@pytest.mark.parametrize(("call", "message"), INVALID.values(), ids=INVALID)
def test_invalid_arguments_are_rejected(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(model, decoder)


@pytest.mark.slow
def test_nan_weights_are_rejected(random_transformer):
    model = random_transformer(3)
    table = ops.convert_to_numpy(model.embedding.embedding.embeddings).copy()
    table[9] = np.nan  # of the second source
    model.embedding.embedding.embeddings.assign(table)
    with pytest.raises(ValueError, match=r"`model` must return finite weights. Received: .* row 1 at step 0"):
        generation.align(model, SOURCES, np.where(TARGETS == 9, 8, TARGETS))
