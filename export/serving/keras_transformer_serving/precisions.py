"""How close exports in float16, int8 and int4 must be to the pipeline, and the comparison."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving import closeness
from keras_transformer_serving.parity import Arrays, Example, ParityError, Reference
from keras_transformer_serving.row_options import TEMPERATURES
from keras_transformer_serving.tasks import ExportedPipeline, Task

# The least value of shares, cosines and correlations, and the largest of errors, by the figures of `closeness`.
#
# Some ids differ, where two have nearly equal logits or noise falls between them, more in texts made from the
# vocabulary than in real ones. float16 rounds each value to 11 significant bits, int8 weights and activations to 8: of
# 1,500 sentences, a trained translator gave 1,500 and 1,499 identical translations. A wrong conversion changes nearly
# all ids, and gives vectors with cosines near 0. docs/int8.md has what real models measure.
THRESHOLDS = {
    "float16": {
        "identical_ids": 0.98,
        "score_difference": 0.02,
        "relative_error": 0.01,
        "mean_cosine": 0.9999,
        "least_cosine": 0.999,
        "rank_correlation": 0.99,
        "probability_difference": 0.005,
        "logit_error": 0.05,
    },
    "int8": {
        "identical_ids": 0.9,
        "score_difference": 0.2,
        "relative_error": 0.1,
        "mean_cosine": 0.99,
        "least_cosine": 0.97,
        "rank_correlation": 0.95,
        "probability_difference": 0.05,
        "logit_error": 0.3,
    },
    "int4": {
        "identical_ids": 0.5,
        "score_difference": 1.0,
    },  # of language models, the only ones with this precision
}
for _precision, _share in (("float16", 0.98), ("int8", 0.9)):
    for _choices in ("labels", "tags", "pieces", "spans", "frames"):
        THRESHOLDS[_precision][f"identical_{_choices}"] = _share
_MOST_CHARACTERS = 300  # of an error in the manifest
_LARGEST = ("score_difference", "relative_error", "probability_difference", "logit_error")


def compare(
    precision: str,
    expected: Reference | Sequence[Example],
    graphs: Any,
    config: dict[str, Any],
    task: type[Task] | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Compare the graphs that were exported in a precision with the outputs of the pipeline.

    Args:
        precision: "float16", "int8" or "int4".
        expected: the reference outputs of a pipeline that generates; for others, inputs with the model's outputs.
        graphs: the graphs in that precision, as for `parity.compare_generated` or `parity.compare_tensors`.
        config: the settings of the export.
        task: the task of the pipeline; by default the registered one of its name.
        thresholds: the thresholds, by figure; by default those of `THRESHOLDS` for the figures of the task.

    Returns:
        The figures, and the "thresholds" that apply to them. The figures of a pipeline that generates are the numbers
        of "identical" and "different" outputs, the share "identical_ids" among the ids up to the first that differs
        (which counts as identical if it is one of `parity.NearChoices`), and the largest "score_difference" of
        identical outputs, divided by their lengths. Those of others are those of the task (`Task.closeness`); with
        other `thresholds`, also those of `closeness.tensors`.
    """
    if isinstance(expected, Reference):
        # The same noise draws another token where its boundary is rounded otherwise, so that draws are compared at the
        # lowest temperature, where they are the most probable tokens.
        coldest = {"temperature": TEMPERATURES[0]} if expected.draws else {}
        outputs = graphs.generate(expected.texts, **expected.languages, **coldest)
        row = _compare_ids(expected.choices, outputs)
        figures = {name for name in row if name in THRESHOLDS[precision]}
    else:
        task = task or ExportedPipeline.named(config["pipeline"]) or Task
        pairs = [
            closeness.Pair(example.inputs, example.outputs, graphs(example.graph, example.inputs))
            for example in expected
        ]
        row = task.closeness(pairs, config)
        figures = set(row)
        if not figures >= {*(thresholds or ())}:  # of exports of earlier versions
            row = {**closeness.tensors(pairs), **row}
    if thresholds is None:
        thresholds = {name: limit for name, limit in THRESHOLDS[precision].items() if name in figures}
    return {**row, "thresholds": dict(thresholds)}


class ShortfallError(ParityError):
    """The graphs of a precision are not close enough to the pipeline.

    Args:
        precision: the precision.
        shortfall: the figures that do not reach their thresholds.
        remedy: what may help besides leaving the precision out; "" for nothing.

    Attributes:
        reason: the figures, and the remedy.
    """

    def __init__(self, precision: str, shortfall: str, remedy: str) -> None:
        super().__init__(
            f"`precisions` must have graphs that are close to the pipeline. Leave {precision} out"
            f"{remedy and f', or {remedy}'}. Received: {precision}, whose {shortfall}"
        )
        self.reason = f"{shortfall}{remedy and f'; {remedy}'}"


def check(precision: str, row: dict[str, Any], remedy: str = "") -> dict[str, Any]:
    """Return the report of `compare` on a precision.

    Args:
        precision: the precision.
        row: the report.
        remedy: see `ShortfallError`.

    Raises:
        ShortfallError: if a figure does not reach its threshold.
    """
    short = []
    for name, limit in row["thresholds"].items():
        is_error = name in _LARGEST
        if not (row[name] <= limit if is_error else row[name] >= limit):  # NaN does not
            bound = f"{'most' if is_error else 'least'} {limit:g}"
            short.append(f"{name.replace('_', ' ')} is {row[name]:.3g} and must be at {bound}")
    if short:
        raise ShortfallError(precision, "; ".join(short), remedy)
    return row


def reason(error: Exception) -> str:
    """Return why a precision is left out, in one line."""
    if isinstance(error, ShortfallError):
        return error.reason
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MOST_CHARACTERS]


def _compare_ids(expected: Reference, outputs: Arrays) -> dict[str, Any]:
    """Compare the first hypotheses of all texts."""
    rows = len(expected.texts)
    ids, reference = (
        array.reshape(rows, -1, array.shape[-1])[:, 0] for array in (outputs["ids"], expected.ids)
    )
    scores, lengths = (outputs[name].reshape(rows, -1)[:, 0] for name in ("scores", "lengths"))
    same = (ids == reference).all(axis=-1)
    differences = np.abs(scores - expected.scores)[same] / np.maximum(lengths[same], 1)
    return {
        "identical": int(same.sum()),
        "different": int((~same).sum()),
        "identical_ids": closeness.share(*_identical_ids(expected, ids, reference, lengths)),
        "score_difference": float(differences.max(initial=0)),
    }


def _identical_ids(
    expected: Reference, ids: np.ndarray, reference: np.ndarray, lengths: np.ndarray
) -> tuple[int, int]:
    """Return the numbers of identical ids and of compared ids; a near choice counts as identical, and ends its row."""
    equal, compared = closeness.identical_ids(ids, reference, lengths)
    differs = ids != reference
    for row in np.flatnonzero(differs.any(axis=-1)).tolist():
        step = int(differs[row].argmax())
        choices = expected.near_choices(row) if expected.near_choices else []
        equal += (step, int(ids[row, step])) in choices
    return equal, compared
