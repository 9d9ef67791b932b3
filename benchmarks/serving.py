"""Measure the server and a plain server without batching, under twice the load that it sustains and for mixed lengths.

    python benchmarks/serving.py --export runs/quickstart/export --seconds 10 --load-seconds 60 --rounds 3

It needs `keras-transformer-serving[cpu,server]`, and measures LitServe if it is installed. The client runs on the same
cores as the server, in one thread, which sends prepared requests and parses only the status and length of an answer.
"""

import argparse
import asyncio
import atexit
import collections
import contextlib
import functools
import importlib.util
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import measuring
import numpy as np
import runner

import keras_transformer_serving as serving
from keras_transformer_serving import generation
from keras_transformer_serving.graphs import DECODER, ENCODER
from keras_transformer_serving.pipelines.generation_steps import padding_value

TEXTS = ["¿Dónde está la estación?", "El perro ladra.", "Nosotros compramos pan en la tienda.", "Hola"]
PATH = "/v1/models/model:predict"
OURS, PLAIN, LIT = "keras-transformer-serve", "plain Starlette", "LitServe"
MODEL = "the model without a server"
LIMIT = 2.0  # seconds, the time limit of requests in the load test
CONTENDERS: dict[str, tuple[str, list[str]]] = {
    OURS: (OURS, []),
    PLAIN: (PLAIN, ["0"]),
    f"{PLAIN}, one thread": (PLAIN, ["1"]),
    LIT: (LIT, ["64"]),
}


