"""Texts as inputs of examples and of comparisons: made from a vocabulary, or given by a user."""

import os
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from keras_transformer import xla
from keras_transformer.text.training.corpus import read_lines
from keras_transformer_options.arguments import ArgumentError, Message, check

_MOST_LINES = 64  # of a file
_PIECES = 400  # of the vocabulary, among which words are looked for
_CONTINUATION = 16  # the number of tokens that a language model writes after an example
_BEGINS = ("▁", "Ġ")  # the first character of pieces that begin a word
_CONTINUES = "##"
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


def texts_from_vocabulary(tokenizer: Any, count: int = 24) -> list[str]:
    """Return a text of whole words, texts of 2 to 24 random pieces, an empty text, and an unknown character.

    The first is the example that model cards and the server's page show.
    """
    random = np.random.default_rng(0)
    rows = [random.integers(4, tokenizer.vocabulary_size, 1 + i % 24) for i in range(count)]
    texts = [tokenizer.detokenize(row[None]).numpy()[0].decode(errors="ignore") for row in rows]
    return [_whole_words(tokenizer, random) or texts[0], *texts[1:], "", "\u2603"]


def _whole_words(tokenizer: Any, random: np.random.Generator) -> str:
    """Return a text of pieces that are words of the script that most of the words have, "" if there are none.

    The longest are taken, as short ones are often the beginnings of words.
    """
    ids = np.unique(random.integers(4, tokenizer.vocabulary_size, _PIECES))
    pieces = [tokenizer.id_to_piece(id_) for id_ in ids.tolist()]
    texts = [text.decode(errors="ignore").strip() for text in tokenizer.detokenize(ids[:, None]).numpy()]
    marked = any(piece.startswith(_BEGINS) for piece in pieces)  # otherwise "##" marks parts of words
    words: dict[str, list[tuple[int, int]]] = {}
    for id_, piece, text in zip(ids.tolist(), pieces, texts, strict=True):
        if not text or any(unicodedata.category(character)[0] not in "LM" for character in text):
            continue
        script = unicodedata.name(text[0], "").partition(" ")[0]
        is_whole = script in _WITHOUT_SPACES or piece.startswith(_BEGINS) == marked
        if is_whole and not piece.startswith(_CONTINUES) and (script in _WITHOUT_SPACES or len(text) > 2):
            words.setdefault(script, []).append((len(text), id_))
    if not words:
        return ""
    chosen = sorted(max(words.values(), key=len), reverse=True)[:3]
    return tokenizer.detokenize(np.array([[id_ for _, id_ in chosen]], "int32")).numpy()[0].decode().strip()


def accepted_texts(pipeline: Any) -> list[str]:
    """Return texts made from a pipeline's vocabulary that are valid inputs."""
    texts = texts_from_vocabulary(pipeline.tokenizer)
    return [text for text, error in zip(texts, _errors(pipeline, texts), strict=True) if not error]


def continued_texts(pipeline: Any) -> list[str]:
    """Return the accepted texts, each with what a language model writes after it, where that is valid.

    After random pieces alone, a trained model finds many next tokens equally probable. After a text of its own it is as
    sure as in its use, so that a choice that differs says something of the export.
    """
    texts, greedy = accepted_texts(pipeline), pipeline.with_settings("greedy", constraints=())
    with xla.off():
        ids = greedy.generate(texts, max_new_tokens=min(_CONTINUATION, pipeline.max_new_tokens)).best
    written = [answer.decode(errors="ignore") for answer in greedy.decode(ids).numpy()]
    longer = [text + answer for text, answer in zip(texts, written, strict=True)]
    errors = _errors(pipeline, longer)
    return [both if not error else text for text, both, error in zip(texts, longer, errors, strict=True)]


