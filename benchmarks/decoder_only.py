"""Generation by a decoder-only model of SmolLM2-135M's shape, beside llama.cpp and CTranslate2.

30 blocks, D 576, 9 heads and 3 of keys and values, hidden size 1,536, vocabulary 49,152, random weights: milliseconds
for a further token of each row after prompts of 32 or 512, in batches of 1, 8 and 32, by ONNX Runtime in float32, int8
and int4, by llama.cpp in F32, Q8_0 and Q4_0 (with the embeddings, which are also the output matrix, in Q8_0, as ours
are in 8 bits), and by CTranslate2 in float32 and int8. The multiplications by weights of a step alone, by ONNX Runtime
in each precision, are a lower limit.

    .venv-bench/bin/python benchmarks/decoder_only.py --llama FOLDER     # --quick tries it, --cases some of them

FOLDER is the site-packages folder of an environment of the same Python version with `llama-cpp-python` and `gguf`.
Without it llama.cpp is left out. Measure where nothing else runs: every step reads all weights.
"""

import argparse
import functools
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import matrix_multiplications
import numpy as np
import runner

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SHAPE = {"num_layers": 30, "num_heads": 9, "model_dim": 576, "hidden_dim": 1536, "num_kv_heads": 3}
VOCABULARY, EPSILON, WAVELENGTH, LENGTH = 49152, 1e-5, 100_000, 640
TOKENS = 64
PRECISIONS = ("float32", "int8", "int4")
FORMATS = ("F32", "Q8_0", "Q4_0")
GRAPHS = {f"ours, ONNX {precision}": precision for precision in PRECISIONS}
PEERS = {f"llama.cpp {name}": name for name in FORMATS}
LIMITS = {f"the matrix multiplications, by ONNX Runtime, {precision}": precision for precision in PRECISIONS}
CTRANSLATE2 = {f"CTranslate2 {precision}": precision for precision in ("float32", "int8")}
CASES = {
    "1 thread": {"threads": 1, "batch_size": 1, "prompt": 32},
    "2 threads": {"threads": 2, "batch_size": 1, "prompt": 32},
    "batch 8": {"threads": 1, "batch_size": 8, "prompt": 32},
    "batch 32": {"threads": 1, "batch_size": 32, "prompt": 32},
    "prompt 512": {"threads": 1, "batch_size": 1, "prompt": 512},
}

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
    for precision in CTRANSLATE2.values():
        write_ctranslate2(model, folder / f"ctranslate2_{precision}", precision)
    if options.llama:
        sys.path.append(str(options.llama))
        for name in FORMATS:
            write_gguf(model, folder / f"{name}.gguf", name)


def write_ctranslate2(model: Any, folder: pathlib.Path, precision: str) -> None:
    """Write the weights for CTranslate2."""
    from keras_transformer.export.to_ctranslate2.families import SPECIFICATIONS
    from keras_transformer.export.to_ctranslate2.weights import Weights

    weights = Weights()
    spec = SPECIFICATIONS[type(model)](model, weights, LENGTH)
    spec.register_vocabulary([piece(id_) for id_ in range(VOCABULARY)])
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = piece(0)
    spec.config.layer_norm_epsilon = weights.epsilon()
    spec.validate()
    spec.optimize(None if precision == "float32" else precision)
    folder.mkdir()
    spec.save(str(folder))


def piece(id_: int) -> str:
    """Return the token of an id in CTranslate2's vocabulary."""
    return f"<{id_}>"


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
    from keras_transformer_serving import sessions

    session = sessions.Sessions(lambda name: context.folder / f"{name}.onnx", threads=threads)(precision)

    def generate(ids: np.ndarray, tokens: int) -> np.ndarray:
        limits = np.full(len(ids), tokens, "int32")
        (found,) = session.run(["ids"], {"input_ids": ids, "max_new_tokens": limits})
        return found[:, 0, :tokens]

    return generate


def ctranslate2_model(precision: str, threads: int, context: runner.Context) -> Generate:
    """Return generation by CTranslate2."""
    import ctranslate2

    folder = context.folder / f"ctranslate2_{precision}"
    model = ctranslate2.Generator(str(folder), intra_threads=threads, compute_type=precision)

    def generate(ids: np.ndarray, tokens: int) -> np.ndarray:
        found = model.generate_batch(
            [[*map(piece, row)] for row in ids.tolist()],
            max_length=tokens,
            min_length=tokens,
            include_prompt_in_result=False,
        )
        return np.array([row.sequences_ids[0] for row in found])

    return generate


