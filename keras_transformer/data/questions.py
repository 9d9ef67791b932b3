"""Batches of questions and contexts to train an encoder for extractive question answering."""

import bisect
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.data.batches import Dataset
from keras_transformer.data.encoder_rows import (
    EncoderRow,
    checked_shapes,
    encoder_batches,
    pair_separators,
    rows_to_store,
    tokenized_words,
    windows,
)
from keras_transformer.data.epochs import Shard
from keras_transformer.data.examples import together
from keras_transformer.data.storage import Chunk
from keras_transformer.data.tokenized_texts import Tokenizer, token_lists
from keras_transformer_options.arguments import ArgumentError, check_positive_integer, is_integer
from keras_transformer_serving.text.tokenizer import Word

_SMALLEST_WINDOW = 2
_NO_ANSWER = (0, 0)  # the position of the start id
_TOO_LONG = "questions drops %d of %d questions, which leave no space for a context in %d ids"
_UNREACHABLE = "questions has no window that contains the answer for %d of %d questions, in rows of %d ids"
_Example = tuple[str, str, tuple[str, int] | None]
_LOGGER = logging.getLogger("keras_transformer")


def questions(
    questions: Iterable[str],
    contexts: Iterable[str],
    answers: Iterable[tuple[str, int] | None],
    tokenizer: Tokenizer,
    batch_size: int = 32,
    *,
    max_length: int = 384,
    doc_stride: int | None = None,
    length_buckets: int | Sequence[int] = 4,
    pad_to_multiple_of: int = 2,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Make batches to train an encoder such as BERT for extractive question answering.

    The inputs equal those of `pipelines.QuestionAnswering` with `long_texts="window"`: a context that is too long
    becomes several rows, which overlap by half or by `doc_stride`. The labels are the positions of the first and the
    last token of the answer's words, as the pipeline answers with complete words. In rows that do not contain the
    complete answer, and for questions without an answer, both are 0, the position of the start id.

    Args:
        questions: the questions, see `read_squad`.
        contexts: the context of each.
        answers: the text of each answer and the index of its first character in the context; `None` for no answer.
        tokenizer: a tokenizer with padding, start and end ids.
        batch_size: B, the number of rows in each batch; the last batch of each length may be smaller.
        max_length: the maximum length of a row, including special ids: at most the model's. Questions that leave no
            space for their context are dropped with a warning of the logger "keras_transformer"; another warning gives
            the number of answers that no window contains.
        doc_stride: the number of tokens by which windows overlap, as in `pipelines.QuestionAnswering`.
        length_buckets: the maximum number of lengths of batches, chosen to minimize padding; or the lengths, the last
            of which limits rows as `max_length` does.
        pad_to_multiple_of: the number of which chosen lengths are multiples. Smaller numbers pad less; tensor cores of
            GPUs are faster with 8.
        shuffle: whether to reshuffle in each epoch. Otherwise rows keep their order within each length.
        seed: the seed of shuffling.
        shard: (index, count), to read one shard of each batch as one of several workers, see `translation_pairs`; of
            the last batch of each length, up to count − 1 rows are dropped, different ones in each epoch.
        cache_dir: a folder for the ids, see `translation_pairs`.

    Returns:
        A dataset of known cardinality with elements `({"token_ids": (B, L), "segment_ids": (B, L)}, labels (B, 2))`,
        int32, for `models.SpanClassifier` and `keras.losses.SparseCategoricalCrossentropy(from_logits=True)`; L is one
        of a few lengths. Ids are padded with `pad_id` and 0, segment 1 is the context.

    Raises:
        ValueError: if there are not as many contexts and answers as questions, an answer is not at its start in the
            context, a context has no word, no question fits, or the tokenizer lacks an id.

    Example:
        >>> from keras_transformer.text import WordPieceTokenizer
        >>> question, context = "who barks", "a dog barks"
        >>> tokenizer = WordPieceTokenizer.train([question, context], 60, min_frequency=1)
        >>> data = questions([question], [context], [("dog", 2)], tokenizer)
        >>> inputs, labels = next(iter(data))
        >>> inputs["token_ids"].shape, labels.shape
        (TensorShape([1, 8]), TensorShape([1, 2]))

    References:
        Devlin et al., "BERT" (2019), sections 4.2 and 4.3.
    """
    if doc_stride is not None:
        check_positive_integer(doc_stride=doc_stride)
    shapes = checked_shapes(tokenizer, batch_size, max_length, length_buckets, pad_to_multiple_of)
    part = Shard.of(shard)

    def to_arrays(chunks: Iterator[list[_Example]]) -> Iterator[Chunk]:
        count = too_long = unreachable = 0
        for chunk in chunks:
            distinct = list(dict.fromkeys(context for _, context, _ in chunk))
            words = tokenized_words(distinct, tokenizer)
            tokens = {
                context: _Context.of(of_context) for context, of_context in zip(distinct, words, strict=True)
            }
            rows, labels = [], []
            question_ids = token_lists([question for question, _, _ in chunk], tokenizer)
            for i, (asked, (_, context, answer)) in enumerate(zip(question_ids, chunk, strict=True), count):
                tokenized_context = tokens[context]
                if not any(end > start for start, end in tokenized_context.words):
                    raise ArgumentError("{contexts} must each hold a word", **{f"contexts[{i}]": context})
                window = shapes.limit - 2 - pair_separators(tokenizer) - len(asked)
                if window < min(len(tokenized_context.ids), _SMALLEST_WINDOW):
                    too_long += 1
                    continue
                span = tokenized_context.tokens_of(answer)
                before = len(asked) + 1 + pair_separators(tokenizer)
                spans = windows(len(tokenized_context.ids), window, doc_stride)
                inside = [span is not None and start <= span[0] and span[1] < end for start, end in spans]
                for (start, end), reachable in zip(spans, inside, strict=True):
                    rows.append(EncoderRow.of(tokenizer, asked, tokenized_context.ids[start:end]))
                    labels.append([place - start + before for place in span] if reachable else _NO_ANSWER)
                unreachable += answer is not None and not any(inside)
            count += len(chunk)
            yield rows_to_store(rows) | {"labels": np.array(labels, np.int32).reshape(-1, 2)}
        if too_long == count:
            raise ArgumentError(
                "{max_length} (or the length of the longest batches) must leave space for a context after each "
                f"question. Received: a limit of {shapes.limit}"
            )
        for number, message in ((too_long, _TOO_LONG), (unreachable, _UNREACHABLE)):
            if number:
                _LOGGER.warning(message, number, count, shapes.limit)

    return encoder_batches(
        _examples(questions, contexts, answers),
        to_arrays,
        # Files in `cache_dir` of earlier versions have other ids.
        f"questions, words without punctuation, doc_stride={doc_stride}",
        tokenizer,
        shapes,
        shuffle=shuffle,
        seed=seed,
        shard=part,
        cache_dir=cache_dir,
    )


class _Context(NamedTuple):
    """The tokens of a context's words.

    Attributes:
        ids: the ids.
        words: (start, end) of each word, indices of characters.
        starts: the index of each word's first id; the last entry is the number of ids.
    """

    ids: list[int]
    words: list[tuple[int, int]]
    starts: list[int]

    @classmethod
    def of(cls, words: Sequence[Word]) -> "_Context":
        ids = [word.ids for word in words]
        return cls(
            list(itertools.chain.from_iterable(ids)),
            [(word.start, word.end) for word in words],
            list(itertools.accumulate(map(len, ids), initial=0)),
        )

    def tokens_of(self, answer: tuple[str, int] | None) -> tuple[int, int] | None:
        """Return the indices of the first and the last id of an answer's words, `None` if they have no ids."""
        if answer is None:
            return None
        text, start = answer
        first = bisect.bisect_right(self.words, start, key=lambda word: word[1])
        last = bisect.bisect_left(self.words, start + len(text), key=lambda word: word[0]) - 1
        span = self.starts[first], self.starts[last + 1] - 1
        return span if span[0] <= span[1] else None


def _examples(
    questions: Iterable[str], contexts: Iterable[str], answers: Iterable[tuple[str, int] | None]
) -> Iterator[_Example]:
    """Yield each question with its context and answer, checked."""
    examples = together(questions=questions, contexts=contexts, answers=answers)
    for i, (question, context, answer) in enumerate(examples):
        for name, text in (("questions", question), ("contexts", context)):
            if not isinstance(text, str):
                raise ArgumentError("{} must be strings", name, **{f"{name}[{i}]": text})
        if answer is not None:
            _check_answer(answer, context, i)
        yield question, context, answer


def _check_answer(answer: Any, context: str, i: int) -> None:
    pair = isinstance(answer, tuple | list) and len(answer) == 2
    if not pair or not isinstance(answer[0], str) or not is_integer(answer[1]):
        raise ArgumentError(
            "{answers} must be tuples of text and start, or None", **{f"answers[{i}]": answer}
        )
    text, start = answer
    if not text.strip() or start < 0 or context[start : start + len(text)] != text:
        raise ArgumentError(
            "{answers} must occur in their contexts at their starts. "
            f"Received: {{answers[{i}]=}}, where contexts[{i}] has {{content!r}}",
            **{f"answers[{i}]": answer},
            content=context[max(start, 0) :][:50],
        )
