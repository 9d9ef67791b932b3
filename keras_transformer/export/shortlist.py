"""Shortlists of the output vocabulary, from texts."""

import itertools
from typing import Any

import numpy as np

from keras_transformer.export.bundle_writer import check_generates_tokens
from keras_transformer.text.training.corpus import Texts, read_texts
from keras_transformer_options.arguments import check_positive_integer

_TEXTS = 1000  # that are tokenized together


def vocabulary_shortlist(pipeline: Any, texts: Texts, size: int | None = None) -> list[int]:
    """Return the ids of the tokens of texts, for `vocabulary_shortlist` of `bundle`, `onnx` and `saved_model`.

    Args:
        pipeline: a pipeline that generates text.
        texts: texts such as the pipeline will write: an iterable of texts and of paths of UTF-8 files, whose lines are
            the texts; or one path.
        size: the maximum number of tokens of the texts, the most frequent; by default all.

    Returns:
        The ids, sorted, with the end token and the tokens that the pipeline's constraints name.

    Raises:
        ValueError: if `pipeline` does not generate tokens one by one, or `texts` are empty.

    Example:
        >>> ids = vocabulary_shortlist(translator, pathlib.Path("subtitles.en"))  # doctest: +SKIP
        >>> bundle(translator, "export/es-en", vocabulary_shortlist=ids)  # doctest: +SKIP
    """
    check_generates_tokens("pipeline", pipeline)
    if size is not None:
        check_positive_integer(size=size)
    counts = np.zeros(pipeline.model.vocabulary_size, np.int64)
    rows = read_texts(texts)
    while block := list(itertools.islice(rows, _TEXTS)):
        counts += np.bincount(pipeline.tokenizer.tokenize(block).flat_values.numpy(), minlength=len(counts))
    if not counts.any():
        raise ValueError("`texts` must have at least one token. Received: no text, or empty ones")
    frequent = np.argsort(-counts, kind="stable")[:size]
    named = [id_ for constraint in pipeline.constraints for id_ in constraint.ids()]
    return sorted({*frequent[counts[frequent] > 0].tolist(), pipeline.model.end_id, *named})
