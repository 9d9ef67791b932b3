"""Compare models in `transformers` and in this package, with the same weights: logits, loss, gradients, generated ids.

Models of `transformers` with random weights are saved by `save_pretrained` and read by `interop.from_hugging_face`.

    .venv-bench/bin/python benchmarks/parity/hugging_face.py            # --help lists the options
"""

import dataclasses
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import tensorflow as tf
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import references

from keras_transformer import generation, interop
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.interop.hugging_face import ARCHITECTURES
from keras_transformer.training import LabelSmoothedCrossentropy

Arrays = dict[str, np.ndarray]
NEW_TOKENS = 16
KINK = 1e-6  # a ReLU's input closer to 0 than this may have either sign after rounding
# The same search in both: hypotheses ranked by the sum of log-probabilities, or by this sum divided by the length.
BEAMS = {
    "beam": (
        generation.Beam(4, length_penalty=0.0),
        {"num_beams": 4, "length_penalty": 0.0, "early_stopping": "never"},
    ),
    "beam, length": (
        generation.Beam(4, length_penalty=1.0, normalization="length"),
        {"num_beams": 4, "length_penalty": 1.0, "early_stopping": "never"},
    ),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One architecture.

    Attributes:
        config: the config class in `transformers`.
        model: the model class in `transformers`.
        small: settings of a small model.
        base: settings of the published size, in addition to the defaults of the class; None for no such size.
        inputs: (random, vocabulary size, pad id) → the arrays of one batch.
        reference_inputs: (arrays, pad id) → the arguments of the model of `transformers`.
        model_inputs: (arrays) → the inputs of the model of this package.
        labels: (arrays) → integers, one for each position of the logits; padding is ignored.
        prompts: (random, vocabulary size, pad id) → prompts, or None for a model that does not generate.
        pad_id: the padding id.
    """

    config: type
    model: type
    small: dict[str, Any]
    base: dict[str, Any] | None
    inputs: Callable[..., Arrays]
    reference_inputs: Callable[[Arrays, int], dict[str, Any]]
    model_inputs: Callable[[Arrays], Any]
    labels: Callable[[Arrays], np.ndarray]
    prompts: Callable[..., np.ndarray] | None = None
    pad_id: int = 0


def rows(
    random: np.random.Generator, vocabulary_size: int, pad_id: int, lengths: tuple[int, ...]
) -> np.ndarray:
    """Return random ids, padded on the right."""
    ids = random.integers(3, vocabulary_size - 1, (len(lengths), max(lengths)))
    return np.where(np.arange(max(lengths)) < np.array(lengths)[:, None], ids, pad_id)


def following(ids: np.ndarray, pad_id: int) -> np.ndarray:
    """Return the token after each token."""
    return np.concatenate([ids[:, 1:], np.full((len(ids), 1), pad_id)], axis=1)


def decoder(
    config: type, model: type, small: dict[str, Any], base: dict[str, Any] | None, **options: Any
) -> Case:
    """Return the case of a decoder-only model."""
    return Case(
        config,
        model,
        small,
        base,
        inputs=lambda random, size, pad: {"ids": rows(random, size, pad, (13, 9, 20)), "pad": np.array(pad)},
        reference_inputs=lambda arrays, pad: {
            "input_ids": torch.tensor(arrays["ids"]),
            "attention_mask": torch.tensor((arrays["ids"] != pad).astype("int64")),
        },
        model_inputs=lambda arrays: arrays["ids"],
        labels=lambda arrays: following(arrays["ids"], int(arrays["pad"])),
        **options,
    )


def encoder_decoder(start: int = 0) -> dict[str, Any]:
    """Return arguments of the case of an encoder–decoder, with the id of the start token."""
    return {
        "inputs": lambda random, size, pad: {
            "source": rows(random, size, pad, (11, 6, 15)),
            "target": np.concatenate([np.full((3, 1), start), rows(random, size, pad, (9, 12, 5))], axis=1),
            "pad": np.array(pad),
        },
        "reference_inputs": lambda arrays, pad: {
            "input_ids": torch.tensor(arrays["source"]),
            "attention_mask": torch.tensor((arrays["source"] != pad).astype("int64")),
            "decoder_input_ids": torch.tensor(arrays["target"]),
        },
        "model_inputs": lambda arrays: {"source_ids": arrays["source"], "target_ids": arrays["target"]},
        "labels": lambda arrays: following(arrays["target"], int(arrays["pad"])),
        "prompts": lambda random, size, pad: rows(random, size, pad, (11, 6, 15)),
    }


def t5(version: dict[str, Any], **base: Any) -> Case:
    """Return the case of a version of T5."""
    small = {"vocab_size": 300, "d_model": 64, "d_kv": 12, "d_ff": 128, "num_layers": 3, "num_heads": 4}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
    return Case(
        transformers.T5Config,
        transformers.T5ForConditionalGeneration,
        {**small, **buckets, **version, "decoder_start_token_id": 0},
        {**base, **version, "decoder_start_token_id": 0},
        **encoder_decoder(),
    )


# No two sizes are equal by chance.
LLAMA = {
    "vocab_size": 300,
    "hidden_size": 60,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 14,
    "eos_token_id": 2,
}
QWEN = {**LLAMA, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
GEMMA = {**LLAMA, "num_hidden_layers": 4, "sliding_window": 5, "query_pre_attn_scalar": 18}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "short_factor": [1.0, 1.2, 2.0],
    "long_factor": [1.0, 2.0, 5.0],
    "original_max_position_embeddings": 64,
}


def family(name: str, small: dict[str, Any]) -> Case:
    """Return the case of a family with Llama's settings."""
    return decoder(
        getattr(transformers, f"{name}Config" if name != "Gemma3" else "Gemma3TextConfig"),
        getattr(transformers, f"{name}ForCausalLM"),
        small,
        None,
        prompts=lambda random, size, pad: rows(random, size, pad, (7, 4, 9)),
    )


MARIAN = {
    "vocab_size": 300,
    "d_model": 64,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "activation_function": "swish",
    "scale_embedding": True,
    "decoder_start_token_id": 0,
    "eos_token_id": 2,
    "forced_eos_token_id": None,
}
CASES: dict[str, Case] = {
    "gpt2": decoder(
        transformers.GPT2Config,
        transformers.GPT2LMHeadModel,
        {"vocab_size": 300, "n_positions": 64, "n_embd": 64, "n_layer": 3, "n_head": 4, "eos_token_id": 2},
        {"eos_token_id": 2},
        prompts=lambda random, size, pad: rows(random, size, pad, (7, 4, 9)),
    ),
    "openai-gpt": decoder(
        transformers.OpenAIGPTConfig,
        transformers.OpenAIGPTLMHeadModel,
        {"vocab_size": 300, "n_positions": 64, "n_embd": 64, "n_layer": 3, "n_head": 4, "eos_token_id": 2},
        {"eos_token_id": 2},
        # OpenAI GPT counts positions from the first column, including padding, so all prompts have one length.
        prompts=lambda random, size, pad: rows(random, size, pad, (7, 7, 7)),
    ),
    "marian": Case(
        transformers.MarianConfig,
        transformers.MarianMTModel,
        MARIAN,
        {  # OPUS-MT's
            "vocab_size": 58101,
            "d_model": 512,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "encoder_ffn_dim": 2048,
            "decoder_ffn_dim": 2048,
            "activation_function": "swish",
            "scale_embedding": True,
            "decoder_start_token_id": 0,
            "eos_token_id": 2,
            "forced_eos_token_id": None,
        },
        **encoder_decoder(),
    ),
    "t5": t5({}, d_model=768, d_ff=3072, num_layers=12, num_heads=12),
    "t5-v1.1": t5(
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        d_model=768,
        d_ff=2048,
        num_layers=12,
        num_heads=12,
    ),
}


SEQ2SEQ = {
    **{
        name: value
        for name, value in MARIAN.items()
        if name not in ("activation_function", "scale_embedding")
    },
    "max_position_embeddings": 40,
    "forced_bos_token_id": None,
    "eos_token_id": 2,
}


def seq2seq(name: str, start: int, pad_id: int = 1, **changes: Any) -> Case:
    """Return the case of a relative of BART."""
    return Case(
        getattr(transformers, f"{name}Config"),
        getattr(transformers, f"{name}ForConditionalGeneration"),
        {**SEQ2SEQ, "decoder_start_token_id": start, **changes},
        None,
        **encoder_decoder(start),
        pad_id=pad_id,
    )


CASES |= {
    "bart": seq2seq("Bart", 2),
    "mbart": seq2seq("MBart", 2, scale_embedding=True),
    "m2m-100": seq2seq("M2M100", 2, scale_embedding=True, activation_function="gelu"),
    "pegasus": seq2seq("Pegasus", 0, 0, scale_embedding=True),
    "mt5": dataclasses.replace(
        t5({"feed_forward_proj": "gated-gelu"}),
        config=transformers.MT5Config,
        model=transformers.MT5ForConditionalGeneration,
        base=None,
    ),
    "llama": family("Llama", LLAMA),
    "llama, tied": family("Llama", {**LLAMA, "tie_word_embeddings": True, "rope_theta": 500.0}),
    "llama 3": family("Llama", {**LLAMA, "rope_parameters": LLAMA_3}),
    "llama, linear": family("Llama", {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    "llama, dynamic": family("Llama", {**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "mistral": family("Mistral", {**LLAMA, "sliding_window": 5}),
    "qwen 2": family("Qwen2", QWEN),
    "qwen 2, YaRN": family("Qwen2", {**LLAMA, "rope_parameters": YARN, "tie_word_embeddings": True}),
    "qwen 3": family("Qwen3", QWEN),
    "smollm 3": family("SmolLM3", {**LLAMA, "no_rope_layer_interval": 2, "rope_theta": 500.0}),
    "phi 3": family("Phi3", {**LLAMA, "sliding_window": 5}),
    "phi 3, LongRoPE": family(
        "Phi3",
        {
            **{name: value for name, value in LLAMA.items() if name != "head_dim"},
            "rope_parameters": LONGROPE,
            "partial_rotary_factor": 0.6,
            "original_max_position_embeddings": 64,
            "max_position_embeddings": 256,
        },
    ),
    "gemma": family("Gemma", LLAMA),
    "gemma 2": family("Gemma2", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma 3": family(
        "Gemma3",
        {**GEMMA, "sliding_window_pattern": 3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
}
# Further configurations, only in small sizes.
CASES["marian, fewer decoder layers"] = dataclasses.replace(
    CASES["marian"],
    small={**MARIAN, "decoder_layers": 1, "attention_dropout": 0.2, "activation_dropout": 0.3},
    base=None,
)
# The cache of `transformers` has as many layers as T5's encoder, so the decoder cannot have more.
CASES["t5, fewer decoder layers"] = dataclasses.replace(
    CASES["t5"], small={**CASES["t5"].small, "num_decoder_layers": 2}, base=None
)
CASES["gpt2, three dropouts"] = dataclasses.replace(
    CASES["gpt2"], small={**CASES["gpt2"].small, "attn_pdrop": 0.2, "embd_pdrop": 0.3}, base=None
)


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Set weights as after training: no bias is zero, no scale is one.

    The values are smaller in matrices of wide models, and in T5's query matrices, as T5 does not scale dot products.
    Otherwise attention weights would be near 0 or 1, and gradients dominated by rounding.
    """
    generator, deviation = torch.Generator().manual_seed(seed), 0.08 * (64 / model.config.hidden_size) ** 0.5
    with torch.no_grad():
        named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
        named += [(name, weight) for name, weight in model.named_buffers() if name.endswith("logits_bias")]
        for name, weight in named:
            matrix = min(weight.shape) > 1 and weight.dim() > 1
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(noise * deviation) if matrix else weight.add_(noise * 0.2)
            if name.endswith("Attention.q.weight"):
                weight.div_(model.config.d_kv**0.5)


def crossentropy(logits: torch.Tensor, labels: np.ndarray, pad_id: int) -> torch.Tensor:
    """Return the mean cross-entropy over tokens without padding."""
    flat = torch.tensor(labels).reshape(-1)
    return torch.nn.functional.cross_entropy(
        logits.reshape(len(flat), -1), torch.where(flat == pad_id, -100, flat), ignore_index=-100
    )


def watch_kinks(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return the smallest absolute input of each ReLU of T5 in the next batch, which fills the dictionary.

    The gradient is discontinuous at 0, so rounding determines the gradient of an input near 0.
    """
    nearest: dict[str, np.ndarray] = {}

    def watch(name: str, module: torch.nn.Module) -> None:
        def hook(_: Any, __: Any, output: torch.Tensor) -> None:
            nearest[f"{name}.weight"] = output.detach().abs().flatten(0, -2).amin(0).numpy()
            handle.remove()

        handle = module.register_forward_hook(hook)

    for name, module in model.named_modules():
        if name.endswith("DenseReluDense.wi"):
            watch(name, module)
    return nearest


def compare_step(
    case: Case, reference_model: Any, converted: Any, architecture: Any, arrays: Arrays, pad_id: int
) -> dict[str, Any]:
    """Compare logits, and the loss and gradients of one training step."""
    labels = case.labels(arrays)
    nearest = watch_kinks(reference_model)
    their_logits = reference_model(**case.reference_inputs(arrays, pad_id)).logits
    their_loss = crossentropy(their_logits, labels, pad_id)
    their_loss.backward()
    with tf.GradientTape() as tape:
        our_logits = converted(case.model_inputs(arrays), training=True)
        our_loss = LabelSmoothedCrossentropy(0.0, pad_id)(labels, our_logits)
    weights = converted.trainable_weights
    gradients = tape.gradient(our_loss, [weight.value for weight in weights])
    gradient_of = {
        id(weight): tf.convert_to_tensor(gradient)
        for weight, gradient in zip(weights, gradients, strict=True)
    }
    valid = labels != pad_id
    logits = np.abs(our_logits.numpy() - their_logits.detach().numpy())[valid]
    compared, kinks = [], 0
    their_gradients = {name: weight.grad for name, weight in reference_model.named_parameters()}
    for name, parameter in architecture.parameters(converted):
        reference = their_gradients.get(architecture.prefix + name)
        if reference is None:  # a buffer: ours can be trained
            continue
        parts = tuple(gradient_of[id(weight)] for weight in parameter.weights)
        results = dataclasses.replace(parameter, weights=parts, added=0.0).write()
        reference = reference.numpy()
        if reference.shape[0] == converted.vocabulary_size:  # PyTorch's embedding gives padding no gradient
            results, reference = np.delete(results, pad_id, axis=0), np.delete(reference, pad_id, axis=0)
        smooth = nearest.get(architecture.prefix + name, np.ones(len(reference))) > KINK
        compared.append((name, results[smooth], reference[smooth]))
        kinks += int((~smooth).sum())
    return {
        "logits": float(logits.max()),
        "logits, largest": float(their_logits.detach().abs().max()),
        "loss": abs(float(our_loss) / float(their_loss) - 1),
        **references.worst_gradient(compared),
        "gradients compared": len(compared),
        **({"units at a kink": kinks} if nearest else {}),
    }


def compare_generation(
    case: Case, reference_model: Any, converted: Any, prompts: np.ndarray, pad_id: int
) -> dict[str, bool]:
    """Return whether greedy and beam search generate equal ids."""
    decoder_only = not is_encoder_decoder(converted)
    # `transformers` continues prompts that are padded on the left.
    prompt_ids = (
        np.stack([np.roll(row, (row == pad_id).sum()) for row in prompts]) if decoder_only else prompts
    )
    settings = {
        "max_new_tokens": NEW_TOKENS,
        "do_sample": False,
        "pad_token_id": pad_id,
        "eos_token_id": converted.end_id,
        "bad_words_ids": [[pad_id]],
    }
    results = {}
    for name, (sampler, search) in {"greedy": ("greedy", {"num_beams": 1}), **BEAMS}.items():
        out = reference_model.generate(
            torch.tensor(prompt_ids),
            attention_mask=torch.tensor((prompt_ids != pad_id).astype("int64")),
            generation_config=transformers.GenerationConfig(
                **settings,
                **search,
                **({} if decoder_only else {"decoder_start_token_id": converted.start_id}),
            ),
        ).numpy()[:, prompt_ids.shape[1] if decoder_only else 1 :]
        expected = np.pad(out, [(0, 0), (0, NEW_TOKENS - out.shape[1])], constant_values=pad_id)
        ended = np.cumsum(expected == converted.end_id, axis=1) - (expected == converted.end_id) > 0
        expected = np.where(ended, pad_id, expected)  # beam search may pad with the end token
        best = generation.generate(converted, prompts, sampler, max_new_tokens=NEW_TOKENS).best
        results[f"ids, {name}"] = bool(np.array_equal(best, expected))
    return results


def compare(case: Case, settings: dict[str, Any], seed: int) -> references.Figures:
    """Compare one architecture."""
    random = np.random.default_rng(seed)
    reference_model = case.model(case.config(**settings, pad_token_id=case.pad_id)).eval()
    of_t5 = reference_model.config
    if getattr(of_t5, "scale_decoder_outputs", None) is False or of_t5.model_type == "mt5":
        # Published weights of T5 v1.1 and mT5 have two matrices; a new model of `transformers` has one.
        reference_model.lm_head.weight = torch.nn.Parameter(reference_model.lm_head.weight.detach().clone())
    randomise(reference_model, seed)
    with tempfile.TemporaryDirectory() as folder:
        reference_model.save_pretrained(folder)
        architecture = ARCHITECTURES[reference_model.config.model_type]
        without = {name: 0.0 for name in architecture.settings if name.endswith("dropout")}
        converted = interop.from_hugging_face(folder, **without)
        vocabulary_size, pad_id = reference_model.config.vocab_size, case.pad_id
        arrays = case.inputs(random, vocabulary_size, pad_id)
        result = compare_step(case, reference_model, converted, architecture, arrays, pad_id)
        with tempfile.TemporaryDirectory() as other:
            model_type = reference_model.config.model_type
            interop.to_hugging_face(converted, pathlib.Path(other) / "model", model_type)
            again = case.model.from_pretrained(pathlib.Path(other) / "model").eval()
            with torch.no_grad():
                arguments = case.reference_inputs(arrays, pad_id)
                result["written back"] = bool(
                    torch.equal(reference_model(**arguments).logits, again(**arguments).logits)
                )
        if case.prompts is not None:
            prompts = case.prompts(random, vocabulary_size, pad_id)
            result |= compare_generation(case, reference_model, converted, prompts, pad_id)
    return {"parameters": converted.count_params(), **result}


GENERATED = tuple(f"ids, {name}" for name in ("greedy", *BEAMS))
REFERENCE = references.Reference(
    __file__,
    __doc__,
    {
        f"{name}, {size}": (case, getattr(case, size))
        for name, case in CASES.items()
        for size in ("small", "base")
        if getattr(case, size) is not None
    },
    lambda run: compare(*run.case, run.seed),
    limits={"logits": 1e-4, "loss": 1e-3, "gradients": 1e-3},
    equal=("written back", *GENERATED),
    name="parity_hugging_face",
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
