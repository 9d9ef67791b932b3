"""Tokenizers without the main package."""

import base64
import builtins
import io
import json

import pytest
import sentencepiece

import keras_transformer_serving as serving
from keras_transformer_serving.text.subword import BYTE_CHARACTERS
from keras_transformer_serving.text.tokenizer import TokensInText
from keras_transformer_serving.text.unigram import Unigram

BERT = {"pad": "[PAD]", "unknown": "[UNK]", "start": "[CLS]", "end": "[SEP]", "mask": "[MASK]"}
BERT_SETTINGS = {
    "special_tokens": BERT,
    "special_tokens_in_text": True,
    "lowercase": True,
    "strip_accents": True,
    "clean_text": True,
    "isolate_ideographs": True,
    "clean_up": True,
}


def tokenizer(name, **content):
    return serving.tokenizer_of(json.dumps(content).encode(), {"tokenizer_class": name})


def test_word_piece_tokenizer_equals_the_library():
    pieces = [*BERT.values(), "un", "##able", "a", "##b", "!", "中"]
    it = tokenizer("WordPieceTokenizer", vocabulary=pieces, settings=BERT_SETTINGS)
    assert it.tokenize("ÚNABLE! a中a\tab[MASK]c [mask]") == [5, 6, 9, 7, 10, 7, 7, 8, 4, 1, 1, 1, 1]
    assert it.detokenize([2, 5, 6, 9, 7, 0, 3, 7]) == "unable! a"
    assert (it.pad_id, it.unknown_id, it.start_id, it.end_id, it.mask_id) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(("prefix", "ids"), [(False, [1, 2, 0]), (True, [2, 2, 0])])
def test_byte_pair_tokenization_matches_gpt2(prefix, ids):
    pieces = ["<|end|>", "ab", "Ġab", *BYTE_CHARACTERS, "Ġa"]
    it = tokenizer(
        "BytePairTokenizer",
        vocabulary=pieces,
        merges=[["Ġ", "a"], ["Ġa", "b"], ["a", "b"]],
        settings={
            "special_tokens": dict.fromkeys(("start", "end"), "<|end|>"),
            "special_tokens_in_text": False,
            "add_prefix_space": prefix,
        },
    )
    assert it.tokenize("ab ab<|end|>", special_tokens=True) == ids
    assert len(it.tokenize("<|end|>")) == len("<|end|>") + prefix
    assert it.tokenize("") == []
    text = " é\u3000☃\x00\t👍🏽"
    assert it.detokenize(it.tokenize(text)) == text
    assert it.detokenize([0, 1, 0, 1]) == "ab"  # the start id is the end id, too
    assert (
        it.detokenize([pieces.index(BYTE_CHARACTERS[byte]) for byte in b"a\xffb\xe2\x82"]) == "a\ufffdb\ufffd"
    )
    assert (it.pad_id, it.padding_value, it.mask_id) == (None, 0, -1)


