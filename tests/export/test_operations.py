"""Operations that TensorFlow Serving cannot run raise an error that names the code which created them."""

import inspect

import keras
import pytest
import tensorflow as tf

from keras_transformer.export import to_saved_model
from keras_transformer.export.tensorflow_serving import operations
from keras_transformer.pipelines.pipeline import ExportedFunction

ROWS = tf.TensorSpec([None, 4], tf.float32, name="rows")


class Shifted(keras.layers.Layer):
    """Write the first row at an offset that depends on the input."""

    def call(self, rows):
        offset = keras.ops.cast(keras.ops.sum(rows), "int32")
        return keras.ops.slice_update(rows, (offset, 0), rows[:1])


def error_of(tmp_path, function):
    """Return the error message for a SavedModel of a function, "" if it is accepted."""
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(4)])
    signatures = {"serving_default": ExportedFunction(lambda rows: {"rows": function(model(rows))}, [ROWS])}
    try:
        to_saved_model.write_signatures(signatures, [model], tmp_path / "it")
    except ValueError as error:
        return str(error)
    return ""


def test_operations_of_tensorflow_serving_are_accepted(tmp_path, exported):
    assert error_of(tmp_path, tf.nn.relu) == ""
    assert list(operations.unsupported(exported / "saved_model" / "tiny" / "1")) == []
    assert len(operations.supported()) > 1800
    assert operations.supported()["SentencepieceOp"] >= {"model"}


@pytest.mark.usefixtures("recorded_stacks")
def test_a_layer_that_needs_xla_is_rejected_with_its_name_and_line(tmp_path):
    layer = Shifted(name="shifted")
    message = error_of(tmp_path, layer)
    lines, start = inspect.getsourcelines(Shifted.call)
    assert message.startswith(
        "`model` must consist of operations that TensorFlow Serving supports: TensorFlow"
    )
    assert "XlaDynamicUpdateSlice, which needs XLA, at shifted" in message
    assert f" ({__file__}:{start + len(lines) - 1}, call)" in message


@pytest.mark.usefixtures("recorded_stacks")
def test_a_function_compiled_by_xla_is_rejected(tmp_path):
    compiled = tf.function(tf.nn.relu, jit_compile=True, autograph=False)
    message = error_of(tmp_path, lambda rows: compiled(rows))
    assert (
        "PartitionedCall of a function with jit_compile=True, which needs XLA, at PartitionedCall" in message
    )
    assert f" ({__file__}:" in message


def test_all_operations_and_attributes_missing_from_tensorflow_2_20_are_rejected_together(
    tmp_path, monkeypatch
):
    known = {**operations.supported(), "LeakyRelu": frozenset("T")}
    del known["Erf"]
    monkeypatch.setattr(operations, "supported", lambda: known)
    message = error_of(tmp_path, lambda rows: tf.math.erf(tf.nn.leaky_relu(rows)))
    lacking = "which TensorFlow 2.20 and TF.Text 2.20 lack, at"
    assert f"Erf, {lacking} Erf in __inference_" in message
    assert "LeakyRelu" not in message  # attributes with the default are not stored
    message = error_of(tmp_path, lambda rows: tf.nn.leaky_relu(rows, 0.3))
    assert f"LeakyRelu with the attribute alpha, {lacking} LeakyRelu in __inference_" in message


@pytest.mark.slow
def test_an_unsupported_operation_leaves_no_export(tmp_path, pipeline, monkeypatch):
    path = tmp_path / "new"
    findings = [operations.Finding("Erf, which needs XLA", "node", "")]
    graph = ExportedFunction(lambda rows: {"rows": rows}, [ROWS])
    monkeypatch.setattr(operations, "unsupported", lambda _: findings)
    monkeypatch.setattr(type(pipeline), "signatures", lambda self: {"encode": graph})
    with pytest.raises(ValueError, match="Received: Erf, which needs XLA, at node$"):
        to_saved_model.saved_model(pipeline, path, texts=["uno"])
    assert not path.exists()
