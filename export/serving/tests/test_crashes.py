"""An export that fails or crashes at any write, fsync, rename or removal leaves the old export or the new one."""

import builtins
import errno
import io
import itertools
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

import keras_transformer_serving as serving
from keras_transformer_serving import bundle

ERROR = OSError(errno.ENOSPC, "No space left on device")


class Crash(BaseException):
    """Simulate the death of the process: no later operation takes place."""


class Faults:
    """Let the n-th change of a file or folder fail: once (an error), or with all later ones (a crash)."""

    def __init__(self, monkeypatch, number, crash):
        self._number, self._crash = number, crash
        self.count = 0
        for name in ("mkdir", "replace", "rename", "rmdir", "unlink"):
            monkeypatch.setattr(os, name, self._failing(getattr(os, name)))
        monkeypatch.setattr(os, "fsync", self._failing(os.fsync))
        for module in (builtins, io):
            monkeypatch.setattr(module, "open", self._opening(io.open))

    @property
    def happened(self):
        return self.count >= self._number

    def step(self):
        self.count += 1
        if self.count == self._number or (self._crash and self.happened):
            raise Crash if self._crash else ERROR

    def _failing(self, function):
        def changed(*arguments, **options):
            self.step()
            return function(*arguments, **options)

        return changed

    def _opening(self, function):
        def changed(file, mode="r", *arguments, **options):
            if not {"w", "a", "x", "+"} & {*mode}:
                return function(file, mode, *arguments, **options)
            self.step()
            return File(function(file, mode, *arguments, **options), self)

        return changed


class File:
    """A file that writes half of the content when a write fails."""

    def __init__(self, file, faults):
        self._file, self._faults = file, faults

    def write(self, content):
        try:
            self._faults.step()
        except BaseException:
            self._file.write(content[: len(content) // 2])
            raise
        return self._file.write(content)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)


def everything(folder):
    found = sorted(folder.rglob("*")) if folder.exists() else []
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None for path in found
    }


def committed(folder):
    """Return the manifest if all readers accept the export, or None if all report that there is none."""
    if not (folder / "manifest.json").exists():
        for reader in (serving.verify, serving.load):
            with pytest.raises(FileNotFoundError, match="`folder` must be an export"):
                reader(folder)
        return None
    parts = serving.Bundle(folder).parity
    assert set(serving.verify(folder)) == {"onnx"} & set(parts)
    if "onnx" in parts:
        assert serving.load(folder).run(input_ids=[[5]])["logits"].tolist() == [[5.0]]
    assert all(bundle.has_part(folder, part) for part in parts)
    return (folder / "manifest.json").read_bytes()


def crash_before(path, move):
    def crashing(source, target):
        if target == path:
            raise Crash
        move(source, target)

    return crashing


@pytest.fixture(
    params=[
        pytest.param("first", marks=pytest.mark.slow),
        "second",
        pytest.param("after a crash", marks=pytest.mark.slow),
    ]
)
def scenario(request, small, tmp_path):
    """A folder to start from, and the same folder with the part "onnx" written without a failure."""
    begin, new = tmp_path / "begin", tmp_path / "new"
    if request.param == "first":
        begin.mkdir()
    else:
        small.write(begin, "saved_model/it/1")
    shutil.copytree(begin, new)
    small.write(new)
    if request.param == "after a crash":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bundle, "_roll_back", lambda *_: None)
            patch.setattr(bundle.files, "move", crash_before(begin / "manifest.json", bundle.files.move))
            with pytest.raises(Crash):
                small.write(begin)
        assert (begin / "onnx").exists()
        assert (begin / bundle.WORK / "manifest.json").exists()
    return begin, new


@pytest.mark.slow_variants
@pytest.mark.parametrize("crash", [True, False], ids=["crash", "error"])
def test_readers_see_the_old_export_or_the_new_one_after_any_fault(small, tmp_path, scenario, crash):
    begin, new = scenario
    old, expected = committed(begin), committed(new)
    states = []
    for number in itertools.count(1):
        folder = tmp_path / "faulty" / str(number)
        shutil.copytree(begin, folder)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, number, crash)
            try:
                small.write(folder)
                raised = False
            except (Crash, OSError):
                raised = True
        state = committed(folder)
        assert state in (old, expected)
        assert raised or state == expected
        if state == old:
            if old and not any((each / bundle.WORK).exists() for each in (folder, begin)):
                assert everything(folder) == everything(begin)
            small.write(folder)
            assert everything(folder) == everything(new)
        states.append(state)
        if not faults.happened:
            break
    assert not raised
    assert len(states) > 30
    if crash:  # a single error may have no effect, such as a failed removal of a temporary file
        assert states.index(expected) > 20
        assert states == sorted(states, key=[old, expected].index)  # one commit


