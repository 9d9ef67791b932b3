"""A profile of training without XLA on a CPU: this package beside KerasHub and PyTorch, by type of operation.

The models, texts and batches are those of `fine_tuning.py` and `training.py`, with one thread, so that the times of
operations add up. TensorFlow's profiler and that of PyTorch give the time of each operation without those that it
calls: the shortest of several rounds. "The rest" is the remaining processor time of rounds without profilers: the
dispatch of operations, the allocation of memory, batches, Python. The last column is the time of the multiplications by
weights alone, for all tokens of a case without padding.

    KERAS_TRANSFORMER_DATA=… .venv-bench/bin/python benchmarks/cpu_training_profile.py     # --help lists the options
"""

import argparse
import collections
import contextlib
import functools
import glob
import pathlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fine_tuning
import measuring
import runner
import train_step
import training

MATRICES, ATTENTION, NORMS = "matrix multiplications", "attention", "layer normalization"
ACTIVATIONS, DROPOUT, EMBEDDINGS = "activations", "dropout", "embeddings"
OPTIMIZER, LOSS, ELEMENTWISE, REST = "optimizer", "loss", "biases, sums, copies", "the rest"
CLASSES = (
    *(MATRICES, ATTENTION, NORMS, ACTIVATIONS, DROPOUT, EMBEDDINGS, OPTIMIZER, LOSS, ELEMENTWISE, REST),
)
LIMIT = "the matrix multiplications without padding"
OURS, HUB, TORCH = "ours", "KerasHub", "PyTorch"
TRANSFORMERS, SENTENCES = "transformers", "sentence-transformers"
SPA_ENG = {"ours": training.OURS, HUB: training.HUB, TORCH: training.TORCH}
CASES = {
    "classifier, a text": (OURS, HUB, TRANSFORMERS),
    "embedder, a pair": (OURS, SENTENCES),
    "spa-eng, 1,000 tokens": (OURS, HUB, TORCH),
}
STEPS = 5  # of spa-eng in a round
# Operations of TensorFlow by "NAME:TYPE", whose name has the layer's; the first that matches counts.
OF_TENSORFLOW = {
    MATRICES: r":_?(Mkl)?(Native)?(Fused)?MatMul$|(query|key|value|output)(_\d+)?/[^:]*:_?(Mkl)?Einsum$",
    OPTIMIZER: r"/adam[^/]*/|:ResourceApplyAdam",
    DROPOUT: r"dropout|:StatelessRandom|:Bitwise|:RightShift|:LeftShift",
    NORMS: r"norm",
    ATTENTION: r"BatchMatMul|Einsum|Softmax$|Transpose$|(attention|softmax)[^:]*:(?!BiasAdd|_?(Mkl)?Fused)",
    ACTIVATIONS: r"[Gg]elu|[Rr]elu|Erf|Tanh|UnaryOpsComposition|activation|hidden(_\d+)?/(mul|add)",
    EMBEDDINGS: r"embed|Gather|UnsortedSegmentSum|Scatter",
    LOSS: r"loss|[Ee]ntropy",
}
# Operations of PyTorch.
OF_TORCH = {
    MATRICES: r"aten::(addmm|mm|linear|matmul)$|mkldnn",
    OPTIMIZER: r"Optimizer|[Aa]dam|aten::_foreach|clip_grad",
    DROPOUT: r"aten::(native_dropout|bernoulli|dropout)",
    ATTENTION: r"aten::(bmm|baddbmm|_?softmax|_softmax_backward|scaled_dot|_scaled_dot)",
    NORMS: r"aten::(native_)?layer_norm",
    ACTIVATIONS: r"aten::(gelu|relu|threshold|tanh)",
    EMBEDDINGS: r"aten::(embedding|index_select|index_add)",
    LOSS: r"aten::(log_softmax|_log_softmax|nll_loss|cross_entropy)",
}