def test_byte_pair_tokenization_recognizes_tokens_and_keeps_whole_words():
    pieces = ["<|end|>", *BYTE_CHARACTERS, "<a>", "  ", "12", "abc", "Ġabc"]
    settings = {
        "special_tokens": {"end": "<|end|>"},
        "special_tokens_in_text": False,
        "add_prefix_space": False,
        "pattern": r" ?\p{L}+|\p{N}{1,2}|.",
        "normalization": "NFC",
        "ignore_merges": True,
        "tokens_in_text": ["<a>", "  "],
        "rstrip_tokens": ["<a>", "<|end|>"],
        "lstrip_tokens": ["<|end|>"],
        "normalized_tokens": ["  "],
        "unused": 2,
    }
    it = tokenizer("BytePairTokenizer", vocabulary=pieces, merges=[], settings=settings)
    names = [it.pieces[id_] for id_ in it.tokenize("abc abc123 <a> \n  e")]
    assert names == ["abc", "Ġabc", "12", "3", "Ġ", "<a>", "e"]
    assert [it.pieces[id_] for id_ in it.tokenize("a   b")] == ["a", "  ", "Ġ", "b"]
    assert it.tokenize("a\t<|end|> b", special_tokens=True) == [1 + ord("a"), 0, 1 + ord("b")]
    assert it.tokenize("e\u0301") == [1 + byte for byte in "é".encode()]
    assert len(it.pieces) == len(pieces) + 2
    assert it.detokenize([1 + ord("a"), len(pieces) + 1]) == "a"


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("legacy", [["_", "_", "a", "_", "b"], ["_", "a"], ["<s>", "_", "a"], []]),
        ("always", [["_", "a", "_", "b"], ["_", "a"], ["<s>", "_", "a"], []]),
        ("first", [["_", "a", "_", "b"], ["_", "a"], ["<s>", "a"], []]),
        ("never", [["_", "a", "_", "b"], ["a"], ["<s>", "a"], []]),
    ],
)
def test_llama_tokenization_adds_spaces_and_falls_back_to_bytes(scheme, expected):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b"]
    settings = {
        "special_tokens": {"unknown": "<unk>", "start": "<s>", "end": "</s>"},
        "special_tokens_in_text": False,
        "prepend_scheme": scheme,
    }
    it = tokenizer("LlamaTokenizer", vocabulary=pieces, merges=[], settings=settings)
    found = [it.tokenize(text, special_tokens=True) for text in (" a b", "a", "<s>a", "")]
    assert [[it.pieces[id_].replace("\u2581", "_") for id_ in ids] for ids in found] == expected
    bytes_ = [3 + byte for byte in "é".encode()]
    assert it.tokenize("aéa")[-4:] == [260, *bytes_, 260]
    text = it.detokenize([1, 259, 260, *bytes_, 260, 3 + 0xC3, 3 + 0xFF, 260])
    assert text == f"{' ' if scheme == 'never' else ''}aéa\ufffd\ufffda"


def test_openai_gpt_tokenization_is_as_specified():
    settings = {
        "special_tokens": dict.fromkeys(("unknown", "end"), "<unk>"),
        "special_tokens_in_text": False,
        "lowercase": True,
    }
    pieces = ["<unk>", "a", "b", "a</w>", "b</w>", "ab</w>"]
    it = tokenizer("OpenAIGPTTokenizer", vocabulary=pieces, merges=[["a", "b</w>"]], settings=settings)
    assert it.tokenize("AB aab c") == [5, 1, 5, 0]
    assert it.detokenize([5, 1, 5]) == "ab aab"


def test_byte_tokenization_matches_byt5():
    settings = {"special_tokens": {"pad": "<pad>", "end": "</s>"}, "extra_tokens": ["<x>"]}
    for in_text, ids in ((False, 3 + 4), (True, 2)):
        it = tokenizer("ByteTokenizer", settings={**settings, "special_tokens_in_text": in_text})
        assert len(it.tokenize("<x></s>")) == ids
        assert it.tokenize("é") == [0xC3 + 2, 0xA9 + 2]
        assert it.detokenize([0xC3 + 2, 0xA9 + 2, 0, 0xFF + 2, 258, 1, 9]) == "é\ufffd<x>"


@pytest.fixture(scope="module")
def model():
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["1,000 x 2,000 00 0", "hello world"] * 9),
        model_writer=written,
        vocab_size=34,
        hard_vocab_limit=False,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=9,
    )
    return written.getvalue()


def test_sentence_piece_tokenization_is_as_specified(model):
    it = serving.tokenizer_of(model, {"tokenizer_class": "SentencePieceTokenizer"})
    for text in ("hello world", "  hello ", "2,000 hello"):
        assert it.detokenize([2, *it.tokenize(text), 3, 9]) == text
    ids = it.tokenize("hello</s>hello", special_tokens=True)
    assert ids.count(3) == 1
    assert it.detokenize(it.tokenize("x☃☃x")) == "x ⁇ x"
    assert it.tokenize("") == []


