"""The life cycle of a server: versions, draining, the command line."""

import asyncio
import builtins
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request

import pytest
from served_exports import call, json_call, started, write_export

from keras_transformer_serving import command_line
from keras_transformer_serving.server import create_app
from keras_transformer_serving.server.versions import is_small

PATH = "/v1/models/it:predict"


@pytest.fixture
def versions(small, tmp_path):
    """A folder with version 1; `versions.add(2)` writes version 2, whose labels name it."""

    class Versions:
        folder = tmp_path / "it"

        def add(self, number):
            # Written to a temporary folder and renamed, as exports are.
            new = write_export(
                small, tmp_path / f"new{number}", "classifier", labels=[f"version {number}"] * 3
            )
            self.folder.mkdir(exist_ok=True)
            return new.rename(self.folder / str(number))

    found = Versions()
    found.add(1)
    return found


def run(versions, test, **options):
    async def main():
        app = create_app({"it": versions.folder}, poll_seconds=0, **options)
        async with started(app):
            return await test(app, app.state.server.models["it"])

    return asyncio.run(main())


async def label(app, part=""):
    status, found = await json_call(app, "POST", f"/v1/models/it{part}:predict", {"instances": ["a"]})
    return found["predictions"][0]["label"] if status == 200 else status


async def states(app):
    _, found = await json_call(app, "GET", "/v1/models/it")
    return {each["version"]: each["state"] for each in found["model_version_status"]}


def test_switching_to_a_new_version_fails_no_request(versions):
    async def test(app, model):
        found, stopped = [], asyncio.Event()

        async def ask():
            while not stopped.is_set():
                found.append(await label(app))

        asking = [asyncio.create_task(ask()) for _ in range(8)]
        await asyncio.sleep(0.05)
        versions.add(2)
        await model.poll()
        await asyncio.sleep(0.05)
        stopped.set()
        await asyncio.gather(*asking)
        assert set(found) == {"version 1", "version 2"}
        assert (
            found.index("version 2") == len(found) - found[::-1].index("version 1")
            or found[-1] == "version 2"
        )
        assert await states(app) == {"1": "END", "2": "AVAILABLE"}
        assert await label(app, "/versions/1") == 404
        assert await label(app, "/labels/stable") == "version 2"
        shutil.rmtree(versions.folder / "1")
        await model.poll()
        assert await states(app) == {"2": "AVAILABLE"}

    run(versions, test)


def test_a_version_is_unloaded_after_its_last_request(versions):
    async def test(app, model):
        with model.use() as (old, _, _):
            versions.add(2)
            polling = asyncio.create_task(model.poll())
            for _ in range(500):
                if old.state == "UNLOADING":
                    break
                await asyncio.sleep(0.01)
            assert await states(app) == {"1": "UNLOADING", "2": "AVAILABLE"}
            assert await label(app) == "version 2"
            assert await label(app, "/versions/1") == "version 1"
        await polling
        assert await states(app) == {"1": "END", "2": "AVAILABLE"}

    run(versions, test)


def test_versions_answer_by_their_weights(versions):
    versions.add(2)
    versions.add(3)

    async def test(app, model):
        found = [await label(app) for _ in range(200)]
        assert set(found) == {"version 1", "version 2"}
        assert 0 < found.count("version 2") < 60  # 10 % of 200, three standard deviations are 13
        assert await states(app) == {"1": "AVAILABLE", "2": "AVAILABLE"}
        assert await label(app, "/labels/stable") == await label(app, "/versions/1") == "version 1"
        assert await label(app, "/labels/canary") == await label(app, "/versions/2") == "version 2"
        assert await label(app, "/versions/3") == 404
        versions.add(4)
        await model.poll()
        assert await states(app) == {"1": "AVAILABLE", "2": "AVAILABLE"}

    run(versions, test, weights={"it": {1: 90, 2: 10}})


