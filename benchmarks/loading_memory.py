"""The peak of memory of `interop.from_hugging_face`, as a multiple of the model's weights.

A model of about 1 GB is saved as `model.safetensors`, as shards of it and as `pytorch_model.bin`, and each is loaded in
a fresh process, on the backends that are installed. The file of PyTorch needs PyTorch. A file in bfloat16 is loaded in
each precision, one in float32 also in int8, whose weights are int8 matrices, their scales, and vectors and positions in
float32. `--help` lists the options.
"""

import concurrent.futures
import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import measuring

MODEL = {"vocabulary_size": 32000, "num_layers": 20, "num_heads": 16, "model_dim": 1024, "hidden_dim": 4096}
FORMATS = ("safetensors", "shards", "pytorch", "bfloat16")
SHARDS = 4
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
PRECISIONS = {"bfloat16": tuple(BYTES), "safetensors": ("float32", "int8")}


def save(folder: pathlib.Path, layers: int) -> None:
    """Save the model in each format, in a folder each."""
    import ml_dtypes
    import safetensors.numpy

    from keras_transformer import interop
    from keras_transformer.models import GPT

    whole = interop.to_hugging_face(
        GPT(**{**MODEL, "num_layers": layers}, max_length=512, end_id=11), folder / "safetensors"
    )
    tensors = safetensors.numpy.load_file(whole / "model.safetensors")
    config = (whole / "config.json").read_text()
    (folder / "bfloat16").mkdir()
    (folder / "bfloat16" / "config.json").write_text(config)
    halves = {name: values.astype(ml_dtypes.bfloat16) for name, values in tensors.items()}
    safetensors.numpy.save_file(halves, folder / "bfloat16" / "model.safetensors")
    (folder / "shards").mkdir()
    (folder / "shards" / "config.json").write_text(config)
    index: dict[str, str] = {}
    for shard in range(SHARDS):
        name, names = f"model-{shard}.safetensors", sorted(tensors)[shard::SHARDS]
        safetensors.numpy.save_file({each: tensors[each] for each in names}, folder / "shards" / name)
        index.update(dict.fromkeys(names, name))
    (folder / "shards" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    try:
        import torch
    except ImportError:
        return
    (folder / "pytorch").mkdir()
    (folder / "pytorch" / "config.json").write_text(config)
    state = {name: torch.from_numpy(values) for name, values in tensors.items()}
    torch.save(state, folder / "pytorch" / "pytorch_model.bin")


def peak_mib() -> float:
    """Return the peak resident memory of this process, not of the one that started it as `getrusage` may."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def load(folder: pathlib.Path, precision: str) -> dict[str, float]:
    """Load a model, and return the size of its weights and the growth of memory, in MiB."""
    from keras_transformer import interop

    before = peak_mib()
    model = interop.from_hugging_face(folder, precision=precision)
    size = sum(math.prod(weight.shape) * BYTES[str(weight.dtype)] for weight in model.weights) / 2**20
    return {"weights_mib": size, "peak_mib": peak_mib() - before}


def main(arguments: Sequence[str] | None = None) -> None:
    """Save the model, load it in fresh processes, print and write the results."""
    parser = measuring.parser(__doc__, "loading_memory")
    parser.add_argument(
        "--layers", type=int, default=MODEL["num_layers"], help="(default: 20, about 1.06 GB)"
    )
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS, help="(default: all)")
    parser.add_argument("--load", type=pathlib.Path, help="load this folder only, and print the figures")
    parser.add_argument("--precision", default="float32", choices=BYTES, help="for --load")
    options = parser.parse_args(arguments)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    if options.load is not None:
        print(json.dumps(load(options.load, options.precision)))
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        # In another process, whose memory is free while the models are loaded.
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            pool.submit(save, pathlib.Path(temporary), options.layers).result()
        folders = [pathlib.Path(temporary) / name for name in options.formats]
        for folder in filter(pathlib.Path.exists, folders):  # that of PyTorch needs the package
            precisions = PRECISIONS.get(folder.name, ("float32",))
            backends = filter(importlib.util.find_spec, ("tensorflow", "jax"))
            for precision, backend in itertools.product(precisions, backends):
                measuring.progress(f"{folder.name} in {precision} on {backend}")
                command = [sys.executable, __file__, "--load", str(folder), "--precision", precision]
                environment = {**os.environ, "KERAS_BACKEND": backend}
                output = subprocess.run(
                    command, env=environment, check=True, capture_output=True, text=True
                ).stdout
                figures = json.loads(output.splitlines()[-1])
                ratio = figures["peak_mib"] / figures["weights_mib"]
                case = {"format": folder.name, "precision": precision, "backend": backend}
                rows.append({**case, **figures, "peak_of_weights": ratio})
    result = {"machine": measuring.machine(), "results": rows}
    measuring.write_result(options.name, result, options.output)
    print(measuring.table(rows))


if __name__ == "__main__":
    main()