def test_sentence_piece_uses_the_ids_of_a_vocabulary(model):
    pieces = ["<pad>", "</s>", "<unk>", "▁", "l", "h", "e", "o", ">>fra<<", "☃"]
    settings = {
        "special_tokens": {"pad": "<pad>", "unknown": "<unk>", "start": "<pad>", "end": "</s>"},
        "tokens_in_text": [">>fra<<"],
        "place_in_text": "start",
        "unused": 2,
    }
    it = tokenizer(
        "MarianT5Tokenizer",
        model=base64.b64encode(model).decode(),
        vocabulary=pieces,
        settings=settings,
    )
    assert it.tokenize(">>fra<<☃ >>fra<<")[:3] == [8, 3, 9]
    assert it.tokenize(">>fra<<☃ >>fra<<").count(8) == 1
    assert it.detokenize([3, 5, 6, 10, 2, 1, 5]) == "he ⁇ "
    assert len(it.pieces) == 12


def test_unigram_segmentation_is_the_most_probable():
    """As in tensorflow_text, the first of equal segmentations wins, and unknown characters cost 10."""
    entries = [
        ("<unk>", 0, 2),
        ("a", -1.0, 1),
        ("aa", -1.5, 1),
        ("b", -3.0, 5),
        ("ab", -9.0, 4),
        ("<0x62>", 0, 6),
    ]
    it = Unigram(entries, byte_fallback=False)
    assert it("aaa") == [("a", 1), ("aa", 2)]
    assert it("aab") == [("a", 1), ("ab", 4)]
    assert it("bba") == [("bb", 0), ("a", 1)]
    assert Unigram(entries, byte_fallback=True)("bb") == [("<0x62>", 5)] * 2
    assert it("") == []


def test_special_tokens_are_recognized_only_at_the_start():
    specials = {"<a>": 1, "<ab>": 2}
    assert TokensInText(specials).split("<ab>x<a>") == ["", 2, "x", 1, ""]
    at_start = TokensInText(specials, anywhere=False)
    assert at_start.split("<ab>x<a>") == ["", 2, "x<a>"]
    assert at_start.split("x<a>") == ["x<a>"]
    assert at_start.split("<a><a>") == ["", 1, 1]


def test_tokens_take_spaces_and_are_single_words():
    flags = [frozenset(tokens) for tokens in (("<l>",), ("<r>",), ("<w>", "w"))]
    tokens = TokensInText({"<l>": 1, "<r>": 2, "<w>": 3, "w": 4}, *flags)
    assert tokens.split("a \n<l> b") == ["a", 1, " b"]
    assert tokens.split("a <r>\u3000 b<r>") == ["a ", 2, "b", 2, ""]
    assert tokens.split("w ww w_ (w) e\u0301w w\u200d é<w>") == [
        "",
        4,
        " ww w_ (",
        4,
        ") e\u0301w w\u200d é<w>",
    ]
    assert tokens.split("<r> <l>w") == ["", 2, "", 1, "", 4, ""]


def test_errors_name_the_missing_library(monkeypatch):
    importer = builtins.__import__

    def without(name, *arguments, **options):
        if name == "tokenizers":
            raise ModuleNotFoundError(name)
        return importer(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in ("BytePairTokenizer", "LlamaTokenizer", "OpenAIGPTTokenizer", "WordPieceTokenizer"):
        with pytest.raises(ImportError, match=r"\[tokenizers\]: pip install tokenizers"):
            tokenizer(name)
    assert tokenizer(
        "ByteTokenizer",
        settings={"special_tokens": {"pad": "<pad>"}, "extra_tokens": [], "special_tokens_in_text": False},
    ).tokenize("a")


def test_other_tokenizers_need_tensorflow():
    assert not serving.reads_text({"tokenizer_class": "Mine"})
    assert not serving.reads_text({"pipeline": "ImageClassification"})