def test_a_version_that_is_not_there_yet_gets_its_share_later(versions):
    async def test(app, model):
        assert {await label(app) for _ in range(10)} == {"version 1"}
        versions.add(2)
        await model.poll()
        assert {await label(app) for _ in range(30)} == {"version 1", "version 2"}

    run(versions, test, weights={"it": {2: 2, 1: 1}})


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"it": {1: 0}}, "positive"),
        ({"it": {}}, "positive"),
        ({"other": {1: 1}}, "must be of it. Received: other"),
    ],
)
def test_wrong_weights_are_rejected(versions, weights, message):
    with pytest.raises(ValueError, match=message):
        create_app({"it": versions.folder}, weights=weights)


def test_weights_of_the_command_line_are_read():
    assert command_line._weights("it=2:95,3:5") == ("it", {2: 95, 3: 5})
    with pytest.raises(ValueError, match="NAME=VERSION:WEIGHT"):
        command_line._weights("it=2")


@pytest.mark.parametrize("damage", ["truncated", "copied"])
def test_an_invalid_version_leaves_the_old_one_serving(versions, damage):
    async def test(app, model):
        second = versions.add(2)
        graph = second / "onnx" / "model.onnx"
        whole = graph.read_bytes()
        if damage == "truncated":
            graph.write_bytes(whole[: len(whole) // 2])
        else:
            graph.unlink()
        await model.poll()
        _, found = await json_call(app, "GET", "/v1/models/it/versions/2")
        (status,) = found["model_version_status"]
        assert status["state"] == "END"
        assert "model.onnx" in status["status"]["error_message"]
        assert await label(app) == "version 1"
        await model.poll()
        assert await label(app) == "version 1"
        graph.write_bytes(whole)
        await model.poll()
        assert await label(app) == "version 2"

    run(versions, test)


def test_a_deleted_version_is_served_until_another_exists(versions):
    async def test(app, model):
        shutil.rmtree(versions.folder / "1")
        await model.poll()
        assert await label(app) == "version 1"
        versions.add(3)
        await model.poll()
        versions.add(2)
        shutil.rmtree(versions.folder / "3")
        await model.poll()
        assert await label(app) == "version 2"

    run(versions, test)


def test_a_server_without_a_version_is_not_ready(versions):
    shutil.rmtree(versions.folder / "1")

    async def test(app, model):
        assert (await call(app, "GET", "/v2/health/ready"))[0] == 503
        assert await label(app) == 503
        versions.add(1)
        await model.poll()
        assert (await call(app, "GET", "/v2/health/ready"))[0] == 200

    run(versions, test)


@contextlib.contextmanager
def served(*arguments, path=()):
    """Run the command, with folders before Python's path; yield the process, its port and its first line."""
    code = "from keras_transformer_serving.command_line import main; raise SystemExit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, *sys.path]))},
    )
    try:
        first = process.stdout.readline().strip()
        if not first:
            raise AssertionError(process.stderr.read())
        yield process, int(first.rstrip("/").rsplit(":", 1)[1]), first
    finally:
        process.kill()
        process.communicate()


def test_a_model_that_lacks_a_package_does_not_stop_the_others(versions, small, tmp_path):
    """A package that only one export needs, such as `tokenizers` for BERT's."""
    bert = write_export(small, tmp_path / "bert", "classifier", tokenizer_class="WordPieceTokenizer")
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "tokenizers.py").write_text("raise ModuleNotFoundError('none')")
    with served(versions.folder, bert, "--poll-seconds", "0", path=[tmp_path / "stub"]) as (_, port, _):
        assert ask(port)[0] == 200
        status, answer = ask(port, path="/v1/models/bert:predict")
        assert status == 503
        assert (
            "`bert` was not loaded: ImportError: This export's tokenizer needs `tokenizers`"
            in answer["error"]
        )
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready") as ready:
            assert ready.status == 200
    message = r"`folders` must be exports.* needs `tokenizers`"
    with pytest.raises(AssertionError, match=message), served(bert, path=[tmp_path / "stub"]):
        pass


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ModuleNotFoundError("No module named 'uvicorn'"),
            r"The server needs .*, the extra \[server\]: pip install",
        ),
        (ImportError("libz.so: failed to map segment"), "libz.so: failed to map segment"),
        (RuntimeError("can't start new thread"), r"The memory is not sufficient\."),
        (MemoryError(), r"The memory is not sufficient\. .*\(ulimit -v\)"),
    ],
    ids=["missing", "not loaded", "no thread", "memory"],
)
def test_only_a_missing_package_names_the_extra(monkeypatch, capsys, tmp_path, error, message):
    importer = builtins.__import__

    def failing(name, *arguments, **options):
        if name == "uvicorn":
            raise error
        return importer(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", failing)
    assert command_line.main([str(tmp_path), "--port", "0"]) == 2
    assert re.fullmatch(f"keras-transformer-serve: error: {message}.*\n", capsys.readouterr().err)


def test_closed_streams_are_opened(monkeypatch, tmp_path):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert command_line.main([str(tmp_path), "--port", "0"]) == 2
    assert sys.stdin.read() == ""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()


def ask(port, texts=("a",), path=PATH):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, json.dumps({"instances": list(texts)}))
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_responses_are_not_delayed_by_tcp_buffering(versions):
    """Nagle's algorithm and delayed ACKs would add 40 ms to a response in two packets on a kept-alive connection."""
    with served(versions.folder, "--threads", "1") as (_, port, _):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        times = []
        for _ in range(60):
            begin = time.perf_counter()
            connection.request("POST", PATH, json.dumps({"instances": ["a"]}))
            connection.getresponse().read()
            times.append(time.perf_counter() - begin)
        connection.close()
        assert min(times[40:]) < 0.03  # the kernel acknowledges the first packets of a connection at once


