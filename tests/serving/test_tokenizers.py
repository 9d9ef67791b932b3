"""Serving tokenizers give the ids and texts of the tokenizers in the TensorFlow graph."""

import itertools
import json
import random
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer import export, text
from keras_transformer.export.to_onnx import conversion
from keras_transformer.export.tokenizer_examples import HARD_LINES, tokenizer_examples
from keras_transformer.pipelines.ragged_rows import valid_utf8
from keras_transformer_serving import parity

TRAINING = [line.replace("\0", "") for line in HARD_LINES]
RANGES = [0, 0x80, 0x300, 0x600, 0xE00, 0x1100, 0x2000, 0x3000, 0xAC00, 0xFE00, 0x1D100, 0x1F300]
TOKENS = ["<extra_id_0>", ">>fra<<"]


def sentence_piece(model="unigram", normalization="identity", **options):
    return text.SentencePieceTokenizer.train(
        TRAINING, 600, model, normalization=normalization, byte_fallback=options.get("byte_fallback", False)
    )


def marian(place, normalization="nfkc"):
    """A tokenizer whose vocabulary lacks half of the model's pieces and has another order."""
    trained = sentence_piece(normalization=normalization)
    pieces = [trained.id_to_piece(id_) for id_ in range(4, trained.vocabulary_size)]
    random.Random(1).shuffle(pieces)
    return text.MarianT5Tokenizer(
        trained.model_bytes,
        ["<pad>", "</s>", "<unk>", *pieces[::2], *TOKENS],
        tokens_in_text=TOKENS,
        place_in_text=place,
        unused=3,
    )


GPT2_ROLES = dict.fromkeys(("unknown", "start", "end"), "<|endoftext|>")
QUICK = {
    "byte-level BPE": lambda: text.BytePairTokenizer.train(
        TRAINING, 300, add_prefix_space=True, special_tokens_in_text=True
    ),
    "bytes": lambda: text.ByteTokenizer(extra_tokens=TOKENS, special_tokens_in_text=True),
    "unigram": sentence_piece,
    "unigram, nmt_nfkc": lambda: sentence_piece(normalization="nmt_nfkc", byte_fallback=True),
    "T5": lambda: marian("anywhere"),
}
SLOW = {
    "WordPiece": lambda: text.WordPieceTokenizer.train(TRAINING, 700, special_tokens_in_text=True),
    "GPT-1": lambda: text.OpenAIGPTTokenizer.train(TRAINING, 700),
    "GPT-2": lambda: text.BytePairTokenizer.train(TRAINING, 400, special_tokens=GPT2_ROLES),
    "GPT-1, cased": lambda: text.OpenAIGPTTokenizer.train(TRAINING, 700, lowercase=False),
    "WordPiece, cased": lambda: text.WordPieceTokenizer.train(TRAINING, 700, lowercase=False, clean_up=True),
    "WordPiece, control characters": lambda: text.WordPieceTokenizer.train(TRAINING, 700, clean_text=False),
    "WordPiece, joined ideographs": lambda: text.WordPieceTokenizer.train(
        TRAINING, 700, isolate_ideographs=False, strip_accents=False
    ),
    "WordPiece, cased without accents": lambda: text.WordPieceTokenizer.train(
        TRAINING, 700, lowercase=False, strip_accents=True
    ),
    "bytes, plain": text.ByteTokenizer,
    "unigram, bytes": lambda: sentence_piece(byte_fallback=True),
    "unigram, nmt_nfkc_cf": lambda: sentence_piece(normalization="nmt_nfkc_cf"),
    "bpe": lambda: sentence_piece("bpe", byte_fallback=True),
    "bpe, nmt_nfkc": lambda: sentence_piece("bpe", "nmt_nfkc"),
    "char": lambda: sentence_piece("char"),
    "char, nmt_nfkc": lambda: sentence_piece("char", "nmt_nfkc"),
    "word": lambda: sentence_piece("word", byte_fallback=True),
    "Marian": lambda: marian("start"),
    "Marian, nmt_nfkc": lambda: marian("start", "nmt_nfkc"),
}


def fuzzed(number, seed=0):
    """Return random strings of difficult lines, single letters, several scripts and arbitrary Unicode."""
    chance = random.Random(seed)
    hard = [part for line in HARD_LINES for part in [line, *line.split(" ")]]

    def part():
        choice = chance.random()
        if choice < 0.3:
            return chance.choice(hard)
        if choice < 0.6:
            return chance.choice("abcXYZ0123456789 .,!?-_'\t\n") * chance.choice([1, 1, 2, 5, 60])
        start = chance.choice(RANGES)
        codes = [chance.randrange(start, start + 300) for _ in range(4)] + [chance.randrange(0x110000)]
        return "".join(chr(code) for code in codes if not 0xD800 <= code <= 0xDFFF)

    return ["".join(part() for _ in range(chance.randint(0, 12))) for _ in range(number)]


