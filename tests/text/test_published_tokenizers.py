"""Tokenizers read from `tests/text/folders` give the ids and texts of `transformers`.

`benchmarks/parity/published_tokenizers.py` writes the folders, with the components of published files and small
vocabularies.
"""

import json
import pathlib
import re
import shutil

import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer import text
from keras_transformer.export.tokenizer_examples import HARD_LINES
from keras_transformer.text.tokenizers import hugging_face

BASE = pathlib.Path(__file__).parent / "folders"
CLASSES = {
    "Llama_3": text.BytePairTokenizer,
    "Qwen_2.5": text.BytePairTokenizer,
    "SmolLM_2": text.BytePairTokenizer,
    "ModernBERT": text.BytePairTokenizer,
    "Phi-3": text.LlamaTokenizer,
    "Llama_1": text.LlamaTokenizer,
    "Llama_2": text.LlamaTokenizer,
    "Mistral_0.3": text.LlamaTokenizer,
    "Gemma": text.LlamaTokenizer,
    "ALBERT": text.MarianT5Tokenizer,
}
each_folder = pytest.mark.parametrize("name", CLASSES)


def written(name):
    """Return what `transformers` computes."""
    return json.loads((BASE / name / "expected.json").read_text(encoding="utf-8"))


def changed(name, folder, *keys, **content):
    """Write a copy of a folder in which a component of `tokenizer.json` has other content."""
    shutil.copytree(BASE / name, folder)
    file = folder / "tokenizer.json"
    whole = json.loads(file.read_text(encoding="utf-8"))
    part = whole
    for key in keys:
        part = part[key]
    part.update(content)
    file.write_text(json.dumps(whole), encoding="utf-8")
    return folder


@pytest.mark.slow_variants
@each_folder
def test_ids_and_texts_equal_transformers(name):
    tokenizer, expected = text.from_hugging_face(BASE / name), written(name)
    assert type(tokenizer) is CLASSES[name]
    texts = expected["texts"]
    for special_tokens, key in ((False, "ids"), (True, "ids_with_special_tokens")):
        ids = tokenizer.tokenize(texts, special_tokens=special_tokens).to_list()
        for line, row, reference in zip(texts, ids, expected[key], strict=True):
            # Segmentations of ALBERT's model may be equally probable, and `tokenizers` finds "<pad>" among its pieces.
            if name != "ALBERT" or not ("<" in line or re.search(r"(.)\1{3}", line)):
                assert (line, row) == (line, reference)
    special = {*tokenizer.special_token_ids.values()}
    known = [place for place, row in enumerate(expected["ids"]) if not special.intersection(row)]
    found = tokenizer.detokenize(tf.ragged.constant([expected["ids"][place] for place in known]))
    assert [each.decode() for each in found.numpy()] == [expected["decoded"][place] for place in known]
    row = expected["row"]
    start, end = row[0] == tokenizer.start_id, row[-1] == tokenizer.end_id
    assert tokenizer.encode("a b", add_start=start, add_end=end).numpy().tolist() == row
    assert hugging_face.adds_start(BASE / name) == start


