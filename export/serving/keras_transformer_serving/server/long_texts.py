"""The option `long_texts` of requests: a long text is computed as several jobs with one row of outputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.pipelines.generating import Generating, TextToText
from keras_transformer_serving.tasks import ERROR, Row, Tensor
from keras_transformer_serving.text import splitting
from keras_transformer_serving.text.documents import Document

NAME = "long_texts"


def option(pipeline: Generating) -> tuple[Tensor, ...]:
    """Return the option, an input of signatures, if the pipeline has it."""
    if not isinstance(pipeline, TextToText) or pipeline.tokenizer is None:
        return ()
    default = splitting.LONG_TEXTS[pipeline.splits()]
    return (Tensor(NAME, "string", default=default, choices=splitting.LONG_TEXTS),)


def split(pipeline: Generating, text: str, setting: Any) -> splitting.Split:
    """Return a text as its parts, or as one part if long texts are errors.

    Args:
        pipeline: the pipeline.
        text: the text.
        setting: "refuse" or "split"; None for the export's setting.

    Raises:
        InvalidInputError: if the setting is unknown.
    """
    if not isinstance(pipeline, TextToText):
        return splitting.Split.whole(text)
    try:
        splits = pipeline.splits(setting)
    except ValueError as error:
        raise InvalidInputError(NAME, str(error)) from None
    return pipeline.split_texts([text])[0] if splits else splitting.Split.whole(text)


def join(pipeline: Generating, text: splitting.Split | Document, parts: Sequence[Row]) -> Row:
    """Return the outputs of a text, joined from the outputs of its parts.

    Of N hypotheses the n-th is that of each part together: the texts and the ids one after another, the sums of lengths
    and scores.
    """
    joined: Row = {ERROR: ""}
    several = pipeline.graphs.num_return > 1
    if "text" in parts[0]:
        of_each = (
            zip(*(part["text"] for part in parts), strict=True)
            if several
            else [[part["text"] for part in parts]]
        )
        texts = [text.join(outputs) for outputs in of_each]
        joined["text"] = texts if several else texts[0]
    for name in ("lengths", "scores"):
        if name in parts[0]:
            joined[name] = np.sum([part[name] for part in parts], axis=0)
    if "ids" in parts[0]:
        rows: list[list[int]] = [[] for _ in range(pipeline.graphs.num_return)]
        for part in parts:
            hypotheses = zip(np.atleast_2d(part["ids"]), np.atleast_1d(part["lengths"]), strict=True)
            for row, (ids, length) in zip(rows, hypotheses, strict=True):
                row += ids[:length].tolist()
        padded, _ = pipeline.padded(rows)
        joined["ids"] = padded if several else padded[0]
    return joined
