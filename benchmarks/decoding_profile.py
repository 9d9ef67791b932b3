"""A profile of generation by an encoder–decoder: this package's ONNX graph beside CTranslate2, by type of operation.

The models and requests are those of `generation.py`, with one thread. ONNX Runtime's profiler gives the time of each
operation of the graph, also in its loops: the shortest of several rounds, less that of the shortest operation, which is
the profiler's own. `perf record` samples the functions of CTranslate2. Its matrix multiplications are compiled at run
time, so the profile does not separate those of attention from those by weights. "The rest" is the remaining processor
time of a run without profilers: the dispatch of operations, the allocation of memory, Python.

    .venv-bench/bin/python benchmarks/decoding_profile.py            # --help lists the options
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import generation
import matrix_multiplications
import measuring
import numpy as np

CASES = {
    "float32, batch 1": ("seq2seq", 1, "float32"),
    "float32, batch 8": ("seq2seq", 8, "float32"),
    "float32, batch 64": ("large", 64, "float32"),
    "int8, batch 1": ("seq2seq", 1, "int8"),
    "int8, batch 8": ("seq2seq", 8, "int8"),
}
OURS, CT2, LIMIT = "ours, ONNX", "CTranslate2", "the matrix multiplications of the steps alone"
MATRICES, ATTENTION, NORMS = "matrix multiplications", "attention and its past", "layer normalization"
ELEMENTWISE, CHOICE, REST = "biases, sums, activations, embeddings", "choice of tokens", "the rest"
Answer = Callable[..., dict[str, Any]]
CLASSES = (MATRICES, ATTENTION, NORMS, ELEMENTWISE, CHOICE, REST)

OPERATIONS = {
    "DynamicQuantizeLinear": MATRICES,
    "DynamicQuantizeMatMul": MATRICES,
    "Gemm": MATRICES,
    "MatMulIntegerToFloat": MATRICES,
    "MatMulNBits": MATRICES,
    "FusedMatMul": ATTENTION,
    "GroupQueryAttention": ATTENTION,
    "MultiHeadAttention": ATTENTION,
    "RotaryEmbedding": ATTENTION,
    "Softmax": ATTENTION,
    "Transpose": ATTENTION,
    "LayerNormalization": NORMS,
    "SimplifiedLayerNormalization": NORMS,
    "SkipSimplifiedLayerNormalization": NORMS,
    "DequantizeLinear": ELEMENTWISE,
    "Relu": ELEMENTWISE,
    "Sin": ELEMENTWISE,
}
# Functions of CTranslate2, by the library and the name.
FUNCTIONS = {
    MATRICES: r"\[JIT\]|.*(dnnl|[Gg]emm|Dense|quantize)",
    ATTENTION: r".*(softmax|memmove|memcpy|MultiHeadAttention|Concat|Split|transpose)",
    NORMS: r".*(layer_norm|LayerNorm)",
    CHOICE: r".*(TopK|GreedySearch|BeamSearch|decoding)",
    ELEMENTWISE: r".*(cpu::add|cpu::mul|relu|bias|Gather|Position|Embeddings)",
}


@dataclasses.dataclass(frozen=True)
class Profile:
    """The time of generation by type of operation, of this package's graph and of a peer.

    Args:
        file: `__file__` of the program; its stem names the results.
        description: the description in `--help`.
        cases: the arguments of the workers by case.
        workers: functions of a case's arguments and the options, which return answers to requests: of this package, of
            the peer, and of the matrix multiplications alone.
        functions: the functions of the peer by type: a pattern of the library and the name.
        setup: writes the models into a folder.
        add_options: adds options to the command line.
    """

    file: str
    description: str
    cases: Mapping[str, tuple[Any, ...]]
    workers: Mapping[str, Callable[..., Answer]]
    functions: Mapping[str, str]
    setup: Callable[[pathlib.Path, argparse.Namespace], None]
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None

    def main(self) -> None:
        """Measure all cases, print the table, and write the results; in a worker, answer requests."""
        parser = measuring.parser(self.description, pathlib.Path(self.file).stem)
        add = parser.add_argument
        add("--rounds", type=int, default=7, help="rounds (default: %(default)s)")
        add("--cases", nargs="*", default=[*self.cases], choices=self.cases, help="default: all")
        add("--models", type=pathlib.Path, help="folder of the models, which are written if it is new")
        add("--worker", nargs=2, metavar=("CONTENDER", "CASE"), help=argparse.SUPPRESS)
        self.add_options(parser)
        options = parser.parse_args()
        if options.worker:
            contender, case = options.worker
            measuring.serve(self.workers[contender](*self.cases[case], options))
            return
        with contextlib.ExitStack() as stack:
            options.models = options.models or pathlib.Path(
                stack.enter_context(tempfile.TemporaryDirectory())
            )
            if not any(options.models.glob("*")):
                options.models.mkdir(parents=True, exist_ok=True)
                self.setup(options.models, options)
            arguments = [*sys.argv[1:], "--models", str(options.models)]
            cases = {case: self.measure(case, arguments, options.rounds) for case in options.cases}
        result = {"machine": measuring.machine(), "rounds": options.rounds, "cases": cases}
        print(measuring.table(rows(cases)))
        print(f"\nWritten to {measuring.write_result(options.name, result, options.output)}")

    def measure(self, case: str, arguments: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
        """Return the milliseconds of processor time of each contender by type of operation."""
        workers = {
            name: measuring.Worker(self.file, name, [*arguments, "--worker", name, case])
            for name in self.workers
        }
        ours, peer, limit = workers
        try:
            asked = collections.defaultdict(list)
            for worker in workers.values():
                worker.ask({"action": "time"}, 900)
            for number in range(rounds):
                for name, worker in list(workers.items())[:: -1 if number % 2 else 1]:
                    asked[name].append(worker.ask({"action": "time"}, 900)["milliseconds"])
                measuring.progress(f"{case}: round {number + 1} of {rounds}")
            together = {name: measuring.median(values) for name, values in asked.items()}
            classes = {
                ours: workers[ours].ask({"action": "profile", "rounds": rounds}, 900)["classes"],
                peer: sampled(workers[peer], rounds, together[peer], self.functions),
            }
        finally:
            for worker in workers.values():
                worker.close()
        for name, parts in classes.items():
            parts[REST] = max(0.0, together[name] - sum(parts.values()))
            parts["together"] = together[name]
        measured = {**classes, limit: {MATRICES: together[limit]}}
        return {
            name: {each: round(value, 3) for each, value in parts.items()} for name, parts in measured.items()
        }


def rows(cases: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the rows of the table of milliseconds: a contender in a case."""
    return [
        {
            "ms": case,
            "": name,
            **{each: f"{part[each]:,.1f}" for each in (*CLASSES, "together")},
            LIMIT: f"{parts[LIMIT][MATRICES]:,.1f}",
        }
        for case, parts in cases.items()
        for name, part in parts.items()
        if name != LIMIT
    ]


