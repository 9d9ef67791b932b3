"""Execution providers, with a hand-made graph and ONNX Runtime or parts of it replaced."""

import threading
import time
import types

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import keras_transformer_serving as serving
from keras_transformer_serving import sessions

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


@pytest.fixture
def content(small):
    return small.graph.SerializeToString()


def new_session(content, providers=None, threads=None):
    return sessions.Sessions(lambda _: content, providers, threads)("model")


class Replaced:
    """Simulate an ONNX Runtime with the providers `available`, of which `started` can start."""

    def __init__(self, monkeypatch, available, started=None, **attributes):
        self.asked = []
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
        monkeypatch.setattr(onnxruntime, "InferenceSession", self._session)
        for name, value in attributes.items():
            monkeypatch.setattr(onnxruntime, name, value)
        self._started = started

    def _session(self, content, sess_options, providers):
        self.asked = providers
        names = [each if isinstance(each, str) else each[0] for each in providers]
        return types.SimpleNamespace(get_providers=lambda: self._started or names)


def test_the_default_is_cuda_then_the_cpu(content, monkeypatch):
    everything = ["TensorrtExecutionProvider", CUDA, "AzureExecutionProvider", CPU]
    replaced = Replaced(monkeypatch, everything)
    new_session(content)
    assert replaced.asked == [(CUDA, {"use_tf32": 0}), CPU]


def test_float32_is_exact_on_gpus_unless_tf32_is_chosen(content, monkeypatch):
    replaced = Replaced(monkeypatch, [CUDA, CPU])
    new_session(content, [CUDA, CPU])
    assert replaced.asked == [(CUDA, {"use_tf32": 0}), CPU]
    new_session(content, [(CUDA, {"use_tf32": 1, "device_id": 1})])
    assert replaced.asked == [(CUDA, {"use_tf32": 1, "device_id": 1})]


def test_the_default_excludes_azure(content):
    assert new_session(content).get_providers() == [CPU]


def test_provider_names_and_options_are_accepted(content, monkeypatch):
    found = new_session(content, [(CPU, {"arena_extend_strategy": "kSameAsRequested"})])
    assert found.get_providers() == [CPU]
    replaced = Replaced(monkeypatch, ["TensorrtExecutionProvider", CUDA, CPU])
    providers = ["TensorrtExecutionProvider", (CUDA, {"device_id": 1})]
    new_session(content, providers)
    assert replaced.asked == ["TensorrtExecutionProvider", (CUDA, {"use_tf32": 0, "device_id": 1})]


@pytest.mark.parametrize(
    "load", [serving.load, lambda folder, providers: serving.load(folder, providers).run()]
)
def test_an_unknown_provider_is_rejected_by_name(load, small, tmp_path):
    small.write(tmp_path / "it")
    with pytest.raises(
        ValueError, match="`providers` must .*Received: .*NoSuch cannot be used; usable: .*CPU"
    ):
        load(tmp_path / "it", ["NoSuch"])


@pytest.mark.parametrize(
    "providers", [[], CPU, [5], [(CPU,)], [(CPU, 5)], [(5, {})], [[CPU, {}]], 5], ids=repr
)
def test_providers_of_other_types_are_rejected(content, providers):
    with pytest.raises(
        ValueError, match="`providers` must be None, or a list of names.*Received: providers="
    ):
        new_session(content, providers)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"cuda_version": "", "__version__": "1.26.0"},
            r"needs .*\[gpu\] instead of \[cpu\].*CUDA 12 and cuDNN 9",
        ),
        (
            {"cuda_version": "", "__version__": "1.31.1"},
            r"needs .*\[gpu\] instead of \[cpu\].*CUDA 13 and cuDNN 9",
        ),
        ({"cuda_version": "12.8", "__version__": "1.99"}, "needs an NVIDIA GPU, CUDA 12 and cuDNN 9"),
    ],
)
def test_the_error_for_unavailable_cuda_names_its_requirements(content, monkeypatch, attributes, message):
    Replaced(monkeypatch, [CPU], **attributes)
    with pytest.raises(
        ValueError, match=rf"`providers` must.*\['{CUDA}', '{CPU}'\], of which {CUDA} .*{message}"
    ):
        new_session(content, [CUDA, CPU])


def test_a_requested_provider_that_fails_to_start_raises_an_error(content, monkeypatch):
    Replaced(monkeypatch, [CUDA, CPU], [CPU], cuda_version="13.0")
    with pytest.raises(ValueError, match="usable: CPUExecutionProvider. .*needs an NVIDIA GPU, CUDA 13"):
        new_session(content, [(CUDA, {"device_id": 3}), CPU])


def test_the_default_warns_if_cuda_fails_to_start(content, monkeypatch, caplog):
    Replaced(monkeypatch, [CUDA, CPU], [CPU], cuda_version="13.0")
    new_session(content)
    assert f"{CUDA} cannot be used: model runs on the CPU" in caplog.text
    assert "needs an NVIDIA GPU, CUDA 13 and cuDNN 9" in caplog.text


def test_values_are_kept_on_the_device_of_the_first_provider(content):
    assert sessions.device_of(new_session(content)) == ("cpu", 0)
    on_second_gpu = types.SimpleNamespace(
        get_providers=lambda: [CUDA, CPU], get_provider_options=lambda: {CUDA: {"device_id": "1"}, CPU: {}}
    )
    assert sessions.device_of(on_second_gpu) == ("cuda", 1)


