"""Models on JAX are exported by a process with TensorFlow, and their exports give equal outputs."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import keras
import numpy as np
import pytest

import keras_transformer_serving as serving
from keras_transformer import data, export, generation, models, training
from keras_transformer.pipelines import (
    Embedding,
    ImageClassification,
    NodeClassification,
    TextClassification,
    TextGeneration,
    TextToText,
)
from keras_transformer.text import ByteTokenizer

BYTES = ByteTokenizer()
SIZES = {"num_layers": 1, "num_heads": 2, "model_dim": 32, "hidden_dim": 64, "dropout": 0.0}
SENTENCES = {"uno dos": "one", "la casa": "house", "el gato come": "cat", "hoy": "rain"}
TEXTS = list(SENTENCES)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
on_jax = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="Keras runs on TensorFlow in this process"
)


@keras.saving.register_keras_serializable("test_tensorflow_process")
class Shifted(keras.layers.Layer):
    """Adds a number."""

    def __init__(self, number, **options):
        super().__init__(**options)
        self.number = number

    def call(self, inputs):
        return inputs + self.number

    def get_config(self):
        return {**super().get_config(), "number": self.number}


def small_model():
    layers = [keras.layers.Dense(2), Shifted(3.0), keras.layers.Lambda(lambda inputs: inputs * 2)]
    return keras.Sequential([keras.Input((4,), name="inputs"), *layers])


@pytest.mark.backend_neutral
@on_jax
def test_a_keras_model_is_exported_with_its_custom_layer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model, inputs = small_model(), keras.ops.ones((3, 4))
    assert str(export.saved_model_of(model, "new/1", sample_inputs=inputs)) == "new/1"
    assert (
        "`saved_model_of` runs in a process with TensorFlow, because the model is on jax\n"
        in capsys.readouterr().err
    )
    found = export_outputs(tmp_path / "new" / "1", inputs=np.asarray(inputs))["output"]
    np.testing.assert_allclose(found, model(inputs), **CLOSE)


def export_outputs(folder, signature="serving_default", **inputs):
    import tensorflow as tf

    found = tf.saved_model.load(str(folder)).signatures[signature]
    return {
        name: value.numpy() for name, value in found(**{k: tf.constant(v) for k, v in inputs.items()}).items()
    }


def test_invalid_values_are_rejected_without_starting_a_process(monkeypatch, tmp_path):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    for function in (export.saved_model, export.onnx, export.bundle):
        with pytest.raises(ValueError, match="`pipeline` must be a pipeline of"):
            function(None, tmp_path / "new")
    for function, name in ((export.saved_model_of, "new"), (export.onnx_model, "new.onnx")):
        with pytest.raises(ValueError, match=r"`model` must be a keras\.Model"):
            function(None, tmp_path / name)
    with pytest.raises(TypeError, match="unexpected keyword argument 'progress'"):
        export.onnx(None, tmp_path / "new", progress=print)


@pytest.mark.backend_neutral
def test_a_call_that_cannot_be_serialized_gives_one_clear_error(monkeypatch, tmp_path):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    lazy = (each for each in [np.ones((1, 4))])
    with pytest.raises(
        TypeError,
        match="`saved_model_of` runs in a process with TensorFlow, so pickle and Keras must be able to save its arg",
    ):
        export.saved_model_of(small_model(), tmp_path / "new", sample_inputs=lazy)


def trained_translator():
    batches = data.translation_pairs(list(SENTENCES.items()), BYTES, batch_size=4)
    model = models.Transformer(BYTES.vocabulary_size, **SIZES)
    model.compile(keras.optimizers.Adam(0.01), training.LabelSmoothedCrossentropy(0.0))
    model.fit(batches, epochs=40, verbose=0, shuffle=False)
    translator = TextToText(model, BYTES, max_new_tokens=8)
    assert translator(TEXTS) == list(SENTENCES.values())
    return translator


@pytest.fixture(scope="module")
def translator():
    return trained_translator()


def randomised(model):
    """Return the model with random weights, so that outputs differ by row."""
    random = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(weight + random.normal(size=weight.shape) * 0.3)
    return model


def adapted_gpt(_):
    model = models.GPT(BYTES.vocabulary_size, **SIZES, max_length=40)
    training.enable_lora(model, 2)
    return TextGeneration(randomised(model), BYTES, max_new_tokens=6)


GENERATING = {
    "text to text": lambda translator: translator,
    "beams": lambda translator: translator.with_settings(generation.Beam(3, num_return=2)),
    "samples": lambda translator: translator.with_settings(generation.Sample(0.9, seed=5)),
    "language model with adapters": adapted_gpt,
}


@pytest.mark.slow
@pytest.mark.backend_neutral
@on_jax
@pytest.mark.parametrize("name", GENERATING)
def test_exports_of_a_pipeline_generate_equal_ids(name, translator, tmp_path):
    pipeline = GENERATING[name](translator)
    expected = pipeline.generate(TEXTS)
    lines = []
    options = {"texts": TEXTS, "precisions": ["float32"], "signature_key": b"key", "say": lines.append}
    folder = export.bundle(pipeline, tmp_path / "new", **options)
    assert folder == tmp_path / "new"
    assert lines[1:] == ["[1/2] saved_model/new/1", "[2/2] onnx: float32"]
    found = serving.load(folder, signature_key=b"key").generate(TEXTS)
    ids = expected.ids if pipeline.sampler.num_return > 1 else expected.best
    assert len({*map(str, ids)}) > 1
    np.testing.assert_array_equal(found["ids"][..., : ids.shape[-1]], ids)
    if not isinstance(pipeline.sampler, generation.Sample):  # the signature takes noise as input
        found = export_outputs(folder / "saved_model" / "new" / "1", "generate_ids", text=TEXTS)
        np.testing.assert_array_equal(found["ids"][..., : ids.shape[-1]], ids)
    graphs = export.verify(folder, pipeline, TEXTS)["saved_model/new/1"]["graphs"]
    assert {each["near_ties"] for each in graphs.values()} == {0}
    with pytest.raises(FileExistsError, match="the next free one is 2"):
        export.saved_model(pipeline, folder, signature_key=b"key")


def bert(head):
    return randomised(head(models.BERT(BYTES.vocabulary_size, **SIZES, max_length=30)))


FORWARD = {
    "classes": lambda: TextClassification(
        bert(lambda encoder: models.SequenceClassifier(encoder, 3)), BYTES, ["x", "y", "z"]
    ),
    "embeddings": lambda: Embedding(bert(lambda encoder: encoder), BYTES),
    "images": lambda: ImageClassification(randomised(models.ViT(8, 4, num_classes=3, **SIZES))),
    "nodes": lambda: NodeClassification(randomised(models.GAT(5, 3, num_heads=(2, 1), head_dim=4))),
}


@pytest.mark.slow
@pytest.mark.backend_neutral
@on_jax
@pytest.mark.parametrize("name", FORWARD)
def test_exports_of_a_non_generating_pipeline_give_equal_outputs(name, tmp_path):
    pipeline = FORWARD[name]()
    version = export.saved_model(pipeline, tmp_path / "new")
    export.onnx(pipeline, tmp_path / "new", precisions=["float32", "int8"])
    for inputs in pipeline.example_inputs()["serving_default"]:
        found = export_outputs(version, **inputs)
        for output, expected in pipeline.outputs_of(*inputs.values()).items():
            if expected.dtype.kind == "f":
                np.testing.assert_allclose(found[output], expected, **CLOSE)
            else:
                np.testing.assert_array_equal(found[output], expected)
    assert export.verify(tmp_path / "new", pipeline).keys() == {"saved_model/new/1", "onnx"}


# A pipeline and a layer defined in a script without a `__main__` guard.
SCRIPT = """
    import sys
    import keras
    import keras_transformer as kt
    import tensorflow as tf
    from keras_transformer.text import ByteTokenizer

    FACTOR = 2.0

    @keras.saving.register_keras_serializable("script")
    class Scaled(keras.layers.Layer):
        def call(self, inputs):
            return inputs * FACTOR

    @keras.saving.register_keras_serializable("script")
    class Classifier(kt.models.SequenceClassifier):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.scaled = Scaled()

        def call(self, inputs, training=None):
            return self.scaled(super().call(inputs, training=training))

    class Loud(kt.pipelines.TextClassification):
        def preprocess(self, *texts):
            return super().preprocess(*map(tf.strings.upper, texts))

    print("training")
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
    model = Classifier(kt.models.BERT(ByteTokenizer().vocabulary_size, **sizes, max_length=30), 3)
    pipeline = Loud(model, ByteTokenizer())
    assert (pipeline.probabilities(["a"]) == pipeline.probabilities(["A"])).all()
    assert (pipeline.probabilities(["a"]) != pipeline.probabilities(["B"])).any()
    kt.export.saved_model(pipeline, "new", name="loud")
    found = tf.saved_model.load("new/saved_model/loud/1").signatures["serving_default"](tf.constant(["a", "B"]))
    expected = pipeline.outputs_of(["a", "B"])
    assert abs(found["probabilities"].numpy() - expected["probabilities"]).max() < 1e-5
