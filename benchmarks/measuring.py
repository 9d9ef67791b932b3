"""Worker processes, statistics, and the record of results with their environment.

TensorFlow's and PyTorch's thread pools disturb each other in one process, so each contender is prepared once in a
worker process. Only one worker runs at a time.
"""

import argparse
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

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
# The processor flags that determine the speed of matrix multiplications.
VECTOR_EXTENSIONS = (
    *("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni"),
    *("amx_tile", "amx_int8", "amx_bf16", "asimd", "sve", "sve2", "i8mm", "bf16"),
)


class WorkerError(RuntimeError):
    """The reason why a contender cannot be measured."""


class Worker:
    """A process that runs a script and answers each JSON line with one JSON line.

    Args:
        script: the path of the script.
        name: the name of the worker.
        arguments: the arguments of the script, with which it must call `serve`.
        environment: environment variables in addition to the variables of this process.
    """

    def __init__(
        self, script: str, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Return the answer to `request`."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, and reading raises the error
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
        self._process.stdin.close()  # so that it can end its child processes
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(answer: Callable[..., dict[str, Any]]) -> None:
    """Run as a worker: answer each request on standard input with the result of a call.

    The answer also has "others", the mean number of cores that other processes used during the call.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep the output of libraries out of the answers
    for line in sys.stdin:
        start, busy, own = time.perf_counter(), _busy_seconds(), time.process_time()
        try:
            message = answer(**json.loads(line))
            others = _busy_seconds() - busy - (time.process_time() - own)
            message = {**message, "others": max(0.0, others / (time.perf_counter() - start))}
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0]
            message = {"error": f"{type(error).__name__}: {first_line[:200]}"}
        answers.write(json.dumps(message) + "\n")
        answers.flush()


def _busy_seconds() -> float:
    """Return the total busy seconds of all cores, or 0 if the system does not report them."""
    try:
        fields = pathlib.Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def round_robin(
    workers: Mapping[Any, Worker],
    rounds: int,
    request: dict[str, Any],
    timeout: float,
    tries: int = 3,
    title: str = "",
) -> dict[Any, list[dict[str, Any]]]:
    """Return every worker's answers, in rounds of alternating order, so that noise affects all equally.

    A measurement during which other processes used more than `QUIET` cores is repeated, at most `tries` times, and the
    one with the least use is kept.
    """
    answers: dict[Any, list[dict[str, Any]]] = {key: [] for key in workers}
    for number in range(rounds):
        for key, worker in list(workers.items())[:: -1 if number % 2 else 1]:
            tried = [worker.ask(request, timeout)]
            while tried[-1]["others"] > QUIET and len(tried) < tries:
                tried.append(worker.ask(request, timeout))
            answers[key].append(min(tried, key=lambda answer: answer["others"]))
        progress(f"{title}: round {number + 1} of {rounds}")
    return answers


def progress(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr, flush=True)


def parser(description: str, name: str) -> argparse.ArgumentParser:
    """Return an argument parser with the options for the file of results."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--output", type=pathlib.Path, default=RESULTS, help="folder (default: benchmarks/results)"
    )
    made.add_argument("--name", default=name, help="of the results (default: %(default)s)")
    return made


def seconds(function: Callable[[], Any]) -> float:
    """Measure the time of a call in seconds."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def ratio(faster: Sequence[float], slower: Sequence[float], samples: int = 2000) -> dict[str, Any]:
    """Return the median over rounds of the ratio of two rates, with a bootstrap interval of 95 %."""
    quotients = np.divide(faster, slower)
    drawn = np.random.default_rng(0).choice(quotients, (samples, len(quotients)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return {"median": float(np.median(quotients)), "interval": [float(low), float(high)]}


def peak_memory_mib() -> float:
    """Return the peak resident memory of this process, or the peak memory of the GPU if JAX has one."""
    if os.environ.get("KERAS_BACKEND") == "jax":
        import jax

        if statistics_ := jax.local_devices()[0].memory_stats():
            return statistics_["peak_bytes_in_use"] / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def machine(gpu: bool = False) -> dict[str, Any]:
    """Return the environment of a measurement: hardware, versions, settings, date and commit."""
    description = ""
    with contextlib.suppress(OSError):
        description = pathlib.Path("/proc/cpuinfo").read_text()
    versions = {"python": platform.python_version()}
    for package in VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        **processor(description),
        **({"device": f"GPU, {_gpu()}"} if gpu else {}),
        "cores": os.cpu_count(),
        "versions": versions,
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Return the commit of the checkout; None without Git."""
    command = ["git", "-C", str(RESULTS.parent), "rev-parse", "--short=8", "HEAD"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return None


def _gpu() -> str:
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()


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


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table, with columns of numbers aligned to the right and floats of three digits.

    Columns are in the order in which rows have them; a row has a dash where it has no value.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    values = [[row.get(name, "–") for name in names] for row in rows]
    texts = [[f"{each:.3g}" if isinstance(each, float) else str(each) for each in row] for row in values]
    columns = list(zip(*texts, strict=True))
    right = [all(cell[:1] in "0123456789*–-" for cell in column) for column in columns]
    widths = [max(3, len(name), *map(len, column)) for name, column in zip(names, columns, strict=True)]

    def line(cells: Iterable[str]) -> str:
        padded = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, right, strict=True)
        )
        return "| " + " | ".join(padded) + " |"

    rule = "|".join(
        "-" * (width + 1) + (":" if number else "-") for width, number in zip(widths, right, strict=True)
    )
    return "\n".join([line(names), f"|{rule}|", *map(line, texts)])


def write_result(name: str, result: dict[str, Any], folder: pathlib.Path = RESULTS) -> pathlib.Path:
    """Write `result` as JSON, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False, default=str) + "\n")
    return path
