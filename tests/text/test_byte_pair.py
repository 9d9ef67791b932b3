import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer.text import BytePairTokenizer
from keras_transformer.text.pretokenizers.patterns import GPT_2, Words
from keras_transformer.text.tokenizers.byte_pair import BYTE_CHARACTERS, SPECIAL_TOKENS

BYTES = [*SPECIAL_TOKENS.values(), *BYTE_CHARACTERS]


def tokenizer(merges=(), **settings):
    return BytePairTokenizer([*BYTES, *dict.fromkeys(map("".join, merges))], merges, **settings)


def words(text):
    return [each.decode() for each in Words(GPT_2)(tf.constant([text])).values.numpy().tolist()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello world", ["Hello", " world"]),
        ("a  b   c", ["a", " ", " b", "  ", " c"]),
        ("a\tb\n\nc  ", ["a", "\t", "b", "\n", "\n", "c", "  "]),
        ("it's we'll I'd'nt", ["it", "'s", " we", "'ll", " I", "'d", "'", "nt"]),
        (" 's ''s it'S", [" '", "s", " ''", "s", " it", "'", "S"]),
        ("\t's 'sam's", ["\t", "'s", " '", "sam", "'s"]),
        ("abc123½!?x", ["abc", "123½", "!?", "x"]),
        ("né中文ไท", ["né中文ไท"]),
        ("e\u0301a", ["e", "\u0301", "a"]),
        ("a\u00a0b\u3000 c", ["a", "\u00a0", "b", "\u3000", " c"]),
        ("'r'l're", ["'", "r", "'", "l", "'re"]),
        ("", []),
    ],
)
def test_text_is_split_by_the_pattern_of_gpt2(text, expected):
    assert words(text) == expected


@pytest.mark.slow
def test_merges_are_applied_in_order():
    assert tokenizer([("b", "c"), ("a", "b")]).pieces("abc") == ["a", "bc"]
    assert tokenizer([("a", "b"), ("b", "c")]).pieces("abc") == ["ab", "c"]
    assert tokenizer([("a", "b"), ("ab", "c")]).pieces("abcab") == ["abc", "ab"]
    # Left to right without overlap.
    assert tokenizer([("a", "a")]).pieces("aaaaa") == ["aa", "aa", "a"]
    assert tokenizer([("a", "a"), ("aa", "aa")]).pieces("aaaaaaa") == ["aaaa", "aa", "a"]


@pytest.mark.slow
def test_a_merge_may_enable_an_earlier_merge():
    merges = [("b", "c"), ("abc", "a"), ("a", "bc")]
    assert tokenizer(merges).pieces("abcabc") == ["abca", "bc"]
    assert tokenizer([merges[0], merges[2], merges[1]]).pieces("abcabc") == ["abc", "abc"]


def test_long_words_are_merged():
    made = tokenizer([("a", "a"), ("aa", "aa")])
    assert made.tokenize(["a" * 5000]).row_lengths().numpy() == 1250


def test_add_prefix_space_adds_a_leading_space():
    made = tokenizer([("Ġ", "a")], add_prefix_space=True)
    assert made.pieces("a a") == ["Ġa", "Ġa"]
    assert made.pieces(" a") == ["Ġa"]
    assert made.pieces("\na") == ["Ġ", "Ċ", "a"]
    assert made.tokenize(["", "a"]).to_list() == [[], [260]]


def test_invalid_utf8_becomes_replacement_characters():
    made = tokenizer()
    ids = [[made.piece_to_id(BYTE_CHARACTERS[byte]) for byte in b"a\xffb\xe2\x82"]]
    assert made.detokenize(ids).numpy()[0].decode() == "a\ufffdb\ufffd"


def test_training_learns_the_most_frequent_pairs():
    made = BytePairTokenizer.train(["hug hugs", "hug bug"], 264)
    # (u, g) is the most frequent pair; ties are broken by the lower ids.
    assert made.merges[:2] == [("u", "g"), ("h", "ug")]
    assert made.vocabulary[: len(SPECIAL_TOKENS)] == tuple(SPECIAL_TOKENS.values())
    assert made.vocabulary_size == len(BYTES) + len(made.merges)
    assert BytePairTokenizer.train(["abc"], 300).merges == []  # no pair occurs twice


def test_bytes_without_a_piece_are_dropped():
    made = BytePairTokenizer(["", "a", "b", "</s>", "", "ab"], [("a", "b")], special_tokens={"end": "</s>"})
    assert made.tokenize(["a b", "éabé", "é"]).to_list() == [[1, 2], [5], []]
    served = serving.tokenizer_of(made.model_bytes, {"tokenizer_class": "BytePairTokenizer"})
    assert [served.tokenize(line) for line in ("a b", "éabé", "é")] == [[1, 2], [5], []]
    assert made.detokenize([[0, 5, 4, 1]]).numpy().tolist() == [b"aba"]
    assert made.empty_ids == (0, 4)
