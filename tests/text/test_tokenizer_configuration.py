"""The configuration files beside a vocabulary are applied, known to have no effect, an error or reported.

The ids are those of `transformers` 5, by the classes that the files name.
"""

import json
import pathlib
import warnings

import pytest

from keras_transformer import text
from tests.text.tokenizer_files import BERT_JSON, END, GPT2_JSON, PIECES, write

VOCABULARY = "\n".join(PIECES) + "\n"
CASED = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}


def test_the_class_decides_whether_the_configuration_is_applied(tmp_path):
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}
    write(tmp_path, tokenizer_json=BERT_JSON, tokenizer_config_json=config)
    by_file = text.from_hugging_face(tmp_path)
    write(tmp_path, tokenizer_json=BERT_JSON, tokenizer_config_json=CASED)
    by_class = text.from_hugging_face(tmp_path)
    assert by_file.pieces("T H") == ["[UNK]", "h"]  # lower-cased, and there is no "t"
    assert by_class.pieces("T H") == ["T", "[UNK]"]


def test_a_vocabulary_of_another_class_is_an_error_that_names_it(tmp_path):
    for name in ("BertJapaneseTokenizer", "PhobertTokenizer"):
        write(tmp_path, vocab_txt=VOCABULARY, tokenizer_config_json={"tokenizer_class": name})
        with pytest.raises(
            ValueError, match=f"must have a tokenizer_class .* Received: tokenizer_class='{name}'"
        ):
            text.from_hugging_face(tmp_path)
    write(tmp_path, vocab_txt=VOCABULARY, tokenizer_config_json={"tokenizer_class": "ElectraTokenizerFast"})
    assert text.from_hugging_face(tmp_path).pieces("Hello") == ["hel", "##lo"]


def test_a_prefix_space_of_qwen_is_an_error(tmp_path):
    """`transformers` 5 applies it, also where `tokenizer.json` has none."""
    config = {"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": False, "eos_token": END}
    write(tmp_path, tokenizer_json=GPT2_JSON, tokenizer_config_json=config)
    assert text.from_hugging_face(tmp_path).pieces("t") == ["t"]
    write(tmp_path, tokenizer_json=GPT2_JSON, tokenizer_config_json={**config, "add_prefix_space": True})
    with pytest.raises(ValueError, match="add_prefix_space=False for a Qwen2Tokenizer.* Received"):
        text.from_hugging_face(tmp_path)


def test_prefix_spaces_of_llama_that_differ_are_errors(tmp_path):
    folder = pathlib.Path(__file__).parent / "folders" / "Llama_2"
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    config = {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False, "eos_token": "</s>"}
    write(tmp_path, tokenizer_json=content, tokenizer_config_json=config)
    with pytest.raises(ValueError, match="add_prefix_space=True, as tokenizer.json adds a space. Received"):
        text.from_hugging_face(tmp_path)
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    content |= {"normalizer": None, "pre_tokenizer": metaspace}
    write(tmp_path, tokenizer_json=content, tokenizer_config_json={**config, "add_prefix_space": True})
    text.from_hugging_face(tmp_path)
    config = {**config, "add_prefix_space": True, "legacy": True}
    write(tmp_path, tokenizer_json=content, tokenizer_config_json=config)
    with pytest.raises(ValueError, match="legacy=False, as tokenizer.json adds a space only before a text"):
        text.from_hugging_face(tmp_path)


def test_unknown_keys_are_reported_once_and_unsupported_values_raise_errors(tmp_path):
    known = {"model_max_length": 512, "padding_side": "left", "never_split": None, "image_token": "[MASK]"}
    write(tmp_path, vocab_txt=VOCABULARY, tokenizer_config_json={**CASED, **known})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text.from_hugging_face(tmp_path)
    write(tmp_path, vocab_txt=VOCABULARY, tokenizer_config_json={**CASED, "jumanpp_kwargs": 3, "sudachi": 4})
    with pytest.warns(UserWarning, match="not known, and not applied: jumanpp_kwargs=3, sudachi=4") as found:
        text.from_hugging_face(tmp_path)
    assert len(found) == 1
    write(tmp_path, vocab_txt=VOCABULARY, tokenizer_config_json={**CASED, "never_split": ["hel"]})
    with pytest.raises(ValueError, match=r"must have never_split=\[\]. Received: never_split=\['hel'\]"):
        text.from_hugging_face(tmp_path)


def test_decoded_word_pieces_are_cleaned_up_and_without_special_tokens(tmp_path):
    write(tmp_path, vocab_txt=VOCABULARY, tokenizer_config_json=CASED)
    tokenizer = text.from_hugging_face(tmp_path)
    ids = [
        tokenizer.piece_to_id(piece) for piece in ("[CLS]", "hel", "##lo", ",", "[UNK]", "[MASK]", "o", "?")
    ]
    assert (
        tokenizer.detokenize(ids).numpy() == b"hello, [UNK] o?"
    )  # as `tokenizers` writes them, but for [UNK]


def test_a_file_of_unigrams_keeps_spaces_without_a_normalizer(tmp_path):
    metaspace = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}
    scores = [["<unk>", 0.0], ["</s>", 0.0], ["_", -1.0], ["a", -2.0], ["_a", -2.5], ["▁", -3.0]]
    file = {
        "pre_tokenizer": metaspace,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": scores},
        "decoder": {name: value for name, value in metaspace.items() if name != "split"},
        "added_tokens": [{"id": 1, "content": "</s>", "special": True}],
    }
    write(tmp_path, tokenizer_json=file, tokenizer_config_json={"eos_token": "</s>", "pad_token": "</s>"})
    tokenizer = text.from_hugging_face(tmp_path)
    assert tokenizer.pieces("a  a ▁_a ") == ["_a", "_", "_a", "_", "▁", "_a", "_"]
    assert tokenizer.detokenize(tokenizer.tokenize("a  a")).numpy() == b"a  a"
    first = {
        **file,
        "pre_tokenizer": {**metaspace, "prepend_scheme": "first"},
        "normalizer": {"type": "Strip"},
    }
    first["normalizer"] |= {"strip_left": True, "strip_right": True}
    write(tmp_path, tokenizer_json=first)
    with pytest.raises(
        ValueError, match="must have a pre_tokenizer that is supported .* prepend_scheme='first'"
    ):
        text.from_hugging_face(tmp_path)


@pytest.mark.parametrize(
    "extra", [{}, {"extra_special_tokens": {"image_token": "<e>"}}], ids=["none", "names"]
)
def test_the_unused_tokens_of_camembert_are_special(tmp_path, extra):
    """Its class in `transformers` 5 adds them, also where no file lists them or a file has tokens with names."""
    scores = [
        ["<s>NOTUSED", 0.0],
        ["<pad>", 0.0],
        ["</s>NOTUSED", 0.0],
        ["<unk>", 0.0],
        ["<unk>NOTUSED", -100.0],
    ]
    scores += [["<s>", 0.0], ["</s>", 0.0], ["\u2581", -1.0], ["a", -2.0]]
    model = {"type": "Unigram", "unk_id": 3, "vocab": scores}
    write(
        tmp_path,
        tokenizer_json={"model": model},
        tokenizer_config_json={"tokenizer_class": "CamembertTokenizer", **extra},
    )
    tokenizer = text.from_hugging_face(tmp_path)
    assert tokenizer.tokenize("<s>NOTUSEDa", special_tokens=True).numpy().tolist() == [0, 7, 8]
