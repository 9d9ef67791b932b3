"""A Vision Transformer on MNIST: the accuracy on the 10,000 test images after a given time of training.

The last 5,000 training images are kept apart to validate; nothing is chosen by the test images.
`--help` lists the options.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import measuring


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


# Small public examples of Vision Transformers on MNIST report 97.8 %.
PUBLISHED = 97.8


def train(data: Any, settings: Settings, seed: int) -> dict[str, Any]:
    """Train for the given time and test."""
    import keras

    from keras_transformer import models, training
    from keras_transformer.data import image_batches

    keras.utils.set_random_seed(seed)
    (images, labels), test = data
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
        "seed": seed,
        "parameters": model.count_params(),
        "updates": int(model.optimizer.iterations),
        "images_seen": int(model.optimizer.iterations) * settings.batch_size,
        "test": {"accuracy": 100 * accuracy, "loss": loss},
        "history": history,
        "published": PUBLISHED,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print the accuracy, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=Settings.minutes, help="of training (default: 15)")
    parser.add_argument(
        "--data", type=pathlib.Path, help="folder of the IDX files (default: see the data set)"
    )
    parser.add_argument("--output", type=pathlib.Path, default=measuring.RESULTS, help="folder of the JSON")
    options = parser.parse_args(arguments)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    from keras_transformer.datasets import mnist

    settings, start = Settings(minutes=options.minutes), time.perf_counter()
    busy = time.process_time()
    measured = train(mnist.load_data(options.data), settings, options.seed)
    result = {
        **measuring.machine(),
        "wall_seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - busy,
        "settings": dataclasses.asdict(settings),
        **measured,
    }
    print(
        f"MNIST, ViT of {result['parameters']:,} parameters: {result['test']['accuracy']:.2f} % "
        f"after {result['wall_seconds'] / 60:.1f} minutes; published {PUBLISHED} %"
    )
    print(f"Written to {measuring.write_result('mnist', result, options.output)}")


if __name__ == "__main__":
    main()
