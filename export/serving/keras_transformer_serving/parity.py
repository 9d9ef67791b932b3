"""Parity of an export's ONNX graphs with the model: the outputs that were stored at export, and the comparison."""

import dataclasses
import io
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

from keras_transformer_serving.bundle import ONNX, TOKENIZER_EXAMPLES, Bundle
from keras_transformer_serving.graph_files import FLOAT32, graph_reader
from keras_transformer_serving.graphs import Graphs
from keras_transformer_serving.model import Model
from keras_transformer_serving.pipelines import generating_pipeline, languages
from keras_transformer_serving.pipelines.generating import stacked
from keras_transformer_serving.sessions import File, Sessions
from keras_transformer_serving.text import Tokenizer, reads_text, tokenizer_of

ONNX_STEPS = "onnx_steps"
EXAMPLES = "examples.npz"
NEAR_TIE = 1e-4  # float32 sums in another order may swap two candidates whose logits are closer than this
SEED = 0  # of the noise with which an export that draws new seeds is compared
_STORED = 64
_BATCH = 64

Arrays = dict[str, np.ndarray]
Answers = dict[str, tuple[np.ndarray, list[Any]]]
"""The ids (B, M) and texts of each graph for B input texts, or (B, N, M) and N texts for each."""


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
        gap: a function of (row, step, id, other id) that returns the absolute difference between the model's logits of
            two candidates; None without the model, or if its search is not greedy.
        rank: a function of (row, ids) that returns the length-normalised log-probabilities of hypotheses (R, M); None
            without the model, or if its search is not a beam.
        greedy: the greedy outputs, if the sampler or constraints give others: the reference of single-step graphs.
        scores: (B,), the score of the first hypothesis of each text.
        languages: the languages of each text and of its output, by option; empty for a model without languages.
    """

    texts: list[Any]
    ids: np.ndarray
    answers: list[Any]
    gap: Callable[[int, int, int, int], float] | None = None
    rank: Callable[[int, np.ndarray], np.ndarray] | None = None
    greedy: "Reference | None" = None
    scores: np.ndarray | None = None
    languages: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def stored(cls, report: dict[str, Any]) -> "Reference":
        """Restore the reference outputs that were stored in `parity.json` at export."""
        examples = report["examples"]
        greedy = cls.stored({"examples": examples["greedy"]}) if "greedy" in examples else None
        scores = np.asarray(examples["scores"], "float32") if "scores" in examples else None
        return cls(
            examples["texts"],
            np.asarray(examples["ids"]),
            examples["answers"],
            greedy=greedy,
            scores=scores,
            languages=examples.get("languages", {}),
        )


def seeded(config: dict[str, Any]) -> dict[str, Any]:
    """Return an export's settings, with the fixed `SEED` for a sampler without a seed, to compare its outputs."""
    generation = config["generation"]
    seed = {"seed": SEED} if generation.get("seed", SEED) is None else {}
    return {**config, "generation": {**generation, **seed}}


class GeneratingGraphs:
    """The ONNX graphs of a pipeline that generates, run by ONNX Runtime with serving's tokenizer.

    Args:
        sessions: ONNX Runtime's sessions of the graphs.
        tokenizer: the export's tokenizer; None if it needs TensorFlow.
        config: the export's settings.
        steps: whether there are graphs of a single step, too.
    """

    def __init__(
        self, sessions: Sessions, tokenizer: Tokenizer | None, config: dict[str, Any], steps: bool
    ) -> None:
        self._steps = steps
        config = seeded(config)
        self._served = generating_pipeline(Graphs(sessions, config), tokenizer, config)

    def __call__(self, texts: Sequence[Any], **chosen: list[str]) -> Answers:
        """Return the outputs of the graph with the generation loop and, if any, of the graphs of single steps.

        Args:
            texts: the inputs.
            **chosen: the languages of each text and of its output, if the model has languages.
        """
        served = self._served
        by_graph = {"onnx_loop": self.generate(texts, **chosen)["ids"]}
        if self._steps:
            served.graphs.session.release()  # a large model is in memory once
            rows = served.encode(texts, source_language=chosen.get(languages.SOURCE))
            targets = [
                served.target_inputs(language) for language in chosen.get(languages.TARGET, [""] * len(rows))
            ]
            parts = [
                served.graphs.generate_by_steps(
                    *served.padded(rows[begin : begin + _BATCH]), **stacked(targets[begin : begin + _BATCH])
                )
                for begin in range(0, len(rows), _BATCH)
            ]
            by_graph[ONNX_STEPS] = np.concatenate(parts)
        return {name: (ids, self._answers(ids)) for name, ids in by_graph.items()}

    def generate(self, texts: Sequence[Any], **chosen: Any) -> Arrays:
        """Return the "ids", "lengths" and "scores" of the graph with the generation loop."""
        return self._served.generate(texts, _BATCH, **chosen)

    def _answers(self, ids: np.ndarray) -> list[Any]:
        if self._served.tokenizer is None:
            rows: list[Any] = ids.tolist()
            return rows
        return [self._served.decode(row) if row.ndim == 1 else self._answers(row) for row in ids]


