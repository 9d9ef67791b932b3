import json

import pytest

import keras_transformer_serving.text
from keras_transformer.text import BytePairTokenizer, ByteTokenizer, WordPieceTokenizer, from_hugging_face
from tests.text.tokenizer_files import BERT_JSON, END, GPT2, GPT2_JSON, MERGES, PIECES, write

TEXTS = ["hello world, it's here", "¿Qué hay? ¡Adiós!", "Hello ünder the wörld [MASK]", "<|endoftext|>don't"]


@pytest.mark.slow
def test_bert_files_are_loaded(tmp_path):
    config = {"do_lower_case": True, "strip_accents": False, "cls_token": {"content": "[CLS]"}}
    old = write(tmp_path / "old", vocab_txt="\n".join(PIECES) + "\n", tokenizer_config_json=config)
    new = write(tmp_path / "new", tokenizer_json=BERT_JSON)
    options = {"skip_special_tokens": True, "strip_accents": False}
    for folder, decoder in ((old, {"clean_up": True}), (new, {"separate_pieces": True})):
        loaded = WordPieceTokenizer.from_files(folder)
        assert loaded.model_bytes == WordPieceTokenizer(PIECES, **options, **decoder).model_bytes
        assert loaded.mask_id not in loaded.tokenize(TEXTS).values.numpy()
        special = WordPieceTokenizer.from_files(folder, special_tokens_in_text=True)
        assert special.mask_id in special.tokenize(TEXTS).values.numpy()
    cased = write(
        tmp_path / "cased", vocab_txt="\r\n".join(PIECES), tokenizer_config_json={"do_lower_case": False}
    )
    assert WordPieceTokenizer.from_files(cased).pieces("T t") == ["T", "[UNK]"]
    bare = write(tmp_path / "bare", vocab_txt="\n".join(PIECES))
    expected = WordPieceTokenizer(PIECES, skip_special_tokens=True, clean_up=True)
    assert WordPieceTokenizer.from_files(bare).model_bytes == expected.model_bytes


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
        write(tmp_path / "new", tokenizer_json=GPT2_JSON, tokenizer_config_json=config)
    )
    assert (new.pad_id, new.end_id, new.start_id) == (len(GPT2), GPT2[END], -1)
    assert new.tokenize(TEXTS).to_list() == loaded.tokenize(TEXTS).to_list()
    pairs = GPT2_JSON | {"model": {"type": "BPE", "vocab": GPT2, "merges": MERGES}}
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
    reference.decoder = tokenizers.decoders.ByteLevel()
    reference.add_special_tokens([END])
    reference.save(str(tmp_path / "tokenizer.json"))
    tokenizer = BytePairTokenizer.from_files(tmp_path, special_tokens_in_text=True)
    assert tokenizer.tokenize(TEXTS).to_list() == [each.ids for each in reference.encode_batch(TEXTS)]


def test_a_start_token_without_its_role_stays_special(tmp_path):
    """Targets of BART start with "</s>"."""
    added = [
        {"id": len(GPT2) + i, "content": token, "special": True} for i, token in enumerate(("<s>", "</s>"))
    ]
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    write(tmp_path, tokenizer_json=GPT2_JSON | {"added_tokens": added}, tokenizer_config_json=config)
    tokenizer = BytePairTokenizer.from_files(tmp_path, start="</s>")
    assert tokenizer.start_id == tokenizer.end_id == len(GPT2) + 1
    assert tokenizer.tokenize("t<s>", special_tokens=True).numpy().tolist() == [GPT2["t"], len(GPT2)]


# The ids of `ByT5Tokenizer` of transformers 5.23: its three special tokens take white space, its sentinels do not.
BYT5_IDS = {
    "a <pad> b": [100, 0, 101],
    "a \n</s>\u2003 b": [100, 1, 101],
    "a <unk> b": [100, 2, 101],
    "a <extra_id_0> b": [100, 35, 259, 35, 101],
    "a <extra_id_0>\n <pad> b": [100, 35, 259, 0, 101],
    " <pad>": [0],
}


def test_special_tokens_of_byt5_take_white_space(tmp_path):
    write(tmp_path, tokenizer_config_json={"tokenizer_class": "ByT5Tokenizer", "extra_ids": 125})
    tokenizer = ByteTokenizer.from_files(tmp_path)
    served = keras_transformer_serving.text.ByteTokenizer(tokenizer.model_bytes)
    texts, expected = [*BYT5_IDS], [*BYT5_IDS.values()]
    assert tokenizer.tokenize(texts, special_tokens=True).to_list() == expected
    assert [served.tokenize(text, True) for text in texts] == expected
    assert tokenizer.tokenize("a <").numpy().tolist() == [100, 35, 63]


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


def test_added_tokens_of_byt5_follow_the_bytes(tmp_path):
    """The tokens and ids are those of transformers 5."""
    byt5 = {"tokenizer_class": "ByT5Tokenizer"}
    extra = {"extra_ids": 2, "image_token": "<e0>"}
    numbered = [{"content": token, "special": True} for token in ("<x>", "<y>")]
    known = {
        "extra_ids": 0,
        "added_tokens_decoder": {str(id_): token for id_, token in enumerate(numbered, 259)},
    }
    for config, expected in (
        (extra, ["<e0>", "<extra_id_0>", "<extra_id_1>"]),
        ({"additional_special_tokens": ["<e1>"]}, ["<e1>"]),
        ({**known, "extra_special_tokens": {"image_token": "<e0>"}}, ["<x>", "<y>", "<e0>"]),
    ):
        write(tmp_path, tokenizer_config_json={**byt5, **config})
        tokenizer = ByteTokenizer.from_files(tmp_path)
        assert list(tokenizer.vocabulary[259:]) == expected
        ids = tokenizer.tokenize(expected, special_tokens=True).to_list()
        assert ids == [[id_] for id_ in range(259, 259 + len(expected))]
    known["added_tokens_decoder"]["262"] = {"content": "<z>", "special": True}
    write(tmp_path, tokenizer_config_json={**byt5, **known})
    with pytest.raises(ValueError, match="numbered from 259 on. Received: .*'<z>'"):
        ByteTokenizer.from_files(tmp_path)
    write(tmp_path, tokenizer_config_json={**byt5, "other": 3})
    with pytest.warns(UserWarning, match="not known, and not applied: other=3"):
        ByteTokenizer.from_files(tmp_path)


@pytest.mark.parametrize(
    ("vocabulary", "tokens"),
    [
        # Added tokens without a piece are numbered from the number of pieces on.
        ({"<x>": 0, "a": 1, "b": 2}, {"<x>": 0, "<y>": 7, "<z>": 4}),
        ({"a": 1, "b": 5, "<x>": 9}, {"<x>": 9, "<y>": 2}),
    ],
)
def test_ids_equal_the_tokenizers_library(tmp_path, vocabulary, tokens):
    tokenizers = pytest.importorskip("tokenizers")
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    library.decoder = tokenizers.decoders.ByteLevel()
    content = json.loads(library.to_str())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    content["added_tokens"] = [{"id": id_, "content": token, **flags} for token, id_ in tokens.items()]
    content["pre_tokenizer"] = GPT2_JSON["pre_tokenizer"] | {"use_regex": True}
    config = {"eos_token": "<x>"}
    write(tmp_path, tokenizer_json=content, tokenizer_config_json=config)
    line = "ab<x>ba<y>a<z>"
    expected = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(line).ids
    assert from_hugging_face(tmp_path).tokenize(line, special_tokens=True).numpy().tolist() == expected