def given_texts(pipeline: Any, texts: Any, say: Callable[[str], Any]) -> list[Any]:
    """Return a user's texts as valid inputs of a pipeline, pairs if it takes two.

    Args:
        pipeline: the pipeline.
        texts: a list; or the path of a UTF-8 file with a text in each line, or a pair, separated by a tab. Of more than
            64 lines that are not blank, 64 are taken, at equal distances. The longer text of an input that is too long
            is halved until it is not.
        say: a function that prints a line of progress: how many lines are taken, and how many inputs are cut.

    Raises:
        FileNotFoundError: if there is no such file.
        TypeError: if `texts` are a string.
        ValueError: if the pipeline reads no texts, `texts` are empty, or one is invalid.
    """
    columns = pipeline.text_columns
    check(columns > 0, f"be None for a {type(pipeline).__name__}, which reads no texts", texts=texts)
    if isinstance(texts, str | bytes):
        message = Message("{texts} must be a list of texts, or a pathlib.Path of a file", texts=texts)
        raise TypeError(message)
    if isinstance(texts, os.PathLike):
        found = [*_file_rows(texts, columns)]
        check(bool(found), "have a line that is not blank", texts=os.fspath(texts))
        chosen = np.linspace(0, len(found) - 1, min(len(found), _MOST_LINES)).round().astype(int).tolist()
        say(f"texts: {len(chosen)} of {len(found)} lines of {os.fspath(texts)}")
        rows = {f"line {found[place][0]} of {os.fspath(texts)}": found[place][1] for place in chosen}
    else:
        rows = {f"texts[{place}]": row for place, row in enumerate(checked_rows(texts, columns))}
    cut = _shortened(pipeline, rows)
    if count := sum(cut[place] != row for place, row in rows.items()):
        say(f"texts: {count} of {len(rows)} are too long, and are cut")
    return [row if columns > 1 else row[0] for row in cut.values()]


def _file_rows(path: os.PathLike[str], columns: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the numbers and the texts of the lines of a file that are not blank."""
    tables = ("csv", "jsonl") if columns > 1 else ("tsv", "csv", "jsonl")
    for number, line in enumerate(read_lines(path, tables), start=1):
        if not line.strip():
            continue
        row = tuple(line.split("\t")) if columns > 1 else (line,)
        if len(row) != columns:
            raise ArgumentError(
                f"{{texts}} must have {columns} texts in each line, separated by a tab. "
                "Received: {path!s}, line {number!s}: {line!r}",
                path=os.fspath(path),
                number=number,
                line=line[:100],
            )
        yield number, row


def _shortened(pipeline: Any, rows: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return rows of texts, by their places; the longer text of a row is halved while it is not a valid input."""
    cut, errors, invalid = dict(rows), dict[str, str](), [*rows]
    while invalid:
        found = pipeline.example_batch([cut[place] for place in invalid]).error.numpy()
        invalid = [place for place, error in zip(invalid, found, strict=True) if error]
        for place, error in zip(invalid, filter(None, found), strict=True):
            errors.setdefault(place, error.decode())
            row = cut[place]
            column = max(range(len(row)), key=lambda number: len(row[number]))
            half = row[column][: len(row[column]) // 2]
            half = half[: half.rfind(" ")] if " " in half.strip() else half
            if not half.strip():
                raise ValueError(f"{errors[place]} in {place}")
            cut[place] = (*row[:column], half, *row[column + 1 :])
    return cut


def _errors(pipeline: Any, texts: list[str]) -> Any:
    """Return why texts are not valid inputs of a pipeline, b"" for those that are."""
    return pipeline.example_batch([(text,) for text in texts]).error.numpy()


def checked_rows(texts: Any, columns: int) -> list[tuple[str, ...]]:
    """Return rows of texts as tuples, or raise a ValueError if they are of another type or number."""
    rows = [tuple(row) if columns > 1 and isinstance(row, list | tuple) else (row,) for row in texts]
    if not rows or any(len(row) != columns or not all(isinstance(text, str) for text in row) for row in rows):
        expected = "strings" if columns == 1 else "pairs of strings"
        raise ValueError(f"`texts` must be {expected}, one or more. Received: texts={texts!r}")
    return rows
