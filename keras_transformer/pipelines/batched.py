"""Batched generation and scoring: rows of similar length are batched, and results are returned in order."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer import generation
from keras_transformer.generation.validation import padding_value, seed_or_new


def generate(
    pipeline: Any,
    inputs: Mapping[str, np.ndarray],
    numbers: Sequence[int],
    prefix_ids: np.ndarray,
    limits: np.ndarray,
    batch_size: int,
) -> generation.Generation:
    """Generate with a pipeline's model and settings.

    Args:
        pipeline: with `model`, `sampler` and `constraints`.
        inputs: the outputs of the pipeline's `preprocess` for B ≥ 1 texts, as arrays.
        numbers: the row number of each text, which seeds its sampling noise.
        prefix_ids: integers (B, Q), Q = 0 without prefixes.
        limits: integers (B,), the maximum number of new tokens of each row.
        batch_size: the number of rows in a batch.

    Returns:
        A `Generation` with as many columns as the largest limit.
    """
    sampler, samples = pipeline.sampler, isinstance(pipeline.sampler, generation.Sample)
    if samples:  # one seed for all batches
        sampler = dataclasses.replace(sampler, seed=seed_or_new(sampler.seed))
    lengths = inputs["padding_mask"].sum(axis=1)
    row_batches = _batches(lengths, batch_size)
    results = [
        generation.generate(
            pipeline.model,
            sampler=sampler,
            max_new_tokens=limits[rows],
            constraints=pipeline.constraints,
            prefix_ids=prefix_ids[rows] if prefix_ids.size else None,
            rows=np.asarray(numbers)[rows] if samples else None,
            **{
                name: values[rows, : max(1, lengths[rows].max())] if values.ndim > 1 else values[rows]
                for name, values in inputs.items()
            },
        )
        for rows in row_batches
    ]
    original_order = np.argsort(np.concatenate(row_batches))
    padding_values = {"ids": padding_value(pipeline.model), "token_scores": 0}

    def joined(name: str) -> np.ndarray:
        values = [getattr(result, name) for result in results]
        if name in padding_values:
            values = [_pad_length(array, limits.max(), padding_values[name]) for array in values]
        return np.concatenate(values)[original_order]

    arrays = (field.name for field in dataclasses.fields(generation.Generation) if field.name != "seed")
    return generation.Generation(*map(joined, arrays), seed=results[0].seed)


def score(model: Any, inputs: Mapping[str, np.ndarray], batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-probabilities of targets (B,) and of each of their tokens (B, T).

    Args:
        model: see `generation.score`.
        inputs: the outputs of a pipeline's `preprocess_pairs` for B ≥ 1 pairs, as arrays.
        batch_size: the number of rows in a batch.
    """
    source_lengths = inputs["padding_mask"].sum(axis=1)
    target_lengths = inputs["target_padding_mask"].sum(axis=1)
    scores, token_scores = np.zeros(len(source_lengths)), np.zeros(inputs["target_ids"].shape)
    for rows in _batches(source_lengths + target_lengths, batch_size):
        width, length = source_lengths[rows].max(), target_lengths[rows].max()
        widths = {
            "source_ids": width,
            "padding_mask": width,
            "target_ids": length,
            "target_padding_mask": length,
        }
        arrays = {
            name: values[rows, : widths[name]] if name in widths else values[rows]
            for name, values in inputs.items()
        }
        out = generation.score(model, **arrays)
        scores[rows], token_scores[rows, :length] = out.scores, out.token_scores
    return scores, token_scores


def _batches(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Return the indices of all rows, in batches of similar length."""
    order = np.argsort(lengths, kind="stable")
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def _pad_length(values: np.ndarray, length: int, padding_value: int) -> np.ndarray:
    """Pad (B, N, M) to (B, N, length)."""
    return np.pad(values, [(0, 0), (0, 0), (0, length - values.shape[2])], constant_values=padding_value)