def test_values_are_copied_to_a_device():
    value = sessions.as_value(np.arange(6).reshape(2, 3).T, ("cpu", 0))
    np.testing.assert_array_equal(value.numpy(), [[0, 3], [1, 4], [2, 5]])
    assert value.device_name() == "cpu"


def test_threads_sleep_after_a_request(small, tmp_path):
    small.write(tmp_path / "it")
    options = serving.load(tmp_path / "it").engine.session.get_session_options()
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"


def test_threads_sets_the_number_of_threads_of_an_operation(small, tmp_path):
    small.write(tmp_path / "it")
    session = serving.load(tmp_path / "it", threads=1).engine.session
    assert session.get_session_options().intra_op_num_threads == 1
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(
            ValueError, match="`threads` must be a positive integer or None. Received: threads="
        ):
            serving.load(tmp_path / "it", threads=wrong)


def test_workers_compute_batches_at_the_same_time():
    barrier = threading.Barrier(2)  # passed by two threads at once

    def add(batch):
        barrier.wait(timeout=30)
        return batch + 1

    assert sessions.Sessions(None, workers=2).map(add, range(4)) == [1, 2, 3, 4]
    assert sessions.Sessions(None).map(str, range(3)) == ["0", "1", "2"]


def test_the_error_of_a_batch_stops_the_batches_that_have_not_begun():
    begun = []

    def fail(batch):
        begun.append(batch)
        time.sleep(0.01)
        raise ValueError(f"batch {batch}")

    with pytest.raises(ValueError, match="batch 0"):
        sessions.Sessions(None, workers=2).map(fail, range(100))
    assert len(begun) < 50


@pytest.mark.parametrize(("workers", "threads", "expected"), [(2, 1, 1), (2, 3, 5), (1, 3, 3)])
def test_workers_share_the_threads_of_operations(small, tmp_path, workers, threads, expected):
    small.write(tmp_path / "it")
    session = serving.load(tmp_path / "it", threads=threads, workers=workers).engine.session
    assert session.get_session_options().intra_op_num_threads == expected


def test_the_cores_are_divided_by_the_workers(small, tmp_path, monkeypatch):
    small.write(tmp_path / "it")
    monkeypatch.setattr(sessions, "num_cores", lambda: 3)
    for workers, expected in ((2, 1), (3, 1), (4, 1)):
        session = serving.load(tmp_path / "it", workers=workers).engine.session
        assert session.get_session_options().intra_op_num_threads == expected
    for wrong in (0, True, None):
        with pytest.raises(ValueError, match="`workers` must be a positive integer. Received: workers="):
            serving.load(tmp_path / "it", workers=wrong)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_a_graph_of_a_path_has_the_weights_in_the_file_beside_it(dtype, tmp_path):
    weight = onnx.numpy_helper.from_array(np.arange(6, dtype=dtype).reshape(2, 3), "weight")
    x, y = (
        helper.make_tensor_value_info(name, weight.data_type, ["batch_size", size])
        for name, size in (("x", 2), ("y", 3))
    )
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])], "model", [x], [y], [weight]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="model.onnx_data", size_threshold=0)

    def read(name):
        return path.with_name("model.onnx_data" if name.endswith("data") else "model.onnx").read_bytes()

    mapped = sessions.Sessions(lambda _: path, save_memory=True)("model")
    given = sessions.Sessions(read)("model")
    for session in (mapped, given):
        (found,) = session.run(None, {"x": np.ones((1, 2), dtype)})
        np.testing.assert_array_equal(found, [[3, 5, 7]])
    arenas = [each.get_session_options().enable_cpu_mem_arena for each in (mapped, given)]
    assert arenas == [False, True]


@pytest.mark.parametrize("place", ["graph", "branch"])
def test_weights_inside_of_a_graph_of_a_path_are_mapped_to_save_memory(place, tmp_path, monkeypatch):
    values = np.arange(600, dtype="float32").reshape(2, 300)
    weight = onnx.numpy_helper.from_array(values, "weight")
    small = onnx.numpy_helper.from_array(np.full(1, -0.5, "float32"), "small")
    x, y, z = (
        helper.make_tensor_value_info(name, weight.data_type, ["batch_size", size])
        for name, size in (("x", 2), ("y", 300), ("z", 300))
    )
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("Add", ["product", "small"], ["sum"]),
        helper.make_node("LeakyRelu", ["sum"], ["y"], alpha=0.3),
    ]
    initializers = [weight, small]
    if place == "branch":
        branch = helper.make_graph(nodes, "branch", [], [y], initializers)
        other = helper.make_graph([helper.make_node("MatMul", ["x", "other"], ["z"])], "other", [], [z])
        other.initializer.append(onnx.numpy_helper.from_array(-values, "other"))
        condition = onnx.numpy_helper.from_array(np.array(True), "condition")
        nodes = [helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=other)]
        initializers = [condition]
    graph = helper.make_graph(nodes, "model", [x], [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path)

    given, new = [], onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda model, **options: (given.append(model), new(model, **options))[1],
    )
    inputs = {"x": np.array([[1, 2], [-1, 0]], "float32")}
    expected, found = (
        sessions.Sessions(lambda _: path, save_memory=save)("model").run(None, inputs)[0]
        for save in (False, True)
    )
    np.testing.assert_array_equal(found, expected)
    _, content = given
    assert isinstance(content, bytes)  # read from memory, with references to the file
    assert len(content) < 1500 < path.stat().st_size
