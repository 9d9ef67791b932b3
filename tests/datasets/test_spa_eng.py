import gzip
import hashlib
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

from keras_transformer.datasets import spa_eng

LINES = "".join(f"sentence {i // 2}\tfrase {i // 3}\n" for i in range(600))


@pytest.fixture
def published(tmp_path, monkeypatch, download_cache):
    """Serve a small archive from a local address."""
    archive = tmp_path / "published.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("spa-eng/spa.txt", LINES)
    monkeypatch.setattr(spa_eng, "ADDRESS", archive.as_uri())
    monkeypatch.setattr(spa_eng, "_SHA256", hashlib.sha256(LINES.encode()).hexdigest())
    return archive


def english_and_spanish(part):
    return {pair[0] for pair in part}, {pair[1] for pair in part}


def check_disjoint(parts):
    languages = [english_and_spanish(part) for part in parts]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        for language in (0, 1):
            assert not languages[first][language] & languages[second][language]


def test_the_published_file_is_read(real_data, monkeypatch):
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", str(real_data))
    parts = spa_eng.load_data("en-es")
    assert [len(part) for part in parts] == [112_537, 2_313, 3_465]
    check_disjoint(parts)
    assert len(english_and_spanish(parts[2])[0]) == 3_000
    assert ("Go.", "Ve.") in parts[0] + parts[1] + parts[2]
    flipped = spa_eng.load_data()
    assert [[(english, spanish) for spanish, english in part] for part in flipped] == list(parts)


def test_download_splits_without_leaks(published):
    parts = spa_eng.load_data("en-es", validation=20, test=30)
    check_disjoint(parts)
    assert len(english_and_spanish(parts[2])[0]) == 30
    everything = [tuple(line.split("\t")) for line in LINES.splitlines()]
    held_out_english, held_out_spanish = english_and_spanish(parts[1] + parts[2])
    assert set(parts[0]) <= set(everything)
    # Sentences are dropped only to avoid a leak.
    tested = english_and_spanish(parts[2])
    assert all(pair in parts[2] for pair in everything if pair[0] in tested[0])
    for pair in set(everything) - set(parts[0] + parts[1] + parts[2]):
        assert pair[0] in held_out_english or pair[1] in held_out_spanish or pair[1] in tested[1]


def test_the_split_depends_only_on_the_seed(published):
    arguments = {"validation": 20, "test": 30}
    assert spa_eng.load_data(**arguments) == spa_eng.load_data(seed=0, **arguments)
    assert set(spa_eng.load_data(**arguments)[2]) != set(spa_eng.load_data(seed=1, **arguments)[2])


def test_the_download_is_cached(published, download_cache):
    first = spa_eng.load_data(validation=1, test=1)
    published.unlink()
    assert spa_eng.load_data(validation=1, test=1) == first
    assert [path.name for path in download_cache.rglob("*.zip")] == ["spa-eng.zip"]


def test_a_download_with_the_wrong_hash_is_not_kept(published, download_cache, monkeypatch):
    monkeypatch.setattr(spa_eng, "_SHA256", "0" * 64)
    found = hashlib.sha256(LINES.encode()).hexdigest()
    with pytest.raises(ValueError, match=rf"spa-eng.zip .*must have the sha256 0{{64}}. Received: {found}"):
        spa_eng.load_data()
    assert list(download_cache.rglob("*.zip")) == []


@pytest.mark.parametrize("content", [b"no archive", None])
def test_a_download_without_the_file_is_not_kept(published, download_cache, content):
    if content is None:
        with zipfile.ZipFile(published, "w") as file:
            file.writestr("other.txt", LINES)
    else:
        published.write_bytes(content)
    with pytest.raises(ValueError, match=r"must be a ZIP archive with spa-eng/spa.txt"):
        spa_eng.load_data()
    assert list(download_cache.rglob("*.zip")) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            gzip.compress(b"wrong\tfile\n"),
            r"spa.txt.gz, decompressed, must have the sha256 6ec60e\w+. Received: \w{64}",
        ),
        (b"no gzip", r"spa.txt.gz must be a gzip file"),
        (gzip.compress(LINES.encode())[:-20], r"spa.txt.gz must be a gzip file"),
    ],
    # Fixed ids: gzip stores the time, and parallel workers must collect the same names.
    ids=["other content", "no gzip", "cut off"],
)
def test_a_wrong_local_file_is_rejected_and_kept(tmp_path, monkeypatch, content, message):
    file = tmp_path / "spa-eng" / "spa.txt.gz"
    file.parent.mkdir()
    file.write_bytes(content)
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=message):
        spa_eng.load_data()
    assert file.read_bytes() == content


def test_a_missing_local_file_is_not_downloaded(published, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"spa.txt.gz must exist.*KERAS_TRANSFORMER_DATA="):
        spa_eng.load_data()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"direction": "es-fr"}, "`direction` must be one of .*Received: direction='es-fr'"),
        ({"validation": 0}, "`validation` must be a positive integer. Received: validation=0"),
        ({"test": 1.5}, "`test` must be a positive integer. Received: test=1.5"),
        ({"validation": 100, "test": 200}, "less than the number of distinct English sentences, 300"),
    ],
)
def test_load_data_rejects_invalid_arguments(published, arguments, message):
    with pytest.raises(ValueError, match=message):
        spa_eng.load_data(**arguments)


def test_references_keep_order_and_drop_duplicates():
    pairs = [("b", "1"), ("a", "2"), ("b", "3"), ("b", "1")]
    references = spa_eng.references(pairs)
    assert references == {"b": ["1", "3"], "a": ["2"]}
    assert list(references) == ["b", "a"]


@pytest.mark.slow
def test_datasets_are_imported_on_first_use_and_without_tensorflow():
    program = (
        "import sys; from keras_transformer import datasets; names = dir(datasets); "
        "datasets.spa_eng, datasets.multi30k; "
        "sys.exit('tensorflow' in sys.modules or not {'multi30k', 'phrasebook', 'spa_eng'} < {*names})"
    )
    root = pathlib.Path(__file__).resolve().parents[2]
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", program], cwd=root, env=environment, check=False)
    assert done.returncode == 0
