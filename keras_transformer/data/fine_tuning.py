"""Batches of labelled texts to fine-tune a language model for classification."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_one_of, check_positive_integer
from keras_transformer.data.epochs import batches, rows_of_batch
from keras_transformer.data.labels import checked_labels
from keras_transformer.data.ragged_rows import RaggedRows
from keras_transformer.data.token_lists import padding_values, token_lists

TASKS = ("classification", "entailment", "similarity", "multiple_choice")
_NO_ROW = -1


class Tokenizer(Protocol):
    """The interface required of a tokenizer, as in `keras_transformer.text`."""

    pad_id: int | None
    end_id: int
    vocabulary_size: int

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Convert a string tensor (B,) to int32 ids (B, None) without special ids."""


def fine_tuning(
    examples: Iterable[Any],
    labels: Sequence[int] | np.ndarray,
    tokenizer: Tokenizer,
    batch_size: int = 32,
    *,
    task: str = "classification",
    max_length: int = 512,
    special_ids: Sequence[int] | None = None,
    shuffle: bool = True,
    seed: int = 0,
) -> tf.data.Dataset:
    """Make batches to fine-tune a language model for a task, with language modelling as an auxiliary objective.

    For an encoder such as BERT, which needs no such objective, see `classification`; its labels are the same.

    The labels correspond to the model's `problem_type` and the loss compiled for "classes":

        the class of each example  integers (n,)          "single_label_classification"  SparseCategoricalCrossentropy
        its several classes        0 or 1, (n, C)         "multi_label_classification"   BinaryCrossentropy
        numbers                    floats (n,), (n, C)    "regression"                   MeanSquaredError

    Cross-entropies are from logits.

    Each example becomes one or several rows of tokens, with special tokens at the start, between texts and at the end:

        classification    text                  start text extract
        entailment        (premise, hypothesis) start premise delimiter hypothesis extract
        similarity        (one, other)          start one delimiter other extract
                                                start other delimiter one extract
        multiple_choice   (context, answers)    start context delimiter answer extract, for each answer

    Args:
        examples: texts, or tuples of texts, depending on the task.
        labels: the label of each example, see above; for "multiple_choice" the index of the right answer, integers
            (n,).
        tokenizer: the tokenizer, which must not encode any text with `special_ids`.
        batch_size: B, the number of examples in each batch; the last may be smaller.
        task: one of the above. Use "similarity" for pairs without an inherent order.
        max_length: the maximum length of a row, including special tokens: the model's number of positions.
        special_ids: ids of start, delimiter and extract, by default the three after the tokenizer's vocabulary, as
            in `models.GPT.resize_token_embeddings`.
        shuffle: whether to reshuffle in each epoch.
        seed: the seed of shuffling.

    Returns:
        A dataset of known cardinality with elements `({"token_ids": ids}, {"classes": labels, "tokens": next ids})`,
        for `models.GPTClassifier` and `models.GPTMultipleChoice`. Labels are int32 (B,), or float32 (B, C) if they are
        multi-label or numbers. Ids and next ids are int32 (B, T), for "similarity" (B, 2, T), for "multiple_choice"
        (B, K, T), where K is the maximum number of answers and T the length of the longest row. Both are padded with
        `pad_id`, which losses and metrics must ignore; if that is None, ids are padded with `end_id` and next ids with
        −1.

    Raises:
        TypeError: if `examples` is one string.
        ValueError: if a row is longer than `max_length` (rows are never truncated), an example does not match the task,
            `labels` do not match the examples, a text contains a special token, or an argument is out of range.

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
    check_positive_integer(batch_size=batch_size)
    special_ids, padding = _check_special_ids(special_ids, tokenizer), padding_values(tokenizer)
    texts = [_texts(example, task, i) for i, example in enumerate(examples)]
    ids = token_lists([text for each in texts for text in each], tokenizer)
    rows_of = [
        _rows([next(ids) for _ in each], special_ids, task, max_length, i) for i, each in enumerate(texts)
    ]
    rows_each = max(map(len, rows_of), default=0)
    targets = checked_labels(labels, len(rows_of), classes_only=task == "multiple_choice")
    if task == "multiple_choice":
        _check_answers(targets, rows_of)
    flat = [row for rows in rows_of for row in rows]
    tokens = RaggedRows.of_lists(flat)
    places = np.full((len(texts), rows_each), _NO_ROW)
    places[[[n < len(rows) for n in range(rows_each)] for rows in rows_of]] = np.arange(len(flat))
    length = max(map(len, flat))
    shape = [None, length] if task in ("classification", "entailment") else [None, rows_each, length]
    with tf.device("CPU:0"):  # functions of a dataset cannot read GPU memory
        places, targets = tf.constant(places), tf.constant(targets)

    def batch(number: tf.Tensor, seeds: tf.Tensor) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        examples = rows_of_batch(number, seeds, len(texts), batch_size, shuffle)
        rows = tf.reshape(tf.gather(places, examples), [-1])
        ids, lengths = tokens.gather(rows, tf.constant(length, tf.int64))
        column = tf.range(length, dtype=tf.int64)
        following = tf.pad(ids[:, 1:], [[0, 0], [0, 1]])
        following = tf.where(column + 1 < lengths, following, padding[1])
        ids = tf.where(column < lengths, ids, padding[0])
        ids, following = (tf.reshape(each, [-1, *shape[1:]]) for each in (ids, following))
        return {"token_ids": ids}, {"classes": tf.gather(targets, examples), "tokens": following}

    return batches(-(-len(texts) // batch_size), batch, seed, [*tokens, places, targets])


def input_rows(texts: Sequence[Sequence[int]], special_ids: Sequence[int], task: str) -> list[list[int]]:
    """Return the input rows of one example.

    Args:
        texts: the ids of its texts, in the order of the example; for "multiple_choice" the context first.
        special_ids: ids of start, delimiter and extract.
        task: see `fine_tuning`.

    Returns:
        Rows of ids: one, or two for "similarity", or one per answer for "multiple_choice".
    """
    start, delimiter, extract = special_ids
    first, *others = texts
    if not others:
        return [[start, *first, extract]]
    rows = [[start, *first, delimiter, *other, extract] for other in others]
    return [*rows, [start, *others[0], delimiter, *first, extract]] if task == "similarity" else rows


def _texts(example: Any, task: str, index: int) -> list[str]:
    """Return the texts of an example."""
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


def _check_special_ids(special_ids: Sequence[int] | None, tokenizer: Tokenizer) -> tuple[int, ...]:
    size = tokenizer.vocabulary_size
    checked = tuple(range(size, size + 3)) if special_ids is None else tuple(special_ids)
    if len(set(checked)) != len(checked) or len(checked) != 3 or min(checked) < 0:
        raise ValueError(
            "`special_ids` must be three different ids, for start, delimiter and extract. "
            f"Received: special_ids={special_ids}"
        )
    if padding_values(tokenizer)[0] in checked:
        raise ValueError(
            "`tokenizer` must have a padding value that is not a special token. "
            f"Received: tokenizer.pad_id={tokenizer.pad_id}, special_ids={checked}"
        )
    return checked


def _check_answers(labels: np.ndarray, rows_of: Sequence[Sequence[Any]]) -> None:
    """Raise unless each label is the index of one of its example's rows."""
    wrong = np.flatnonzero(labels >= [len(rows) for rows in rows_of])
    if len(wrong):
        raise ValueError(
            "`labels` must be the indices of the right answers. "
            f"Received: labels[{wrong[0]}]={labels[wrong[0]]} of {len(rows_of[wrong[0]])} answers"
        )


def _rows(
    texts: list[list[int]], special_ids: Sequence[int], task: str, max_length: int, index: int
) -> list[list[int]]:
    if found := sorted({id_ for ids in texts for id_ in ids} & set(special_ids)):
        raise ValueError(
            f"`special_ids` must be ids that no text contains. Received: examples[{index}] with {found}"
        )
    rows = input_rows(texts, special_ids, task)
    if (length := max(map(len, rows))) > max_length:
        raise ValueError(
            f"`examples` must fit max_length={max_length} tokens per row, including special tokens, which the model's "
            f"positions limit. Received: {length} tokens in examples[{index}]"
        )
    return rows
