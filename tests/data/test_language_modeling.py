import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data import language_modeling, packing
from keras_transformer.text import ByteTokenizer

TOKENIZER = ByteTokenizer()
TEXTS = ["to be, or not", "to", "be: that", "", "is the question", "x", "whether it is nobler in the mind"]
STREAM = [
    id_ for text in TEXTS if text for id_ in (*TOKENIZER.tokenize(text).numpy().tolist(), TOKENIZER.end_id)
]


def epoch(dataset):
    """Return the inputs and labels of one epoch without padding rows."""
    rows = []
    for inputs, labels in dataset.as_numpy_iterator():
        rows += [({name: values[i] for name, values in inputs.items()}, row) for i, row in enumerate(labels)]
    return [(inputs, labels) for inputs, labels in rows if labels.any()]


def predictions(rows):
    """Return (token, next token) at every position of the rows."""
    return [
        (int(token), int(label))
        for inputs, labels in rows
        for token, label in zip(inputs["token_ids"], labels, strict=True)
        if label
    ]


def pairs(ids):
    return list(itertools.pairwise(ids))


@pytest.mark.slow_variants
@pytest.mark.parametrize("length", [1, 4, 7, 200])
def test_rows_in_order_concatenate_to_the_texts_with_end_tokens(length):
    rows = epoch(language_modeling(TEXTS, TOKENIZER, 3, length=length, shuffle=False))
    assert predictions(rows) == pairs(STREAM)
    assert all((labels != 0).all() for _, labels in rows[:-1])
    assert len(rows) == -(-(len(STREAM) - 1) // length)


@pytest.mark.slow_variants
@pytest.mark.parametrize("length", [1, 4, 7, 200])
def test_each_shuffled_epoch_changes_row_boundaries_and_predicts_each_token_once(length):
    dataset = language_modeling(TEXTS, TOKENIZER, 3, length=length, seed=1)
    epochs = [epoch(dataset) for _ in range(4)]
    for rows in epochs:
        assert sorted(predictions(rows)) == sorted(pairs(STREAM))
    firsts = [{tuple(inputs["token_ids"]) for inputs, _ in rows} for rows in epochs]
    if length in (4, 7):
        assert len({frozenset(rows) for rows in firsts}) > 1
        assert len({tuple(rows[0][0]["token_ids"]) for rows in epochs}) > 1


@pytest.mark.slow_variants
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_all_batches_have_one_shape_and_the_cardinality_is_known(separate, shuffle):
    dataset = language_modeling(TEXTS, TOKENIZER, 4, length=9, separate=separate, shuffle=shuffle)
    batches = list(dataset)
    assert len(batches) == dataset.cardinality().numpy() > 1
    for inputs, labels in (*batches, dataset.element_spec):
        assert {(*each.shape,) for each in (*inputs.values(), labels)} == {(4, 9)}
        assert {each.dtype for each in (*inputs.values(), labels)} == {tf.int32}


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("length", "packed_together"), [(1, {}), (5, {"_MAX_TEXTS": 2}), (16, {"_MAX_TOKENS": 20}), (200, {})]
)
def test_separate_texts_are_unbroken_with_distinct_segments(length, packed_together, monkeypatch):
    for name, most in packed_together.items():
        monkeypatch.setattr(packing, name, most)
    rows = epoch(language_modeling(TEXTS, TOKENIZER, 2, length=length, separate=True))
    found = []
    for inputs, labels in rows:
        ids, segments, positions = (inputs[name] for name in ("token_ids", "segment_ids", "positions"))
        np.testing.assert_array_equal(segments == 0, ids == TOKENIZER.pad_id)
        np.testing.assert_array_equal(labels == 0, ids == TOKENIZER.pad_id)
        numbers = segments[segments > 0]
        np.testing.assert_array_equal(np.unique(numbers), np.arange(1, numbers.max() + 1))
        for number in range(1, numbers.max() + 1):
            here = np.flatnonzero(segments == number)
            np.testing.assert_array_equal(here, np.arange(here[0], here[-1] + 1))
            np.testing.assert_array_equal(positions[here], np.arange(len(here)))
            np.testing.assert_array_equal(ids[here][1:], labels[here][:-1])
            found.append((*ids[here].tolist(), int(labels[here[-1]])))
    expected = []
    for text in filter(None, TEXTS):
        ids = [*TOKENIZER.tokenize(text).numpy().tolist(), TOKENIZER.end_id]
        expected += [tuple(ids[i : i + length + 1]) for i in range(0, len(ids) - 1, length)]
    assert sorted(found) == sorted(expected)


def test_rows_are_packed_without_gaps():
    random = np.random.default_rng(0)
    texts = ["a" * size for size in random.integers(1, 60, 300)]
    rows = epoch(language_modeling(texts, TOKENIZER, 8, length=64, separate=True))
    tokens = sum(map(len, texts))
    assert len(rows) <= 1.05 * tokens / 64


def test_texts_tokenised_in_chunks_are_complete():
    texts = [f"{number}" for number in range(9000)]
    rows = epoch(language_modeling(texts, TOKENIZER, 64, length=64, separate=True, shuffle=False))
    assert sum(inputs["segment_ids"].max() for inputs, _ in rows) == 9000


@pytest.mark.parametrize("separate", [False, True])
def test_without_pad_id_padding_labels_are_negative(separate):
    without = ByteTokenizer({"unknown": "<unk>", "end": "</s>"})
    dataset = language_modeling(TEXTS, without, 4, length=9, separate=separate, shuffle=False)
    ids, labels = (
        np.concatenate(each)
        for each in zip(*((inputs["token_ids"], after) for inputs, after in dataset), strict=True)
    )
    assert labels.min() == -1
    assert (ids[labels == -1] == without.end_id).all()
    ends = sum(map(bool, TEXTS))
    assert (labels == without.end_id).sum() == ends  # tokens with the id that padding would have are learned
