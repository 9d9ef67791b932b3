"""Exports as folders: written atomically, with digests in the manifest, verified by `verify`."""

import gc
import hashlib
import json
import shutil
import weakref

import pytest

import keras_transformer_serving as serving
from keras_transformer import export
from keras_transformer.export import ParityError, bundle_writer, to_saved_model
from keras_transformer.export.to_onnx import conversion
from keras_transformer.pipelines import TextToText
from keras_transformer_serving import bundle, files, manifest, parity

FILES = [
    "onnx/generate_greedy.onnx",
    "onnx/optimum/encoder_model.onnx",
    "onnx/optimum/decoder_model_merged.onnx",
    "onnx/optimum/config.json",
    "onnx/optimum/generation_config.json",
    "saved_model/tiny/1/saved_model.pb",
    "saved_model/tiny/1/variables/variables.data-00000-of-00001",
    "saved_model/tiny/1/variables/variables.index",
    "tokenizer/sentencepiece.model",
    "tokenizer/examples.json",
    "tokenizer/tokenizer.json",
    "config.json",
    "generation_config.json",
    "parity.json",
    "README.md",
]


def everything(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x01
    path.write_bytes(content)


def fail(*_, **__):
    raise OSError("disk full")


def test_the_manifest_lists_every_file_with_size_and_sha256(exported):
    manifest = json.loads((exported / "manifest.json").read_text())
    found = {name: content for name, content in everything(exported).items() if content is not None}
    del found["manifest.json"]
    assert set(FILES) <= set(found)
    assert manifest["files"] == {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in found.items()
    }
    assert {"tensorflow", "onnx", "onnxruntime"} <= {name for name, of in manifest["versions"].items() if of}


def test_no_temporary_folder_is_left(exported):
    assert not [name for name in everything(exported.parent) if any(p[0] == "." for p in name.split("/"))]


def test_the_config_contains_the_serving_settings(exported, pipeline):
    config = json.loads((exported / "config.json").read_text())
    assert config == bundle_writer.config_of(pipeline)
    assert (config["pad_id"], config["start_id"], config["end_id"]) == (0, 2, 3)
    assert config["max_new_tokens"] == pipeline.max_new_tokens
    assert config["tokenizer_sha256"] == files.sha256(exported / "tokenizer" / "sentencepiece.model")


def test_verify_accepts_an_intact_export(exported):
    results = export.verify(exported)
    assert set(results) == {"onnx", "saved_model/tiny/1"}
    assert set(results["onnx"]["graphs"]) == {"onnx_loop", "onnx_steps"}
    for part in results.values():
        for counts in part["graphs"].values():
            assert counts == {"identical": part["texts"], "near_ties": 0}


@pytest.mark.slow
def test_verify_compares_outputs_with_a_pipeline_on_given_texts(exported, pipeline, texts):
    results = export.verify(str(exported), pipeline, texts)
    assert {part["texts"] for part in results.values()} == {len(texts)}


@pytest.mark.slow
def test_verify_accepts_a_moved_folder(damaged):
    moved = damaged.rename(damaged.parent / "elsewhere ñ")
    assert set(export.verify(moved)) == {"onnx", "saved_model/tiny/1"}


@pytest.mark.parametrize("name", FILES)
def test_verify_names_the_file_with_a_flipped_bit(damaged, name):
    flip(damaged / name)
    with pytest.raises(ValueError, match=rf"(?s){name.replace('.', chr(92) + '.')} is damaged.*sha256"):
        export.verify(damaged)


@pytest.mark.parametrize(
    "name", ["onnx/optimum/encoder_model.onnx", "parity.json", "saved_model/tiny/1/saved_model.pb"]
)
def test_verify_names_missing_and_truncated_files(damaged, name):
    (damaged / name).write_bytes((damaged / name).read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"{name} is damaged.*bytes"):
        export.verify(damaged)
    (damaged / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is missing"):
        export.verify(damaged)


def test_verify_names_all_damaged_files_at_once(damaged):
    flip(damaged / "config.json")
    (damaged / "parity.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json.*parity\.json is missing"):
        export.verify(damaged)


@pytest.mark.parametrize("kind", ["absent", "empty", "pipeline", "file"])
def test_folders_that_are_not_exports_are_rejected_by_name(tmp_path, pipeline, kind):
    folder = tmp_path / kind
    if kind == "empty":
        folder.mkdir()
    elif kind == "pipeline":
        pipeline.save(folder)
    elif kind == "file":
        folder.write_text("")
    with pytest.raises(FileNotFoundError, match=f"`folder` must be an export.*{kind}"):
        export.verify(folder)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[]", b"{}", b'{"files": []}', b'{"files": {"a": 1}}', b'{"files": null}'],
)
def test_errors_name_a_damaged_manifest(damaged, content):
    (damaged / "manifest.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"manifest\.json"):
        export.verify(damaged)


def test_texts_without_a_pipeline_are_rejected(exported):
    with pytest.raises(ValueError, match="`texts` must be None without `pipeline`"):
        export.verify(exported, texts=["uno"])


@pytest.mark.slow
def test_different_weights_raise_a_parity_error(exported, pipeline, random_transformer, texts):
    model = random_transformer(5, vocabulary_size=pipeline.tokenizer.vocabulary_size)
    other = TextToText(model, pipeline.tokenizer, max_new_tokens=10, max_source_tokens=200)
    with pytest.raises(ParityError, match="must have the outputs of the model"):
        export.verify(exported, other, texts[:3])


@pytest.mark.slow
def test_a_replaced_graph_is_detected_even_if_its_digest_matches(damaged):
    """Outputs are compared too, in case the manifest was rewritten."""
    stored = json.loads((damaged / "parity.json").read_text())
    stored["onnx"]["examples"]["ids"][0][0] += 1
    files.write_json(damaged / "parity.json", stored)
    entries = json.loads((damaged / "manifest.json").read_text())["files"]
    entries["parity.json"] = manifest.entry_of(damaged / "parity.json")
    files.write_json(damaged / "manifest.json", manifest.sealed({}, entries, None))
    for verify in (export.verify, serving.verify):
        with pytest.raises(ParityError, match="onnx"):
            verify(damaged)


@pytest.mark.slow_variants
@pytest.mark.parametrize("function", [export.saved_model, export.onnx])
@pytest.mark.parametrize("failing", ["writing", "comparing", "tokenizer", "parity", "manifest"])
def test_a_failed_export_leaves_no_files(quick, tmp_path, monkeypatch, pipeline, function, failing):
    where = {
        "writing": (to_saved_model, "write_signatures"),
        "comparing": (parity, "compare_generated"),
        "tokenizer": (pipeline.tokenizer, "save"),
        "parity": (files, "write_json"),
        "manifest": (manifest, "sealed"),
    }[failing]
    if failing == "writing":
        if function is export.onnx:
            convert, done = conversion.convert, []

            def halfway(name, *rest):
                done.append(name)
                return fail() if len(done) == 3 else convert(name, *rest)

            where, replacement = (conversion, "convert"), halfway
        else:

            def replacement(*arguments):
                (arguments[-1] / "saved_model.pb").write_bytes(b"half")
                fail()
    else:
        replacement = fail
    monkeypatch.setattr(*where, replacement)
    with pytest.raises(OSError, match="disk full"):
        function(pipeline, tmp_path / "a" / "new", texts=["uno"])
    assert everything(tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["comparing", "manifest"])
def test_a_failed_export_does_not_change_an_existing_one(quick, damaged, monkeypatch, pipeline, failing):
    before = everything(damaged.parent)
    where = (parity, "compare_generated") if failing == "comparing" else (manifest, "sealed")
    monkeypatch.setattr(*where, fail)
    with pytest.raises(OSError, match="disk full"):
        export.saved_model(pipeline, damaged, name="tiny", version=2, texts=["uno"])
    assert everything(damaged.parent) == before


@pytest.mark.slow
def test_a_graph_with_different_outputs_is_not_exported(quick, tmp_path, pipeline, random_transformer, texts):
    model = random_transformer(5, vocabulary_size=pipeline.tokenizer.vocabulary_size)
    other = TextToText(model, pipeline.tokenizer, max_new_tokens=10, max_source_tokens=200)
    for function in (export.saved_model, export.onnx):  # `quick` writes the graphs of `pipeline`
        with pytest.raises(ParityError):
            function(other, tmp_path / "new", texts=texts[:3])
    assert everything(tmp_path) == {}


def test_exporting_a_second_part_detects_damage_in_the_first(quick, damaged, pipeline):
    flip(damaged / "generation_config.json")

    def extend_and_verify():
        export.saved_model(pipeline, damaged, name="tiny", version=2, texts=["uno"])
        export.verify(damaged)

    with pytest.raises(ValueError, match=r"generation_config\.json.*damaged"):
        extend_and_verify()


@pytest.mark.slow
def test_export_accepts_an_existing_empty_folder(quick, tmp_path, pipeline):
    (tmp_path / "new").mkdir()
    export.onnx(pipeline, tmp_path / "new", texts=["uno"])
    assert set(export.verify(tmp_path / "new")) == {"onnx"}


@pytest.mark.parametrize("kind", ["foreign", "pipeline", "file"])
def test_a_folder_with_other_files_is_rejected(quick, tmp_path, pipeline, kind):
    folder = tmp_path / "folder"
    if kind == "foreign":
        folder.mkdir()
        (folder / "thesis.txt").write_text("")
    elif kind == "pipeline":
        pipeline.save(folder)
    else:
        folder.write_text("")
    before = everything(tmp_path)
    for function in (export.saved_model, export.onnx):
        with pytest.raises(ValueError, match="`folder` must be new, empty or an export"):
            function(pipeline, folder)
    assert everything(tmp_path) == before


def test_adding_to_an_export_with_another_tokenizer_or_settings_is_rejected(
    quick, exported, pipeline, random_transformer, sentence_pairs
):
    from keras_transformer import text

    before = everything(exported)
    other = TextToText(pipeline.model, pipeline.tokenizer, max_new_tokens=11, max_source_tokens=200)
    with pytest.raises(ValueError, match="another pipeline.*differs in max_new_tokens"):
        export.saved_model(other, exported, name="tiny", version=2)
    tokenizer = text.SentencePieceTokenizer.train(
        [source for source, _ in sentence_pairs], 50, byte_fallback=False
    )
    model = random_transformer(0, vocabulary_size=tokenizer.vocabulary_size)
    other = TextToText(model, tokenizer, max_new_tokens=10, max_source_tokens=200)
    with pytest.raises(ValueError, match="another pipeline.*tokenizer_sha256"):
        export.saved_model(other, exported, name="tiny", version=2)
    assert everything(exported) == before


@pytest.mark.slow
def test_a_second_version_with_new_weights_can_be_verified_with_its_pipeline(
    damaged, monkeypatch, pipeline, random_transformer, texts
):
    """Versions may have different weights: each stores its reference outputs."""
    model = random_transformer(5, vocabulary_size=pipeline.tokenizer.vocabulary_size)
    other = TextToText(model, pipeline.tokenizer, max_new_tokens=10, max_source_tokens=200)
    export.saved_model(other, damaged, name="tiny", version=2, texts=texts[:3])
    assert export.verify(damaged)["saved_model/tiny/2"]["texts"] == 3


def test_verifying_releases_its_sessions(exported):
    graphs = serving.Bundle(exported)
    sessions = serving.Graphs(serving.Sessions(lambda name: graphs.read(f"onnx/{name}.onnx")), graphs.config)
    kept = weakref.ref(sessions)
    del sessions
    gc.collect()
    assert kept() is None


def test_an_export_can_be_served_from_a_copy_without_the_saved_model(exported, tmp_path):
    copied = shutil.copytree(exported, tmp_path / "copied", ignore=shutil.ignore_patterns("saved_model"))
    assert serving.load(copied)("uno dos")


@pytest.mark.slow_variants
@pytest.mark.parametrize("function", [export.onnx, export.saved_model])
def test_a_signed_export_is_verified_with_its_key(quick, tmp_path, pipeline, function):
    folder = tmp_path / "new"
    function(pipeline, folder, texts=["uno"], signature_key=b"key")
    assert len(export.verify(folder, signature_key=b"key")) == 1
    for key in (b"another key", "key"):
        with pytest.raises(ValueError, match="signed with the key|`signature_key`"):
            export.verify(folder, signature_key=key)
    with pytest.raises(ValueError, match="with the key that it is signed with"):
        export.saved_model(pipeline, folder, version=2, texts=["uno"])


def test_an_unsigned_export_is_rejected_if_a_key_is_given(exported):
    for read in (export.verify, serving.verify, serving.load):
        with pytest.raises(ValueError, match=r"manifest\.json` must be signed, because a key was passed"):
            read(exported, signature_key=b"key")


def test_added_files_are_rejected(damaged):
    (damaged / "saved_model" / "tiny" / "2").mkdir()
    (damaged / "saved_model" / "tiny" / "2" / "saved_model.pb").write_bytes(b"")
    for read in (export.verify, serving.verify, serving.load):
        with pytest.raises(ValueError, match=r"saved_model/tiny/2/saved_model\.pb is not listed.*remove it"):
            read(damaged)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [("saved_model", "onnx"), ("onnx", "saved_model")])
def test_files_of_an_interrupted_export_are_removed_by_the_next_one(quick, tmp_path, pipeline, parts):
    """The process dies after the second part was renamed and before the commit."""
    folder, names = tmp_path / "new", {"saved_model": "saved_model/new/1", "onnx": "onnx"}
    first, second = (getattr(export, part) for part in parts)
    first(pipeline, folder, texts=["uno"])
    before, manifest_path = everything(folder), folder / "manifest.json"
    move = files.move
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "_roll_back", lambda *_: None)
        patch.setattr(files, "move", lambda *paths: fail() if paths[1] == manifest_path else move(*paths))
        with pytest.raises(OSError, match="disk full"):
            second(pipeline, folder, texts=["uno"])
    assert (folder / names[parts[1]]).exists()
    assert everything(folder)["manifest.json"] == before["manifest.json"]
    assert set(export.verify(folder)) == {names[parts[0]]}
    second(pipeline, folder, texts=["uno"])
    assert set(export.verify(folder)) == set(names.values())
    assert not (folder / bundle.WORK).exists()
