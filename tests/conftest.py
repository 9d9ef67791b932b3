import collections
import functools
import gc
import io
import os
import pathlib
import signal
import sys

import hypothesis
import pytest

# The same examples in every run, so that only a change of the code can make a test fail.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.load_profile("same")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    """Mark the variants of `slow_variants` tests as slow, except the first that this backend runs; order the files."""
    import keras

    quick = set()
    for item in items:
        if item.get_closest_marker("slow_variants") is None or is_slow(item):
            continue
        test = item.nodeid.split("[")[0]
        runs = keras.backend.backend() != "jax" or item.get_closest_marker("backend_neutral")
        if runs and test not in quick:
            quick.add(test)
        else:
            item.add_marker(pytest.mark.slow)
    result = yield
    put_exports_first(items)
    return result


def put_exports_first(items):
    """Put a file that needs the fixture `exported` first, then files with more tests before files with fewer.

    So one worker exports while the other has files that need no export, and the last files are short.
    """
    sizes = collections.Counter(item.path for item in items)
    first = next((item.path for item in items if "exported" in item.fixturenames), None)
    items.sort(key=lambda item: (item.path != first, -sizes[item.path]))


def pytest_collection_finish():
    """Exclude long-lived objects of TensorFlow and of the tests from garbage collection, and collect less often.

    Graphs are traced in many small objects, few of which are garbage: a sixth of the tests' time were collections.
    """
    collect_and_freeze()
    gc.set_threshold(50_000, 20, 20)


