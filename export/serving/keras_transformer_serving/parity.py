"""Parity of an export with the model: the outputs that were stored at export, and the comparison."""

import dataclasses
import io
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from keras_transformer_serving.bundle import TOKENIZER_EXAMPLES, Bundle
from keras_transformer_serving.closeness import Pair
from keras_transformer_serving.generation import GenerationEngine
from keras_transformer_serving.pipelines import pipeline_of
from keras_transformer_serving.text import Tokenizer, reads_text, tokenizer_of

ONNX_STEPS = "onnx_steps"
EXAMPLES = "examples.npz"
NEAR_TIE = 1e-4  # float32 sums in another order may swap two candidates whose logits are closer than this
SEED = 0  # of the noise with which an export that draws new seeds is compared
_STORED = 64
BATCH = 64
_OTHERS = ("greedy", "constrained")  # the attributes of a reference with other outputs
_EXCERPT = 80  # characters of a text that an error shows

Arrays = dict[str, np.ndarray]
Answers = dict[str, tuple[np.ndarray, list[Any]]]
"""The ids (B, M) and texts of each graph for B input texts, or (B, N, M) and N texts for each."""


NearTies = Callable[[int, int, int], Collection[int]]
"""A function of (row, hypothesis, step) that returns the other ids that a search may choose when it rounds otherwise.

Differences of logits may change by `NEAR_TIE`: in greedy search, ids whose logit is that close to the highest; in
sampling, ids that the noise draws from such a distribution.
"""


NearChoices = Callable[[int], list[tuple[int, int]]]
"""A function of a row that returns the (step, id) of ids that the model finds nearly as probable as those it chose.

They are less probable by at most `closeness.NEAR_TIE`, and at least half as probable. Exports in other precisions may
choose them.
"""


NearBeams = Callable[[int, np.ndarray], bool]
"""A function of (row, ids (R, M)) that returns whether a beam search finds these hypotheses when it rounds otherwise.

Their length-normalised log-probabilities are within `NEAR_TIE` of those of the reference, or of those that a search
finds whose scores change by that at each step.
"""


class ParityError(ValueError):
    """An export's output differs from the model's."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """Reference outputs of a pipeline, and how close its decisions were.

    The random numbers of a sampler depend on the row index, which starts from 0 in each batch of a SavedModel, so
    sampled outputs are compared within a single batch.

    Attributes:
        texts: the inputs; rows of ids for graphs without text inputs.
        ids: (B, M), or (B, R, M) for R hypotheses, the outputs.
        answers: the outputs as texts, or the ids for graphs without texts.
        near_ties: the near ties; None if the search has none, or without the model.
        near_beams: the function that recognises beams after near ties; None without the model, or if its search is
            not a beam.
        greedy: the greedy outputs, if the sampler or constraints give others: the reference of single-step graphs.
        scores: (B,), the score of the first hypothesis of each text.
        languages: the languages of each text and of its output, by option; empty for a model without languages.
        draws: whether ids are drawn. A draw is a near tie much more often than a greedy choice, so that the near ties
            are stored.
        constrained: the greedy outputs with the constraints, if ids are drawn with constraints.
        near_choices: the choices that are nearly as probable as those of the first hypothesis; None if not known.
    """

    texts: list[Any]
    ids: np.ndarray
    answers: list[Any]
    near_ties: NearTies | None = None
    near_beams: NearBeams | None = None
    greedy: "Reference | None" = None
    scores: np.ndarray | None = None
    languages: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    draws: bool = False
    constrained: "Reference | None" = None
    near_choices: NearChoices | None = None

    @property
    def choices(self) -> "Reference":
        """The outputs of greedy search in place of drawn ones; draws at the lowest temperature are equal to them."""
        return (self.constrained or self.greedy or self) if self.draws else self

    @classmethod
    def stored(cls, report: dict[str, Any]) -> "Reference":
        """Restore the reference outputs that were stored in `parity.json` at export."""
        examples = report["examples"]
        greedy, constrained = (
            cls.stored({"examples": examples[name]}) if name in examples else None for name in _OTHERS
        )
        scores = np.asarray(examples["scores"], "float32") if "scores" in examples else None
        return cls(
            examples["texts"],
            np.asarray(examples["ids"]),
            examples["answers"],
            _stored_near_ties(examples["near_ties"]) if "near_ties" in examples else None,
            greedy=greedy,
            scores=scores,
            languages=examples.get("languages", {}),
            draws="near_ties" in examples,
            constrained=constrained,
            near_choices=_stored_near_choices(examples["near_choices"])
            if "near_choices" in examples
            else None,
        )


def seeded(config: dict[str, Any]) -> dict[str, Any]:
    """Return an export's settings, with the fixed `SEED` for a sampler without a seed, to compare its outputs."""
    generation = config["generation"]
    seed = {"seed": SEED} if generation.get("seed", SEED) is None else {}
    return {**config, "generation": {**generation, **seed}}


