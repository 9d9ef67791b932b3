"""Run a benchmark: contenders take turns, each in a separate process, and all results have one form.

A new benchmark is a file in this folder that defines contenders and cases:

    import runner

    def numpy(case, context):  # prepares in a separate process, and returns the function to time
        import numpy as np
        matrix = np.ones((case["size"], case["size"]), "float32")
        return lambda: matrix @ matrix

    BENCHMARK = runner.Benchmark(
        __file__, __doc__, "multiplications", {"small": {"size": 64}, "large": {"size": 1024}},
        {"NumPy": numpy, "PyTorch": torch}, threads=(1, 2),
    )  # fmt: skip
    if __name__ == "__main__":
        BENCHMARK.main()  # --help lists the options; --quick tries it

A contender runs with each number of threads, and the fastest counts. Rounds go over all contenders in alternating
order. `results/NAME.json` has the machine, the versions, the command, and for each case and contender the medians over
rounds of wall and processor seconds, of units per second and of further figures, all rounds, and the speed of the first
contender relative to it, with a bootstrap interval of 95 %.
"""

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import measuring

Figures = dict[str, Any]
# A call may return figures: "steps" and "units" are the amount of work; "seconds" and "processor_seconds" replace the
# measured times.
Run = Callable[[], Figures | Any]


@dataclasses.dataclass(frozen=True)
class Context:
    """Threads, files and options for the preparation of a contender.

    Attributes:
        threads: the number of threads of its library.
        folder: the folder that `setup` of the benchmark wrote to.
        options: the options of the command line.
    """

    threads: int
    folder: pathlib.Path
    options: argparse.Namespace

    @property
    def workers(self) -> int:
        """Return the number of batches that fill all cores if each is computed by this number of threads."""
        return max(self.options.threads) // self.threads


