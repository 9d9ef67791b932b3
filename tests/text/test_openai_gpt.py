import json

import pytest

from keras_transformer.text import OpenAIGPTTokenizer

TEXTS = ["low lower lowest", "new newer newest", "wide widest"]
PIECES = ["<unk>", *"abc", "a</w>", "b</w>", "c</w>", "ab", "abc</w>", "bc</w>"]
MERGES = [("a", "b"), ("ab", "c</w>"), ("b", "c</w>")]
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


def write(folder, merges, **config):
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({piece: id_ for id_, piece in enumerate(PIECES)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, merges), ""]))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_openai_gpt_files_are_loaded(tmp_path):
    expected = OpenAIGPTTokenizer(PIECES, MERGES, special_tokens=ROLES)
    old = OpenAIGPTTokenizer.from_files(write(tmp_path / "old", MERGES))
    assert old.model_bytes == expected.model_bytes
    assert (old.pad_id, old.unknown_id, old.end_id, old.start_id) == (None, 0, 0, -1)
    content = {
        "normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "BPE",
            "end_of_word_suffix": "</w>",
            "vocab": {piece: id_ for id_, piece in enumerate(PIECES)},
            "merges": [list(pair) for pair in MERGES],
        },
    }
    (tmp_path / "new").mkdir()
    file = tmp_path / "new" / "tokenizer.json"
    file.write_text(json.dumps(content))
    assert OpenAIGPTTokenizer.from_files(tmp_path / "new").model_bytes == expected.model_bytes
    for change, message in (
        (
            {"pre_tokenizer": {"type": "ByteLevel"}},
            "Received: pre_tokenizer `ByteLevel`",
        ),
        ({"model": {**content["model"], "end_of_word_suffix": None}}, "with end_of_word_suffix='</w>'"),
        (
            {"model": {**content["model"], "fuse_unk": True}},
            "Received: fuse_unk=True",
        ),
    ):
        file.write_text(json.dumps({**content, **change}))
        with pytest.raises(ValueError, match=message):
            OpenAIGPTTokenizer.from_files(tmp_path / "new")


def test_invalid_arguments_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="`merges` must hold pairs of pieces whose concatenation"):
        OpenAIGPTTokenizer.from_files(write(tmp_path / "it", [("c", "a")]))
    with pytest.raises(ValueError, match="`special_tokens` must have a token for .unknown."):
        OpenAIGPTTokenizer(PIECES, MERGES, special_tokens={"pad": "<unk>"})
    with pytest.raises(FileNotFoundError, match="must hold tokenizer.json, or vocab.json and merges.txt"):
        OpenAIGPTTokenizer.from_files(tmp_path)