class GeneratingExport:
    """A pipeline that generates on the engine of an export, for `compare_generated`.

    Args:
        name: the name of the outputs in the report.
        engine: the engine.
        config: the export's settings.
        tokenizer: the export's tokenizer; None if it needs TensorFlow.
    """

    def __init__(
        self, name: str, engine: GenerationEngine, config: dict[str, Any], tokenizer: Tokenizer | None
    ) -> None:
        self._name, self._served = name, pipeline_of(engine, config, tokenizer)

    def __call__(self, texts: Sequence[Any], **languages: list[str]) -> Answers:
        """Return the ids and texts of the outputs.

        Args:
            texts: the inputs.
            **languages: the languages of each text and of its output, if the model has languages.
        """
        return {name: (ids, self._answers(ids)) for name, ids in self._ids(texts, **languages).items()}

    def generate(self, texts: Sequence[Any], **languages: Any) -> Mapping[str, Any]:
        """Return the "ids", "lengths" and "scores" of the outputs."""
        outputs: Mapping[str, Any] = self._served.generate(texts, BATCH, **languages)
        return outputs

    def _ids(self, texts: Sequence[Any], **languages: list[str]) -> dict[str, np.ndarray]:
        return {self._name: self.generate(texts, **languages)["ids"]}

    def _answers(self, ids: np.ndarray) -> list[Any]:
        if self._served.tokenizer is None:
            rows: list[Any] = ids.tolist()
            return rows
        return [self._served.decode(row) if row.ndim == 1 else self._answers(row) for row in ids]


def compare_generated(
    reference: Reference, exported: Callable[..., Answers], near_choices: bool = False
) -> dict[str, Any]:
    """Compare an export with reference outputs.

    Args:
        reference: inputs and the model's outputs.
        exported: a function from input texts, and their languages by name, to the outputs of each graph.
        near_choices: whether the examples have the near choices, for other precisions.

    Returns:
        "texts", the number of inputs; "graphs", for each the number of identical outputs and of those that differ
        after a near tie; "examples", for later verification without the model.

    Raises:
        ParityError: if any other output differs.
    """
    near_ties, unclear = {}, set()
    for name, (ids, answers) in exported(reference.texts, **reference.languages).items():
        expected = (name == ONNX_STEPS and reference.greedy) or reference
        near_ties[name] = _near_ties(expected, name, ids, answers)
        # Without stored near ties, these rows could not be distinguished from errors without the model.
        unclear |= set() if expected.draws else {*near_ties[name]}
    count = len(reference.texts)
    stored = [row for row in range(count) if row not in unclear][:_STORED]
    examples = _examples(reference, stored, near_choices and reference.choices is reference)
    for name in _OTHERS:
        if (other := getattr(reference, name)) is not None:
            examples[name] = _examples(other, stored, near_choices and reference.choices is other)
    return {
        "texts": count,
        "graphs": {
            name: {"identical": count - len(rows), "near_ties": len(rows)} for name, rows in near_ties.items()
        },
        "examples": examples,
    }


def _examples(reference: Reference, rows: list[int], near_choices: bool) -> dict[str, Any]:
    scores = {} if reference.scores is None else {"scores": reference.scores[rows].tolist()}
    languages = {name: [values[row] for row in rows] for name, values in reference.languages.items()}
    near_ties = {"near_ties": [_near_ties_of(reference, row) for row in rows]} if reference.draws else {}
    return {
        **({"languages": languages} if languages else {}),
        "texts": [reference.texts[row] for row in rows],
        "ids": reference.ids[rows].tolist(),
        "answers": [reference.answers[row] for row in rows],
        **scores,
        **near_ties,
        **(
            {"near_choices": [*map(reference.near_choices, rows)]}
            if near_choices and reference.near_choices
            else {}
        ),
    }


def _near_ties_of(reference: Reference, row: int) -> list[tuple[int, int, int]]:
    """Return the near ties of the hypotheses of a row: (hypothesis, step, id)."""
    assert reference.near_ties is not None
    hypotheses = reference.ids[row].reshape(-1, reference.ids.shape[-1])
    return [
        (hypothesis, step, int(id_))
        for hypothesis, ids in enumerate(hypotheses)
        for step in range(len(ids))
        for id_ in reference.near_ties(row, hypothesis, step)
    ]


