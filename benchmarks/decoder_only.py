"""Generation by a decoder-only model of SmolLM2-135M's shape at batch 1, beside llama.cpp.

30 blocks, D 576, 9 heads and 3 of keys and values, hidden size 1,536, vocabulary 49,152, random weights: milliseconds
for each further token after a prompt of 32, by ONNX Runtime in float32, int8 and int4, and by llama.cpp in F32, Q8_0
and Q4_0 (with the embeddings, which are also the output matrix, in Q8_0, as ours are in 8 bits), on 1 and 2 threads.

    .venv/bin/python benchmarks/decoder_only.py --llama FOLDER     # about 10 minutes; --quick tries it

FOLDER is the site-packages folder of an environment of the same Python version with `llama-cpp-python` and `gguf`.
Without it only this package is measured. Measure where nothing else runs: every step reads all weights.
"""

import argparse
import functools
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import runner

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SHAPE = {"num_layers": 30, "num_heads": 9, "model_dim": 576, "hidden_dim": 1536, "num_kv_heads": 3}
VOCABULARY, EPSILON, WAVELENGTH, LENGTH = 49152, 1e-5, 100_000, 512
PROMPT, TOKENS = 32, 64
PRECISIONS = ("float32", "int8", "int4")
FORMATS = ("F32", "Q8_0", "Q4_0")
GRAPHS = {f"ours, ONNX {precision}": precision for precision in PRECISIONS}
PEERS = {f"llama.cpp {name}": name for name in FORMATS}

Generate = Callable[[np.ndarray, int], np.ndarray]


def setup(folder: pathlib.Path, options: argparse.Namespace) -> None:
    """Write the model with random weights as graphs, and for llama.cpp."""
    import keras
    import tensorflow as tf

    from keras_transformer import generation, models, ops
    from keras_transformer.export.to_onnx import conversion, precisions

    keras.utils.set_random_seed(0)
    model = models.Llama(
        VOCABULARY, **SHAPE, max_wavelength=WAVELENGTH, epsilon=EPSILON, tied=True, pad_id=None, end_id=0,
        max_length=LENGTH,
    )  # fmt: skip

    def loop(input_ids: Any, max_new_tokens: Any) -> dict[str, Any]:
        out = generation.generate_ids(
            model, input_ids, TOKENS, ops.GrowingCache(), limits=max_new_tokens, minimums=max_new_tokens
        )
        return {"ids": out["ids"]}

    spec = [
        tf.TensorSpec([None, None], tf.int32, name="input_ids"),
        tf.TensorSpec([None], tf.int32, name="max_new_tokens"),
    ]
    axes = {"input_ids": ["batch_size", "sequence_length"], "max_new_tokens": ["batch_size"]}
    graph = conversion.convert("generate", loop, spec, axes, model.weights)
    for precision in PRECISIONS:
        converted = precisions.CONVERTERS[precision](graph) if precision in precisions.CONVERTERS else graph
        conversion.save(converted, {}, folder / f"{precision}.onnx")
    if options.llama:
        sys.path.append(str(options.llama))
        for name in FORMATS:
            write_gguf(model, folder / f"{name}.gguf", name)


