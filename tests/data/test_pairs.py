import collections
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data import translation_pairs
from keras_transformer.text import SentencePieceTokenizer

RANDOM = np.random.default_rng(0)


def words(letters, most):
    count = RANDOM.integers(1, most + 1)
    return " ".join("".join(RANDOM.choice(list(letters), RANDOM.integers(1, 6))) for _ in range(count))


PAIRS = list({(words("aeio", 9), words("bcdf", 9)) for _ in range(300)})


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(
        [text for pair in PAIRS for text in pair], 60, "char", byte_fallback=False
    )


def batches(dataset):
    return [
        (inputs["source_ids"].numpy(), inputs["target_ids"].numpy(), labels.numpy())
        for inputs, labels in dataset
    ]


def texts(tokenizer, found):
    """Return the (source, target) of every row except padding rows, in order."""
    rows = []
    for source, _, labels in found:
        present = (labels != tokenizer.pad_id).any(axis=1)
        pair = (tokenizer.detokenize(ids[present]).numpy().tolist() for ids in (source, labels))
        rows += [(source.decode(), target.decode()) for source, target in zip(*pair, strict=True)]
    return rows


def test_rows_equal_the_encoded_texts(tokenizer):
    dataset = translation_pairs(PAIRS, tokenizer, 16, length_buckets=[64], shuffle=False)
    found = batches(dataset)
    sources, targets = zip(*PAIRS, strict=True)
    expected = (
        tokenizer.encode(sources, add_end=True),
        tokenizer.encode(targets, add_start=True),
        tokenizer.encode(targets, add_end=True),
    )
    for name, each in enumerate(expected):
        together = np.concatenate([batch[name] for batch in found])
        assert together.dtype == np.int32
        padded = np.zeros_like(together)
        padded[: len(PAIRS), : each.shape[1]] = each
        np.testing.assert_array_equal(together, padded)
    assert dataset.element_spec[1].shape == (16, 64)