def test_the_server_command_switches_versions_under_load_and_drains(versions):
    with served(versions.folder, "--poll-seconds", "0.1", "--threads", "1") as (process, port, first):
        assert first.startswith("http://127.0.0.1:")
        found, stopped = [], threading.Event()

        def keep_asking():
            while not stopped.is_set():
                status, answer = ask(port)
                found.append(answer["predictions"][0]["label"] if status == 200 else answer)

        threads = [threading.Thread(target=keep_asking) for _ in range(4)]
        for thread in threads:
            thread.start()
        versions.add(2)
        deadline = time.monotonic() + 20
        while "version 2" not in found and time.monotonic() < deadline:
            time.sleep(0.02)
        stopped.set()
        for thread in threads:
            thread.join()
        assert set(found) == {"version 1", "version 2"}
        # A request whose body arrives after the signal is rejected; one that was accepted is answered.
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(ask(port, ["a"] * 200)))
        waiting.start()
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        waiting.join()
        assert process.wait(20) == 0
        assert answers[0][0] in (200, 503)
        log = process.stderr.read()
        assert "it version 2 is served" in log
        assert "SIGTERM: finishing" in log
        assert log.splitlines()[-1].endswith("stopped")
        assert "Traceback" not in log


def test_a_body_beside_the_header_upgrade_is_read(versions):
    """Java's clients and `curl --http2` ask for HTTP/2 in the header of a request with a body."""
    body = json.dumps({"instances": ["a"] * 50}).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        "Upgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\n\r\n"
    ).encode()
    with contextlib.ExitStack() as stack:
        _, port, _ = stack.enter_context(served(versions.folder, "--threads", "1"))
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        for _ in range(2):
            connection.sendall(head + body)
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert (response.status, len(json.loads(response.read())["predictions"])) == (200, 50)


@pytest.mark.parametrize("host", ["::", "localhost", "127.0.0.1", "::1"])
def test_a_host_listens_on_all_its_addresses(host):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(each) for each in command_line._listening(host, 0)]
        (port,) = {each.getsockname()[1] for each in sockets}
        has_six = {"localhost", host} & {"::", "::1"} or len(sockets) == 2
        expected = {"::": ["127.0.0.1", "::1"], "localhost": ["127.0.0.1", *(["::1"] if has_six else [])]}
        for address in expected.get(host, [host]):
            socket.create_connection((address, port), 5).close()
        with pytest.raises(OSError, match="in use"):
            command_line._listening(host, port)


