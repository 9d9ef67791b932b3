"""Folders of `transformers` with a generation_config.json: are the ids of their `generate` those of our pipelines?

    .venv-bench/bin/python benchmarks/parity/generation_config.py            # --help lists the options

Small models with random weights are saved by `transformers`, with settings of generation in generation_config.json or
in config.json. `generate` is called there without any argument but the source, here with what
`pipelines.from_hugging_face` reads from the folder. Ours never generates padding, so it is among the `bad_words_ids`.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time
import warnings
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import measuring

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
# Configuration, model, constructor's arguments, and the ids of padding and end; padding is the start token too.
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


def make(name: str, folder: pathlib.Path, seed: int) -> tuple[Any, Any]:
    """Save a small model with random weights; return theirs, with an end token that comes early enough, and ours."""
    config, model, settings, pad, end = MODELS[name]
    torch.manual_seed(seed)
    ids = {"pad_token_id": pad, "eos_token_id": end, "decoder_start_token_id": pad}
    theirs = model(config(vocab_size=VOCABULARY, **settings, **ids)).eval()
    with torch.no_grad():
        for module in theirs.modules():
            if type(module) in (
                torch.nn.Linear,
                torch.nn.Embedding,
            ):  # not Marian's positions, which are waves
                module.weight.normal_(0, 0.25)
        if name == "marian":
            theirs.final_logits_bias[0, end] = 2.0
    theirs.save_pretrained(folder)
    return theirs, interop.from_hugging_face(folder)


def compare(name: str, folder: pathlib.Path, ours: Any, sources: np.ndarray) -> int:
    """The number of rows whose ids are equal."""
    _, model, _, pad, _ = MODELS[name]
    theirs = model.from_pretrained(folder).eval()
    out = theirs.generate(
        torch.tensor(sources), attention_mask=torch.tensor((sources != pad).astype(int))
    ).numpy()
    out = out[:, sources.shape[1] if name == "gpt2" else 1 :]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings = settings_from(folder, ours, {})
    limit = settings["max_new_tokens"]
    ids = np.full((len(sources), limit), pad)
    ids[:, : out.shape[1]] = out
    run = generation.Generator(
        ours, settings["generation"], limit, jit_compile=False, constraints=settings["constraints"]
    )
    more = [one.end_ids for one in settings["constraints"] if isinstance(one, generation.EndTokens)]
    ends = np.isin(ids, [ours.end_id, *(id_ for end_ids in more for id_ in end_ids)])
    after = (
        np.cumsum(ends, axis=1) - ends > 0
    )  # `transformers` pads with the end token where padding's id is 0
    return int((run(sources).best == np.where(after, pad, ids)).all(axis=1).sum())


def main() -> None:
    """Compare, print and write the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seed", type=int, default=3, help="of the weights (default: 3)")
    parser.add_argument("--output", type=pathlib.Path, default=measuring.RESULTS, help="folder of the JSON")
    options = parser.parse_args()
    start, results = time.perf_counter(), []
    for name in options.models:
        pad = MODELS[name][3]
        random = np.random.default_rng(0)
        sources = random.integers(3, VOCABULARY - 1, (options.rows, 10))
        for row, length in enumerate(random.integers(2, 11, options.rows)):
            sources[row, : 10 - length] = pad
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            _, ours = make(name, folder, options.seed)
            path, config = folder / "generation_config.json", folder / "config.json"
            plain, ids = json.loads(config.read_text()), json.loads(path.read_text())
            for case in CASES[name]:
                words = {"bad_words_ids": [[pad], *case.get("bad_words_ids", [])]}
                for legacy in (False, True):
                    path.unlink(missing_ok=True)
                    config.write_text(json.dumps({**plain, **case, **words} if legacy else plain))
                    if not legacy:
                        path.write_text(json.dumps({**ids, **case, **words}))
                    same = compare(name, folder, ours, sources)
                    place = "config.json" if legacy else "generation_config.json"
                    results.append(
                        {
                            "model": name,
                            "settings": case,
                            "place": place,
                            "rows": options.rows,
                            "identical": same,
                        }
                    )
                    print(results[-1], flush=True)
    total, same = (sum(one[count] for one in results) for count in ("rows", "identical"))
    print(f"identical: {same} of {total}")
    report = {
        **measuring.machine(),
        "seed": options.seed,
        "wall_seconds": time.perf_counter() - start,
        "identical": {"rows": total, "identical": same},
        "results": results,
    }
    print(f"written to {measuring.write_result('parity_generation_config', report, options.output)}")
    sys.exit(0 if same == total else 1)


if __name__ == "__main__":
    main()
