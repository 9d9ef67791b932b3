import gzip
import hashlib

import pytest

from keras_transformer import datasets
from keras_transformer.datasets import multi30k

SPLITS = {"train": 5, "val": 3, "test_2016_flickr": 2}


@pytest.fixture
def published(tmp_path, monkeypatch, download_cache):
    """Serve small files from a local address."""
    folder = tmp_path / "published"
    folder.mkdir()
    hashes = {}
    for split, count in SPLITS.items():
        for language in ("de", "en", "fr"):
            content = gzip.compress(
                "".join(f"{split} {language} {i}\u2028.\n" for i in range(count)).encode()
            )
            (folder / f"{split}.{language}.gz").write_bytes(content)
            hashes[f"{split}.{language}.gz"] = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(multi30k, "ADDRESS", folder.as_uri())
    monkeypatch.setattr(multi30k, "_SHA256", hashes)
    return folder


@pytest.mark.parametrize("languages", [("en", "de"), ("fr", "en")])
def test_the_published_files_are_read(real_data, monkeypatch, languages):
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", str(real_data))
    train, validation, test = multi30k.load_data(*languages)
    assert (len(train), len(validation), len(test)) == (29_000, 1_014, 1_000)
    first = {
        "en": "Two young, White males are outside near many bushes.",
        "de": "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
        "fr": "Deux jeunes hommes blancs sont dehors près de buissons.",
    }
    assert train[0] == tuple(first[language] for language in languages)
    assert all(text and "\n" not in text for pair in train + validation + test for text in pair)


def test_the_files_are_downloaded(published):
    train, validation, test = multi30k.load_data("en", "fr")
    assert train[1] == ("train en 1\u2028.", "train fr 1\u2028.")
    assert [len(part) for part in (train, validation, test)] == list(SPLITS.values())
    for file in published.iterdir():
        file.unlink()
    assert multi30k.load_data("en", "fr") == (train, validation, test)


def test_a_download_with_the_wrong_hash_is_not_kept(published, download_cache):
    file = published / "val.de.gz"
    file.write_bytes(gzip.compress(b"tampered\n"))
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    expected = multi30k._SHA256["val.de.gz"]
    with pytest.raises(ValueError, match=rf"val.de.gz \(from file:.*sha256 {expected}. Received: {found}"):
        multi30k.load_data()
    names = {path.name for path in download_cache.rglob("*.gz")}
    assert names == {"train.en.gz", "train.de.gz", "val.en.gz"}


def test_a_damaged_file_in_the_cache_is_downloaded_again(published, download_cache):
    expected = multi30k.load_data()
    cached = next(download_cache.rglob("train.de.gz"))
    cached.write_bytes(b"half a file")
    assert multi30k.load_data() == expected


def test_a_wrong_local_file_is_rejected_and_kept(published, tmp_path, monkeypatch):
    published.rename(tmp_path / "multi30k")
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", str(tmp_path))
    assert len(multi30k.load_data()[0]) == 5
    file = tmp_path / "multi30k" / "train.en.gz"
    file.write_bytes(b"wrong")
    found = hashlib.sha256(b"wrong").hexdigest()
    with pytest.raises(ValueError, match=rf"train.en.gz must have the sha256 \w+. Received: {found}"):
        multi30k.load_data()
    assert file.read_bytes() == b"wrong"
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"train.en.gz must exist"):
        multi30k.load_data()


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (("es", "de"), "`source` must be one of the languages .*Received: source='es'"),
        (("en", "cs"), "`target` must be one of the languages .*Received: target='cs'"),
        (("en", "en"), "`target` must differ from .*Received: source='en', target='en'"),
    ],
)
def test_unknown_languages_are_rejected(languages, message):
    with pytest.raises(ValueError, match=message):
        multi30k.load_data(*languages)


def test_unknown_datasets_raise_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'spa_fra'"):
        _ = datasets.spa_fra
