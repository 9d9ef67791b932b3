"""Real tokens per second of training on spa-eng: ours, KerasHub's and PyTorch's, each with batches that suit it.

Padding does not count: the speed is the number of source and target ids of a contender's batches, without padding, by
the time of their steps. The model is that of `train_step.py`; `--help` lists the options.
"""

import argparse
import collections
import dataclasses
import functools
import os
import pathlib
import pickle
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import measuring
import numpy as np
import train_step

Batch = dict[str, np.ndarray]
"""source_ids, target_ids and labels, and for packed rows segments and positions."""

OURS, HUB, TORCH, PAD = train_step.OURS, train_step.HUB, train_step.TORCH, train_step.PAD
MAX_LENGTH = 128


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The pairs, and the ids of each side with end ids."""

    pairs: list[tuple[str, str]]
    tokenizer: Any
    sources: list[list[int]]
    targets: list[list[int]]

    @classmethod
    def load(cls, vocabulary_size: int) -> "Corpus":
        """Load the training pairs of spa-eng, and train a tokenizer on them."""
        import keras_transformer as kt

        pairs, _, _ = kt.datasets.spa_eng.load_data()
        texts = [text for pair in pairs for text in pair]
        tokenizer = kt.text.SentencePieceTokenizer.train(texts, vocabulary_size)
        ids = [[*row, tokenizer.end_id] for row in tokenizer.tokenize(texts).to_list()]
        return cls(pairs, tokenizer, ids[::2], ids[1::2])

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """The lengths of source and target, integers (n, 2)."""
        return np.array([[len(row) for row in side] for side in (self.sources, self.targets)]).T

    def batch(self, rows: np.ndarray, source_length: int, target_length: int) -> Batch:
        """Return a batch of pairs by their indices, padded to the lengths."""
        batch = {
            name: np.full((len(rows), length), PAD, np.int32)
            for name, length in (
                ("source_ids", source_length), ("target_ids", target_length), ("labels", target_length)
            )
        }  # fmt: skip
        for place, row in enumerate(rows):
            source, labels = self.sources[row], self.targets[row]
            batch["source_ids"][place, : len(source)] = source
            batch["labels"][place, : len(labels)] = labels
            batch["target_ids"][place, : len(labels)] = [self.tokenizer.start_id, *labels[:-1]]
        return batch


def ours(corpus: Corpus, tokens: int, **options: Any) -> list[Batch]:
    """Batches of `data.translation_pairs`."""
    from keras_transformer.data import translation_pairs

    dataset = translation_pairs(
        corpus.pairs, corpus.tokenizer, batch_tokens=tokens, **{"max_length": MAX_LENGTH, **options}
    )
    return [
        {**{name: ids.numpy() for name, ids in inputs.items()}, "labels": labels.numpy()}
        for inputs, labels in dataset
    ]


def equal_lengths(corpus: Corpus, tokens: int) -> list[Batch]:
    """Batches of four lengths, the same for source and target."""
    from keras_transformer.data.shape_search import choose_lengths

    return ours(corpus, tokens, length_buckets=choose_lengths(corpus.lengths.max(axis=1), 4, MAX_LENGTH))


def by_sequence_length(corpus: Corpus, tokens: int, multiple: int, to_boundary: bool = False) -> list[Batch]:
    """Batches as of `tf.data.Dataset.bucket_by_sequence_length` with multiples as boundaries, of shuffled pairs.

    They are padded to the longest row of each side, or with `to_boundary` to the boundary, for XLA.
    """
    boundaries = -(-corpus.lengths.max(axis=1) // multiple) * multiple
    batches, order = [], np.random.default_rng(0).permutation(len(boundaries))
    for boundary in np.unique(boundaries):
        rows = order[boundaries[order] == boundary]
        size = max(1, tokens // boundary)
        for first in range(0, len(rows), size):
            chosen = rows[first : first + size]
            shape = (boundary, boundary) if to_boundary else corpus.lengths[chosen].max(axis=0)
            batches.append(corpus.batch(chosen, *shape))
    return batches


def by_sorting(corpus: Corpus, tokens: int) -> list[Batch]:
    """Batches of consecutive pairs in the order of their lengths, as in fairseq, of at most `tokens` a side."""
    batches, first, order = [], 0, np.lexsort(corpus.lengths.T)
    lengths = corpus.lengths.max(axis=1)[order]
    while first < len(order):
        widest = np.maximum.accumulate(lengths[first : first + tokens])
        size = max(1, int(np.sum(widest * np.arange(1, len(widest) + 1) <= tokens)))
        rows = order[first : first + size]
        batches.append(corpus.batch(rows, *corpus.lengths[rows].max(axis=0)))
        first += size
    return batches


@dataclasses.dataclass(frozen=True)
class Contender:
    """A library, its batches for a corpus and a number of tokens, and whether XLA compiles it (None: it has none)."""

    library: str
    batches: Callable[[Corpus, int], list[Batch]]
    jit: bool | None = False


CONTENDERS = {
    f"{OURS}, 4 lengths": Contender("ours", equal_lengths),
    OURS: Contender("ours", ours),
    f"{OURS}, 16 shapes": Contender("ours", functools.partial(ours, length_buckets=16)),
    f"{OURS}, 64 shapes": Contender("ours", functools.partial(ours, length_buckets=64, pad_to_multiple_of=1)),
    f"{OURS}, packed": Contender("ours", functools.partial(ours, packed=True, max_length=80)),
    f"{OURS}, 4 lengths, XLA": Contender("ours", equal_lengths, jit=True),
    f"{OURS}, XLA": Contender("ours", ours, jit=True),
    f"{OURS}, 16 shapes, XLA": Contender("ours", functools.partial(ours, length_buckets=16), jit=True),
    f"{OURS}, packed, XLA": Contender("ours", functools.partial(ours, packed=True, max_length=80), jit=True),
    HUB: Contender("keras_hub", functools.partial(by_sequence_length, multiple=1)),
    f"{HUB}, XLA": Contender(
        "keras_hub", functools.partial(by_sequence_length, multiple=8, to_boundary=True), jit=True
    ),
    TORCH: Contender("torch", by_sorting, jit=None),
}


def real_tokens(batch: Batch) -> int:
    """Return the number of source and target ids without padding."""
    return int((batch["source_ids"] != PAD).sum() + (batch["labels"] != PAD).sum())


def summary(batches: list[Batch]) -> dict[str, Any]:
    """Return the number of batches and shapes, and the fill: the part of all positions that is not padding."""
    positions = sum(batch["source_ids"].size + batch["labels"].size for batch in batches)
    shapes = {(batch["source_ids"].shape, batch["labels"].shape) for batch in batches}
    fill = sum(map(real_tokens, batches)) / positions
    return {"batches": len(batches), "shapes": len(shapes), "fill": fill}


def write_batches(batches: list[Batch], count: int, path: pathlib.Path) -> None:
    """Write a batch of each shape, and `count` batches at random, for a worker."""
    shuffled = random.Random(0).sample(batches, len(batches))
    of_shape = {(batch["source_ids"].shape, batch["labels"].shape): batch for batch in shuffled}
    path.write_bytes(pickle.dumps((list(of_shape.values()), shuffled[:count])))


def build(name: str, path: pathlib.Path, threads: int) -> Callable[..., dict[str, Any]]:
    """Return a worker's function from a number of steps to their time and tokens."""
    of_each_shape, batches = pickle.loads(path.read_bytes())
    contender, shapes = CONTENDERS[name], train_step.Shapes(length=MAX_LENGTH)
    make = torch_steps if contender.library == "torch" else keras_steps
    run = make(contender, shapes, threads)
    processor = time.process_time()
    # Without XLA, TensorFlow and PyTorch need no function for each shape.
    first = measuring.seconds(lambda: run(of_each_shape if contender.jit else of_each_shape[:3]))
    first_processor = time.process_time() - processor
    run(batches[:2])
    endless = _repeated(batches)

    def measure(steps: int) -> dict[str, Any]:
        chosen = [next(endless) for _ in range(steps)]
        start = time.process_time()
        seconds = measuring.seconds(lambda: run(chosen))
        return {
            "first_seconds": first,
            "first_processor_seconds": first_processor,
            "seconds": seconds,
            "processor_seconds": time.process_time() - start,
            "tokens": sum(map(real_tokens, chosen)),
            "peak_memory_mib": measuring.peak_memory_mib(),
        }

    return measure