@pytest.mark.parametrize("arguments", [{}, {"batch_size": 7}, {"batch_tokens": 200}, {"length_buckets": 1}])
def test_every_batch_has_shifted_targets_and_padding_at_the_end(tokenizer, arguments):
    dataset = translation_pairs(PAIRS, tokenizer, **arguments)
    assert dataset.element_spec[0].keys() == {"source_ids", "target_ids"}
    found = batches(dataset)
    assert len(found) == dataset.cardinality().numpy() == len(dataset)
    rows_of_shape = collections.defaultdict(set)
    for source, target, labels in found:
        assert target.shape == labels.shape
        assert len(source) == len(target)
        rows_of_shape[source.shape[1], target.shape[1]].add(len(source))
        taught = labels[:, :-1] != tokenizer.end_id
        np.testing.assert_array_equal(labels[:, :-1][taught], target[:, 1:][taught])
        np.testing.assert_array_equal((target != 0).sum(axis=1), (labels != 0).sum(axis=1))
        present = (labels != 0).any(axis=1)
        np.testing.assert_array_equal(present, (source != 0).any(axis=1))
        np.testing.assert_array_equal((labels == tokenizer.end_id).sum(axis=1), present)
        np.testing.assert_array_equal((source == tokenizer.end_id).sum(axis=1), present)
        np.testing.assert_array_equal(target[:, 0], np.where(present, tokenizer.start_id, 0))
    assert len(rows_of_shape) <= arguments.get("length_buckets", 16)
    for shape, rows in rows_of_shape.items():
        expected = (
            max(1, 200 // max(shape)) if "batch_tokens" in arguments else arguments.get("batch_size", 64)
        )
        assert rows == {expected}


@pytest.mark.slow_variants
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_pair_occurs_once_an_epoch(tokenizer, shuffle):
    dataset = translation_pairs(PAIRS, tokenizer, 16, shuffle=shuffle)
    for _ in range(2):
        assert sorted(texts(tokenizer, batches(dataset))) == sorted(PAIRS)


@pytest.mark.parametrize("given", [(8, 20, 32, 64), [(10, 32), (32, 10), (20, 20), (60, 56)]])
def test_rows_use_the_smallest_shape_that_fits(tokenizer, given):
    shapes = [each if isinstance(each, tuple) else (each, each) for each in given]
    found = set()
    for source, _, labels in batches(translation_pairs(PAIRS, tokenizer, 8, length_buckets=given)):
        shape = source.shape[1], labels.shape[1]
        found.add(shape)
        assert shape in shapes
        lengths = np.stack([(source != 0).sum(axis=1), (labels != 0).sum(axis=1)], axis=1)
        for smaller in shapes:
            if sum(smaller) < sum(shape):
                assert not (lengths[lengths[:, 0] > 0] <= smaller).all(axis=1).any()
    assert len(found) > 2


def equal(first, second):
    return len(first) == len(second) and all(
        np.array_equal(a, b)
        for left, right in zip(first, second, strict=True)
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.slow
def test_without_shuffling_rows_of_a_shape_keep_their_order(tokenizer):
    dataset = translation_pairs(PAIRS, tokenizer, 16, shuffle=False)
    assert equal(batches(dataset), batches(dataset))
    by_shape = collections.defaultdict(list)
    for batch in batches(dataset):
        by_shape[batch[0].shape[1], batch[1].shape[1]] += texts(tokenizer, [batch])
    assert len(by_shape) > 1
    for rows in by_shape.values():
        places = [PAIRS.index(row) for row in rows]
        assert places == sorted(places)


def test_packed_rows_contain_every_pair_once(tokenizer):
    plain = translation_pairs(PAIRS, tokenizer, 300, length_buckets=(64,))
    dataset = translation_pairs(PAIRS, tokenizer, batch_tokens=300, max_length=64, packed=True)
    expected = sorted(
        (source[source != 0].tolist(), target[target != 0].tolist(), ids[ids != 0].tolist())
        for batch in batches(plain)
        for source, target, ids in zip(*batch, strict=True)
    )
    epochs = [list(dataset), list(dataset)]
    for epoch in epochs:
        found, real, positions = [], 0, 0
        for inputs, labels in epoch:
            inputs, labels = {name: ids.numpy() for name, ids in inputs.items()}, labels.numpy()
            assert {ids.shape for ids in (*inputs.values(), labels)} == {(300 // 64, 64)}
            source_segments, segments = (inputs[f"{side}_segment_ids"] for side in ("source", "target"))
            for side in ("source", "target"):
                ids = inputs[f"{side}_ids"]
                np.testing.assert_array_equal(inputs[f"{side}_segment_ids"] > 0, ids > 0)
                real, positions = real + (ids > 0).sum(), positions + ids.size
            for row in range(len(labels)):
                for number in range(1, segments[row].max() + 1):
                    source, target = source_segments[row] == number, segments[row] == number
                    for side, chosen in (("source", source), ("target", target)):
                        places = inputs[f"{side}_positions"][row, chosen]
                        np.testing.assert_array_equal(places, np.arange(chosen.sum()))
                        assert np.ptp(np.flatnonzero(chosen)) == chosen.sum() - 1
                    ids = inputs["source_ids"][row, source], inputs["target_ids"][row, target]
                    found.append(tuple(each.tolist() for each in (*ids, labels[row, target])))
        assert sorted(found) == expected
        assert real / positions > 0.75  # some rows complete the last batch
    assert not np.array_equal(epochs[0][0][1], epochs[1][0][1])


def test_truncated_rows_begin_as_the_whole_ones_and_end_with_an_end_id(tokenizer, caplog, tmp_path):
    pairs = [("a e " * 20, "b c " * 20), ("a", "b c d b c d"), ("e i o", "b")]
    options = {"batch_size": 3, "shuffle": False, "max_length": (9, 6), "length_buckets": [(9, 6)]}
    (whole,) = batches(translation_pairs(pairs, tokenizer, 3, max_length=99, shuffle=False, length_buckets=1))
    (found,) = batches(translation_pairs(pairs, tokenizer, **options, truncate=True))
    assert not caplog.records
    for rows, long_rows, first, length in zip(found, whole, (0, 1, 0), (9, 6, 6), strict=True):
        for row, long_row in zip(rows, long_rows, strict=True):
            fits = (long_row != tokenizer.pad_id).sum() <= length
            kept = length if fits or first else length - 1
            np.testing.assert_array_equal(row[:kept], long_row[:kept])
            assert fits or first or row[-1] == tokenizer.end_id
    stored = [
        batches(translation_pairs(pairs, tokenizer, **options, truncate=truncate, cache_dir=tmp_path))
        for truncate in (True, False)
    ]
    np.testing.assert_array_equal(stored[0][0][0], found[0])
    assert len(texts(tokenizer, stored[1])) == 1
    with pytest.raises(ValueError, match="`sampling` must be 0 for truncated texts"):
        translation_pairs(pairs, tokenizer, truncate=True, sampling=0.1)


@pytest.mark.parametrize("limits", [(9, 5), (5, 9), (9, 9)])
def test_padding_is_within_an_odd_maximum_length(tokenizer, limits):
    """A model with learned positions has no more."""
    pairs = [("a e " * 20, "b c " * 20)]
    ((source, target, labels),) = batches(
        translation_pairs(pairs, tokenizer, 1, max_length=limits, truncate=True)
    )
    assert (source.shape, target.shape) == ((1, limits[0]), (1, limits[1]))
    assert labels.shape == target.shape


def test_long_pairs_are_dropped_and_counted(tokenizer, caplog):
    source, target = (
        tokenizer.tokenize([pair[side] for pair in PAIRS]).row_lengths().numpy() for side in (0, 1)
    )
    kept = [pair for pair, length in zip(PAIRS, np.maximum(source, target) + 1, strict=True) if length <= 21]
    assert 0 < len(kept) < len(PAIRS)
    for arguments in ({"max_length": 21}, {"length_buckets": (10, 21)}):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "keras_transformer"):
            dataset = translation_pairs(PAIRS, tokenizer, 16, **arguments)
        message = f"drops {len(PAIRS) - len(kept)} of {len(PAIRS)} pairs: longer than 21 ids"
        assert [record.name for record in caplog.records] == ["keras_transformer"]
        assert message in caplog.text
        found = batches(dataset)
        assert sorted(texts(tokenizer, found)) == sorted(kept)
        assert max(batch[0].shape[1] for batch in found) <= 21


def test_nothing_is_logged_when_all_pairs_fit(tokenizer, caplog):
    with caplog.at_level(logging.DEBUG, "keras_transformer"):
        translation_pairs(PAIRS, tokenizer)
    assert not caplog.records


def test_target_ids_come_from_the_target_tokenizer(tokenizer):
    other = SentencePieceTokenizer.train([target for _, target in PAIRS], 200, "word", byte_fallback=False)
    found = batches(
        translation_pairs(PAIRS[:5], tokenizer, 5, target_tokenizer=other, shuffle=False, length_buckets=1)
    )
    source, target, labels = found[0]
    sources, targets = zip(*PAIRS[:5], strict=True)
    assert [text.decode() for text in tokenizer.detokenize(source).numpy()] == list(sources)
    for ids, expected in (
        (target, other.encode(targets, add_start=True)),
        (labels, other.encode(targets, add_end=True)),
    ):
        np.testing.assert_array_equal(ids[:, : expected.shape[1]], expected)


def test_pairs_from_lists_and_files_give_equal_batches(tokenizer, tmp_path):
    pairs = [*PAIRS[:20], ("á\u2028é", "d")]
    lines = [f"{source}\t{target}" for source, target in pairs]
    first, second = tmp_path / "first.tsv", tmp_path / "second.tsv"
    first.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines[:8]).encode() + b"\r\n")
    second.write_bytes("\n".join(lines[8:]).encode())
    whole = tmp_path / "whole.tsv"
    whole.write_bytes("\n".join(lines).encode() + b"\n")
    expected = batches(translation_pairs(pairs, tokenizer, 4))
    for same in (
        iter(pairs),
        [list(pair) for pair in pairs],
        whole,
        str(whole),
        [first, str(second)],
        tf.data.Dataset.from_tensor_slices(([pair[0] for pair in pairs], [pair[1] for pair in pairs])),
    ):
        assert equal(batches(translation_pairs(same, tokenizer, 4)), expected)


def test_empty_texts_become_their_special_ids(tokenizer):
    ((source, target, labels),) = batches(translation_pairs([("", "")], tokenizer, 2, length_buckets=[4]))
    assert source.tolist() == [[3, 0, 0, 0], [0] * 4]
    assert target.tolist() == [[2, 0, 0, 0], [0] * 4]
    assert labels.tolist() == [[3, 0, 0, 0], [0] * 4]


def test_malformed_lines_are_listed(tokenizer, tmp_path, caplog):
    file = tmp_path / "broken.tsv"
    file.write_bytes(b"a\tb\nno tab\na\t\na\tb\tc\n\xff\tb\n\n \tb\nz\n")
    with pytest.raises(ValueError, match="`pairs` must name files without malformed.*7 malformed") as error:
        translation_pairs(file, tokenizer)
    assert str(error.value).splitlines()[1:] == [
        f"{file}, line 2: 1 column instead of 2: 'no tab'",
        f"{file}, line 3: an empty field: 'a\\t'",
        f"{file}, line 4: 3 columns instead of 2: 'a\\tb\\tc'",
    ]
    assert texts(tokenizer, batches(translation_pairs(file, tokenizer, on_error="skip"))) == [("a", "b")]
    assert "Skipping 7 malformed lines of " in caplog.text


@pytest.mark.slow
def test_columns_of_pairs_can_be_selected_and_swapped(tokenizer, tmp_path):
    file, table = tmp_path / "tatoeba.txt", tmp_path / "pairs.csv"
    file.write_text("".join(f"{source}\t{target}\tCC-BY 2.0\n" for source, target in PAIRS[:9]))
    table.write_text("id,en,es\n" + "".join(f"7,{target},{source}\n" for source, target in PAIRS[:9]))
    expected = batches(translation_pairs([pair[::-1] for pair in PAIRS[:9]], tokenizer, 4))
    for pairs, options in (
        (PAIRS[:9], {"reverse": True}),
        (file, {"columns": (0, 1), "reverse": True}),
        (file, {"columns": (1, 0)}),
        (table, {"columns": ("en", "es")}),
    ):
        assert equal(batches(translation_pairs(pairs, tokenizer, 4, **options)), expected)
    with pytest.raises(ValueError, match="3 columns instead of 2"):
        translation_pairs(file, tokenizer)


STRINGS = tf.data.Dataset.from_tensor_slices((["a"], ["b"]))


@pytest.mark.slow
def test_fit_knows_the_number_of_steps(tokenizer):
    ids = {name: keras.Input([None], dtype="int32", name=name) for name in ("source_ids", "target_ids")}
    hidden = keras.layers.Embedding(60, 4)(ids["source_ids"]) + keras.layers.Embedding(60, 4)(
        ids["target_ids"]
    )
    model = keras.Model(ids, keras.layers.Dense(60)(hidden))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0))
    steps = []
    recorder = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: steps.append(recorder.params["steps"])
    )
    dataset = translation_pairs(PAIRS, tokenizer, 16, length_buckets=(16, 64))
    history = model.fit(dataset, epochs=2, shuffle=False, verbose=0, callbacks=[recorder])
    assert steps == [len(dataset)]
    assert history.history["loss"][1] < history.history["loss"][0]
