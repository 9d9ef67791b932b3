"""Exports that die or run out of disk space in native code of TensorFlow or ONNX."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

import keras_transformer_serving as serving
from keras_transformer import export
from keras_transformer_serving import bundle

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = bundle.WORK
VARIABLES = f"{WORK}/files/saved_model/tiny/2/variables"


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(
    ("call", "path"),
    [
        ("write", f"{VARIABLES}/variables.index"),
        ("rename", f"{VARIABLES}/variables_temp/part-00000-of-00001.data-00000-of-00001"),
        ("rename", f"{WORK}/manifest.json"),  # the commit
    ],
)
def test_an_export_killed_at_a_system_call_is_rolled_back(quick, damaged, pipeline, tmp_path, call, path):
    before, old = names(damaged), (damaged / "manifest.json").read_bytes()
    pipeline.save(tmp_path / "pipeline")
    strace = [
        "strace",
        "-f",
        "-qq",
        "-o",
        str(tmp_path / "log"),
        "-P",
        str(damaged / path),
        "-e",
        f"trace={call}",
    ]
    command = [
        sys.executable,
        "-m",
        "keras_transformer_cli",
        "export",
        str(tmp_path / "pipeline"),
        str(damaged),
    ]
    options = ["--formats", "saved_model", "--name", "tiny", "--version", "2"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'export' / 'serving'}"}
    done = subprocess.run(
        [*strace, "-e", f"inject={call}:signal=KILL:when=1", *command, *options],
        capture_output=True,
        env=environment,
        check=False,
    )
    log = (tmp_path / "log").read_text()
    if not log:
        pytest.skip(f"strace may not trace processes here: {done.stderr.decode()[-200:]}")
    assert "killed by SIGKILL" in log
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert (damaged / WORK).exists()
    assert (damaged / "manifest.json").read_bytes() == old
    assert set(serving.verify(damaged)) == {"onnx"}
    assert serving.load(damaged)("uno dos") == pipeline("uno dos")
    export.saved_model(pipeline, damaged, name="tiny", version=2, texts=["uno"])
    assert set(export.verify(damaged)) == {"onnx", "saved_model/tiny/1", "saved_model/tiny/2"}
    version = {name.replace("tiny/1", "tiny/2") for name in before if name.startswith("saved_model/tiny/1")}
    assert names(damaged) == before | version


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mounted)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("function", [export.saved_model, export.onnx])
def test_an_export_to_a_full_disk_leaves_no_files(small_disk, pipeline, function):
    (small_disk / "filler").write_bytes(bytes(900_000))
    with pytest.raises(
        Exception, match=r"(?i)no space|exhausted|write"
    ):  # an error of TensorFlow, or an OSError
        function(pipeline, small_disk / "new", texts=["uno"])
    assert names(small_disk) == {"filler"}
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    function(pipeline, small_disk / "new", texts=["uno"])
    assert len(export.verify(small_disk / "new")) == 1
