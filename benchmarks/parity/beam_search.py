"""Compare the ids of beam search in this package and in PyTorch `transformers`, with the same weights.

    .venv-bench/bin/python benchmarks/parity/beam_search.py            # --help lists the options

A small Marian model with random weights is saved by `transformers` and read by `interop.from_hugging_face`. Each search
runs with 1 to 8 beams and several length penalties. Definitions, and how they correspond:

- Both rank a hypothesis of n tokens by its summed log-probability divided by n to the power of `length_penalty`, here
  `normalization="length"`. (GNMT's penalty, the default here, does not exist in `transformers`.) n counts generated
  tokens and the end token, but not the start token or the prompt.
- Both consider 2·R candidates per step, move those of the R best that end to a separate set, and rank truncated
  hypotheses with it. At the limit, `transformers` ranks the R best candidates, this package the R best that end and the
  R best that do not: the n-best lists are the same.
- `early_stopping="never"` stops when no better hypothesis is possible, like `True` here. `False`, the default of
  `transformers`, bounds future scores by the current length ("heuristic" here), and `True` stops as soon as R
  hypotheses have ended ("num_beams" here): both may stop too early for a positive length penalty.
- `RepetitionPenalty` is applied to log-probabilities in beam search and to logits in greedy search.
- Neither generates padding, nor the start token, which has the same id in Marian.
"""

import argparse
import functools
import itertools
import os
import pathlib
import sys
import tempfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import torch
import transformers
from generation_config import make

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import references

from keras_transformer import generation

BEAMS = (1, 2, 3, 4, 6, 8)
PENALTIES = (-1.0, 0.0, 0.6, 1.0)
PAD, END = 59, 0
NEAR = 1e-4
EARLY_STOPPING = {"never": True, False: "heuristic", True: "num_beams"}
FACTORS = (1.2, 1.5, 3.0)
REPETITION_ROWS = 48


def reference_beam_search(
    model: Any,
    sources: np.ndarray,
    beams: int,
    penalty: float,
    early_stopping: Any,
    most: int,
    **settings: Any,
) -> np.ndarray:
    """Return the ids (B, M) that `transformers` generates."""
    out = model.generate(
        torch.tensor(sources),
        attention_mask=torch.tensor((sources != PAD).astype(int)),
        generation_config=transformers.GenerationConfig(
            num_beams=beams,
            length_penalty=penalty,
            early_stopping=early_stopping,
            num_return_sequences=1,
            max_new_tokens=most,
            do_sample=False,
            pad_token_id=PAD,
            eos_token_id=END,
            decoder_start_token_id=PAD,
            suppress_tokens=[PAD],
            **settings,
        ),
    ).numpy()[:, 1:]
    ids = np.full((len(sources), most), PAD)
    ids[:, : out.shape[1]] = out
    return ids


def sources_of(rows: int) -> np.ndarray:
    """Return random sources (rows, 10) of several lengths."""
    random = np.random.default_rng(0)
    sources = random.integers(1, PAD, (rows, 10))
    for row, length in enumerate(random.integers(2, 11, rows)):
        sources[row, length - 1] = END
        sources[row, length:] = PAD
    return sources


@functools.cache
def models(seed: int) -> tuple[Any, Any]:
    """Return the model of `transformers` and the model of this package, with the same weights."""
    with tempfile.TemporaryDirectory() as folder:
        return make(
            "marian", pathlib.Path(folder), seed, max_position_embeddings=64, forced_eos_token_id=None
        )


def compare_logits(run: references.Run) -> references.Figures:
    """Return the largest difference of logits."""
    peer, model = models(run.seed)
    sources = sources_of(run.options.rows)
    inputs = np.concatenate([np.full((len(sources), 1), PAD), sources[:, :6]], axis=1)
    with torch.no_grad():
        logits = peer(
            input_ids=torch.tensor(sources),
            attention_mask=torch.tensor((sources != PAD).astype(int)),
            decoder_input_ids=torch.tensor(inputs),
        ).logits.numpy()
    actual = np.asarray(model({"source_ids": sources, "target_ids": inputs}))
    # Outputs after padding are not defined.
    valid = np.cumsum(inputs[:, 1:] == PAD, axis=1) == 0
    return {"logits": float(np.abs(logits - actual)[:, 1:][valid].max())}


def compare(run: references.Run) -> references.Figures:
    """Count the rows whose ids are equal, and how the others are ranked."""
    if not run.case:
        return compare_logits(run)
    peer, model = models(run.seed)
    beams, penalty, early_stopping, factor = (
        run.case[name] for name in ("beams", "length_penalty", "early_stopping", "factor")
    )
    sources, tokens = sources_of(REPETITION_ROWS if factor else run.options.rows), run.options.tokens
    sampler = generation.Beam(beams, penalty, "length", EARLY_STOPPING[early_stopping])
    constraints = [generation.RepetitionPenalty(factor)] if factor else []
    out = generation.Generator(model, sampler, tokens, jit_compile=False, constraints=constraints)(sources)
    further = {"repetition_penalty": factor} if factor else {}
    ids = reference_beam_search(peer, sources, beams, penalty, early_stopping, tokens, **further)
    differs = (ids != out.best).any(axis=1)
    results = {**run.case, "rows": len(sources), "identical": int((~differs).sum())}
    if factor:  # `score` does not apply the penalty
        return {**results, "identical or near ties": [results["identical"], len(sources)]}
    # Lengths are counted by `score`, without padding.
    scored = generation.score(model, sources, ids)
    powers = np.maximum(np.arange(tokens + 1), 1.0) ** penalty
    gap = out.ranking_scores[:, 0] - scored.scores / powers[scored.lengths]
    near = int((differs & (np.abs(gap) <= NEAR)).sum())
    return {
        **results,
        "near_ties": near,
        "theirs_lower": int((differs & (gap > NEAR)).sum()),
        "theirs_higher": int((differs & (gap < -NEAR)).sum()),
        "mean_length": float(out.lengths.mean()),
        "identical or near ties": [results["identical"] + near, len(sources)],
    }


def cases() -> dict[str, dict[str, Any]]:
    """Return the cases by name: logits, searches, and searches with a repetition penalty."""
    results: dict[str, dict[str, Any]] = {"logits": {}}
    for beams, penalty in itertools.product(BEAMS, PENALTIES):
        for early_stopping in EARLY_STOPPING if beams > 1 else (False,):
            name = f"{beams} beams, length penalty {penalty}, early_stopping={early_stopping}"
            case = {
                "beams": beams,
                "length_penalty": penalty,
                "early_stopping": early_stopping,
                "factor": 0.0,
            }
            results[name] = case
    for beams, factor in itertools.product((1, 2, 4, 8), FACTORS):
        case = {"beams": beams, "length_penalty": 1.0, "early_stopping": "never", "factor": factor}
        results[f"{beams} beams, repetition penalty {factor}"] = case
    return results


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sizes."""
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=12)


REFERENCE = references.Reference(
    __file__,
    __doc__,
    cases(),
    compare,
    limits={"logits": 1e-4},
    equal=("identical or near ties",),
    seeds=(3,),
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
