import numpy as np
import pytest

from keras_transformer import data
from keras_transformer.text import ByteTokenizer

TOKENIZER = ByteTokenizer()
START, DELIMITER, EXTRACT = SPECIAL_TOKENS = tuple(
    range(TOKENIZER.vocabulary_size, TOKENIZER.vocabulary_size + 3)
)
TEXTS = ["to be", "or", "", "not to be é"]
PAIRS = [("to", "be or"), ("not", ""), ("", "é")]


def ids(text):
    return TOKENIZER.tokenize(text).numpy().tolist()


def rows(batches):
    """Return each row without padding, its next tokens, and the class of its example."""
    found = []
    for inputs, labels in batches:
        token_ids, following, classes = inputs["token_ids"], labels["tokens"], labels["classes"]
        assert token_ids.shape == following.shape
        flat = token_ids.numpy().reshape(-1, token_ids.shape[-1])
        classes = np.repeat(classes, len(flat) // len(classes))
        for row, after, label in zip(flat, following.numpy().reshape(flat.shape), classes, strict=True):
            length = np.count_nonzero(row != TOKENIZER.pad_id)
            assert (row[length:] == TOKENIZER.pad_id).all()
            np.testing.assert_array_equal(after[: length - 1 if length else 0], row[1:length])
            assert (after[max(0, length - 1) :] == TOKENIZER.pad_id).all()  # the last token has no next one
            found.append((row[:length].tolist(), int(label)))
    return found


def made(examples, labels, task, **options):
    options = {"batch_size": 2, "task": task, "shuffle": False, **options}
    return data.fine_tuning(examples, labels, TOKENIZER, **options)


def test_texts_are_enclosed_by_start_and_extract_tokens():
    batches = made(TEXTS, [1, 0, 2, 1], "classification")
    assert len(batches) == 2
    expected = [
        ([START, *ids(text), EXTRACT], label) for text, label in zip(TEXTS, [1, 0, 2, 1], strict=True)
    ]
    assert rows(batches) == expected
    assert all(inputs["token_ids"].shape == (2, len(ids(TEXTS[3])) + 2) for inputs, _ in batches)


def test_entailment_rows_begin_with_the_premise():
    expected = [([START, *ids(a), DELIMITER, *ids(b), EXTRACT], 1) for a, b in PAIRS]
    assert rows(made(PAIRS, [1, 1, 1], "entailment")) == expected


def test_similarity_rows_have_both_orders_of_a_pair():
    found = rows(made(PAIRS, [0, 1, 0], "similarity"))
    turned = rows(made([pair[::-1] for pair in PAIRS], [0, 1, 0], "similarity"))
    assert found[0] == ([START, *ids("to"), DELIMITER, *ids("be or"), EXTRACT], 0)
    assert len(found) == 6
    assert turned == [row for i in range(0, 6, 2) for row in (found[i + 1], found[i])]


def test_each_answer_follows_the_context_and_missing_answers_are_padded():
    examples = [("q", ["a", "bb"]), ("r", ["c", "d", "e"]), ("s", ("f",))]
    batches = made(examples, [1, 2, 0], "multiple_choice", batch_size=3)
    ((inputs, _),) = batches
    assert inputs["token_ids"].shape == (3, 3, 6)
    found = rows(batches)
    expected = [
        [START, *ids(context), DELIMITER, *ids(answers[k]), EXTRACT] if k < len(answers) else []
        for context, answers in examples
        for k in range(3)
    ]
    assert [row for row, _ in found] == expected


def test_each_epoch_shuffles_all_examples():
    batches = made(TEXTS * 3, list(range(12)), "classification", shuffle=True, seed=1)
    epochs = [[label for _, label in rows(batches)] for _ in range(3)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_special_tokens_may_be_any_ids_that_no_text_contains():
    found = rows(made(["a"], [0], "classification", special_ids=(300, 301, 302)))
    assert found == [([300, *ids("a"), 302], 0)]
    with pytest.raises(ValueError, match=r"`special_ids` must not occur in any text.*examples\[1\] with"):
        made(["b", "a"], [0, 0], "classification", special_ids=(300, 301, ids("a")[0]))


def test_long_rows_are_rejected_instead_of_truncated():
    assert rows(made(["abc"], [0], "classification", max_length=5))
    for task, example in (("classification", "abcd"), ("similarity", ("ab", "c"))):
        with pytest.raises(ValueError, match=r"must fit max_length=5 .*Received: 6 tokens in examples\[1\]"):
            made(["a" if task == "classification" else ("a", "b"), example], [0, 0], task, max_length=5)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (
            [[1, 0, 1], [0, 0, 0], [True, True, False], [0, 0, 1]],
            [[1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 0, 1]],
        ),
        ([0.5, -2.0, 1e3, 0.0], [[0.5], [-2], [1000], [0]]),
        (np.arange(8.0).reshape(4, 2), [[0, 1], [2, 3], [4, 5], [6, 7]]),
    ],
    ids=["several labels", "a number", "numbers"],
)
def test_multi_label_and_numeric_targets_are_accepted(labels, expected):
    batches = made(TEXTS, labels, "classification")
    assert batches.element_spec[1]["classes"].dtype == "float32"
    found = np.concatenate([given["classes"] for _, given in batches])
    np.testing.assert_array_equal(found, np.array(expected, "float32"))