Prepare = Callable[[Any, Context], Run]


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Contenders, and the cases in which they are compared.

    Args:
        file: `__file__` of the benchmark; its stem names the results.
        description: the description in `--help`.
        unit: the unit of work that is counted per second.
        cases: the cases by name: mappings or dataclasses, which are recorded.
        contenders: functions from a case and a context to the function that is timed. The first is the reference.
        limits: functions like contenders, for lower limits of their times; they are measured in the same rounds.
        applies: whether a contender takes part in a case.
        units: the number of units of a step; a call may return "units" instead.
        threads: the numbers of threads with which each contender runs.
        rounds: the number of rounds over all contenders.
        seconds: the minimum time of the calls in a round.
        tries: the maximum number of tries of a measurement that other processes disturb.
        gpu: whether the contenders run on a GPU.
        fresh: whether to start new processes for each case, for example to measure memory.
        setup: writes files for the contenders into a folder, in a separate process.
        environment: environment variables of a contender's process.
        derive: adds figures to the measurements of a case.
        columns: further figures of the table, with their formats.
        add_options: adds options to the command line.
    """

    file: str
    description: str
    unit: str
    cases: Mapping[str, Any]
    contenders: Mapping[str, Prepare]
    limits: Mapping[str, Prepare] = dataclasses.field(default_factory=dict)
    applies: Callable[[Any, str], bool] = lambda case, contender: True
    units: Callable[[Any], float] = lambda case: 1
    threads: Sequence[int] = (os.cpu_count() or 1,)
    rounds: int = 5
    seconds: float = 0.3
    tries: int = 3
    gpu: bool = False
    fresh: bool = False
    setup: Callable[[pathlib.Path, argparse.Namespace], None] | None = None
    environment: Callable[[str, argparse.Namespace], Mapping[str, str]] = lambda contender, options: {}
    derive: Callable[[Any, dict[str, Any]], None] = lambda case, measured: None
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None

    def main(self, arguments: Sequence[str] | None = None) -> dict[str, Any] | None:
        """Measure, print tables, and write and return the results; in a worker, answer requests and return None."""
        arguments = sys.argv[1:] if arguments is None else arguments
        options = self._options(arguments)
        if options.worker:
            self._serve(options)
        elif options.folder:
            self.setup(options.folder, options)
        else:
            return self._measure_all(options, arguments)
        return None

    def _options(self, arguments: Sequence[str]) -> argparse.Namespace:
        parser = measuring.parser(self.description, pathlib.Path(self.file).stem)
        add = parser.add_argument
        add("--rounds", type=int, default=self.rounds, help="over all contenders (default: %(default)s)")
        add("--seconds", type=float, default=self.seconds, help="of a round, at least (default: %(default)s)")
        add("--tries", type=int, default=self.tries, help="while others disturb (default: %(default)s)")
        add(
            "--threads", type=int, nargs="+", default=list(self.threads), help="to try (default: %(default)s)"
        )
        add("--only", nargs="+", default=[""], help="only contenders whose names contain one of these")
        add("--cases", nargs="+", default=[""], help="only cases whose names contain one of these")
        add("--timeout", type=float, default=900, help="seconds for a first call (default: %(default)s)")
        add("--quick", action="store_true", help="two short rounds, to try the program; results in runs")
        add("--worker", help=argparse.SUPPRESS)
        add("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
        self.add_options(parser)
        options = parser.parse_args(arguments)
        if options.quick:
            options.rounds, options.seconds, options.tries = 2, 0.0, 1
            options.output = pathlib.Path("runs") if options.output == measuring.RESULTS else options.output
        return options

    def _serve(self, options: argparse.Namespace) -> None:
        name, _, threads = options.worker.rpartition("/")
        prepare = {**self.limits, **self.contenders}[name]
        context, current = Context(int(threads), options.folder, options), []

        def answer(case: str | None = None, seconds: float = 0.0) -> Figures:
            if case is None:
                return timed_calls(*current, seconds)
            current.clear()
            run = prepare(self.cases[case], context)
            before = measuring.peak_memory_mib()
            first = timed(run)
            current[:] = [run, self.units(self.cases[case])]
            run()
            return {
                "first_seconds": first["seconds"],
                "first_processor_seconds": first["processor_seconds"],
                "memory_before_mib": before,
            }

        measuring.serve(answer)

    def _measure_all(self, options: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
        own = {name: value for name, value in vars(options).items() if name not in ("worker", "folder")}
        result = {"unit": self.unit, "machine": measuring.machine(self.gpu), "settings": own, "cases": {}}
        cases = [name for name in self.cases if any(part in name for part in options.cases)]
        with tempfile.TemporaryDirectory() as folder:
            arguments = [*arguments, "--folder", folder]
            if self.setup:
                subprocess.run([sys.executable, self.file, *arguments], check=True)
            workers: dict[tuple[str, int], measuring.Worker] = {}
            try:
                for name in cases:
                    if self.fresh:
                        _close(workers)
                    result["cases"][name] = self._measure(name, workers, options, arguments)
                    print(self._table(name, result["cases"][name]), flush=True)
                    path = measuring.write_result(options.name, result, options.output)
            finally:
                _close(workers)
        print(f"\nWritten to {path}" if cases else "Nothing was measured.")
        return result

    def _measure(
        self,
        name: str,
        workers: dict[tuple[str, int], measuring.Worker],
        options: argparse.Namespace,
        arguments: Sequence[str],
    ) -> dict[str, Any]:
        """Measure a case in rounds."""
        prepared, skipped = self._prepare(name, workers, options, arguments)
        ready = {key: workers[key] for key in prepared}
        request = {"seconds": options.seconds}
        answers = measuring.round_robin(ready, options.rounds, request, options.timeout, options.tries, name)
        fastest: dict[str, Figures] = {}
        for (contender, threads), rounds in answers.items():
            figures = {"threads": threads, **prepared[contender, threads], **summary(rounds)}
            figures["added_mib"] = figures["peak_memory_mib"] - figures.pop("memory_before_mib")
            if contender not in fastest or figures["seconds"] < fastest[contender]["seconds"]:
                fastest[contender] = figures
        case = self.cases[name]
        recorded = dataclasses.asdict(case) if dataclasses.is_dataclass(case) else dict(case)
        limits = {limit: fastest[limit] for limit in self.limits if limit in fastest}
        contenders = {contender: fastest[contender] for contender in self.contenders if contender in fastest}
        measured = {**recorded, **({"limits": limits} if limits else {}), "contenders": contenders}
        self.derive(case, measured)
        add_ratios(contenders)
        return {**measured, "skipped": skipped}

    def _prepare(
        self,
        name: str,
        workers: dict[tuple[str, int], measuring.Worker],
        options: argparse.Namespace,
        arguments: Sequence[str],
    ) -> tuple[dict[tuple[str, int], Figures], dict[str, str]]:
        """Prepare a case's contenders; return the figures of first calls and the reasons for skipped contenders."""
        prepared, skipped = {}, {}
        for contender, threads in self._participants(self.cases[name], options):
            key = contender, threads
            if key not in workers:
                worker_arguments = [*arguments, "--worker", f"{contender}/{threads}"]
                environment = self.environment(contender, options)
                workers[key] = measuring.Worker(self.file, contender, worker_arguments, environment)
            try:
                prepared[key] = workers[key].ask({"case": name}, options.timeout)
            except measuring.WorkerError as error:
                skipped[contender] = str(error)
                workers.pop(key).close()
            state = "ready" if key in prepared else "skipped"
            measuring.progress(f"{name}: {contender}, {threads} threads {state}")
        return prepared, skipped

    def _participants(self, case: Any, options: argparse.Namespace) -> Iterator[tuple[str, int]]:
        for contender in [*self.limits, *self.contenders]:
            chosen = contender in self.limits or any(part in contender for part in options.only)
            if chosen and self.applies(case, contender):
                yield from ((contender, threads) for threads in options.threads)

    def _table(self, name: str, measured: dict[str, Any]) -> str:
        """Return a case as Markdown."""
        rows = []
        for contender, figures in {**measured.get("limits", {}), **measured["contenders"]}.items():
            times = [1000 * each["seconds"] for each in figures["rounds"]]
            ratios = figures.get("ratios", {})
            rows.append(
                {
                    name or "contender": contender,
                    "threads": str(figures["threads"]),
                    "ms": f"{1000 * figures['seconds']:.2f}",
                    "min–max": f"{min(times):.2f}–{max(times):.2f}",
                    "processor ms": f"{1000 * figures['processor_seconds']:.2f}",
                    f"{self.unit}/s": f"{figures['per_second']:,.1f}",
                    "ratio": interval(ratios["wall"]) if ratios else "–",
                    "ratio by processor time": interval(ratios["processor"]) if ratios else "–",
                    "others' cores": f"{figures['others']:.2f}",
                    "peak MiB": f"{figures['peak_memory_mib']:,.0f}",
                    "first call": f"{figures['first_seconds']:.1f} s",
                    **{
                        key: format(figures[key], spec) if key in figures else "–"
                        for key, spec in self.columns.items()
                    },
                }
            )
        skipped = [f"skipped {contender}: {reason}" for contender, reason in measured["skipped"].items()]
        return "\n".join(["", *([measuring.table(rows)] if rows else []), *skipped])


