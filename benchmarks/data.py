"""Tokenising and loading of training data: rows and tokens per second, in memory and mapped from files.

Pairs of spa-eng are tokenised by SentencePiece with 8,000 pieces, and batches of `data.translation_pairs` are read
without a model. Loading must not limit training at 100,000 tokens per second. Source and target tokens are counted,
with end ids and without padding. Rates are measured in wall time and in processor time, because other programs affect
wall time.
"""

import argparse
import itertools
import os
import pathlib
from typing import Any

import numpy as np
import runner

CONSUMPTION = 100_000  # tokens per second
VOCABULARY = 8000


def read(dataset: Any) -> dict[str, int]:
    """Read an epoch, and count its batches and tokens."""
    batches = tokens = 0
    for inputs, labels in dataset:
        batches += 1
        tokens += int(np.count_nonzero(inputs["source_ids"])) + int(np.count_nonzero(labels))
    return {"batches": batches, "tokens": tokens}


def anonymous_mib() -> float:
    """Return the resident memory of this process that is not mapped from files."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


def setup(folder: pathlib.Path, options: argparse.Namespace) -> None:
    """Train the tokenizer, and count the pairs."""
    from keras_transformer import data
    from keras_transformer.text import SentencePieceTokenizer

    pairs = data.read_examples(source(options), (0, 1), format="tsv")
    tokenizer = SentencePieceTokenizer.train([text for pair in pairs[::4] for text in pair], VOCABULARY)
    (folder / "tokenizer").mkdir()
    tokenizer.save(folder / "tokenizer")
    (folder / "pairs").write_text(str(len(pairs)))


def source(options: argparse.Namespace) -> pathlib.Path:
    """Return the file of pairs."""
    return options.data / "spa-eng" / "spa.txt.gz"


def prepare(case: dict[str, Any], context: runner.Context, mapped: bool) -> runner.Run:
    """Prepare tokenising of the file, finding the results of earlier tokenising, or reading an epoch."""
    from keras_transformer import data, text

    tokenizer = text.load(context.folder / "tokenizer")
    data.translation_pairs([("one", "uno")] * 1000, tokenizer)  # traces the tokenizer
    numbers = itertools.count()

    def make(name: str) -> Any:
        return data.translation_pairs(
            source(context.options),
            tokenizer,
            context.options.batch_size,
            columns=(0, 1),
            max_length=128,
            cache_dir=str(context.folder / f"{name}, {case['does']}") if mapped else None,
        )

    if case["does"] == "tokenising":
        tokens, pairs = read(make("first"))["tokens"], int((context.folder / "pairs").read_text())

        def tokenise() -> runner.Figures:
            before = anonymous_mib()
            dataset = make(str(next(numbers)))  # alive while its memory is measured
            added, batches = anonymous_mib() - before, int(dataset.cardinality())
            return {"units": tokens, "anonymous_mib": added, "pairs": pairs, "batches": batches}

        return tokenise
    dataset = make("first")
    if case["does"] == "finding":
        return lambda: {"batches": int(make("first").cardinality())}

    def load() -> runner.Figures:
        counts = read(dataset)
        return {"units": counts["tokens"], "batches": counts["batches"]}

    return load


def derive(case: dict[str, Any], measured: dict[str, Any]) -> None:
    """Add further rates, and the fraction of a core that loading needs during training."""
    for figures in measured["contenders"].values():
        for name in {"pairs", "batches"} & figures.keys():
            figures[f"{name}_per_second"] = figures[name] / figures["seconds"]
            figures[f"{name}_per_processor_second"] = figures[name] / figures["processor_seconds"]
        if case["does"] == "loading":
            figures["share_of_a_core_at_consumption"] = CONSUMPTION / figures["per_processor_second"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the data and the size of batches."""
    folder = os.environ.get("KERAS_TRANSFORMER_DATA", ".")
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        default=folder,
        help="folder with spa-eng/spa.txt.gz (default: $KERAS_TRANSFORMER_DATA)",
    )
    parser.add_argument("--batch-size", type=int, default=64, help="(default: %(default)s)")


BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "tokens",
    {does: {"does": does, "consumption": CONSUMPTION} for does in ("tokenising", "finding", "loading")},
    {
        "in memory": lambda case, context: prepare(case, context, mapped=False),
        "mapped": lambda case, context: prepare(case, context, mapped=True),
    },
    applies=lambda case, contender: contender == "mapped" or case["does"] != "finding",
    seconds=0.0,
    rounds=3,
    setup=setup,
    derive=derive,
    columns={"share_of_a_core_at_consumption": ".0%"},
    add_options=add_options,
)

if __name__ == "__main__":
    BENCHMARK.main()
