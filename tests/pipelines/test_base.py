"""Changes of a pipeline after a call."""

import keras
import numpy as np
import pytest

from tests.laws.pipelines import BYTES, SEVERAL, classify

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.slow
@pytest.mark.backend_neutral
def test_a_setting_changed_after_a_call_takes_effect():
    classifier = classify(problem_type=SEVERAL)
    classifier.threshold = 0.0
    assert classifier("a") == [0, 1, 2]
    classifier.threshold = 1.0
    assert classifier("a") == []
    classifier.threshold = 0.0
    classifier.labels[0] = 7
    assert classifier("a") == [7, 1, 2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_weights_changed_or_replaced_after_a_call_take_effect():
    pipeline = classify()
    model, before = pipeline.model, pipeline.scores("abc")
    model.head.kernel.assign(-model.head.kernel)
    changed = pipeline.scores("abc")
    assert np.abs(changed - before).max() > 1e-3
    model.quantize("int8")
    inputs = BYTES.encode(["abc"], add_start=True, add_end=True)
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(model(inputs)))[0]
    np.testing.assert_allclose(pipeline.scores("abc"), expected, **CLOSE)
