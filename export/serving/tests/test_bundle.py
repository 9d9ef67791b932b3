"""Reading and writing the export format, without a model."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import keras_transformer_serving as serving
from keras_transformer_serving import bundle, manifest

CONFIG = {"pipeline": "ImageClassification"}


def write(folder, part="onnx", config=CONFIG, content=b"graph"):
    with bundle.new_parts(folder, [part], config, {"onnx": "1.0"}) as written:
        new, parity = written[part]
        (new / "model.onnx").write_bytes(content)
        parity["tolerance"] = 0.1


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "export")
    return tmp_path / "export"


def test_written_files_can_be_read(folder):
    found = serving.Bundle(folder)
    found.check()
    assert found.config == CONFIG
    assert found.parity == {"onnx": {"tolerance": 0.1}}
    assert found.manifest["versions"] == {"onnx": "1.0"}
    digest = hashlib.sha256(b"graph").hexdigest()
    assert found.manifest["files"]["onnx/model.onnx"] == {"size": 5, "sha256": digest}
    assert found.read("onnx/model.onnx") == b"graph"


def test_parts_are_added_to_an_export_with_the_same_settings(folder):
    write(folder, "saved_model/it/1", content=b"other")
    found = serving.Bundle(folder)
    found.check()
    assert found.parity.keys() == {"onnx", "saved_model/it/1"}
    with pytest.raises(ValueError, match="contains an export of another pipeline.*differs in pipeline"):
        write(folder, "saved_model/it/2", {"pipeline": "FillMask"})
    with pytest.raises(FileExistsError, match="onnx"):
        write(folder)


def test_a_failed_write_leaves_no_file(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(manifest, "sealed", fail)
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path / "a" / "export")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format_", [0, 2, "1", None])
def test_an_unknown_format_version_is_rejected(folder, format_):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": format_}))
    with pytest.raises(ValueError, match=r"manifest\.json` must be of format 1;.*Received: "):
        serving.Bundle(folder)


def test_load_without_onnx_runtime_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install onnxruntime, or"):
        serving.load(folder)


@pytest.mark.parametrize("absent", [["onnxruntime"], ["keras", "keras_transformer", "tensorflow", "jax"]])
def test_the_import_needs_only_numpy_and_sentencepiece(absent):
    program = f"import sys; sys.modules.update(dict.fromkeys({absent})); import keras_transformer_serving"
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(serving.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_uniform_noise_depends_only_on_seed_and_index():
    noise = serving.uniform_noise(7, np.array([0, 5]), 2, 30)
    assert noise.shape == (2, 2, 30)
    assert noise.dtype == np.float32
    assert 0 < noise.min() < noise.max() < 1
    np.testing.assert_array_equal(serving.uniform_noise(7, np.array([5]), 2, 30), noise[1:])
    np.testing.assert_array_equal(serving.uniform_noise(7, np.array([5]), 1, 20), noise[1:, :1, :20])
    assert (serving.uniform_noise(8, np.array([0, 5]), 2, 30) != noise).mean() > 0.9


def test_several_parts_are_written_in_one_commit(tmp_path):
    with bundle.new_parts(tmp_path / "it", ["onnx", "saved_model/it/1"], {"pipeline": "X"}, {}) as written:
        for part, (new, report) in written.items():
            (new / "file").write_text(part)
            report["tolerance"] = 1e-4
        assert not bundle.is_bundle(tmp_path / "it")
    made = bundle.Bundle(tmp_path / "it")
    made.check()
    assert set(made.parity) == {"onnx", "saved_model/it/1"}
    assert made.read("saved_model/it/1/file") == b"saved_model/it/1"


def test_an_error_in_one_of_several_parts_leaves_no_part(tmp_path):
    def interrupted():
        with bundle.new_parts(
            tmp_path / "it", ["onnx", "saved_model/it/1"], {"pipeline": "X"}, {}
        ) as written:
            (written["onnx"][0] / "file").write_text("whole")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        interrupted()
    assert [*tmp_path.iterdir()] == []


def test_derived_files_are_updated_with_each_part_and_other_files_kept(tmp_path):
    written = [
        {},  # as in exports without the serving folder
        {"serving/a": b"1"},
        {"serving/a": b"2", "serving/b/c": b"2"},
        {"serving/b/d": b"3"},
    ]
    for number, contents in enumerate(written, 1):

        def write_derived(new, _, contents=contents):
            for name, content in contents.items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(content)

        part = f"saved_model/it/{number}"
        with bundle.new_parts(tmp_path / "it", [part], CONFIG, {}, write_derived=write_derived) as written:
            new, _ = written[part]
            (new / "saved_model.pb").write_bytes(b"graph")
    made = serving.Bundle(tmp_path / "it")
    made.check()
    found = {name: made.read(name) for name in made.manifest["files"] if name.startswith("serving/")}
    assert found == {"serving/a": b"2", "serving/b/c": b"2", "serving/b/d": b"3"}
    assert made.parity.keys() == {f"saved_model/it/{number}" for number in (1, 2, 3, 4)}
