"""The fusion of rotary positions in ONNX graphs."""

import numpy as np
import onnxruntime
import pytest
import tensorflow as tf

from keras_transformer.export.to_onnx import conversion, graph_traversal
from keras_transformer.layers import RotaryPositions


def converted(layer, size, positions):
    """Return the graph of a rotation of two heads, which a product computes, and its operations."""
    kernel = tf.constant(np.random.default_rng(0).normal(size=(8, 2 * size)).astype("float32"))

    def rotate(x, places):
        heads = tf.reshape(tf.matmul(x, kernel), [-1, 5, 2, size])
        return {"rotated": layer(heads, positions(places))}

    spec = [
        tf.TensorSpec([None, 5, 8], tf.float32, name="x"),
        tf.TensorSpec([None, 5], tf.int32, name="places"),
    ]
    model = conversion.convert("rotate", rotate, spec, {})
    return rotate, model, [node.op_type for node in graph_traversal.nodes(model.graph)]


@pytest.mark.parametrize(
    ("options", "positions", "is_fused"),
    [
        ({}, lambda places: places, True),
        ({"rotary_dim": 4}, lambda places: places, False),
        ({"layout": "interleaved"}, lambda places: places, False),
        ({}, lambda places: None, False),
        ({}, lambda places: tf.reshape(places[1], [1, 5]), False),
    ],
    ids=["halves", "some features", "interleaved", "no positions", "one row of positions"],
)
def test_rotations_of_halves_become_one_operation(options, positions, is_fused):
    rotate, model, operations = converted(RotaryPositions(**options), 8, positions)
    assert operations.count("RotaryEmbedding") == is_fused
    assert "Slice" not in operations or not is_fused
    x = np.random.default_rng(1).normal(size=(3, 5, 8)).astype("float32")
    places = np.array([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11], [0, 0, 0, 1, 2]], "int32")
    expected = rotate(tf.constant(x), tf.constant(places))["rotated"]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    given = {value.name for value in session.get_inputs()}
    feed = {name: value for name, value in {"x": x, "places": places}.items() if name in given}
    (found,) = session.run(["rotated"], feed)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