def collect_and_freeze():
    """Collect garbage, and exclude the objects that are left from later collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def quick_garbage_collection():
    """Exclude what each module leaves: Keras collects garbage whenever a layer is quantized."""
    yield
    collect_and_freeze()


@pytest.fixture
def usual_collections():
    """Collect garbage as Python does by itself, of all objects."""
    thresholds = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*thresholds)
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def quick_graphs(request):
    """Trace graphs without stacks of calls, and run them without optimisation, if all tests are quick.

    Stacks are deep in tests: to record one for each operation took a fifth of the time. Most graphs run once, and so do
    most operations outside of graphs: TensorFlow would make a graph of each, for half a millisecond.
    """
    import keras

    if keras.backend.backend() != "tensorflow" or any(map(is_slow, request.session.items)):
        yield
        return
    import tensorflow as tf
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import context
    from tensorflow.python.util import tf_stack

    from tests.quick_libraries import create_layers_quickly, trace_quickly

    context.ensure_initialized()
    pywrap_tfe.TFE_ContextSetRunEagerOpAsFunction(context.context()._handle, False)
    record, stack = tf_stack.extract_stack, tf_stack.extract_stack()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf_stack, "extract_stack", lambda stacklevel=1: stack)
        create_layers_quickly(patch)
        trace_quickly(patch)
        yield record


@pytest.fixture
def recorded_stacks(quick_graphs, monkeypatch):
    """Record stacks of calls in graphs, for tests that read them."""
    if quick_graphs:
        from tensorflow.python.util import tf_stack

        monkeypatch.setattr(tf_stack, "extract_stack", quick_graphs)


def is_slow(item):
    """Return whether a test is slow."""
    return item.get_closest_marker("slow") is not None


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """Skip fsync, as the operating system does not crash in these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def standard_input(monkeypatch):
    """Return a function that gives a text to standard input."""

    def give(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return give


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    """A stub of the Hugging Face Hub on loopback, which `huggingface_hub` asks, with an empty cache."""
    constants = pytest.importorskip("huggingface_hub.constants")
    from tests.hub import Hub, use_hub_at

    with Hub().running() as stub:
        use_hub_at(monkeypatch, stub.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield stub


@pytest.fixture
def programs(tmp_path, hub):
    """The environment in which commands of documentation pages are executed."""
    import sys

    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "keras-transformer"
    program.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m keras_transformer_cli "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    return {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hub"),
        "PATH": os.pathsep.join([str(folder), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
    }


@pytest.fixture(scope="session")
def real_data() -> pathlib.Path:
    """The folder of published datasets; skip tests that need it if it is absent."""
    beside = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = pathlib.Path(os.environ.get("KERAS_TRANSFORMER_DATA") or beside)
    if not folder.is_dir():
        pytest.skip(
            f"real data sets are absent: set KERAS_TRANSFORMER_DATA to their folder (looked in {folder})"
        )
    return folder


@pytest.fixture
def download_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Use an empty cache for `keras.utils.get_file`, and no local folder of datasets."""
    import keras

    monkeypatch.delenv("KERAS_TRANSFORMER_DATA", raising=False)
    folder = tmp_path / "cache"
    folder.mkdir()  # get_file would otherwise fall back to /tmp/.keras
    monkeypatch.setattr(keras.utils, "get_file", functools.partial(keras.utils.get_file, cache_dir=folder))
    return folder


@pytest.fixture(scope="session")
def gradients():
    """Return gradients(function, *arrays), which differentiates a scalar function on any backend."""
    import keras

    def on_tensorflow(function, *arrays):
        import tensorflow as tf

        tensors = [tf.convert_to_tensor(array) for array in arrays]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = function(*tensors)
        found = tape.gradient(result, tensors, unconnected_gradients="zero")
        return [gradient.numpy() for gradient in found]

    def on_jax(function, *arrays):
        import jax
        import numpy as np

        tensors = [jax.numpy.asarray(array) for array in arrays]
        return [
            np.asarray(gradient) for gradient in jax.jit(jax.grad(function, range(len(tensors))))(*tensors)
        ]

    return on_jax if keras.config.backend() == "jax" else on_tensorflow


@pytest.fixture(scope="session")
def modes():
    """The execution modes of this backend, as (name, wrapper of a function of tensors)."""
    import keras

    if keras.config.backend() == "jax":
        import jax

        return {"eager": lambda function: function, "xla": jax.jit}
    import tensorflow as tf

    # Autograph takes longer than most tests to rewrite Python code, and Keras does not use it either.
    return {
        "eager": lambda function: function,
        "graph": lambda function: tf.function(function, autograph=False),
        "xla": lambda function: tf.function(function, jit_compile=True, autograph=False),
    }


@pytest.fixture(scope="session")
def random_transformer():
    """Return random_transformer(seed, end_factor=2.0, **options), a small model whose outputs differ by row."""
    from tests.generation.reference import random_transformer

    return random_transformer


@pytest.fixture(scope="session")
def sentence_pairs() -> list[tuple[str, str]]:
    """A few Spanish and English sentences."""
    return [
        ("uno dos", "one two"),
        ("la casa azul", "the blue house"),
        ("¿dónde está el perro?", "where is the dog?"),
        ("el gato come pan", "the cat eats bread"),
        ("mañana viene el ñandú", "tomorrow the rhea comes"),
        ("hoy llueve", "it rains today"),
        ("buenos días", "good morning"),
        ("quiero un café con leche", "I want a coffee with milk"),
    ]


@pytest.fixture(scope="session")
def pipeline(random_transformer, sentence_pairs):
    """An untrained translator whose outputs differ in words and length; tests must not change it."""
    from keras_transformer import pipelines, text

    sides = [side for pair in sentence_pairs for side in pair]
    tokenizer = text.SentencePieceTokenizer.train(sides, 100, byte_fallback=False)
    model = random_transformer(20, 1.5, vocabulary_size=tokenizer.vocabulary_size)
    return pipelines.TextToText(model, tokenizer, max_new_tokens=10, max_source_tokens=200)


@pytest.fixture(scope="session")
def texts(sentence_pairs) -> list[str]:
    """Diverse inputs: short, long, repeated, empty, unknown and partly unknown."""
    sources = [source for source, _ in sentence_pairs]
    return [
        *sources,
        "",
        "a",
        "   ",
        "☃",
        "☃ uno ☃",
        sources[0],
        "uno dos " * 12,
        "  la  casa ",
        "UNO\tdos\n",
    ]


@pytest.fixture(scope="session")
def exported(pipeline, sentence_pairs, tmp_path_factory, worker_id) -> pathlib.Path:
    """The pipeline exported to SavedModel and ONNX in one folder; shared by all workers, so read-only."""
    import fcntl

    from keras_transformer import export

    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    folder = shared / "exported" / "tiny"
    folder.parent.mkdir(exist_ok=True)
    with open(shared / "exported" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "exported" / "complete").exists():
            sources = [source for source, _ in sentence_pairs]
            export.saved_model(pipeline, folder, name="tiny", texts=sources)
            export.onnx(pipeline, folder, texts=sources)
            (shared / "exported" / "complete").touch()
    return folder


@pytest.fixture(scope="session")
def served_without_tensorflow():
    """Return served_without_tensorflow(folder, *columns), which gives the outputs of an export as JSON."""
    import json
    import subprocess
    import sys
    import textwrap

    program = """
        import json, sys
        import keras_transformer_serving as serving
        folder, columns = sys.argv[1], json.loads(sys.argv[2])
        found = serving.load(folder)(*columns)
        heavy = [name for name in ("tensorflow", "keras", "jax", "tensorflow_text") if name in sys.modules]
        print(json.dumps([found, heavy], default=lambda array: array.tolist()))
    """

    def run(folder, *columns):
        command = [sys.executable, "-c", textwrap.dedent(program), str(folder), json.dumps(columns)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        found, heavy = json.loads(done.stdout)
        assert heavy == []
        return found

    return run


@pytest.fixture(scope="session")
def assert_equal():
    """Return assert_equal(actual, expected), which compares types and values, with a tolerance for floats."""

    import numpy as np

    def check(found, expected):
        assert type(found) is type(expected)
        if isinstance(expected, list | tuple):
            assert len(found) == len(expected)
            for each, other in zip(found, expected, strict=True):
                check(each, other)
        elif isinstance(expected, np.ndarray):
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        elif isinstance(expected, float):
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)
        else:
            assert found == expected

    return check


@pytest.fixture
def damaged(exported, tmp_path):
    """A copy of the export, for tests that change it."""
    import shutil

    return pathlib.Path(shutil.copytree(exported, tmp_path / "damaged"))


@pytest.fixture
def quick(exported, monkeypatch):
    """Exporting `pipeline` takes what `exported` holds instead of converting; all else runs as always."""
    import shutil

    import onnx

    from keras_transformer.export import to_saved_model
    from keras_transformer.export.to_onnx import conversion

    def write(_signatures, _resources, path):
        shutil.copytree(exported / "saved_model" / "tiny" / "1", path, dirs_exist_ok=True)

    monkeypatch.setattr(to_saved_model, "write_signatures", write)

    def convert(name, *_):
        model = onnx.load(next((exported / "onnx").rglob(f"{name}.onnx")))
        inputs = {value.name for value in model.graph.input}
        for default in [each for each in model.graph.initializer if each.name in inputs]:
            model.graph.initializer.remove(default)
        return model

    monkeypatch.setattr(conversion, "convert", convert)


@pytest.fixture
def interrupts_are_handled():
    """Handle SIGINT as in a terminal; a program in the background may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
