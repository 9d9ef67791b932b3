"""Tokenising and loading of training data: rows and tokens per second, in memory and mapped from files.

Pairs of spa-eng are tokenised by SentencePiece with 8,000 pieces, and batches of `data.translation_pairs` are read
without a model; training at 100,000 tokens per second is the consumption that loading must not limit. Tokens are those
of sources and targets with their end ids, without padding. Rates are given by wall time and by processor time, as
other programs disturb the first.
"""

import argparse
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import measuring
import numpy as np

CONSUMPTION = 100_000  # tokens per second
VOCABULARY = 8000


def timed(function: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return a function's result, and the seconds of wall and processor time that it takes."""
    wall, processor = time.perf_counter(), time.process_time()
    result = function()
    return result, {
        "wall_seconds": time.perf_counter() - wall,
        "processor_seconds": time.process_time() - processor,
    }


def with_rates(seconds: dict[str, float], **counts: int) -> dict[str, float]:
    """Add the rates of `counts` by wall and processor time."""
    rates = {
        f"{name}_per_{kind}_second": count / seconds[f"{kind}_seconds"]
        for name, count in counts.items()
        for kind in ("wall", "processor")
    }
    return {**counts, **seconds, **rates}


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


def measure(path: pathlib.Path, folder: str, batch_size: int, rounds: int) -> dict[str, Any]:
    """Measure reading, tokenising and loading of a file of pairs."""
    from keras_transformer import data
    from keras_transformer.text import SentencePieceTokenizer

    pairs = data.read_examples(path, (0, 1), format="tsv")
    tokenizer = SentencePieceTokenizer.train([text for pair in pairs[::4] for text in pair], VOCABULARY)
    options = {"columns": (0, 1), "max_length": 128}
    data.translation_pairs(pairs[:1000], tokenizer)  # traces the tokenizer

    def make(cache_dir: str | None) -> Any:
        return data.translation_pairs(path, tokenizer, batch_size, cache_dir=cache_dir, **options)

    found: dict[str, Any] = {"pairs": len(pairs)}
    del pairs
    datasets, before = {}, anonymous_mib()
    for name, cache_dir in (("in memory", None), ("mapped", folder)):
        datasets[name], seconds = timed(lambda cache_dir=cache_dir: make(cache_dir))
        found[f"tokenising, {name}"] = with_rates(seconds, rows=found["pairs"])
        found[f"anonymous MiB after tokenising, {name}"] = anonymous_mib() - before
        before = anonymous_mib()
    found["second call, mapped"] = timed(lambda: make(folder))[1]
    for dataset in datasets.values():
        counts = read(dataset)  # the first epoch also traces
    for name in ("tokenising, in memory", "tokenising, mapped"):
        seconds = {key: found[name][key] for key in ("wall_seconds", "processor_seconds")}
        found[name] |= with_rates(seconds, tokens=counts["tokens"])
    loading: dict[str, list[dict[str, float]]] = {name: [] for name in datasets}
    for _ in range(rounds):
        for name, dataset in datasets.items():
            counts, seconds = timed(lambda dataset=dataset: read(dataset))
            loading[name].append(with_rates(seconds, **counts))
    for name, measured in loading.items():
        found[f"loading, {name}"] = {
            key: measuring.median(each[key] for each in measured) for key in measured[0]
        }
        rate = found[f"loading, {name}"]["tokens_per_processor_second"]
        found[f"loading, {name}"]["share_of_a_core_at_consumption"] = CONSUMPTION / rate
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        default=os.environ.get("KERAS_TRANSFORMER_DATA"),
        help="folder with spa-eng/spa.txt.gz (default: $KERAS_TRANSFORMER_DATA)",
    )
    parser.add_argument("--batch-size", type=int, default=64, help="(default: 64)")
    parser.add_argument("--rounds", type=int, default=3, help="epochs to read in turn (default: 3)")
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("--data or KERAS_TRANSFORMER_DATA must name the folder of the data")
    path = pathlib.Path(options.data) / "spa-eng" / "spa.txt.gz"
    with tempfile.TemporaryDirectory() as folder:
        found = measure(path, folder, options.batch_size, options.rounds)
    rows = [
        {
            "": name,
            "tokens/s": f"{each['tokens_per_wall_second']:,.0f}",
            "tokens per processor second": f"{each['tokens_per_processor_second']:,.0f}",
        }
        for name, each in found.items()
        if isinstance(each, dict) and "tokens" in each
    ]
    print(measuring.table(rows))
    print(measuring.write_result("data", {**measuring.machine(), "consumption": CONSUMPTION, **found}))


if __name__ == "__main__":
    main()
