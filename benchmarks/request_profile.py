"""Where the time of a request for one embedding goes: the server of this package with all-MiniLM-L6-v2 as published.

Processor time of the server and its client, which are in one process, with one thread for the model. Requests that do
less and less are timed in turns, each by its shortest round: an embedding, one number of it, its tokens, nothing but an
answer. The difference of two is the time of what one lacks. Beside the serving library, which computes text after text,
the model has colder caches in the server: that is part of the time of its queue and threads.

    KERAS_TRANSFORMER_DATA=… .venv-bench/bin/python benchmarks/request_profile.py     # --help lists the options
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import measuring
import numpy as np
from local_server import LocalServer

sys.path.append(str(pathlib.Path(__file__).parent / "parity"))

LIBRARY, HTTP = "the model and its tokenizer", "HTTP, routes, metrics"
READING, QUEUE = "reading the request", "queue, threads, colder caches"
WRITING, CLIENT = "writing the vector as JSON", "reading it in the client"
PARTS = (LIBRARY, HTTP, READING, QUEUE, WRITING, CLIENT)
PRECISIONS = ("float32", "int8")
TEXTS = 64


def main() -> None:
    """Measure, print the table, write JSON."""
    parser = measuring.parser(__doc__, "request_profile")
    parser.add_argument("--rounds", type=int, default=15, help="rounds (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a round, to try the program; results in runs")
    parser.add_argument("--worker", nargs=2, metavar=("FOLDER", "PRECISION"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
        options.output = pathlib.Path("runs") if options.output == measuring.RESULTS else options.output
    if options.worker:
        measuring.serve(answers(*options.worker))
        return
    with tempfile.TemporaryDirectory() as folder:
        worker = measuring.Worker(__file__, "export", ["--worker", folder, ""])
        worker.ask({}, 900)
        worker.close()
        cases = {precision: profile(folder, precision, options.rounds) for precision in PRECISIONS}
    result = {"machine": measuring.machine(), "rounds": options.rounds, "cases": cases}
    print(measuring.table(rows(cases)))
    print(f"\nWritten to {measuring.write_result(options.name, result, options.output)}")


def rows(cases: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the rows of the table of milliseconds: a precision."""
    return [
        {"ms of a request": case, **{name: f"{parts[name]:.2f}" for name in (*PARTS, "together")}}
        for case, parts in cases.items()
    ]


def profile(folder: str, precision: str, rounds: int) -> dict[str, float]:
    """Return the milliseconds of each part of a request."""
    worker = measuring.Worker(__file__, precision, ["--worker", folder, precision])
    try:
        worker.ask({}, 900)
        measured = [worker.ask({}, 900) for _ in range(rounds)]
    finally:
        worker.close()
    times = {name: min(each[name] for each in measured) for name in NAMES}
    parts = {
        LIBRARY: times["library"],
        HTTP: times["health"],
        READING: times["tokens"] - times["health"] - times["tokenizer"],
        QUEUE: times["number"] - times["tokens"] - (times["library"] - times["tokenizer"]),
        WRITING: times["vector"] - times["number"],
        CLIENT: times["client"],
    }
    return {name: round(value, 4) for name, value in {**parts, "together": sum(parts.values())}.items()}


NAMES = ("library", "tokenizer", "health", "tokens", "number", "vector", "client")


def answers(folder: str, precision: str) -> Callable[[], dict[str, Any]]:
    """Return the requests to a worker: write the export, or return the milliseconds of each kind of request."""
    calls: dict[str, Callable[[str], Any]] = {}
    texts: list[str] = []

    def answer() -> dict[str, Any]:
        if not precision:
            export(pathlib.Path(folder))
            return {}
        if not calls:
            calls.update(requests(pathlib.Path(folder), precision))
            texts.extend(some_texts())
        return {name: milliseconds(call, texts) for name, call in calls.items()}

    return answer


def export(folder: pathlib.Path) -> None:
    """Write the export."""
    import published_checkpoints

    import keras_transformer as kt

    pipeline = kt.pipelines.from_hugging_face(published_checkpoints.minilm())
    kt.export.bundle(pipeline, folder / "export", targets=["onnx"], precisions=PRECISIONS)


def some_texts() -> list[str]:
    """Return the texts of `embeddings.py`."""
    import embeddings

    return [text for call in embeddings.texts(1)[:TEXTS] for text in call]


def requests(folder: pathlib.Path, precision: str) -> dict[str, Callable[[str], Any]]:
    """Return functions of a text, by name."""
    import keras_transformer_serving as serving

    library = serving.load(folder / "export", precision=precision, threads=1)
    server = LocalServer.of_export(folder / "export", precision=precision, threads=1)
    body = server.post("/embed", {"inputs": "a text"})
    return {
        "library": lambda text: library([text]),
        "tokenizer": library.preprocess,
        "health": lambda _: server.request("GET", "/health"),
        "tokens": lambda text: server.post("/tokenize", {"inputs": text}),
        "number": lambda text: server.post("/embed", {"inputs": text, "dimensions": 1}),
        "vector": lambda text: server.post("/embed", {"inputs": text}),
        "client": lambda _: np.array(json.loads(body)),
    }


def milliseconds(call: Callable[[str], Any], texts: list[str]) -> float:
    """Return the milliseconds of processor time of a call."""
    begin = time.process_time()
    for text in texts:
        call(text)
    return 1000 * (time.process_time() - begin) / len(texts)


if __name__ == "__main__":
    main()
