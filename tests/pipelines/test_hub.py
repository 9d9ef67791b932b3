import json
import pathlib

import numpy as np
import pytest

from keras_transformer import interop, pipelines
from keras_transformer.models import BERT, MaskedLanguageModel

pytest.importorskip("safetensors")

NAME = "someone/small-bert"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "la", "casa", "azul", "##es"]
TEXT = "la casa azul"


def files_of(folder, model):
    """Return the files of a model and its tokenizer, by name."""
    interop.to_hugging_face(model, folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def encoder():
    return BERT(len(PIECES), 1, 2, 8, 16, max_length=16)


def asked_files(hub):
    return {
        path.partition("/resolve/")[2].partition("/")[2] for _, path in hub.requests if "/resolve/" in path
    }


def test_a_pipeline_from_the_hub_equals_the_pipeline_of_its_folder(hub, encoder, tmp_path):
    folder = tmp_path / "model"
    files = files_of(folder, MaskedLanguageModel(encoder))
    unused = {"rust_model.ot": b"", "tf_model.h5": b"", "onnx/model.onnx": b"", "pytorch_model.bin": b""}
    hub.add(NAME, {**files, **unused, "README.md": b"---\nlicense: mit\n---\n"})
    expected, found = pipelines.from_hugging_face(folder), pipelines.from_hugging_face(NAME)
    assert type(found) is type(expected)
    assert found.settings() == expected.settings()
    assert found.tokenizer.sha256 == expected.tokenizer.sha256
    ids = np.arange(len(PIECES))[None]
    np.testing.assert_array_equal(found.model(ids), expected.model(ids))
    assert asked_files(hub) == {*files, "README.md"}


@pytest.mark.slow
def test_a_sentence_transformer_is_downloaded_with_the_files_of_its_modules(hub, encoder, tmp_path):
    folder = tmp_path / "model"
    files = files_of(folder, encoder)
    modules = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    pooling = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True}
    files |= {
        "modules.json": json.dumps(modules).encode(),
        "1_Pooling/config.json": json.dumps(pooling).encode(),
    }
    hub.add(NAME, {**files, "2_Unused/config.json": b"{}"})
    for name in ("modules.json", "1_Pooling/config.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(files[name])
    found, expected = pipelines.from_hugging_face(NAME)(TEXT), pipelines.from_hugging_face(folder)(TEXT)
    assert (found == expected).all()
    assert asked_files(hub) == files.keys()


def test_a_pipeline_is_downloaded_at_the_requested_revision(hub, encoder, tmp_path):
    files = files_of(tmp_path / "model", MaskedLanguageModel(encoder))
    hub.add(NAME, {})
    hub.models[NAME].commits["a" * 40] = files
    hub.models[NAME].references["v1"] = "a" * 40
    pipelines.from_hugging_face(NAME, revision="v1", cache_dir=tmp_path / "mine")
    assert (tmp_path / "mine").is_dir()
    with pytest.raises(
        FileNotFoundError, match=r"with config.json. Received: 'someone/small-bert', which has no files"
    ):
        pipelines.from_hugging_face(NAME)


def test_a_camembert_without_a_tokenizer_file_is_an_error():
    folder = pathlib.Path(__file__).parents[1] / "interop" / "folders" / "CamembertForMaskedLM"
    with pytest.raises(FileNotFoundError, match=r"`source` of a CamemBERT must have tokenizer.json"):
        pipelines.from_hugging_face(folder)


def test_a_folder_without_files_of_a_tokenizer_is_an_error():
    folder = pathlib.Path(__file__).parents[1] / "interop" / "folders" / "M2M100ForConditionalGeneration"
    with pytest.raises(FileNotFoundError, match=r"`folder` must hold vocab.json and sentencepiece.bpe.model"):
        pipelines.from_hugging_face(folder)