"""


def start(code, folder, **options):
    (folder / "script.py").write_text(textwrap.dedent(code))
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": paths, **options}
    return subprocess.Popen(
        [sys.executable, "-u", "script.py"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(code, folder, **options):
    with start(code, folder, **options) as process:
        output, errors = process.communicate(timeout=1200)
    return process.returncode, output, errors


@pytest.mark.slow
def test_classes_defined_in_a_script_are_exported(tmp_path):
    status, output, errors = run(SCRIPT, tmp_path)
    assert status == 0, errors
    assert output == "training\n"  # once
    assert "`saved_model` runs in a process with TensorFlow" in errors


@pytest.mark.slow
def test_classes_defined_in_a_script_need_cloudpickle(tmp_path):
    status, _, errors = run(
        "import sys; sys.modules['cloudpickle'] = None\n" + textwrap.dedent(SCRIPT), tmp_path
    )
    assert status == 1
    assert "must be in a module that another process can import" in errors.splitlines()[-1]
    assert not (tmp_path / "new").exists()


INTERRUPTED = """
    import keras_transformer as kt
    from keras_transformer.text import ByteTokenizer

    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
    model = kt.models.Transformer(ByteTokenizer().vocabulary_size, **sizes)
    kt.export.bundle(kt.pipelines.TextToText(model, ByteTokenizer(), max_new_tokens=4), "new/below")
