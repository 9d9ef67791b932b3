"""Parity of generated ids between an export and its pipeline."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (a SavedModel has its operations)

import keras_transformer_serving as serving
from keras_transformer import generation
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.pipelines.texts import texts_from_vocabulary
from keras_transformer_serving.graphs import DECODER, MODEL

NEAR_TIE = 1e-4  # float32 sums in another order may swap two candidates whose logits are closer than this
SAVED_MODEL = "saved_model"
ONNX_STEPS = "onnx_steps"
_STORED = 64
_BATCH = 64

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
    """

    texts: list[Any]
    ids: np.ndarray
    answers: list[Any]
    gap: Callable[[int, int, int, int], float] | None = None
    rank: Callable[[int, np.ndarray], np.ndarray] | None = None
    greedy: "Reference | None" = None

    @classmethod
    def of(cls, pipeline: Any, texts: Sequence[str] | None = None, as_ids: bool = False) -> "Reference":
        """Run a pipeline on `texts`, by default made from its vocabulary; `as_ids` for graphs without text inputs."""
        if texts is None:
            texts = [text for text in texts_from_vocabulary(pipeline.tokenizer) if _accepts(pipeline, text)]
        texts = list(texts)
        if not texts:
            raise ValueError("`texts` must not be empty. Received: texts=[]")
        if isinstance(pipeline.sampler, generation.Sample):
            texts = texts[:_BATCH]
        out = pipeline.generate(texts)
        ids = out.ids if pipeline.sampler.num_return > 1 else out.best
        model = pipeline.model
        sampler = pipeline.sampler
        greedy = sampler.hypotheses == 1 and not isinstance(
            sampler, generation.Sample | generation.Contrastive
        )

        def gap(row: int, column: int, id_: int, other: int) -> float:
            source, before = np.asarray(pipeline.encode([texts[row]])), ids[row : row + 1, :column]
            if is_encoder_decoder(model):
                start = np.full((1, 1), model.start_id)
                inputs = {"source_ids": source, "target_ids": np.concatenate([start, before], axis=1)}
            else:
                inputs = np.concatenate([source, before], axis=1)
            logits = np.asarray(model(inputs))[0, -1]
            return float(abs(logits[id_] - logits[other]))

        def rank(row: int, hypotheses: np.ndarray) -> np.ndarray:
            sources = np.repeat(pipeline.encode([texts[row]]), len(hypotheses), axis=0)
            scores = generation.score(model, sources, hypotheses)
            return scores.scores / sampler.penalties(pipeline.max_new_tokens)[scores.lengths]

        if as_ids:
            inputs = pipeline.preprocess(tf.constant(texts)).inputs
            given = tf.ragged.boolean_mask(inputs["source_ids"], inputs["padding_mask"]).to_list()
            answers = ids.tolist()
        else:
            given = texts
            decoded = pipeline.decode(ids.reshape(-1, ids.shape[-1])).numpy()
            answers = _strings(decoded.reshape(ids.shape[:-1]))
        if greedy and not pipeline.constraints:
            return cls(given, ids, answers, gap)
        plain = cls.of(pipeline.with_settings("greedy", constraints=()), texts, as_ids)
        ranked = rank if isinstance(sampler, generation.Beam) and not greedy else None
        return cls(given, ids, answers, gap if greedy else None, ranked, plain)

    @classmethod
    def stored(cls, report: dict[str, Any]) -> "Reference":
        """Restore the reference outputs that were stored in `parity.json` at export."""
        examples = report["examples"]
        greedy = cls.stored({"examples": examples["greedy"]}) if "greedy" in examples else None
        return cls(examples["texts"], np.asarray(examples["ids"]), examples["answers"], greedy=greedy)