def test_requests_are_answered_in_the_delay_of_the_shutdown(versions):
    with served(versions.folder, "--threads", "1", "--shutdown-delay", "1.5") as (process, port, _):
        process.send_signal(signal.SIGTERM)
        deadline, statuses = time.monotonic() + 10, set()
        while time.monotonic() < deadline:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            try:
                connection.request("GET", "/v2/health/ready")
                ready = connection.getresponse().status
                connection.close()
                if ready == 503:
                    statuses.add(ask(port)[0])
            except OSError:
                break
        assert statuses - {503} == {200}
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["it", "--root-path", "a"], "`root_path` must be of the form /path. Received: a"),
        (["it", "--trusted-proxies", "proxy"], "`trusted_proxies` must be addresses or networks"),
        (["it={export}", "--host", "no host"], "`--host` must be an address or a name"),
        (["nothing"], "`folders` must be exports"),
        (["a/export", "b/export/1"], "`folders` must have each name once, as in FIRST=… SECOND=…"),
        (["a", "--weights", "a=1:1", "a=2:1"], "`--weights` must have each name once"),
        (["it", "--max-queue", "0"], "`max_queue` must be positive"),
        (["a/b=it"], "on the command line NAME=FOLDER"),
        (["mi modelo ñ"], "on the command line NAME=FOLDER"),
        (["it={export}", "--providers", "NoSuch,CPUExecutionProvider"], "NoSuch cannot be used"),
        (["it={export}", "--threads", "0"], "`threads` must be a positive integer"),
        (["it", "--port", "99999"], "`--port` must be in [0, 65535]. Received: --port=99999"),
        (["it", "--grpc-port", "99999"], "`--grpc-port` must be in [0, 65535]. Received: --grpc-port=99999"),
        (["it", "--timeout", "inf"], "`timeout` must be positive and finite. Received: timeout=inf"),
        (["it", "--shutdown-delay", "nan"], "`shutdown_delay` must be 0 or more, and finite"),
        (["it", "--poll-seconds", "-1"], "`poll_seconds` must be 0 or more, and finite"),
    ],
)
def test_invalid_arguments_print_one_line_with_status_2(
    exports, tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    arguments = [each.format(export=exports["classifier"]) for each in arguments]
    assert command_line.main(["--port", "0", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("keras-transformer-serve: error: ")
    assert message in lines[-1]


def test_a_port_of_grpc_that_is_in_use_prints_one_line(exports, capsys):
    pytest.importorskip("grpc")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert command_line.main([str(exports["classifier"]), "--port", "0", "--grpc-port", port]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "error: " in line)
    assert line.startswith(f"keras-transformer-serve: error: gRPC cannot listen on 127.0.0.1:{port}")


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as caught:
        command_line.main(["--version"])
    assert caught.value.code == 0
    project = tomllib.loads(pathlib.Path(__file__).parents[1].joinpath("pyproject.toml").read_text())[
        "project"
    ]
    assert capsys.readouterr().out == f"{project['name']} {project['version']}\n"


def test_errors_name_the_missing_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert command_line.main(["it"]) == 2
    assert "[server]: pip install starlette uvicorn prometheus-client" in capsys.readouterr().err


def test_a_model_has_the_name_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command_line._named("exports/es-en") == ("es-en", "exports/es-en")
    assert command_line._named("exports/es-en/3") == ("es-en", "exports/es-en/3")
    assert command_line._named("it=exports/es-en") == ("it", "exports/es-en")


@pytest.mark.parametrize(("precision", "bits"), [("float32", 32), ("float16", 16), ("int8", 8), ("int4", 4)])
def test_a_model_is_small_by_its_number_of_weights(precision, bits):
    assert is_small(15 * 2**20 * bits // 8, precision)
    assert not is_small(17 * 2**20 * bits // 8, precision)
