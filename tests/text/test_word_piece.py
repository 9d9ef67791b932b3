import numpy as np
import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer.text import WordPieceTokenizer
from keras_transformer.text.pretokenizers.bert import BertWords

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tokenizer(*pieces, **settings):
    return WordPieceTokenizer([*SPECIAL, *pieces], **settings)


def words(text, lowercase=True, strip_accents=None, clean=True, isolate_ideographs=True):
    strip_accents = lowercase if strip_accents is None else strip_accents
    found = BertWords(clean, isolate_ideographs, strip_accents, lowercase)(tf.constant([text]))
    return " ".join(word.decode() for word in found.values.numpy().tolist())


def test_words_are_split_greedily():
    made = tokenizer("a", "ab", "##b", "##bc", "##c", "##cd")
    assert made.pieces("abc") == ["ab", "##c"]
    assert made.pieces("abcd") == ["ab", "##cd"]
    assert made.pieces("abce ab") == ["[UNK]", "ab"]
    assert made.pieces("##b b") == ["[UNK]"] * 4


def test_words_of_more_than_a_hundred_characters_are_unknown():
    made = tokenizer("é", "##é", "a", strip_accents=False)
    assert made.tokenize(["é" * 100]).row_lengths().numpy() == 100
    assert made.pieces(f"{'É' * 101} a") == ["[UNK]", "a"]


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        ("¡Ñandú!", {}, "¡ nandu !"),
        ("¡Ñandú!", {"strip_accents": False}, "¡ ñandú !"),
        ("¡Ñandú!", {"lowercase": False}, "¡ Ñandú !"),
        ("¡Ñandú!", {"lowercase": False, "strip_accents": True}, "¡ Nandu !"),
        ("İ", {"strip_accents": False}, "i\u0307"),
        ("a中文b", {}, "a 中 文 b"),
        ("a中文b", {"isolate_ideographs": False}, "a中文b"),
        ("a\u200b\0\x07b\ufffd\u00a0c\u3000d\r\ne", {}, "ab c d e"),
        ("a\u200bb", {"clean": False}, "a\u200bb"),
        ("it's $5_a-b", {}, "it ' s $ 5 _ a - b"),
    ],
)
def test_text_is_cleaned_and_split_as_in_bert(text, settings, expected):
    assert words(text, **settings) == expected


def test_composed_and_decomposed_accents_are_stripped():
    made = tokenizer("n", "e", "##e")
    assert made.pieces("ñéé") == made.pieces("n\u0303e\u0301e\u0301") == ["n", "##e", "##e"]


def test_detokenize_joins_pieces_and_cleans_up_on_request():
    pieces = ["hug", "##s", ".", ",", "it", "'", "s"]
    ids = [[5, 6, 8, 9, 10, 11, 7], [6, 5]]
    assert tokenizer(*pieces).detokenize(ids).numpy().tolist() == [b"hugs , it ' s .", b"##s hug"]
    assert tokenizer(*pieces, clean_up=True).detokenize(ids).numpy().tolist() == [
        b"hugs, it ' s.",
        b"##s hug",
    ]


@pytest.mark.slow
def test_pairs_have_segment_ids():
    made = tokenizer("a", "b", "c")
    assert (made.start_id, made.end_id, made.mask_id) == (2, 3, 4)
    pairs = made.encode_pairs(["a b", ""], ["c", "a b c"])
    assert pairs["ids"].numpy().tolist() == [[2, 5, 6, 3, 7, 3], [2, 3, 5, 6, 7, 3]]
    assert pairs["segment_ids"].numpy().tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1]]
    graph = tf.function(made.encode_pairs)(tf.constant(["a"]), tf.constant(["b"]))
    np.testing.assert_array_equal(graph["ids"], [[2, 5, 3, 6, 3]])


@pytest.mark.slow
def test_training_finds_frequent_pieces():
    made = WordPieceTokenizer.train(["hug hugs hugging bug"] * 3 + ["rare"], 40, min_frequency=2)
    assert made.vocabulary[:5] == tuple(SPECIAL)
    assert made.pieces("hug Hugs húg") == ["hug", "hugs", "hug"]
    assert made.vocabulary_size < 40  # no other pair is frequent enough
    assert made.pieces("rare")[0] == "r"
    assert WordPieceTokenizer.train(["Ab ab"], 20, lowercase=False).pieces("Ab") == ["A", "##b"]
    limited = WordPieceTokenizer.train(["aab aac"], 20, alphabet_limit=2)
    assert limited.pieces("aab aac") == ["a", "##a", "##b", "[UNK]"]


def test_ids_may_have_no_piece():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "", "a", "", "##b", "c"]
    made = WordPieceTokenizer(pieces)
    assert made.tokenize(["ab c", "d 5"]).to_list() == [[6, 8, 9], [1, 1]]
    served = serving.tokenizer_of(made.model_bytes, {"tokenizer_class": "WordPieceTokenizer"})
    assert [served.tokenize(line) for line in ("ab c", "d 5")] == [[6, 8, 9], [1, 1]]
