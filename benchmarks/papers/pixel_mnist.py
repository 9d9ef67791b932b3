"""MNIST as a sequence of pixels: state space models, attention and an LSTM after equal processor time.

One architecture for all: `num_layers` blocks of a mixer and a feed-forward network, the mean over the pixels, and a
classifier. The mixers have nearly as many weights: S4D, Mamba-2, causal attention, causal attention to a window, and
Keras' LSTM. The images are averaged to 14 x 14 pixels; all pixels need a GPU: `--size 28 --clock wall --minutes 120
--model-dim 128 --num-layers 4`. The last 5,000 training images are for validation; nothing is chosen by the test
images. `--help` lists the options.
"""

import argparse
import dataclasses
import pathlib
import sys
import time
from typing import Any

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import references


@dataclasses.dataclass(frozen=True)
class Settings:
    """The model and its training; `minutes` are of processor time, or of the clock if `clock` is "wall"."""

    mixer: str = "S4D"
    size: int = 14
    num_layers: int = 2
    num_heads: int = 2
    model_dim: int = 32
    hidden_dim: int = 64
    state_dim: int = 16
    window: int = 31
    batch_size: int = 50
    peak_rate: float = 0.004
    minutes: float = 1.0
    clock: str = "processor"
    validation_images: int = 5000


def mixer(settings: Settings) -> Any:
    """Return a layer from sequences (B, T, D) to sequences, with about 4 D² weights."""
    import keras

    from keras_transformer import layers, relations

    size, heads = settings.model_dim, settings.num_heads
    if settings.mixer == "S4D":
        return layers.S4D(settings.state_dim)
    if settings.mixer == "Mamba-2":
        return layers.Mamba2(heads, settings.state_dim, inner_dim=size)
    if settings.mixer == "LSTM":
        units = round(0.55 * size)  # 4 units (units + D) + units · D weights
        return keras.Sequential([keras.layers.LSTM(units, return_sequences=True), keras.layers.Dense(size)])
    window = {"causal attention": None, "window attention": settings.window}[settings.mixer]
    relation = relations.SlidingWindow(window)
    return layers.MultiHeadAttention(heads, size // heads, relation=relation, position_encoding="rotary")


def build(settings: Settings) -> Any:
    """Return the compiled model."""
    import keras

    from keras_transformer import layers

    images = keras.Input((28, 28, 1))
    pixels = keras.layers.AveragePooling2D(28 // settings.size)(images)
    pixels = keras.layers.Rescaling(2 / 255, -1)(keras.layers.Reshape((settings.size**2, 1))(pixels))
    hidden = keras.layers.Dense(settings.model_dim)(pixels)
    for _ in range(settings.num_layers):
        hidden = hidden + mixer(settings)(keras.layers.LayerNormalization()(hidden))
        hidden = hidden + layers.FeedForward(settings.hidden_dim)(keras.layers.LayerNormalization()(hidden))
    pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(hidden))
    model = keras.Model(images, keras.layers.Dense(10)(pooled))
    model.compile(
        keras.optimizers.Adam(settings.peak_rate, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=True,
    )
    return model


def train(run: references.Run) -> references.Figures:
    """Train a model for a fixed time, and test it."""
    import keras

    from keras_transformer import training
    from keras_transformer.data import image_batches
    from keras_transformer.datasets import mnist

    settings = run.settings
    keras.utils.set_random_seed(run.seed)
    (images, labels), test = mnist.load_data(run.options.data)
    kept = (len(images) - settings.validation_images) // settings.batch_size * settings.batch_size
    model = build(settings)
    clock = {"processor": time.process_time, "wall": time.monotonic}[settings.clock]
    history = model.fit(
        image_batches(images[:kept], labels[:kept], settings.batch_size, seed=run.seed),
        epochs=10_000,
        callbacks=[training.TimeBudget(settings.minutes, settings.peak_rate, clock=clock)],
        verbose=2,
    ).history
    validation = images[-settings.validation_images :], labels[-settings.validation_images :]
    validated, tested = (model.evaluate(*part, batch_size=500, verbose=0)[1] for part in (validation, test))
    return {
        "backend": keras.backend.backend(),
        "parameters": model.count_params(),
        "updates": int(model.optimizer.iterations),
        "epochs": int(model.optimizer.iterations) * settings.batch_size / kept,
        "training loss": history["loss"][-1],
        "validation": 100 * validated,
        "test": 100 * tested,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the data."""
    parser.add_argument("--data", type=pathlib.Path, help="of the IDX files (default: see the dataset)")


MIXERS = ("S4D", "Mamba-2", "causal attention", "window attention", "LSTM")

REFERENCE = references.Reference(
    __file__,
    __doc__,
    {name: Settings(name) for name in MIXERS},
    train,
    measures=("validation", "test", "updates"),
    settings=Settings,
    seeds=(0, 1, 2),
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
