import importlib
import json
import os
import subprocess
import sys
import textwrap

import pytest

import keras_transformer as kt


def run(code, *arguments, backend="jax"):
    """What a fresh process prints as JSON on its last line; JAX starts faster where the backend is no matter."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model of layers, relations, a loss, a metric and a schedule, and its output for three ids."""
    folder = tmp_path_factory.mktemp("registration")
    model = kt.models.Transformer(12, num_layers=1, num_heads=2, model_dim=8, hidden_dim=16)
    import keras

    model.compile(
        keras.optimizers.Adam(kt.training.TransformerSchedule(8)),
        kt.training.LabelSmoothedCrossentropy(0.1),
        metrics=[kt.training.Perplexity()],
    )
    model.optimizer.build(model.trainable_variables)
    model.save(folder / "model.keras")
    return folder / "model.keras"


LOADED = """
    print(json.dumps([type(model).__module__, type(model).__name__, type(model.loss).__name__]))
"""


@pytest.mark.parametrize(
    ("backend", "code"),
    [
        ("tensorflow", "import keras_transformer, keras; model = keras.models.load_model(sys.argv[1])"),
        ("jax", "import keras, keras_transformer; model = keras.models.load_model(sys.argv[1])"),
        ("jax", "import keras_transformer as kt; model = kt.load_model(sys.argv[1])"),
        (
            "jax",
            "import keras_transformer; from keras.saving import load_model; model = load_model(sys.argv[1])",
        ),
        (
            # As libraries do that ask whether Keras is installed; importing tensorflow is one of them.
            "jax",
            "import keras_transformer; from importlib.util import find_spec; find_spec('keras');"
            "import keras; model = keras.models.load_model(sys.argv[1])",
        ),
        (
            "tensorflow",
            "import keras_transformer; import tensorflow as tf; model = tf.keras.models.load_model(sys.argv[1])",
        ),
    ],
    ids=[
        "ours first",
        "keras first",
        "kt.load_model",
        "from keras.saving",
        "find_spec between",
        "tensorflow between",
    ],
)
def test_a_plain_import_is_enough_to_load_a_saved_model(saved, backend, code):
    found = run(f"import json, sys; {code}" + textwrap.dedent(LOADED), saved, backend=backend)
    assert found == ["keras_transformer.models.transformer", "Transformer", "LabelSmoothedCrossentropy"]


def test_without_the_import_keras_does_not_know_the_class(saved):
    code = """
    import json, sys, keras
    try:
        keras.models.load_model(sys.argv[1])
        print(json.dumps("loaded"))
    except TypeError as error:
        print(json.dumps(str(error)))
    """
    assert "keras_transformer" in run(code, saved)


def test_the_import_is_quick_and_brings_neither_keras_nor_tensorflow():
    code = """
    import json, sys, time
    start = time.perf_counter()
    import keras_transformer
    took = time.perf_counter() - start
    heavy = [name for name in ("keras", "tensorflow", "numpy", "onnxruntime") if name in sys.modules]
    print(json.dumps([took, heavy]))
    """
    took, heavy = run(code)
    assert heavy == []
    assert took < 0.5


def test_serving_brings_neither_keras_nor_tensorflow():
    pytest.importorskip("onnxruntime")
    code = """
    import json, sys
    import keras_transformer.serving
    print(json.dumps([name for name in ("keras", "tensorflow", "jax", "torch") if name in sys.modules]))
    """
    assert run(code) == []


def test_the_hook_leaves_keras_as_it_was_and_goes_away():
    code = """
    import json, sys
    hooks = lambda: [finder for finder in sys.meta_path if "keras_transformer" in type(finder).__module__]
    assert not hooks()
    import keras_transformer
    assert len(hooks()) == 1
    import importlib.resources, keras
    spec = importlib.util.find_spec("keras")
    print(json.dumps([hooks() == [], type(keras.__loader__).__name__, keras.__spec__ is spec,
                      keras.__spec__.loader is keras.__loader__, importlib.resources.files("keras").is_dir()]))
    """
    assert run(code) == [True, "SourceFileLoader", True, True, True]


@pytest.mark.parametrize("name", ["relations", "ops", "layers", "inspection"])
def test_any_subpackage_may_be_the_first_import(name):
    code = f"""
    import json, sys
    import keras_transformer.{name}
    import keras
    print(json.dumps([
        keras.saving.get_registered_object("keras_transformer>Causal") is not None,
        any("keras_transformer" in type(finder).__module__ for finder in sys.meta_path),
    ]))
    """
    assert run(code) == [True, False]


def test_every_public_name_is_there_and_every_submodule_is_public():
    for name in kt.__all__:
        assert getattr(kt, name) is not None
    assert set(kt.__all__) <= set(dir(kt))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kt.nothing  # noqa: B018


@pytest.mark.parametrize("name", ["ops", "layers", "models", "training"])
def test_every_name_in_all_exists(name):
    module = importlib.import_module(f"keras_transformer.{name}")
    for public in module.__all__:
        assert hasattr(module, public)


def test_every_serialisable_class_is_registered_under_the_package():
    import keras

    for module, names in (
        (kt.relations, ("Full", "Causal", "And", "Or", "Not")),
        (kt.layers, kt.layers.__all__),
        (kt.models, kt.models.__all__),
        (kt.training, ("LabelSmoothedCrossentropy", "Perplexity", "TokenAccuracy", "TransformerSchedule")),
    ):
        for name in names:
            assert keras.saving.get_registered_name(getattr(module, name)) == f"keras_transformer>{name}"