@pytest.mark.slow_variants
@each_folder
@pytest.mark.slow
def test_saved_models_and_serving_give_equal_ids(name, tmp_path):
    tokenizer = text.from_hugging_face(BASE / name)
    texts = [*HARD_LINES, *written(name)["texts"]]
    served = serving.tokenizer_of(tokenizer.model_bytes, {"tokenizer_class": type(tokenizer).__name__})
    module = tf.Module()
    module.tokenizer = tokenizer
    for special_tokens in (False, True):

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def ids_and_texts(texts, special_tokens=special_tokens):
            ids = tokenizer.tokenize(texts, special_tokens=special_tokens)
            return ids.to_tensor(-1), tokenizer.detokenize(ids)

        setattr(module, f"with_{special_tokens}", ids_and_texts)
        ids = tokenizer.tokenize(texts, special_tokens=special_tokens)
        assert [served.tokenize(line, special_tokens) for line in texts] == ids.to_list()
        decoded = [each.decode() for each in tokenizer.detokenize(ids).numpy()]
        assert [served.detokenize(row) for row in ids.to_list()] == decoded
    tf.saved_model.save(module, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    for special_tokens in (False, True):
        found, strings = getattr(loaded, f"with_{special_tokens}")(tf.constant(texts))
        ids = tokenizer.tokenize(texts, special_tokens=special_tokens)
        assert found.numpy().tolist() == ids.to_tensor(-1).numpy().tolist()
        assert strings.numpy().tolist() == tokenizer.detokenize(ids).numpy().tolist()


@pytest.mark.parametrize(
    ("name", "keys", "content", "message"),
    [
        ("Llama_3", ("normalizer",), {"type": "Foo"}, "normalizer `Foo`"),
        ("Qwen_2.5", ("normalizer",), {"type": "NFKC"}, "normalizer `NFKC`"),
        ("Gemma", ("normalizer",), {"content": "_"}, "normalizer `Replace` .*content='_'"),
        ("ALBERT", ("normalizer", "normalizers", 2), {"type": "NFD"}, "normalizer `Replace` .* and `NFD`"),
        ("Llama_3", ("pre_tokenizer", "pretokenizers", 0), {"type": "Foo"}, "pre_tokenizer `Foo`"),
        (
            "Llama_3",
            ("pre_tokenizer", "pretokenizers", 0, "pattern"),
            {"Regex": "x+"},
            r"pre_tokenizer `Split` pattern={'Regex': 'x\+'}",
        ),
        (
            "SmolLM_2",
            ("pre_tokenizer", "pretokenizers", 0),
            {"individual_digits": False},
            "pre_tokenizer `Digits`",
        ),
        ("Mistral_0.3", ("pre_tokenizer",), {"split": True}, "pre_tokenizer `Metaspace` .*split=True"),
        ("ALBERT", ("pre_tokenizer", "pretokenizers", 0), {"type": "Foo"}, "pre_tokenizer `Foo`"),
        ("Llama_3", ("decoder",), {"type": "Foo"}, "decoder `Foo`"),
        ("Llama_2", ("decoder", "decoders", 3), {"type": "Foo"}, "decoder `Replace` .* and `Foo`"),
        (
            "Llama_3",
            ("post_processor", "processors", 1),
            {"type": "Foo"},
            "post_processor `ByteLevel`.*`Foo`",
        ),
        ("Llama_3", ("model",), {"type": "WordLevel"}, "model type `WordLevel`"),
        ("Llama_3", ("model",), {"dropout": 0.1}, "dropout=0.1"),
        ("Llama_2", ("model",), {"ignore_merges": True}, "ignore_merges=True"),
        ("Phi-3", ("added_tokens", 0), {"single_word": True}, "single_word=True for '<unk>'"),
    ],
)
def test_a_component_that_is_not_supported_is_named(name, keys, content, message, tmp_path):
    if keys == ("normalizer",) and name == "Llama_3":
        folder = changed(name, tmp_path / "it", normalizer=content)
    else:
        folder = changed(name, tmp_path / "it", *keys, **content)
    with pytest.raises(ValueError, match=f"Received: {message}"):
        text.from_hugging_face(folder)


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", ["Gemma", "Llama_2", "ALBERT"])
def test_sentence_piece_files_give_the_same_ids(name, tmp_path):
    folder = shutil.copytree(BASE / name, tmp_path / "it")
    expected = text.from_hugging_face(folder)
    (folder / "tokenizer.json").unlink()
    config = {"tokenizer_class": "AlbertTokenizer", "bos_token": "[CLS]", "eos_token": "[SEP]"}
    if name == "ALBERT":
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    found = text.from_hugging_face(folder)
    assert type(found) is CLASSES[name]
    assert found.vocabulary == expected.vocabulary or name == "Gemma"  # its file has a tab in place of a byte
    texts = [line for line in written(name)["texts"] if "\t" not in line and "_of_turn" not in line]
    assert found.tokenize(texts).to_list() == expected.tokenize(texts).to_list()
    roles = ("pad_id", "start_id", "end_id", "unknown_id")
    assert [getattr(found, role) for role in roles] == [getattr(expected, role) for role in roles]
    assert hugging_face.adds_start(folder) == (name != "ALBERT")


def test_models_may_have_more_ids_and_other_roles():
    tokenizer = text.from_hugging_face(BASE / "Llama_3", 800, roles={"end": 700})
    assert tokenizer.vocabulary_size == 800
    assert tokenizer.end_id == 700
    assert tokenizer.id_to_piece(799) == ""
    assert tokenizer.detokenize([799]).numpy() == b""
    assert 799 in tokenizer.empty_ids
    assert "<|eot_id|>" in tokenizer.special_token_ids
    with pytest.raises(ValueError, match="`vocabulary_size` must be at least 706, .*vocabulary_size=9"):
        text.from_hugging_face(BASE / "Llama_3", 9)
    with pytest.raises(
        ValueError, match="`roles` must be ids of the 706 pieces in the folder. Received: 'end' of 9999"
    ):
        text.from_hugging_face(BASE / "Llama_3", roles={"end": 9999})


def test_folders_without_a_tokenizer_are_rejected(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`folder` must hold tokenizer.json, .*with \[\]"):
        text.from_hugging_face(tmp_path)
