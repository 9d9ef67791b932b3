"""Tokens per second of generation: this package with XLA and as an ONNX graph, and its peers.

All contenders have the same weights: `transformers` draws and saves them, and the others read its files. All outputs
have the maximum length. The ids of all contenders are compared with the ids of `transformers`.

    .venv-bench/bin/python benchmarks/generation.py            # --help lists the options
"""

import argparse
import dataclasses
import functools
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import matrix_multiplications
import measuring
import numpy as np
import runner

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

XLA, GRAPH, GRAPH_INT8 = "ours, XLA", "ours, ONNX", "ours, ONNX int8"
HUGGING_FACE, HUB, CT2, CT2_INT8 = "transformers", "KerasHub, XLA", "CTranslate2", "CTranslate2 int8"
Generate = Callable[[np.ndarray, int, int], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model and the sizes of its requests.

    Attributes:
        compared: the names of contenders.
        given: the number of tokens of each source or prompt.
        tokens: the number of generated tokens.
        layers: the number of decoder layers.
        matmuls: the number of D × D matrices by which each decoder layer multiplies vectors in a step.
        requests: (batch size, beams) of each request.
    """

    compared: tuple[str, ...]
    given: int
    tokens: int
    layers: int
    matmuls: int
    size: int = 256
    vocabulary_size: int = 8000
    requests: tuple[tuple[int, int], ...] = ((1, 1), (1, 4), (8, 1), (8, 4))

    @property
    def weight_bytes(self) -> int:
        """The bytes of float32 weights that one step reads."""
        return 4 * (self.layers * self.matmuls * self.size**2 + self.vocabulary_size * self.size)

    def ids(self, batch_size: int) -> np.ndarray:
        """Return random sources."""
        random = np.random.default_rng(batch_size)
        return random.integers(4, self.vocabulary_size - 1, (batch_size, self.given), dtype="int32")


# Self-attention has 4 multiplications, cross-attention 2 (keys and values are projected once), feed-forward 8.
SEQ2SEQ = Shape((XLA, GRAPH, GRAPH_INT8, HUGGING_FACE, CT2, CT2_INT8), 32, 32, 3, 14)
SHAPES = {
    "seq2seq": SEQ2SEQ,
    "gpt": Shape((XLA, GRAPH, HUB, HUGGING_FACE), 16, 64, 4, 12),
    "large": dataclasses.replace(SEQ2SEQ, tokens=128, vocabulary_size=32000, requests=((32, 1), (64, 1))),
    "long": dataclasses.replace(SEQ2SEQ, tokens=256, vocabulary_size=32000, requests=((1, 4),)),
}
SEQ2SEQ_SHAPES = tuple(name for name in SHAPES if name != "gpt")


def setup(folder: pathlib.Path, options: argparse.Namespace) -> None:
    """Write the models in the format of `transformers`, encoder–decoders also in the format of CTranslate2."""
    import torch
    import transformers

    for name in SEQ2SEQ_SHAPES:
        torch.manual_seed(0)
        write_seq2seq(SHAPES[name], folder / name)

    torch.manual_seed(0)
    shape, end = SHAPES["gpt"], 0
    config = transformers.GPT2Config(
        vocab_size=shape.vocabulary_size, n_layer=shape.layers, n_head=8, n_embd=shape.size, n_positions=128,
        initializer_range=0.06, bos_token_id=end, eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).eval().save_pretrained(folder / "gpt")


def write_seq2seq(shape: Shape, folder: pathlib.Path) -> None:
    """Write an encoder–decoder with random weights, also for CTranslate2: in the folders float32 and int8."""
    import ctranslate2.converters.transformers as converters
    import transformers

    end, pad = 0, shape.vocabulary_size - 1  # as in published models
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", shape.layers), ("attention_heads", 8), ("ffn_dim", 4 * shape.size))
    }
    config = transformers.MarianConfig(
        vocab_size=shape.vocabulary_size, d_model=shape.size, scale_embedding=True, activation_function="relu",
        max_position_embeddings=512, init_std=0.06, eos_token_id=end, forced_eos_token_id=None,
        pad_token_id=pad, decoder_start_token_id=pad, **sides,
    )  # fmt: skip
    marian = transformers.MarianMTModel(config).eval()
    marian.final_logits_bias[0, pad] = -1e4  # padding is never generated
    marian.save_pretrained(folder)
    loader = converters.MarianMTLoader()
    for variant, quantization in (("float32", None), ("int8", "int8")):
        spec = loader.get_model_spec(marian)
        words = [str(id_) for id_ in range(pad)]  # CTranslate2's loader drops padding
        spec.register_source_vocabulary(words)
        spec.register_target_vocabulary(words)
        spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "", str(end), "1"
        # Arbitrary, because decoding starts from a vector of zeros.
        spec.config.decoder_start_token = str(end)
        spec.config.add_source_eos = False
        spec.validate()
        spec.optimize(quantization)
        (folder / variant).mkdir()
        spec.save(str(folder / variant))


def build_xla(name: str, folder: pathlib.Path, threads: int, precision: str | None = None) -> Generate:
    """Return generation by this package, compiled with XLA."""
    generation, model = _ours(name, folder, threads, precision)

    @functools.cache
    def generator(beams: int, tokens: int) -> Any:
        sampler = "greedy" if beams == 1 else _beam(generation, beams)
        return generation.Generator(model, sampler, tokens, min_new_tokens=tokens)

    return lambda ids, beams, tokens: generator(beams, tokens)(ids).best


def build_onnx(
    name: str,
    folder: pathlib.Path,
    threads: int,
    precision: str = "float32",
    providers: tuple[str, ...] = ("CPUExecutionProvider",),
) -> Generate:
    """Return generation by this package as one ONNX graph, run by ONNX Runtime."""
    import onnxruntime

    from keras_transformer_serving import huge_pages

    # One session for requests of every length: the threads of a session wait busily after each request, and would
    # take the cores from another session's.
    @functools.cache
    def session(beams: int) -> Any:
        path = folder / f"{name}-{beams}-{precision}.onnx"
        if not path.exists():
            write_onnx(name, folder, beams, precision, path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        with huge_pages.for_new_memory([0.0]):  # as the serving library
            return onnxruntime.InferenceSession(path, options, providers=providers)

    def generate(ids: np.ndarray, beams: int, tokens: int) -> np.ndarray:
        inputs = {"input_ids": ids, "max_new_tokens": np.full(len(ids), tokens, "int32")}
        return session(beams).run(["ids"], inputs)[0][:, :tokens]

    return generate


def write_onnx(name: str, folder: pathlib.Path, beams: int, precision: str, path: pathlib.Path) -> None:
    """Write the ONNX graph of the generation loop of this package."""
    import tensorflow as tf

    from keras_transformer import ops
    from keras_transformer.export.to_onnx import conversion, precisions

    generation, model = _ours(name, folder)

    def loop(input_ids: Any, max_new_tokens: Any) -> dict[str, Any]:
        out = generation.generate_ids(
            model, input_ids, SHAPES[name].tokens, ops.GrowingCache(), limits=max_new_tokens,
            minimums=max_new_tokens, sampler="greedy" if beams == 1 else _beam(generation, beams),
        )  # fmt: skip
        return {"ids": out["ids"][:, 0]}

    spec = [
        tf.TensorSpec([None, None], tf.int32, name="input_ids"),
        tf.TensorSpec([None], tf.int32, name="max_new_tokens"),
    ]
    batch = ["batch_size"]
    axes = {"input_ids": [*batch, "sequence_length"], "max_new_tokens": batch, "ids": batch}
    graph = conversion.convert("generate", loop, spec, axes, model.weights)
    conversion.save(precisions.to_int8(graph) if precision == "int8" else graph, {}, path)


def build_hugging_face(
    name: str, folder: pathlib.Path, threads: int, device: str = "cpu", precision: str = "float32"
) -> Generate:
    """Return generation by `transformers`."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    kind = transformers.MarianMTModel if name in SEQ2SEQ_SHAPES else transformers.GPT2LMHeadModel
    model = kind.from_pretrained(folder / name, dtype=precision).eval().to(device)

    def generate(ids: np.ndarray, beams: int, tokens: int) -> np.ndarray:
        input_ids = torch.from_numpy(ids.astype("int64")).to(device)
        with torch.inference_mode():
            out = model.generate(
                input_ids, attention_mask=torch.ones_like(input_ids), num_beams=beams, do_sample=False,
                min_new_tokens=tokens, max_new_tokens=tokens, length_penalty=0.0, early_stopping=beams > 1,
            )  # fmt: skip
        return out[:, -tokens:].cpu().numpy()

    return generate


def build_ctranslate2(
    name: str, folder: pathlib.Path, threads: int, device: str = "cpu", precision: str = "float32"
) -> Generate:
    """Return generation by CTranslate2."""
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder / name / ("int8" if precision == "int8" else "float32")), device=device, inter_threads=1,
        intra_threads=threads, compute_type=precision,
    )  # fmt: skip

    def generate(ids: np.ndarray, beams: int, tokens: int) -> np.ndarray:
        results = translator.translate_batch(
            [[str(id_) for id_ in row] for row in ids], beam_size=beams, length_penalty=0.0,
            min_decoding_length=tokens, max_decoding_length=tokens,
        )  # fmt: skip
        return np.array([[int(word) for word in result.hypotheses[0]] for result in results], "int32")

    return generate


