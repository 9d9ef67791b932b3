"""Generation and scores of any number of rows: those of near length run together, and come back in their order."""

import dataclasses
from typing import Any

import numpy as np

from keras_transformer import generation


def generate(
    pipeline: Any, source_ids: np.ndarray, prefix_ids: np.ndarray, limits: np.ndarray, batch_size: int
) -> generation.Generation:
    """Generate with a pipeline's model and settings.

    Args:
        pipeline: with `model`, `sampler` and `constraints`.
        source_ids: integers (B, S), B ≥ 1.
        prefix_ids: integers (B, Q), Q = 0 where there are none.
        limits: integers (B,), the longest output of each row.
        batch_size: rows that run together.

    Returns:
        A `Generation` of as many columns as the largest limit.
    """
    pad_id, samples = pipeline.model.pad_id, isinstance(pipeline.sampler, generation.Sample)
    lengths = (source_ids != pad_id).sum(axis=1)
    rows_of = _batches(lengths, batch_size)
    parts = [
        generation.generate(
            pipeline.model,
            source_ids[rows, : max(1, lengths[rows].max())],
            pipeline.sampler,
            max_new_tokens=limits[rows],
            constraints=pipeline.constraints,
            prefix_ids=prefix_ids[rows] if prefix_ids.size else None,
            rows=rows if samples else None,
        )
        for rows in rows_of
    ]
    back = np.argsort(np.concatenate(rows_of))
    fillings = {"ids": pad_id, "token_scores": 0}

    def joined(name: str) -> np.ndarray:
        values = [getattr(part, name) for part in parts]
        if name in fillings:
            values = [_widened(one, limits.max(), fillings[name]) for one in values]
        return np.concatenate(values)[back]

    return generation.Generation(*(joined(field.name) for field in dataclasses.fields(generation.Generation)))


def score(
    model: Any, source_ids: np.ndarray, target_ids: np.ndarray, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of targets: of the whole (B,) and of each token (B, T).

    Args:
        model: as in `generation.score`.
        source_ids: integers (B, S), B ≥ 1.
        target_ids: integers (B, T), padding behind.
        batch_size: rows that run together.
    """
    sources, targets = ((ids != model.pad_id).sum(axis=1) for ids in (source_ids, target_ids))
    scores, token_scores = np.zeros(len(source_ids)), np.zeros(target_ids.shape)
    for rows in _batches(sources + targets, batch_size):
        width, longest = sources[rows].max(), targets[rows].max()
        out = generation.score(model, source_ids[rows, :width], target_ids[rows, :longest])
        scores[rows], token_scores[rows, :longest] = out.scores, out.token_scores
    return scores, token_scores


def _batches(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """The numbers of all rows, in batches."""
    order = np.argsort(lengths, kind="stable")
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def _widened(values: np.ndarray, length: int, filling: int) -> np.ndarray:
    """(B, N, M) filled up to (B, N, length)."""
    return np.pad(values, [(0, 0), (0, 0), (0, length - values.shape[2])], constant_values=filling)
