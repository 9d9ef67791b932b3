"""Test all datasets: epochs, resuming, files in `cache_dir`, and sharding over several workers."""

import collections
import gzip
import inspect
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import data
from keras_transformer.data import batches, epochs, progress, storage
from keras_transformer.text import BytePairTokenizer, ByteTokenizer, WordPieceTokenizer
from keras_transformer_serving import files

TEXTS = [
    "one two three",
    "four five six seven",
    "eight",
    "nine ten",
    "",
    "eleven twelve",
    "thirteen",
    "fourteen is the next",
    "the last of them",
]
LABELS = list(range(len(TEXTS)))
PAIRS = list(zip(TEXTS, TEXTS[::-1], strict=True))


class Counting(ByteTokenizer):
    """Count the texts that are tokenised; WordPiece for functions that need its special ids."""

    texts = 0

    def tokenize(self, texts, **options):
        type(self).texts += len(texts)
        return super().tokenize(texts, **options)


class CountingWords(WordPieceTokenizer):
    def tokenize(self, texts, **options):
        Counting.texts += len(texts)
        return super().tokenize(texts, **options)


BYTES = Counting()
WORDS = CountingWords.from_model_bytes(WordPieceTokenizer.train(TEXTS, 60).model_bytes)
MERGES = BytePairTokenizer.train(TEXTS, 300)
DATASETS = {
    "translation_pairs": lambda size, **o: data.translation_pairs(PAIRS, BYTES, size, max_length=20, **o),
    "translation_pairs, packed": lambda size, **o: data.translation_pairs(
        PAIRS, BYTES, size, max_length=40, packed=True, **o
    ),
    "translation_pairs, sampled": lambda size, **o: data.translation_pairs(
        PAIRS, MERGES, size, max_length=20, sampling=0.3, **o
    ),
    "multi_task_pairs": lambda size, **o: data.multi_task_pairs(
        {"a: ": PAIRS, "b: ": iter(PAIRS[:3])}, BYTES, size, limit=5, **o
    ),
    "language_modeling": lambda size, **o: data.language_modeling(iter(TEXTS), BYTES, size, length=8, **o),
    "language_modeling, separate": lambda size, **o: data.language_modeling(
        TEXTS, BYTES, size, length=8, separate=True, **o
    ),
    "language_modeling, sampled": lambda size, **o: data.language_modeling(
        TEXTS, MERGES, size, length=16, separate=True, sampling=0.3, **o
    ),
    "instruction_tuning": lambda size, **o: data.instruction_tuning(PAIRS, BYTES, size, length=36, **o),
    "sentence_pairs": lambda size, **o: data.sentence_pairs(PAIRS, WORDS, size, max_length=12, **o),
    "masked_language_modeling": lambda size, **o: data.masked_language_modeling(
        TEXTS, WORDS, size, max_length=8, **o
    ),
    "next_sentences": lambda size, **o: data.next_sentences(
        [TEXTS[:3], [], TEXTS[3:]], WORDS, size, max_length=12, **o
    ),
    "span_corruption": lambda size, **o: data.span_corruption(
        TEXTS, BYTES, size, max_length=16, sentinels=[255, 254, 253], start_id=0, **o
    ),
    "classification": lambda size, **o: data.classification(
        iter(PAIRS), iter(LABELS), WORDS, size, max_length=12, **o
    ),
    "tagging": lambda size, **o: data.tagging(
        ([word] * (i + 1) for i, word in enumerate("abcde")),
        ([i] * (i + 1) for i in range(5)),
        WORDS,
        size,
        **o,
    ),
    "questions": lambda size, **o: data.questions(
        ["one"] * 5, ["two three"] * 5, [("three", 4)] * 4 + [None], WORDS, size, **o
    ),
    "fine_tuning": lambda size, **o: data.fine_tuning(
        [("a", ["b", "c"]), ("d", ["e"]), ("f", ["g", "h", "i"])],
        [1, 0, 2],
        BYTES,
        size,
        task="multiple_choice",
        special_ids=[1, 2, 3],
        **o,
    ),
}
each_dataset = pytest.mark.parametrize("name", DATASETS)
SHARED = DATASETS | {
    "image_batches": lambda size, **o: data.image_batches(
        np.arange(1, 7 * 16 + 1, dtype="uint8").reshape(7, 4, 4, 1), np.arange(7), size, **o
    ),
    "speech_recognition": lambda size, **o: data.speech_recognition(
        [np.full(length, length / 50) for length in range(20, 48, 4)],
        [text for text in TEXTS if text][:7],
        BYTES,
        size,
        sample_rate=100,
        **o,
    ),
}
# Their batches depend on random numbers that differ by worker.
RANDOM = {
    "translation_pairs, sampled",
    "language_modeling, sampled",
    "masked_language_modeling",
    "next_sentences",
    "span_corruption",
}
# Rows that cannot be divided among the workers are dropped.
DIVISIBLE = {
    "sentence_pairs",
    "next_sentences",
    "classification",
    "questions",
    "fine_tuning",
    "image_batches",
    "speech_recognition",
}


