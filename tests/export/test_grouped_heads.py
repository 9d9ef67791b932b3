"""The rewrites of grouped heads in ONNX graphs."""

import numpy as np
import onnx
import onnxruntime
import pytest

from keras_transformer.export.to_onnx import rewrites

GROUPS = """
<ir_version: 10, opset_import: ["" : 18]>
attend (float[B, 2, 3, S] x, float[B, {masked}, 1, S] mask, bool[B, {known}, 1, 1] any, float[B, 2, S, 4] v)
  => (float[B, 1, 24] y)
<int64[4] heads = {{-1, 6, 1, 0}}, int64[4] groups = {{-1, 2, 3, 0}}, int64[4] values = {{-1, 6, 1, 4}},
 int64[3] joined = {{{joined}}}, float zero = {{0}}>
{{
  by_heads = Reshape(x, heads)
  added = Add(by_heads, mask)
  probabilities = Softmax<axis = -1>(added)
  by_groups = Reshape(probabilities, groups)
  product = MatMul(by_groups, v)
  of_heads = Reshape(product, values)
  selected = Where(any, of_heads, zero)
  y = Reshape(selected, joined)
}}
"""


@pytest.mark.parametrize(
    ("masked", "known", "joined", "reshapes"),
    [
        (1, 1, "-1, 1, 24", 1),
        (6, 1, "-1, 1, 24", 3),  # a mask for each head
        (1, 6, "-1, 1, 24", 2),  # a condition for each head
        (1, 1, "0, -1, 24", 1),
    ],
)
def test_grouped_heads_are_masked_without_reshapes(masked, known, joined, reshapes):
    source = GROUPS.format(masked=masked, known=known, joined=joined)
    model, simplified = onnx.parser.parse_model(source), onnx.parser.parse_model(source)
    rewrites.simplify(simplified)
    onnx.checker.check_model(simplified, full_check=True)
    assert [node.op_type for node in simplified.graph.node].count("Reshape") == reshapes
    random = np.random.default_rng(0)
    inputs = {
        "x": random.normal(size=(5, 2, 3, 7)).astype("float32"),
        "mask": np.where(random.random((5, masked, 1, 7)) < 0.5, np.float32(0), np.float32(-1e30)),
        "any": random.random((5, known, 1, 1)) < 0.5,
        "v": random.normal(size=(5, 2, 7, 4)).astype("float32"),
    }
    expected, found = (
        onnxruntime.InferenceSession(each.SerializeToString()).run(None, inputs)[0]
        for each in (model, simplified)
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)
