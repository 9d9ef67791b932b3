"""Lengths of rows that are padded at the end."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import data, text

PAIRS = [("uno dos tres", "one two three"), ("sí", "yes"), ("casa azul", "")]


@pytest.fixture(scope="module")
def tokenizer():
    return text.ByteTokenizer()


def test_lengths_of_translation_pairs_are_their_numbers_of_ids(tokenizer):
    batches = data.translation_pairs(PAIRS, tokenizer, batch_size=4, length_buckets=1, shuffle=False)
    found = data.with_lengths(batches, tokenizer.pad_id)
    assert int(found.cardinality()) == int(batches.cardinality())
    (inputs, labels), (_, expected_labels) = next(iter(found)), next(iter(batches))
    np.testing.assert_array_equal(labels, expected_labels)
    sources = [len(source.encode()) + 1 for source, _ in PAIRS]
    targets = [len(target.encode()) + 1 for _, target in PAIRS]
    assert inputs["source_lengths"].numpy().tolist() == [*sources, 0]
    assert inputs["target_lengths"].numpy().tolist() == [*targets, 1]


def test_a_start_id_equal_to_the_padding_id_is_not_padding():
    ids = {"target_ids": [[0, 5, 6, 0], [0, 0, 0, 0]]}
    found = next(iter(data.with_lengths(tf.data.Dataset.from_tensors(ids))))
    assert found["target_lengths"].numpy().tolist() == [3, 1]


@pytest.mark.slow_variants
@pytest.mark.parametrize("row", [[0, 0, 5, 6], [5, 0, 6, 0]], ids=["left", "between"])
@pytest.mark.parametrize("name", ["token_ids", "source_ids", "target_ids"])
def test_padding_inside_a_row_is_rejected(name, row):
    batches = tf.data.Dataset.from_tensors(({name: [row]}, [[1]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"Padding of `{name}` must be at the end"):
        next(iter(data.with_lengths(batches)))
