import collections

import numpy as np
import pytest

from keras_transformer import data
from keras_transformer.text import ByteTokenizer

TOKENIZER = ByteTokenizer()


def numbered(count, letter, length=1):
    """Return distinct pairs whose targets contain the given letter."""
    return [(f"{i:03}", f"{letter * length}{i:03}") for i in range(count)]


TASKS = {
    "a: ": numbered(12, "a"),
    "b: ": [*numbered(20, "b"), *numbered(10, "b", 20)],
    "c: ": numbered(6, "c"),
}


def texts(ids):
    return [text.decode() for text in TOKENIZER.detokenize(ids).numpy()]


def epoch(batches):
    """Return the (source, target) of every row of an epoch except padding rows."""
    rows = []
    for inputs, labels in batches:
        assert inputs["target_ids"].shape == labels.shape
        found = zip(texts(inputs["source_ids"]), texts(labels), strict=True)
        rows += [row for row in found if row != ("", "")]
    return rows


def counts(rows):
    return [sum(target[0] == letter for _, target in rows) for letter in "abc"]


def made(tasks=TASKS, **options):
    return data.multi_task_pairs(tasks, TOKENIZER, **{"batch_size": 8, **options})


@pytest.mark.slow
def test_without_limit_and_temperature_every_prefixed_pair_occurs_once():
    batches = made()
    expected = [(prefix + source, target) for prefix, pairs in TASKS.items() for source, target in pairs]
    for _ in range(2):
        assert sorted(epoch(batches)) == sorted(expected)
    assert len(list(batches)) == len(batches)
    one = {prefix: pairs for prefix, pairs in TASKS.items() if prefix == "b: "}
    plain = data.translation_pairs(
        [("b: " + source, target) for source, target in one["b: "]], TOKENIZER, 8, shuffle=False
    )
    assert epoch(made(one, shuffle=False)) == epoch(plain)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("limit", "temperature", "expected"),
    [
        (12, 1.0, [12, 12, 6]),
        (1000, 1.0, [12, 30, 6]),
        (None, float("inf"), [16, 16, 16]),
        (None, 2.0, [14, 23, 10]),  # in proportion to the square roots of 12, 30 and 6: 14.7, 23.0, 10.3
        (10, 2.0, [10, 9, 7]),
    ],
)
def test_tasks_are_mixed_in_the_proportions_of_the_paper(limit, temperature, expected):
    sizes = np.minimum([12, 30, 6], limit or np.inf)
    rates = sizes ** (1 / temperature) / (sizes ** (1 / temperature)).sum()
    found = counts(epoch(made(limit=limit, temperature=temperature)))
    assert sum(found) == sizes.sum()
    assert np.abs(found - sizes.sum() * rates).max() < 1
    if temperature in (1.0, float("inf")):
        assert found == expected


@pytest.mark.slow
def test_each_epoch_samples_different_pairs_of_a_limited_task():
    batches = made(limit=12)
    epochs = [
        epoch(batches) for _ in range(24)
    ]  # one of 30 pairs is in none of them with a probability of 1e-4
    of_b = [{row for row in rows if row[1][0] == "b"} for rows in epochs]
    assert {len(rows) for rows in of_b} == {12}  # none twice in an epoch
    assert len(set.union(*of_b)) == 30
    assert {sum(len(target) > 20 for _, target in rows) for rows in of_b} == {
        4
    }  # a third, as in the whole epoch
    assert len({tuple(rows) for rows in epochs}) == 24


def test_pairs_repeat_only_after_all_have_occurred():
    rows = epoch(made(temperature=float("inf")))
    times = collections.Counter(row for row in rows if row[1][0] == "c")
    assert len(times) == 6
    assert set(times.values()) == {2, 3}


def test_long_pairs_are_dropped_and_counted_by_task(caplog):
    rows = epoch(made(max_length=12))
    assert counts(rows) == [12, 20, 6]
    assert "drops 10 of 30 pairs of task 'b: '" in caplog.text


def test_files_of_tasks_are_read_by_their_columns(tmp_path, caplog):
    file = tmp_path / "pairs.csv"
    file.write_text("id,es,en\n1,uno,one\n2,dos\n3,tres,three\n")
    tasks = {"a: ": file, "b: ": [("cuatro", "four")]}
    options = {"columns": ("es", "en"), "on_error": "skip", "reverse": True}
    found = epoch(data.multi_task_pairs(tasks, TOKENIZER, **options))
    assert sorted(found) == [("a: one", "uno"), ("a: three", "tres"), ("b: four", "cuatro")]
    assert "Skipping 1 malformed line of " in caplog.text
