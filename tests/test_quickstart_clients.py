"""The quickstart's export, behind the server that one command starts, and a client of each protocol.

The quickstart has no embeddings, for which `export/serving/tests/test_text_embeddings.py` has a client.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

import keras_transformer_serving as serving
from keras_transformer import recipes
from keras_transformer.datasets import phrasebook
from keras_transformer.recipes import quickstarts

pytestmark = pytest.mark.slow
NAME, TEXT = "es-en", "la casa azul"
SMALL = {
    "dataset": "phrasebook",
    "vocabulary_size": 320,
    "layers": 1,
    "heads": 2,
    "model_dim": 16,
    "hidden_dim": 32,
    "batch_tokens": 128,
    "max_new_tokens": 8,
    "learning_rate": 0.01,
}
JAVA = """
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

class Client {
    public static void main(String[] arguments) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(arguments[0]))
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(arguments[1])).build();
        var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        System.out.print(answer.statusCode() + " " + answer.body());
    }
}
"""


@pytest.fixture(scope="module")
def folder(sentence_pairs, tmp_path_factory):
    """The folder of a quickstart with a small model."""
    folder = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        splits = sentence_pairs * 4, sentence_pairs[:3], sentence_pairs[:5]
        patch.setattr(phrasebook, "load_data", lambda: splits)
        patch.setattr(quickstarts, "PHRASEBOOK", SMALL)
        recipes.quickstart(folder, epochs=2, say=lambda _: None, verbose=0)
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    """The translation of `TEXT` by the export in Python."""
    return serving.load(folder / "export")([TEXT])[0]


@pytest.fixture(scope="module")
def addresses(folder):
    """The addresses of a server of the export over HTTP and gRPC."""
    command = [sys.executable, "-m", "keras_transformer_cli", "serve", f"{NAME}={folder / 'export'}"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
    }
    command += ["--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            found = {}
            while len(found) < 2:
                line = process.stdout.readline()
                assert line, "the server has ended"
                for match in re.finditer(r"(http|grpc)://([\d.]+:\d+)", line):
                    found[match[1]] = match[2]
            yield found
        finally:
            process.terminate()


def request_of(address):
    return f"http://{address}/v1/models/{NAME}:predict", json.dumps({"instances": [TEXT]})


def by_openai(addresses, _):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"http://{addresses['http']}/v1", api_key="none") as client:
        return client.completions.create(model=NAME, prompt=TEXT).choices[0].text


def by_libretranslate(addresses, _):
    client = pytest.importorskip("libretranslatepy").LibreTranslateAPI(f"http://{addresses['http']}")
    return client.translate(TEXT, "es", "en")


def by_triton(module, addresses, transport):
    client = module.InferenceServerClient(addresses[transport])
    column = module.InferInput("text", [1], "BYTES")
    column.set_data_from_numpy(np.array([TEXT.encode()], object))
    with contextlib.closing(client):
        return client.infer(NAME, [column]).as_numpy("text")[0].decode()


def by_triton_over_http(addresses, _):
    return by_triton(pytest.importorskip("tritonclient.http"), addresses, "http")


def by_triton_over_grpc(addresses, _):
    return by_triton(pytest.importorskip("tritonclient.grpc"), addresses, "grpc")


def prediction(content):
    """Return the text of an answer in the format of TensorFlow Serving."""
    (answer,) = json.loads(content)["predictions"]
    return answer if isinstance(answer, str) else answer["text"]


def by_python(addresses, _):
    url, body = request_of(addresses["http"])
    with urllib.request.urlopen(urllib.request.Request(url, body.encode())) as answer:
        return prediction(answer.read())


def by_java(addresses, folder):
    if shutil.which("java") is None:
        pytest.skip("needs Java 11 or newer")
    (folder / "Client.java").write_text(JAVA)
    command = ["java", str(folder / "Client.java"), *request_of(addresses["http"])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    status, _, content = done.stdout.partition(" ")
    assert status == "200", content
    return prediction(content)


def by_curl(addresses, _):
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    version = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True).stdout
    if "HTTP2" not in version:
        pytest.skip("needs a curl with HTTP/2")
    url, body = request_of(addresses["http"])
    command = ["curl", "--silent", "--fail-with-body", "--http2", "--data", body, url]
    return prediction(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)


CLIENTS = (
    by_openai,
    by_libretranslate,
    by_triton_over_http,
    by_triton_over_grpc,
    by_python,
    by_java,
    by_curl,
)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__.removeprefix("by_"))
def test_a_client_gets_the_translation_of_the_export(client, addresses, expected, tmp_path):
    assert client(addresses, tmp_path) == expected
