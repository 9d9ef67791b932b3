"""Exports of Keras models that are not pipelines: functional, sequential, subclassed, and of this package."""

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from keras import layers

from keras_transformer import export, models
from keras_transformer.export import keras_models
from keras_transformer.export.to_onnx import tf2onnx_handlers, weights

IDS = np.array([[3, 4, 5, 0], [6, 7, 0, 0], [8, 9, 1, 2]], "int32")
WORDS = {"ids": IDS, "mask": IDS > 0}


class Pair(keras.Model):
    """A model with two inputs in a dictionary and two outputs in a tuple."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3, activation="gelu")

    def call(self, inputs):
        return self.dense(inputs["left"]), self.dense(inputs["right"])


class Decomposition(layers.Layer):
    def call(self, inputs):
        return keras.ops.cholesky(inputs)


class Shifted(layers.Layer):
    """A layer with a constant tensor, which a traced function captures."""

    def __init__(self, **options):
        super().__init__(**options)
        self.offsets = keras.ops.arange(4, dtype="float32")

    def call(self, inputs):
        return inputs + self.offsets


def sequential():
    return keras.Sequential(
        [keras.Input((8,)), layers.Dense(4, "gelu"), layers.BatchNormalization(), Shifted()]
    )


def functional(as_list=False):
    ids, mask = (
        keras.Input((None,), dtype="int32", name="ids"),
        keras.Input((None,), dtype="bool", name="mask"),
    )
    hidden = layers.Embedding(10, 8)(ids)
    attended = layers.MultiHeadAttention(2, 4)(hidden, hidden, attention_mask=mask[:, None])
    hidden = layers.LayerNormalization()(hidden + attended)
    if as_list:
        return keras.Model([ids, mask], hidden)
    return keras.Model({"ids": ids, "mask": mask}, {"hidden": hidden, "first": hidden[:, 0]})


def images():
    vector = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(pixels := keras.Input((8, 8, 3))))
    return keras.Model(pixels, vector)


PAIR = {name: np.ones((2, 4), "float32") * sign for name, sign in (("left", 1), ("right", -1))}
BERT = {"vocabulary_size": 16, "num_layers": 1, "num_heads": 2, "model_dim": 16, "max_length": 8}
# Functions that create models, export options, inputs, and the names of inputs and outputs.
CASES = {
    "functional": (functional, {}, WORDS, {"ids", "mask"}, {"hidden", "first"}),
    "list": (lambda: functional(True), {}, [IDS, IDS > 0], {"ids", "mask"}, {"output"}),
    "sequential": (sequential, {}, np.ones((3, 8), "float32"), {"inputs"}, {"output"}),
    "images": (images, {}, np.ones((3, 8, 8, 3), "float32"), {"inputs"}, {"output"}),
    "subclassed": (Pair, {"sample_inputs": PAIR}, PAIR, {"left", "right"}, {"output_0", "output_1"}),
    "ours": (
        lambda: models.SequenceClassifier(models.BERT(**BERT), 3),
        {},
        {"token_ids": IDS, "segment_ids": np.zeros_like(IDS)},
        {"token_ids", "segment_ids"},
        {"output"},
    ),
}
QUICK = "sequential"
each = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in CASES]
)


def arrays(model, inputs):
    return [value.numpy() for value in keras.tree.flatten(model(inputs))]


def feed(inputs, names):
    """Return the inputs of a graph by name; a list is in the order of the names."""
    found = inputs if isinstance(inputs, dict) else dict(zip(names, keras.tree.flatten(inputs), strict=True))
    return {name: tf.constant(found[name]) for name in names}


def check(found, model, inputs, names):
    assert set(found) == names
    expected = arrays(model, inputs)
    order = list(model(inputs)) if isinstance(model(inputs), dict) else sorted(names)
    for name, values in zip(sorted(order), expected, strict=True):
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5)


@each
def test_onnx_graph_equals_the_model(name, tmp_path):
    make, options, inputs, names, output_names = CASES[name]
    model = make()
    file = export.onnx_model(model, tmp_path / "new" / "model.onnx", **options)
    assert [path.name for path in file.parent.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(file)
    found = [each.name for each in session.get_outputs()]
    fed = {
        key: value.numpy()
        for key, value in feed(inputs, [each.name for each in session.get_inputs()]).items()
    }
    assert set(fed) == names
    check(dict(zip(found, session.run(found, fed), strict=True)), model, inputs, output_names)
    graph = onnx.load(file).graph
    matrices = {weight.path for weight in model.weights if len(weight.shape) > 1}
    assert matrices <= {each.name for each in graph.initializer}
    for value in [*graph.input, *graph.output]:
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch_size"


RECURRENT = {
    "LSTM": lambda: layers.LSTM(4),
    "GRU": lambda: layers.GRU(4, return_sequences=True),
    "GRU, reset before": lambda: layers.GRU(4, reset_after=False),
    "SimpleRNN": lambda: layers.SimpleRNN(4, go_backwards=True),
    "Bidirectional": lambda: layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
    "stacked": lambda: layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)]),
}


@pytest.mark.slow_variants
@pytest.mark.parametrize("length", [None, 6])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_equal_the_model(name, length, tmp_path):
    ids = keras.Input((length,), dtype="int32", name="ids")
    embedded = layers.Embedding(10, 3, mask_zero=name != "LSTM")(ids)
    model = keras.Model(ids, RECURRENT[name]()(embedded))
    session = onnxruntime.InferenceSession(export.onnx_model(model, tmp_path / "model.onnx"))
    random = np.random.default_rng(0)
    for rows, columns in ((1, length or 1), (3, length or 11)):
        found = random.integers(0, 10, (rows, columns), "int32")
        np.testing.assert_allclose(session.run(None, {"ids": found})[0], model(found), rtol=1e-4, atol=1e-5)


@each
def test_saved_model_equals_the_model(name, tmp_path):
    make, options, inputs, names, output_names = CASES[name]
    model = make()
    folder = export.saved_model_of(model, tmp_path / "model" / "1", **options)
    loaded = tf.saved_model.load(folder)
    signature = loaded.signatures["serving_default"]
    assert set(signature.structured_input_signature[1]) == names
    ordered = list(signature.structured_input_signature[1])
    if isinstance(inputs, list):
        ordered = ["ids", "mask"]
    check(signature(**feed(inputs, ordered)), model, inputs, output_names)


@pytest.mark.slow
def test_a_signature_sets_the_dynamic_sizes(tmp_path):
    class Words(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = layers.Embedding(10, 4)

        def call(self, ids):
            return self.embedding(ids)

    spec = keras.InputSpec("int64", (None, None), name="ids")
    file = export.onnx_model(Words(), tmp_path / "a.onnx", input_signature=spec)
    session = onnxruntime.InferenceSession(file)
    assert session.get_inputs()[0].shape == ["batch_size", "ids_1"]
    assert session.run(None, {"ids": np.ones((1, 9), "int64")})[0].shape == (1, 9, 4)


def test_names_of_inputs_do_not_change_when_a_model_is_saved(tmp_path):
    """As it is for an export from JAX."""
    first, second = keras.Input((4,), name="first"), keras.Input((4,))
    several = keras.Model([first, second], keras.layers.Dense(2)(first + second))
    one = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    for model, names in ((one, ["inputs"]), (several, ["first", "input_1"])):
        model.save(tmp_path / "model.keras")
        for each in (model, keras.saving.load_model(tmp_path / "model.keras")):
            specs = keras.tree.flatten(keras_models._specs(each, None, None))
            assert [spec.name for spec in specs] == names


def test_a_subclassed_model_is_exported_with_the_shapes_of_its_first_call():
    model = Pair()
    model(PAIR)
    specs = keras_models._specs(model, None, None)
    assert {name: tuple(spec.shape) for name, spec in specs.items()} == {
        "left": (None, 4),
        "right": (None, 4),
    }


def test_an_existing_file_is_only_replaced_on_request(tmp_path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"another")
    with pytest.raises(FileExistsError, match="`file` must be new unless overwrite=True"):
        export.onnx_model(sequential(), file)
    assert file.read_bytes() == b"another"
    with pytest.raises(FileExistsError):
        export.saved_model_of(sequential(), tmp_path, overwrite=True)  # not a SavedModel
    export.onnx_model(sequential(), file, overwrite=True)
    assert onnx.load(file).graph.name.startswith("sequential")


@pytest.mark.slow
def test_an_existing_saved_model_is_only_replaced_on_request(tmp_path):
    folder = export.saved_model_of(sequential(), tmp_path / "1")
    before = (folder / "saved_model.pb").read_bytes()
    with pytest.raises(FileExistsError):
        export.saved_model_of(functional(), folder)
    assert (folder / "saved_model.pb").read_bytes() == before
    export.saved_model_of(functional(), folder, overwrite=True)
    assert (folder / "saved_model.pb").read_bytes() != before


def test_a_parity_error_leaves_no_file(tmp_path, monkeypatch):
    convert = keras_models.conversion.convert

    def wrong(name, function, *rest):
        return convert(
            name, lambda *tensors: {key: value + 1 for key, value in function(*tensors).items()}, *rest
        )

    monkeypatch.setattr(keras_models.conversion, "convert", wrong)
    with pytest.raises(export.ParityError, match="`model` must have the model's output"):
        export.onnx_model(sequential(), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_large_weights_are_stored_in_a_file_beside_the_graph(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "MAX_BYTES", 2**10)
    model = keras.Sequential([keras.Input((64,)), layers.Dense(64)])
    file = export.onnx_model(model, tmp_path / "model.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.onnx_data"]
    rows = np.ones((2, 64), "float32")
    np.testing.assert_allclose(
        onnxruntime.InferenceSession(file).run(None, {"inputs": rows})[0], model(rows), rtol=1e-4, atol=1e-5
    )


def test_an_operation_without_an_onnx_equivalent_is_rejected_with_its_layer(tmp_path):
    model = keras.Sequential([keras.Input((4, 4)), Decomposition(name="decomposition")])
    samples = np.eye(4, dtype="float32")[None]
    with pytest.raises(ValueError, match=r"Received: Cholesky in sequential\w*/decomposition\w*/Cholesky"):
        export.onnx_model(model, tmp_path / "model.onnx", sample_inputs=samples)
    assert list(tmp_path.iterdir()) == []


def test_an_operation_unsupported_for_its_dtypes_is_rejected_with_its_layer(tmp_path, monkeypatch):
    monkeypatch.setitem(tf2onnx_handlers.HANDLERS, "Less", (lambda *_: None, []))
    model = keras.Sequential([keras.Input((4, 3)), layers.LSTM(2, name="recurrent")])
    with pytest.raises(
        ValueError, match=r"op_type:Less, node name: sequential.*recurrent.*B has inconsistent type"
    ):
        export.onnx_model(model, tmp_path / "model.onnx")


TEXTS = keras.InputSpec("string", (None,), name="texts")


def stateful():
    return keras.Sequential([keras.Input(batch_shape=(2, 4, 3)), layers.LSTM(2, stateful=True, name="kept")])


INVALID = {
    "stateful": (stateful, {}, "`model` must not have a layer with stateful=True, .* Received: kept"),
    "not a model": (lambda: layers.Dense(3), {}, "`model` must be a keras.Model. Received: Dense"),
    "never called": (Pair, {}, "Pass `input_signature` or `sample_inputs`"),
    "texts": (
        Pair,
        {"input_signature": TEXTS},
        "`input_signature` must have numeric dtypes. Received: texts",
    ),
    "no shape": (
        Pair,
        {"input_signature": keras.InputSpec("int32")},
        "must have a shape and a dtype for inputs",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_arguments_are_rejected(name, tmp_path):
    make, options, message = INVALID[name]
    for write in (export.onnx_model, export.saved_model_of):
        with pytest.raises(ValueError, match=message):
            write(make(), tmp_path / "model.onnx", **options)
    with pytest.raises(ValueError, match=r"`file` must end in \.onnx"):
        export.onnx_model(make(), tmp_path / "model", **options)
