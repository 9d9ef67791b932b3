"""Latency of an encoder as an ONNX graph: this package's export beside two exports of PyTorch.

`transformers` draws BERT's weights and saves them; this package reads its folder. All graphs run in ONNX Runtime with
the same options, that of this package with its weights in huge pages, as its serving library has them. All outputs
are compared with those of PyTorch ("difference"). The peers are `torch.onnx.export`, and its graph after the optimizer
for transformers that comes with ONNX Runtime, which fuses attention by hand-written patterns. The sequences of a batch
have different lengths.

    .venv-bench/bin/python benchmarks/encoder_latency.py            # --help lists the options
"""

import argparse
import contextlib
import functools
import os
import pathlib
import time
from typing import Any

import matrix_multiplications
import numpy as np
import runner

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

OURS, TORCH, OPTIMIZED = "ours", "torch.onnx", "torch.onnx, optimized"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
VOCABULARY_SIZE = 30522
MODELS = {"6 layers, d 384": (6, 12, 384), "12 layers, d 768": (12, 12, 768)}  # MiniLM's and BERT's
CASES = {
    f"{model}, batch {batch_size} × {length}": {"model": model, "batch_size": batch_size, "length": length}
    for model in MODELS
    for batch_size, length in ((1, 16), (1, 64), (1, 128), (8, 128))
}


def setup(folder: pathlib.Path, options: argparse.Namespace) -> None:
    """Write the models in the format of `transformers`."""
    import torch
    import transformers

    torch.manual_seed(0)
    for name, (layers, heads, size) in MODELS.items():
        config = transformers.BertConfig(
            num_hidden_layers=layers, num_attention_heads=heads, hidden_size=size, intermediate_size=4 * size
        )
        model = transformers.BertModel(config, add_pooling_layer=False).eval()
        for parameter in model.parameters():  # biases are zeros, which ONNX Runtime would not add
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.02)
        model.save_pretrained(folder / name)
        for case in CASES.values():
            if case["model"] == name:
                sizes = case["batch_size"], case["length"]
                values = {key: torch.from_numpy(value) for key, value in inputs(*sizes).items()}
                with torch.inference_mode():
                    expected = model(**values).last_hidden_state.numpy()
                np.save(folder / name / f"{sizes[0]}-{sizes[1]}.npy", expected)


def inputs(batch_size: int, length: int) -> dict[str, np.ndarray]:
    """Return random ids; the first sequence has the full length."""
    random = np.random.default_rng(length)
    lengths = [length, *random.integers(length // 2, length, batch_size - 1)]
    mask = np.arange(length) < np.array(lengths)[:, None]
    ids = np.where(mask, random.integers(1000, VOCABULARY_SIZE, mask.shape), 0)
    return dict(zip(INPUTS, (ids, mask.astype("int64"), np.zeros_like(ids)), strict=True))


def write_ours(model: pathlib.Path, path: pathlib.Path) -> None:
    """Write the graph of this package's export."""
    import onnx
    import tensorflow as tf

    from keras_transformer import interop
    from keras_transformer.export.to_onnx import conversion

    encoder = interop.from_hugging_face(model)

    def forward(input_ids: Any, attention_mask: Any, token_type_ids: Any) -> dict[str, Any]:
        padded = tf.where(attention_mask != 0, input_ids, tf.constant(encoder.pad_id, input_ids.dtype))
        return {"last_hidden_state": encoder({"token_ids": padded, "segment_ids": token_type_ids})}

    spec = [tf.TensorSpec([None, None], tf.int64, name=name) for name in INPUTS]
    axes = {name: ["batch_size", "sequence_length"] for name in (*INPUTS, "last_hidden_state")}
    onnx.save(conversion.convert("model", forward, spec, axes, encoder.weights), path)


def write_torch(model: pathlib.Path, path: pathlib.Path, optimized: bool = False) -> None:
    """Write the graph of `torch.onnx.export`, optionally after ONNX Runtime's optimizer for transformers."""
    import torch
    import transformers

    bert = transformers.BertModel.from_pretrained(model, add_pooling_layer=False).eval()
    example = tuple(torch.from_numpy(inputs(2, 16)[name]) for name in INPUTS)
    axes = {0: torch.export.Dim("batch_size"), 1: torch.export.Dim("sequence_length")}
    exported = torch.onnx.export(
        bert, kwargs=dict(zip(INPUTS, example, strict=True)), input_names=INPUTS, dynamo=True,
        output_names=("last_hidden_state",), dynamic_shapes=dict.fromkeys(INPUTS, axes), verbose=False,
    )  # fmt: skip
    exported.save(path)
    if optimized:
        from onnxruntime.transformers import optimizer

        heads, size = bert.config.num_attention_heads, bert.config.hidden_size
        optimizer.optimize_model(str(path), "bert", heads, size).save_model_to_file(str(path))


WRITERS = {OURS: write_ours, TORCH: write_torch, OPTIMIZED: functools.partial(write_torch, optimized=True)}


def prepare(case: dict[str, Any], context: runner.Context, contender: str) -> runner.Run:
    """Prepare a request in a session of the contender's graph."""
    model = context.folder / case["model"]
    session, values = opened(contender, model, context.threads), inputs(case["batch_size"], case["length"])
    real = values["attention_mask"] != 0
    expected = np.load(model / f"{case['batch_size']}-{case['length']}.npy")

    def run() -> runner.Figures:
        begin, busy = time.perf_counter(), time.process_time()
        (output,) = session.run(["last_hidden_state"], values)
        times = {"seconds": time.perf_counter() - begin, "processor_seconds": time.process_time() - busy}
        return {**times, "difference": float(np.abs(output - expected)[real].max())}

    return run


def prepare_matmuls(case: dict[str, Any], context: runner.Context) -> runner.Run:
    """Prepare only the multiplications by weights."""
    layers, _, size = MODELS[case["model"]]
    shapes = layers * [*4 * [(size, size)], (size, 4 * size), (4 * size, size)]
    rows = case["batch_size"] * case["length"]
    return matrix_multiplications.onnx_runtime(shapes, context.threads, rows, steps=1)


@functools.cache
def opened(contender: str, model: pathlib.Path, threads: int) -> Any:
    """Return the session of a contender's graph of a model."""
    import onnxruntime

    from keras_transformer_serving import huge_pages

    path = model / f"{contender}, {threads} threads.onnx"
    WRITERS[contender](model, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    memory = huge_pages.for_new_memory([0.0]) if contender == OURS else contextlib.nullcontext()
    with memory:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "sequences",
    CASES,
    {name: functools.partial(prepare, contender=name) for name in WRITERS},
    limits={"the matrix multiplications, by ONNX Runtime": prepare_matmuls},
    units=lambda case: case["batch_size"],
    threads=(1, 2),
    seconds=0.5,
    setup=setup,
    columns={"difference": ".1e"},
)

if __name__ == "__main__":
    BENCHMARK.main()
