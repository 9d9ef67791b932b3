"""Spanish–English sentence pairs of Tatoeba: 118,964 pairs, split so that no sentence is in two of the sets."""

import gzip
import hashlib
import pathlib
import zipfile
import zlib
from collections.abc import Iterable

from keras_transformer.datasets import files
from keras_transformer_options.arguments import check_one_of, check_positive_integer

ADDRESS = "https://storage.googleapis.com/download.tensorflow.org/data/spa-eng.zip"
DIRECTIONS = ("es-en", "en-es")
_MEMBER = "spa-eng/spa.txt"
_SHA256 = "6ec60e212f812ee3430f7568ea6f33b6fb080e32193c5952e8da0ee8ba45574c"

Pairs = list[tuple[str, str]]


def load_data(
    direction: str = "es-en", seed: int = 0, *, validation: int = 2000, test: int = 3000
) -> tuple[Pairs, Pairs, Pairs]:
    """Load the pairs, split by sentence in both languages.

    The file has 102,904 distinct English sentences, many with several translations: a random split of the pairs would
    leak 18 % of the test sources into the training set. Here all pairs of an English sentence are in the same set, and
    pairs whose Spanish sentence is in a later set (of train, validation, test) are dropped: with the default arguments
    643 of 113,180 training pairs and 6 of 2,319 validation pairs. The sets are the same for both directions.

    The file is read from the folder of the environment variable `KERAS_TRANSFORMER_DATA` (`spa-eng/spa.txt.gz`) or,
    if it is not set, downloaded with `keras.utils.get_file`. Licence CC-BY 2.0; attribution: www.manythings.org/anki
    and tatoeba.org.

    Args:
        direction: "es-en" for (Spanish, English) pairs, "en-es" for (English, Spanish).
        seed: the seed of the split.
        validation: the number of distinct English sentences of the validation set, before pairs are dropped.
        test: the number of distinct English sentences of the test set.

    Returns:
        `(train, validation, test)`, lists of (source, target) pairs: with the default arguments 112,537,
        2,313 and 3,465. A source with several translations has a pair for each; see `references`.

    Raises:
        FileNotFoundError: if `KERAS_TRANSFORMER_DATA` is set and the file does not exist.
        ValueError: if an argument has an invalid value, or the SHA-256 of the file does not match.

    Example:
        >>> train, validation, test = load_data("en-es")  # doctest: +SKIP
    """
    check_one_of(DIRECTIONS, direction=direction)
    check_positive_integer(validation=validation, test=test)
    splits = _split(_english_spanish(), seed, validation, test)
    if direction == "en-es":
        return splits
    train, validating, testing = ([(spanish, english) for english, spanish in pairs] for pairs in splits)
    return train, validating, testing


def references(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Collect all translations of each source, for evaluation with several references.

    Returns:
        The distinct targets of each distinct source, in the order of first occurrence.

    Example:
        >>> references([("hola", "hello"), ("hola", "hi"), ("sí", "yes")])
        {'hola': ['hello', 'hi'], 'sí': ['yes']}
    """
    gathered: dict[str, dict[str, None]] = {}
    for source, target in pairs:
        gathered.setdefault(source, {})[target] = None
    return {source: list(targets) for source, targets in gathered.items()}


def _split(pairs: Pairs, seed: int, validation: int, test: int) -> tuple[Pairs, Pairs, Pairs]:
    # The order depends only on the sentences and the seed, on every machine and Python version.
    ordered = sorted(
        {english for english, _ in pairs},
        key=lambda english: hashlib.sha256(f"{seed}\0{english}".encode()).digest(),
    )
    if validation + test >= len(ordered):
        raise ValueError(
            f"`validation` + `test` must be less than the number of distinct English sentences, {len(ordered)}. "
            f"Received: validation={validation}, test={test}"
        )
    in_test, in_validation = set(ordered[:test]), set(ordered[test : test + validation])
    testing = [pair for pair in pairs if pair[0] in in_test]
    validating = [pair for pair in pairs if pair[0] in in_validation]
    training = [pair for pair in pairs if pair[0] not in in_test and pair[0] not in in_validation]
    tested = {spanish for _, spanish in testing}
    held_out = tested | {spanish for _, spanish in validating}
    validating = [pair for pair in validating if pair[1] not in tested]
    return [pair for pair in training if pair[1] not in held_out], validating, testing


def _english_spanish() -> Pairs:
    path = files.local_file("spa-eng", "spa.txt.gz")
    if path is not None:
        content = _decompressed(path)
        files.check_sha256(content, _SHA256, f"{path}, decompressed,")
    else:
        path = files.download("spa-eng", "spa-eng.zip", ADDRESS)
        try:
            content = _member(path)
            files.check_sha256(content, _SHA256, f"{path} (from {ADDRESS}), member {_MEMBER},")
        except ValueError:
            path.unlink()
            raise
    english_spanish = []
    for line in content.decode().removesuffix("\n").split("\n"):
        english, spanish = line.split("\t")
        english_spanish.append((english, spanish))
    return english_spanish


def _decompressed(path: pathlib.Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a gzip file. Received: {error}") from None


def _member(path: pathlib.Path) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(_MEMBER)
    except (zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise ValueError(
            f"{path} (from {ADDRESS}) must be a ZIP archive with {_MEMBER}. Received: {error}"
        ) from None