def serve_plain(folder: str, port: int, threads: int) -> None:
    """Serve without batching, with a number of threads for each request; 0 for one thread per core."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    pipeline = serving.load(folder, threads=threads or None)

    async def predict(request: Request) -> JSONResponse:
        texts = (await request.json())["instances"]
        return JSONResponse({"predictions": await asyncio.to_thread(pipeline, texts)})

    uvicorn.run(Starlette(routes=[Route(PATH, predict, methods=["POST"])]), port=port, log_level="error")


class Server:
    """A server in separate processes.

    Args:
        name: `OURS`, `PLAIN` or `LIT`.
        folder: the export.
        options: further arguments.
    """

    def __init__(self, name: str, folder: str, options: list[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        code = {
            OURS: "from keras_transformer_serving.command_line import main; main(sys.argv[1:])",
            PLAIN: "import serving; serving.serve_plain(sys.argv[1], *map(int, sys.argv[2:]))",
            LIT: "import serving_with_litserve as server; server.serve(sys.argv[1], *map(int, sys.argv[2:]))",
        }[name]
        ports = [str(self.port), *options]
        arguments = {
            OURS: [f"model={folder}", "--port", str(self.port), *options],
            PLAIN: [folder, *ports],
            LIT: [folder, *ports],
        }[name]
        search = os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; {code}", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": search},
            start_new_session=True,
        )

    def __enter__(self) -> "Server":
        for _ in range(600):
            with contextlib.suppress(OSError):
                client = Client(self.port)
                client.send(0)
                if [status for status, _ in client.receive(30)] == [200]:
                    return self
            time.sleep(0.1)
        raise TimeoutError("The server must answer within 60 s")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # end remaining workers

    def processor_seconds(self) -> float:
        """Return the processor time of all processes and threads."""
        ticks = 0
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid:  # the session
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def resident_megabytes(self) -> float:
        """Return the resident memory."""
        pages = pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def prepared(text: str) -> bytes:
    """Return a request."""
    body = json.dumps({"instances": [text]}).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: it\r\nContent-Length: {len(body)}\r\nContent-Type: application/json"
    )
    return f"{head}\r\n\r\n".encode() + body


REQUESTS = [prepared(text) for text in TEXTS]


class Client:
    """A client with persistent connections, each with one request at a time.

    Args:
        port: the server's port.

    Attributes:
        free: the connections without a request.
        failed: the number of requests whose connection was closed without an answer.
    """

    def __init__(self, port: int) -> None:
        self._port, self._poll = port, select.epoll()
        self._begins: dict[int, float] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._received: dict[int, bytes] = {}
        self.free: list[int] = []
        self.failed = 0

    @property
    def waiting(self) -> int:
        """The number of connections with a request."""
        return len(self._begins)

    def send(self, number: int) -> None:
        """Send a request on a free connection, or on a new one."""
        if not self.free:
            made = socket.create_connection(("127.0.0.1", self._port), 10)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[made.fileno()] = made
            self._poll.register(made.fileno(), select.EPOLLIN)
            self.free.append(made.fileno())
        place = self.free.pop()
        self._begins[place], self._received[place] = time.perf_counter(), b""
        try:
            self._sockets[place].sendall(REQUESTS[number % len(REQUESTS)])
        except OSError:
            self._close(place)

    def receive(self, seconds: float) -> list[tuple[int, float]]:
        """Wait at most `seconds` for answers; return the status and the time of each."""
        results = []
        for place, _ in self._poll.poll(seconds):
            try:
                chunk = self._sockets[place].recv(2**16)
            except OSError:
                chunk = b""
            if not chunk:
                self._close(place)
                continue
            content = self._received[place] = self._received[place] + chunk
            head, separator, body = content.partition(b"\r\n\r\n")
            head = head.lower()
            if not separator or len(body) < int(head.partition(b"content-length:")[2].split(b"\r", 1)[0]):
                continue
            results.append((int(head[9:12]), time.perf_counter() - self._begins.pop(place)))
            if b"connection: close" in head:
                self._close(place)
            else:
                self.free.append(place)
        return results

    def close(self) -> None:
        """Close all connections."""
        for place in [*self._sockets]:
            self._close(place)

    def _close(self, place: int) -> None:
        self._poll.unregister(place)
        self._sockets.pop(place).close()
        self.failed += self._begins.pop(place, None) is not None
        if place in self.free:
            self.free.remove(place)


def closed_loop(server: Server, clients: int, seconds: float) -> runner.Figures:
    """Send requests from a number of clients, each after its previous answer; return their number and times."""
    client, times, sent = Client(server.port), [], clients
    begin, used = time.perf_counter(), server.processor_seconds()
    for number in range(clients):
        client.send(number)
    while client.waiting:
        for status, took in client.receive(1):
            assert status == 200, status
            times.append(took)
            if time.perf_counter() - begin < seconds:
                client.send(sent)
                sent += 1
    elapsed = time.perf_counter() - begin
    client.close()
    return {
        "steps": len(times),
        "seconds": elapsed,
        "processor_seconds": server.processor_seconds() - used,
        **percentiles(times),
    }


def open_loop(server: Server, rate: float, seconds: float) -> dict:
    """Send requests at a fixed rate; return the statuses, times and resident memory."""
    client, statuses, times, memory = Client(server.port), collections.Counter(), [], []
    begin, count = time.perf_counter(), 0
    while (now := time.perf_counter() - begin) < seconds or client.waiting:
        while count < min(now, seconds) * rate:
            client.send(count)
            count += 1
        if now < seconds:
            memory.append(server.resident_megabytes())
        for status, took in client.receive(0.005):
            statuses[status] += 1
            times.append(took)
    thirds = [float(np.max(part)) for part in np.array_split(memory, 3)]
    client.close()
    return {
        "statuses": dict(statuses),
        "closed without an answer": client.failed,
        **percentiles(times),
        "resident MB by thirds": [round(each, 1) for each in thirds],
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return percentiles and the maximum in milliseconds."""
    names = ("ms p50", "ms p95", "ms p99", "longest ms")
    return {
        name: round(1e3 * float(value), 1)
        for name, value in zip(names, np.percentile(seconds, [50, 95, 99, 100]), strict=True)
    }


def prepare(case: dict[str, Any], context: runner.Context, name: str) -> runner.Run:
    """Start a server, which ends with this process, and return a closed loop of requests."""
    if name == LIT and not importlib.util.find_spec("litserve"):
        raise ImportError("litserve is not installed")
    kind, arguments = CONTENDERS[name]
    server = Server(kind, str(context.options.export), arguments)
    server.__enter__()
    atexit.register(server.__exit__)
    seconds = 0.5 if context.options.quick else context.options.seconds
    clients = case["clients"]
    return runner.first_step(
        lambda: closed_loop(server, clients, 0.2), lambda: closed_loop(server, clients, seconds)
    )


