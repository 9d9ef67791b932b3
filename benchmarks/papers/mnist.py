"""A Vision Transformer on MNIST: the accuracy on the 10,000 test images after a fixed training time.

The last 5,000 training images are used for validation; nothing is chosen by the test images.
`--help` lists the options.
"""

import argparse
import dataclasses
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import references


@dataclasses.dataclass(frozen=True)
class Settings:
    """The model and its training."""

    patch_size: int = 4
    num_layers: int = 4
    num_heads: int = 4
    model_dim: int = 64
    hidden_dim: int = 128
    dropout: float = 0.0
    positions: str = "learned"
    pooling: str = "mean"
    batch_size: int = 64
    shift: int = 2
    peak_rate: float = 0.002
    weight_decay: float = 0.05
    minutes: float = 15.0
    validation_images: int = 5000


def train(run: references.Run) -> references.Figures:
    """Train a model for a fixed time, and test it."""
    import keras

    from keras_transformer import models, training
    from keras_transformer.data import image_batches
    from keras_transformer.datasets import mnist

    settings, seed = run.settings, run.seed
    keras.utils.set_random_seed(seed)
    (images, labels), test = mnist.load_data(run.options.data)
    kept = len(images) - settings.validation_images
    names = (
        "patch_size",
        "num_layers",
        "num_heads",
        "model_dim",
        "hidden_dim",
        "dropout",
        "positions",
        "pooling",
    )
    sizes = {name: getattr(settings, name) for name in names}
    model = models.ViT(28, num_classes=10, num_channels=1, **sizes)
    model.compile(
        keras.optimizers.AdamW(1e-3, weight_decay=settings.weight_decay, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    batches = image_batches(
        images[:kept], labels[:kept], settings.batch_size, shift=settings.shift, seed=seed
    )
    history = model.fit(
        batches,
        validation_data=(images[kept:], labels[kept:]),
        validation_batch_size=500,
        epochs=10_000,
        callbacks=[training.TimeBudget(settings.minutes, settings.peak_rate)],
        verbose=2,
    ).history
    loss, accuracy = model.evaluate(*test, batch_size=500, verbose=0)
    return {
        "parameters": model.count_params(),
        "updates": int(model.optimizer.iterations),
        "images_seen": int(model.optimizer.iterations) * settings.batch_size,
        "test": 100 * accuracy,
        "test loss": loss,
        "history": history,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the data."""
    parser.add_argument("--data", type=pathlib.Path, help="of the IDX files (default: see the dataset)")


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {"ViT": None},
    train,
    measures=("test",),
    published=97.8,  # small public examples of Vision Transformers on MNIST
    settings=Settings,
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