EPOCHS = SHARED | {
    "image_batches": lambda size, **o: SHARED["image_batches"](size, shift=1, flip=True, **o),
}


def listed(dataset):
    """Return the batches of one iteration, each as a list of arrays."""
    return [[np.asarray(each) for each in tf.nest.flatten(batch)] for batch in dataset]


def assert_equal(ones, others):
    assert len(ones) == len(others)
    for one, other in zip(ones, others, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def equal(ones, others):
    return all(all(map(np.array_equal, one, other)) for one, other in zip(ones, others, strict=True))


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", EPOCHS)
def test_epochs_differ_by_seed_and_number_and_continue_from_any_batch(name):
    make = EPOCHS[name]
    dataset, again, other = make(2), make(2), make(2, seed=1)
    numbered = [listed(dataset) for _ in range(3)]
    assert all(len(epoch) == len(dataset) for epoch in numbered)
    assert not equal(numbered[0], numbered[1])
    assert not equal(numbered[0], listed(other))
    assert other.epochs.fingerprint != again.epochs.fingerprint == dataset.epochs.fingerprint
    for epoch, batch in ((1, 1), (0, len(dataset) - 1), (2, 0)):
        again.epochs.start_at(epoch, batch)
        assert_equal(listed(itertools.islice(again, len(dataset) - batch)), numbered[epoch][batch:])
    again.epochs.start_at(1, 1)
    next(iter(again))
    assert_equal(listed(again), numbered[2])
    in_order = make(2, shuffle=False)
    assert equal(listed(in_order), listed(in_order)) == (name not in RANDOM | {"image_batches"})


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", EPOCHS)
def test_an_epoch_does_not_wait_for_tensorflow_autotuning(name):
    """With autotuning, TensorFlow only ends an epoch when its tuner wakes, up to a minute later."""
    assert EPOCHS[name](2).options().autotune.enabled is False


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "name", sorted(EPOCHS.keys() - {"translation_pairs, sampled", "language_modeling, sampled"})
)
def test_without_tensorflow_datasets_have_the_same_batches(name, monkeypatch):
    dataset = EPOCHS[name](2, seed=-1)
    expected = [listed(dataset) for _ in range(2)]
    monkeypatch.setattr(batches, "_HAS_TENSORFLOW", False)
    other = EPOCHS[name](2, seed=-1)
    assert isinstance(other, keras.utils.PyDataset)
    assert len(other) == other.num_batches == len(dataset)
    assert other.epochs.fingerprint == dataset.epochs.fingerprint
    for epoch in expected:
        assert_equal(listed(other), epoch)
    other.epochs.start_at(1, len(other) - 1)
    assert_equal(listed(other), expected[1][-1:])
    other.epochs.start_at(0)
    other.on_epoch_begin()  # Keras reads batches by their indices
    assert_equal(listed(other[index] for index in range(len(other))), expected[0])
    with pytest.raises(IndexError, match=f"`index` must be less than {len(other)}"):
        other[len(other)]