def test_the_next_export_removes_leftovers_of_a_crash_after_the_commit(small, tmp_path):
    for name in ("crashed", "fresh"):
        small.write(tmp_path / name)
    (tmp_path / "crashed" / bundle.WORK / "files" / "onnx").mkdir(parents=True)
    (tmp_path / "crashed" / bundle.WORK / "files" / "onnx" / "model.onnx").write_bytes(b"half")
    assert serving.verify(tmp_path / "crashed")
    for name in ("crashed", "fresh"):
        small.write(tmp_path / name, "saved_model/it/1")
    assert everything(tmp_path / "crashed") == everything(tmp_path / "fresh")


def test_a_crash_of_the_first_export_leaves_a_folder_that_can_be_exported_to(small, tmp_path):
    small.write(tmp_path / "fresh")
    with pytest.MonkeyPatch.context() as patch:
        Faults(patch, 12, crash=True)
        with pytest.raises(Crash):
            small.write(tmp_path / "a" / "new")
    assert committed(tmp_path / "a" / "new") is None
    small.write(tmp_path / "a" / "new")
    assert everything(tmp_path / "a" / "new") == everything(tmp_path / "fresh")


def test_a_second_concurrent_exporter_is_rejected(small, tmp_path):
    folder = tmp_path / "it"

    def write_within(part):
        config = {**serving.Bundle(folder).config}
        with bundle.new_parts(folder, [part], config, {}) as written:
            new, _ = written[part]
            (new / "saved_model.pb").write_bytes(b"first")
            with pytest.raises(BlockingIOError, match="must be written by one export at a time.*Wait until"):
                small.write(folder, "saved_model/it/3")

    small.write(folder)
    write_within("saved_model/it/2")
    assert set(serving.Bundle(folder).parity) == {"onnx", "saved_model/it/2"}
    serving.verify(folder)
    small.write(folder, "saved_model/it/3")
    assert bundle.WORK not in everything(folder)


def test_files_of_other_programs_are_never_added_to_the_manifest(small, tmp_path):
    small.write(tmp_path)
    (tmp_path / ".onnx.abc").mkdir()
    (tmp_path / ".onnx.abc" / "model.onnx").write_bytes(b"half")
    before = everything(tmp_path)
    with pytest.raises(
        ValueError, match=r"\.onnx\.abc/model\.onnx is not listed in manifest\.json: remove it"
    ):
        small.write(tmp_path, "saved_model/it/1")
    assert everything(tmp_path) == before


WRITER = """
import pathlib, sys
from keras_transformer_serving import bundle

folder, first, last, step = sys.argv[1], *map(int, sys.argv[2:])
for version in range(first, last, step):
    while True:
        try:
            with bundle.new_parts(folder, [f"saved_model/it/{version}"], {"pipeline": "X"}, {}) as written:
                new, report = written[f"saved_model/it/{version}"]
                for number in range(8):
                    (new / f"{number}").write_bytes(b"%d" % version * 1000)
                report["version"] = version
            break
        except BlockingIOError:
            pass
        except FileExistsError:
            break
print("complete")
"""


def writer(folder, *versions):
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(serving.__file__).parents[1])}
    command = [sys.executable, "-c", WRITER, str(folder), *map(str, versions)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.slow
def test_two_processes_write_all_their_versions_into_one_export(tmp_path):
    folder = tmp_path / "it"
    running = [writer(folder, first, 40, 2) for first in (1, 2)]
    while any(process.poll() is None for process in running):
        if bundle.is_bundle(folder):
            serving.verify(folder)
    assert [process.communicate() for process in running] == [("complete\n", "")] * 2
    assert set(serving.Bundle(folder).parity) == {f"saved_model/it/{version}" for version in range(1, 40)}
    serving.verify(folder)
    for version in range(1, 40):
        for number in range(8):
            assert (folder / f"saved_model/it/{version}/{number}").read_bytes() == b"%d" % version * 1000


@pytest.mark.slow
def test_an_export_survives_processes_that_are_killed_at_random_times(tmp_path):
    folder = tmp_path / "it"
    generator = random.Random(0)
    interrupted = 0
    for _ in range(60):
        process = writer(folder, 1, 10**6, 1)
        while process.poll() is None and not (folder / bundle.WORK).exists():
            time.sleep(0.001)
        time.sleep(generator.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        interrupted += (folder / bundle.WORK).exists()
        if bundle.is_bundle(folder):
            serving.verify(folder)
    assert interrupted > 20
    process = writer(folder, 10**6, 10**6 + 1, 1)
    assert process.communicate() == ("complete\n", "")
    serving.verify(folder)
    assert not (folder / bundle.WORK).exists()
