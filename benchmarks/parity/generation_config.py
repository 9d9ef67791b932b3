"""Compare generated ids of `transformers` and of pipelines here, for folders with a generation_config.json.

    .venv-bench/bin/python benchmarks/parity/generation_config.py            # --help lists the options

Small models with random weights are saved by `transformers`, with generation settings in generation_config.json or in
config.json. `generate` of `transformers` is called with the source only; here the settings are those that
`pipelines.from_hugging_face` reads from the folder. Pipelines never generate padding, so `bad_words_ids` has it.
"""

import atexit
import functools
import json
import os
import pathlib
import shutil
import sys
import tempfile
import warnings
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import references

from keras_transformer import generation, interop
from keras_transformer.pipelines.hugging_face_generation import settings_from

VOCABULARY = 60
DECODER = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
ENCODER_DECODER = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "d_kv": 8}
MARIAN = {
    "d_model": 32,
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 64 for side in ("encoder", "decoder")},
    "activation_function": "swish",
    "scale_embedding": True,
}
# Config, model, constructor's arguments, and the ids of padding and end; the padding id is also the start id.
MODELS: dict[str, tuple[Any, Any, dict[str, Any], int, int]] = {
    "marian": (transformers.MarianConfig, transformers.MarianMTModel, MARIAN, VOCABULARY - 1, 0),
    "t5": (transformers.T5Config, transformers.T5ForConditionalGeneration, ENCODER_DECODER, 0, 1),
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel, DECODER, 0, 2),
}
CASES: dict[str, list[dict[str, Any]]] = {
    "marian": [
        {"num_beams": 4, "max_length": 16},
        {"num_beams": 4, "max_length": 16, "forced_eos_token_id": 0},  # as OPUS-MT
        {"num_beams": 6, "max_length": 16, "length_penalty": 2.0, "early_stopping": True},
        {"num_beams": 6, "max_length": 16, "length_penalty": 2.0, "early_stopping": False},
        {"num_beams": 6, "max_length": 16, "length_penalty": 2.0, "early_stopping": "never"},
        {"num_beams": 3, "max_length": 16, "length_penalty": -1.0, "forced_bos_token_id": 7},
        {
            "num_beams": 4,
            "max_length": 14,
            "min_length": 6,
            "no_repeat_ngram_size": 2,
            "repetition_penalty": 1.3,
            "forced_bos_token_id": 7,
            "forced_eos_token_id": 0,
            "bad_words_ids": [[5, 6], [9]],
            "suppress_tokens": [11, 12],
        },
        {"max_new_tokens": 9, "min_new_tokens": 3, "repetition_penalty": 1.5, "no_repeat_ngram_size": 3},
        {"max_length": 10, "min_length": 10, "forced_eos_token_id": 0},
        {"num_beams": 4, "max_length": 12, "eos_token_id": [0, 8]},
        {"do_sample": True, "top_k": 1, "temperature": 0.7, "max_length": 12},
    ],
    "t5": [
        {"num_beams": 4, "max_length": 16, "min_length": 5, "length_penalty": 2.0, "no_repeat_ngram_size": 3},
        {"num_beams": 2, "max_new_tokens": 12, "early_stopping": True, "repetition_penalty": 2.0},
        {"max_length": 12, "forced_eos_token_id": 1},
    ],
    "gpt2": [
        {"num_beams": 4, "max_new_tokens": 12},
        {"num_beams": 4, "max_new_tokens": 12, "early_stopping": True, "length_penalty": 1.5},
        {"max_new_tokens": 12, "min_new_tokens": 4, "forced_eos_token_id": 2, "bad_words_ids": [[5], [6]]},
    ],
}


def make(name: str, folder: pathlib.Path, seed: int, **changes: Any) -> tuple[Any, Any]:
    """Save a small model with random weights whose outputs have different lengths; return both models."""
    config, model, settings, pad, end = MODELS[name]
    torch.manual_seed(seed)
    ids = {"pad_token_id": pad, "eos_token_id": end, "decoder_start_token_id": pad}
    reference = model(config(**{"vocab_size": VOCABULARY, **settings, **ids, **changes})).eval()
    with torch.no_grad():
        for module in reference.modules():
            # Not Marian's positions, which are sinusoidal.
            if type(module) in (torch.nn.Linear, torch.nn.Embedding):
                module.weight.normal_(0, 0.25)
        if name == "marian":
            reference.final_logits_bias[0, end] = 2.0
    reference.save_pretrained(folder)
    return reference, interop.from_hugging_face(folder)


@functools.cache
def saved_model(name: str, seed: int) -> tuple[pathlib.Path, Any]:
    """Return a folder with a model of `transformers`, and the model read from it."""
    folder = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return folder, make(name, folder, seed)[1]


def sources_of(rows: int, pad: int, before: bool) -> np.ndarray:
    """Return random sources (rows, 10), padded before or after the tokens."""
    random = np.random.default_rng(0)
    sources = random.integers(3, VOCABULARY - 1, (rows, 10))
    for row, length in enumerate(random.integers(2, 11, rows)):
        sources[row, slice(10 - length) if before else slice(length, None)] = pad
    return sources


def compare(run: references.Run) -> references.Figures:
    """Count the rows whose ids are equal."""
    name, rows = run.case["model"], run.options.rows
    _, model, _, pad, _ = MODELS[name]
    plain, converted = saved_model(name, run.seed)
    # `transformers` continues prompts that are padded on the left.
    sources = sources_of(rows, pad, before=name == "gpt2")
    words = {"bad_words_ids": [[pad], *run.case["settings"].get("bad_words_ids", [])]}
    with tempfile.TemporaryDirectory() as copy:
        folder = pathlib.Path(shutil.copytree(plain, copy, dirs_exist_ok=True))
        path = folder / run.case["place"]
        path.write_text(json.dumps({**json.loads(path.read_text()), **run.case["settings"], **words}))
        if run.case["place"] == "config.json":
            (folder / "generation_config.json").unlink()
        reference = model.from_pretrained(folder).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            settings = settings_from(folder, converted, {})
    out = reference.generate(
        torch.tensor(sources), attention_mask=torch.tensor((sources != pad).astype(int))
    ).numpy()
    out = out[:, sources.shape[1] if name == "gpt2" else 1 :]
    limit = settings["max_new_tokens"]
    ids = np.full((len(sources), limit), pad)
    ids[:, : out.shape[1]] = out
    generator = generation.Generator(
        converted, settings["generation"], limit, jit_compile=False, constraints=settings["constraints"]
    )
    end_tokens = [
        constraint for constraint in settings["constraints"] if isinstance(constraint, generation.EndTokens)
    ]
    ends = np.isin(ids, [converted.end_id, *(id_ for constraint in end_tokens for id_ in constraint.end_ids)])
    after = np.cumsum(ends, axis=1) - ends > 0  # `transformers` pads with the end token if padding's id is 0
    same = (generator(sources).best == np.where(after, pad, ids)).all(axis=1)
    return {**run.case, "identical": [int(same.sum()), rows]}


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {
        f"{model}, {', '.join(f'{name}={value}' for name, value in settings.items())}, {place}": {
            "model": model,
            "settings": settings,
            "place": place,
        }
        for model, cases in CASES.items()
        for settings in cases
        for place in ("generation_config.json", "config.json")
    },
    compare,
    equal=("identical",),
    seeds=(3,),
    name="parity_generation_config",
    add_options=lambda parser: parser.add_argument("--rows", type=int, default=20),
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
