"""The loop of exports, in which rows that have ended leave the batch: equal to the loop that keeps them."""

import keras
import numpy as np
import pytest

from keras_transformer import generation, models
from keras_transformer.generation import Beam, Sample
from keras_transformer.ops import GrowingCache

from .reference import random_transformer, with_various_outputs

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports need TensorFlow")

MOST = 12
RANDOM = np.random.default_rng(3)
LENGTHS = np.array([4, 1, 0, 6, 2, 3, 5, 7, 6])
SOURCES = np.where(np.arange(7) < LENGTHS[:, None], RANDOM.integers(4, 40, (9, 7)), 0).astype(np.int32)
NOISE = RANDOM.random((9, 2, MOST)).astype(np.float32)
LIMITS = np.array([3, 12, 12, 1, 12, 7, 12, 12, 2], np.int32)


def translator():
    return random_transformer(20, 1.5)


def gpt():
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 32, "max_length": 40}
    return with_various_outputs(models.GPT(40, **sizes, pad_id=0, end_id=3), 20, 1.5)


CASES = {
    "greedy": (translator, "greedy", {}),
    "beam": (translator, Beam(3, num_return=2), {}),
    "sample": (translator, Sample(top_k=9, num_return=2), {"noise": NOISE}),
    "sample by rows": (translator, Sample(seed=4), {}),
    "limits": (translator, "greedy", {"limits": LIMITS, "minimums": np.minimum(LIMITS, 2)}),
    "limits of beams": (translator, Beam(2, early_stopping="num_beams"), {"limits": LIMITS}),
    "prefixes": (translator, Beam(2), {"prefix_ids": SOURCES[:, :2], "start_ids": SOURCES[::-1, 0]}),
    "constraints": (translator, Beam(2), {"constraints": [generation.NoRepeatNGram(2)]}),
    "decoder-only": (gpt, "greedy", {}),
    "decoder-only, beam": (gpt, Beam(3), {}),
}


def outputs_of(model, kv_cache, arrays, **options):
    """Return the outputs of the loop as a function of TensorFlow whose inputs have unknown sizes, as in exports."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def generate(values):
        return generation.generate_ids(model, max_new_tokens=MOST, kv_cache=kv_cache, **values, **options)

    specs = {
        name: tf.TensorSpec([None, *([None] if array.ndim == 2 else array.shape[1:])], array.dtype)
        for name, array in arrays.items()
    }
    tensors = {name: tf.constant(array) for name, array in arrays.items()}
    return {name: value.numpy() for name, value in generate.get_concrete_function(specs)(tensors).items()}


@pytest.mark.slow_variants
@pytest.mark.parametrize(("make", "sampler", "options"), CASES.values(), ids=CASES)
def test_the_loop_over_running_rows_equals_the_loop_over_all_rows(make, sampler, options):
    constraints = options.get("constraints", ())
    arrays = {
        "source_ids": SOURCES,
        **{name: array for name, array in options.items() if name != "constraints"},
    }
    found, expected = (
        outputs_of(make(), kv_cache, arrays, sampler=sampler, constraints=constraints)
        for kv_cache in (GrowingCache(), GrowingCache(drops_rows=False))
    )
    assert len({*expected["lengths"].ravel().tolist()}) > 2
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_step_reads_fewer_than_four_thirds_of_the_running_rows():
    import tensorflow as tf

    model, sizes = translator(), []
    step = model.step

    def counted(token_ids, *arguments, **options):
        tf.py_function(lambda count: sizes.append(int(count)), [tf.shape(token_ids)[0]], [])
        return step(token_ids, *arguments, **options)

    model.step = counted
    limits = np.array([1, 1, 1, 1, 2, 2, 3, 12, 12], np.int32)
    sources = np.full((9, 4), 5, np.int32)
    outputs_of(model, GrowingCache(), {"source_ids": sources, "limits": limits, "minimums": limits})
    assert all(3 * size < 4 * np.sum(limits > step) for step, size in enumerate(sizes))
    assert sizes == [9, 5, 3, *[2] * 9]


def test_the_prompt_and_a_step_are_traced_once(monkeypatch):
    model, steps = gpt(), []
    step = model.step
    monkeypatch.setattr(model, "step", lambda *args, **options: (steps.append(1), step(*args, **options))[1])
    outputs_of(model, GrowingCache(), {"source_ids": SOURCES})
    assert len(steps) == 2
