"""How close the outputs of a graph in another precision are to the model's: a figure for what each task needs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]
Figures = dict[str, Any]

NEAR_TIE = 0.05  # a choice that is less probable than the model's by at most this is as good


class Pair(NamedTuple):
    """The outputs of a graph for a batch.

    Attributes:
        inputs: the inputs, by name.
        expected: the outputs of the model, by name.
        found: the outputs of the graph in another precision, by name.
    """

    inputs: Arrays
    expected: Arrays
    found: Arrays

    def real(self, name: str) -> np.ndarray:
        """Return which rows, or positions (B, S) if an output has them, of an output are not padding."""
        values = self.expected[name]
        if "attention_mask" not in self.inputs:
            return np.ones(values.shape[:1], bool)
        mask = np.asarray(self.inputs["attention_mask"]).astype(bool)
        if mask.shape == values.shape[:2]:
            return mask
        return np.asarray(mask.reshape(len(mask), -1).any(axis=1))


def tensors(pairs: Sequence[Pair]) -> Figures:
    """Return the largest "relative_error" of tensors of floats, and the least share of "identical_ids" of the others.

    The relative error is the norm of the error divided by the norm of the tensor. Ids are compared up to the first that
    differs in each row.
    """
    floats: dict[str, list[float]] = {}
    ids: dict[str, list[int]] = {}
    for pair in pairs:
        for name, values in pair.expected.items():
            found = pair.found[name]
            if values.dtype.kind == "f":
                sums = floats.setdefault(name, [0.0, 0.0])
                sums[0] += float(np.square(found - values, dtype="float64").sum())
                sums[1] += float(np.square(values, dtype="float64").sum())
            else:
                counts = ids.setdefault(name, [0, 0])
                for place, count in enumerate(identical_ids(found, values, values.shape[-1])):
                    counts[place] += count
    figures: Figures = {}
    if floats:
        errors = [error / norm if norm else error for error, norm in floats.values()]
        figures["relative_error"] = float(np.sqrt(np.max(errors)))
    if ids:
        figures["identical_ids"] = min(share(*counts) for counts in ids.values())
    return figures


def identical_ids(ids: np.ndarray, reference: np.ndarray, lengths: np.ndarray | int) -> tuple[int, int]:
    """Return the numbers of identical ids and of compared ids of rows: those up to the first that differs."""
    differs = ids != reference
    same = ~differs.any(axis=-1)
    equal = np.where(same, lengths, differs.argmax(axis=-1))
    return int(equal.sum()), int(equal.sum() + (~same).sum())


def share(equal: int, compared: int) -> float:
    """Return a share, 1 of nothing."""
    return equal / compared if compared else 1.0


def vectors(pairs: Sequence[Pair], name: str) -> Figures:
    """Return how close vectors (B, D) are: their cosines with the model's, and the ranking of texts by similarity.

    Returns:
        "mean_cosine" and "least_cosine", and "rank_correlation", Spearman's of the cosines of all pairs of rows.
    """
    expected, found = (
        _normalised(np.concatenate([getattr(pair, side)[name][pair.real(name)] for pair in pairs]))
        for side in ("expected", "found")
    )
    cosines = (expected * found).sum(axis=-1)
    above = np.triu_indices(len(expected), 1)
    return {
        "mean_cosine": float(np.mean(cosines)),
        "least_cosine": float(np.min(cosines)),
        "rank_correlation": rank_correlation((expected @ expected.T)[above], (found @ found.T)[above]),
    }


def ranking(pairs: Sequence[Pair], name: str) -> Figures:
    """Return the "rank_correlation", Spearman's, of the scores (B,) of rows."""
    expected, found = (
        np.concatenate([getattr(pair, side)[name][pair.real(name)] for pair in pairs])
        for side in ("expected", "found")
    )
    return {"rank_correlation": rank_correlation(expected, found)}


def choices(name: str, expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> Figures:
    """Return how close the choices of the most probable of C candidates are.

    Args:
        name: the name of the choices, such as "labels".
        expected: probabilities (…, C) by the model, of each batch.
        found: probabilities (…, C) by the graph.

    Returns:
        "identical_…", the share of choices that are the model's or, by the model, nearly as probable, and the
        "probability_difference", the mean difference of the probability of the model's choice.
    """
    same, differences = [], []
    for by_model, by_graph in zip(expected, found, strict=True):
        rows = [values.reshape(-1, values.shape[-1]) for values in (by_model, by_graph)]
        best, other = (values.argmax(axis=-1)[:, None] for values in rows)
        (best_found, best_model), other_model = (
            [np.take_along_axis(values, best, -1)[:, 0] for values in (rows[1], rows[0])],
            np.take_along_axis(rows[0], other, -1)[:, 0],
        )
        finite = np.isfinite(rows[1]).all(axis=-1)
        same += [(best_model - other_model <= NEAR_TIE) & finite]
        differences += [np.abs(best_found - best_model)]
    is_same, difference = np.concatenate(same), np.concatenate(differences)
    return {
        f"identical_{name}": share(int(is_same.sum()), len(is_same)),
        "probability_difference": float(difference.mean()) if len(difference) else 0.0,
    }


def real_values(
    pairs: Sequence[Pair], name: str, convert: Callable[[np.ndarray], np.ndarray] = lambda values: values
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the values of an output that are not padding, by the model and by the graph, of each batch.

    Args:
        pairs: the outputs.
        name: the name of the output.
        convert: a function of these values, such as `softmax`.
    """
    by_model = [convert(pair.expected[name][pair.real(name)]) for pair in pairs]
    return by_model, [convert(pair.found[name][pair.real(name)]) for pair in pairs]


def logits(pairs: Sequence[Pair]) -> Figures:
    """Return the "logit_error", the relative error of the logits that are not padding.

    It finds a wrong conversion of a model that prefers no candidate, such as one that has not been trained: every
    choice is then nearly as probable as the model's.
    """
    real = [{name: pair.real(name) for name in pair.expected if "logits" in name} for pair in pairs]
    only = [
        Pair(pair.inputs, *({name: side[name][kept] for name, kept in each.items()} for side in pair[1:]))
        for pair, each in zip(pairs, real, strict=True)
    ]
    return {"logit_error": tensors(only)["relative_error"]}


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of logits (…, C)."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True), dtype="float64")
    probabilities: np.ndarray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def _normalised(rows: np.ndarray) -> np.ndarray:
    values: np.ndarray = rows.astype("float64")
    norms = np.linalg.norm(values, axis=-1, keepdims=True)
    return values / np.where(norms == 0, 1, norms)


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's correlation, 1 of fewer than two values and of equal values."""
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return float("nan")
    ranks = [_ranks(values) for values in (first, second)]
    centred = [values - values.mean() for values in ranks] if len(first) else ranks
    norm = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float((centred[0] * centred[1]).sum()) / norm if norm else 1.0


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of values, equal for equal values."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: np.ndarray = (np.cumsum(counts) - (counts - 1) / 2)[places.reshape(-1)]
    return ranks
