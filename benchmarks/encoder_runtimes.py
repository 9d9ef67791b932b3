"""Latency of a published encoder in the runtimes that take its export: ONNX Runtime, OpenVINO and LiteRT.

all-MiniLM-L6-v2 is exported in float32 and int8. OpenVINO reads the files of ONNX Runtime. By default it computes
float32 graphs in bfloat16 where the processor has it, which is measured beside float32. Inputs are real sentences: 32
one after the other, each of its own length, or in one batch. "cosine" is the smallest one of an embedding and that of
the Keras model.

    make install-published && .venv-bench/bin/pip install openvino ai-edge-litert
    .venv-bench/bin/python benchmarks/encoder_runtimes.py --data DATA       # --help lists the options
"""

import argparse
import functools
import itertools
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import int8_recipes
import numpy as np
import runner

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.append(str(pathlib.Path(__file__).parent / "parity"))

import published_checkpoints

SENTENCES = 32
OUTPUT = "sentence_embedding"
CASES = {
    f"{precision}, batches of {batch_size}": {"precision": precision, "batch_size": batch_size}
    for precision in ("float32", "int8")
    for batch_size in (1, SENTENCES)
}
Model = Callable[[dict[str, np.ndarray]], np.ndarray]


def setup(folder: pathlib.Path, options: argparse.Namespace) -> None:
    """Export the model, and write the inputs and outputs of each batch size."""
    import tensorflow as tf

    import keras_transformer as kt

    pipeline = kt.pipelines.from_hugging_face(published_checkpoints.minilm())
    targets = ["onnx", "litert"]
    kt.export.bundle(pipeline, folder / "export", targets=targets, precisions=("float32", "int8"))
    # The last ones, which no choice of a recipe has seen.
    sources = int8_recipes.sources(options.data or pathlib.Path(os.environ["KERAS_TRANSFORMER_DATA"]))
    last = zip(*(source[-SENTENCES:] for source in sources), strict=True)
    texts = [*itertools.chain.from_iterable(last)][:SENTENCES]
    embeddings = np.asarray(pipeline(texts))
    for size in (1, SENTENCES):
        for number in range(SENTENCES // size):
            rows = slice(number * size, (number + 1) * size)
            ids = pipeline.preprocess(tf.constant(texts[rows])).inputs["token_ids"].numpy().astype("int64")
            arrays = {
                "input_ids": ids,
                "attention_mask": 1 * (ids != pipeline.tokenizer.pad_id),
                "token_type_ids": 0 * ids,
            }
            np.savez(folder / f"{size}-{number}.npz", **arrays, expected=embeddings[rows])


def onnx_runtime(folder: pathlib.Path, precision: str, threads: int) -> Model:
    """Return the model in ONNX Runtime, as this package serves it."""
    return served(folder, precision, threads, "onnx")


def litert(folder: pathlib.Path, precision: str, threads: int) -> Model:
    """Return the model in LiteRT, as this package serves it."""
    return served(folder, precision, threads, "litert")


def served(folder: pathlib.Path, precision: str, threads: int, engine: str) -> Model:
    """Return the model in an engine of `keras_transformer_serving`."""
    import keras_transformer_serving as serving

    run = serving.load(folder, precision=precision, threads=threads, engine=engine).engine.run
    return lambda inputs: run(inputs)[OUTPUT]


def openvino(folder: pathlib.Path, precision: str, threads: int, computed_in: str | None = "f32") -> Model:
    """Return the graph of ONNX Runtime in OpenVINO, computed in float32 or, for None, as OpenVINO chooses."""
    import openvino

    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    if computed_in is not None:
        options["INFERENCE_PRECISION_HINT"] = computed_in
    path = next(
        (folder / "onnx").glob("**/model.onnx" if precision == "float32" else f"{precision}/model.onnx")
    )
    compiled = openvino.Core().compile_model(path, "CPU", options)
    return lambda inputs: compiled(inputs)[OUTPUT]


DEFAULT = "OpenVINO, its default precision"
MODELS = {
    "ONNX Runtime": onnx_runtime,
    "OpenVINO": openvino,
    DEFAULT: functools.partial(openvino, computed_in=None),
    "LiteRT": litert,
}


def prepare(case: dict[str, Any], context: runner.Context, contender: str) -> runner.Run:
    """Prepare a pass over the sentences."""
    model = MODELS[contender](context.folder / "export", case["precision"], context.threads)
    size = case["batch_size"]
    batches = [dict(np.load(context.folder / f"{size}-{number}.npz")) for number in range(SENTENCES // size)]
    expected = [batch.pop("expected") for batch in batches]

    def run() -> runner.Figures:
        begin, busy = time.perf_counter(), time.process_time()
        found = [model(batch) for batch in batches]
        times = {"seconds": time.perf_counter() - begin, "processor_seconds": time.process_time() - busy}
        cosines = published_checkpoints.cosines(np.concatenate(found), np.concatenate(expected))
        return {
            **times,
            "steps": len(batches),
            "units": SENTENCES / len(batches),
            "cosine": float(cosines.min()),
        }

    return run


BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "sentences",
    CASES,
    {name: functools.partial(prepare, contender=name) for name in MODELS},
    applies=lambda case, contender: contender != DEFAULT or case["precision"] == "float32",
    threads=(1, 2),
    seconds=0.5,
    setup=setup,
    columns={"cosine": ".4f"},
    add_options=lambda parser: parser.add_argument(
        "--data", type=pathlib.Path, help="the folder of all data sets; default: KERAS_TRANSFORMER_DATA"
    ),
)

if __name__ == "__main__":
    BENCHMARK.main()
