"""Labelled texts as rows of tokens and batches that fine-tune a language model to classify."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_one_of, check_positive
from keras_transformer.data.ragged_rows import RaggedRows
from keras_transformer.data.token_lists import numbered, padding_values, token_lists

TASKS = ("classification", "entailment", "similarity", "multiple_choice")
_NO_ROW = -1


class Tokenizer(Protocol):
    """What is needed of a tokenizer; those of `keras_transformer.text` have it."""

    pad_id: int | None
    end_id: int
    vocabulary_size: int

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Turns a string tensor (B,) into int32 ids (B, None) without special ids."""


def fine_tuning(
    examples: Iterable[Any],
    labels: Sequence[int] | np.ndarray,
    tokenizer: Tokenizer,
    batch_size: int = 32,
    *,
    task: str = "classification",
    max_length: int = 512,
    marks: Sequence[int] | None = None,
    shuffle: bool = True,
    seed: int = 0,
) -> tf.data.Dataset:
    """Makes the batches that teach a language model a task, and to go on modelling the task's texts.

    What the labels are is what the model's `problem_type` is, and the loss that is compiled for "classes":

        each example's class       integers (n,)     "single_label_classification"  SparseCategoricalCrossentropy
        which classes it has       0 or 1, (n, C)    "multi_label_classification"   BinaryCrossentropy
        numbers                    floats (n,), (n, C)    "regression"              MeanSquaredError

    Cross-entropies are from logits.

    Each example becomes R rows of tokens, which begin and end with marks and have one between two texts:

        classification    text                  start text extract
        entailment        (premise, hypothesis) start premise delimiter hypothesis extract
        similarity        (one, other)          start one delimiter other extract
                                                start other delimiter one extract
        multiple_choice   (context, answers)    start context delimiter answer extract, for each answer

    Args:
        examples: Texts, or tuples of them, as the task has it.
        labels: Of each example, see above; with "multiple_choice" which answer is right, integers (n,).
        tokenizer: Its texts must hold no mark.
        batch_size: B, the examples in each batch; the last may be smaller.
        task: One of the above. A pair whose order says nothing is one of "similarity".
        max_length: The longest row that there may be, marks included: the model's positions.
        marks: Ids of start, delimiter and extract, by default the three behind the tokenizer's vocabulary, as
            `models.GPT.resize_token_embeddings` adds them.
        shuffle: Whether each epoch has another order.
        seed: Which orders.

    Returns:
        A dataset of known cardinality with elements `({"token_ids": ids}, {"classes": labels, "tokens": next ids})`.
        Labels are int32 (B,), or float32 (B, C) where an example has several or they are numbers. The others are int32:
        ids and next ids are (B, T), for "similarity" (B, 2, T), for "multiple_choice" (B, K, T) with K the most
        answers there are; T is the length of the longest row. Both are padded with `pad_id`, which losses and metrics
        ignore; where that is None, ids with `end_id` and next ids with −1. For `models.GPTClassifier` and
        `models.GPTMultipleChoice`.

    Raises:
        TypeError: If `examples` is one string.
        ValueError: If a row is longer than `max_length` (none is ever cut), an example is not what the task has,
            `labels` are not as many or none of the above, a text holds a mark, or an argument is out of its range.

    Example:
        >>> from keras_transformer.text import ByteTokenizer
        >>> batches = fine_tuning([("a man", "a person")], [1], ByteTokenizer(), task="similarity")
        >>> inputs, labels = next(iter(batches))
        >>> inputs["token_ids"].shape, labels["classes"].shape, labels["tokens"].shape
        (TensorShape([1, 2, 16]), TensorShape([1]), TensorShape([1, 2, 16]))

    References:
        Radford et al., "Improving Language Understanding by Generative Pre-Training" (2018), section 3.3, figure 1.
    """
    if isinstance(examples, str | bytes):
        raise TypeError(f"`examples` must be an iterable. Received: examples={str(examples)[:50]!r}")
    check_one_of(TASKS, task=task)
    check_positive(batch_size=batch_size)
    marks, padding = _check_marks(marks, tokenizer), padding_values(tokenizer)
    texts = [_texts(example, task, i) for i, example in enumerate(examples)]
    ids = token_lists([text for each in texts for text in each], tokenizer)
    rows_of = [_rows([next(ids) for _ in each], marks, task, max_length, i) for i, each in enumerate(texts)]
    rows_each = max(map(len, rows_of), default=0)
    targets = _check_labels(labels, rows_of, task)
    flat = [row for rows in rows_of for row in rows]
    tokens = RaggedRows.concatenated([tf.ragged.constant(flat, tf.int32)])
    places = np.full((len(texts), rows_each), _NO_ROW)
    places[[[n < len(rows) for n in range(rows_each)] for rows in rows_of]] = np.arange(len(flat))
    length = max(map(len, flat))
    shape = [None, length] if task in ("classification", "entailment") else [None, rows_each, length]
    with tf.device("CPU:0"):  # a data set's functions cannot read a GPU's memory
        places, targets = tf.constant(places), tf.constant(targets)

    def batch(examples: tf.Tensor) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        rows = tf.reshape(tf.gather(places, examples), [-1])
        ids, lengths = tokens.gather(rows, tf.constant(length, tf.int64))
        column = tf.range(length, dtype=tf.int64)
        following = tf.pad(ids[:, 1:], [[0, 0], [0, 1]])
        following = tf.where(column + 1 < lengths, following, padding[1])
        ids = tf.where(column < lengths, ids, padding[0])
        ids, following = (tf.reshape(each, [-1, *shape[1:]]) for each in (ids, following))
        return {"token_ids": ids}, {"classes": tf.gather(targets, examples), "tokens": following}

    numbers, _ = numbered(len(texts), shuffle, seed)
    dataset = numbers.batch(batch_size).map(batch, tf.data.AUTOTUNE, deterministic=True)
    return dataset.prefetch(tf.data.AUTOTUNE)