def build_keras_hub(name: str, folder: pathlib.Path, threads: int) -> Generate:
    """Return generation by KerasHub's GPT-2, compiled with XLA."""
    _use_threads(threads)
    import keras_hub
    import safetensors.numpy

    shape = SHAPES[name]
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=shape.vocabulary_size, num_layers=shape.layers, num_heads=8,
        hidden_dim=shape.size, intermediate_dim=4 * shape.size, dropout=0.0, max_sequence_length=128,
    )  # fmt: skip
    weights = safetensors.numpy.load_file(folder / name / "model.safetensors")
    _copy_to_keras_hub(backbone, {key.removeprefix("transformer."): value for key, value in weights.items()})
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    model.compile(sampler="greedy", jit_compile=True)

    def generate(ids: np.ndarray, beams: int, tokens: int) -> np.ndarray:
        padded = np.pad(ids, [(0, 0), (0, tokens)])
        is_prompt = np.arange(padded.shape[1]) < ids.shape[1]
        mask = np.broadcast_to(is_prompt, padded.shape).astype("int32")
        out = model.generate({"token_ids": padded, "padding_mask": mask}, stop_token_ids=None)
        return np.asarray(out["token_ids"])[:, -tokens:]

    return generate


def _copy_to_keras_hub(backbone: Any, weights: dict[str, np.ndarray]) -> None:
    size = backbone.hidden_dim
    backbone.token_embedding.embeddings.assign(weights["wte.weight"])
    backbone.position_embedding.position_embeddings.assign(weights["wpe.weight"][:128])
    for number, layer in enumerate(backbone.transformer_layers):

        def of(name: str, number: int = number) -> np.ndarray:
            return weights[f"h.{number}.{name}"]

        attention = layer._self_attention_layer
        kernels = np.split(of("attn.c_attn.weight"), 3, axis=1)
        biases = np.split(of("attn.c_attn.bias"), 3)
        denses = (attention._query_dense, attention._key_dense, attention._value_dense)
        for dense, kernel, bias in zip(denses, kernels, biases, strict=True):
            dense.kernel.assign(kernel.reshape(dense.kernel.shape))
            dense.bias.assign(bias.reshape(dense.bias.shape))
        output = attention._output_dense
        output.kernel.assign(of("attn.c_proj.weight").reshape(output.kernel.shape))
        output.bias.assign(of("attn.c_proj.bias").reshape(size))
        for dense, name in (
            (layer._feedforward_intermediate_dense, "mlp.c_fc"),
            (layer._feedforward_output_dense, "mlp.c_proj"),
        ):
            dense.kernel.assign(of(f"{name}.weight"))
            dense.bias.assign(of(f"{name}.bias"))
        for norm, name in (
            (layer._self_attention_layer_norm, "ln_1"),
            (layer._feedforward_layer_norm, "ln_2"),
        ):
            norm.gamma.assign(of(f"{name}.weight"))
            norm.beta.assign(of(f"{name}.bias"))
    backbone.layer_norm.gamma.assign(weights["ln_f.weight"])
    backbone.layer_norm.beta.assign(weights["ln_f.bias"])


