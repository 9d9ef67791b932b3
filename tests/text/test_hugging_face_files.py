import json

import pytest

from keras_transformer.text import BytePairTokenizer, ByteTokenizer, WordPieceTokenizer, from_hugging_face
from keras_transformer.text.tokenizers.byte_pair import BYTE_CHARACTERS

TEXTS = ["hello world, it's here", "¿Qué hay? ¡Adiós!", "Hello ünder the wörld [MASK]", "<|endoftext|>don't"]
PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"helowrdTÜü¿?,!",
    "##e",
    "##l",
    "##o",
    "hel",
    "##lo",
    "\u2028",
]
END = "<|endoftext|>"
MERGES = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo"), ("Ġ", "t")]
GPT2 = {piece: id_ for id_, piece in enumerate([*BYTE_CHARACTERS, *map("".join, MERGES), END])}


def write(folder, **contents):
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        stem, _, suffix = name.rpartition("_")
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{stem}.{suffix}").write_text(text, encoding="utf-8", newline="")
    return folder


def bert_json(**changes):
    return {
        "added_tokens": [{"id": id_, "content": PIECES[id_]} for id_ in range(5)],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": False,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {piece: id_ for id_, piece in enumerate(PIECES)},
        },
        **changes,
    }


def gpt2_json(**changes):
    return {
        "added_tokens": [{"id": len(GPT2), "content": "<pad>"}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "vocab": GPT2,
            "merges": [" ".join(pair) for pair in MERGES],
        },
        **changes,
    }


@pytest.mark.slow
def test_bert_files_are_loaded(tmp_path):
    config = {"do_lower_case": True, "strip_accents": False, "cls_token": {"content": "[CLS]"}}
    old = write(tmp_path / "old", vocab_txt="\n".join(PIECES) + "\n", tokenizer_config_json=config)
    new = write(tmp_path / "new", tokenizer_json=bert_json())
    expected = WordPieceTokenizer(PIECES, strip_accents=False)
    for folder in (old, new):
        loaded = WordPieceTokenizer.from_files(folder)
        assert loaded.model_bytes == expected.model_bytes
        assert loaded.mask_id not in loaded.tokenize(TEXTS).values.numpy()
        special = WordPieceTokenizer.from_files(folder, special_tokens_in_text=True)
        assert special.mask_id in special.tokenize(TEXTS).values.numpy()
    cased = write(
        tmp_path / "cased", vocab_txt="\r\n".join(PIECES), tokenizer_config_json={"do_lower_case": False}
    )
    assert WordPieceTokenizer.from_files(cased).pieces("T t") == ["T", "[UNK]"]
    bare = write(tmp_path / "bare", vocab_txt="\n".join(PIECES))
    assert WordPieceTokenizer.from_files(bare).model_bytes == WordPieceTokenizer(PIECES).model_bytes


@pytest.mark.slow
def test_gpt2_files_are_loaded(tmp_path):
    merges = "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in MERGES) + "\n"
    old = write(tmp_path / "old", vocab_json=GPT2, merges_txt=merges)
    loaded = BytePairTokenizer.from_files(old)
    assert loaded.vocabulary == tuple(GPT2)
    assert loaded.merges == MERGES
    assert loaded.pad_id is None
    assert loaded.start_id == loaded.end_id == loaded.unknown_id == loaded.padding_value == GPT2[END]
    assert loaded.pieces("hello the") == ["hello", "Ġt", "he"]
    config = {"add_prefix_space": True, "bos_token": END, "eos_token": END}
    spaced = write(tmp_path / "spaced", vocab_json=GPT2, merges_txt=merges, tokenizer_config_json=config)
    assert BytePairTokenizer.from_files(spaced).pieces("t") == ["Ġt"]
    config = {"eos_token": END, "pad_token": "<pad>"}
    new = BytePairTokenizer.from_files(
        write(tmp_path / "new", tokenizer_json=gpt2_json(), tokenizer_config_json=config)
    )
    assert (new.pad_id, new.end_id, new.start_id) == (len(GPT2), GPT2[END], -1)
    assert new.tokenize(TEXTS).to_list() == loaded.tokenize(TEXTS).to_list()
    pairs = gpt2_json(model={"type": "BPE", "vocab": GPT2, "merges": MERGES})
    write(
        tmp_path / "new",
        tokenizer_json=pairs | {"added_tokens": []},
        tokenizer_config_json={"eos_token": END},
    )
    assert BytePairTokenizer.from_files(tmp_path / "new").merges == MERGES


@pytest.mark.slow
def test_files_written_by_the_tokenizers_library_are_loaded(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    reference = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({p: i for i, p in enumerate(PIECES)}, unk_token="[UNK]")
    )
    reference.normalizer = tokenizers.normalizers.BertNormalizer()
    reference.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    reference.add_special_tokens(PIECES[:5])
    reference.save(str(tmp_path / "tokenizer.json"))
    tokenizer = WordPieceTokenizer.from_files(tmp_path, special_tokens_in_text=True)
    assert tokenizer.tokenize(TEXTS).to_list() == [each.ids for each in reference.encode_batch(TEXTS)]
    reference = tokenizers.Tokenizer(tokenizers.models.BPE(GPT2, MERGES))
    reference.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    reference.add_special_tokens([END])
    reference.save(str(tmp_path / "tokenizer.json"))
    tokenizer = BytePairTokenizer.from_files(tmp_path, special_tokens_in_text=True)
    assert tokenizer.tokenize(TEXTS).to_list() == [each.ids for each in reference.encode_batch(TEXTS)]


