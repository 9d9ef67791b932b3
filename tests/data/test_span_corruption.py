import collections

import numpy as np
import pytest

from keras_transformer.data import span_corruption
from keras_transformer.text import ByteTokenizer

TOKENIZER = ByteTokenizer()
PAD, END = TOKENIZER.pad_id, TOKENIZER.end_id
SENTINELS = [*range(400, 360, -1)]
TEXTS = ["abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN", "to be or not", "x", "", "yz", "0123456789" * 9]


def rows(texts=TEXTS, epochs=1, **options):
    """Return source, target and label ids of all rows of several epochs."""
    options = {"batch_size": 2, "max_length": 40, "sentinels": SENTINELS, **options}
    dataset = span_corruption(texts, TOKENIZER, **options)
    found = []
    for _ in range(epochs):
        for inputs, labels in dataset.as_numpy_iterator():
            found += zip(inputs["source_ids"], inputs["target_ids"], labels, strict=True)
    return found


def spans(labels):
    """Return the spans of a target by their sentinels."""
    ids = labels[: labels.tolist().index(END)]
    found = collections.defaultdict(list)
    for id_ in ids.tolist():
        if id_ in SENTINELS:
            span = found[id_]
        else:
            span.append(id_)
    return found


def reassembled(source, labels):
    """Return the text with the spans of the target in place of the sentinels."""
    of, ids = spans(labels), source[: source.tolist().index(END)].tolist()
    whole = [token for id_ in ids for token in (of[id_] if id_ in SENTINELS else [id_])]
    return bytes(TOKENIZER.detokenize(np.array([whole], np.int32)).numpy()[0]).decode()


def test_source_and_target_together_reconstruct_the_text():
    for _ in range(2):
        found = [reassembled(source, labels) for source, _, labels in rows(shuffle=False)]
        assert "".join(found) == "".join(TEXTS)
    assert sorted(reassembled(source, labels) for source, _, labels in rows()) == sorted(found)


@pytest.mark.slow
def test_sentinels_are_in_order_in_source_and_target():
    for source, _, labels in rows(epochs=3, rate=0.4, mean_span=1.5):
        found = [id_ for id_ in source.tolist() if id_ in SENTINELS]
        assert found == SENTINELS[: len(found)] == list(spans(labels))
        assert all(spans(labels).values())
        places = np.flatnonzero(np.isin(source, SENTINELS))
        assert (np.diff(places) > 1).all()


@pytest.mark.slow
def test_target_ids_are_the_shifted_labels():
    for _, target, labels in rows(start_id=7):
        size = labels.tolist().index(END) + 1
        np.testing.assert_array_equal(target[:size], [7, *labels[: size - 1]])
        assert (target[size:] == PAD).all()
        assert (labels[size:] == PAD).all()
    assert all(target[0] == PAD for _, target, _ in rows())


@pytest.mark.slow_variants
@pytest.mark.parametrize(("rate", "mean_span"), [(0.15, 3.0), (0.5, 3.0), (0.15, 1.0), (0.3, 8.0)])
def test_numbers_of_tokens_and_spans_follow_the_rate_and_mean_length(rate, mean_span):
    for source, _, labels in rows(rate=rate, mean_span=mean_span):
        size = len(reassembled(source, labels))
        missing = sum(map(len, spans(labels).values()))
        assert missing == max(1, round(rate * size))
        # At least one token separates two spans.
        assert len(spans(labels)) == min(max(1, round(missing / mean_span)), size - missing + 1)


@pytest.mark.slow
def test_every_token_is_corrupted_at_the_given_rate():
    text = "abcdefghijklmnopqrst"
    found = rows([text] * 20, epochs=40, rate=0.3, mean_span=2.0)
    missing = collections.Counter(
        id_ for *_, labels in found for span in spans(labels).values() for id_ in span
    )
    shares = np.array([missing[id_] / len(found) for id_ in TOKENIZER.tokenize(text).numpy().tolist()])
    assert shares.mean() == pytest.approx(0.3)
    assert (np.abs(shares - 0.3) < 0.12).all()
    lengths = collections.Counter(len(span) for *_, labels in found for span in spans(labels).values())
    # 6 is divided into 3 positive numbers in 10 ways, which are equally likely.
    expected = {1: 12, 2: 9, 3: 6, 4: 3}
    for length, ways in expected.items():
        assert lengths[length] / sum(lengths.values()) == pytest.approx(ways / 30, abs=0.04)


@pytest.mark.slow
def test_rows_are_as_long_as_the_source_length_allows():
    sources = [source for source, _, _ in rows(["a" * 2000], max_length=64, shuffle=False)]
    assert all((source == END).sum() == 1 for source in sources)
    assert all(source[-1] == END for source in sources[:-1])
    # As published: a length of 512 fits 568 tokens before corruption, and targets have 114.
    inputs, labels = next(iter(span_corruption(["a" * 1000], TOKENIZER, max_length=512, sentinels=SENTINELS)))
    assert (inputs["source_ids"].shape[1], labels.shape[1]) == (512, 114)


def test_sentinels_count_down_from_the_end_of_the_vocabulary():
    last = TOKENIZER.vocabulary_size - 1
    _, _, labels = rows(["abcdefghij" * 2], sentinels=None)[0]
    assert labels[0] == last