BUILDERS: dict[str, Callable[..., Generate]] = {
    XLA: build_xla,
    GRAPH: build_onnx,
    GRAPH_INT8: functools.partial(build_onnx, precision="int8"),
    HUGGING_FACE: build_hugging_face,
    CT2: build_ctranslate2,
    CT2_INT8: functools.partial(build_ctranslate2, precision="int8"),
    HUB: build_keras_hub,
}


def _use_threads(threads: int) -> None:
    if os.environ.get("KERAS_BACKEND") != "jax":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)


def _ours(name: str, folder: pathlib.Path, threads: int = 0, precision: str | None = None) -> tuple[Any, Any]:
    _use_threads(threads)
    from keras_transformer import generation, interop

    return generation, interop.from_hugging_face(folder / name, precision=precision, dropout=0.0)


def _beam(generation: Any, beams: int) -> Any:
    return generation.Beam(beams, length_penalty=0.0)


def prepare(case: dict[str, Any], context: runner.Context, build: Callable[..., Generate]) -> runner.Run:
    """Prepare a request for all tokens, and one for the first token only."""
    shape, sizes = SHAPES[case["shape"]], (case["batch_size"], case["beams"])
    generate = built(build, case["shape"], context.folder, context.threads)
    ids = shape.ids(sizes[0])

    def run() -> runner.Figures:
        begin, busy = time.perf_counter(), time.process_time()
        outputs = generate(ids, sizes[1], shape.tokens)
        times = {"seconds": time.perf_counter() - begin, "processor_seconds": time.process_time() - busy}
        first = measuring.seconds(lambda: generate(ids, sizes[1], 1))
        return {**times, "seconds_to_first_token": first, "ids": np.asarray(outputs).tolist()}

    return run


