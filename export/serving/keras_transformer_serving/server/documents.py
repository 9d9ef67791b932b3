"""The options of requests for tags, placeholders and glossaries: a text is computed as a job for each of its parts."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.pipelines import documents, languages
from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.pipelines.generating import Generating, TextToText
from keras_transformer_serving.server.signatures import TRUNCATE, text_of
from keras_transformer_serving.tasks import Row, Tensor
from keras_transformer_serving.text.alignment import Score
from keras_transformer_serving.text.documents import Document, Part
from keras_transformer_serving.text.glossary import GLOSSARY_MODES, Glossary, of_json
from keras_transformer_serving.text.markup import PLACEHOLDERS, TAG_HANDLING

_TAGS, _PLACEHOLDERS, _GLOSSARY, _MODE = "tag_handling", "placeholders", "glossary", "glossary_mode"


class _GlossaryTensor(Tensor):
    """A glossary: a JSON object, or a string of one."""

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of a glossary."""
        return {"type": "object", "additionalProperties": {"type": "string"}}

    def convert(self, value: Any, place: str) -> Any:
        """Return a JSON object as a string."""
        return super().convert(json.dumps(value) if isinstance(value, dict) else value, place)


class _PlaceholdersTensor(Tensor):
    """Kinds of placeholders: a list of names, or a string of names and spaces."""

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the names."""
        return {"type": "array", "items": {"type": "string", "enum": [*PLACEHOLDERS]}}

    def convert(self, value: Any, place: str) -> Any:
        """Return a list of names as a string."""
        is_list = isinstance(value, list) and all(isinstance(name, str) for name in value)
        return super().convert(" ".join(value) if is_list else value, place)


def options(pipeline: Generating) -> tuple[Tensor, ...]:
    """Return the options, inputs of signatures, if the pipeline has them."""
    if not isinstance(pipeline, TextToText) or pipeline.tokenizer is None:
        return ()
    return (
        Tensor(_TAGS, "string", optional=True, choices=TAG_HANDLING),
        _PlaceholdersTensor(_PLACEHOLDERS, "string", optional=True),
        _GlossaryTensor(_GLOSSARY, "string", optional=True),
        Tensor(_MODE, "string", optional=True, choices=GLOSSARY_MODES),
    )


def document(pipeline: Generating, row: Row, text: str, long_texts: str | None) -> Document | None:
    """Return the text of a row with tags or a glossary; None for a row without these options.

    Raises:
        InvalidInputError: if an option is invalid, or tags are not closed.
    """
    if not {_TAGS, _PLACEHOLDERS, _GLOSSARY} & row.keys():
        return None
    try:
        pipeline.check_documents(TRUNCATE in row)
        glossary = None
        if _GLOSSARY in row:
            mode = text_of(row, _MODE) if _MODE in row else GLOSSARY_MODES[0]
            glossary = Glossary(of_json(text_of(row, _GLOSSARY)), mode)
        tags = text_of(row, _TAGS) if _TAGS in row else None
        names = text_of(row, _PLACEHOLDERS).split() if _PLACEHOLDERS in row else None
        tags, placeholders = documents.chosen_tags(tags, names)
        return documents.document(text, tags, placeholders, glossary, pipeline.split_function(long_texts))
    except (TypeError, ValueError) as error:
        raise InvalidInputError("texts", str(error)) from None


def finish_parts(
    pipeline: Generating,
    generate: Callable[[Sequence[Any]], list[dict[str, Any]]],
    batch: Sequence[tuple[Any, Part, Score]],
) -> list[dict[str, Any]]:
    """Return the outputs of a batch of values, each with a part of a text and the function that scores it.

    "text" has the finished translations of the part, one for each hypothesis.
    """
    rows = generate([values for values, _, _ in batch])
    for row, (_, part, score) in zip(rows, batch, strict=True):
        ids = np.atleast_2d(row["ids"]).tolist()
        row["text"] = [part.finish(pipeline.decode(of_text), score) for of_text in ids]
    return rows


def score_function(pipeline: Generating, row: Row) -> Score:
    """Return the function that scores the parts of the text of a row."""
    return pipeline.score_function({name: text_of(row, name) for name in languages.NAMES if name in row})
