import os
import pathlib

import pytest

from keras_transformer_serving import files


class BrokenError(Exception):
    pass


def everything(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def fill(path, content="new", **options):
    with files.new_folder(path, **options) as new:
        (new / "file").write_text(content)


def fill_halfway(path, error, **options):
    with files.new_folder(path, **options) as new:
        (new / "file").write_text("half")
        raise error


def test_a_new_folder_appears_only_after_the_block(tmp_path):
    path = tmp_path / "a" / "b" / "result"
    with files.new_folder(path) as new:
        (new / "file").write_text("content")
        assert not path.exists()
        assert not path.parent.exists()
    assert (path / "file").read_text() == "content"
    assert everything(tmp_path) == ["a", "a/b", "a/b/result", "a/b/result/file"]


@pytest.mark.parametrize("error", [BrokenError, KeyboardInterrupt, SystemExit])
def test_a_failed_block_leaves_no_files_or_parent_folders(tmp_path, error):
    with pytest.raises(error):
        fill_halfway(tmp_path / "a" / "result", error)
    assert everything(tmp_path) == []


def test_an_existing_folder_is_rejected_before_the_block_and_unchanged(tmp_path):
    fill(tmp_path / "result", "old")
    ran = []
    with pytest.raises(FileExistsError, match="result"), files.new_folder(tmp_path / "result"):
        ran.append(True)
    assert not ran
    assert (tmp_path / "result" / "file").read_text() == "old"
    assert everything(tmp_path) == ["result", "result/file"]


def test_an_existing_file_is_rejected(tmp_path):
    (tmp_path / "result").write_text("a file")
    with pytest.raises(FileExistsError):
        fill(tmp_path / "result")
    assert (tmp_path / "result").read_text() == "a file"


def test_overwrite_replaces_the_old_folder_completely(tmp_path):
    with files.new_folder(tmp_path / "result") as new:
        (new / "other").write_text("old")
    fill(tmp_path / "result", overwrite=True)
    assert everything(tmp_path) == ["result", "result/file"]
    assert (tmp_path / "result" / "file").read_text() == "new"


def test_overwrite_keeps_the_old_folder_if_the_block_fails(tmp_path):
    fill(tmp_path / "result", "old")
    with pytest.raises(BrokenError):
        fill_halfway(tmp_path / "result", BrokenError, overwrite=True)
    assert everything(tmp_path) == ["result", "result/file"]
    assert (tmp_path / "result" / "file").read_text() == "old"


def test_overwrite_keeps_the_old_folder_if_the_last_rename_fails(tmp_path, monkeypatch):
    fill(tmp_path / "result", "old")
    rename = os.replace

    def failing(source, target):
        if (files.pathlib.Path(source) / "file").is_file() and "new" in (
            files.pathlib.Path(source) / "file"
        ).read_text():
            raise OSError("disk full")
        rename(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="disk full"):
        fill(tmp_path / "result", overwrite=True)
    assert (tmp_path / "result" / "file").read_text() == "old"


def test_overwriting_a_file_leaves_no_temporary_folder(tmp_path):
    (tmp_path / "result").write_text("a file")
    with pytest.raises(OSError, match="result"):
        fill(tmp_path / "result", overwrite=True)
    assert everything(tmp_path) == ["result"]
    assert (tmp_path / "result").read_text() == "a file"


def test_a_folder_created_concurrently_is_not_overwritten(tmp_path):
    path = tmp_path / "result"

    def fill_beside_another():
        with files.new_folder(path) as new:
            (new / "file").write_text("ours")
            path.mkdir()
            (path / "file").write_text("theirs")

    with pytest.raises(FileExistsError):
        fill_beside_another()
    assert (path / "file").read_text() == "theirs"
    assert everything(tmp_path) == ["result", "result/file"]


def test_a_path_below_a_file_is_rejected_before_the_block_runs(tmp_path):
    (tmp_path / "file").write_text("")
    ran = []
    with pytest.raises(OSError, match="file"), files.new_folder(tmp_path / "file" / "result"):
        ran.append(True)
    assert not ran


def test_other_users_may_read_a_new_folder(tmp_path):
    fill(tmp_path / "result")
    assert (tmp_path / "result").stat().st_mode & 0o777 == 0o755


def test_relative_paths_and_strings_are_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill("a/result")
    assert everything(tmp_path) == ["a", "a/result", "a/result/file"]


def test_json_round_trips_and_is_written_atomically(tmp_path):
    content = {"ñ": [1, 2.5, None, True, "\u2603", {"": ""}]}
    files.write_json(tmp_path / "a.json", {"old": 1})
    files.write_json(tmp_path / "a.json", content)
    assert files.read_json(str(tmp_path / "a.json")) == content
    assert everything(tmp_path) == ["a.json"]
    assert "ñ" in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_a_failed_json_write_keeps_the_old_file(tmp_path):
    files.write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(TypeError):
        files.write_json(tmp_path / "a.json", {"new": object()})
    assert everything(tmp_path) == ["a.json"]
    assert files.read_json(tmp_path / "a.json") == {"old": 1}


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1', b"\xff\xfe", b'{"a": "\x80"}', b"nothing"])
def test_damaged_json_is_rejected(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json.*must be JSON"):
        files.read_json(tmp_path / "a.json")


def test_missing_json_raises_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a\.json"):
        files.read_json(tmp_path / "a.json")


def test_sha256_equals_a_known_digest(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert files.sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_locked_folder_has_one_user_and_is_removed_with_its_new_parents(tmp_path):
    with files.locked_folder(tmp_path / "a" / "b" / "work") as work:
        (work / "file").write_text("")
        with pytest.raises(BlockingIOError, match="one export at a time"), files.locked_folder(work):
            pass
        (work / "file").unlink()
    assert everything(tmp_path) == []


def test_a_folder_removed_during_creation_is_created_again(tmp_path, monkeypatch):
    errors, mkdir = [FileExistsError, FileNotFoundError], pathlib.Path.mkdir

    def removed(path, **options):
        if errors:
            raise errors.pop()
        mkdir(path, **options)

    monkeypatch.setattr(pathlib.Path, "mkdir", removed)
    with files.locked_folder(tmp_path / "work") as work:
        assert work.is_dir()
    monkeypatch.undo()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(FileExistsError), files.locked_folder(tmp_path / "link"):
        pass


def test_a_locked_folder_with_content_is_kept_and_can_be_locked_again(tmp_path):
    for _ in range(2):
        with files.locked_folder(tmp_path / "work") as work:
            (work / "file").write_text("")
        assert everything(tmp_path) == ["work", "work/file", "work/lock"]


def test_a_removed_lock_is_acquired_again(tmp_path, monkeypatch):
    import fcntl

    flock, files_locked = fcntl.flock, []

    def removing_first(file, operation):
        if not files_locked:
            (tmp_path / "work" / "lock").unlink()
            (tmp_path / "work").rmdir()
        files_locked.append(file)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", removing_first)
    with files.locked_folder(tmp_path / "work"):
        assert everything(tmp_path) == ["work", "work/lock"]
        with pytest.raises(BlockingIOError), files.locked_folder(tmp_path / "work"):
            pass
    assert len(files_locked) == 3


def test_entries_are_files_links_and_empty_folders(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "work").mkdir()
    assert files.entries(tmp_path, ignored="work") == {"a/b": False, "a/file": True, "link": False}
