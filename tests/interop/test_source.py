"""The source of a model: id, commits, licence and base models."""

import dataclasses

import pytest

from keras_transformer import pipelines, text
from keras_transformer.interop.hub import local_folder
from keras_transformer.interop.source import Source
from keras_transformer.models import BERT, SequenceClassifier

pytest.importorskip("huggingface_hub")

NAME = "someone/a.small-model"
CONFIG = {"config.json": b"{}", "README.md": b""}


@pytest.mark.parametrize(
    ("card", "license_", "base_models"),
    [
        ("", None, ()),
        ("# A page\n---\nlicense: mit\n---\n", None, ()),
        ("---\nlicense: mit\nlanguage:\n- es\n- en\nbase_model: a/b\n---\nlicense: other\n", "mit", ("a/b",)),
        (
            "\ufeff---\r\nlicense: 'apache-2.0'  # or later\r\nbase_model:\r\n  - a/b\r\n  - \"c\"\r\n---\r\n",
            "apache-2.0",
            ("a/b", "c"),
        ),
        ("---\nbase_model: [a/b, c/d]\nlicense:\n- mit\n- cc-by-4.0\n---", "mit, cc-by-4.0", ("a/b", "c/d")),
        ("---\nlicense: other\nlicense_name: llama2\nlicense_link: LICENSE\n---\n", "llama2", ()),
        ("---\nlicense: other\n---\n", "other", ()),
        ("---\nlicense:\nmodel-index:\n- name: x\n  license: mit\n---\n", None, ()),
        ("---\nlicense: mit\n", None, ()),
    ],
)
def test_the_front_matter_of_a_card_names_licence_and_base_models(card, license_, base_models, tmp_path):
    (tmp_path / "README.md").write_bytes(card.encode())
    assert Source.of_folder(tmp_path) == Source(tmp_path.name, license=license_, base_models=base_models)


def test_the_source_of_a_cached_model_is_its_id_and_commit(hub, tmp_path):
    commit = hub.add(NAME, CONFIG)
    hub.models[NAME].references["v1"] = commit
    for revision in (None, "main", "v1", commit):
        folder = local_folder(NAME, ["README.md"], revision=revision, cache_dir=tmp_path / "mine")
        assert Source.of_folder(folder, revision) == Source(NAME, revision, commit)


def test_a_conversion_has_its_commit_and_the_commit_of_the_model(hub):
    commit = hub.add(NAME, {**CONFIG, "pytorch_model.bin": b""})
    conversion = hub.add_conversion(NAME, {"model.safetensors": b""})
    source = Source.of_folder(local_folder(NAME))
    assert (source.commit, source.conversion) == (commit, conversion)
    source = Source.of_folder(local_folder(NAME, revision="refs/pr/3"), "refs/pr/3")
    assert (source.commit, source.conversion) == (conversion, None)


def test_a_pipeline_is_saved_with_its_source(tmp_path):
    classifier = SequenceClassifier(BERT(260, 1, 2, 8, max_length=16), 2)
    pipeline = pipelines.TextClassification(classifier, text.ByteTokenizer())
    pipeline.save(tmp_path / "new")
    assert pipelines.load(tmp_path / "new").source is None
    for source in (Source("folder"), Source(NAME, "v1", "a" * 40, None, "mit", ("a/b",), fine_tuned=True)):
        pipeline.source = source
        pipeline.save(tmp_path / "new", overwrite=True)
        assert pipelines.load(tmp_path / "new").source == source
    for damaged in ("text", {}, {"name": NAME, "base_models": [], "other": 1}):
        with pytest.raises(ValueError, match="`source` must describe the source of a model. Received: "):
            Source.of_json(damaged)


def test_a_source_becomes_json_without_empty_fields():
    source = Source(NAME, commit="a" * 40)
    assert source.as_json() == {"name": NAME, "commit": "a" * 40, "base_models": ()}
    assert dataclasses.replace(source, fine_tuned=True).as_json()["fine_tuned"]