"""


def ends(pid):
    """Wait until a process has ended; return whether it has."""
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


LOGGED = re.compile(r"[IWE]\d{4} \d\d:")  # by TensorFlow, at any time


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_export_leaves_no_files(number, tmp_path):
    (tmp_path / "tmp").mkdir()
    with start(INTERRUPTED, tmp_path, TMPDIR=str(tmp_path / "tmp")) as process:
        while not process.stdout.readline().startswith("[1/2]"):
            assert process.poll() is None, process.stderr.read()
        (child,) = children(process.pid)
        process.send_signal(number)
        errors = process.stderr.read()
    assert ends(child)
    if number == signal.SIGINT:
        lines = [line for line in errors.splitlines() if not LOGGED.match(line)]
        assert lines[-1] == "KeyboardInterrupt"
        assert "in run" not in errors  # written by the process with TensorFlow
    assert not (tmp_path / "new").exists()
    assert not list((tmp_path / "tmp").glob("keras-transformer-export-*"))


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(each) for each in file.read().split()]


DISTRIBUTED = """
    import keras
    import numpy as np
    import keras_transformer as kt
    import keras_transformer_serving as serving
    from keras_transformer.text import ByteTokenizer

    keras.utils.set_random_seed(0)
    tokenizer, texts = ByteTokenizer(), ["uno dos", "la casa", "el gato", "hoy"]
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}

    def make():
        return kt.models.Transformer(tokenizer.vocabulary_size, **sizes)

    if "DISTRIBUTION" == "ModelParallel":
        mesh = keras.distribution.DeviceMesh((1, 2), ("batch", "model"))
        layouts = kt.training.layout_map(make(), mesh)
        distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    else:
        distribution = keras.distribution.DataParallel()
    keras.distribution.set_distribution(distribution)
    model = make()
    model.compile(keras.optimizers.Adam(0.03), kt.training.LabelSmoothedCrossentropy(0.0))
    pairs = list(zip(texts, ["one", "house", "cat", "rain"]))
    model.fit(kt.data.translation_pairs(pairs, tokenizer, batch_size=4), epochs=40, verbose=0, shuffle=False)
    split = [not each.value.sharding.is_fully_replicated for each in model.weights]
    assert any(split) == ("DISTRIBUTION" == "ModelParallel")
    pipeline = kt.pipelines.TextToText(model, tokenizer, max_new_tokens=6)
    kt.export.bundle(pipeline, "new", texts=texts, precisions=["float32"])
    ids = np.asarray(pipeline.generate(texts).best)
    assert len({*map(str, ids)}) > 1
    np.testing.assert_array_equal(serving.load("new").generate(texts)["ids"][:, : ids.shape[1]], ids)
"""


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["DataParallel", "ModelParallel"])
def test_a_model_trained_on_two_devices_is_exported(distribution, tmp_path):
    flags = "--xla_force_host_platform_device_count=2"
    status, _, errors = run(DISTRIBUTED.replace("DISTRIBUTION", distribution), tmp_path, XLA_FLAGS=flags)
    assert status == 0, errors
