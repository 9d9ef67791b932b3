"""How accuracy on SST-2 grows with the training sentences: a Transformer, regularised or not, an LSTM and a CNN.

All are trained from scratch, with the same vocabulary and embeddings, about as many weights, and as many updates for
each number of sentences. Regularisation is that of `sst2.py`: dropout, masked words, smoothed labels and averaged
weights; the LSTM and the CNN have it, too. Nothing is chosen by the test sentences. `--help` lists the options.
"""

import argparse
import dataclasses
import pathlib
import sys
from typing import Any

import numpy as np
import sst2

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import references

KERNEL_SIZES = (3, 4, 5)


@dataclasses.dataclass(frozen=True)
class Settings(sst2.Settings):
    """The settings of `sst2.py` without pre-training, the numbers of sentences and of updates."""

    model: str = sst2.BERT
    regularised: int = 1
    sizes: tuple[int, ...] = (100, 1000, 6920)
    updates: int = 1000


CASES = {
    "Transformer": Settings(),
    "Transformer, not regularised": Settings(
        regularised=0, dropout=0.0, word_dropout=0.0, label_smoothing=0.0, weight_decay=0.0
    ),
    "LSTM": Settings(model=sst2.LSTM),
    "CNN": Settings(model="cnn"),
}


def cnn(data: sst2.Data, settings: Settings) -> Any:
    """Return the convolutional network of Kim (2014), with about as many weights as the Transformer's blocks."""
    import keras

    size = settings.model_dim
    blocks = settings.num_layers * (4 * size * size + 2 * size * settings.hidden_dim)
    filters = round(blocks / (sum(KERNEL_SIZES) * size))
    ids = keras.Input((None,), dtype="int32")
    initializer = keras.initializers.RandomNormal(stddev=0.02)
    hidden = keras.layers.Embedding(data.tokenizer.vocabulary_size, size, initializer)(ids)
    hidden = keras.layers.Dropout(settings.dropout)(hidden)
    pooled = [
        keras.layers.GlobalMaxPooling1D()(
            keras.layers.Conv1D(filters, width, padding="same", activation="relu")(hidden)
        )
        for width in KERNEL_SIZES
    ]
    features = keras.layers.Dropout(settings.dropout)(keras.layers.Concatenate()(pooled))
    return keras.Model(ids, keras.layers.Dense(data.num_classes)(features))


def fit(data: sst2.Data, part: str, settings: Settings, seed: int) -> Any:
    """Return a classifier, trained on a part of the data."""
    import keras

    keras.utils.set_random_seed(seed)
    if settings.model == "cnn":
        model = cnn(data, settings)
    else:
        _, model = sst2.build(settings.model, data, settings, settings.dropout)
    averaging = {"use_ema": True, "ema_momentum": 0.99, "ema_overwrite_frequency": None}
    model.compile(
        keras.optimizers.AdamW(
            sst2.rate(settings.peak_rate, settings.updates),
            weight_decay=settings.weight_decay,
            clipnorm=1.0,
            **(averaging if settings.regularised else {}),
        ),
        sst2.smoothed_loss(settings.label_smoothing, data.num_classes),
        metrics=["accuracy"],
        jit_compile=False,
    )
    model.fit(
        data.batches(part, settings, seed).repeat(), steps_per_epoch=settings.updates, verbose=0, epochs=1
    )
    if settings.regularised:
        model.optimizer.finalize_variable_values(model.trainable_variables)
    return model


def compare(run: references.Run) -> references.Figures:
    """Train a model on each number of sentences, and return its accuracies on the test sentences, in percent."""
    settings = run.settings
    data, _ = sst2.load(settings, run.options.data, None, None, None)
    order = np.random.default_rng(run.seed).permutation(len(data.labels["train"]))
    figures: references.Figures = {}
    for size in settings.sizes:
        data.ids["part"] = np.asarray(data.ids["train"])[order[:size]]
        data.labels["part"] = data.labels["train"][order[:size]]
        model = fit(data, "part", settings, run.seed)
        accuracy = model.evaluate(data.batches("test", settings, None), verbose=0)[1]
        figures[f"{size} sentences"] = 100 * accuracy
    return {**figures, "parameters": model.count_params()}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the data."""
    parser.add_argument(
        "--data", type=pathlib.Path, help="folder of stsa.binary.* (default: see the dataset)"
    )


REFERENCE = references.Reference(
    __file__,
    __doc__,
    CASES,
    compare,
    measures=[f"{size} sentences" for size in Settings().sizes],
    settings=Settings,
    seeds=(0, 1, 2),
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
