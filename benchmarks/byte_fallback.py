"""SentencePiece with and without byte fallback: tokens per character and round trips, in domain and out of domain.

Unigram tokenizers are trained on the English and Spanish sentences of spa-eng and on Don Quijote. Each is evaluated on
the Spanish texts of both corpora, inside a TensorFlow graph. `--help` lists the options.
"""

import gzip
import itertools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import measuring

BATCH = 1000


def corpora(folder: pathlib.Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the training texts, and the distinct Spanish texts of each corpus for evaluation."""
    pairs = gzip.decompress((folder / "spa-eng" / "spa.txt.gz").read_bytes()).decode().splitlines()
    english, spanish = zip(*(pair.split("\t")[:2] for pair in pairs), strict=True)
    lines = [line for line in (folder / "quijote" / "quijote.txt").read_text().split("\n") if line]
    trained = {"spa-eng": [*english, *spanish], "quijote": lines}
    return trained, {"spa-eng": list(dict.fromkeys(spanish)), "quijote": list(dict.fromkeys(lines))}


def read(tokenizer: Any, texts: list[str]) -> dict[str, float]:
    """Return tokens per character, the percentage of unknown tokens, and the texts that do not round-trip."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def round_trip(batch: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        ids = tokenizer.tokenize(batch)
        return ids, tokenizer.detokenize(ids)

    tokens = unknown = wrong = 0
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        ids, decoded = round_trip(tf.constant(batch))
        tokens += len(ids.values)
        unknown += int(tf.reduce_sum(tf.cast(ids.values == tokenizer.unknown_id, tf.int32)))
        wrong += sum(text.decode() != line for text, line in zip(decoded.numpy(), batch, strict=True))
    characters = sum(map(len, texts))
    return {
        "texts": len(texts),
        "tokens_per_character": tokens / characters,
        "unknown_percent": 100 * unknown / tokens,
        "texts_that_differ": wrong,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and evaluate tokenizers, print and write the results."""
    parser = measuring.parser(__doc__, "byte_fallback")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000, 8000], help="(default: 2000 8000)")
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        default=pathlib.Path(os.environ.get("KERAS_TRANSFORMER_DATA", ".")),
        help="folder of spa-eng and quijote (default: KERAS_TRANSFORMER_DATA)",
    )
    options = parser.parse_args(arguments)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    from keras_transformer import text

    trained, tested = corpora(options.data)
    rows: list[dict[str, Any]] = []
    for (name, texts), size, fallback in itertools.product(trained.items(), options.sizes, (False, True)):
        tokenizer = text.SentencePieceTokenizer.train(texts, size, byte_fallback=fallback)
        for other, lines in tested.items():
            setting = {"trained_on": name, "vocabulary_size": size, "byte_fallback": fallback, "read": other}
            rows.append({**setting, **read(tokenizer, lines)})
            result = {"machine": measuring.machine(), "results": rows}
            measuring.write_result(options.name, result, options.output)
    print(measuring.table(rows))


if __name__ == "__main__":
    main()
