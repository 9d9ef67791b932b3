"""Pipelines of folders read the tokenizers that `tokenizer.json` describes."""

import pathlib
import shutil

import numpy as np
import pytest

from keras_transformer import interop, pipelines, text
from keras_transformer.models import BERT, GPT, MaskedLanguageModel, ModernBERT
from tests.random_weights import randomise

pytest.importorskip("safetensors")

TOKENIZERS = pathlib.Path(__file__).parents[1] / "text" / "folders"
SMALL = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16, "dropout": 0.0}


def write(folder, model, tokenizer, model_type=None):
    randomise(model, scale=0.7, seed=1)
    interop.to_hugging_face(model, folder, *([model_type] if model_type else []))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZERS / tokenizer / name, folder / name)
    return folder


@pytest.mark.slow
def test_prompts_begin_with_the_start_token_of_the_template(tmp_path):
    end_id = text.from_hugging_face(TOKENIZERS / "Llama_3").piece_to_id("<|end_of_text|>")
    model = GPT(720, **SMALL, max_length=32, pad_id=None, end_id=end_id)  # the tokenizer's is another
    found = pipelines.from_hugging_face(write(tmp_path / "it", model, "Llama_3"), max_new_tokens=4)
    assert type(found) is pipelines.TextGeneration
    assert type(found.tokenizer) is text.BytePairTokenizer
    assert (found.tokenizer.vocabulary_size, found.tokenizer.end_id) == (720, end_id)
    assert found.add_start
    inputs = found.preprocess(np.array(["a b", ""])).inputs
    rows = found.tokenizer.encode(["a b", ""], add_start=True).numpy()
    assert inputs["source_ids"].numpy().tolist() == rows.tolist()
    answers = found(["a b", "12345's"])
    found.save(tmp_path / "saved")
    assert pipelines.load(tmp_path / "saved")(["a b", "12345's"]) == answers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ALBERT", "ModernBERT"])
def test_encoders_fill_masks(name, tmp_path):
    tokenizer = text.from_hugging_face(TOKENIZERS / name)
    size = tokenizer.vocabulary_size + 5
    if name == "ALBERT":
        encoder = BERT(size, **SMALL, max_length=16, embedding_dim=6, shared_blocks=True, pooler=False)
    else:
        encoder = ModernBERT(size, **SMALL, max_length=16, pad_id=tokenizer.pad_id, pooler=False)
    folder = write(tmp_path / "it", MaskedLanguageModel(encoder), name, name.lower())
    found = pipelines.from_hugging_face(folder)
    assert type(found) is pipelines.FillMask
    assert type(found.tokenizer) is type(tokenizer)
    inputs = found.preprocess(np.array(["a  [MASK] b"])).inputs
    expected = tokenizer.encode("a  [MASK] b", add_start=True, add_end=True, special_tokens=True)
    assert inputs["token_ids"].numpy().tolist() == [expected.numpy().tolist()]
    answers = found("a [MASK] b")
    found.save(tmp_path / "saved")
    assert pipelines.load(tmp_path / "saved")("a [MASK] b") == answers