def test_byt5_files_are_loaded(tmp_path):
    write(tmp_path, tokenizer_config_json={"tokenizer_class": "ByT5Tokenizer", "extra_ids": 125})
    tokenizer = ByteTokenizer.from_files(tmp_path)
    assert (tokenizer.pad_id, tokenizer.end_id, tokenizer.unknown_id, tokenizer.start_id) == (0, 1, 2, 0)
    assert tokenizer.vocabulary_size == 384
    assert tokenizer.encode("hé", add_end=True).numpy().tolist() == [107, 198, 172, 1]
    assert tokenizer.piece_to_id("<extra_id_0>") == 259
    for size in (None, 384, 400):
        again = from_hugging_face(tmp_path, size)
        assert isinstance(again, ByteTokenizer)
        assert again.vocabulary_size == (size or 384)
        assert again.tokenize("hé").numpy().tolist() == [107, 198, 172]
        assert again.detokenize([107, again.vocabulary_size - 1, 198, 172]).numpy().decode() in (
            "h<extra_id_124>é",
            "hé",
        )
    with pytest.raises(ValueError, match="`vocabulary_size` must be at least 384"):
        from_hugging_face(tmp_path, 380)


@pytest.mark.parametrize("cls", [WordPieceTokenizer, BytePairTokenizer, ByteTokenizer])
def test_folders_without_the_files_are_rejected(cls, tmp_path):
    (tmp_path / "other.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"`folder` must hold .*with \['other.txt'\]"):
        cls.from_files(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"`folder` must hold .*with \[\]"):
        cls.from_files(tmp_path / "none")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "must hold a model of type WordPiece"),
        ({"model": {"type": "Unigram"}}, "must hold a model of type WordPiece. Received: 'Unigram'"),
        ({"model": {**bert_json()["model"], "vocab": None}}, "must number its pieces"),
        ({"model": {**bert_json()["model"], "vocab": {"[PAD]": 0, "a": 7}}}, "must number its pieces"),
        ({"model": {**bert_json()["model"], "continuing_subword_prefix": "@"}}, "Received: .*prefix='@'"),
        ({"normalizer": {"type": "NFC"}}, "normalizer that is supported with .*Received: normalizer `NFC`"),
        ({"normalizer": None}, "Received: normalizer null"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "Received: pre_tokenizer `Whitespace`"),
    ],
)
def test_unsupported_bert_files_are_rejected(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        WordPieceTokenizer.from_files(write(tmp_path, tokenizer_json=bert_json(**changes)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": {**gpt2_json()["model"], "dropout": 0.1}},
            "must have a model `BPE` with dropout=None. Received: dropout=0.1",
        ),
        ({"model": {**gpt2_json()["model"], "byte_fallback": True}}, "Received: byte_fallback=True"),
        ({"model": {**gpt2_json()["model"], "merges": ["x y"]}}, r"merges\[0\]=\('x', 'y'\), with \['xy'\]"),
        ({"model": {**gpt2_json()["model"], "vocab": {"a": 0, "b": 2}}}, "must number its pieces"),
        ({"normalizer": {"type": "NFKC"}}, "Received: normalizer `NFKC`"),
        ({"pre_tokenizer": {"type": "Sequence"}}, "Received: pre_tokenizer null"),
        (
            {"pre_tokenizer": {"type": "ByteLevel", "use_regex": False}},
            "Received: pre_tokenizer `ByteLevel` use_regex=False",
        ),
        ({"decoder": {"type": "WordPiece"}}, "Received: decoder `WordPiece`"),
        ({"post_processor": {"type": "Foo"}}, "Received: post_processor `Foo`"),
        (
            {"added_tokens": [{"id": len(GPT2), "content": "<x>", "single_word": True}]},
            "Received: single_word=True for '<x>'",
        ),
    ],
)
def test_unsupported_gpt2_files_are_rejected(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        BytePairTokenizer.from_files(write(tmp_path, tokenizer_json=gpt2_json(**changes)))


def test_damaged_files_are_rejected(tmp_path):
    whole = json.dumps(gpt2_json())
    with pytest.raises(ValueError, match=r"tokenizer.json` must be JSON"):
        BytePairTokenizer.from_files(write(tmp_path, tokenizer_json=whole[: len(whole) // 2]))
    with pytest.raises(ValueError, match=r"must hold a JSON object"):
        BytePairTokenizer.from_files(write(tmp_path, tokenizer_json="[]"))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"merges\[1\]=\('l',\)"):
        BytePairTokenizer.from_files(write(tmp_path, vocab_json=GPT2, merges_txt="#version: 0.2\nh e\nl"))
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff")
    with pytest.raises(ValueError, match=r"vocab.txt must be UTF-8"):
        WordPieceTokenizer.from_files(tmp_path)
    with pytest.raises(ValueError, match=r"token for .unknown."):
        WordPieceTokenizer.from_files(write(tmp_path, vocab_txt="[PAD]\na\nb"))
    with pytest.raises(ValueError, match=r"token for .pad. or .end."):
        WordPieceTokenizer.from_files(write(tmp_path, vocab_txt="a\nb"))
    with pytest.raises(ValueError, match=r"must have tokenizer_class='ByT5Tokenizer'"):
        ByteTokenizer.from_files(write(tmp_path, tokenizer_config_json={"tokenizer_class": "GPT2Tokenizer"}))
