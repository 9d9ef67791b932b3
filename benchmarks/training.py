"""Tokens per second, without padding, of training on spa-eng: this package, KerasHub and PyTorch.

The speed is the number of source and target ids in a contender's batches, without padding, divided by the time of the
steps. Each contender has batches that suit it. The model is the one of `train_step.py`. `--help` lists the options.
"""

import argparse
import collections
import dataclasses
import functools
import itertools
import pathlib
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import measuring
import numpy as np
import runner
import train_step

Batch = dict[str, np.ndarray]
"""source_ids, target_ids and labels, and for packed rows segment ids and positions."""

OURS, HUB, TORCH, PAD = train_step.OURS, train_step.HUB, train_step.TORCH, train_step.PAD
MAX_LENGTH = 128


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Pairs of texts, and their ids with end ids."""

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
    """Return batches of `data.translation_pairs`."""
    from keras_transformer.data import translation_pairs

    dataset = translation_pairs(
        corpus.pairs, corpus.tokenizer, batch_tokens=tokens, **{"max_length": MAX_LENGTH, **options}
    )
    return [
        {**{name: ids.numpy() for name, ids in inputs.items()}, "labels": labels.numpy()}
        for inputs, labels in dataset
    ]


def equal_lengths(corpus: Corpus, tokens: int) -> list[Batch]:
    """Return batches of four lengths, the same for source and target."""
    from keras_transformer.data.shape_search import choose_lengths

    return ours(corpus, tokens, length_buckets=choose_lengths(corpus.lengths.max(axis=1), 4, MAX_LENGTH))


def by_sequence_length(corpus: Corpus, tokens: int, multiple: int, to_boundary: bool = False) -> list[Batch]:
    """Return batches as in `tf.data.Dataset.bucket_by_sequence_length`, with multiples as boundaries.

    Each side is padded to its longest row, or with `to_boundary` to the boundary, for XLA.
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
    """Return batches of consecutive pairs sorted by length, as in fairseq, with at most `tokens` on each side."""
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
    """A library, a function that returns its batches, and whether it is compiled by XLA (None without XLA)."""

    library: str
    batches: Callable[[Corpus, int], list[Batch]]
    jit: bool | None = False


CONTENDERS = {
    OURS: Contender("ours", ours),
    f"{OURS}, 4 lengths": Contender("ours", equal_lengths),
    f"{OURS}, 8 shapes": Contender("ours", functools.partial(ours, length_buckets=8)),
    f"{OURS}, 64 shapes": Contender("ours", functools.partial(ours, length_buckets=64, pad_to_multiple_of=1)),
    f"{OURS}, packed": Contender("ours", functools.partial(ours, packed=True, max_length=80)),
    f"{OURS}, XLA": Contender("ours", ours, jit=True),
    f"{OURS}, 4 lengths, XLA": Contender("ours", equal_lengths, jit=True),
    f"{OURS}, 8 shapes, XLA": Contender("ours", functools.partial(ours, length_buckets=8), jit=True),
    f"{OURS}, packed, XLA": Contender("ours", functools.partial(ours, packed=True, max_length=80), jit=True),
    HUB: Contender("keras_hub", functools.partial(by_sequence_length, multiple=1)),
    f"{HUB}, XLA": Contender(
        "keras_hub", functools.partial(by_sequence_length, multiple=8, to_boundary=True), jit=True
    ),
    TORCH: Contender("torch", by_sorting, jit=None),
}


# The contender whose batches limit a case, by whether it is compiled by XLA.
LIMITED = {False: f"{OURS}, 64 shapes", True: f"{OURS}, XLA"}


def real_tokens(batch: Batch) -> int:
    """Return the number of source and target ids without padding."""
    return int((batch["source_ids"] != PAD).sum() + (batch["labels"] != PAD).sum())


def summary(batches: list[Batch]) -> dict[str, Any]:
    """Return the number of batches and shapes, and the fill: the fraction of positions that are not padding."""
    positions = sum(batch["source_ids"].size + batch["labels"].size for batch in batches)
    shapes = {(batch["source_ids"].shape, batch["labels"].shape) for batch in batches}
    fill = sum(map(real_tokens, batches)) / positions
    return {"batches": len(batches), "shapes": len(shapes), "fill": fill}