def _stored_near_ties(rows: list[list[list[int]]]) -> NearTies:
    """Return the near ties (hypothesis, step, id) of each row as a function."""

    def near_ties(row: int, hypothesis: int, step: int) -> list[int]:
        return [id_ for *place, id_ in rows[row] if place == [hypothesis, step]]

    return near_ties


def _stored_near_choices(rows: list[list[list[int]]]) -> NearChoices:
    """Return the near choices (step, id) of each row as a function."""
    return lambda row: [(step, id_) for step, id_ in rows[row]]


def _near_ties(reference: Reference, name: str, ids: np.ndarray, answers: list[Any]) -> list[int]:
    """Return the indices of the outputs whose ids differ from the reference after a near tie.

    Near ties are those of `NearTies`, in beam search those of `NearBeams`.

    Raises:
        ParityError: if any other output differs.
    """
    rows = []
    for row, (expected, received) in enumerate(zip(reference.ids, ids, strict=True)):
        same_ids = np.array_equal(expected, received)
        if same_ids and reference.answers[row] == answers[row]:
            continue
        if same_ids or not _is_near_tie(reference, row, received):
            raise ParityError(
                f"`{name}` must have the outputs of the model, except after near ties. Please report the error; an "
                "export with other `formats` can be written without these files. "
                f"Input {row}, {reference.texts[row]!r}: {_mismatch(reference, row, received, answers[row])}"
            )
        rows.append(row)
    return rows


def _mismatch(reference: Reference, row: int, received: np.ndarray, answer: Any) -> str:
    """Return the first difference between an output and the reference as a text."""
    expected, expected_answer = reference.ids[row], reference.answers[row]
    if expected.shape != received.shape:
        return f"expected ids of shape {expected.shape}. Received: {received.shape}"
    if np.array_equal(expected, received):
        return f"expected {_excerpt(expected_answer, answer)}. Received: {_excerpt(answer, expected_answer)}"
    *hypothesis, step = np.argwhere(expected != received)[0].tolist()
    for index in hypothesis:
        expected_answer, answer = expected_answer[index], answer[index]
    shown = (*hypothesis, slice(step, step + 8))
    return (
        f"expected {_excerpt(expected_answer, answer)}, {expected[shown].tolist()} from token {step} on. "
        f"Received: {_excerpt(answer, expected_answer)}, {received[shown].tolist()}"
    )