class SavedModel:
    """A SavedModel on disk, run by TensorFlow without XLA; `config` has the export's settings."""

    def __init__(self, path: pathlib.Path, config: dict[str, Any]) -> None:
        self._signatures = tf.saved_model.load(str(path)).signatures
        self._sampler, self._most = config["generation"], config["max_new_tokens"]

    def __call__(self, texts: Sequence[str]) -> Answers:
        """Return the outputs of its two signatures."""
        ids, answers = [], []
        for begin in range(0, len(texts), _BATCH):
            batch = tf.constant(list(texts[begin : begin + _BATCH]), tf.string)
            ids.append(self._signatures["generate_ids"](text=batch, **self._noise(len(batch)))["ids"].numpy())
            answers += _strings(self._signatures["serving_default"](text=batch)["text"].numpy())
        return {SAVED_MODEL: (np.concatenate(ids), answers)}

    def _noise(self, rows: int) -> dict[str, tf.Tensor]:
        if self._sampler["sampler"] != "sample":
            return {}
        shape = (self._sampler["num_return"], self._most)
        return {"noise": tf.constant(serving.uniform_noise(self._sampler["seed"], np.arange(rows), *shape))}


class OnnxGraphs:
    """The ONNX graphs in a folder, run by ONNX Runtime with serving's tokenizer."""

    def __init__(self, path: pathlib.Path, tokenizer_model: bytes, config: dict[str, Any]) -> None:
        graphs = serving.Graphs(lambda name: path / f"{name}.onnx", config)
        self._steps = any((path / f"{name}.onnx").exists() for name in (DECODER, MODEL))
        self._served = serving.TextToText(graphs, serving.tokenizer_of(tokenizer_model, config))

    def __call__(self, texts: Sequence[Any]) -> Answers:
        """Return the outputs of the graph of the whole loop and, if any, of the graphs of single steps."""
        served = self._served
        by_graph = {"onnx_loop": served.generate(texts, _BATCH)["ids"]}
        if self._steps:
            rows = served.encode(texts)
            parts = [
                served.graphs.generate_by_steps(*served.padded(rows[begin : begin + _BATCH]))
                for begin in range(0, len(rows), _BATCH)
            ]
            by_graph[ONNX_STEPS] = np.concatenate(parts)
        return {name: (ids, self._answers(ids)) for name, ids in by_graph.items()}

    def _answers(self, ids: np.ndarray) -> list[Any]:
        tokenizer = self._served.tokenizer
        if tokenizer is None:
            return ids.tolist()
        return [tokenizer.decode(row) if row.ndim == 1 else self._answers(row) for row in ids]


def compare(reference: Reference, exported: Callable[[Sequence[str]], Answers]) -> dict[str, Any]:
    """Compare an export with reference outputs.

    Args:
        reference: inputs and the model's outputs.
        exported: a function from input texts to the outputs of each graph.

    Returns:
        "texts", the number of inputs; "graphs", for each the number of identical outputs and of those that differ
        after a near tie; "examples", for later verification without the model.

    Raises:
        ParityError: if any other output differs.
    """
    near_ties = {
        name: _near_ties((name == ONNX_STEPS and reference.greedy) or reference, name, ids, answers)
        for name, (ids, answers) in exported(reference.texts).items()
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
    return {
        "texts": [reference.texts[row] for row in rows],
        "ids": reference.ids[rows].tolist(),
        "answers": [reference.answers[row] for row in rows],
    }


def _near_ties(reference: Reference, name: str, ids: np.ndarray, answers: list[str]) -> list[int]:
    """Return the rows that differ after a near tie.

    Raises:
        ParityError: if any other row differs.
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
    if reference.rank is not None and expected.shape == found.shape:
        ranks = [reference.rank(row, np.reshape(ids, [-1, ids.shape[-1]])) for ids in (expected, found)]
        return bool(np.abs(ranks[0] - ranks[1]).max() <= NEAR_TIE)
    if reference.gap is None or expected.shape != found.shape:
        return False
    column = int(np.argmax(expected != found))
    return reference.gap(row, column, int(expected[column]), int(found[column])) <= NEAR_TIE


def _accepts(pipeline: Any, text: str) -> bool:
    try:
        pipeline.encode([text])
    except ValueError:  # too long, or an empty prompt
        return False
    return True


def _strings(texts: np.ndarray) -> list[Any]:
    """Decode bytes (B,) or (B, N) to lists of strings."""
    return [text.decode() if isinstance(text, bytes) else _strings(text) for text in texts]
