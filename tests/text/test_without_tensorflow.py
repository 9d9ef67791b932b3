"""The tokenizers without TensorFlow have the ids, texts and files of those in the graph."""

import pathlib

import numpy as np
import pytest

from keras_transformer import data, text
from keras_transformer.text import without_tensorflow

TEXTS = ["the lowest newer", "wídest 1,000", "", "hugging — 漢字 🙂", " two  spaces ", "low</s>er"]
MADE = {
    "BytePairTokenizer": lambda: text.BytePairTokenizer.train(TEXTS, 300),
    "ByteTokenizer": text.ByteTokenizer,
    "OpenAIGPTTokenizer": lambda: text.OpenAIGPTTokenizer.train(TEXTS, 80),
    "SentencePieceTokenizer": lambda: text.SentencePieceTokenizer.train(TEXTS, 330),
    "WordPieceTokenizer": lambda: text.WordPieceTokenizer.train(TEXTS, 80),
}
FOLDERS = pathlib.Path(__file__).resolve().parent.parent / "interop" / "folders"
IDS = (
    *("pad_id", "unknown_id", "start_id", "end_id", "vocabulary_size", "padding_value", "special_token_ids"),
    "empty_ids",
)


def test_the_module_has_the_same_classes():
    names = {name for name in text.__all__ if name.endswith("Tokenizer")}
    for name in names - {"Tokenizer"}:
        assert getattr(without_tensorflow, name).file_name == getattr(text, name).file_name


@pytest.mark.parametrize("name", MADE)
def test_ids_texts_and_files_equal_the_graph_tokenizer(name, tmp_path):
    expected = MADE[name]()
    expected.save(tmp_path / "graph")
    tokenizer = getattr(without_tensorflow, name).load(tmp_path / "graph")
    for attribute in IDS:
        assert getattr(tokenizer, attribute) == getattr(expected, attribute)
    assert tokenizer.sha256 == expected.sha256
    for special_tokens in (True, False):
        ids = tokenizer.tokenize(TEXTS, special_tokens=special_tokens)
        assert ids == expected.tokenize(TEXTS, special_tokens=special_tokens).to_list()
    assert tokenizer.tokenize(TEXTS[0]) == ids[0]
    padded = tokenizer.encode(TEXTS, add_end=True)
    np.testing.assert_array_equal(padded, expected.encode(TEXTS, add_end=True))
    assert padded.dtype == np.int32
    np.testing.assert_array_equal(tokenizer.encode(TEXTS[0]), ids[0])
    texts = [found.decode() for found in expected.detokenize(padded).numpy()]
    assert tokenizer.detokenize(padded) == tokenizer.detokenize(ids) == texts
    assert tokenizer.detokenize(padded[None]) == [texts]
    assert [*map(tokenizer.id_to_piece, ids[0])] == [*map(expected.id_to_piece, ids[0])]
    tokenizer.save(tmp_path / "python")
    for file in (tmp_path / "graph").iterdir():
        assert (tmp_path / "python" / file.name).read_bytes() == file.read_bytes()


def test_a_model_is_trained_and_bytes_are_configured_alike():
    for arguments in ({}, {"extra_tokens": ["<x>"], "special_tokens_in_text": True, "unused": 2}):
        one, other = (module.ByteTokenizer(**arguments) for module in (text, without_tensorflow))
        assert (one.sha256, one.empty_ids) == (other.sha256, other.empty_ids)
        assert one.tokenize(["a<x></s>"]).to_list() == other.tokenize(["a<x></s>"])
    one, other = (module.SentencePieceTokenizer.train(TEXTS, 330) for module in (text, without_tensorflow))
    assert one.sha256 == other.sha256


def test_empty_ids_equal_the_graph():
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁▁", "\n"]
    roles = {"unknown": "<unk>", "start": "<s>", "end": "</s>"}
    made = (
        text.MarianT5Tokenizer.from_files(FOLDERS / "NLLB"),
        text.LlamaTokenizer(pieces, [("▁", "▁")], special_tokens=roles, unused=2),
    )
    for expected in made:
        tokenizer = getattr(without_tensorflow, type(expected).__name__).from_model_bytes(
            expected.model_bytes
        )
        assert tokenizer.empty_ids == expected.empty_ids


def test_functions_that_need_tensorflow_raise_an_error_with_their_name(tmp_path):
    for method in ("train", "from_files"):
        with pytest.raises(ImportError, match=f"`WordPieceTokenizer.{method}` requires TensorFlow"):
            getattr(without_tensorflow.WordPieceTokenizer, method)(tmp_path)
    tokenizer = without_tensorflow.ByteTokenizer()
    with pytest.raises(ValueError, match="`sampling` must be 0 for a `tokenizer` .* a ByteTokenizer"):
        data.translation_pairs([("a", "b")], tokenizer, sampling=0.1)
    for texts in (3, ["a", 3], "\ud800"):
        with pytest.raises((TypeError, ValueError), match="`texts` must be"):
            tokenizer.tokenize(texts)
    with pytest.raises(ValueError, match=r"`ids` must be in \[0, 260\), the vocabulary. Received: \[260\]"):
        tokenizer.detokenize([260])


def test_batches_of_both_are_equal(tmp_path):
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    for tokenizer in (text.ByteTokenizer(), without_tensorflow.ByteTokenizer()):
        batches = data.translation_pairs(pairs, tokenizer, 2, cache_dir=tmp_path)
        found = [np.asarray(labels) for _, labels in batches]
    assert len({path.name for path in tmp_path.iterdir()}) == 2  # ids and buckets, written once
    expected = [np.asarray(labels) for _, labels in data.translation_pairs(pairs, text.ByteTokenizer(), 2)]
    assert all(map(np.array_equal, found, expected))
