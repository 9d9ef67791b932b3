"""Embeddings of all-MiniLM-L6-v2 as published: this package's exports beside sentence-transformers.

All contenders get the same texts of different lengths (reviews, captions and sentences), one by one or 128 at once in
batches of 32, and return unit vectors. sentence-transformers runs its model in PyTorch, or the graph of
`torch.onnx.export` after the optimizer for transformers that comes with ONNX Runtime; in int8, the weights of that
graph are quantized as by its `export_dynamic_quantized_onnx_model`, each column with a scale. Its own code tokenizes,
sorts and pads in all of them. The serving library shares a batch between two threads or computes two batches at the
same time (`workers=2`), as is faster. "over HTTP" are requests to a server in the same process as their client: this
package's, or for sentence-transformers a plain Starlette one. "cosine" is the least one with the vectors of PyTorch in
float32.

    KERAS_TRANSFORMER_DATA=… .venv-bench/bin/python benchmarks/embeddings.py     # --help lists the options
"""

import argparse
import functools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import matrix_multiplications
import numpy as np
import runner
from int8_recipes import sources
from local_server import LocalServer

sys.path.append(str(pathlib.Path(__file__).parent / "parity"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

OURS, SERVER = "ours", "ours, over HTTP"
TORCH, ONNX = "sentence-transformers, PyTorch", "sentence-transformers, ONNX"
PEER_SERVER = f"{ONNX}, over HTTP"
LIMIT = "the matrix multiplications, by ONNX Runtime"
BATCH_SIZE, LAYERS, SIZE = 32, 6, 384
CASES = {
    f"{precision}, {name}": {"precision": precision, "texts": count}
    for precision in ("float32", "int8")
    for name, count in (("one text", 1), ("128 texts", 128))
}
Embed = Callable[[Sequence[str]], np.ndarray]


def texts(count: int) -> list[list[str]]:
    """Return the texts of several calls, from each source in turn."""
    by_source = sources(pathlib.Path(os.environ["KERAS_TRANSFORMER_DATA"]))
    mixed = [text for group in zip(*(each[100:400] for each in by_source), strict=True) for text in group]
    calls = 64 if count == 1 else 2
    return [mixed[count * call : count * (call + 1)] for call in range(calls)]


def setup(folder: pathlib.Path, options: argparse.Namespace) -> None:
    """Write the graphs, and the vectors of PyTorch."""
    import onnxruntime.quantization
    import published_checkpoints
    import torch
    from onnxruntime.transformers import optimizer

    import keras_transformer as kt

    model = published_checkpoints.minilm()
    pipeline = kt.pipelines.from_hugging_face(model)
    kt.export.bundle(pipeline, folder / "export", targets=["onnx"], precisions=("float32", "int8"))
    library = sentence_transformers(1)
    np.save(folder / "expected.npy", library.encode(texts(128)[0]))

    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: torch.ones((2, 16), dtype=torch.int64) for name in names}
    axes = {0: torch.export.Dim("batch_size"), 1: torch.export.Dim("sequence_length")}
    bert = library[0].auto_model
    path = str(folder / "float32.onnx")
    torch.onnx.export(
        bert, kwargs=inputs, input_names=names, output_names=("last_hidden_state",), dynamo=True,
        dynamic_shapes=dict.fromkeys(names, axes), verbose=False,
    ).save(path)  # fmt: skip
    quantized = {"weight_type": onnxruntime.quantization.QuantType.QInt8, "per_channel": True}
    onnxruntime.quantization.quantize_dynamic(path, folder / "int8.onnx", **quantized)
    heads, size = bert.config.num_attention_heads, bert.config.hidden_size
    optimizer.optimize_model(path, "bert", heads, size).save_model_to_file(path)


def sentence_transformers(threads: int) -> Any:
    """Return the model of sentence-transformers."""
    import published_checkpoints
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    return SentenceTransformer(str(published_checkpoints.minilm()), device="cpu")


def ours(case: dict[str, Any], context: runner.Context) -> Embed:
    """Return the serving library's function."""
    import keras_transformer_serving as serving

    workers = context.workers if case["texts"] > 1 else 1
    folder, precision = context.folder / "export", case["precision"]
    embed = serving.load(folder, precision=precision, threads=context.threads, workers=workers)
    return lambda batch: np.asarray(embed(batch, batch_size=BATCH_SIZE))


def over_http(case: dict[str, Any], context: runner.Context) -> Embed:
    """Return requests of text-embeddings-inference's protocol to the server, all texts of a call in one."""
    folder, precision = context.folder / "export", case["precision"]
    server = LocalServer.of_export(folder, precision=precision, threads=context.threads)
    return functools.partial(posted, server)


def in_pytorch(case: dict[str, Any], context: runner.Context) -> Embed:
    """Return sentence-transformers' function in PyTorch."""
    return functools.partial(sentence_transformers(context.threads).encode, batch_size=BATCH_SIZE)


def in_onnx(case: dict[str, Any], context: runner.Context) -> Embed:
    """Return sentence-transformers' function, whose model is an ONNX graph."""
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = context.threads
    path = context.folder / f"{case['precision']}.onnx"
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    library = sentence_transformers(context.threads)

    def forward(features: dict[str, Any], **_: Any) -> dict[str, Any]:
        (states,) = session.run(["last_hidden_state"], {name: features[name].numpy() for name in names})
        return {**features, "token_embeddings": torch.from_numpy(states)}

    library[0].forward = forward
    return functools.partial(library.encode, batch_size=BATCH_SIZE)


def peer_over_http(case: dict[str, Any], context: runner.Context) -> Embed:
    """Return requests to a plain Starlette server that calls sentence-transformers' function in another thread."""
    import asyncio

    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    encode = in_onnx(case, context)

    async def answer(request: Request) -> JSONResponse:
        vectors = await asyncio.to_thread(encode, (await request.json())["inputs"])
        return JSONResponse(vectors.tolist())

    server = LocalServer(Starlette(routes=[Route("/embed", answer, methods=["POST"])]), http="h11")
    return functools.partial(posted, server)


def posted(server: LocalServer, batch: Sequence[str]) -> np.ndarray:
    """Return the vectors that a server answers for texts."""
    return np.array(json.loads(server.post("/embed", {"inputs": batch})))


def prepare(case: dict[str, Any], context: runner.Context, create: Callable[..., Embed]) -> runner.Run:
    """Prepare calls with all texts of a case."""
    embed, calls = create(case, context), texts(case["texts"])
    found = np.asarray(embed(texts(128)[0]))
    cosine = float((found * np.load(context.folder / "expected.npy")).sum(-1).min())

    def run() -> runner.Figures:
        for batch in calls:
            embed(batch)
        return {"units": len(calls) * case["texts"], "cosine": cosine}

    return run


def prepare_matmuls(case: dict[str, Any], context: runner.Context) -> runner.Run:
    """Prepare only the multiplications by weights, of the mean number of tokens of a batch without its padding."""
    import published_checkpoints
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(published_checkpoints.minilm() / "tokenizer.json"))
    tokenizer.no_padding()
    calls = texts(case["texts"])
    batches = len(calls) * -(-case["texts"] // BATCH_SIZE)
    tokens = sum(len(each.ids) for batch in calls for each in tokenizer.encode_batch(batch))
    shapes = LAYERS * [*4 * [(SIZE, SIZE)], (SIZE, 4 * SIZE), (4 * SIZE, SIZE)]
    step = matrix_multiplications.onnx_runtime(
        shapes, context.threads, round(tokens / batches), case["precision"], batches
    )

    def run() -> runner.Figures:
        step()
        return {"units": len(calls) * case["texts"]}

    return run


CONTENDERS = {OURS: ours, SERVER: over_http, TORCH: in_pytorch, ONNX: in_onnx, PEER_SERVER: peer_over_http}
BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "texts",
    CASES,
    {name: functools.partial(prepare, create=create) for name, create in CONTENDERS.items()},
    limits={LIMIT: prepare_matmuls},
    applies=lambda case, contender: case["precision"] == "float32" or contender != TORCH,
    threads=(1, 2),
    seconds=1.0,
    setup=setup,
    columns={"cosine": ".4f"},
)

if __name__ == "__main__":
    BENCHMARK.main()
