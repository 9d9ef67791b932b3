"""Compare the ids and the speed of tokenizers with the `tokenizers` library.

WordPiece, cased and uncased, and byte-level BPE, with and without a leading space, each with and without special tokens
in texts, are compared on lines of real text and on as many lines of characters from all over Unicode. The ids are
computed here in a `tf.function`, and by the library in one call for all lines, with all threads and with one. Texts
decoded from ids are compared, too. Needs `pip install tokenizers` and KERAS_TRANSFORMER_DATA.
"""

import functools
import gzip
import itertools
import os
import pathlib
import random
import sys
from collections.abc import Callable
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import measuring
import references
import tensorflow as tf
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from keras_transformer import text
from keras_transformer.text.tokenizers import byte_pair, word_piece
from keras_transformer.text.training import pair_merges

DATA = pathlib.Path(
    os.environ.get("KERAS_TRANSFORMER_DATA", pathlib.Path(__file__).parents[2] / "shared" / "data")
)
BATCH = 1000
REPEATS = 3
# Ranges of characters that are hard to tokenize; each range is equally likely.
RANGES = """
0-20 20-7e 7f-ff 100-24f 2b0-36f 370-3ff 400-4ff 590-5ff 600-6ff 900-97f 966-96f e00-e7f 10a0-11ff 13a0-13ff 1ab0-1aff
1dc0-1eff 1f00-1fff 2000-206f 2070-209f 20a0-214f 2150-218f 2600-27bf 2c00-2dff 2e80-303f 3040-30ff 3400-4dbf 4e00-9fff
a640-a69f a720-abff ac00-d7a3 e000-e0ff f900-faff fb00-fdff fe00-ffff 10000-107ff 10d00-111ff 11300-119ff 16a00-16fff
1d000-1d7ff 1e000-1e95f 1f000-1faff 20000-2ceaf 2f800-2fa1f e0000-e01ff 10ff00-10ffff 0-10ffff
"""
WORDS = """
's 't 're 've 'm 'll 'd 'S ' '' 'r 'l don't we'll I'M ## ##a [ ] [UNK [UNK] [CLS] [SEP] [MASK] [PAD] <s> </s> <pad>
<unk> 3.14 é ñ İ ß Σ ς ﬁ Å 각 中文 日本語 ไทย العربية שלום ٣٤ ४२ ½ ² Ⅷ １２ 👍🏽 🇪🇸
"""
# Spaces and line ends of many kinds, control characters, marks in and out of order, joined emoji, long words.
OTHERS = (
    " |  |   | '|\t's|\t|\n|\r\n|\xa0|\u3000|\u2028|\u200b|\u200d|\ufeff|\x85|\x1c|\0|\u200e|\u200f|\u202e|\ufffd|"
    "e\u0301|\u0301|\u0327|\u0334|\u0345|\u302e|\U0001d165|\u0300\u0315\u0300|\U0001e944\u0334|\u0f71\u0f72|"
    f"\u1100\u1161\u11a8|👨\u200d👩\u200d👧|🏳\ufe0f\u200d🌈|{'a' * 99}|{'b' * 100}|{'c' * 101}"
)


