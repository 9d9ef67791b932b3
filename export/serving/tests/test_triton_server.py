"""NVIDIA's Triton Inference Server runs models of texts with its Python backend.

The wheel of nvidia-pytriton has the server, for Linux. `make test-triton` installs it, with the NumPy that the backend
was built for, and this package beside it: the backend imports both from the environment of the server.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import random
import re
import runpy
import shutil
import socket
import subprocess
import sys
import sysconfig
import time

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from served_exports import write_export
from tritonclient.utils import InferenceServerException

import keras_transformer_serving as serving

pytriton = pytest.importorskip(
    "pytriton", reason="nvidia-pytriton is not installed; `make test-triton` installs it"
)
pytestmark = pytest.mark.slow

make_repository = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "triton" / "make_repository.py"))[
    "make_repository"
]
TEXTS = ["a", "é", "", "¿qué? ☃", "abc"]
CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}
START = 120  # seconds


class Triton:
    """A server of a repository, and its clients."""

    def __init__(self, repository):
        self.repository = repository
        self.ports = {name: free_port() for name in CLIENTS}

    def client(self, protocol):
        return CLIENTS[protocol].InferenceServerClient(f"127.0.0.1:{self.ports[protocol]}")

    def infer(self, protocol, model, texts, **options):
        """Return the outputs of texts, each as a list, and the version that answered."""
        module = CLIENTS[protocol]
        inputs = [input_of(module, "text", "BYTES", [text.encode() for text in texts])]
        inputs += [input_of(module, name, "INT32", values) for name, values in options.items()]
        with contextlib.closing(self.client(protocol)) as client:
            result = client.infer(model, inputs)
            response = result.get_response()
        outputs = response["outputs"] if protocol == "http" else response.outputs
        names = [each["name"] if protocol == "http" else each.name for each in outputs]
        found = {name: [decoded(value) for value in result.as_numpy(name)] for name in names}
        return found, response["model_version"] if protocol == "http" else response.model_version


def input_of(module, name, datatype, values):
    """Return an input (B, 1)."""
    array = np.array([[value] for value in values], object if datatype == "BYTES" else "int32")
    tensor = module.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def decoded(row):
    """Return an output of a row: those without axes have one value."""
    values = [value.decode() if isinstance(value, bytes) else value.item() for value in row.reshape(-1)]
    return values[0] if len(values) == 1 else values


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def exports(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    return {name: write_export(small, folder / name, name) for name in ("copier", "classifier", "entailment")}


@pytest.fixture(scope="module")
def triton(exports, tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    for name, export in exports.items():
        make_repository(export, folder / "models", name=name, text=True)
    server = pathlib.Path(pytriton.__file__).parent / "tritonserver"
    shutil.copytree(server / "backends" / "python", folder / "backends" / "python")
    # The program that runs a model, of the Python of this environment.
    version = ".".join(map(str, sys.version_info[:2]))
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    shutil.copy(stub, folder / "backends" / "python")
    libraries = [server.parents[1] / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR")]
    triton = Triton(folder / "models")
    arguments = [
        f"--model-repository={triton.repository}",
        f"--backend-directory={folder / 'backends'}",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--allow-metrics=false",
        *(f"--{name}-port={port}" for name, port in triton.ports.items()),
        *(f"--{name}-address=127.0.0.1" for name in triton.ports),
    ]
    environment = {
        **os.environ,
        "PATH": f"{pathlib.Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
    }
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [server / "bin" / "tritonserver", *arguments], stdout=log, stderr=log, env=environment
        )
        try:
            for _ in range(2 * START):
                with contextlib.suppress(ConnectionError, OSError, InferenceServerException):
                    if triton.client("http").is_server_ready():
                        break
                assert process.poll() is None, (folder / "log").read_text()[-4000:]
                time.sleep(0.5)
            yield triton
        finally:
            process.terminate()
            process.wait(60)


def answers(export, texts):
    """Return the outputs and errors of the text of each row by this package."""
    rows = serving.load(export)(list(texts), errors="return")
    errors = [
        re.sub(r" in texts\[\d+\]$", "", str(row)) if isinstance(row, Exception) else "" for row in rows
    ]
    return ["" if error else row for row, error in zip(rows, errors, strict=True)], errors


@pytest.mark.parametrize("protocol", CLIENTS)
def test_answers_equal_this_package(triton, exports, protocol):
    found, version = triton.infer(protocol, "copier", TEXTS)
    assert (found["text"], found["error"]) == answers(exports["copier"], TEXTS)
    assert version == "1"
    found, _ = triton.infer(protocol, "classifier", TEXTS)
    classifier = serving.load(exports["classifier"])
    assert found["label"] == classifier(TEXTS)
    np.testing.assert_allclose(found["probabilities"], classifier.probabilities(TEXTS), rtol=1e-6)


@pytest.mark.parametrize("protocol", CLIENTS)
def test_options_of_rows_are_optional_inputs(triton, exports, protocol):
    limits = [1, 2, 3, 1, 2]
    found, _ = triton.infer(protocol, "copier", TEXTS, max_new_tokens=limits)
    assert found["text"] == serving.load(exports["copier"])(TEXTS, max_new_tokens=limits)


@pytest.mark.parametrize("protocol", CLIENTS)
def test_labels_of_a_request_are_an_input(triton, exports, protocol):
    module, labels = CLIENTS[protocol], ["good", "bé"]
    names = module.InferInput("candidate_labels", [len(TEXTS), 2], "BYTES")
    names.set_data_from_numpy(np.array([[label.encode() for label in labels]] * len(TEXTS), object))
    texts = input_of(module, "text", "BYTES", [text.encode() for text in TEXTS])
    with contextlib.closing(triton.client(protocol)) as client:
        result = client.infer("entailment", [texts, names])
    for row, answer in enumerate(serving.load(exports["entailment"])(TEXTS, labels)):
        found = zip(*(result.as_numpy(name)[row].tolist() for name in ("labels", "scores")), strict=True)
        expected = {each.label: each.score for each in answer}
        assert {label.decode(): score for label, score in found} == pytest.approx(expected)


@pytest.mark.parametrize("protocol", CLIENTS)
def test_an_invalid_row_has_an_error_and_the_others_answers(triton, exports, protocol):
    texts = ["a", "x" * 99, "b"]
    found, _ = triton.infer(protocol, "copier", texts)
    assert (found["text"], found["error"]) == answers(exports["copier"], texts)
    assert [bool(error) for error in found["error"]] == [False, True, False]


@pytest.mark.parametrize("protocol", CLIENTS)
def test_an_invalid_request_raises_and_the_next_is_answered(triton, protocol):
    module = CLIENTS[protocol]
    with contextlib.closing(triton.client(protocol)) as client:
        with pytest.raises(InferenceServerException, match="data-type .*INT32"):
            client.infer("copier", [input_of(module, "text", "INT32", [1])])
        with pytest.raises(InferenceServerException, match="The inputs must be text, optionally"):
            client.infer("copier", [input_of(module, "max_new_tokens", "INT32", [1])])
    assert triton.infer(protocol, "copier", ["a"])[0]["text"] == ["a"]


def test_requests_of_many_clients_are_computed_in_batches(triton, exports):
    draw = random.Random(0)
    requests = [["".join(draw.choices("abcdé ", k=draw.randint(1, 12)))] for _ in range(160)]
    requests[7::40] = [["x" * 99]] * 4
    copier = answers(exports["copier"], [text for texts in requests for text in texts])
    with contextlib.closing(triton.client("http")) as client:

        def counts():
            (model,) = client.get_inference_statistics("copier")["model_stats"]
            return model["inference_count"], model["execution_count"]

        before = counts()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            protocols = ["http", "grpc"] * (len(requests) // 2)
            found = [
                *pool.map(
                    lambda protocol, texts: triton.infer(protocol, "copier", texts)[0], protocols, requests
                )
            ]
        rows, executions = (after - count for after, count in zip(counts(), before, strict=True))
    assert tuple([each[name][0] for each in found] for name in ("text", "error")) == copier
    assert rows == len(requests)
    assert executions < rows / 2


def test_a_new_version_is_loaded_while_requests_are_answered(triton, exports, small, tmp_path):
    shorter = write_export(small, tmp_path / "shorter", "copier", max_source_tokens=3)
    make_repository(shorter, triton.repository, name="copier", version=2, text=True)
    with (
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        contextlib.closing(triton.client("http")) as client,
    ):
        reloaded = pool.submit(client.load_model, "copier")
        found = []
        while not reloaded.done():
            found.append(triton.infer("grpc", "copier", ["ab"])[0])
        reloaded.result()
    assert found
    assert all(each == {"text": ["ab"], "error": [""]} for each in found)
    found, version = triton.infer("http", "copier", ["ab", "a long text"])
    assert version == "2"
    assert (found["text"], found["error"]) == answers(shorter, ["ab", "a long text"])
    assert "3 tokens" in found["error"][1]