def test_fingerprints_of_different_data_differ():
    others = [(source + "!", target) for source, target in PAIRS]
    one, other = (data.translation_pairs(pairs, BYTES, 2).epochs.fingerprint for pairs in (PAIRS, others))
    assert one != other


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000, 3000])
def test_shuffled_indices_are_a_permutation(count):
    orders = [epochs.shuffled(0, count, (3, 5), count, permutation) for permutation in (0, 1)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert count < 10 or not np.array_equal(*orders)
    start, end = count // 3, count - count // 3
    np.testing.assert_array_equal(epochs.shuffled(start, end, (3, 5), count), orders[0][start:end])
    places = np.array([count // 2, 0])
    several = epochs.permuted(places, (3, 5), [count, 7], [1, 2])
    assert several.tolist() == [orders[1][count // 2], *epochs.shuffled(0, 1, (3, 5), 7, 2)]


@pytest.mark.parametrize("seeds", ["epochs", "permutations"])
def test_all_permutations_are_equally_likely(seeds):
    """χ² of the 24 permutations of four numbers, and of the places of the first two of fifty."""
    draws = range(2400)
    for count, shown, outcomes in ((4, 4, 24), (50, 2, 50 * 49)):
        if seeds == "epochs":
            orders = [tuple(epochs.shuffled(0, shown, (0, draw), count)) for draw in draws]
        else:
            permutations = np.repeat(draws, shown)
            numbers = np.tile(np.arange(shown), len(draws))
            found = epochs.permuted(numbers, (0, 0), count, permutations)
            orders = map(tuple, found.reshape(len(draws), shown).tolist())
        counts = np.zeros(outcomes)
        observed = list(collections.Counter(orders).values())
        counts[: len(observed)] = observed
        expected = len(draws) / outcomes
        statistic = ((counts - expected) ** 2 / expected).sum()
        assert abs(statistic - (outcomes - 1)) < 4 * (2 * (outcomes - 1)) ** 0.5


@pytest.mark.parametrize(("epoch", "batch"), [(-1, 0), (0, -1), (0, 4)])
def test_positions_outside_an_epoch_are_rejected(epoch, batch):
    with pytest.raises(ValueError, match=f"Received: epoch={epoch}, batch={batch}"):
        SHARED["image_batches"](2).epochs.start_at(epoch, batch)


@pytest.mark.slow_variants
@each_dataset
def test_cached_files_give_the_batches_of_memory_and_are_reused(name, tmp_path):
    make = DATASETS[name]
    expected = [epoch for dataset in [make(2, shard=(1, 2))] for epoch in (listed(dataset), listed(dataset))]
    cached = make(2, shard=(1, 2), cache_dir=tmp_path)
    written, Counting.texts = sorted(tmp_path.rglob("*")), 0
    again = make(2, shard=(1, 2), cache_dir=str(tmp_path))
    assert Counting.texts == 0
    assert sorted(tmp_path.rglob("*")) == written
    assert not [path for path in written if path.name.startswith(".")]
    for dataset in (cached, again):
        for epoch in expected:
            assert_equal(listed(dataset), epoch)
    assert again.epochs.fingerprint == cached.epochs.fingerprint
    assert make(2, cache_dir=tmp_path).epochs.fingerprint != cached.epochs.fingerprint
    again.epochs.start_at(1, len(again) - 1)
    assert_equal(listed(itertools.islice(again, 1)), expected[1][-1:])


def rows_of(batch):
    """Return the rows of a batch as tuples, without padding rows."""
    rows = zip(*(map(tuple, each.reshape(len(each), -1).tolist()) for each in batch), strict=True)
    return [row for row in rows if any(any(value not in (0, -1) for value in array) for array in row)]


def unpadded_rows_of(batch):
    """Return the rows of a batch without padding rows and without padding at the ends of rows."""

    def unpadded(array):
        length = max((place for place, value in enumerate(array, 1) if value not in (0, -1)), default=0)
        return array[:length]

    return [tuple(map(unpadded, row)) for row in rows_of(batch)]


@pytest.mark.slow_variants
@pytest.mark.parametrize("count", [3, 2])
@pytest.mark.parametrize("name", SHARED)
def test_batches_of_workers_make_up_the_larger_batches_of_one(name, count):
    """At every step their batches have equal shapes, and together the rows of the larger batch."""
    workers = [listed(SHARED[name](1, shard=(index, count))) for index in range(count)]
    whole = listed(SHARED[name](count))
    assert len({len(batches) for batches in workers}) == 1
    for number, parts in enumerate(zip(*workers, strict=True)):
        assert len({tuple(each.shape for each in part) for part in parts}) == 1
        if name not in RANDOM | DIVISIBLE:
            rows = [row for part in parts for row in rows_of(part)]
            assert sorted(rows) == sorted(rows_of(whole[number]))
    if name in DIVISIBLE - RANDOM:
        of_workers, of_one = (
            collections.Counter(row for batch in batches for row in unpadded_rows_of(batch))
            for batches in (itertools.chain(*workers), whole)
        )
        assert of_workers <= of_one
        left_out = of_one - of_workers
        if name == "image_batches":
            assert left_out.total() <= count - 1
        else:  # fewer rows of each bucket than workers
            buckets = np.unique([batch[0].shape[1] for batch in workers[0]])
            of_bucket = collections.Counter(
                np.searchsorted(buckets, len(row[0])) for row in left_out.elements()
            )
            assert max(of_bucket.values(), default=0) <= count - 1
    if name == "masked_language_modeling":
        labels = [sum((batch[-1] > 0).sum() for batch in each) for each in (*workers, whole)]
        assert sum(labels[:-1]) == labels[-1]


@pytest.mark.slow_variants
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "name", ["image_batches", "classification", "fine_tuning", "sentence_pairs", "speech_recognition"]
)
def test_rows_dropped_in_one_epoch_occur_in_another(name, shuffle):
    every = {row for batch in listed(SHARED[name](1)) for row in unpadded_rows_of(batch)}
    workers = [SHARED[name](1, shard=(index, 2), shuffle=shuffle) for index in range(2)]
    epochs = [
        {row for dataset in workers for batch in listed(dataset) for row in unpadded_rows_of(batch)}
        for _ in range(5)
    ]
    left_out = [every - epoch for epoch in epochs]
    assert all(left_out)
    assert not set.intersection(*left_out)
    assert left_out[0] != left_out[1] or shuffle


def test_every_function_that_makes_batches_is_tested():
    functions = {
        name for name in data.__all__ if "batch_size" in inspect.signature(getattr(data, name)).parameters
    }
    assert functions == {name.split(",")[0] for name in SHARED}


@pytest.mark.slow
def test_masks_of_workers_differ():
    """Equal rows of two workers are not masked in the same way."""
    masked = [
        listed(data.masked_language_modeling([TEXTS[1]] * 16, WORDS, 8, max_length=24, shard=(index, 2)))
        for index in range(2)
    ]
    assert not np.array_equal(masked[0][0][1], masked[1][0][1])


def test_more_workers_than_rows_are_rejected():
    with pytest.raises(ValueError, match="`shard` must leave a row for each worker. Received: 3 workers"):
        data.classification(TEXTS[:2], [0, 1], WORDS, shard=(0, 3))


def test_patterns_and_compressed_files_are_read_as_a_stream(tmp_path):
    texts = [text for text in TEXTS if text]
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("\n".join(texts[:4]))
    (tmp_path / "b.txt").write_text("\n".join(texts[4:]))
    expected = listed(data.language_modeling(texts, BYTES, 2, length=8))
    for given, options in (
        (tmp_path / "[ab].txt*", {"cache_dir": tmp_path / "cache"}),
        ([tmp_path / "a.*", tmp_path / "b.txt"], {}),
    ):
        assert_equal(listed(data.language_modeling(given, BYTES, 2, length=8, **options)), expected)
    (tmp_path / "1.tsv").write_text("a\tb\n")
    (tmp_path / "2.tsv").write_text("c\td\n")
    found = data.translation_pairs(str(tmp_path / "*.tsv"), BYTES, 2, cache_dir=tmp_path / "cache")
    assert_equal(listed(found), listed(data.translation_pairs([("a", "b"), ("c", "d")], BYTES, 2)))
    assert list(data.stream_examples(tmp_path / "?.tsv")) == [("a", "b"), ("c", "d")]
    with pytest.raises(FileNotFoundError, match="`pairs` must name files that exist.*a pattern that no file"):
        data.translation_pairs(str(tmp_path / "*.csv"), BYTES)


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer": ByteTokenizer(extra_tokens=["<x>"])},
        {"pairs": [*PAIRS[:-1], ("x", "y")]},
        {"reverse": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_different_contents_are_written_again(change, tmp_path):
    arguments = {"pairs": PAIRS, "tokenizer": BYTES, "batch_size": 4}
    data.translation_pairs(**arguments, cache_dir=tmp_path)
    before = len(list(tmp_path.iterdir()))
    arguments |= change
    assert_equal(
        listed(data.translation_pairs(**arguments, cache_dir=tmp_path)),
        listed(data.translation_pairs(**arguments)),
    )
    assert len(list(tmp_path.iterdir())) == before + 2


@pytest.mark.slow
def test_options_of_batches_use_the_same_ids(tmp_path):
    data.translation_pairs(PAIRS, BYTES, 4, cache_dir=tmp_path)
    Counting.texts = 0
    options = {"max_length": 15, "length_buckets": 2, "seed": 3}
    found = data.translation_pairs(PAIRS, BYTES, 2, **options, cache_dir=tmp_path)
    assert Counting.texts == 0
    assert_equal(listed(found), listed(data.translation_pairs(PAIRS, BYTES, 2, **options)))


def test_invalid_examples_are_rejected(tmp_path):
    for pairs in ([{"en": "a", "es": "b"}], iter([("a",)])):
        with pytest.raises(ValueError, match=r"`pairs` must be \(source, target\), two str each"):
            data.translation_pairs(pairs, BYTES, cache_dir=tmp_path)
    for text, message in (
        (3, "strings or paths.*texts\\[1\\]=3"),
        ("\ud800", "text without lone surrogates"),
    ):
        with pytest.raises(ValueError, match=f"`texts` must be {message}"):
            data.language_modeling(["a", text], BYTES, cache_dir=tmp_path)
    for labels in ([1, 0.5, [1]], iter([1, 0]), iter([1, -1, 0])):
        with pytest.raises(ValueError, match="`labels` must (have the same length|be non-negative)"):
            data.classification(iter("abc"), labels, WORDS, cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def pairs_file(folder):
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS if source and target))
    return path


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (
            lambda file: os.truncate(file, 4),
            ValueError,
            "must keep its files unchanged.*sources.bin of 4 bytes",
        ),
        (lambda file: file.unlink(), FileNotFoundError, "must keep its files.*no .*sources.bin"),
        (
            lambda file: file.write_bytes(bytes(file.stat().st_size)),
            ValueError,
            "must keep its files unchanged.*sources.bin of",
        ),
        (lambda file: (file.parent / "arrays.json").unlink(), FileNotFoundError, "arrays.json"),
        (
            lambda file: (file.parent / "arrays.json").write_text('{"format": 1}'),
            ValueError,
            "`cache_dir` must keep its files.*arrays.json` must contain an object with arrays",
        ),
    ],
    ids=["truncated", "removed", "changed", "no manifest", "damaged manifest"],
)
def test_damaged_files_are_named(damage, error, message, tmp_path):
    pairs, cache = pairs_file(tmp_path), tmp_path / "cache"
    data.translation_pairs(pairs, BYTES, 2, cache_dir=cache)
    (file,) = cache.rglob("sources.bin")
    damage(file)
    with pytest.raises(error, match=message):
        data.translation_pairs(pairs, BYTES, 2, cache_dir=cache)
    shutil.rmtree(file.parent)
    data.translation_pairs(pairs, BYTES, 2, cache_dir=cache)


def test_a_source_that_changes_while_it_is_read_is_rejected(tmp_path, monkeypatch):
    """The cache could return its ids for a file with other content."""
    pairs, cache, sha256 = pairs_file(tmp_path), tmp_path / "cache", files.sha256

    def changing(path):
        found = sha256(path)
        with open(path, "a") as file:
            file.write("more\tpairs\n")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(files, "sha256", changing)
        with pytest.raises(
            ValueError, match=r"must not change while they are read\. Received: .*, which has changed"
        ):
            data.translation_pairs(pairs, BYTES, 2, cache_dir=cache)
    data.translation_pairs(pairs, BYTES, 2, cache_dir=cache)


@pytest.mark.parametrize(
    "damage", [lambda file: os.truncate(file, 4), os.unlink], ids=["truncated", "removed"]
)
def test_files_that_are_damaged_while_they_are_read_raise_an_error(damage, tmp_path):
    """Reading a truncated mapped file would end the process."""
    dataset = data.translation_pairs(PAIRS, BYTES, 2, cache_dir=tmp_path)
    (file,) = tmp_path.rglob("sources.bin")
    damage(file)
    with pytest.raises(tf.errors.OpError, match="`cache_dir` must keep its files.*sources.bin"):
        listed(dataset)


def test_copied_cache_files_are_used(tmp_path):
    pairs = pairs_file(tmp_path)
    expected = listed(data.translation_pairs(pairs, BYTES, 2, cache_dir=tmp_path / "one"))
    for folder in (tmp_path / "one").iterdir():
        (tmp_path / "two" / folder.name).mkdir(parents=True)
        for file in folder.iterdir():
            (tmp_path / "two" / folder.name / file.name).write_bytes(file.read_bytes())
    Counting.texts = 0
    assert_equal(listed(data.translation_pairs(pairs, BYTES, 2, cache_dir=tmp_path / "two")), expected)
    assert Counting.texts == 0


class Crash(BaseException):
    """Simulate the death of the process: no later operation takes place."""


class Faults:
    """Let the n-th write to the disk fail: once (a full disk), or with all later ones (a crash)."""

    def __init__(self, monkeypatch, number, crash):
        self._number, self._crash, self.count = number, crash, 0
        for module, name in (
            (os, "mkdir"),
            (os, "replace"),
            (os, "fsync"),
            (os, "rmdir"),
            (os, "unlink"),
            (storage._File, "append"),
            (storage._File, "finish"),
        ):
            monkeypatch.setattr(module, name, self._failing(getattr(module, name)))

    def _failing(self, function):
        def changed(*arguments, **options):
            self.count += 1
            if self.count == self._number or (self._crash and self.count > self._number):
                raise Crash if self._crash else OSError(28, "No space left on device")
            return function(*arguments, **options)

        return changed


@pytest.mark.parametrize("crash", [False, True], ids=["full disk", "crash"])
def test_a_failure_at_any_write_leaves_no_cache_that_seems_complete(crash, tmp_path):
    def chunks():
        for number in range(2):
            yield {"ids": np.arange(3) + number, "rows": np.zeros((2, 2), np.int32)}

    expected = storage.in_memory(chunks())
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, number, crash)
            try:
                storage.in_files(folder, "key", chunks())
            except (Crash, OSError):
                assert faults.count >= number
        for _ in range(2):
            found = storage.in_files(folder, "key", chunks())
            for name in ("ids", "rows"):
                np.testing.assert_array_equal(found[name], expected[name])
        # A failure after the folder was renamed may leave the lock file.
        assert {path.name for path in folder.iterdir()} - {".key"} == {"key"}
        assert {path.name for path in folder.glob(".key/**/*")} <= {"lock"}
        if faults.count < number:
            break
    assert number > 10


def test_a_full_disk_raises_an_error_that_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(
        storage._File, "append", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(
        OSError, match="`cache_dir` must be a folder .* space.*No space left on device"
    ) as error:
        data.language_modeling(TEXTS, BYTES, cache_dir=tmp_path / "cache")
    assert error.value.errno == 28
    assert str(tmp_path / "cache") in str(error.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_malformed_lines_are_rejected_before_anything_is_cached(tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_text("a\tb\nc\n")
    with pytest.raises(ValueError, match="1 malformed line"):
        data.translation_pairs(file, BYTES, cache_dir=tmp_path / "cache")
    assert not list(tmp_path.glob("cache/*"))
    data.translation_pairs(file, BYTES, on_error="skip", cache_dir=tmp_path / "cache")
    with pytest.raises(ValueError, match="1 malformed line"):
        data.translation_pairs(file, BYTES, cache_dir=tmp_path / "cache")


def test_a_tokenizer_without_a_hash_is_rejected(tmp_path):
    class Other:
        pad_id, start_id, end_id, vocabulary_size = 0, 1, 2, 300
        tokenize = BYTES.tokenize

    data.language_modeling(TEXTS, Other())
    with pytest.raises(
        ValueError, match="`tokenizer` must have an attribute `sha256`.*Received: a Other without"
    ):
        data.language_modeling(TEXTS, Other(), cache_dir=tmp_path)


def test_threads_that_need_the_same_files_wait_for_the_first(tmp_path, caplog):
    begun, release, made = threading.Event(), threading.Event(), []

    def slow_chunks():
        begun.set()
        release.wait(30)
        yield {"ids": np.arange(4)}

    def never():
        raise AssertionError("written twice")
        yield

    first = threading.Thread(target=lambda: made.append(storage.in_files(tmp_path, "key", slow_chunks())))
    second = threading.Thread(target=lambda: made.append(storage.in_files(tmp_path, "key", never())))
    first.start()
    begun.wait(30)
    second.start()
    while "waiting for another process" not in caplog.text and second.is_alive():
        second.join(0.05)
    release.set()
    first.join(30)
    second.join(30)
    assert [found["ids"].tolist() for found in made] == [[0, 1, 2, 3]] * 2


def test_progress_of_slow_reading_shows_percentage_speed_and_remaining_time(tmp_path, monkeypatch, capsys):
    path = tmp_path / "texts.txt"
    path.write_text("a\n" * 100)
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = progress.ProgressBar("Tokenising", [path])
    with open(path, "rb") as file:
        bar.opened(file)
        bar.add(1)
        assert capsys.readouterr() == ("", "")
        file.seek(50)
        now[0] = 60.0
        bar.add(24)
        assert capsys.readouterr() == ("", "Tokenising: 25 rows, 25%, 0 rows/s, 3:00 left\n")
    now[0] = 100.0
    bar.finish()
    assert capsys.readouterr() == ("", "Tokenising: 25 rows in 1:40\n")


def test_small_files_are_read_without_a_progress_bar(tmp_path, capsys):
    data.language_modeling(TEXTS, BYTES, cache_dir=tmp_path)
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_training_on_cached_files_resumes_exactly(tmp_path):
    def train(folder, epochs):
        keras.utils.set_random_seed(0)
        batches = data.language_modeling(TEXTS, BYTES, 2, length=8, cache_dir=tmp_path / "cache")
        model = kt.models.GPT(BYTES.vocabulary_size, 1, 1, 4, 8, max_length=8, dropout=0.1)
        model.compile("sgd", kt.training.LabelSmoothedCrossentropy(0.0))
        callback = kt.training.ExactResume(tmp_path / folder)
        model.fit(batches, epochs=epochs, shuffle=False, verbose=0, callbacks=[callback])
        return model.get_weights()

    train("interrupted", 1)
    assert all(map(np.array_equal, train("interrupted", 2), train("whole", 2)))


MEMORY = """
import pathlib, sys, time
import keras_transformer as kt
from keras_transformer.text import ByteTokenizer

count, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
pairs = ((f"{i} is", f"a number {i % 1000}") for i in range(count))
begin = time.time()
batches = kt.data.translation_pairs(pairs, ByteTokenizer(), 64, cache_dir=folder)
for number, batch in enumerate(batches):
    if number == 2000:
        break
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
anonymous, = (int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
print(anonymous, round(time.time() - begin, 1))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data(tmp_path):
    """RssAnon is the memory that is not mapped from files."""
    root = pathlib.Path(kt.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "export" / "serving")])}
    used = []
    for count in (1_000_000, 4_000_000):
        command = [sys.executable, "-c", MEMORY, str(count), str(tmp_path / str(count))]
        found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        used.append(int(found.stdout.split()[0]))
    assert abs(used[1] - used[0]) < 20_000, used  # kB; the ids of the larger file take 0.3 GB