def write_gguf(model: Any, path: pathlib.Path, name: str) -> None:
    """Write the weights for llama.cpp, whose order of rotated features is another: the outputs are not the same."""
    import gguf
    from gguf import quants

    types = {each: gguf.GGMLQuantizationType[each] for each in FORMATS}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(LENGTH)
    writer.add_embedding_length(model.model_dim)
    writer.add_block_count(SHAPE["num_layers"])
    writer.add_feed_forward_length(SHAPE["hidden_dim"])
    writer.add_head_count(SHAPE["num_heads"])
    writer.add_head_count_kv(SHAPE["num_kv_heads"])
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(SHAPE["model_dim"] // SHAPE["num_heads"])
    writer.add_rope_freq_base(WAVELENGTH)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")

    def add(key: str, values: Any, kind: str = name) -> None:
        values = np.ascontiguousarray(values, "float32")
        kind = "F32" if values.ndim == 1 else kind
        data = values if kind == "F32" else quants.quantize(values, types[kind])
        writer.add_tensor(f"{key}.weight", data, raw_dtype=types[kind])

    weights = {weight.path: weight.numpy() for weight in model.weights}
    matrices = {
        "self_attention/query": "attn_q",
        "self_attention/key": "attn_k",
        "self_attention/value": "attn_v",
        "self_attention/output": "attn_output",
        "feed_forward/hidden": "ffn_gate",
        "feed_forward/gate": "ffn_up",
        "feed_forward/output": "ffn_down",
    }
    (embeddings,) = [values for values in weights.values() if len(values) == VOCABULARY]
    add("token_embd", embeddings, "Q8_0" if name == "Q4_0" else name)
    add("output_norm", np.ones(model.model_dim))
    for number in range(SHAPE["num_layers"]):
        for norm in ("attn_norm", "ffn_norm"):
            add(f"blk.{number}.{norm}", np.ones(model.model_dim))
        for ours, theirs in matrices.items():
            (values,) = [
                values for path, values in weights.items() if path.endswith(f"block_{number}/{ours}/kernel")
            ]
            add(f"blk.{number}.{theirs}", values.T)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def graph(precision: str, threads: int, context: runner.Context) -> Generate:
    """Return generation by an ONNX graph."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(context.folder / f"{precision}.onnx", settings)

    def generate(ids: np.ndarray, tokens: int) -> np.ndarray:
        (found,) = session.run(["ids"], {"input_ids": ids, "max_new_tokens": np.array([tokens], "int32")})
        return found[:, :tokens]

    return generate


def llama_cpp(name: str, threads: int, context: runner.Context) -> Generate:
    """Return generation by llama.cpp."""
    sys.path.append(str(context.options.llama))
    import llama_cpp

    model = llama_cpp.Llama(
        str(context.folder / f"{name}.gguf"), n_ctx=LENGTH, n_threads=threads, n_threads_batch=threads,
        verbose=False,
    )  # fmt: skip

    def generate(ids: np.ndarray, tokens: int) -> np.ndarray:
        model.reset()
        model.eval(ids[0].tolist())
        found = []
        for number in range(tokens):
            logits = llama_cpp.llama_get_logits_ith(model.ctx, -1)
            found.append(int(np.ctypeslib.as_array(logits, (VOCABULARY,)).argmax()))
            if number + 1 < tokens:
                model.eval(found[-1:])
        return np.array([found])

    return generate


def prepare(case: dict[str, Any], context: runner.Context, build: Callable[..., Generate]) -> runner.Run:
    """Prepare a request for all tokens, and one for the first token only."""
    generate = build(threads=case["threads"], context=context)
    ids = np.random.default_rng(0).integers(1, VOCABULARY, (1, PROMPT)).astype("int32")

    def run() -> runner.Figures:
        figures: runner.Figures = {}
        for suffix, tokens in (("_to_first_token", 1), ("", TOKENS)):
            begin, busy = time.perf_counter(), time.process_time()
            generate(ids, tokens)
            figures[f"seconds{suffix}"] = time.perf_counter() - begin
            figures[f"processor_seconds{suffix}"] = time.process_time() - busy
        for clock in ("seconds", "processor_seconds"):
            further = figures[clock] - figures[f"{clock}_to_first_token"]
            figures[f"{clock}_per_further_token"] = further / (TOKENS - 1)
        return figures

    return run


def derive(case: dict[str, Any], measured: dict[str, Any]) -> None:
    """Record the number of threads, which is that of the case."""
    for figures in measured["contenders"].values():
        figures["threads"] = case["threads"]


BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "tokens",
    {f"{count} thread{'s' * (count > 1)}": {"threads": count, **SHAPE} for count in (1, 2)},
    {
        **{
            name: functools.partial(prepare, build=functools.partial(graph, precision))
            for name, precision in GRAPHS.items()
        },
        **{
            name: functools.partial(prepare, build=functools.partial(llama_cpp, kind))
            for name, kind in PEERS.items()
        },
    },
    units=lambda case: TOKENS,
    threads=(0,),  # those of the case
    rounds=5,
    seconds=1.0,
    tries=1,
    fresh=True,
    setup=setup,
    derive=derive,
    columns={
        "seconds_to_first_token": ".4f",
        "seconds_per_further_token": ".5f",
        "processor_seconds_per_further_token": ".5f",
    },
    add_options=lambda parser: parser.add_argument("--llama", type=pathlib.Path, help="see above"),
)

if __name__ == "__main__":
    BENCHMARK.main()
