"""The peak of memory of `export.onnx` for a model of more than 2 GB, in float32, float16 and int8.

A Llama of about a billion parameters with random weights is exported and its outputs are compared, all in one process.
Its embeddings are large, so that it repeats the last token: without a clear best token, no lower precision would agree.
`--help` lists the options.
"""

import os
import pathlib
import tempfile
import time
from collections.abc import Sequence

import measuring
from loading_memory import peak_mib

SIZES = {"num_heads": 16, "model_dim": 2048, "hidden_dim": 6912, "tied": True}
VOCABULARY = 32000
PRECISIONS = ("float32", "float16", "int8")


def new_pipeline(layers: int, hidden_dim: int):
    """Return a pipeline of the model and a tokenizer of its size, whose long pieces no text has."""
    import numpy as np

    import keras_transformer as kt
    from keras_transformer_serving.text.subword import BYTE_CHARACTERS

    tokens = list(kt.text.tokenizers.byte_pair.SPECIAL_TOKENS.values())
    unused = [f"unused{i}" for i in range(VOCABULARY - len(tokens) - len(BYTE_CHARACTERS))]
    tokenizer = kt.text.BytePairTokenizer([*tokens, *BYTE_CHARACTERS, *unused], [])
    sizes = {**SIZES, "hidden_dim": hidden_dim}
    model = kt.models.Llama(VOCABULARY, layers, **sizes, pad_id=tokenizer.pad_id, end_id=tokenizer.end_id)
    random = np.random.default_rng(0)
    table = model.embedding.embedding.embeddings
    table.assign(random.standard_normal(table.shape, "float32"))
    return kt.pipelines.TextGeneration(model, tokenizer, max_new_tokens=4, max_source_tokens=32)


def main(arguments: Sequence[str] | None = None) -> None:
    """Export the model, print and write the results."""
    parser = measuring.parser(__doc__, "export_memory")
    parser.add_argument("--layers", type=int, default=16, help="(default: 16, about 1.0 billion parameters)")
    parser.add_argument(
        "--hidden-dim",
        type=int,
        default=SIZES["hidden_dim"],
        help="the size of the hidden layers (default: 6912); 5 layers of 27648 have as many parameters as 16, and "
        "their graphs are converted in less time",
    )
    parser.add_argument(
        "--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS, help="(default: all)"
    )
    options = parser.parse_args(arguments)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras_transformer as kt

    pipeline = new_pipeline(options.layers, options.hidden_dim)
    parameters, before, start = pipeline.model.count_params(), peak_mib(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        made = kt.export.onnx(
            pipeline, pathlib.Path(folder) / "it", precisions=options.precisions, texts=["ab", "The bread"]
        )
        files = {
            path.relative_to(made).as_posix(): path.stat().st_size / 2**20
            for path in sorted(made.rglob("*.onnx*"))
        }
    row = {
        "parameters": parameters,
        "weights_mib": parameters * 4 / 2**20,
        "peak_before_mib": before,
        "peak_mib": peak_mib(),
        "seconds": time.perf_counter() - start,
        "files_mib": files,
    }
    result = {"machine": measuring.machine(), "precisions": list(options.precisions), "results": row}
    measuring.write_result(options.name, result, options.output)
    print(row)


if __name__ == "__main__":
    main()
