"""Models that do not generate, with a hand-made graph."""

import numpy as np
import onnx
import pytest

import keras_transformer_serving as serving
from keras_transformer_serving.forward import ForwardGraph

CONFIG = {
    "pipeline": "TextClassification",
    "pad_id": 0,
    "vocabulary_size": 9,
    "num_segments": 2,
    "max_length": 4,
}


@pytest.fixture(scope="module")
def path(small, tmp_path_factory):
    path = tmp_path_factory.mktemp("graphs") / "model.onnx"
    onnx.save(small.graph, path)
    return path


@pytest.fixture(scope="module")
def model(path):
    return serving.Model(
        ForwardGraph(serving.Sessions(lambda name: path.with_name(f"{name}.onnx").read_bytes())), CONFIG
    )


def test_masks_and_segments_have_defaults(model):
    ids = np.array([[5, 6, 0], [7, 0, 0]], "int32")
    np.testing.assert_array_equal(model.run(input_ids=ids)["logits"], ids)
    np.testing.assert_array_equal(
        model.run(input_ids=ids.tolist(), attention_mask=ids == 5)["logits"], 5 * (ids == 5)
    )
    np.testing.assert_array_equal(
        model.run(input_ids=ids, token_type_ids=ids == 6)["logits"], ids + 10 * (ids == 6)
    )
    assert model.run(input_ids=ids)["logits"].dtype == np.float32
    assert model.inputs == ["input_ids", "attention_mask", "token_type_ids"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "`arrays` must be input_ids, attention_mask, token_type_ids. Received: none"),
        ({"input_ids": [[1]], "more": 1}, "Received: attention_mask, token_type_ids, input_ids, more"),
        (
            {"input_ids": [1, 2]},
            r"`attention_mask` must be|`input_ids` must be int64 of shape \(batch_size, ",
        ),
        ({"input_ids": [[1.5]]}, "`input_ids` must be int64 .*Received: float64"),
        ({"input_ids": [["a"]]}, "`input_ids` must be int64|`token_type_ids` must be int64"),
        ({"input_ids": [[9]]}, "`input_ids` must be from 0 to 8. Received: from 9 to 9"),
        ({"input_ids": [[-1]]}, "`input_ids` must be from 0 to 8"),
        ({"input_ids": [[1]], "token_type_ids": [[2]]}, "`token_type_ids` must be from 0 to 1"),
        ({"input_ids": [[1] * 5]}, "`input_ids` must have at most 4 columns. Received: 5"),
    ],
)
def test_invalid_inputs_are_rejected(model, arrays, message):
    with pytest.raises(ValueError, match=message):
        model.run(**arrays)


def test_string_inputs_need_the_saved_model(model):
    with pytest.raises(ValueError, match="texts are for the export's SavedModel"):
        model(["a"])
