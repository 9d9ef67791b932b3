"""The files of export/ray_serve; needs Ray: `pip install 'ray[serve,data]'`."""

import http.client
import json
import os
import pathlib
import runpy
import signal
import sys
import threading
import time

import pytest

ray, psutil = pytest.importorskip("ray"), pytest.importorskip("psutil")
pytest.importorskip("ray.serve")

from served_exports import write_export  # noqa: E402

import keras_transformer_serving as serving  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    # Warnings of Ray's code and processes.
    pytest.mark.filterwarnings("ignore"),
]
FOLDER = pathlib.Path(__file__).resolve().parents[2] / "ray_serve"
CLIENTS, SECONDS = 8, 12.0
TEXTS = ["good", "a fine film", "", "bad " * 5, "x"]


@pytest.fixture
def application(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import app

    return app.application


def run_predict(monkeypatch, *arguments):
    """Run the command as the main module."""
    monkeypatch.setattr(sys, "argv", ["predict.py", *map(str, arguments)])
    runpy.run_path(str(FOLDER / "predict.py"), run_name="__main__")


@pytest.fixture(scope="module")
def cluster():
    """A local cluster whose workers have the import path of the tests."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        map(str, (FOLDER.parent / "serving", FOLDER.parent / "serving/tests"))
    )
    # Two replicas or workers use all CPUs.
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def export(small, tmp_path):
    return write_export(small, tmp_path / "it", "classifier")


def predict(text):
    """Return the status and the response to a request with one text."""
    connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=60)
    try:
        connection.request("POST", "/v1/models/it:predict", json.dumps({"instances": [text]}))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_requests_are_answered_while_a_replica_is_killed(cluster, export, application):
    from ray import serve

    arguments = {"bundle": str(export), "name": "it", "replicas": "2"}
    serve.run(application(arguments))
    try:
        answers = {text: predict(text) for text in TEXTS}
        expected = serving.load(export)(TEXTS)
        for (status, body), label in zip(answers.values(), expected, strict=True):
            assert status == 200
            assert json.loads(body)["predictions"][0]["label"] == label
        process_ids = replicas()
        assert len(process_ids) == 2
        statuses, retried = under_load(answers, lambda: os.kill(process_ids[0], signal.SIGKILL))
        assert sum(statuses.values()) > CLIENTS
        # Ray answers 500 or 503 if a replica dies; the repeated request is computed by the other replica.
        assert statuses.keys() <= {200, 500, 503}, statuses
        assert retried <= CLIENTS * 4, statuses
        deadline = time.monotonic() + 60
        while len(replicas()) < 2 and time.monotonic() < deadline:
            time.sleep(0.5)
        assert len({*replicas()} - {process_ids[0]}) == 2
        assert predict(TEXTS[0]) == answers[TEXTS[0]]
    finally:
        serve.shutdown()


def replicas():
    """Return the process ids of the replicas."""
    processes = psutil.Process().children(recursive=True)
    return [process.pid for process in processes if "ServeReplica" in " ".join(process.cmdline())]


def under_load(answers, interrupt):
    """Return the numbers of responses by status and of retries, for clients that retry failed requests."""
    statuses, retries, wrong = {}, [], []
    lock, end = threading.Lock(), time.monotonic() + SECONDS

    def client(index):
        while time.monotonic() < end:
            text = TEXTS[index % len(TEXTS)]
            for attempt in range(20):
                status, body = predict(text)
                with lock:
                    statuses[status] = statuses.get(status, 0) + 1
                if status == 200:
                    break
                retries.append(attempt)
                time.sleep(0.1)
            if (status, body) != answers[text]:
                wrong.append((status, body))

    threads = [threading.Thread(target=client, args=(index,)) for index in range(CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(SECONDS / 3)
    interrupt()
    for thread in threads:
        thread.join()
    assert not wrong
    return statuses, len(retries)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"bundle": ""},
        {"bundle": "it", "unknown": "1"},
        {"bundle": "it", "replicas": "0"},
        {"bundle": "it", "threads": "x"},
    ],
)
def test_invalid_application_arguments_are_rejected(application, arguments):
    with pytest.raises(ValueError, match=r"^`arguments` must"):
        application(arguments)


def test_every_line_has_an_output_in_order(cluster, export, tmp_path, monkeypatch):
    lines = [f"text {number}".encode() for number in range(300)]
    lines[3], lines[100], lines[200] = b"", "\u2028 a".encode(), b"too long " * 50
    lines[250] = b"\xff"
    (tmp_path / "texts.txt").write_bytes(b"\n".join(lines))
    options = ("--batch-size", "16", "--part-bytes", "500")
    run_predict(monkeypatch, export, tmp_path / "texts.txt", tmp_path / "out", *options)
    found = [
        json.loads(line)
        for path in sorted((tmp_path / "out").iterdir())
        for line in path.read_text(encoding="utf-8").split("\n")
        if line
    ]
    assert [row["text"] for row in found] == [line.decode(errors="replace") for line in lines]
    assert [index for index, row in enumerate(found) if row["error"]] == [200, 250]
    model = serving.load(export)
    expected = [
        None if index in (200, 250) else model([line.decode()])[0] for index, line in enumerate(lines)
    ]
    assert [json.loads(row["output"]) for row in found] == expected


def test_an_empty_file_gives_an_empty_folder(cluster, export, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").touch()
    run_predict(monkeypatch, export, tmp_path / "texts.txt", tmp_path / "out")
    assert not any((tmp_path / "out").iterdir())


def test_outputs_are_not_overwritten(export, tmp_path, capsys, monkeypatch):
    (tmp_path / "texts.txt").write_text("text\n")
    with pytest.raises(SystemExit):
        run_predict(monkeypatch, export, tmp_path / "texts.txt", tmp_path)
    assert "`output` must be new" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_predict(monkeypatch, export, tmp_path / "missing", tmp_path / "out")
    assert "`texts` must be" in capsys.readouterr().err
