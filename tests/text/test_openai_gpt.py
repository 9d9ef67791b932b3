import pytest

from keras_transformer.text import OpenAIGPTTokenizer
from tests.text.tokenizer_files import OPENAI_GPT_JSON, write
from tests.text.tokenizer_files import OPENAI_MERGES as MERGES
from tests.text.tokenizer_files import OPENAI_PIECES as PIECES

TEXTS = ["low lower lowest", "new newer newest", "wide widest"]
ROLES = dict.fromkeys(("unknown", "end"), "<unk>")


@pytest.mark.slow
def test_words_end_with_a_suffix_and_merges_are_applied_in_order():
    tokenizer = OpenAIGPTTokenizer(PIECES, MERGES, special_tokens=ROLES)
    assert tokenizer.pieces("abc ab bc aBÇ c") == ["abc</w>", "a", "b</w>", "bc</w>", "abc</w>", "c</w>"]
    assert tokenizer.tokenize("a☃c ☃").numpy().tolist() == [1, 0, 6, 0]  # each unknown character separately
    assert tokenizer.detokenize(tokenizer.tokenize("abc  ab")).numpy() == b"abc ab"
    ids = [PIECES.index(piece) for piece in ("ab", "c</w>", "abc</w>", "a")]
    assert tokenizer.detokenize(ids).numpy() == b"abc abc a"
    cased = OpenAIGPTTokenizer(PIECES, MERGES, special_tokens=ROLES, lowercase=False)
    assert cased.tokenize("aBc").numpy().tolist() == [1, 0, 6]


@pytest.mark.slow
def test_training_merges_frequent_pairs():
    tokenizer = OpenAIGPTTokenizer.train(TEXTS, 40)
    pieces = tokenizer.pieces("lowest")
    assert "".join(pieces) == "lowest</w>"
    assert len(pieces) == 2
    assert tokenizer.vocabulary[:4] == ("<pad>", "<unk>", "<s>", "</s>")
    assert tokenizer.detokenize(tokenizer.tokenize(TEXTS)).numpy().tolist() == [
        each.encode() for each in TEXTS
    ]


def test_openai_gpt_files_are_loaded(tmp_path):
    expected = OpenAIGPTTokenizer(PIECES, MERGES, special_tokens=ROLES)
    merges = "\n".join(["#version: 0.2", *map(" ".join, MERGES), ""])
    folder = write(tmp_path / "old", vocab_json=OPENAI_GPT_JSON["model"]["vocab"], merges_txt=merges)
    old = OpenAIGPTTokenizer.from_files(folder)
    assert old.model_bytes == expected.model_bytes
    assert (old.pad_id, old.unknown_id, old.end_id, old.start_id) == (None, 0, 0, -1)
    new = OpenAIGPTTokenizer.from_files(write(tmp_path / "new", tokenizer_json=OPENAI_GPT_JSON))
    assert new.model_bytes == expected.model_bytes