def compare_generated(reference: Reference, exported: Callable[..., Answers]) -> dict[str, Any]:
    """Compare an export with reference outputs.

    Args:
        reference: inputs and the model's outputs.
        exported: a function from input texts, and their languages by name, to the outputs of each graph.

    Returns:
        "texts", the number of inputs; "graphs", for each the number of identical outputs and of those that differ
        after a near tie; "examples", for later verification without the model.

    Raises:
        ParityError: if any other output differs.
    """
    near_ties = {
        name: _near_ties((name == ONNX_STEPS and reference.greedy) or reference, name, ids, answers)
        for name, (ids, answers) in exported(reference.texts, **reference.languages).items()
    }
    count = len(reference.texts)
    # Near ties are not stored, as they could not be distinguished from errors without the model.
    clear = [row for row in range(count) if not any(row in rows for rows in near_ties.values())][:_STORED]
    examples = _examples(reference, clear)
    if reference.greedy is not None:
        examples["greedy"] = _examples(reference.greedy, clear)
    return {
        "texts": count,
        "graphs": {
            name: {"identical": count - len(rows), "near_ties": len(rows)} for name, rows in near_ties.items()
        },
        "examples": examples,
    }


def _examples(reference: Reference, rows: list[int]) -> dict[str, Any]:
    scores = {} if reference.scores is None else {"scores": reference.scores[rows].tolist()}
    chosen = {name: [values[row] for row in rows] for name, values in reference.languages.items()}
    return {
        **({"languages": chosen} if chosen else {}),
        "texts": [reference.texts[row] for row in rows],
        "ids": reference.ids[rows].tolist(),
        "answers": [reference.answers[row] for row in rows],
        **scores,
    }


def _near_ties(reference: Reference, name: str, ids: np.ndarray, answers: list[str]) -> list[int]:
    """Return the indices of the outputs whose ids differ from the reference after a near tie.

    In a near tie the model's logits of the two candidates, or the scores of two hypotheses, are closer than `NEAR_TIE`.

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
                f"`{name}` must have the outputs of the model. It differs at input {row}, "
                f"{reference.texts[row]!r}: expected {reference.answers[row]!r} {expected.tolist()}. "
                f"Received: {answers[row]!r} {received.tolist()}"
            )
        rows.append(row)
    return rows


def _is_near_tie(reference: Reference, row: int, received: np.ndarray) -> bool:
    expected = reference.ids[row]
    if reference.rank is not None and expected.shape == received.shape:
        ranks = [reference.rank(row, np.reshape(ids, [-1, ids.shape[-1]])) for ids in (expected, received)]
        return bool(np.abs(ranks[0] - ranks[1]).max() <= NEAR_TIE)
    if reference.gap is None or expected.shape != received.shape:
        return False
    column = int(np.argmax(expected != received))
    return reference.gap(row, column, int(expected[column]), int(received[column])) <= NEAR_TIE


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
        tolerance: the absolute and relative tolerance of floats. Integers and strings must be equal.

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
            difference = _difference(example, name, expected, outputs[name], tolerance)
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


def onnx_runner(bundle: Bundle, precision: str = FLOAT32) -> Any:
    """Return a function that runs the ONNX graphs of an export, for `compare_with_stored`.

    Raises:
        ImportError: if the export's tokenizer needs the `tokenizers` library, which is not installed.
        ParityError: if the tokenizer gives other ids or texts than at export.
    """
    config, tokenizer = bundle.config, exported_tokenizer(bundle)
    sessions = sessions_to_compare(graph_reader(bundle, precision), precision)
    steps = ONNX_STEPS in bundle.parity[ONNX]["graphs"] and precision == FLOAT32
    return graph_runner(sessions, tokenizer, config, steps)


def sessions_to_compare(read: Callable[[str], File], precision: str = FLOAT32) -> Sessions:
    """Return sessions for comparisons in a precision.

    Other precisions than float32 run on one thread: int8 ids change with the rounding of sums, which may depend on how
    ONNX Runtime distributes them to threads, and `verify` must find what was found at export.
    """
    return Sessions(read, threads=None if precision == FLOAT32 else 1, save_memory=True)


def graph_runner(sessions: Sessions, tokenizer: Tokenizer | None, config: dict[str, Any], steps: bool) -> Any:
    """Return the ONNX graphs of an export as a function, for `compare_generated` or `compare_tensors`.

    Args:
        sessions: ONNX Runtime's sessions of the graphs.
        tokenizer: the export's tokenizer; None if it needs TensorFlow.
        config: the export's settings.
        steps: whether there are graphs of a single step, too.
    """
    if "generation" in config:
        return GeneratingGraphs(sessions, tokenizer, config, steps)
    model = Model(sessions, config)
    return lambda _graph, inputs: model.run(**inputs)


def _difference(
    example: Example, name: str, expected: np.ndarray, actual: np.ndarray, tolerance: float
) -> float:
    """Return the largest difference of floats.

    Raises:
        ParityError: if it is too large, or values other than floats differ.
    """
    floats = expected.dtype.kind == "f"
    same = expected.shape == actual.shape and (
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
