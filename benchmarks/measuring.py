"""Measure contenders in rounds, each in a process of its own, and record results with their environment.

TensorFlow's and PyTorch's thread pools disturb each other in one process, so each contender builds once in a
worker, which then waits: only one works at a time.
"""

import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import resource
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# The load of other processes, in cores, above which a measurement is repeated.
QUIET = 0.1
RESULTS = pathlib.Path(__file__).parent / "results"
VERSIONED = (
    "keras",
    "tensorflow",
    "torch",
    "transformers",
    "ctranslate2",
    "keras-hub",
    "onnxruntime",
    "jax",
    "numpy",
)
# Of the flags of a processor, those that decide how fast it multiplies matrices.
VECTOR_EXTENSIONS = (
    *("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni"),
    *("amx_tile", "amx_int8", "amx_bf16", "asimd", "sve", "sve2", "i8mm", "bf16"),
)


class WorkerError(RuntimeError):
    """The reason why a contender cannot be measured."""


class Worker:
    """A process that runs `script --worker NAME` and answers each JSON line with one JSON line."""

    def __init__(self, script: str, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, script, "--worker", name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, request: dict[str, Any] | None, timeout: float) -> dict[str, Any]:
        """Return the answer to `request`; for None, the message that the worker is ready."""
        if request is not None:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            raise WorkerError(f"no answer within {timeout:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"ended with status {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def serve(build: Callable[[], Callable[..., Any]]) -> None:
    """Run as a worker: build a function, then answer each request on standard input with its result."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep the output of libraries out of the answers

    def answer(compute: Callable[[], dict[str, Any]]) -> None:
        try:
            message = compute()
        except Exception as error:
            message = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"}
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    built: list[Callable[..., Any]] = []

    def ready() -> dict[str, Any]:
        built.append(build())
        return {"ready": True}

    def measured(request: dict[str, Any]) -> dict[str, Any]:
        start, busy, own = time.perf_counter(), _busy_seconds(), time.process_time()
        result = built[0](**request)
        others = _busy_seconds() - busy - (time.process_time() - own)
        return {**result, "others": max(0.0, others / (time.perf_counter() - start))}

    answer(ready)
    for line in sys.stdin:
        answer(lambda line=line: measured(json.loads(line)))


def _busy_seconds() -> float:
    """Return the busy seconds of all cores together; 0 if the system does not report them."""
    try:
        fields = pathlib.Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def round_robin(
    workers: Iterable[Worker], rounds: int, request: dict[str, Any], timeout: float, tries: int = 3
) -> dict[str, list[dict[str, Any]]]:
    """Return every worker's answers, in rounds over all workers, so that noise affects all equally.

    Each answer's "others" says how many cores other processes kept busy meanwhile. Where that is more than
    `QUIET` the measurement is repeated, `tries` times at most, and the quietest kept.
    """
    workers = list(workers)
    answers: dict[str, list[dict[str, Any]]] = {worker.name: [] for worker in workers}
    for number in range(rounds):
        for worker in workers:
            tried = [worker.ask(request, timeout)]
            while tried[-1]["others"] > QUIET and len(tried) < tries:
                tried.append(worker.ask(request, timeout))
            answers[worker.name].append(min(tried, key=lambda answer: answer["others"]))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return answers


def seconds(function: Callable[[], Any]) -> float:
    """Measure the time of a call in seconds."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def mean_and_deviation(values: Sequence[float]) -> dict[str, float]:
    """Return the mean and standard deviation over seeds (0 for a single one)."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.mean(values), "standard_deviation": deviation}


def peak_memory_mib() -> float:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def machine() -> dict[str, Any]:
    """Return the environment of a measurement: hardware, versions and settings."""
    description = ""
    with contextlib.suppress(OSError):
        description = pathlib.Path("/proc/cpuinfo").read_text()
    versions = {"python": platform.python_version()}
    for package in VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        **processor(description),
        "cores": os.cpu_count(),
        "versions": versions,
        "command": " ".join(["python", *sys.argv]),
    }


def processor(description: str) -> dict[str, Any]:
    """Return the name, family, model and vector extensions of a processor from the text of /proc/cpuinfo."""
    first = description.strip().split("\n\n")[0]
    fields = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())
    }
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return {
        "device": f"CPU, {fields.get('model name', platform.machine())}",
        "cpu_family_and_model": [fields.get("cpu family"), fields.get("model")],
        "vector_extensions": [name for name in VECTOR_EXTENSIONS if name in flags],
    }


def table(rows: Sequence[dict[str, str]]) -> str:
    """Return rows as a Markdown table, with columns of numbers aligned to the right."""
    names = list(rows[0])
    right = [all(row[name][:1] in "0123456789*–-" for row in rows) for name in names]
    widths = [max(3, len(name), *(len(row[name]) for row in rows)) for name in names]

    def line(cells: Iterable[str]) -> str:
        padded = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, right, strict=True)
        )
        return "| " + " | ".join(padded) + " |"

    rule = "|".join(
        "-" * (width + 1) + (":" if number else "-") for width, number in zip(widths, right, strict=True)
    )
    return "\n".join([line(names), f"|{rule}|", *(line(row.values()) for row in rows)])


def write_result(name: str, result: dict[str, Any], folder: pathlib.Path = RESULTS) -> pathlib.Path:
    """Write `result` as JSON, and print its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    return path