def ours(name: str, batch_size: int, precision: str, options: argparse.Namespace) -> Answer:
    """Return the requests to this package's graph."""
    generate = generation.build_onnx(name, options.models, 1, precision)
    shape, ids = generation.SHAPES[name], generation.SHAPES[name].ids(batch_size)

    def answer(action: str, rounds: int = 1) -> dict[str, Any]:
        if action == "time":
            return processor_time(lambda: generate(ids, 1, shape.tokens))
        path = options.models / f"{name}-1-{precision}.onnx"
        limits = np.full(batch_size, shape.tokens, "int32")
        feed = {"input_ids": ids, "max_new_tokens": limits}
        return {"classes": traced(path, feed, rounds, (shape.size, 4 * shape.size))}

    return answer


def traced(
    path: pathlib.Path, feed: Mapping[str, np.ndarray], rounds: int, hidden: Collection[int]
) -> dict[str, float]:
    """Return the milliseconds of a generation by type of operation, from ONNX Runtime's profiler.

    Args:
        path: the graph.
        feed: its inputs.
        rounds: the number of generations, of which the shortest time of each operation counts.
        hidden: the sizes of hidden values.
    """
    import onnxruntime

    from keras_transformer_serving import huge_pages

    def run() -> list[dict[str, Any]]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.enable_profiling = 1, True
        with tempfile.TemporaryDirectory() as traces:
            options.profile_file_prefix = f"{traces}/trace"
            with huge_pages.for_new_memory([0.0]):
                session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            session.run(["ids"], feed)
            events = json.loads(pathlib.Path(session.end_profiling()).read_text())
        return [event for event in events if is_operation(event)]

    traces = [run() for _ in range(rounds)]
    durations = np.min([[event["dur"] for event in events] for events in traces], axis=0)
    classes: collections.Counter[str] = collections.Counter(dict.fromkeys(CLASSES[:-1], 0.0))
    for event, duration in zip(traces[0], durations - durations.min(), strict=True):
        classes[class_of(event["args"], hidden)] += float(duration) / 1000
    return classes


