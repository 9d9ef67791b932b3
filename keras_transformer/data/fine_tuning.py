"""Batches of labelled texts to fine-tune a language model for classification."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer.data.batches import Dataset, batches
from keras_transformer.data.epochs import Batch, RowOrder, Shard
from keras_transformer.data.examples import Examples, Labels, stored
from keras_transformer.data.storage import Chunk, RowsToStore, gathered
from keras_transformer.data.tokenized_texts import Tokenizer, padding_values, token_lists
from keras_transformer_options.arguments import check_one_of, check_positive_integer

TASKS = ("classification", "entailment", "similarity", "multiple_choice")


def fine_tuning(
    examples: Iterable[Any],
    labels: Iterable[Any] | np.ndarray,
    tokenizer: Tokenizer,
    batch_size: int = 32,
    *,
    task: str = "classification",
    max_length: int = 512,
    special_ids: Sequence[int] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Dataset:
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
            (n,). An iterable that is no array or sequence is read along with `examples`.
        tokenizer: the tokenizer, which must not encode any text with `special_ids`.
        batch_size: B, the number of examples in each batch; the last may be smaller.
        task: one of the above. Use "similarity" for pairs without an inherent order.
        max_length: the maximum length of a row, including special tokens: the model's number of positions.
        special_ids: ids of start, delimiter and extract, by default the three after the tokenizer's vocabulary, as
            in `models.GPT.resize_token_embeddings`.
        shuffle: whether to reshuffle in each epoch.
        seed: the seed of shuffling.
        shard: (index, count), to read one shard of each batch as one of several workers, see `translation_pairs`; of
            the last batch, up to count − 1 rows are dropped, different ones in each epoch.
        cache_dir: a folder for the ids, see `translation_pairs`.

    Returns:
        A dataset of known cardinality with elements `({"token_ids": ids}, {"classes": labels, "tokens": next ids})`,
        for `models.GPTClassifier` and `models.GPTMultipleChoice`. Labels are int32 (B,), or float32 (B, C) if they are
        multi-label or numbers. Ids and next ids are int32 (B, T), for "similarity" (B, 2, T), for "multiple_choice"
        (B, K, T), where K is the maximum number of answers and T the length of the longest row. Both are padded with
        `pad_id`, which losses and metrics must ignore; if `pad_id` is None, ids are padded with `end_id` and next ids
        with −1.

    Raises:
        ValueError: if a row is longer than `max_length` (rows are never truncated), an example does not match the task,
            `labels` do not match the examples, or a text contains a special token.

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
    part, padding = Shard.of(shard), padding_values(tokenizer)
    special_ids = _check_special_ids(special_ids, tokenizer)
    choices = task == "multiple_choice"
    checked_labels = Labels(labels, classes_only=choices)

    def to_arrays(chunks: Iterator[list[tuple[list[str], Any]]]) -> Iterator[Chunk]:
        count = max_rows = length = 0
        for chunk in chunks:
            ids = iter(token_lists([text for texts, _ in chunk for text in texts], tokenizer))
            rows_of = [
                _rows([next(ids) for _ in texts], special_ids, task, max_length, i)
                for i, (texts, _) in enumerate(chunk, count)
            ]
            targets = checked_labels.checked([label for _, label in chunk])
            if choices:
                _check_answers(targets, rows_of, count)
            flat = [row for rows in rows_of for row in rows]
            count += len(chunk)
            max_rows, length = max(max_rows, *map(len, rows_of)), max(length, *map(len, flat))
            numbers = RowsToStore.of_lists([range(len(rows)) for rows in rows_of])
            yield {"rows": RowsToStore.of_lists(flat), "numbers": numbers, "labels": targets}
        yield {"sizes": np.array([max_rows, length])}

    texts = (_texts(example, task, i) for i, example in enumerate(examples))
    arrays = stored(
        Examples.of(checked_labels.paired_with(examples=texts)),
        to_arrays,
        cache_dir,
        tokenizer=tokenizer,
        task=task,
        max_length=max_length,
        special_ids=list(map(int, special_ids)),
    )
    tokens, first_row = arrays.rows("rows"), arrays.rows("numbers").splits
    rows_per_example, length = arrays["sizes"].tolist()
    shape = (length,) if task in ("classification", "entailment") else (rows_per_example, length)

    def classes_and_tokens(batch: Batch) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        rows = gathered(first_row, batch.rows)[:, None] + np.arange(rows_per_example)
        rows = np.where(rows < gathered(first_row, batch.rows + 1)[:, None], rows, -1).reshape(-1)
        ids, lengths = tokens.gather(rows, length)
        column = np.arange(length)
        following = np.where(column + 1 < lengths, np.roll(ids, -1, axis=1), padding[1])
        ids = np.where(column < lengths, ids, padding[0])
        ids, following = (values.reshape(-1, *shape) for values in (ids, following))
        return {"token_ids": ids}, {"classes": gathered(arrays["labels"], batch.rows), "tokens": following}

    order = RowOrder(len(first_row) - 1, batch_size, shuffle, part, complete=False)
    return batches(order, classes_and_tokens, seed, arrays.content)


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


def _check_answers(labels: np.ndarray, rows_of: Sequence[Sequence[Any]], first: int) -> None:
    """Raise a ValueError unless each label, of the examples from `first` on, is the index of one of its rows."""
    wrong = np.flatnonzero(labels >= [len(rows) for rows in rows_of])
    if len(wrong):
        raise ValueError(
            "`labels` must be the indices of the right answers. "
            f"Received: labels[{first + wrong[0]}]={labels[wrong[0]]} of {len(rows_of[wrong[0]])} answers"
        )


def _rows(
    texts: list[list[int]], special_ids: Sequence[int], task: str, max_length: int, index: int
) -> list[list[int]]:
    if contained := sorted({id_ for ids in texts for id_ in ids} & set(special_ids)):
        raise ValueError(
            f"`special_ids` must not occur in any text. Received: examples[{index}] with {contained}"
        )
    rows = input_rows(texts, special_ids, task)
    if (length := max(map(len, rows))) > max_length:
        raise ValueError(
            f"`examples` must fit max_length={max_length} tokens per row, including special tokens, which the model's "
            f"positions limit. Received: {length} tokens in examples[{index}]"
        )
    return rows