@functools.cache
def built(build: Callable[..., Generate], name: str, folder: pathlib.Path, threads: int) -> Generate:
    """Return the generation function of a contender and a model, once for all cases of a process."""
    return build(name, folder, threads)


def prepare_reading(case: dict[str, Any], context: runner.Context) -> runner.Run:
    """Prepare the multiplication of a vector by a matrix of as many bytes as the weights that a step reads."""
    size = SHAPES[case["shape"]].weight_bytes
    matrix, vector = np.ones((size // 4 // 256, 256), "float32"), np.ones(256, "float32")
    return lambda: {"seconds": min(measuring.seconds(lambda: matrix @ vector) for _ in range(200))}


def prepare_matmuls(
    case: dict[str, Any], context: runner.Context, multiply: Callable[..., Any]
) -> runner.Run:
    """Prepare only the matrix multiplications of a step, with a function of `matrix_multiplications`."""
    shape = SHAPES[case["shape"]]
    shapes = matrix_multiplications.matrices(shape.layers, shape.matmuls, shape.size, shape.vocabulary_size)
    rows = case["batch_size"] * case["beams"]
    steps = multiply(shapes, context.threads, rows)

    def run() -> runner.Figures:
        steps()
        return {"steps": matrix_multiplications.STEPS}

    return run


def prepare_empty_loop(case: dict[str, Any], context: runner.Context) -> runner.Run:
    """Prepare a loop of ONNX Runtime that computes nothing."""
    del case
    loop = matrix_multiplications.empty_loop(context.threads)

    def run() -> runner.Figures:
        loop()
        return {"steps": matrix_multiplications.STEPS}

    return run


CASES = {
    f"{name}, batch {batch_size}, {'greedy' if beams == 1 else f'beam {beams}'}": {
        **dataclasses.asdict(shape),
        "shape": name,
        "batch_size": batch_size,
        "beams": beams,
    }
    for name, shape in SHAPES.items()
    for batch_size, beams in shape.requests
}


def derive(case: dict[str, Any], measured: dict[str, Any]) -> None:
    """Compare the ids with the ids of `transformers`, and add the time per further token."""
    contenders = measured["contenders"]
    ids = {name: np.array(figures.pop("ids")) for name, figures in contenders.items()}
    for name, figures in contenders.items():
        further = figures["seconds"] - figures["seconds_to_first_token"]
        figures["seconds_per_further_token"] = further / (SHAPES[case["shape"]].tokens - 1)
        if HUGGING_FACE in ids:
            same = int((ids[name] == ids[HUGGING_FACE]).all(axis=1).sum())
            figures["rows_with_the_ids_of_transformers"] = same


def applies(case: dict[str, Any], contender: str) -> bool:
    """Return whether a contender supports the model and the search."""
    has_search = contender != HUB or case["beams"] == 1  # KerasHub's beams have other scores and duplicates
    return contender not in BUILDERS or (contender in SHAPES[case["shape"]].compared and has_search)


BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "tokens",
    CASES,
    {name: functools.partial(prepare, build=build) for name, build in BUILDERS.items()},
    limits={
        "reading the weights": prepare_reading,
        **{
            f"the matrix multiplications, by {library}": functools.partial(prepare_matmuls, multiply=multiply)
            for library, multiply in matrix_multiplications.LIBRARIES.items()
        },
        "an empty loop of ONNX Runtime": prepare_empty_loop,
    },
    applies=applies,
    units=lambda case: case["batch_size"] * case["tokens"],
    threads=(1, 2),
    seconds=0.4,
    setup=setup,
    derive=derive,
    columns={
        "seconds_to_first_token": ".4f",
        "seconds_per_further_token": ".5f",
        "rows_with_the_ids_of_transformers": ".0f",
    },
)

if __name__ == "__main__":
    BENCHMARK.main()