def prepare_model(case: dict[str, Any], context: runner.Context) -> runner.Run:
    """Load the model without a server."""
    pipeline = serving.load(str(context.options.export))

    def run() -> runner.Figures:
        times = [measuring.seconds(lambda text=text: pipeline([text])) for text in 50 * TEXTS]
        return {"steps": len(times), **percentiles(times)}

    return run


def load_test(folder: str, rate: float, seconds: float) -> dict:
    """Run the load test; return its figures, and whether they are within the limits."""
    with Server(OURS, folder, ["--timeout", str(LIMIT)]) as server:
        closed_loop(server, 64, min(2.0, seconds))
        service = closed_loop(server, 1, min(2.0, seconds))["longest ms"] / 1e3  # without a queue
        results = open_loop(server, rate, seconds)
    _, second, third = results["resident MB by thirds"]
    kept = {
        "in time": results["longest ms"] <= 1e3 * (LIMIT + service),
        "memory": third <= 1.05 * second,
        "connections": not results["closed without an answer"],
    }
    return {"requests per second": rate, **results, "longest allowed s": LIMIT + service, "limits kept": kept}


def mixed_lengths(folder: str, batch_size: int, rounds: int = 15) -> dict:
    """Return how much rows that join a running batch after each token could gain.

    The server computes a batch by the loop graph, which rows leave when half of them have ended. Where rows join,
    the batch is always full, but a token needs a call of the graph of a single step, and a new row its encoder, its
    first step, and a place in the cache. Compared are the tokens per second of the loop, of rows with lengths uniform
    from 1 to `max_new_tokens`; of a batch that is always full, without the cost of rows that join, the most that can be
    gained; and with this cost, of a `JoiningBatch`. Rounds alternate; the figures are medians.
    """
    pipeline = serving.load(folder)
    graphs, random = pipeline.graphs, np.random.default_rng(0)
    rows = pipeline.encode([TEXTS[row % len(TEXTS)] for row in range(batch_size)])
    ids, mask = generation.padded(rows, padding_value(graphs))
    lengths = random.integers(1, graphs.max_new_tokens + 1, (rounds, batch_size))

    def loop(limits: np.ndarray) -> float:
        options = {"max_new_tokens": limits, "min_new_tokens": limits}
        return limits.sum() / measuring.seconds(lambda: graphs.generate(ids, attention_mask=mask, **options))

    def steps() -> float:
        def run() -> None:
            next_logits, tokens = graphs.next_logits(ids, mask), None
            for _ in range(graphs.max_new_tokens):
                tokens = next_logits(tokens).argmax(axis=-1)[:, None]

        return batch_size * graphs.max_new_tokens / measuring.seconds(run)

    def joining(limits: np.ndarray) -> float:
        batch = JoiningBatch(graphs, ids, mask, limits)
        seconds = measuring.seconds(lambda: [batch.step() for _ in range(2 * graphs.max_new_tokens)])
        return 2 * graphs.max_new_tokens * batch_size / seconds

    loop(lengths[0])
    steps()
    joining(lengths[0])
    pairs = [(loop(limits), steps(), joining(limits)) for limits in lengths]
    of_loop, of_steps, of_joining = (float(np.median(column)) for column in zip(*pairs, strict=True))
    return {
        "rows": batch_size,
        "max_new_tokens": graphs.max_new_tokens,
        "tokens per second of the loop": of_loop,
        "tokens per second of full steps, at most": of_steps,
        "tokens per second of rows that join": of_joining,
        "ratio, at most": float(np.median([full / whole for whole, full, _ in pairs])),
        "ratio of rows that join": float(np.median([joined / whole for whole, _, joined in pairs])),
    }


