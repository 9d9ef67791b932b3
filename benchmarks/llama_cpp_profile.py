"""A profile of generation by a decoder-only model of SmolLM2-135M's shape: this package's graph beside llama.cpp.

The models are those of `decoder_only.py`, at batch 1 with one thread after a prompt of 32: milliseconds of processor
time for a further token, by type of operation, which are found as in `decoding_profile.py`.

    .venv-bench/bin/python benchmarks/llama_cpp_profile.py --llama FOLDER     # --help lists the options
"""

import argparse
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import decoder_only
import decoding_profile as decoding
import numpy as np
import runner
from decoder_only import SHAPE, TOKENS, VOCABULARY

CASES = {precision: (precision,) for precision in decoder_only.PRECISIONS}
OURS, PEER = decoding.OURS, "llama.cpp"
IDS = np.random.default_rng(0).integers(1, VOCABULARY, (1, 32)).astype("int32")
# Functions of llama.cpp, by the library and the name. The products of repacked weights have no names.
FUNCTIONS = {
    decoding.ATTENTION: r".*(flash_attn|vec_dot_f16|rope|set_rows|fp32_to_fp16|expf|_cpy|forward_dup)",
    decoding.NORMS: r".*rms_norm",
    decoding.ELEMENTWISE: r".*(swiglu|silu|binary|get_rows|forward_add|forward_mul\b)",
    decoding.MATRICES: r"libggml-cpu.*(\] 0x|vec_dot|mul_mat|quantize|repack|gemv|gemm)",
    decoding.CHOICE: r".*_multiarray_umath",
}


def further(generate: decoder_only.Generate) -> dict[str, float]:
    """Return the milliseconds of processor time of a further token."""

    def busy(tokens: int) -> float:
        begin = time.process_time()
        generate(IDS, tokens)
        return time.process_time() - begin

    return {"milliseconds": 1000 * (busy(TOKENS) - busy(1)) / (TOKENS - 1)}


def context(options: argparse.Namespace) -> runner.Context:
    """Return the context in which a contender of `decoder_only.py` is built."""
    return runner.Context(1, options.models, options)


def ours(precision: str, options: argparse.Namespace) -> decoding.Answer:
    """Return the requests to this package's graph."""
    generate = decoder_only.graph(precision, 1, context(options))
    size, hidden = SHAPE["model_dim"], SHAPE["hidden_dim"]

    def classes(tokens: int, rounds: int) -> dict[str, float]:
        feed = {"input_ids": IDS, "max_new_tokens": np.array([tokens], "int32")}
        return decoding.traced(options.models / f"{precision}.onnx", feed, rounds, (size, hidden))

    def answer(action: str, rounds: int = 1) -> dict[str, Any]:
        if action == "time":
            return further(generate)
        all_, first = classes(TOKENS, rounds), classes(1, rounds)
        return {"classes": {name: (all_[name] - first[name]) / (TOKENS - 1) for name in all_}}

    return answer


def llama_cpp(precision: str, options: argparse.Namespace) -> decoding.Answer:
    """Return the requests to llama.cpp, whose samples include the prompt, some thirtieth of the time."""
    (kind,) = [
        kind
        for kind, each in zip(decoder_only.FORMATS, decoder_only.PRECISIONS, strict=True)
        if each == precision
    ]
    generate = decoder_only.llama_cpp(kind, 1, context(options))

    def answer(action: str, repeats: int = 1) -> dict[str, Any]:
        if action == "process":
            return {"process": os.getpid()}
        for _ in range(repeats // TOKENS):
            generate(IDS, TOKENS)
        return further(generate)

    return answer


def limit(precision: str, options: argparse.Namespace) -> decoding.Answer:
    """Return the requests for the multiplications by weights of a step, without anything else."""
    case = {"threads": 1, "batch_size": 1}
    run: Callable[[], Any] = decoder_only.prepare_matmuls(case, context(options), precision)
    return lambda action: {"milliseconds": 1000 * run()["processor_seconds_per_further_token"]}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of llama.cpp's packages."""
    parser.add_argument("--llama", type=pathlib.Path, required=True, help="see decoder_only.py")


PROFILE = decoding.Profile(
    __file__,
    __doc__,
    CASES,
    {OURS: ours, PEER: llama_cpp, decoding.LIMIT: limit},
    FUNCTIONS,
    decoder_only.setup,
    add_options,
)

if __name__ == "__main__":
    PROFILE.main()
