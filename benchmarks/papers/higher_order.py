"""Attention to pairs beside attention to single elements, on a relation of three elements.

"match3": for each number of a sequence, whether two others exist with which it sums to a multiple of the modulus
(Sanford et al. 2023). "composition": for each x, h(g(f(x))) of three permutations, given as the set of their
pairs (Peng et al., "On Limitations of the Transformer Architecture", 2024, have two functions). Both models have one
layer and about as many weights. `--help` lists the options.
"""

import dataclasses
import pathlib
import sys
from typing import Any

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import references


@dataclasses.dataclass(frozen=True)
class Settings:
    """The task, the model and its training."""

    task: str = "match3"
    layer: str = "pairs"
    length: int = 8
    modulus: int = 24
    model_dim: int = 64
    num_heads: int = 4
    batch_size: int = 128
    steps: int = 3000
    learning_rate: float = 2e-3


def match3(settings: Settings, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers (n, T), and for each whether it is in a triple whose sum is a multiple of the modulus."""
    numbers = np.random.default_rng(seed).integers(0, settings.modulus, (count, settings.length))
    sums = numbers[:, :, None, None] + numbers[:, None, :, None] + numbers[:, None, None, :]
    i, j, k = np.ogrid[: settings.length, : settings.length, : settings.length]
    different = (i != j) & (i != k) & (j != k)
    return numbers, ((sums % settings.modulus == 0) & different).any(axis=(2, 3)).astype("int64")


def composition(settings: Settings, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs (x, f(x)), (y, g(y)) and (z, h(z)) of three permutations, (n, 3 T, 2), and h(g(f(x))), (n, T).

    The values of each permutation have ids of their own, by which the pairs of one are linked to those of the next.
    """
    random, length = np.random.default_rng(seed), settings.length
    f, g, h = random.permuted(np.broadcast_to(np.arange(length), (3, count, length)), axis=2)
    values = np.concatenate([length + f, 2 * length + g, 3 * length + h], axis=1)
    arguments = np.broadcast_to(np.arange(3 * length), values.shape)
    return np.stack([arguments, values], axis=-1), np.take_along_axis(
        h, np.take_along_axis(g, f, axis=1), axis=1
    )


TASKS = {"match3": match3, "composition": composition}


def model(settings: Settings) -> Any:
    """Return a compiled model of one layer: embedding, attention and a feed-forward network, with residuals."""
    import keras

    from keras_transformer import layers

    size, length = settings.model_dim, settings.length
    if settings.task == "match3":
        ids, classes = keras.Input((length,), dtype="int32"), 2
        hidden = keras.layers.Embedding(settings.modulus, size)(ids)
    else:
        ids, classes = keras.Input((3 * length, 2), dtype="int32"), length
        embedded = keras.layers.Embedding(4 * length, size)(ids)
        hidden = keras.layers.Dense(size)(keras.layers.Reshape((3 * length, 2 * size))(embedded))
    if settings.layer == "pairs":
        attention: Any = layers.SimplicialAttention(settings.num_heads)
    else:
        attention = layers.MultiHeadAttention(settings.num_heads, 3 * size // (2 * settings.num_heads))
    hidden = hidden + attention(keras.layers.LayerNormalization()(hidden))
    hidden = hidden + layers.FeedForward(4 * size)(keras.layers.LayerNormalization()(hidden))
    hidden = keras.layers.LayerNormalization()(hidden[:, :length])
    logits = keras.layers.Dense(classes)(hidden)
    compiled = keras.Model(ids, logits)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, settings.steps - 100, warmup_target=settings.learning_rate, warmup_steps=100
    )
    compiled.compile(
        keras.optimizers.Adam(rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=True,
    )
    return compiled


def run(run: references.Run) -> references.Figures:
    """Train on new examples in each batch, and return the accuracy on others."""
    import keras

    settings = run.settings
    keras.utils.set_random_seed(run.seed)
    trained = model(settings)
    examples = TASKS[settings.task]
    numbers, labels = examples(settings, settings.steps * settings.batch_size, run.seed)
    history = trained.fit(numbers, labels, settings.batch_size, verbose=0).history
    numbers, labels = examples(settings, 4096, run.seed + 1000)
    accuracy = trained.evaluate(numbers, labels, settings.batch_size, verbose=0)[1]
    share = np.bincount(labels.flatten()).max() / labels.size
    return {
        "accuracy": 100 * accuracy,
        "most frequent": 100 * float(share),
        "parameters": trained.count_params(),
        "loss": history["loss"][-1],
    }


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {
        f"{task}, {name}": Settings(task, layer, **sizes)
        for task, sizes in (("match3", {}), ("composition", {"length": 5, "steps": 1500}))
        for layer, name in (("pairs", "pairs"), ("single", "single elements"))
    },
    run,
    measures=("accuracy", "most frequent"),
    settings=Settings,
    seeds=(0, 1, 2),
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
