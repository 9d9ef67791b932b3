import numpy as np
import pytest

from keras_transformer.data import masked_language_modeling, next_sentences
from keras_transformer.text import WordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZER = WordPieceTokenizer([*SPECIAL, *"abcdefghijklmno", "##x", "##y", "##z"])
TEXTS = ["a b c d e f g h i j", "k l", "axyz bx c d ey fy", ""]


def batches(texts=TEXTS, epochs=1, **options):
    """Return the rows of one or more epochs: masked ids, positions, labels."""
    dataset = masked_language_modeling(texts, TOKENIZER, **{"batch_size": 2, "max_length": 14, **options})
    found = []
    for _ in range(epochs):
        for inputs, labels in dataset.as_numpy_iterator():
            found += zip(inputs["token_ids"], inputs["masked_positions"], labels, strict=True)
    return found


def restored(token_ids, positions, labels):
    """Return the row before masking."""
    row = token_ids.copy()
    row[positions[labels != 0]] = labels[labels != 0]
    return row


@pytest.mark.slow
def test_labels_are_the_original_tokens_at_the_masked_positions():
    rows = {tuple(restored(*row)) for row in batches(epochs=5)}
    expected = {tuple(row) for row in TOKENIZER.encode(TEXTS[:3], add_start=True, add_end=True).numpy()}
    assert {tuple(row[:14]) for row in rows} == {(*row, *[0] * (14 - len(row))) for row in expected}


@pytest.mark.slow
@pytest.mark.parametrize("whole_words", [False, True])
def test_special_ids_are_never_masked_and_no_position_twice(whole_words):
    for token_ids, positions, labels in batches(epochs=20, rate=0.4, whole_words=whole_words):
        chosen = positions[labels != 0]
        assert len(set(chosen)) == len(chosen) > 0
        assert (labels[labels != 0] > 4).all()
        assert restored(token_ids, positions, labels)[0] == 2
        assert not positions[labels == 0].any()


@pytest.mark.slow
@pytest.mark.slow_variants
@pytest.mark.parametrize(
    ("rate", "expected"), [(0.15, {10: 2, 2: 1, 12: 2}), (0.5, {10: 5, 2: 1, 12: 6})], ids=str
)
def test_the_number_of_masked_tokens_follows_the_rate(rate, expected):
    for token_ids, _, labels in batches(epochs=3, rate=rate):
        assert np.count_nonzero(labels) == expected[np.count_nonzero(token_ids) - 2]


@pytest.mark.slow
def test_whole_words_are_masked_together():
    sizes = set()
    for token_ids, positions, labels in batches(TEXTS[2:3], epochs=60, rate=0.3, whole_words=True):
        row = restored(token_ids, positions, labels)
        chosen = set(positions[labels != 0].tolist())
        pieces = [TOKENIZER.id_to_piece(int(id_)) for id_ in row]
        for place, piece in enumerate(pieces):
            if piece.startswith("##"):
                assert (place in chosen) == (place - 1 in chosen)
        sizes.add(len(chosen))
    assert max(sizes) <= 4  # 0.3 · 12; the longest word has four
    assert len(sizes) > 1


@pytest.mark.slow
def test_chosen_tokens_are_80_percent_masked_10_random_10_kept():
    counts = {"masked": 0, "same": 0, "other": 0}
    for token_ids, positions, labels in batches(TEXTS[:1] * 40, epochs=25, rate=0.5):
        for position, label in zip(positions, labels, strict=True):
            if label:
                found = token_ids[position]
                counts["masked" if found == 4 else "same" if found == label else "other"] += 1
                assert found > 3
    total = sum(counts.values())
    assert total == 40 * 25 * 5
    # A random token (10 %) equals the original one in 1 of 16 cases.
    for kind, share in (("masked", 0.8), ("same", 0.1 + 0.1 / 18), ("other", 0.1 - 0.1 / 18)):
        assert abs(counts[kind] / total - share) < 4 * (share * (1 - share) / total) ** 0.5, kind


def test_long_texts_are_split_into_complete_rows():
    rows = [restored(*row) for row in batches(["a b c d e f g h i j k"], max_length=6, shuffle=False)]
    assert [TOKENIZER.detokenize(row[None]).numpy()[0] for row in rows] == [b"a b c d", b"e f g h", b"i j k"]


DOCUMENTS = [["a b", "b c", "c d e f g h i j"], ["k l m", "l m n"], [], ["n o"]]


def pairs(epochs=1, **options):
    dataset = next_sentences(DOCUMENTS, TOKENIZER, **{"batch_size": 2, "max_length": 16, **options})
    assert len(dataset) == 2
    for _ in range(epochs):
        for inputs, labels in dataset.as_numpy_iterator():
            for row in range(len(labels["tokens"])):
                ids = restored(
                    inputs["token_ids"][row], inputs["masked_positions"][row], labels["tokens"][row]
                )
                yield ids, inputs["segment_ids"][row], int(labels["next_sentence"][row])


@pytest.mark.slow
def test_next_sentence_labels_are_balanced():
    document_of = {sentence: number for number, document in enumerate(DOCUMENTS) for sentence in document}
    counts, seconds = [0, 0], set()
    for ids, segments, label in pairs(epochs=120):
        text = [TOKENIZER.id_to_piece(int(id_)) for id_ in ids[ids != 0]]
        end = text.index("[SEP]")
        first, second = " ".join(text[1:end]), " ".join(text[end + 1 : -1])
        np.testing.assert_array_equal(
            segments, [0] * (end + 1) + [1] * (len(text) - end - 1) + [0] * (16 - len(text))
        )
        document = DOCUMENTS[document_of[first]]
        if label == 0:
            assert second == document[document.index(first) + 1]
        else:
            assert document_of[second] != document_of[first]
            seconds.add(second)
        counts[label] += 1
    assert sum(counts) == 360
    assert abs(counts[0] - 180) < 4 * 90**0.5
    assert seconds == set(document_of)


@pytest.mark.slow
def test_long_pairs_keep_the_beginning_of_both_texts():
    rows = {
        " ".join(TOKENIZER.id_to_piece(int(id_)) for id_ in ids)
        for ids, _, label in pairs(epochs=20, max_length=9)
        if label == 0
    }
    assert "[CLS] b c [SEP] c d e f [SEP]" in rows