def main() -> None:
    """Measure, print the table, write JSON."""
    parser = measuring.parser(__doc__, "cpu_training_profile")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--cases", nargs="*", default=[*CASES], choices=CASES, help="default: all")
    parser.add_argument("--quick", action="store_true", help="a round, to try the program; results in runs")
    parser.add_argument("--worker", nargs=2, metavar=("CONTENDER", "CASE"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
        options.output = pathlib.Path("runs") if options.output == measuring.RESULTS else options.output
    if options.worker:
        contender, case = options.worker
        measuring.serve(answers(contender, case, options.folder))
        return
    with tempfile.TemporaryDirectory() as name:
        cases = {case: profile(case, pathlib.Path(name), options.rounds) for case in options.cases}
    result = {"machine": measuring.machine(), "rounds": options.rounds, "cases": cases}
    print(measuring.table(rows(cases)))
    print(f"\nWritten to {measuring.write_result(options.name, result, options.output)}")


def rows(cases: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the rows of the table of milliseconds: a contender in a case."""
    return [
        {
            "ms of": case,
            "": name,
            **{each: f"{part[each]:,.2f}" for each in (*CLASSES, "together")},
            LIMIT: f"{min(part[MATRICES] for key, part in parts.items() if key.startswith(LIMIT)):,.2f}",
        }
        for case, parts in cases.items()
        for name, part in parts.items()
        if not name.startswith(LIMIT)
    ]


def profile(case: str, folder: pathlib.Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return the milliseconds of processor time of each contender by type of operation."""
    names = [*CASES[case], f"{LIMIT}, tensorflow", f"{LIMIT}, torch"]
    arguments = ["--folder", str(folder), "--worker"]
    if case.startswith("spa-eng"):
        setup(folder)
    found: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as stack:
        workers = {
            name: measuring.Worker(__file__, name, [*arguments, name, case], train_step.MEMORY_KEPT)
            for name in names
        }
        for worker in workers.values():
            stack.callback(worker.close)
        for worker in workers.values():
            worker.ask({"action": "time"}, 900)
        asked: dict[str, list[float]] = collections.defaultdict(list)
        for number in range(rounds):
            for name in names[:: -1 if number % 2 else 1]:
                asked[name].append(workers[name].ask({"action": "time"}, 900)["milliseconds"])
            measuring.progress(f"{case}: round {number + 1} of {rounds}")
        for name in names:
            together = measuring.median(asked[name])
            if name.startswith(LIMIT):
                found[name] = {MATRICES: together}
                continue
            traces = [workers[name].ask({"action": "profile"}, 900)["classes"] for _ in range(rounds)]
            parts = {each: min(trace.get(each, 0.0) for trace in traces) for each in CLASSES[:-1]}
            found[name] = {**parts, REST: max(0.0, together - sum(parts.values())), "together": together}
    return {name: {each: round(value, 4) for each, value in parts.items()} for name, parts in found.items()}


def setup(folder: pathlib.Path) -> None:
    """Write the batches of spa-eng."""
    names = [*SPA_ENG.values(), training.LIMITED[False]]
    options = [
        "--folder",
        str(folder),
        "--cases",
        "without",
        "--rounds",
        "2",
        "--steps",
        f"{STEPS}",
        "--only",
    ]
    training.BENCHMARK.main([*options, *names])


def prepared(contender: str, case: str, folder: pathlib.Path) -> tuple[runner.Run, float]:
    """Return a contender's training, and the number of its units in one of a case."""
    options = argparse.Namespace(steps=STEPS)
    context = runner.Context(1, folder, options)
    limit, _, library = contender.partition(", ")
    if case.startswith("spa-eng"):
        shapes = training.CASES["without XLA"]
        if limit == LIMIT:
            return training.prepare_limit(shapes, context, library), 1000
        return training.prepare(shapes, context, SPA_ENG[contender]), 1000
    given = fine_tuning.CASES[case.partition(",")[0]]
    prepare: Callable[..., runner.Run] = {
        OURS: functools.partial(fine_tuning.ours, jit=False),
        HUB: fine_tuning.keras_hub,
        TRANSFORMERS: functools.partial(fine_tuning.transformers_trainer, **fine_tuning.BY_LENGTH),
        SENTENCES: fine_tuning.sentence_transformers_trainer,
        LIMIT: functools.partial(fine_tuning.prepare_limit, library=library),
    }[limit]
    return prepare(given, context), 1


def answers(contender: str, case: str, folder: pathlib.Path) -> Callable[..., dict[str, Any]]:
    """Return the requests to a contender: the milliseconds of a unit, or those of its operations by type."""
    uses_torch = contender in (TORCH, TRANSFORMERS, SENTENCES)
    traced, patterns = (torch_operations, OF_TORCH) if uses_torch else (operations, OF_TENSORFLOW)

    @functools.cache
    def ready() -> tuple[runner.Run, float]:
        run, scale = prepared(contender, case, folder)
        for _ in range(1 if contender.startswith(LIMIT) else 2):  # compile, and allocate memory
            run()
        return run, scale

    def answer(action: str) -> dict[str, Any]:
        run, scale = ready()
        if action == "time":
            begin = time.process_time()
            figures = run()
            seconds = figures.get("seconds", time.process_time() - begin)
            return {"milliseconds": 1000 * seconds / figures["units"] * scale}
        classes: collections.Counter[str] = collections.Counter()
        figures, times = traced(run)
        for name, seconds in times:
            class_ = next(
                (each for each, pattern in patterns.items() if re.search(pattern, name)), ELEMENTWISE
            )
            classes[class_] += 1000 * seconds / figures["units"] * scale
        return {"classes": classes}

    return answer


def operations(run: runner.Run) -> tuple[Any, list[tuple[str, float]]]:
    """Return the result of a call, and each of TensorFlow's operations in it with its seconds."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options)
        figures = run()
        tf.profiler.experimental.stop()
        (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        space = xplane_pb2.XSpace.FromString(pathlib.Path(path).read_bytes())
    lines = [(plane.event_metadata, line) for plane in space.planes for line in plane.lines]
    times = [each for metadata, line in lines for each in own_times(metadata, line)]
    return figures, [(name, seconds) for name, seconds in times if re.fullmatch(r"[^:]+:\w+", name)]


def own_times(metadata: Any, line: Any) -> Iterator[tuple[str, float]]:
    """Yield the events of a thread, with their seconds without those of inner events."""
    open_events: list[
        list[Any]
    ] = []  # the end, the name and the own time of each event that contains the next

    def ended(until: float) -> Iterator[tuple[str, float]]:
        while open_events and open_events[-1][0] <= until:
            _, name, own = open_events.pop()
            yield name, own / 1e12

    for event in sorted(line.events, key=lambda each: (each.offset_ps, -each.duration_ps)):
        yield from ended(event.offset_ps)
        if open_events:
            open_events[-1][2] -= event.duration_ps
        end = event.offset_ps + event.duration_ps
        open_events.append([end, metadata[event.metadata_id].name, event.duration_ps])
    yield from ended(float("inf"))


def torch_operations(run: runner.Run) -> tuple[Any, list[tuple[str, float]]]:
    """Return the result of a call, and each of PyTorch's operations in it with its seconds."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        figures = run()
    found = [(each.key, each.self_cpu_time_total / 1e6) for each in recorded.key_averages()]
    return figures, [(name, seconds) for name, seconds in found if re.match(r"aten::|mkldnn|Optimizer", name)]


if __name__ == "__main__":
    main()