def input_rows(texts: Sequence[Sequence[int]], marks: Sequence[int], task: str) -> list[list[int]]:
    """The rows of one example.

    Args:
        texts: The ids of its texts, in the order of the example; of "multiple_choice" first the context's.
        marks: Ids of start, delimiter and extract.
        task: As for `fine_tuning`.

    Returns:
        Rows of ids: one, or two for "similarity", or as many as there are answers.
    """
    start, delimiter, extract = marks
    first, *others = texts
    if not others:
        return [[start, *first, extract]]
    rows = [[start, *first, delimiter, *other, extract] for other in others]
    return [*rows, [start, *others[0], delimiter, *first, extract]] if task == "similarity" else rows


def _texts(example: Any, task: str, index: int) -> list[str]:
    """All texts of an example."""
    if task == "classification":
        texts = [example]
    else:
        pair = isinstance(example, Sequence) and not isinstance(example, str) and len(example) == 2
        first, second = example if pair else (None, None)
        choices = task == "multiple_choice"
        listed = isinstance(second, Sequence) and not isinstance(second, str) and len(second) > 0
        texts = [first, *second] if choices and listed else [first, None if choices else second]
    if not all(isinstance(text, str) for text in texts):
        expected = {"classification": "texts", "multiple_choice": "(context, answers)"}
        raise ValueError(
            f"`examples` must be {expected.get(task, 'pairs of texts')} for task={task!r}. "
            f"Received: examples[{index}]={example!r}"
        )
    return texts


def _check_marks(marks: Sequence[int] | None, tokenizer: Tokenizer) -> tuple[int, ...]:
    size = tokenizer.vocabulary_size
    checked = tuple(range(size, size + 3)) if marks is None else tuple(marks)
    if len(set(checked)) != len(checked) or len(checked) != 3 or min(checked) < 0:
        raise ValueError(
            f"`marks` must be three different ids, for start, delimiter and extract. Received: marks={marks}"
        )
    if padding_values(tokenizer)[0] in checked:
        raise ValueError(
            "`tokenizer` must have padding that is no mark. "
            f"Received: tokenizer.pad_id={tokenizer.pad_id}, marks={checked}"
        )
    return checked


def _check_labels(labels: Any, rows_of: Sequence[Sequence[Any]], task: str) -> np.ndarray:
    """Classes, int32 (n,); or several labels or numbers of each example, float32 (n, C)."""
    found, chooses = np.asarray(labels), task == "multiple_choice"
    integers = found.dtype.kind in "iub"
    classes = integers and found.ndim == 1 and (found >= 0).all()
    several = integers and found.ndim == 2 and np.isin(found, (0, 1)).all()
    numbers = found.dtype.kind == "f" and found.ndim in (1, 2) and np.isfinite(found).all()
    valid = classes or ((several or numbers) and not chooses)
    if not valid or not found.size or len(found) != len(rows_of):
        others = "" if chooses else ", 0 or 1 for each of several, or finite floats"
        raise ValueError(
            "`examples` and `labels` must be equally many, one at least, and labels integers from 0 on"
            f"{others}. Received: {len(rows_of)} examples and labels {str(labels)[:50]}"
        )
    if not classes:
        return found.reshape(len(found), -1).astype("float32")
    if task == "multiple_choice":
        wrong = np.flatnonzero(found >= [len(rows) for rows in rows_of])
        if len(wrong):
            raise ValueError(
                "`labels` must say which answer is right, from 0 on. "
                f"Received: labels[{wrong[0]}]={found[wrong[0]]} of {len(rows_of[wrong[0]])} answers"
            )
    return found.astype("int32")


def _rows(
    texts: list[list[int]], marks: Sequence[int], task: str, max_length: int, index: int
) -> list[list[int]]:
    if held := sorted({id_ for ids in texts for id_ in ids} & set(marks)):
        raise ValueError(
            f"`marks` must be ids that stand in no text. Received: examples[{index}] with {held}"
        )
    rows = input_rows(texts, marks, task)
    if (longest := max(map(len, rows))) > max_length:
        raise ValueError(
            f"`examples` must fit max_length={max_length} tokens a row, marks included, which the model's positions "
            f"limit. Received: {longest} tokens in examples[{index}]"
        )
    return rows
