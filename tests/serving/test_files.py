"""Files and folders are written completely or not at all."""

import errno
import os

import pytest

from keras_transformer_serving import files


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("Can't write data (errno = 28, error message = 'No space left on device')"),  # raised by h5py
    ],
)
def test_the_error_of_a_full_disk_names_the_folder_and_keeps_it(tmp_path, error):
    with files.new_folder(tmp_path / "a") as new:
        (new / "old").touch()
    with (
        pytest.raises(
            OSError, match="No space left on device; the previous content is kept: '.*/a'"
        ) as found,
        files.new_folder(tmp_path / "a", overwrite=True),
    ):
        raise error
    assert found.value.errno == errno.ENOSPC
    assert os.listdir(tmp_path) == ["a"]
    assert os.listdir(tmp_path / "a") == ["old"]


def test_other_errors_are_not_changed(tmp_path):
    error = PermissionError(errno.EACCES, "Permission denied", "b")
    with pytest.raises(PermissionError) as found, files.new_folder(tmp_path / "a"):
        raise error
    assert found.value is error
