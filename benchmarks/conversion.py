"""The processor time and the peak of memory of conversions to ONNX, by the number of layers.

A decoder of SmolLM2-135M's shape with random weights is exported and its outputs are compared. Each number of layers is
measured in a process of its own. `--help` lists the options.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import measuring
from loading_memory import peak_mib

SIZES = {"num_heads": 9, "num_kv_heads": 3, "model_dim": 576, "hidden_dim": 1536, "tied": True}
VOCABULARY = 49152
LAYERS = (6, 12, 30, 60)
PRECISIONS = ("float32", "float16", "int8")


def new_pipeline(layers: int):
    """Return a pipeline of the model and a tokenizer of its size, whose long pieces no text has."""
    import numpy as np

    import keras_transformer as kt
    from keras_transformer_serving.text.subword import BYTE_CHARACTERS

    tokens = list(kt.text.tokenizers.byte_pair.SPECIAL_TOKENS.values())
    unused = [f"unused{i}" for i in range(VOCABULARY - len(tokens) - len(BYTE_CHARACTERS))]
    tokenizer = kt.text.BytePairTokenizer([*tokens, *BYTE_CHARACTERS, *unused], [])
    model = kt.models.Llama(VOCABULARY, layers, **SIZES, pad_id=tokenizer.pad_id, end_id=tokenizer.end_id)
    table = model.embedding.embedding.embeddings  # large, so that all precisions repeat the last token
    table.assign(np.random.default_rng(0).standard_normal(table.shape, "float32"))
    return kt.pipelines.TextGeneration(model, tokenizer, max_new_tokens=4, max_source_tokens=32)


def measure(layers: int, precisions: Sequence[str]) -> dict[str, float]:
    """Return the figures of one conversion in this process."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras_transformer as kt

    pipeline = new_pipeline(layers)
    before, processor, start = peak_mib(), time.process_time(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "it"
        kt.export.onnx(pipeline, path, precisions=precisions, texts=["ab", "The bread"])
    return {
        "layers": layers,
        "weights_mib": pipeline.model.count_params() * 4 / 2**20,
        "processor_seconds": time.process_time() - processor,
        "seconds": time.perf_counter() - start,
        "peak_before_mib": before,
        "peak_mib": peak_mib(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert models of several depths, print and write the results."""
    parser = measuring.parser(__doc__, "conversion")
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS, help="(default: 6 12 30 60)")
    parser.add_argument(
        "--precisions", nargs="+", default=("float32",), choices=PRECISIONS, help="(default: float32)"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.layers[0], options.precisions)))
        return
    rows = []
    for layers in options.layers:
        command = [sys.executable, __file__, "--one", "--layers", str(layers)]
        command += ["--precisions", *options.precisions]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        rows.append(json.loads(output.splitlines()[-1]))
        print(rows[-1], flush=True)
    result = {"machine": measuring.machine(), "precisions": list(options.precisions), "results": rows}
    measuring.write_result(options.name, result, options.output)


if __name__ == "__main__":
    main()