def setup(folder: pathlib.Path, options: argparse.Namespace) -> None:
    """Write a summary, a batch of each shape, and random batches for each contender."""
    train_step.start_keras(max(options.threads))
    corpus, count = Corpus.load(train_step.Shapes.vocabulary_size), 2 + options.rounds * options.steps
    cases = [case for name, case in CASES.items() if any(part in name for part in options.cases)]
    for name, contender in CONTENDERS.items():
        if any(part in name for part in options.only) and any(applies(case, name) for case in cases):
            batches = contender.batches(corpus, options.tokens)
            shuffled = random.Random(0).sample(batches, len(batches))
            of_shape = {(batch["source_ids"].shape, batch["labels"].shape): batch for batch in shuffled}
            content = summary(batches), list(of_shape.values()), shuffled[:count]
            (folder / f"{name}.pickle").write_bytes(pickle.dumps(content))
            measuring.progress(f"{name}: {content[0]}")


def prepare(case: dict[str, Any], context: runner.Context, name: str) -> runner.Run:
    """Return a function that trains on the next batches; its first call trains on the batches of each shape."""
    facts, of_each_shape, batches = pickle.loads((context.folder / f"{name}.pickle").read_bytes())
    contender, shapes = CONTENDERS[name], train_step.Shapes(length=MAX_LENGTH)
    make = torch_steps if contender.library == "torch" else keras_steps
    train = make(contender, shapes, context.threads)
    endless = itertools.cycle(batches)

    def run() -> runner.Figures:
        chosen = list(itertools.islice(endless, context.options.steps))
        train(chosen)
        return {**facts, "units": sum(map(real_tokens, chosen))}

    # Without XLA, TensorFlow and PyTorch need no function for each shape.
    first = of_each_shape if contender.jit else of_each_shape[:3]
    return runner.first_step(lambda: train(first), run)


def prepare_limit(case: dict[str, Any], context: runner.Context, library: str) -> runner.Run:
    """Prepare only the multiplications by weights of steps with the batches of this package that have least padding."""
    content = pickle.loads((context.folder / f"{LIMITED[case['xla']]}.pickle").read_bytes())
    batches, shapes = content[2], train_step.Shapes(length=MAX_LENGTH)
    counts = sum(
        (shapes.matmuls(batch["source_ids"].size, batch["labels"].size) for batch in batches),
        start=collections.Counter(),
    )
    measure = train_step.matmul_seconds(library, context.threads, counts, repeats=3)
    units = sum(map(real_tokens, batches))

    def run() -> runner.Figures:
        times = measure()
        return {"units": units, "seconds": sum(times[size] * count for size, count in counts.items())}

    return run


def keras_steps(
    contender: Contender, shapes: train_step.Shapes, threads: int
) -> Callable[[list[Batch]], None]:
    """Return a function that trains a Keras model on batches by `fit`."""
    keras = train_step.start_keras(threads)
    import tensorflow as tf

    of_hub = contender.library == "keras_hub"
    model, loss = train_step.keras_hub_model(keras, shapes) if of_hub else train_step.our_model(shapes)
    adam = keras.optimizers.Adam(shapes.learning_rate) if of_hub else train_step.our_adam(shapes)
    model.compile(adam, loss, jit_compile=contender.jit)
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
    """Return a function that trains `torch.nn.Transformer` on batches in a training loop."""
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


def applies(case: dict[str, Any], contender: str) -> bool:
    """Return whether a contender belongs to a case, with or without XLA; PyTorch belongs to both."""
    return contender not in CONTENDERS or CONTENDERS[contender].jit in (case["xla"], None)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sizes of batches and of rounds."""
    parser.add_argument("--steps", type=int, default=40, help="of a round (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=2048, help="a side of a batch (default: %(default)s)")


MODEL = dataclasses.asdict(train_step.Shapes(length=MAX_LENGTH))
CASES = {f"with{'' if xla else 'out'} XLA": {**MODEL, "xla": xla} for xla in (False, True)}
BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "tokens",
    CASES,
    {name: functools.partial(prepare, name=name) for name in CONTENDERS},
    limits={
        f"the matrix multiplications, by {name}": functools.partial(prepare_limit, library=library)
        for name, library in (("TensorFlow", "tensorflow"), ("PyTorch", "torch"))
    },
    applies=applies,
    fresh=True,
    setup=setup,
    environment=lambda contender, options: train_step.MEMORY_KEPT,
    columns={"shapes": ".0f", "fill": ".2f", "first_processor_seconds": ".0f"},
    add_options=add_options,
)

if __name__ == "__main__":
    BENCHMARK.main()
