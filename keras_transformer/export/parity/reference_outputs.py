"""Reference outputs of pipelines that run a model once, in the form of their SavedModels' outputs."""

from typing import Any

import numpy as np

from keras_transformer.export.parity.outputs import Arrays


def class_of_text(pipeline: Any, text: list[str], text_pair: list[str] | None = None) -> Arrays:
    """Return the outputs of `serving_functions.class_of_text`; the other functions correspond likewise."""
    return _of_classes(pipeline, pipeline.scores(text, text_pair))


def class_of_image(pipeline: Any, pixel_values: np.ndarray) -> Arrays:
    """Return the classes of images (B, height, width, channels)."""
    return _of_classes(pipeline, pipeline.scores(pixel_values))


def class_of_nodes(pipeline: Any, nodes: np.ndarray, edges: np.ndarray) -> Arrays:
    """Return the classes of the nodes (B, T, D) of graphs with edges (B, E, 2), padded with -1."""
    graphs = zip(nodes, edges, strict=True)
    return _best(
        pipeline, np.stack([pipeline.probabilities(of, each[each[:, 0] >= 0]) for of, each in graphs])
    )


def vector_of_text(pipeline: Any, text: list[str]) -> Arrays:
    """Return the embedding of each text."""
    return {"embedding": pipeline(text)}


def pieces_of_gaps(pipeline: Any, text: list[str]) -> Arrays:
    """Return the predicted pieces of each mask token."""
    rows = pipeline(text)
    none = [("", 0.0)] * pipeline.top
    most = max(map(len, rows))
    rows = [[*row, *[none] * (most - len(row))] for row in rows]
    return {
        "pieces": np.array([[[piece for piece, _ in gap] for gap in row] for row in rows]),
        "probabilities": np.array([[[share for _, share in gap] for gap in row] for row in rows], "float32"),
    }


def tags_of_words(pipeline: Any, text: list[str]) -> Arrays:
    """Return the label of each word."""
    rows = pipeline(text)
    names = _named(pipeline.labels)
    padding_values = ("", "" if names.dtype.kind == "U" else -1, 0.0, -1, -1)
    most = max(map(len, rows))
    columns = [
        [[each[i] for each in row] + [padding_value] * (most - len(row)) for row in rows]
        for i, padding_value in enumerate(padding_values)
    ]
    dtypes = (str, names.dtype.type, "float32", "int32", "int32")
    names_ = ("words", "labels", "probabilities", "starts", "ends")
    return {
        name: np.array(column, dtype) for name, column, dtype in zip(names_, columns, dtypes, strict=True)
    }


def answer_in_context(pipeline: Any, question: list[str], context: list[str]) -> Arrays:
    """Return the answer to each question."""
    spans = [pipeline(*pair) for pair in zip(question, context, strict=True)]
    return {
        "answer": np.array([span.text for span in spans]),
        "start": np.array([span.start for span in spans], "int32"),
        "end": np.array([span.end for span in spans], "int32"),
        "probability": np.array([span.probability for span in spans], "float32"),
    }


def _of_classes(pipeline: Any, scores: np.ndarray) -> Arrays:
    if pipeline.problem_type == "regression":
        return {"values": scores}
    if pipeline.problem_type != "multi_label_classification":
        return _best(pipeline, scores)
    names, chosen = _named(pipeline.labels), scores > pipeline.threshold
    padding_value = "" if names.dtype.kind == "U" else -1
    most = chosen.sum(1).max()
    rows = [[*names[row], *[padding_value] * (most - row.sum())] for row in chosen]
    return {"labels": np.array(rows, names.dtype).reshape(len(rows), most), "probabilities": scores}


def _best(pipeline: Any, probabilities: np.ndarray) -> Arrays:
    return {"label": _named(pipeline.labels)[probabilities.argmax(-1)], "probabilities": probabilities}


def _named(labels: list[Any]) -> np.ndarray:
    """Return labels as integers if all are, otherwise as strings."""
    return np.array(labels if all(isinstance(label, int) for label in labels) else list(map(str, labels)))
