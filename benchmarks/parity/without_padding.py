"""Compare GPT-2 and OpenAI GPT without a padding id in `transformers` and in this package, with end tokens in prompts.

Prompts begin with the end token, contain it as a separator of documents, or consist of it. Batches are padded with an
ordinary token, so that only the mask marks padding.

    .venv-bench/bin/python benchmarks/parity/without_padding.py            # --help lists the options
"""

import os
import pathlib
import sys
import tempfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import references

from keras_transformer import generation, interop

NEW_TOKENS = 16
SIZES = {"vocab_size": 300, "n_positions": 64, "n_embd": 64, "n_layer": 3, "n_head": 4}
SAMPLERS = {
    "greedy": ("greedy", {"num_beams": 1}),
    "beam": (
        generation.Beam(4, length_penalty=1.0, normalization="length"),
        {"num_beams": 4, "length_penalty": 1.0, "early_stopping": "never"},
    ),
}


def models(name: str, end_id: int, folder: str) -> tuple[Any, Any]:
    """Return a random model of `transformers`, and the same model read from its folder."""
    classes = {
        "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
        "openai-gpt": (transformers.OpenAIGPTConfig, transformers.OpenAIGPTLMHeadModel),
    }
    config, model = classes[name]
    reference = model(config(**SIZES, bos_token_id=end_id, eos_token_id=end_id)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in reference.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    reference.save_pretrained(folder)
    return reference, interop.from_hugging_face(folder, dropout=0.0)


def prompts(
    random: np.random.Generator, end_id: int, count: int, lengths: tuple[int, int]
) -> list[list[int]]:
    """Return random prompts: a third begin with the end token, a third contain it, and one has only end tokens."""
    rows = []
    for number in range(count):
        row = random.integers(3, SIZES["vocab_size"], random.integers(*lengths)).tolist()
        place = {0: 0, 1: len(row) // 2}.get(number % 3)
        if place is not None:
            row[place] = end_id
        rows.append(row)
    return [[end_id] * lengths[0], *rows]


def batch(rows: list[list[int]], value: int, left: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return padded ids and their mask."""
    length = max(map(len, rows))
    ids, mask = np.full((len(rows), length), value), np.zeros((len(rows), length), "int64")
    for i, row in enumerate(rows):
        place = slice(length - len(row), None) if left else slice(len(row))
        ids[i, place], mask[i, place] = row, 1
    return ids, mask


def compare(name: str, end_id: int, count: int) -> references.Figures:
    """Return the largest difference of logits, and the number of rows with the same ids."""
    random = np.random.default_rng(0)
    # OpenAI GPT counts positions from the first column, including padding, so all prompts have one length.
    rows = prompts(random, end_id, count - 1, (1, 12) if name == "gpt2" else (6, 7))
    with tempfile.TemporaryDirectory() as folder:
        reference, converted = models(name, end_id, folder)
    ids, mask = batch(rows, 7, left=False)
    with torch.no_grad():
        expected = reference(torch.tensor(ids), attention_mask=torch.tensor(mask)).logits.numpy()
    actual = np.asarray(converted({"token_ids": ids, "padding_mask": mask != 0}, training=False))
    result = {
        "pad_id": converted.pad_id,
        "rows": count,
        "logits": float(np.abs(expected - actual)[mask != 0].max()),
    }
    left, left_mask = batch(rows, 7, left=True)
    for sampler, (our_sampler, search) in SAMPLERS.items():
        settings = transformers.GenerationConfig(
            max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=end_id, pad_token_id=end_id, **search
        )
        out = reference.generate(
            torch.tensor(left), attention_mask=torch.tensor(left_mask), generation_config=settings
        ).numpy()[:, left.shape[1] :]
        expected = np.pad(out, [(0, 0), (0, NEW_TOKENS - out.shape[1])], constant_values=end_id)
        best = generation.generate(
            converted, ids, our_sampler, max_new_tokens=NEW_TOKENS, padding_mask=mask != 0
        ).best
        result[f"ids, {sampler}"] = [int((best == expected).all(axis=1).sum()), count]
    return result


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {
        "gpt2": {"end_id": 299},
        "openai-gpt": {"end_id": 0},
    },  # GPT-1 has no end token; unknown ends a text here
    lambda run: compare(run.name, run.case["end_id"], run.options.rows),
    limits={"logits": 1e-4},
    equal=tuple(f"ids, {sampler}" for sampler in SAMPLERS),
    name="parity_without_padding",
    add_options=lambda parser: parser.add_argument("--rows", type=int, default=48),
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
