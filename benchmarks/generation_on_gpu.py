"""Tokens per second of generation on an NVIDIA GPU: this package with JAX and as an ONNX graph, and its peers.

Models, requests and the comparison of ids are the same as in `generation.py`. Only writing the ONNX graphs needs
TensorFlow; another machine can do it:

    .venv-bench/bin/python benchmarks/generation_on_gpu.py --write-graphs FOLDER   # of the seed's weights
    python benchmarks/generation_on_gpu.py --graphs FOLDER                         # needs onnxruntime-gpu
"""

import argparse
import functools
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import generation
import matrix_multiplications
import runner
from generation import CT2, GRAPH, HUGGING_FACE, SHAPES, XLA, Generate

DEVICE, PROVIDER = "cuda", "CUDAExecutionProvider"
GRAPH_SHAPES = ("seq2seq", "gpt")

BUILDERS: dict[str, Callable[..., Generate]] = {
    XLA: generation.build_xla,
    f"{XLA} bfloat16": functools.partial(generation.build_xla, precision="bfloat16"),
    GRAPH: functools.partial(generation.build_onnx, providers=(PROVIDER,)),
    HUGGING_FACE: functools.partial(generation.build_hugging_face, device=DEVICE),
    f"{HUGGING_FACE} bfloat16": functools.partial(
        generation.build_hugging_face, device=DEVICE, precision="bfloat16"
    ),
    CT2: functools.partial(generation.build_ctranslate2, device=DEVICE),
    f"{CT2} float16": functools.partial(generation.build_ctranslate2, device=DEVICE, precision="float16"),
}


def write_graphs(folder: pathlib.Path) -> None:
    """Write the ONNX graphs of all requests."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as weights:
        generation.setup(pathlib.Path(weights), argparse.Namespace())
        for name in GRAPH_SHAPES:
            for beams in sorted({beams for _, beams in SHAPES[name].requests}):
                path = folder / f"{name}-{beams}-float32.onnx"
                generation.write_onnx(name, pathlib.Path(weights), beams, "float32", path)


def setup(folder: pathlib.Path, options: argparse.Namespace) -> None:
    """Write the models of `generation.py`, and copy the graphs."""
    generation.setup(folder, options)
    for path in options.graphs.glob("*.onnx") if options.graphs else ():
        shutil.copy(path, folder)


def applies(case: dict[str, Any], contender: str) -> bool:
    """Return whether a contender supports the model: CTranslate2 is measured with the encoder–decoders."""
    return not contender.startswith(CT2) or case["shape"] != "gpt"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the graphs."""
    parser.add_argument("--graphs", type=pathlib.Path, help="folder with the ONNX graphs")


BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "tokens",
    generation.CASES,
    {name: functools.partial(generation.prepare, build=build) for name, build in BUILDERS.items()},
    limits={
        "the matrix multiplications, by XLA": functools.partial(
            generation.prepare_matmuls, multiply=matrix_multiplications.jax_xla
        )
    },
    applies=applies,
    units=lambda case: case["batch_size"] * case["tokens"],
    threads=(4,),
    gpu=True,
    seconds=0.4,
    setup=setup,
    environment=lambda contender, options: (
        {}
        if contender.startswith((HUGGING_FACE, CT2))
        else {"KERAS_BACKEND": "jax", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    ),
    derive=generation.derive,
    columns=generation.BENCHMARK.columns,
    add_options=add_options,
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--write-graphs"]:
        write_graphs(pathlib.Path(sys.argv[2]))
    else:
        BENCHMARK.main()
