"""Exported functions of pipelines that run a model once, from ids, images, graphs or texts."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.export import serving_functions
from keras_transformer.export.parity import reference_outputs
from keras_transformer.export.parity.generation import texts_from_vocabulary
from keras_transformer.export.parity.outputs import Arrays, Example
from keras_transformer.export.serving_signatures import Axes, Graph
from keras_transformer.pipelines import (
    Embedding,
    FillMask,
    ImageClassification,
    NodeClassification,
    QuestionAnswering,
    TextClassification,
    TokenClassification,
)
from keras_transformer_serving.graphs import MODEL

Tensor = Any

DEFAULT = "serving_default"
FORWARD = "forward"
_BATCH = "batch_size"

# The signatures of each text pipeline: names of the string inputs, TensorFlow function, Python reference.
_PAIRS = {
    "classify_pairs": (
        ("text", "text_pair"),
        serving_functions.class_of_text,
        reference_outputs.class_of_text,
    )
}
_ANSWERS: dict[type, dict[str, Any]] = {
    TextClassification: {
        DEFAULT: (("text",), serving_functions.class_of_text, reference_outputs.class_of_text),
        **_PAIRS,
    },
    TokenClassification: {
        DEFAULT: (("text",), serving_functions.tags_of_words, reference_outputs.tags_of_words)
    },
    QuestionAnswering: {
        DEFAULT: (
            ("question", "context"),
            serving_functions.answer_in_context,
            reference_outputs.answer_in_context,
        )
    },
    FillMask: {DEFAULT: (("text",), serving_functions.pieces_of_gaps, reference_outputs.pieces_of_gaps)},
    Embedding: {DEFAULT: (("text",), serving_functions.vector_of_text, reference_outputs.vector_of_text)},
}


def signatures(pipeline: Any) -> dict[str, Graph]:
    """Return the signatures of a SavedModel."""
    if isinstance(pipeline, ImageClassification):
        size = [None, None] if pipeline.resize else pipeline.model.image_size
        default = Graph(
            lambda pixel_values: serving_functions.class_of_image(pipeline, pixel_values),
            [_images(pipeline, size)],
        )
    elif isinstance(pipeline, NodeClassification):
        default = Graph(
            lambda nodes, edges: serving_functions.class_of_nodes(pipeline, nodes, edges),
            _nodes_and_edges(pipeline),
        )
    else:
        found = {}
        for name, (strings, function, _) in _signatures_of_texts(pipeline).items():
            specs = [tf.TensorSpec([None], tf.string, name=each) for each in strings]
            found[name] = Graph(functools.partial(function, pipeline), specs)
        return {**found, FORWARD: _forward(pipeline)}
    return {DEFAULT: default, FORWARD: _forward(pipeline)}


def graphs(pipeline: Any) -> dict[str, Graph]:
    """Return the ONNX graphs, by file name."""
    return {MODEL: _forward(pipeline)}


def examples(pipeline: Any) -> list[Example]:
    """Return examples of the model's inputs and outputs."""
    graph = _forward(pipeline)
    found = []
    for inputs in _random_inputs(pipeline):
        outputs = graph.function(**{name: tf.constant(values) for name, values in inputs.items()})
        found.append(Example(FORWARD, inputs, {name: tensor.numpy() for name, tensor in outputs.items()}))
    return found


def examples_of_answers(pipeline: Any, texts: Sequence[Any] | None = None) -> list[Example]:
    """Return examples of inputs and outputs of the other signatures.

    Args:
        pipeline: the pipeline.
        texts: the texts for a pipeline with a tokenizer, pairs if it compares texts or answers questions; by default
            made from its vocabulary.

    Raises:
        ValueError: if `texts` are of another type.
    """
    if isinstance(pipeline, ImageClassification | NodeClassification):
        if texts is not None:
            raise ValueError(
                f"`texts` must be None for a {type(pipeline).__name__}. Received: texts={texts!r}"
            )
        images = isinstance(pipeline, ImageClassification)
        python = reference_outputs.class_of_image if images else reference_outputs.class_of_nodes
        return [Example(DEFAULT, inputs, python(pipeline, **inputs)) for inputs in _random_inputs(pipeline)]
    found = []
    for name, (strings, _, python) in _signatures_of_texts(pipeline).items():
        given = texts is not None and name == DEFAULT
        rows = _checked_rows(texts, len(strings)) if given else _default_rows(pipeline, len(strings), python)
        for chosen in (rows, rows[:1]):
            columns = [list(column) for column in zip(*chosen, strict=True)]
            inputs = dict(zip(strings, map(np.array, columns), strict=True))
            found.append(Example(name, inputs, python(pipeline, *columns)))
    return found


