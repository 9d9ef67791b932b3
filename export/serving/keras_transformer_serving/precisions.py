"""How close exported ONNX graphs in float16 and int8 must be to the pipeline, and the comparison."""

import dataclasses
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.bundle import ONNX, Bundle
from keras_transformer_serving.graph_files import converted_precisions
from keras_transformer_serving.parity import (
    EXAMPLES,
    Arrays,
    Example,
    ParityError,
    Reference,
    compare_with_stored,
    load_examples,
    onnx_runner,
)


@dataclasses.dataclass(frozen=True)
class Threshold:
    """How far the graphs of a precision may be from the pipeline.

    Attributes:
        identical_ids: the least share of identical ids, among those generated after identical ids, also in a graph of a
            pipeline that does not generate, such as that of speech.
        score_difference: the largest difference of the scores of identical outputs, divided by their lengths.
        relative_error: the largest relative error of an output tensor of floats: the norm of its error divided by its
            norm.
    """

    identical_ids: float
    score_difference: float
    relative_error: float


# Some ids differ, where two have nearly equal logits or noise falls between them, more in texts made from the
# vocabulary than in real ones. float16 rounds each value to 11 significant bits, int8 weights and activations to 8: of
# 1,500 sentences, a trained translator gave 1,500 and 1,499 identical translations. A wrong conversion changes nearly
# all ids.
THRESHOLDS = {
    "float16": Threshold(identical_ids=0.98, score_difference=0.02, relative_error=0.01),
    "int8": Threshold(identical_ids=0.9, score_difference=0.2, relative_error=0.1),
}


def compare_onnx_with_stored(bundle: Bundle) -> dict[str, Any]:
    """Compare the ONNX graphs of an export, in each precision, with the outputs that were stored at export.

    Args:
        bundle: the export.

    Returns:
        The report of `parity.compare_with_stored`, and "precisions", the reports of `compare` for others than float32.

    Raises:
        ParityError: if an output differs too much.
    """
    report, stored = compare_with_stored(bundle, ONNX, onnx_runner(bundle)), bundle.parity[ONNX]
    expected: Any = None
    if "examples" in stored:
        expected = Reference.stored(stored)
    else:
        expected = load_examples(io.BytesIO(bundle.read(f"{ONNX}/{EXAMPLES}")))
    rows = {
        precision: compare(precision, expected, onnx_runner(bundle, precision))
        for precision in converted_precisions(bundle)
    }
    if set(rows) != set(stored.get("precisions", {})):
        raise ParityError(
            f"`{bundle.folder / ONNX}` must have the precisions {sorted(stored.get('precisions', {}))}. "
            f"Export it again. Received: {sorted(rows)}"
        )
    return {**report, "precisions": rows} if rows else report


def compare(precision: str, expected: Reference | Sequence[Example], graphs: Any) -> dict[str, Any]:
    """Compare the graphs that were exported in a precision with the outputs of the pipeline.

    Args:
        precision: "float16" or "int8".
        expected: the reference outputs of a pipeline that generates; for others, inputs with the model's outputs.
        graphs: the graphs in that precision, as for `parity.compare_generated` or `parity.compare_tensors`.

    Returns:
        The "thresholds" that apply; of a pipeline that generates, the numbers of "identical" and "different" outputs,
        the fraction "identical_ids" and the largest "score_difference" (see `Threshold`); of others "relative_error",
        "identical_ids" or both, by the types of the output tensors.

    Raises:
        ParityError: if a threshold is exceeded.
    """
    threshold = THRESHOLDS[precision]
    if isinstance(expected, Reference):
        row = _compare_ids(expected, graphs.generate(expected.texts, **expected.languages))
    else:
        row = _compare_tensors(expected, graphs)
    if not (
        row.get("identical_ids", 1) >= threshold.identical_ids
        and row.get("score_difference", 0) <= threshold.score_difference
        and row.get("relative_error", 0) <= threshold.relative_error
    ):
        raise ParityError(
            f"`precisions` must have graphs that are as close to the pipeline as {threshold}. Leave {precision} out. "
            f"Received: {precision}, with {row}"
        )
    return {**row, "thresholds": {name: getattr(threshold, name) for name in vars(threshold) if name in row}}


def _compare_ids(expected: Reference, outputs: Arrays) -> dict[str, Any]:
    """Compare the first hypotheses of all texts."""
    rows = len(expected.texts)
    several = expected.ids.ndim == 3
    ids, reference = (array[:, 0] if several else array for array in (outputs["ids"], expected.ids))
    scores, lengths = (outputs[name].reshape(rows, -1)[:, 0] for name in ("scores", "lengths"))
    same = (ids == reference).all(axis=-1)
    differences = np.abs(scores - expected.scores)[same] / np.maximum(lengths[same], 1)
    return {
        "identical": int(same.sum()),
        "different": int((~same).sum()),
        "identical_ids": _share(*_identical_ids(ids, reference, lengths)),
        "score_difference": float(differences.max(initial=0)),
    }


def _identical_ids(ids: np.ndarray, reference: np.ndarray, lengths: np.ndarray | int) -> tuple[int, int]:
    """Return the numbers of identical ids and of compared ids of rows: those up to the first that differs."""
    differs = ids != reference
    same = ~differs.any(axis=-1)
    equal = np.where(same, lengths, differs.argmax(axis=-1))
    return int(equal.sum()), int(equal.sum() + (~same).sum())


def _share(equal: int, compared: int) -> float:
    return equal / compared if compared else 1.0


def _compare_tensors(examples: Sequence[Example], run: Callable[[str, Arrays], Arrays]) -> dict[str, Any]:
    """Compare output tensors over all examples: floats by their largest relative error, ids by those that are equal."""
    floats: dict[tuple[str, str], list[float]] = {}
    ids: dict[tuple[str, str], list[int]] = {}
    for example in examples:
        outputs = run(example.graph, example.inputs)
        for name, values in example.outputs.items():
            if values.dtype.kind == "f":
                sums = floats.setdefault((example.graph, name), [0.0, 0.0])
                sums[0] += float(np.square(outputs[name] - values, dtype="float64").sum())
                sums[1] += float(np.square(values, dtype="float64").sum())
            else:
                counts = ids.setdefault((example.graph, name), [0, 0])
                for place, count in enumerate(_identical_ids(outputs[name], values, values.shape[-1])):
                    counts[place] += count
    row = {}
    if floats:
        row["relative_error"] = float(
            np.sqrt(np.max([error / norm if norm else error for error, norm in floats.values()]))
        )
    if ids:
        row["identical_ids"] = min(_share(*counts) for counts in ids.values())
    return row
