"""Compare with a reference, another program or a published figure, and record the results in one form.

A comparison is a file that defines a function and its cases:

    def compare(run):  # returns the figures of one case and one seed, including the differences that have limits
        expected, outputs = reference(run.case, run.seed), model(run.case, run.seed)
        return {"outputs": float(abs(outputs - expected).max()), "equal ids": [19, 20]}

    REFERENCE = references.Reference(
        __file__, __doc__, {"small": {"layers": 2}, "base": {"layers": 12}}, compare,
        limits={"outputs": 1e-4}, equal=("equal ids",),
    )  # fmt: skip
    if __name__ == "__main__":
        sys.exit(REFERENCE.main())  # --help lists the options; 1 where a limit is exceeded or not all are equal

`results/NAME.json` has the machine, the versions, the limits, and for each case its runs, by seed, with their figures,
times and the command, and the mean, deviation and standard error of the measures over seeds; for all cases the largest
value of each difference and the total numbers of equal items. Results of cases that are not run again are kept, and so
are those of other seeds with the same settings.
"""

import argparse
import dataclasses
import gc
import importlib.metadata
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import measuring
import numpy as np

Figures = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Run:
    """One case with one seed.

    Attributes:
        name: the name of the case.
        case: the case.
        seed: the seed of weights and data.
        settings: the case's settings, changed by options; None if there are none.
        options: the options of the command line.
    """

    name: str
    case: Any
    seed: int
    settings: Any
    options: argparse.Namespace


