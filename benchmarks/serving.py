"""Measure the server beside a plain one without batching, and under twice the load that it sustains.

python benchmarks/serving.py runs/quickstart/export --seconds 10 --load-seconds 60

It needs `keras-transformer-serving[cpu,server]`.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import numpy as np

import keras_transformer_serving as serving

TEXTS = ["¿Dónde está la estación?", "El perro ladra.", "Nosotros compramos pan en la tienda.", "Hola"]
PATH = "/v1/models/model:predict"
OURS, PLAIN = "keras-transformer-serve", "plain Starlette"


def serve_plain(folder: str, port: int) -> None:
    """Serve without batching: each request is computed by itself."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    pipeline = serving.load(folder)

    async def predict(request: Request) -> JSONResponse:
        texts = (await request.json())["instances"]
        return JSONResponse({"predictions": await asyncio.to_thread(pipeline, texts)})

    uvicorn.run(Starlette(routes=[Route(PATH, predict, methods=["POST"])]), port=port, log_level="error")


@contextlib.contextmanager
def running(name: str, folder: str):
    """Run a server; yields its process and port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = {
        OURS: "from keras_transformer_serving.command_line import main; main(sys.argv[1:])",
        PLAIN: "import serving; serving.serve_plain(sys.argv[1], int(sys.argv[2]))",
    }[name]
    arguments = [f"model={folder}", "--port", str(port)] if name == OURS else [folder, str(port)]
    search = os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; {code}", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": search},
    )
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                if asyncio.run(one_request(port)) == 200:
                    break
            time.sleep(0.1)
        yield process, port
    finally:
        process.terminate()
        process.wait(60)


async def one_request(port: int) -> int:
    """Return the status of a request."""
    return (await Client(port).ask(TEXTS[0]))[0]


class Client:
    """A client with one connection that is kept."""

    def __init__(self, port: int) -> None:
        self._port, self._streams = port, None

    async def ask(self, text: str) -> tuple[int, float]:
        """Return the status and the seconds of a request."""
        begin = time.perf_counter()
        self._streams = self._streams or await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        body = json.dumps({"instances": [text]}).encode()
        writer.write(f"POST {PATH} HTTP/1.1\r\nHost: it\r\nContent-Length: {len(body)}\r\n".encode())
        writer.write(b"Content-Type: application/json\r\n\r\n" + body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        if b"connection: close" in head.lower():
            writer.close()
            self._streams = None
        return int(head.split()[1]), time.perf_counter() - begin


async def closed_loop(port: int, clients: int, seconds: float) -> tuple[float, np.ndarray]:
    """Return the requests per second of clients that each wait for an answer, and the seconds of each."""
    end, times = time.perf_counter() + seconds, []

    async def ask(number: int) -> None:
        client, count = Client(port), number
        while time.perf_counter() < end:
            status, took = await client.ask(TEXTS[count % len(TEXTS)])
            assert status == 200, status
            times.append(took)
            count += 1

    await asyncio.gather(*map(ask, range(clients)))
    return len(times) / seconds, np.array(times)


async def open_loop(process: subprocess.Popen, port: int, rate: float, seconds: float) -> dict:
    """Send requests at a rate from 64 connections and more; return the statuses, times and resident memory."""
    free, statuses, times, memory = [Client(port) for _ in range(64)], collections.Counter(), [], []
    tasks, begin = set(), time.perf_counter()

    async def ask(text: str) -> None:
        client = free.pop() if free else Client(port)
        try:
            status, took = await client.ask(text)
        except (OSError, EOFError) as error:
            statuses[type(error).__name__] += 1
            return
        statuses[status] += 1
        times.append(took)
        free.append(client)

    count = 0
    while (now := time.perf_counter() - begin) < seconds:
        while count < now * rate:
            task = asyncio.create_task(ask(TEXTS[count % len(TEXTS)]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            count += 1
        pages = pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1]
        memory.append(int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20)
        await asyncio.sleep(0.005)
    await asyncio.gather(*tasks)
    thirds = [float(np.max(part)) for part in np.array_split(memory, 3)]
    return {
        "statuses": dict(statuses),
        "p99 ms": round(1e3 * float(np.percentile(times, 99)), 1),
        "longest ms": round(1e3 * max(times), 1),
        "resident MB by thirds": [round(each, 1) for each in thirds],
    }


def percentiles(seconds: np.ndarray) -> str:
    """Return the percentiles 50, 95 and 99 in milliseconds."""
    return " / ".join(f"{1e3 * value:.1f}" for value in np.percentile(seconds, [50, 95, 99]))


def main() -> None:
    """Measure all contenders, and then the load test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="an export of a translator, as the quickstart's")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--load-seconds", type=float, default=60.0)
    options = parser.parse_args()
    pipeline = serving.load(options.folder)
    own = []
    for number in range(200):
        begin = time.perf_counter()
        pipeline([TEXTS[number % len(TEXTS)]])
        own.append(time.perf_counter() - begin)
    print(f"the model by itself, ms p50 / p95 / p99: {percentiles(np.array(own[20:]))}")
    rates = {}
    for name in (OURS, PLAIN):
        with running(name, options.folder) as (_, port):
            for clients in (1, 64):
                rate, times = asyncio.run(closed_loop(port, clients, options.seconds))
                rates[name, clients] = rate
                print(
                    f"{name}, {clients} clients: {rate:.0f} requests/s, ms {percentiles(times)}", flush=True
                )
    print(f"batching at 64 clients: {rates[OURS, 64] / rates[PLAIN, 64]:.1f} times the plain server's rate")
    with running(OURS, options.folder) as (process, port):
        asyncio.run(closed_loop(port, 64, 2.0))
        print(asyncio.run(open_loop(process, port, 2 * rates[OURS, 64], options.load_seconds)))


if __name__ == "__main__":
    main()
