"""Whether an export answers as the model does, id for id."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (a SavedModel has its operations)

NEAR_TIE = 1e-4  # sums of float32 in another order may swap two candidates whose logits are nearer than this
SAVED_MODEL = "saved_model"
_STORED = 64
_BATCH = 64

Answers = dict[str, tuple[np.ndarray, list[str]]]
"""Of each graph, the ids (B, M) and the texts for B input texts."""


class ParityError(ValueError):
    """An export's output differs from the model's."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """What the model answers, and how near its choices were.

    Attributes:
        texts: the inputs.
        ids: (B, M), the outputs.
        answers: the outputs as texts.
        gap: the distance of the model's logits for two candidates, from (row, column, id, other id); None where
            the model is not at hand.
    """

    texts: list[str]
    ids: np.ndarray
    answers: list[str]
    gap: Callable[[int, int, int, int], float] | None = None

    @classmethod
    def of(cls, pipeline: Any, texts: Sequence[str] | None = None) -> "Reference":
        """What a pipeline answers to `texts`, or to a few made from its vocabulary."""
        texts = _texts_from_vocabulary(pipeline) if texts is None else list(texts)
        if not texts:
            raise ValueError("`texts` must not be empty. Received: texts=[]")
        ids = pipeline.generate(texts).best
        model = pipeline.model

        def gap(row: int, column: int, id_: int, other: int) -> float:
            target = np.concatenate([[model.start_id], ids[row, :column]])[None]
            source = pipeline.encode([texts[row]])
            logits = np.asarray(model({"source_ids": source, "target_ids": target}))[0, -1]
            return float(abs(logits[id_] - logits[other]))

        return cls(texts, ids, _decode(pipeline.tokenizer, ids), gap)

    @classmethod
    def stored(cls, report: dict[str, Any]) -> "Reference":
        """What the model answered when the export was made, from its part of `parity.json`."""
        examples = report["examples"]
        return cls(examples["texts"], np.asarray(examples["ids"]), examples["answers"])


class SavedModel:
    """A SavedModel on disk, run by TensorFlow with no XLA in it."""

    def __init__(self, path: pathlib.Path) -> None:
        self._signatures = tf.saved_model.load(str(path)).signatures

    def __call__(self, texts: Sequence[str]) -> Answers:
        """The answers of its two signatures."""
        ids, answers = [], []
        for begin in range(0, len(texts), _BATCH):
            batch = tf.constant(list(texts[begin : begin + _BATCH]), tf.string)
            try:
                ids.append(self._signatures["generate_ids"](text=batch)["ids"].numpy())
                output = self._signatures["serving_default"](text=batch)["text"]
            except tf.errors.InvalidArgumentError as error:
                raise ValueError(
                    f"`texts` must fit the model. Received: {error.message.splitlines()[0]}"
                ) from error
            answers += [answer.decode() for answer in output.numpy()]
        return {SAVED_MODEL: (np.concatenate(ids), answers)}


class OnnxGraphs:
    """The ONNX graphs in a folder, run by ONNX Runtime with the tokenizer that serving uses."""

    def __init__(self, path: pathlib.Path, tokenizer_model: bytes, config: dict[str, Any]) -> None:
        from keras_transformer import serving  # needs ONNX Runtime, which a SavedModel does without

        graphs = serving.Graphs(lambda name: path / f"{name}.onnx", config)
        self._served = serving.TextToText(graphs, serving.Tokenizer(tokenizer_model, config))

    def __call__(self, texts: Sequence[str]) -> Answers:
        """The answers of the whole loop in one graph, and of encoder and decoder step by step."""
        served = self._served
        rows = served.encode(texts)
        steps = [
            served.graphs.generate_by_steps(served.padded(rows[begin : begin + _BATCH]))
            for begin in range(0, len(rows), _BATCH)
        ]
        by_graph = {"loop": served.generate(texts, _BATCH)["ids"], "steps": np.concatenate(steps)}
        return {
            f"onnx_{name}": (ids, [served.tokenizer.decode(row) for row in ids])
            for name, ids in by_graph.items()
        }


def compare(reference: Reference, exported: Callable[[Sequence[str]], Answers]) -> dict[str, Any]:
    """Compare an export with the model's answers.

    Args:
        reference: inputs and the model's answers.
        exported: from input texts to every graph's answers.

    Returns:
        "texts", the number of inputs; "graphs", for each the number of identical outputs and of those that
        differ from a near tie on; "examples", for later verification without the model.

    Raises:
        ParityError: where an output differs otherwise.
    """
    near_ties = {
        name: _near_ties(reference, name, ids, answers)
        for name, (ids, answers) in exported(reference.texts).items()
    }
    count = len(reference.texts)
    # Without the model at hand a near tie could not be told from an error, so it is no example.
    clear = [row for row in range(count) if not any(row in rows for rows in near_ties.values())][:_STORED]
    return {
        "texts": count,
        "graphs": {
            name: {"identical": count - len(rows), "near_ties": len(rows)} for name, rows in near_ties.items()
        },
        "examples": {
            "texts": [reference.texts[row] for row in clear],
            "ids": reference.ids[clear].tolist(),
            "answers": [reference.answers[row] for row in clear],
        },
    }


def _near_ties(reference: Reference, name: str, ids: np.ndarray, answers: list[str]) -> list[int]:
    """The rows that differ from a near tie on.

    Raises:
        ParityError: where a row differs otherwise.
    """
    rows = []
    for row, (expected, found) in enumerate(zip(reference.ids, ids, strict=True)):
        same_ids = np.array_equal(expected, found)
        if same_ids and reference.answers[row] == answers[row]:
            continue
        if same_ids or not _is_near_tie(reference, row, found):
            raise ParityError(
                f"`{name}` must answer as the model does. It differs at input {row}, "
                f"{reference.texts[row]!r}: expected {reference.answers[row]!r} {expected.tolist()}. "
                f"Received: {answers[row]!r} {found.tolist()}"
            )
        rows.append(row)
    return rows


def _is_near_tie(reference: Reference, row: int, found: np.ndarray) -> bool:
    expected = reference.ids[row]
    if reference.gap is None or expected.shape != found.shape:
        return False
    column = int(np.argmax(expected != found))
    return reference.gap(row, column, int(expected[column]), int(found[column])) <= NEAR_TIE


def _texts_from_vocabulary(pipeline: Any, count: int = 24) -> list[str]:
    """Texts of 1 to 24 random pieces, and two awkward ones: nothing at all, and an unknown character."""
    tokenizer = pipeline.tokenizer
    random = np.random.default_rng(0)
    rows = [random.integers(4, tokenizer.vocabulary_size, 1 + i % 24) for i in range(count)]
    texts = [tokenizer.detokenize(row[None]).numpy()[0].decode(errors="ignore") for row in rows]
    lengths = tokenizer.tokenize(texts).row_lengths().numpy() + 1  # the end id
    fitting = [
        text for text, length in zip(texts, lengths, strict=True) if length <= pipeline.max_source_tokens
    ]
    return [*fitting, "", "\u2603"]


def _decode(tokenizer: Any, ids: np.ndarray) -> list[str]:
    return [text.decode() for text in tokenizer.detokenize(ids).numpy()]