def _excerpt(answer: Any, other: Any) -> str:
    """Return the part of an answer around its first difference from another."""
    if not isinstance(answer, str):
        return f"{len(answer)} ids"
    pairs = zip(answer, other, strict=False)
    same = next(
        (i for i, (first, second) in enumerate(pairs) if first != second), min(len(answer), len(other))
    )
    begin = max(0, same - _EXCERPT // 4)
    return f"{'…' if begin else ''}{answer[begin : begin + _EXCERPT]!r}"


def _is_near_tie(reference: Reference, row: int, received: np.ndarray) -> bool:
    expected = reference.ids[row]
    if expected.shape != received.shape:
        return False
    hypotheses = [np.reshape(ids, [-1, ids.shape[-1]]) for ids in (expected, received)]
    if reference.near_beams is not None:
        return reference.near_beams(row, hypotheses[1])
    if reference.near_ties is None:
        return False
    differ = hypotheses[0] != hypotheses[1]
    return all(
        hypotheses[1][hypothesis, step] in reference.near_ties(row, hypothesis, step)
        for hypothesis, step in enumerate(differ.argmax(axis=-1))
        if differ[hypothesis, step]
    )


@dataclasses.dataclass(frozen=True)
class Example:
    """Inputs of a graph, and its expected outputs.

    Attributes:
        graph: the graph's name.
        inputs: the inputs, by name.
        outputs: the expected outputs, by name.
    """

    graph: str
    inputs: Arrays
    outputs: Arrays


def compare_tensors(
    examples: Sequence[Example], run: Callable[[str, Arrays], Arrays], tolerance: float
) -> dict[str, Any]:
    """Compare an export with the model's outputs.

    Args:
        examples: inputs and the model's outputs.
        run: a function that runs a graph of the export, by name, on inputs.
        tolerance: the absolute and relative tolerance of floats. Integers and strings must be equal. Values at padding
            are not compared: no pipeline reads them, and a runtime need not compute them.

    Returns:
        "tolerance", and "graphs", for each the number of compared "rows" and the "largest_difference" of floats.

    Raises:
        ParityError: if an output differs.
    """
    graphs: dict[str, dict[str, Any]] = {}
    for example in examples:
        outputs = run(example.graph, example.inputs)
        if set(outputs) != set(example.outputs):
            raise ParityError(
                f"`{example.graph}` must have the outputs {sorted(example.outputs)}. Received: {sorted(outputs)}"
            )
        counts = graphs.setdefault(example.graph, {"rows": 0, "largest_difference": 0.0})
        counts["rows"] += len(next(iter(example.inputs.values())))
        for name, expected in example.outputs.items():
            is_real = Pair(example.inputs, example.outputs, outputs).real(name)
            difference = _difference(example, name, expected, outputs[name], is_real, tolerance)
            counts["largest_difference"] = max(counts["largest_difference"], difference)
    return {"tolerance": tolerance, "graphs": graphs}


def load_examples(file: str | os.PathLike[str] | BinaryIO) -> list[Example]:
    """Load the examples of an export, from its file "examples.npz"."""
    examples: dict[str, Example] = {}
    with np.load(file) as arrays:
        for key, values in arrays.items():
            number, graph, side, name = key.split("/")
            example = examples.setdefault(number, Example(graph, {}, {}))
            getattr(example, side)[name] = values
    return list(examples.values())


def compare_with_stored(bundle: Bundle, part: str, run: Callable[..., Any]) -> dict[str, Any]:
    """Compare a part of an export with the outputs that were stored at export.

    Args:
        bundle: the export.
        part: the part's folder, relative to the export's.
        run: runs the part's graphs, as for `compare_generated` or `compare_tensors`.

    Returns:
        Their report, without examples.

    Raises:
        ParityError: if an output differs.
    """
    stored = bundle.parity[part]
    if "examples" in stored:
        report = compare_generated(Reference.stored(stored), run)
        del report["examples"]
    else:
        examples = load_examples(io.BytesIO(bundle.read(f"{part}/{EXAMPLES}")))
        report = compare_tensors(examples, run, stored["tolerance"])
    if set(report["graphs"]) != set(stored["graphs"]):
        raise ParityError(
            f"`{bundle.folder / part}` must have the graphs {sorted(stored['graphs'])}. Export it again. "
            f"Received: {sorted(report['graphs'])}"
        )
    return report


def exported_tokenizer(bundle: Bundle) -> Tokenizer | None:
    """Return the tokenizer of an export, after a comparison with its examples; None if it needs TensorFlow.

    Raises:
        ImportError: if it needs the `tokenizers` library, which is not installed.
        ParityError: if it gives other ids or texts than at export.
    """
    config = bundle.config
    if not reads_text(config):
        return None
    tokenizer = tokenizer_of(bundle.tokenizer_model, config)
    compare_tokenizers(tokenizer, json.loads(bundle.read(TOKENIZER_EXAMPLES)))
    return tokenizer


def compare_tokenizers(tokenizer: Tokenizer, examples: dict[str, Any]) -> None:
    """Compare a tokenizer with the pipeline's.

    Args:
        tokenizer: the tokenizer.
        examples: "texts", the "ids" of each by the pipeline's tokenizer, and "decoded", the texts of the ids.

    Raises:
        ParityError: if an output differs.
    """
    for text, ids, decoded in zip(*(examples[name] for name in ("texts", "ids", "decoded")), strict=True):
        tokenized = tokenizer.tokenize(text)
        if tokenized != ids or tokenizer.detokenize(ids) != decoded:
            raise ParityError(
                "`tokenizer` must give the ids and texts of the pipeline's, which another version of the library "
                f"`tokenizers` may not: install the version in the export's manifest. For {text!r}, expected {ids} "
                f"{decoded!r}. Received: {tokenized} {tokenizer.detokenize(ids)!r}"
            )


def _difference(
    example: Example,
    name: str,
    expected: np.ndarray,
    actual: np.ndarray,
    is_real: np.ndarray,
    tolerance: float,
) -> float:
    """Return the largest difference of floats that are not padding.

    Raises:
        ParityError: if it is too large, or values other than floats differ.
    """
    floats = expected.dtype.kind == "f"
    same = expected.shape == actual.shape
    if same:
        expected, actual = expected[is_real], actual[is_real]
        same = (
            np.allclose(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=False)
            if floats
            else np.array_equal(expected, actual)
        )
    if not same:
        raise ParityError(
            f"`{example.graph}` must have the model's {name}. Expected: {_shown(expected)}. Received: {_shown(actual)}"
        )
    return float(np.abs(actual - expected, dtype="float32").max(initial=0)) if floats else 0.0


def _shown(values: np.ndarray) -> str:
    return f"{np.array2string(values, threshold=20, edgeitems=2)} of shape {values.shape}"