def llama_cpp(name: str, threads: int, context: runner.Context) -> Generate:
    """Return generation by llama.cpp, in which each row is a sequence of one context."""
    sys.path.append(str(context.options.llama))
    import llama_cpp as library

    rows = 32
    library.llama_backend_init()
    loaded = library.llama_model_load_from_file(
        str(context.folder / f"{name}.gguf").encode(), library.llama_model_default_params()
    )
    settings = library.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_seq_max = LENGTH * rows, LENGTH * rows, rows
    settings.n_threads = settings.n_threads_batch = threads
    model = library.llama_init_from_model(loaded, settings)
    batch = library.llama_batch_init(LENGTH * rows, 0, 1)

    def step(ids: np.ndarray, start: int) -> np.ndarray:
        """Read ids (B, T) at the positions from `start` on, and return the next ones (B,)."""
        count, length = ids.shape
        batch.n_tokens = count * length
        for place, (row, column) in enumerate(np.ndindex(count, length)):
            batch.token[place], batch.pos[place] = int(ids[row, column]), start + column
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, row
            batch.logits[place] = column + 1 == length
        if library.llama_decode(model, batch):
            raise RuntimeError("llama.cpp does not read the tokens")
        last = [library.llama_get_logits_ith(model, (row + 1) * length - 1) for row in range(count)]
        return np.array([np.ctypeslib.as_array(each, (VOCABULARY,)).argmax() for each in last])

    def generate(ids: np.ndarray, tokens: int) -> np.ndarray:
        library.llama_memory_clear(library.llama_get_memory(model), True)
        found = [step(ids, 0)]
        for number in range(1, tokens):
            found.append(step(found[-1][:, None], ids.shape[1] + number - 1))
        return np.stack(found, axis=1)

    return generate


def prepare(case: dict[str, Any], context: runner.Context, build: Callable[..., Generate]) -> runner.Run:
    """Prepare a request for all tokens, and one for the first token only."""
    generate = build(threads=case["threads"], context=context)
    shape = (case["batch_size"], case["prompt"])
    ids = np.random.default_rng(0).integers(1, VOCABULARY, shape).astype("int32")
    found = generate(ids, TOKENS)
    if found.shape != (len(ids), TOKENS):
        raise RuntimeError(f"generated {found.shape} ids")

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


def prepare_matmuls(case: dict[str, Any], context: runner.Context, precision: str) -> runner.Run:
    """Prepare only the multiplications by weights of a step."""
    size, hidden = SHAPE["model_dim"], SHAPE["hidden_dim"]
    keys = size * SHAPE["num_kv_heads"] // SHAPE["num_heads"]
    # Query, key and value; the output of attention; gate and hidden units; the output of the feed-forward network.
    layer = [(size, size + 2 * keys), (size, size), *2 * [(size, hidden)], (hidden, size)]
    shapes = [*SHAPE["num_layers"] * layer, (size, VOCABULARY)]
    multiply = matrix_multiplications.onnx_runtime(
        shapes, case["threads"], case["batch_size"], precision, TOKENS
    )

    def run() -> runner.Figures:
        times = runner.timed(multiply)
        return {f"{clock}_per_further_token": each / TOKENS for clock, each in times.items()}

    return run


def derive(case: dict[str, Any], measured: dict[str, Any]) -> None:
    """Record the number of threads, which is that of the case."""
    for figures in (*measured["limits"].values(), *measured["contenders"].values()):
        figures["threads"] = case["threads"]


BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "tokens",
    {name: {**case, **SHAPE} for name, case in CASES.items()},
    {
        **{
            name: functools.partial(prepare, build=functools.partial(graph, precision))
            for name, precision in GRAPHS.items()
        },
        **{
            name: functools.partial(prepare, build=functools.partial(llama_cpp, kind))
            for name, kind in PEERS.items()
        },
        **{
            name: functools.partial(prepare, build=functools.partial(ctranslate2_model, precision))
            for name, precision in CTRANSLATE2.items()
        },
    },
    limits={
        name: functools.partial(prepare_matmuls, precision=precision) for name, precision in LIMITS.items()
    },
    units=lambda case: TOKENS * case["batch_size"],
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
