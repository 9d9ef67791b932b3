"""Questions and answers from files in the format of SQuAD."""

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from keras_transformer_options.arguments import ArgumentError
from keras_transformer_options.files import Paths, check_encoding, checked_paths, conversion, file_lines
from keras_transformer_options.malformed import Malformed


class Question(NamedTuple):
    """A question about a context.

    Attributes:
        question: the question.
        context: the text that may hold the answer.
        answers: the distinct answers, substrings of the context; empty if there is none.
        answer_starts: the index of each answer's first character in the context.
        id: the name of the question.
    """

    question: str
    context: str
    answers: tuple[str, ...]
    answer_starts: tuple[int, ...]
    id: str

    @property
    def answer(self) -> tuple[str, int] | None:
        """The first answer and its start, as in `data.questions`; `None` if there is no answer."""
        return (self.answers[0], self.answer_starts[0]) if self.answers else None


def read_squad(paths: Paths, *, encoding: str | None = None, on_error: str = "raise") -> list[Question]:
    """Read questions from JSON files in the format of SQuAD 1.1 or 2.0.

    Args:
        paths: the path of a file, plain or compressed by gzip (".gz"), or several.
        encoding: the encoding of the files, by default UTF-8.
        on_error: "raise" to raise an error for malformed questions, or "skip" to skip them with one warning of the
            logger "keras_transformer". A question is malformed if it lacks text, or an answer is not at its start in
            the context.

    Returns:
        The questions in order. Those with `is_impossible`, or without answers, have no answer.

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: if a question is malformed and `on_error` is "raise", a file is not in this format, or there is no
            question.

    Example:
        >>> kt.data.read_squad("dev-v2.0.json")[0].answers  # doctest: +SKIP
        ('France',)
    """
    check_encoding(encoding=encoding)
    malformed = Malformed("paths", on_error, unit="question", has_options=True)
    paths = checked_paths(paths)
    questions = [question for path in paths for question in _questions(path, malformed, encoding)]
    malformed.report()
    if not questions:
        raise ArgumentError("{paths} must hold at least one question", paths=list(map(os.fspath, paths)))
    return questions


def _questions(
    path: str | os.PathLike[str], malformed: Malformed, encoding: str | None
) -> Iterator[Question]:
    try:
        content = b"".join(file_lines(path, "paths", encoding=encoding, has_encoding=True))
        paragraphs = [
            paragraph for article in json.loads(content)["data"] for paragraph in article["paragraphs"]
        ]
        entries = [(paragraph["context"], entry) for paragraph in paragraphs for entry in paragraph["qas"]]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
            raise
        encoded = isinstance(error, UnicodeDecodeError)
        remedy = (
            f"; if it is in Windows-1252, {conversion(path, 'cp1252', has_encoding=True)}" if encoded else ""
        )
        raise ArgumentError(
            "{paths} must be JSON files in the format of SQuAD, with the keys data, paragraphs, context and qas. "
            "Received: {path!r} ({error!s}){remedy!s}",
            path=os.fspath(path),
            error=f"{type(error).__name__}: {error}",
            remedy=remedy,
        ) from None
    malformed.total += len(entries)
    for number, (context, entry) in enumerate(entries, start=1):
        name = entry.get("id", number) if isinstance(entry, dict) else number
        try:
            yield _question(context, entry, str(name))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"no key {error}" if isinstance(error, KeyError) else str(error)
            malformed.add(path, f"question {name}", reason)


def _question(context: Any, entry: Any, id_: str) -> Question:
    """Return a question.

    Raises:
        KeyError: if it lacks a key.
        ValueError: if a text is empty, or an answer is not at its start.
    """
    answers = {} if entry.get("is_impossible") else entry.get("answers", ())
    distinct = dict.fromkeys((answer["text"], answer["answer_start"]) for answer in answers)
    for name, text in (("context", context), ("question", entry["question"])):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"an empty {name}")
        text.encode()  # a UnicodeEncodeError, which is a ValueError, for lone surrogates
    for text, start in distinct:
        if not text.strip():
            raise ValueError("an empty answer")
        if start < 0 or context[start : start + len(text)] != text:
            starts = [i for i in range(len(context)) if context.startswith(text, i)]
            nearest = min(starts, key=lambda i: abs(i - start), default=None)
            actual = "not in the context" if nearest is None else f"at character {nearest}"
            raise ValueError(f"the answer {text[:50]!r} is not at character {start}, but {actual}")
    texts, starts = zip(*distinct, strict=True) if distinct else ((), ())
    return Question(entry["question"], context, texts, starts, id_)
