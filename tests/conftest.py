import functools
import os
import pathlib

import pytest


@pytest.fixture(scope="session")
def real_data() -> pathlib.Path:
    """The folder of real data sets; tests that need it are skipped where it is absent."""
    beside = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = pathlib.Path(os.environ.get("KERAS_TRANSFORMER_DATA") or beside)
    if not folder.is_dir():
        pytest.skip(
            f"real data sets are absent: set KERAS_TRANSFORMER_DATA to their folder (looked in {folder})"
        )
    return folder


@pytest.fixture
def download_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An empty cache for `keras.utils.get_file`, and no local folder of data sets."""
    import keras

    monkeypatch.delenv("KERAS_TRANSFORMER_DATA", raising=False)
    folder = tmp_path / "cache"
    folder.mkdir()  # get_file would otherwise fall back to /tmp/.keras
    monkeypatch.setattr(keras.utils, "get_file", functools.partial(keras.utils.get_file, cache_dir=folder))
    return folder