class JoiningBatch:
    """A batch in which a row takes the place of each that ends, computed by the graphs of single steps.

    It measures time only: the graphs have no masks for rows of different ages, so that the tokens are wrong.

    Args:
        graphs: the graphs of an encoder–decoder.
        ids: the sources of the rows, of which each is used again for the row that takes its place.
        mask: their masks.
        lengths: the number of tokens of each row.
    """

    def __init__(self, graphs: Any, ids: np.ndarray, mask: np.ndarray, lengths: np.ndarray) -> None:
        self.graphs, self.ids, self.mask, self.lengths = graphs, ids, mask, lengths
        self.ages = np.zeros(len(ids), np.int64)
        self.tokens, self.memory, self.cache = self._started(np.arange(len(ids)))

    def step(self) -> None:
        """Decode a token of every row, and replace the rows that have ended."""
        inputs = {"input_ids": self.tokens, **self.memory, **self.cache}
        results = self._run(DECODER, inputs)
        self.tokens = results.pop("logits")[:, -1].argmax(axis=-1)[:, None]
        self.ages += 1
        self.cache = {self._as_past(name): values for name, values in results.items()}
        (ended,) = np.nonzero(self.ages >= self.lengths)
        if ended.size:
            tokens, memory, cache = self._started(ended)
            self.tokens[ended], self.ages[ended] = tokens, 0
            for name, values in memory.items():
                self.memory[name][ended] = values
            for name, values in cache.items():
                kept = slice(-values.shape[2], None)
                self.cache[name][ended, :, kept] = values
        width = int(self.ages.max()) + 1  # of the cache
        for name in self.cache:
            if ".decoder." in name:
                self.cache[name] = self.cache[name][:, :, -width:]

    def _started(self, rows: np.ndarray) -> tuple[np.ndarray, dict[str, Any], dict[str, Any]]:
        """Return the first tokens of rows, their encoder's outputs, and their cache."""
        mask = self.mask[rows]
        source = {"input_ids": self.ids[rows], "attention_mask": mask}
        hidden = self._run(ENCODER, source)["last_hidden_state"]
        memory = {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}
        empty = self.graphs._empty(DECODER, len(rows))
        start = np.full((len(rows), 1), self.graphs.start_id)
        results = self._run(DECODER, {"input_ids": start, **memory, **empty})
        tokens = results.pop("logits")[:, -1].argmax(axis=-1)[:, None]
        return tokens, memory, {self._as_past(name): values for name, values in results.items()}

    def _run(self, name: str, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
        session = self.graphs.session(name)
        names = [output.name for output in session.get_outputs()]
        arrays = {key: value.numpy() if hasattr(value, "numpy") else value for key, value in inputs.items()}
        return dict(zip(names, session.run(names, arrays), strict=True))

    @staticmethod
    def _as_past(name: str) -> str:
        return name.replace("present.", "past_key_values.")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the export and the length of the load test."""
    parser.add_argument(
        "--export", type=pathlib.Path, required=True, help="of a translator, as the quickstart's"
    )
    parser.add_argument("--load-seconds", type=float, default=60.0, help="(default: %(default)s)")


BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "requests",
    {"1 client": {"clients": 1}, "64 clients": {"clients": 64}},
    {
        **{name: functools.partial(prepare, name=name) for name in CONTENDERS},
        MODEL: prepare_model,
    },
    applies=lambda case, contender: contender != MODEL or case["clients"] == 1,
    threads=(1,),
    rounds=1,
    seconds=10.0,
    tries=1,
    fresh=True,
    columns={"ms p50": ".1f", "ms p95": ".1f", "ms p99": ".1f", "longest ms": ".1f"},
    add_options=add_options,
)


def main() -> int:
    """Measure all contenders, and then the load test and rows of mixed lengths."""
    result = BENCHMARK.main()
    if result is None or len(result["cases"]) < 2:
        return 0
    settings = result["settings"]
    rate = result["cases"]["64 clients"]["contenders"][OURS]["per_second"]
    seconds = 6.0 if settings["quick"] else settings["load_seconds"]
    result["load"] = load_test(str(settings["export"]), 2 * rate, seconds)
    result["mixed lengths"] = {
        f"{rows} rows": mixed_lengths(str(settings["export"]), rows) for rows in (32, 8)
    }
    print(json.dumps({name: result[name] for name in ("load", "mixed lengths")}, indent=2))
    measuring.write_result(settings["name"], result, settings["output"])
    return 0 if all(result["load"]["limits kept"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
