"""Prompts and completions: only completions are labels, and packed pairs do not attend to each other."""

import json
import logging

import keras
import numpy as np
import pytest

from keras_transformer import models, training
from keras_transformer.data import instruction_tuning
from keras_transformer.text import ByteTokenizer

TOKENIZER = ByteTokenizer()
PAIRS = [("2+3=", "5"), ("say hello:", " hello!"), ("", "ab"), ("nothing", ""), ("é", "à"), ("2+30=", "32")]


WITHOUT_PADDING = ByteTokenizer()
WITHOUT_PADDING.pad_id = None


def ids(text, tokenizer=TOKENIZER):
    return tokenizer.tokenize([text]).to_list()[0]


def segments(dataset, ignored=0):
    """Return (ids, labels, positions) of each text of an epoch, as tuples."""
    found = []
    for inputs, labels in dataset.as_numpy_iterator():
        for row in range(len(labels)):
            numbers = inputs["segment_ids"][row]
            assert (labels[row][numbers == 0] == ignored).all()
            for number in range(1, numbers.max() + 1):
                at = numbers == number
                columns = (inputs["token_ids"], labels, inputs["positions"])
                found.append(tuple(tuple(each[row][at].tolist()) for each in columns))
    return found


@pytest.mark.parametrize(
    ("tokenizer", "ignored"), [(TOKENIZER, 0), (WITHOUT_PADDING, -1)], ids=["pad", "no pad"]
)
def test_each_pair_is_in_one_row_with_labels_for_completion_and_end_token(tokenizer, ignored):
    dataset = instruction_tuning(PAIRS, tokenizer, 2, length=18)
    expected = []
    for prompt, completion in PAIRS:
        whole = [*ids(prompt), *ids(completion), tokenizer.end_id]
        labels = [ignored] * (len(ids(prompt)) - 1) + [*ids(completion), tokenizer.end_id]
        expected.append((tuple(whole[:-1]), tuple(labels[-len(whole) + 1 :]), tuple(range(len(whole) - 1))))
    for _ in range(2):
        assert sorted(segments(dataset, ignored)) == sorted(expected)


def test_rows_are_packed():
    pairs = [(f"{number}=", str(number)) for number in range(20)]
    dataset = instruction_tuning(pairs, TOKENIZER, 2, length=9)
    assert len(segments(dataset)) == 20 > 2 * int(dataset.cardinality())


def test_loss_is_the_mean_over_completions_and_prompts_have_no_gradient(gradients):
    """The reference computes each pair separately in NumPy."""
    model = models.GPT(TOKENIZER.vocabulary_size, 1, 2, 16, max_length=32, dropout=0.0)
    total, count = 0.0, 0
    for prompt, completion in PAIRS:
        whole = [*ids(prompt), *ids(completion), TOKENIZER.end_id]
        logits = np.asarray(model(np.array([whole[:-1]]))[0], "float64")
        log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        first = max(len(ids(prompt)), 1)  # the first token of a text without a prompt is not predicted
        for place in range(first, len(whole)):
            total -= log_probabilities[place - 1, whole[place]]
            count += 1
    ((inputs, labels),) = instruction_tuning(PAIRS, TOKENIZER, 8, length=40)
    loss = training.LabelSmoothedCrossentropy(0.0)
    logits = keras.ops.convert_to_numpy(model(inputs))
    np.testing.assert_allclose(loss(labels, logits), total / count, rtol=1e-5)
    (gradient,) = gradients(lambda logits: loss(labels, logits), logits)
    is_label = labels.numpy() != 0
    assert is_label.sum() == count
    assert not gradient[~is_label].any()
    assert np.abs(gradient[is_label]).max(-1).min() > 0


def test_pairs_are_read_from_files(tmp_path):
    rows = [{"id": 1, "prompt": prompt, "completion": completion} for prompt, completion in PAIRS[:2]]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = instruction_tuning(tmp_path / "a.jsonl", TOKENIZER, columns=("prompt", "completion"))
    assert segments(found) == segments(instruction_tuning(PAIRS[:2], TOKENIZER))


def test_long_pairs_are_dropped_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        found = instruction_tuning(PAIRS, TOKENIZER, length=7)
    assert "drops 1 of 6 pairs: more than 7 tokens" in caplog.text
    assert len(segments(found)) == 5
