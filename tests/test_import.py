"""Effects of `import keras_transformer`."""

import ast
import importlib
import json
import os
import pathlib
import subprocess
import sys
import textwrap

import keras
import pytest

import keras_transformer as kt

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Keras imports matplotlib, which calls deprecated functions of pyparsing; that is a UserWarning too.
WARNINGS = [
    *("-W", "error::UserWarning"),
    *("-W", "ignore::DeprecationWarning:matplotlib._fontconfig_pattern"),
    *("-W", "ignore::DeprecationWarning:matplotlib._mathtext"),
]


def run(code, *arguments, backend="jax", timeout=120):
    """Run code in a new process; return the JSON on its last line of output."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, *WARNINGS, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved model with layers, relations, a loss, a metric and a schedule."""
    model = kt.models.Transformer(12, num_layers=1, num_heads=2, model_dim=8, hidden_dim=16)
    model.compile(
        keras.optimizers.Adam(kt.training.TransformerSchedule(8)),
        kt.training.LabelSmoothedCrossentropy(0.1),
        metrics=[kt.training.Perplexity()],
    )
    model.optimizer.build(model.trainable_variables)
    path = tmp_path_factory.mktemp("import") / "model.keras"
    model.save(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "imports"),
    [
        ("tensorflow", "import keras_transformer, keras"),
        ("jax", "import keras_transformer, keras"),
        ("jax", "import keras, keras_transformer"),
        ("tensorflow", "import tensorflow as tf; keras = tf.keras; import keras_transformer"),
    ],
)
def test_importing_the_package_is_enough_to_load_a_saved_model(saved, backend, imports):
    code = f"""
    import json, sys
    {imports}
    model = keras.models.load_model(sys.argv[1])
    print(json.dumps([type(model).__module__, type(model).__name__, type(model.loss).__name__]))
    """
    expected = ["keras_transformer.models.transformer", "Transformer", "LabelSmoothedCrossentropy"]
    assert run(code, saved, backend=backend) == expected


@pytest.mark.slow
def test_on_jax_core_training_and_generation_do_not_import_tensorflow():
    code = """
    import json, sys
    import keras_transformer as kt
    kt.models, kt.training, kt.generation, kt.inspection
    names = "tensorflow", "tensorflow_text", "keras_transformer_serving"
    print(json.dumps([name for name in names if name in sys.modules]))
    """
    assert run(code) == []


@pytest.mark.slow
def test_on_jax_models_train_and_generate_without_tensorflow():
    code = """
    import json, sys
    sys.modules.update(dict.fromkeys(["tensorflow", "tensorflow_text", "keras_transformer_serving"]))
    import keras_transformer as kt
    import numpy as np
    model = kt.models.Transformer(12, num_layers=1, num_heads=2, model_dim=8, hidden_dim=16)
    model.compile("adam", kt.training.LabelSmoothedCrossentropy(0.1))
    ids = np.full((2, 3), 5)
    model.fit({"source_ids": ids, "target_ids": ids}, ids, verbose=0)
    print(json.dumps(kt.generation.generate(model, ids, max_new_tokens=4).ids.shape))
    """
    assert run(code) == [2, 1, 4]


@pytest.mark.slow
def test_without_tensorflow_an_error_names_the_package_to_install():
    code = """
    import json, sys
    sys.modules.update(dict.fromkeys(["tensorflow", "tensorflow_text"]))
    import keras_transformer as kt
    try:
        kt.export
    except ImportError as error:
        print(json.dumps(str(error)))
    """
    assert run(code) == (
        "`keras_transformer.export` requires TensorFlow and TensorFlow Text, the extra [tensorflow]: "
        "pip install tensorflow 'tensorflow-text!=2.21.0'"
    )


@pytest.mark.slow
def test_on_jax_texts_become_batches_of_fit_and_answers_without_tensorflow(tmp_path):
    code = """
    import json, sys
    sys.modules.update(dict.fromkeys(["tensorflow", "tensorflow_text"]))
    import keras_transformer as kt
    pairs = [("uno dos", "one two"), ("tres", "three"), ("dos uno", "two one")] * 4
    tokenizer = kt.text.SentencePieceTokenizer.train([text for pair in pairs for text in pair], 300)
    tokenizer.save(sys.argv[1])
    tokenizer = kt.text.load(sys.argv[1])
    model = kt.models.Transformer(tokenizer.vocabulary_size, num_layers=1, num_heads=2, model_dim=16, hidden_dim=32)
    model.compile("adam", kt.training.LabelSmoothedCrossentropy(0.1))
    batches = kt.data.translation_pairs(pairs, tokenizer, 4)
    history = model.fit(batches, validation_data=batches, epochs=2, shuffle=False, verbose=0).history
    ids = tokenizer.encode(["dos"], add_end=True)
    texts = tokenizer.detokenize(kt.generation.generate(model, ids, max_new_tokens=4).best)
    print(json.dumps([len(history["val_loss"]), all(isinstance(text, str) for text in texts)]))
    """
    assert run(code, tmp_path, timeout=600) == [2, True]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(kt.__all__) - {"__version__"}))
def test_every_subpackage_may_be_imported_first(name):
    code = f"""
    import json
    import keras_transformer.{name}
    import keras
    print(json.dumps(keras.saving.get_registered_object("keras_transformer>Causal") is not None))
    """
    assert run(code, backend="tensorflow")


def test_every_public_name_exists():
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


def test_every_serializable_class_is_registered_under_the_package():
    for module, names in (
        (kt.relations, ("Full", "Causal", "And", "Or", "Not")),
        (
            kt.layers,
            set(kt.layers.__all__) - {"RetrievalMemory", "Mixer"},
        ),  # a value of tensors, an interface
        (kt.models, kt.models.__all__),
        (kt.training, ("LabelSmoothedCrossentropy", "Perplexity", "TokenAccuracy", "TransformerSchedule")),
    ):
        for name in names:
            assert keras.saving.get_registered_name(getattr(module, name)) == f"keras_transformer>{name}"


def test_annotations_of_tensorflow_s_types_are_not_evaluated_on_import():
    """Else a module that uses TensorFlow lazily would need it when it is imported."""
    for path in (ROOT / "keras_transformer").rglob("*.py"):
        tree = ast.parse(source := path.read_text(encoding="utf-8"))
        if "lazy_tensorflow import" not in source or "from __future__ import annotations" in source:
            continue
        bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
        functions = [node for body in bodies for node in body if isinstance(node, ast.FunctionDef)]
        for function in functions:
            arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            annotations = [function.returns, *(argument.annotation for argument in arguments)]
            for annotation in filter(None, annotations):
                assert "tf." not in ast.unparse(annotation), f"{path}: {function.name}"