def keras_steps(
    contender: Contender, shapes: train_step.Shapes, threads: int
) -> Callable[[list[Batch]], None]:
    """Return a function that trains a Keras model on batches by `fit`."""
    keras = train_step.start_keras(threads)
    import tensorflow as tf

    of_hub = contender.library == "keras_hub"
    model, loss = train_step.keras_hub_model(keras, shapes) if of_hub else train_step.our_model(shapes)
    model.compile(keras.optimizers.Adam(shapes.learning_rate), loss, jit_compile=contender.jit)
    options = tf.data.Options()
    options.autotune.enabled = False  # TensorFlow would wait for its tuner at the end of `fit`

    def run(batches: list[Batch]) -> None:
        def elements() -> Iterator[tuple[Batch, np.ndarray]]:
            for batch in batches:
                yield {name: ids for name, ids in batch.items() if name != "labels"}, batch["labels"]

        ids = tf.TensorSpec((None, None), tf.int32)
        spec = {name: ids for name in batches[0] if name != "labels"}, ids
        dataset = tf.data.Dataset.from_generator(elements, output_signature=spec).with_options(options)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))
        model.fit(dataset, verbose=0, shuffle=False)

    return run


def torch_steps(
    contender: Contender, shapes: train_step.Shapes, threads: int
) -> Callable[[list[Batch]], None]:
    """Return a function that trains `torch.nn.Transformer` on batches in a plain loop."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = train_step.torch_model(torch, shapes)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=shapes.smoothing, ignore_index=PAD)
    optimizer = torch.optim.Adam(model.parameters(), shapes.learning_rate, fused=True)

    def run(batches: list[Batch]) -> None:
        for batch in batches:
            ids = {name: torch.from_numpy(array.astype("int64")) for name, array in batch.items()}
            optimizer.zero_grad(set_to_none=True)
            logits = model(ids["source_ids"], ids["target_ids"])
            criterion(logits.flatten(0, 1), ids["labels"].flatten()).backward()
            optimizer.step()

    return run


def _repeated(batches: list[Batch]) -> Iterator[Batch]:
    while True:
        yield from batches


def main() -> None:
    """Measure, print a table, write JSON."""
    options = _options()
    if options.worker:
        measuring.serve(lambda: build(options.worker, options.batches, options.threads))
        return
    train_step.start_keras(options.threads)
    corpus = Corpus.load(train_step.Shapes.vocabulary_size)
    names = [
        name
        for name, contender in CONTENDERS.items()
        if contender.jit in (options.xla, None) and any(part in name for part in options.only or [""])
    ]
    summaries, workers, skipped = {}, [], {}
    with tempfile.TemporaryDirectory() as folder:
        for place, name in enumerate(names):
            batches = CONTENDERS[name].batches(corpus, options.tokens)
            summaries[name] = summary(batches)
            path = pathlib.Path(folder) / f"{place}.pickle"
            write_batches(batches, options.rounds * options.steps, path)
            print(f"{name}: {summaries[name]}", file=sys.stderr, flush=True)
        del corpus
        for place, name in enumerate(names):
            arguments = ["--threads", str(options.threads), "--batches", f"{folder}/{place}.pickle"]
            worker = measuring.Worker(__file__, name, arguments)
            try:
                worker.ask(None, options.build_timeout)
                workers.append(worker)
            except measuring.WorkerError as error:
                skipped[name] = str(error)
                worker.close()
            print(f"{'skipped' if name in skipped else 'built'} {name}", file=sys.stderr, flush=True)
    try:
        request, timeout = {"steps": options.steps}, 120 + 20 * options.steps
        answers = measuring.round_robin(workers, options.rounds, request, timeout, options.tries)
    finally:
        for worker in workers:
            worker.close()
    result = {
        **measuring.machine(),
        "threads": options.threads,
        "batch_tokens": options.tokens,
        "model": dataclasses.asdict(train_step.Shapes(length=MAX_LENGTH)),
        "contenders": {name: _figures(answers[name], summaries[name]) for name in answers},
        "skipped": skipped,
    }
    print(measuring.table([_row(name, figures) for name, figures in result["contenders"].items()]))
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")
    name = "training_xla" if options.xla else "training"
    print(f"\nWritten to {measuring.write_result(name, result, options.output)}")


def _figures(answers: list[dict[str, Any]], batches: dict[str, Any]) -> dict[str, Any]:
    totals = collections.Counter()
    for answer in answers:
        totals.update({name: answer[name] for name in ("tokens", "seconds", "processor_seconds")})
    return {
        **batches,
        "tokens_per_second": totals["tokens"] / totals["seconds"],
        "tokens_per_processor_second": totals["tokens"] / totals["processor_seconds"],
        "first_seconds": answers[-1]["first_seconds"],
        "first_processor_seconds": answers[-1]["first_processor_seconds"],
        "peak_memory_mib": answers[-1]["peak_memory_mib"],
        "cores_busy_with_others": [answer["others"] for answer in answers],
    }


def _row(name: str, figures: dict[str, Any]) -> dict[str, str]:
    return {
        "contender": name,
        "shapes": str(figures["shapes"]),
        "fill": f"{figures['fill']:.2f}",
        "real tokens/s": f"{figures['tokens_per_second']:,.0f}",
        "per processor second": f"{figures['tokens_per_processor_second']:,.0f}",
        "first steps, processor s": f"{figures['first_processor_seconds']:.0f}",
        "others' cores": f"{measuring.median(figures['cores_busy_with_others']):.1f}",
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds over all contenders (default: 5)")
    parser.add_argument("--steps", type=int, default=40, help="steps of a contender in a round (default: 40)")
    parser.add_argument("--tries", type=int, default=3, help="tries while others disturb (default: 3)")
    parser.add_argument(
        "--tokens", type=int, default=2048, help="positions of a side of a batch (default: 2048)"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads (default: all cores)")
    parser.add_argument(
        "--only", action="append", help="only contenders whose name contains this; repeatable"
    )
    parser.add_argument("--xla", action="store_true", help="compile with XLA; writes training_xla.json")
    parser.add_argument(
        "--build-timeout", type=float, default=900, help="seconds for first steps (default: 900)"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=measuring.RESULTS, help="folder of the JSON file"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
