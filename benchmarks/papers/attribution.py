"""Attention heads pruned by attribution, by weight and at random: accuracy on SST-2's test sentences.

A BERT of two layers, whose classes are predicted from the first token alone, is trained on SST-2's sentences. The
importance of a head is the mean over validation sentences of the largest attribution of its weights (Hao et al. 2021,
section 5), or of the largest weight. Heads are pruned, the least important first, without further training, by zeros
in the output projection. `--help` lists the options.
"""

import argparse
import dataclasses
import functools
import pathlib
import sys
from typing import Any

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import references
import sst2

SHARES = (0.0, 0.5, 0.75, 0.875, 1.0)
MEASURED = ("75.0%", "87.5%")  # the shares of pruned heads in the table
ORDERS = ("attribution", "weight", "random")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The model, its training and the estimate of importance."""

    vocabulary_size: int = 4000
    num_layers: int = 2
    num_heads: int = 8
    model_dim: int = 64
    hidden_dim: int = 128
    dropout: float = 0.2
    word_dropout: float = 0.1
    batch_size: int = 32
    epochs: int = 3
    peak_rate: float = 1e-3
    boundaries: tuple[int, ...] = (17, 33, 49)
    sentences: int = 128
    steps: int = 8
    orders: int = 3


@functools.cache
def load(settings: Settings, folder: pathlib.Path | None) -> sst2.Data:
    """Return SST-2's sentences as ids."""
    from keras_transformer.datasets import sst2 as dataset

    return sst2.Data(settings, dataset.load_data(folder), 2)


def train(data: sst2.Data, settings: Settings, seed: int) -> Any:
    """Return a trained classifier."""
    import keras

    from keras_transformer import models

    encoder = models.BERT(
        data.tokenizer.vocabulary_size,
        num_layers=settings.num_layers,
        num_heads=settings.num_heads,
        model_dim=settings.model_dim,
        hidden_dim=settings.hidden_dim,
        max_length=data.length,
        num_segments=1,
        dropout=settings.dropout,
    )
    model = models.SequenceClassifier(encoder, 2)
    batches = data.batches("train", settings, seed)
    steps = sum(1 for _ in batches)
    model.compile(
        keras.optimizers.AdamW(sst2.rate(settings.peak_rate, settings.epochs * steps), clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    model.fit(batches.repeat(), steps_per_epoch=steps, epochs=settings.epochs, verbose=0)
    return model


def importance(model: Any, data: sst2.Data, settings: Settings) -> dict[str, np.ndarray]:
    """Return the importance of the heads (layers, heads) by attribution and by weight, on validation sentences."""
    from keras_transformer import inspection

    ids = data.ids["validation"].numpy()[: settings.sentences]
    found: dict[str, list[np.ndarray]] = {"attribution": [], "weight": []}
    for layer in range(settings.num_layers):
        attributions, weights = [], []
        for start in range(0, len(ids), 64):
            rows = ids[start : start + 64]
            attributions.append(
                inspection.attention_attributions(model, rows, layer=layer, steps=settings.steps)
            )
            weights.append(np.asarray(inspection.self_attention_weights(model, rows, layer)))
        for name, maps in (("attribution", attributions), ("weight", weights)):
            # Rows of padding attend to tokens, but contribute nothing.
            present = [
                np.where(
                    (ids[64 * i : 64 * i + 64] != data.tokenizer.pad_id)[:, None, :, None], each, -np.inf
                )
                for i, each in enumerate(maps)
            ]
            found[name].append(np.concatenate([each.max(axis=(2, 3)) for each in present]).mean(0))
    return {name: np.stack(each) for name, each in found.items()}


def accuracies(model: Any, data: sst2.Data, settings: Settings, order: np.ndarray) -> dict[str, float]:
    """Return the accuracy on the test sentences by the share of pruned heads, the first of an order, in percent."""
    ids, labels = data.ids["test"], data.labels["test"]
    kernels = [block.attention.output_projection.kernel for block in model.encoder.blocks]
    before = [np.asarray(kernel) for kernel in kernels]
    found = {}
    for share in SHARES:
        pruned = [values.copy() for values in before]
        for place in order[: round(share * len(order))]:
            layer, head = divmod(int(place), settings.num_heads)
            size = len(pruned[layer]) // settings.num_heads
            pruned[layer][head * size : (head + 1) * size] = 0
        for kernel, values in zip(kernels, pruned, strict=True):
            kernel.assign(values)
        logits = model.predict(ids, batch_size=256, verbose=0)
        found[f"{share:.1%}"] = 100 * float((logits.argmax(-1) == labels).mean())
    for kernel, values in zip(kernels, before, strict=True):
        kernel.assign(values)
    return found


def compare(run: references.Run) -> references.Figures:
    """Train a classifier, and prune its heads in each order."""
    import keras

    keras.utils.set_random_seed(run.seed)
    settings = run.settings
    data = load(settings, run.options.data)
    model = train(data, settings, run.seed)
    heads, random = importance(model, data, settings), np.random.default_rng(run.seed)
    curves = {
        name: accuracies(model, data, settings, np.argsort(values, axis=None))
        for name, values in heads.items()
    }
    orders = [random.permutation(settings.num_layers * settings.num_heads) for _ in range(settings.orders)]
    of_orders = [accuracies(model, data, settings, order) for order in orders]
    curves["random"] = {share: float(np.mean([each[share] for each in of_orders])) for share in of_orders[0]}
    return {
        "all heads": curves["random"]["0.0%"],
        **{f"{share} by {name}": curves[name][share] for share in MEASURED for name in ORDERS},
        "no heads": curves["random"]["100.0%"],
        "curves": curves,
        "parameters": model.count_params(),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the data."""
    parser.add_argument(
        "--data", type=pathlib.Path, help="folder of stsa.binary.* (default: see the dataset)"
    )


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {"pruned heads": None},
    compare,
    measures=("all heads", *(f"{share} by {name}" for share in MEASURED for name in ORDERS), "no heads"),
    settings=Settings,
    seeds=(0, 1, 2),
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
