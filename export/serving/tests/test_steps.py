"""Generation in single steps, with a hand-made decoder whose logits depend on its whole cache."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import keras_transformer_serving as serving

INT, FLOAT = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
VOCABULARY, STEPS = 7, 5
CONFIG = {
    "pad_id": 0,
    "start_id": None,
    "end_id": 6,
    "vocabulary_size": VOCABULARY,
    "max_new_tokens": STEPS,
    "max_source_tokens": 8,
    "generation": {"sampler": "greedy"},
}


def decoder():
    """The next id is the sum of all non-padding ids (keys) and their positions (values), modulo 7."""
    cache = ["batch_size", 1, "past_sequence_length", 1]
    constants = {
        "to_cache": np.array([0, 1, -1, 1]),
        "axes": np.array([1, 2, 3]),
        "size": np.array(VOCABULARY, "float32"),
        "ids": np.arange(VOCABULARY, dtype="float32"),
        "last": np.array([-1]),
        "zero": np.array([0]),
        "time": np.array([1]),
    }
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["new_length"], start=1),
        helper.make_node("Shape", ["attention_mask"], ["all_length"], start=1),
        helper.make_node("Sub", ["all_length", "new_length"], ["past_length"]),
        helper.make_node("Slice", ["attention_mask", "past_length", "all_length", "time"], ["real"]),
    ]
    for part, values in (("key", "input_ids"), ("value", "position_ids")):
        nodes += [
            helper.make_node("Mul", [values, "real"], [f"{part}_real"]),
            helper.make_node("Cast", [f"{part}_real"], [f"{part}_floats"], to=FLOAT),
            helper.make_node("Reshape", [f"{part}_floats", "to_cache"], [f"{part}_new"]),
            helper.make_node(
                "Concat", [f"past_key_values.0.{part}", f"{part}_new"], [f"present.0.{part}"], axis=2
            ),
            helper.make_node("ReduceSum", [f"present.0.{part}", "axes"], [f"{part}_sum"], keepdims=1),
        ]
    nodes += [
        helper.make_node("Add", ["key_sum", "value_sum"], ["sum"]),
        helper.make_node("Squeeze", ["sum", "time"], ["sum_of_row"]),
        helper.make_node("Mod", ["sum_of_row", "size"], ["next"], fmod=1),
        helper.make_node("Sub", ["next", "ids"], ["distance"]),
        helper.make_node("Abs", ["distance"], ["absolute"]),
        helper.make_node("Neg", ["absolute"], ["logits"]),
    ]
    names = ("input_ids", "attention_mask", "position_ids")
    inputs = [helper.make_tensor_value_info(name, INT, ["batch_size", None]) for name in names]
    parts = ("key", "value")
    inputs += [helper.make_tensor_value_info(f"past_key_values.0.{part}", FLOAT, cache) for part in parts]
    outputs = [helper.make_tensor_value_info("logits", FLOAT, [None, None, VOCABULARY])]
    outputs += [
        helper.make_tensor_value_info(f"present.0.{part}", FLOAT, [None, 1, None, 1]) for part in parts
    ]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "model", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.fixture(scope="module")
def graphs(small):
    content = {"generate_greedy": small.graph, "model": decoder()}
    return serving.Graphs(serving.Sessions(lambda name: content[name].SerializeToString()), CONFIG)


def expected(prompt):
    """Compute the ids of one prompt in Python."""
    ids, out = list(prompt), []
    while len(out) < STEPS and 6 not in out:
        out.append((sum(ids) + sum(range(len(ids)))) % VOCABULARY)
        if out[-1] == 0:  # the padding id is never generated: 1 has the next largest logit
            out[-1] = 1
        ids.append(out[-1])
    return out + [0] * (STEPS - len(out))


PROMPTS = [[1, 2, 3], [4], [5, 5], [2, 1, 2]]


@pytest.mark.parametrize("side", ["left", "right"])
def test_steps_keep_the_cache_of_every_row(graphs, side):
    ids = np.zeros((len(PROMPTS), 3), np.int64)
    for row, prompt in enumerate(PROMPTS):
        ids[row, slice(3 - len(prompt), 3) if side == "left" else slice(len(prompt))] = prompt
    np.testing.assert_array_equal(graphs.generate_by_steps(ids), [expected(prompt) for prompt in PROMPTS])


def test_caches_stay_on_the_device(graphs, monkeypatch):
    """Only logits are copied to NumPy; the cache stays bound from step to step."""
    copied = []
    numpy = onnxruntime.OrtValue.numpy
    monkeypatch.setattr(
        onnxruntime.OrtValue, "numpy", lambda self: copied.append(tuple(self.shape())) or numpy(self)
    )
    monkeypatch.setattr(onnxruntime.InferenceSession, "run", None)
    found = graphs.generate_by_steps(np.array([[1, 2, 3]]))
    np.testing.assert_array_equal(found, [expected([1, 2, 3])])
    assert copied
    assert set(copied) == {(1, 1, VOCABULARY)}


def test_calls_without_a_seed_draw_new_noise(graphs, monkeypatch):
    monkeypatch.setattr(graphs, "sampler", {"sampler": "sample", "seed": None, "num_return": 1})
    first, second = (graphs.noise(np.arange(2)) for _ in range(2))
    assert (first != second).all()
    monkeypatch.setattr(graphs, "sampler", {"sampler": "sample", "seed": 3, "num_return": 1})
    np.testing.assert_array_equal(graphs.noise(np.arange(2)), graphs.noise(np.arange(2)))