def is_operation(event: Mapping[str, Any]) -> bool:
    """Return whether an event of ONNX Runtime's profile is an operation without inner ones."""
    is_kernel = event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    return is_kernel and event["args"]["op_name"] not in ("Loop", "If")


def class_of(arguments: Mapping[str, Any], hidden: Collection[int]) -> str:
    """Return the type of work of an operation in ONNX Runtime's profile."""
    operation = arguments["op_name"]
    if operation in OPERATIONS:
        return OPERATIONS[operation]
    if operation == "MatMul":
        # A weight that ONNX Runtime has packed has no shape here.
        sizes = [sizes for each in arguments["input_type_shape"] for sizes in each.values()]
        return MATRICES if len(sizes) == 1 or len(sizes[1]) == 2 else ATTENTION
    outputs = [output["float"] for output in arguments["output_type_shape"] if "float" in output]
    if any(len(sizes) == 4 for sizes in outputs):  # of heads
        return ATTENTION
    is_hidden = any(sizes and sizes[-1] in hidden for sizes in outputs)
    return ELEMENTWISE if is_hidden else CHOICE


def ctranslate2(name: str, batch_size: int, precision: str, options: argparse.Namespace) -> Answer:
    """Return the requests to CTranslate2."""
    generate = generation.build_ctranslate2(name, options.models, 1, precision=precision)
    shape, ids = generation.SHAPES[name], generation.SHAPES[name].ids(batch_size)

    def answer(action: str, repeats: int = 1) -> dict[str, Any]:
        if action == "process":
            return {"process": os.getpid()}
        return processor_time(lambda: [generate(ids, 1, shape.tokens) for _ in range(repeats)])

    return answer


def limit(name: str, batch_size: int, precision: str, options: argparse.Namespace) -> Answer:
    """Return the requests for the multiplications by weights of all steps, without anything else."""
    del options
    shape = generation.SHAPES[name]
    shapes = matrix_multiplications.matrices(shape.layers, shape.matmuls, shape.size, shape.vocabulary_size)
    multiply = matrix_multiplications.onnx_runtime(shapes, 1, batch_size, precision, shape.tokens)
    return lambda action: processor_time(multiply)


def processor_time(function: Callable[[], object]) -> dict[str, float]:
    """Return the milliseconds of processor time of a call."""
    begin = time.process_time()
    function()
    return {"milliseconds": 1000 * (time.process_time() - begin)}


def sampled(
    worker: measuring.Worker, rounds: int, together: float, functions: Mapping[str, str]
) -> dict[str, float]:
    """Return the milliseconds of a peer by type of operation, from samples of its functions by Linux' `perf`."""
    process = worker.ask({"action": "process"}, 60)["process"]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/perf.data"
        record = [
            "perf",
            "record",
            "--event",
            "cpu-clock",
            "--freq",
            "999",
            "--output",
            path,
            "--pid",
            str(process),
        ]
        with subprocess.Popen(record, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as recording:
            time.sleep(1.0)  # until it has attached
            worker.ask({"action": "time", "repeats": max(rounds, round(5000 / together))}, 900)
            recording.send_signal(signal.SIGINT)
        report = [
            "perf",
            "report",
            "--input",
            path,
            "--sort",
            "dso,symbol",
            "--stdio",
            "--field-separator",
            "|",
        ]
        lines = subprocess.run(report, capture_output=True, text=True, check=True).stdout.splitlines()
    classes: collections.Counter[str] = collections.Counter(dict.fromkeys(CLASSES[:-1], 0.0))
    for line in lines:
        match = re.match(r"\s*([0-9.]+)%\s*\|(.*)", line)
        if match:
            type_ = next((type_ for type_, pattern in functions.items() if re.match(pattern, match[2])), None)
            if type_ is not None:
                classes[type_] += float(match[1]) / 100 * together
    return dict(classes)


PROFILE = Profile(
    __file__,
    __doc__,
    CASES,
    {OURS: ours, CT2: ctranslate2, LIMIT: limit},
    FUNCTIONS,
    generation.setup,
)

if __name__ == "__main__":
    PROFILE.main()
