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
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
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
CLASSES = (MATRICES, ATTENTION, NORMS, ELEMENTWISE, CHOICE, REST)

OPERATIONS = {
    "DynamicQuantizeLinear": MATRICES,
    "DynamicQuantizeMatMul": MATRICES,
    "Gemm": MATRICES,
    "MatMulIntegerToFloat": MATRICES,
    "FusedMatMul": ATTENTION,
    "MultiHeadAttention": ATTENTION,
    "Softmax": ATTENTION,
    "Transpose": ATTENTION,
    "LayerNormalization": NORMS,
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


def main() -> None:
    """Measure, print the table, write JSON."""
    parser = measuring.parser(__doc__, "decoding_profile")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default: %(default)s)")
    parser.add_argument("--cases", nargs="*", default=[*CASES], choices=CASES, help="default: all")
    parser.add_argument(
        "--models", type=pathlib.Path, help="folder of the models, which are written if it is new"
    )
    parser.add_argument("--worker", nargs=2, metavar=("CONTENDER", "CASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        contender, case = options.worker
        measuring.serve(WORKERS[contender](*CASES[case], options.models))
        return
    with contextlib.ExitStack() as stack:
        folder = options.models or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not (folder / "seq2seq").exists():
            folder.mkdir(parents=True, exist_ok=True)
            generation.setup(folder, options)
        cases = {case: profile(case, folder, options.rounds) for case in options.cases}
    result = {"machine": measuring.machine(), "rounds": options.rounds, "cases": cases}
    print(measuring.table(rows(cases)))
    print(f"\nWritten to {measuring.write_result(options.name, result, options.output)}")


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


def profile(case: str, folder: pathlib.Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return the milliseconds of processor time of a generation by type of operation, of each contender."""
    arguments = ["--models", str(folder), "--worker"]
    workers = {name: measuring.Worker(__file__, name, [*arguments, name, case]) for name in WORKERS}
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
            OURS: workers[OURS].ask({"action": "profile", "rounds": rounds}, 900)["classes"],
            CT2: sampled(workers[CT2], rounds, together[CT2]),
        }
    finally:
        for worker in workers.values():
            worker.close()
    for name, parts in classes.items():
        parts[REST] = max(0.0, together[name] - sum(parts.values()))
        parts["together"] = together[name]
    measured = {**classes, LIMIT: {MATRICES: together[LIMIT]}}
    return {
        name: {each: round(value, 3) for each, value in parts.items()} for name, parts in measured.items()
    }


def ours(name: str, batch_size: int, precision: str, folder: pathlib.Path) -> Callable[..., dict[str, Any]]:
    """Return the requests to this package's graph."""
    import onnxruntime

    generate = generation.build_onnx(name, folder, 1, precision)
    shape, ids = generation.SHAPES[name], generation.SHAPES[name].ids(batch_size)

    def traced() -> list[dict[str, Any]]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.enable_profiling = 1, True
        with tempfile.TemporaryDirectory() as traces:
            options.profile_file_prefix = f"{traces}/trace"
            path = folder / f"{name}-1-{precision}.onnx"
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            limits = np.full(batch_size, shape.tokens, "int32")
            session.run(["ids"], {"input_ids": ids, "max_new_tokens": limits})
            events = json.loads(pathlib.Path(session.end_profiling()).read_text())
        return [event for event in events if is_operation(event)]

    def answer(action: str, rounds: int = 1) -> dict[str, Any]:
        if action == "time":
            return processor_time(lambda: generate(ids, 1, shape.tokens))
        traces = [traced() for _ in range(rounds)]
        durations = np.min([[event["dur"] for event in events] for events in traces], axis=0)
        classes: collections.Counter[str] = collections.Counter(dict.fromkeys(CLASSES[:-1], 0.0))
        for event, duration in zip(traces[0], durations - durations.min(), strict=True):
            classes[class_of(event["args"], shape)] += float(duration) / 1000
        return {"classes": classes}

    return answer


def is_operation(event: Mapping[str, Any]) -> bool:
    """Return whether an event of ONNX Runtime's profile is an operation without inner ones."""
    is_kernel = event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    return is_kernel and event["args"]["op_name"] not in ("Loop", "If")


def class_of(arguments: Mapping[str, Any], shape: generation.Shape) -> str:
    """Return the type of work of an operation in ONNX Runtime's profile."""
    operation = arguments["op_name"]
    if operation in OPERATIONS:
        return OPERATIONS[operation]
    if operation == "MatMul":
        # A weight that ONNX Runtime has packed has no shape here.
        sizes = [sizes for each in arguments["input_type_shape"] for sizes in each.values()]
        return MATRICES if len(sizes) == 1 or len(sizes[1]) == 2 else ATTENTION
    outputs = [output["float"] for output in arguments["output_type_shape"] if "float" in output]
    is_hidden = any(sizes[-1:] in ([shape.size], [4 * shape.size]) for sizes in outputs)
    return ELEMENTWISE if is_hidden else CHOICE


def ctranslate2(
    name: str, batch_size: int, precision: str, folder: pathlib.Path
) -> Callable[..., dict[str, Any]]:
    """Return the requests to CTranslate2."""
    generate = generation.build_ctranslate2(name, folder, 1, precision=precision)
    shape, ids = generation.SHAPES[name], generation.SHAPES[name].ids(batch_size)

    def answer(action: str, repeats: int = 1) -> dict[str, Any]:
        if action == "process":
            return {"process": os.getpid()}
        return processor_time(lambda: [generate(ids, 1, shape.tokens) for _ in range(repeats)])

    return answer


def limit(name: str, batch_size: int, precision: str, folder: pathlib.Path) -> Callable[..., dict[str, Any]]:
    """Return the requests for the multiplications by weights of all steps, without anything else."""
    del folder
    shape = generation.SHAPES[name]
    shapes = matrix_multiplications.matrices(shape.layers, shape.matmuls, shape.size, shape.vocabulary_size)
    multiply = matrix_multiplications.onnx_runtime(shapes, 1, batch_size, precision, shape.tokens)
    return lambda action: processor_time(multiply)


WORKERS = {OURS: ours, CT2: ctranslate2, LIMIT: limit}


def processor_time(function: Callable[[], object]) -> dict[str, float]:
    """Return the milliseconds of processor time of a call."""
    begin = time.process_time()
    function()
    return {"milliseconds": 1000 * (time.process_time() - begin)}


def sampled(worker: measuring.Worker, rounds: int, together: float) -> dict[str, float]:
    """Return the milliseconds of CTranslate2 by type of operation, from samples of its functions by Linux' `perf`."""
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
            type_ = next((type_ for type_, pattern in FUNCTIONS.items() if re.match(pattern, match[2])), None)
            if type_ is not None:
                classes[type_] += float(match[1]) / 100 * together
    return dict(classes)


if __name__ == "__main__":
    main()