def served_of(tokenizer):
    return serving.tokenizer_of(tokenizer.model_bytes, {"tokenizer_class": type(tokenizer).__name__})


def check(tokenizer, lines):
    served = served_of(tokenizer)
    special = [*list(tokenizer.special_token_ids)[:6], *TOKENS]
    lines = [*lines, "", *special, *(f"{one}x{other} " for one, other in itertools.product(special, special))]
    lines += [f"{TOKENS[1]}{token}" for token in special]
    for special_tokens in (False, True):
        ids = tokenizer.tokenize(lines, special_tokens=special_tokens).to_list()
        found = [served.tokenize(line, special_tokens) for line in lines]
        assert [each for each in zip(lines, ids, found, strict=True) if each[1] != each[2]] == []
    chance = random.Random(3)
    ids += [[chance.randrange(tokenizer.vocabulary_size) for _ in range(chance.randint(0, 9))] for _ in lines]
    texts = [each.decode() for each in tokenizer.detokenize(tf.ragged.constant(ids, dtype=tf.int32)).numpy()]
    assert [each for each in zip(ids, texts, strict=True) if served.detokenize(each[0]) != each[1]] == []
    names = ("pad_id", "unknown_id", "start_id", "end_id", "padding_value", "special_token_ids")
    assert {name: getattr(served, name) for name in names} == {
        name: getattr(tokenizer, name) for name in names
    }
    assert served.mask_id == getattr(tokenizer, "mask_id", -1)
    assert list(served.pieces) == [tokenizer.id_to_piece(id_) for id_ in range(tokenizer.vocabulary_size)]


@pytest.mark.parametrize("name", QUICK)
def test_ids_and_texts_equal_the_graph_on_difficult_lines(name):
    check(QUICK[name](), [*HARD_LINES, *fuzzed(30)])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_ids_and_texts_equal_the_graph_on_thousands_of_lines(name):
    check({**QUICK, **SLOW}[name](), [*HARD_LINES, *fuzzed(3000, 7)])


def test_ties_between_segmentations_are_broken_as_in_the_graph():
    """Newer versions of `sentencepiece` round differently from the version in tensorflow_text."""
    tokenizer = text.SentencePieceTokenizer.train(["1,000 x 2,000 00 0"] * 9, 40, byte_fallback=False)
    lines = [f"{'0' * count},{'0' * other}" for count in range(1, 12) for other in range(1, 12)]
    served = served_of(tokenizer)
    assert [served.tokenize(line) for line in lines] == tokenizer.tokenize(lines).to_list()


@pytest.mark.slow
def test_all_characters_are_valid_utf8():
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    texts = tf.constant([f"a{each}b" for each in characters])
    assert bool(tf.reduce_all(valid_utf8(texts) == texts))


def test_stored_examples_detect_a_different_tokenizer():
    tokenizer = text.ByteTokenizer()
    examples = json.loads(json.dumps(tokenizer_examples(tokenizer)))
    assert len(examples["texts"]) == len(examples["ids"]) == len(examples["decoded"]) > 40
    parity.compare_tokenizers(served_of(tokenizer), examples)
    other = served_of(text.ByteTokenizer(special_tokens_in_text=True))
    with pytest.raises(
        serving.ParityError, match="`tokenizer` must give the ids and texts of the pipeline's"
    ):
        parity.compare_tokenizers(other, examples)
    examples["decoded"][0] += "x"
    with pytest.raises(serving.ParityError, match="another version of the library `tokenizers`"):
        parity.compare_tokenizers(served_of(tokenizer), examples)


def test_a_tokenizer_that_differs_is_not_exported(pipeline, tmp_path, monkeypatch):
    monkeypatch.setattr(serving.text.sentence_piece.SentencePieceTokenizer, "_cut", lambda *_: [5])
    monkeypatch.setattr(conversion, "convert", None)
    with pytest.raises(serving.ParityError, match="`tokenizer` must give the ids"):
        export.onnx(pipeline, tmp_path / "it")
    assert list(tmp_path.iterdir()) == []


def test_tokenizers_need_no_tensorflow():
    program = """
        import sys
        import keras_transformer_serving.text
        print([name for name in ("tensorflow", "keras", "tokenizers", "onnxruntime") if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n", done.stderr
