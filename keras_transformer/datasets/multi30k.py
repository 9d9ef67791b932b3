"""Multi30k: 31,014 image captions in English, German and French."""

import gzip

from keras_transformer.datasets import files

_COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
ADDRESS = f"https://raw.githubusercontent.com/multi30k/dataset/{_COMMIT}/data/task1/raw"
LANGUAGES = ("de", "en", "fr")
_SHA256 = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.fr.gz": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
}


def load_data(
    source: str = "en", target: str = "de"
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[tuple[str, str]]]:
    """Load the raw captions of Multi30k: cased, not tokenised.

    The files are read from the folder named by the environment variable `KERAS_TRANSFORMER_DATA`
    (`multi30k/train.en.gz` and so on) or, if it is not set, downloaded with `keras.utils.get_file`. For research and
    education; not for commercial use.

    Args:
        source: the language of the sources, "en", "de" or "fr".
        target: the language of the targets, different from `source`.

    Returns:
        `(train, validation, test)`, lists of 29,000, 1,014 and 1,000 (source, target) pairs; the test set is
        `test_2016_flickr`.

    Raises:
        FileNotFoundError: if `KERAS_TRANSFORMER_DATA` is set and a file does not exist.
        ValueError: if a language is unknown, the two are the same, or the SHA-256 of a file does not match.

    Example:
        >>> train, validation, test = load_data("en", "fr")  # doctest: +SKIP

    References:
        Elliott et al., "Multi30K: Multilingual English-German Image Descriptions",
        https://aclanthology.org/W16-3210.
    """
    for argument, language in (("source", source), ("target", target)):
        if language not in LANGUAGES:
            raise ValueError(
                f"`{argument}` must be one of the languages {LANGUAGES}. Received: {argument}={language!r}"
            )
    if source == target:
        raise ValueError(
            f"`target` must differ from `source`. Received: source={source!r}, target={target!r}"
        )
    train, validation, test = (
        _pairs(split, source, target) for split in ("train", "val", "test_2016_flickr")
    )
    return train, validation, test


def _pairs(split: str, source: str, target: str) -> list[tuple[str, str]]:
    return list(zip(_lines(f"{split}.{source}.gz"), _lines(f"{split}.{target}.gz"), strict=True))


def _lines(name: str) -> list[str]:
    content = files.content("multi30k", name, ADDRESS, _SHA256[name])
    # str.splitlines would also split at U+2028 and similar characters.
    return gzip.decompress(content).decode().removesuffix("\n").split("\n")