def real_lines(number: int) -> list[str]:
    """Return interleaved lines of several datasets, evenly spaced within each."""

    def lines(name: str) -> list[str]:
        path = DATA / name
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return [line for line in content.decode().split("\n") if line.strip()]

    names = ["spa-eng/spa.txt.gz", "quijote/quijote.txt", "sst2/stsa.binary.train"]
    names += [f"multi30k/train.{language}.gz" for language in ("de", "en", "fr")]
    sets = [lines(name) for name in names]
    each = -(-number // len(sets))
    return [line for every in sets for line in every[:: max(1, len(every) // each)][:each]][:number]


def fuzzed_lines(number: int, seed: int = 0) -> list[str]:
    """Return random strings of several character ranges, words, edge cases and repetitions."""
    chance = random.Random(seed)
    known = [[int(end, 16) for end in each.split("-")] for each in RANGES.split()]
    tricks = [*WORDS.split(), *OTHERS.split("|")]

    def part(ranges: list[list[int]]) -> str:
        kind = chance.random()
        if kind < 0.25:
            return chance.choice(tricks)
        if kind < 0.35:
            return chance.choice("abcdefghijklmnopqrstuvwxyzABC0123456789 .,!?-_") * chance.choice(
                [1, 1, 2, 3, 7]
            )
        if kind < 0.36:
            return chance.choice([*tricks, "x"]) * chance.randint(20, 60)
        first, last = chance.choice(ranges)
        codes = (chance.randint(first, last) for _ in range(chance.randint(1, 8)))
        return "".join(chr(code) for code in codes if not 0xD800 <= code <= 0xDFFF)

    def line() -> str:
        ranges = chance.sample(known, 4)
        return "".join(part(ranges) for _ in range(chance.randint(0, 12)))

    return [line() for _ in range(number)]


def characters(tokenizer: Any, lines: list[str]) -> list[str]:
    """Return the characters of lines that the vocabulary lacks, because unknown ids would hide differences."""
    words = pair_merges.count_words(lines, tokenizer._words)
    pieces = {piece for word in words for each in word for piece in (each, f"##{each}")}
    return sorted(pieces - set(tokenizer.vocabulary))


def word_piece_pair(corpora: dict[str, list[str]], settings: dict[str, bool]) -> tuple[Any, Any]:
    """Return a WordPiece tokenizer of this package, and of the library with the same vocabulary."""
    trained = text.WordPieceTokenizer.train(corpora["real"], 8000, **settings)
    ours = text.WordPieceTokenizer(
        [*trained.vocabulary, *characters(trained, corpora["fuzzed"])], clean_up=True, **settings
    )
    reference = tokenizers.Tokenizer(
        models.WordPiece({p: i for i, p in enumerate(ours.vocabulary)}, unk_token="[UNK]")
    )
    reference.normalizer = normalizers.BertNormalizer(lowercase=settings["lowercase"])
    reference.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    reference.decoder = decoders.WordPiece()
    if settings["special_tokens_in_text"]:
        reference.add_special_tokens(list(word_piece.SPECIAL_TOKENS.values()))
    return ours, reference


def byte_pair_pair(corpora: dict[str, list[str]], settings: dict[str, bool]) -> tuple[Any, Any]:
    """Return a byte-level tokenizer of this package, and of the library with the same vocabulary."""
    ours = text.BytePairTokenizer.train(corpora["real"], 8000, **settings)
    vocabulary = {piece: id_ for id_, piece in enumerate(ours.vocabulary)}
    reference = tokenizers.Tokenizer(models.BPE(vocabulary, list(ours.merges)))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings["add_prefix_space"])
    reference.decoder = decoders.ByteLevel()
    if settings["special_tokens_in_text"]:
        reference.add_special_tokens(list(byte_pair.SPECIAL_TOKENS.values()))
    return ours, reference


def batches(lines: list[str]) -> list[list[str]]:
    """Split lines into batches."""
    return [lines[start : start + BATCH] for start in range(0, len(lines), BATCH)]


def lines_a_second(encode: Callable[[], Any], number: int) -> float:
    """Return the number of lines per second in the fastest of several runs."""
    return round(number / min(measuring.seconds(encode) for _ in range(REPEATS)))


def compare(tokenizer: Any, reference: Any, corpora: dict[str, list[str]]) -> dict[str, Any]:
    """Return the number of lines with different ids, and lines per second."""
    encode = tf.function(tokenizer.tokenize, [tf.TensorSpec([None], tf.string)], autograph=False)
    result: dict[str, Any] = {}
    for name, lines in corpora.items():
        split = batches(lines)
        tensors = [tf.constant(batch) for batch in split]
        results = [row for batch in tensors for row in encode(batch).to_list()]
        expected = [encoding.ids for encoding in reference.encode_batch(lines)]
        different = [line for line, a, b in zip(lines, results, expected, strict=True) if a != b]
        # Random ids give invalid bytes, which both decoders must replace in the same way.
        chance = random.Random(1)
        first = max(tokenizer.special_token_ids.values()) + 1
        ids = [[chance.randrange(first, tokenizer.vocabulary_size) for _ in range(9)] for _ in lines[:2000]]
        texts = [each.decode() for each in tokenizer.detokenize(ids).numpy()]
        result[name] = {
            "lines": len(lines),
            "lines_with_other_ids": len(different),
            "examples": different[:5],
            "ids": sum(map(len, results)),
            "unknown_ids": sum(row.count(tokenizer.unknown_id) for row in results),
            "texts_of_random_ids_that_differ": sum(
                a != b for a, b in zip(texts, reference.decode_batch(ids), strict=True)
            ),
            "lines_per_second": lines_a_second(
                lambda tensors=tensors: [encode(batch) for batch in tensors], len(lines)
            ),
            "lines_per_second_tokenizers": lines_a_second(
                lambda split=split: [reference.encode_batch_fast(batch) for batch in split], len(lines)
            ),
            "lines_per_second_tokenizers_one_by_one": lines_a_second(
                lambda lines=lines: [reference.encode(line) for line in lines], len(lines)
            ),
        }
    return result


@functools.cache
def corpora(count: int) -> dict[str, list[str]]:
    """Return real and fuzzed lines."""
    return {"real": real_lines(count), "fuzzed": fuzzed_lines(count)}


def compare_case(run: references.Run) -> references.Figures:
    """Compare one tokenizer on both kinds of lines."""
    lines = corpora(run.options.lines)
    load = os.getloadavg()[0]
    ours, reference = run.case["make"](lines, run.case["settings"])
    compared = compare(ours, reference, lines)
    different = {
        f"{kind} lines with equal ids": [counts["lines"] - counts["lines_with_other_ids"], counts["lines"]]
        for kind, counts in compared.items()
    }
    # Other processes make both slower.
    facts = {"vocabulary": ours.vocabulary_size, "load_average": [load, os.getloadavg()[0]]}
    return {**run.case["settings"], **facts, **compared, **different}


def cases() -> dict[str, dict[str, Any]]:
    """Return both algorithms with all settings."""
    algorithms = {
        "WordPiece": (word_piece_pair, "lowercase"),
        "byte-level BPE": (byte_pair_pair, "add_prefix_space"),
    }
    results = {}
    for name, (make, option) in algorithms.items():
        for value, special in itertools.product((True, False), (False, True)):
            settings = {option: value, "special_tokens_in_text": special}
            results[f"{name}, {', '.join(f'{key}={value}' for key, value in settings.items())}"] = {
                "make": make,
                "settings": settings,
            }
    return results


REFERENCE = references.Reference(
    __file__,
    __doc__,
    cases(),
    compare_case,
    equal=("real lines with equal ids", "fuzzed lines with equal ids"),
    packages=("tokenizers",),
    add_options=lambda parser: parser.add_argument("--lines", type=int, default=10_000),
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