def first_step(step: Callable[[], Any], run: Run) -> Run:
    """Return a function whose first call makes only one step, to measure the time of compilation."""
    calls = iter([step])
    return lambda: next(calls, run)()


def timed(run: Run) -> Figures:
    """Call a function; return its figures, and the seconds of wall and processor time of a step."""
    wall, processor = time.perf_counter(), time.process_time()
    result = run()
    times = {
        "seconds": time.perf_counter() - wall,
        "processor_seconds": time.process_time() - processor,
    }
    figures = {**times, **(result if isinstance(result, dict) else {})}
    steps = figures.pop("steps", 1)
    return {**figures, **{name: figures[name] / steps for name in times}}


def timed_calls(run: Run, units: float, seconds: float) -> Figures:
    """Return the medians of the figures of calls that take at least `seconds`, of at least one call."""
    begin, calls = time.perf_counter(), []
    while not calls or time.perf_counter() - begin < seconds:
        call = timed(run)
        count = call.get("units", units)
        call["per_second"] = count / call["seconds"]
        call["per_processor_second"] = count / max(call["processor_seconds"], 1e-9)
        calls.append(call)
    return {**medians(calls), "peak_memory_mib": measuring.peak_memory_mib()}


def medians(rows: Sequence[Figures]) -> Figures:
    """Return the medians of numbers, and the last values of other figures."""
    return {
        name: measuring.median(row[name] for row in rows) if isinstance(last, int | float) else last
        for name, last in rows[-1].items()
    }


def summary(rounds: Sequence[Figures]) -> Figures:
    """Return the medians over rounds, and the numbers of each round."""
    numbers = [
        {name: value for name, value in row.items() if isinstance(value, int | float)} for row in rounds
    ]
    peak = max(row["peak_memory_mib"] for row in numbers)
    return {**medians(rounds), "peak_memory_mib": peak, "rounds": numbers}


def add_ratios(contenders: Mapping[str, Figures]) -> None:
    """Add to each contender the relative speed of the first one, in wall and in processor time."""
    if not contenders:
        return
    first, *others = contenders.values()
    rates = {"wall": "per_second", "processor": "per_processor_second"}
    for other in others:
        other["ratios"] = {
            clock: measuring.ratio(
                *([row[rate] for row in contender["rounds"]] for contender in (first, other))
            )
            for clock, rate in rates.items()
        }


def interval(ratio: Mapping[str, Any]) -> str:
    """Return a ratio with its interval."""
    low, high = ratio["interval"]
    return f"{ratio['median']:.3f} ({low:.3f}–{high:.3f})"


def _close(workers: dict[Any, measuring.Worker]) -> None:
    for worker in workers.values():
        worker.close()
    workers.clear()