@dataclasses.dataclass(frozen=True)
class Reference:
    """Cases in which results are compared with a reference.

    Args:
        file: `__file__` of the comparison.
        description: the description in `--help`.
        cases: the cases by name; a case that is an instance of `settings` has these settings.
        compare: a function from a run to its figures.
        limits: the largest accepted value of each difference.
        equal: the figures that are true or false, or pairs (number of equal items, number of items).
        measures: the figures whose mean and deviation over seeds are reported.
        published: the published figures by case or for all cases, recorded under the default name.
        settings: a dataclass, whose fields are options.
        seeds: the seeds of each case.
        packages: further packages whose versions are recorded.
        name: the name of the results, by default the stem of the file.
        chosen: the cases that run by default; all if empty.
        add_options: adds options to the command line.
    """

    file: str
    description: str
    cases: Mapping[str, Any]
    compare: Callable[[Run], Figures]
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    equal: Sequence[str] = ()
    measures: Sequence[str] = ()
    published: Any = None
    settings: type | None = None
    seeds: Sequence[int] = (0,)
    packages: Sequence[str] = ()
    name: str = ""
    chosen: Sequence[str] = ()
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run all cases, print a table, write JSON; return 1 if a limit is exceeded or an item is not equal."""
        options = self._parser().parse_args(arguments)
        path = options.output / f"{options.name}.json"
        results = json.loads(path.read_text())["results"] if path.is_file() else {}
        machine = measuring.machine()
        machine["versions"] |= {package: importlib.metadata.version(package) for package in self.packages}
        names = [name for name in self.cases if any(part in name for part in options.only)]
        for name in names:
            settings = self._settings(self.cases[name], options)
            results[name] = _of_other_seeds(results.get(name, {}), options.seeds, settings)
            for seed in options.seeds:
                run = Run(name, self.cases[name], seed, settings, options)
                results[name]["runs"].append({"seed": seed, "command": machine["command"], **self._run(run)})
                results[name]["runs"].sort(key=lambda each: each["seed"])
                if self.published is not None and options.name == self._default_name():
                    of_cases = isinstance(self.published, Mapping) and name in self.published
                    results[name]["published"] = self.published[name] if of_cases else self.published
                results[name] |= over_seeds(results[name]["runs"], self.measures)
                measuring.write_result(options.name, self._content(machine, results), options.output)
                measuring.progress(str(self._row(name, results[name])))
                gc.collect()
        if names:
            print(measuring.table([self._row(name, results[name]) for name in names]))
            print(f"Written to {path}")
        return int(not all(self._good(run) for name in names for run in results[name]["runs"]))

    def _default_name(self) -> str:
        return self.name or pathlib.Path(self.file).stem

    def _parser(self) -> argparse.ArgumentParser:
        parser = measuring.parser(self.description, self._default_name())
        add = parser.add_argument
        chosen = list(self.chosen) or [""]
        add("--only", nargs="+", default=chosen, help="only cases whose names contain one of these")
        add("--seeds", type=int, nargs="+", default=list(self.seeds), help="(default: %(default)s)")
        for field in dataclasses.fields(self.settings) if self.settings else ():
            several = isinstance(field.default, tuple)
            kind = type(field.default[0] if several else field.default)
            help_ = f"(default: {field.default})" if len(self.cases) == 1 else None
            name = f"--{field.name.replace('_', '-')}"
            add(name, type=kind, help=help_, **({"nargs": "+"} if several else {}))
        self.add_options(parser)
        return parser

    def _settings(self, case: Any, options: argparse.Namespace) -> Any:
        if self.settings is None:
            return None
        base = case if isinstance(case, self.settings) else self.settings()
        given = {field.name: getattr(options, field.name) for field in dataclasses.fields(self.settings)}
        changed = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given.items()
            if value is not None
        }
        return dataclasses.replace(base, **changed)

    def _run(self, run: Run) -> Figures:
        wall, processor = time.perf_counter(), time.process_time()
        figures = self.compare(run)
        seconds = {
            "wall_seconds": time.perf_counter() - wall,
            "cpu_seconds": time.process_time() - processor,
        }
        return {**figures, **seconds}

    def _content(self, machine: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
        runs = [run for result in results.values() for run in result["runs"]]
        largest = {
            name: max(run[name] for run in runs if name in run)
            for name in self.limits
            if any(name in run for run in runs)
        }
        pairs = {name: [pair(run[name]) for run in runs if name in run] for name in self.equal}
        equal = {
            name: [sum(each) for each in zip(*measured, strict=True)]
            for name, measured in pairs.items()
            if measured
        }
        content = {
            "machine": machine,
            "limits": self.limits,
            "largest": largest,
            "equal": equal,
            "results": results,
        }
        return {name: value for name, value in content.items() if value}

    def _row(self, name: str, result: dict[str, Any]) -> dict[str, str]:
        row, runs = {"": name}, result["runs"]
        for each in self.limits:
            measured = [run[each] for run in runs if each in run]
            row[each] = f"{max(measured):.1e}" if measured else "–"
        for each in self.equal:
            measured = [pair(run[each]) for run in runs if each in run]
            row[each] = " of ".join(str(sum(part)) for part in zip(*measured, strict=True)) or "–"
        for each, measured in result.get("over seeds", {}).items():
            row[each] = f"{measured['mean']:.4g} ± {measured['standard_deviation']:.2g}"
        if "published" in result:
            row["published"] = str(result["published"])
        if len(runs) > 1:
            row["seeds"] = str(len(runs))
        return row

    def _good(self, run: Figures) -> bool:
        within = all(run[name] <= limit for name, limit in self.limits.items() if name in run)
        return within and all(len({*pair(run[name])}) == 1 for name in self.equal if name in run)


def _of_other_seeds(result: Figures, seeds: Sequence[int], settings: Any) -> Figures:
    """Return the earlier runs of other seeds, if they had the same settings, with these settings."""
    if settings is None:
        return {"runs": []}
    recorded = json.loads(json.dumps(dataclasses.asdict(settings)))
    runs = result["runs"] if result.get("settings") == recorded else []
    return {"runs": [run for run in runs if run["seed"] not in seeds], "settings": recorded}


def worst_gradient(gradients: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> Figures:
    """Return the largest difference of a gradient from the expected one, and its name.

    It is relative to the largest value of the expected gradient, or to a fraction of the largest value of all
    gradients: some gradients, such as those of key biases, are zero up to rounding.

    Args:
        gradients: names, gradients and expected gradients.
    """
    floor = 1e-4 * max(float(np.abs(expected).max()) for _, _, expected in gradients)
    differences = [
        (float(np.abs(measured - expected).max()) / max(float(np.abs(expected).max()), floor), name)
        for name, measured, expected in gradients
    ]
    worst, name = max(differences)
    return {"gradients": worst, "worst gradient": name}


def pair(value: Any) -> tuple[int, int]:
    """Return the number of equal items, and the number of items."""
    return (int(value), 1) if isinstance(value, bool) else tuple(value)


def over_seeds(runs: Sequence[Figures], measures: Sequence[str]) -> Figures:
    """Return the mean, standard deviation and standard error of each measure over runs."""
    measured = {}
    for name in measures:
        values = [run[name] for run in runs if name in run]
        if values:
            deviation = statistics.stdev(values) if len(values) > 1 else 0.0
            measured[name] = {
                "mean": statistics.mean(values),
                "standard_deviation": deviation,
                "standard_error": deviation / len(values) ** 0.5,
            }
    return {"over seeds": measured} if measured else {}