def _signatures_of_texts(pipeline: Any) -> dict[str, Any]:
    found = next(signatures for kind, signatures in _ANSWERS.items() if isinstance(pipeline, kind))
    if not isinstance(pipeline, TextClassification):
        return found
    if getattr(pipeline.model, "symmetric", False):  # the model compares two texts
        return {DEFAULT: _PAIRS["classify_pairs"]}
    single_segment = getattr(pipeline.encoder, "num_segments", 2) < 2
    return {name: signature for name, signature in found.items() if name == DEFAULT or not single_segment}


def _forward(pipeline: Any) -> Graph:
    """Return the function from ids, images or graphs to the model's outputs, with Optimum's names."""
    model = pipeline.model
    if isinstance(pipeline, ImageClassification):
        return Graph(
            lambda pixel_values: _with_probabilities(pipeline, model(pixel_values, training=False)),
            [_images(pipeline, model.image_size)],
            {"pixel_values": [_BATCH], **_outputs_of_classes(pipeline)},
        )
    if isinstance(pipeline, NodeClassification):
        nodes = [_BATCH, "num_nodes"]
        return Graph(
            lambda nodes, edges: {"logits": serving_functions.logits_of_nodes(pipeline, nodes, edges)},
            _nodes_and_edges(pipeline),
            {"nodes": nodes, "edges": [_BATCH, "num_edges"], "logits": nodes},
        )
    symmetric = getattr(model, "symmetric", False)  # the model reads a pair in both orders
    shape, row = (
        ([None, 2, None], [_BATCH, None, "sequence_length"])
        if symmetric
        else ([None, None], [_BATCH, "sequence_length"])
    )
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if _has_segments(pipeline) else [])]
    outputs = {
        QuestionAnswering: {"start_logits": row, "end_logits": row},
        Embedding: {"last_hidden_state": row, "sentence_embedding": [_BATCH]},
        TextClassification: _outputs_of_classes(pipeline),
    }.get(type(pipeline), {"logits": row})

    def forward(
        input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        inputs = _masked(pipeline.encoder, input_ids, attention_mask)
        if token_type_ids is not None:
            inputs["segment_ids"] = tf.cast(token_type_ids, tf.int32)
        if isinstance(pipeline, Embedding):
            hidden = pipeline.encoder(inputs, training=False)
            found = hidden, serving_functions.normalized(pipeline, pipeline.pooled(hidden, inputs))
        else:
            logits = serving_functions.call(model)(inputs)
            if isinstance(pipeline, TextClassification):
                return _with_probabilities(pipeline, logits)
            found = tf.unstack(logits, axis=1) if isinstance(pipeline, QuestionAnswering) else (logits,)
        return dict(zip(outputs, found, strict=True))

    return Graph(
        forward,
        [tf.TensorSpec(shape, tf.int64, name=name) for name in names],
        {**dict.fromkeys(names, row), **outputs},
    )


def _masked(encoder: Any, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
    """Return ids with `pad_id` at padded positions, or ids and mask for a model without one."""
    real = attention_mask != 0
    if encoder.pad_id is None:
        return {"token_ids": tf.cast(input_ids, tf.int32), "padding_mask": real}
    return {"token_ids": tf.cast(tf.where(real, input_ids, encoder.pad_id), tf.int32)}


def _outputs_of_classes(pipeline: Any) -> Axes:
    """Return the axes of a classifier's outputs; a regression has no probabilities."""
    regression = getattr(pipeline, "problem_type", None) == "regression"
    return {name: [_BATCH] for name in ("logits", *([] if regression else ["probabilities"]))}


def _with_probabilities(pipeline: Any, logits: Tensor) -> dict[str, Tensor]:
    if pipeline.problem_type == "regression":
        return {"logits": logits}
    return {"logits": logits, "probabilities": serving_functions.scores(pipeline, logits)}


def _has_segments(pipeline: Any) -> bool:
    return getattr(pipeline.encoder, "num_segments", 1) > 1


def _images(pipeline: Any, size: Sequence[int | None]) -> tf.TensorSpec:
    return tf.TensorSpec([None, *size, pipeline.model.num_channels], tf.float32, name="pixel_values")


def _nodes_and_edges(pipeline: Any) -> list[tf.TensorSpec]:
    return [
        tf.TensorSpec([None, None, pipeline.model.num_features], tf.float32, name="nodes"),
        tf.TensorSpec([None, None, 2], tf.int64, name="edges"),
    ]


def _random_inputs(pipeline: Any) -> list[Arrays]:
    """Return random inputs of two sizes: full, half-padded and empty rows; images; graphs with and without edges."""
    random, model = np.random.default_rng(0), pipeline.model
    if isinstance(pipeline, ImageClassification):
        low, high = model.value_range
        shape = (*model.image_size, model.num_channels)
        return [
            {"pixel_values": random.uniform(low, high, (count, *shape)).astype("float32")} for count in (3, 1)
        ]
    if isinstance(pipeline, NodeClassification):
        edges = random.integers(0, 6, (2, 12, 2))
        edges[0, 1], edges[0, 2], edges[1, 7:] = edges[0, 0], [3, 3], -1
        return [
            {
                "nodes": random.normal(size=(len(each), nodes, model.num_features)).astype("float32"),
                "edges": each,
            }
            for nodes, each in ((6, edges), (2, np.zeros((1, 0, 2), "int64")))
        ]
    encoder = pipeline.encoder
    found = []
    for rows, length in ((3, 12), (1, 4)):
        length = min(length, encoder.max_length or length)
        shape = (rows, 2, length) if getattr(model, "symmetric", False) else (rows, length)
        ids = random.integers(0, encoder.vocabulary_size, shape)
        real = np.ones_like(ids) if encoder.pad_id is None else (ids != encoder.pad_id).astype("int64")
        real[1:2, ..., length // 2 :] = real[2:] = 0
        inputs = {"input_ids": np.where(real, ids, pipeline.tokenizer.padding_value), "attention_mask": real}
        if _has_segments(pipeline):
            inputs["token_type_ids"] = random.integers(0, encoder.num_segments, shape)
        found.append(inputs)
    return found


def _default_rows(pipeline: Any, columns: int, python: Any) -> list[tuple[str, ...]]:
    texts = texts_from_vocabulary(pipeline.tokenizer)
    if isinstance(pipeline, FillMask):
        texts = [f"{text} {pipeline.mask} {other}" for text, other in zip(texts, texts[::-1], strict=True)]
    rows = list(zip(*(texts[i:] + texts[:i] for i in range(columns)), strict=True))
    found = [row for row in rows if _answers_to(pipeline, row, python)]
    if not found:
        raise ValueError(
            "`texts` must be given, as the pipeline refuses all texts made from its vocabulary. Received: None"
        )
    return found


def _answers_to(pipeline: Any, row: tuple[str, ...], python: Any) -> bool:
    try:
        python(pipeline, *([text] for text in row))
    except ValueError:  # too long or empty
        return False
    return True


def _checked_rows(texts: Sequence[Any], columns: int) -> list[tuple[str, ...]]:
    rows = [tuple(row) if columns > 1 and isinstance(row, list | tuple) else (row,) for row in texts]
    if not rows or any(len(row) != columns or not all(isinstance(text, str) for text in row) for row in rows):
        kind = "strings" if columns == 1 else "pairs of strings"
        raise ValueError(f"`texts` must be {kind}, one or more. Received: texts={texts!r}")
    return rows
