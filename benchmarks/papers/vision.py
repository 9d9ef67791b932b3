"""Relations of the patches of a Vision Transformer: in the plane, or in the order in which they are read.

A patch attends to all patches, to the 3 × 3 around it (2-D window), to four before and four after it row by row (1-D
window), or step by step to the eight before it. "shapes": segmentation of circles, squares and triangles on noise, by
the mean intersection over union with the background as a class. "MNIST": accuracy on the test images. All models have
one size and equal updates. `--help` lists the options.
"""

import argparse
import dataclasses
import pathlib
import sys
from typing import Any

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import references


@dataclasses.dataclass(frozen=True)
class Settings:
    """The model and its training."""

    num_layers: int = 2
    num_heads: int = 4
    model_dim: int = 64
    hidden_dim: int = 128
    patch_size: int = 4
    batch_size: int = 64
    updates: int = 300
    peak_rate: float = 2e-3


def relations() -> dict[str, dict[str, Any]]:
    """Return the arguments of `ViT` by the name of the relation."""
    from keras_transformer.relations import SlidingWindow

    return {
        "all patches": {},
        "2-D window": {"window": 1},
        "1-D window": {"relation": SlidingWindow(4, 4)},
        "steps": {"relation": SlidingWindow(8)},
    }


def shapes(count: int, seed: int, size: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy images (n, size, size, 1) of one to three shapes, and the class of each pixel.

    The shapes have one range of brightness, and later ones hide earlier ones. The classes are background, circle,
    square and triangle.
    """
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size]
    images, labels = np.zeros((count, size, size)), np.zeros((count, size, size), "int32")
    for image, label in zip(images, labels, strict=True):
        image[:] = random.uniform(0, 80)
        for _ in range(random.integers(1, 4)):
            (row, column), radius = random.uniform(6, size - 6, 2), random.uniform(4, 8)
            down, right = rows - row, columns - column
            kind = random.integers(1, 4)
            inside = {
                1: down**2 + right**2 <= radius**2,
                2: np.maximum(abs(down), abs(right)) <= 0.85 * radius,
                3: (down <= 0.8 * radius) & (2 * abs(right) <= down + 1.2 * radius),
            }[int(kind)]
            image[inside], label[inside] = random.uniform(140, 255), kind
    noisy = images + random.normal(0, 15, images.shape)
    return np.clip(noisy, 0, 255).astype("float32")[..., None], labels


def compare(run: references.Run) -> references.Figures:
    """Train a model on one task with one relation, and test it."""
    import keras

    from keras_transformer import models
    from keras_transformer.datasets import mnist

    settings, (task, name) = run.settings, run.case
    keras.backend.clear_session()
    keras.utils.set_random_seed(run.seed)
    names = ("patch_size", "num_layers", "num_heads", "model_dim", "hidden_dim")
    sizes = {each: getattr(settings, each) for each in names}
    options = {"num_channels": 1, "pooling": "mean", **sizes, **relations()[name]}
    count = settings.updates * settings.batch_size
    metric: Any
    if task == "shapes":
        model = models.ImageSegmenter(models.ViT(32, num_classes=None, **options), 4)
        metric = keras.metrics.MeanIoU(4, sparse_y_pred=False)
        (images, labels), test = shapes(min(count, 8000), run.seed), shapes(1000, run.seed + 1000)
    else:
        model = models.ViT(28, num_classes=10, **options)
        metric = keras.metrics.SparseCategoricalAccuracy()
        (images, labels), test = mnist.load_data(run.options.data)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0,
        round(0.9 * settings.updates),
        warmup_target=settings.peak_rate,
        warmup_steps=settings.updates // 10,
    )
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=0.05, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[metric],
        jit_compile=False,
    )
    chosen = np.random.default_rng(run.seed).integers(0, len(images), count)
    model.fit(images[chosen], labels[chosen], settings.batch_size, verbose=0)
    return {
        "test": 100 * model.evaluate(*test, batch_size=250, verbose=0)[1],
        "updates": int(model.optimizer.iterations),
        "parameters": model.count_params(),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the data."""
    parser.add_argument("--data", type=pathlib.Path, help="of MNIST's IDX files (default: see the dataset)")


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {
        f"{task}, {name}": (task, name)
        for task in ("shapes", "MNIST")
        for name in ("all patches", "2-D window", "1-D window", "steps")
    },
    compare,
    measures=("test",),
    settings=Settings,
    seeds=(0, 1, 2),
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
