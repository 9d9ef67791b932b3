"""A masked token that both sides determine: one Transformer block with BERT's mask and with GPT's.

A token of a random sequence is masked; it is the sum of the tokens before and after it, modulo the vocabulary. A
causal mask hides one of the two, so that no position tells more than chance. `--help` lists the options.
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
    """The task, the model and its training; an empty `relation` relates all tokens."""

    relation: str = ""
    length: int = 8
    symbols: int = 5
    model_dim: int = 32
    num_heads: int = 2
    batch_size: int = 128
    steps: int = 600
    learning_rate: float = 5e-3


def sentences(settings: Settings, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ids (n, T) with one masked token each, whose id is `symbols`, and labels (n, T), −1 elsewhere."""
    random, rows = np.random.default_rng(seed), np.arange(count)
    ids = random.integers(0, settings.symbols, (count, settings.length))
    masked = random.integers(1, settings.length - 1, count)
    labels = np.full_like(ids, -1)
    labels[rows, masked] = (ids[rows, masked - 1] + ids[rows, masked + 1]) % settings.symbols
    ids[rows, masked] = settings.symbols
    return ids, labels


def model(settings: Settings) -> Any:
    """Return a compiled model of one block."""
    import keras

    from keras_transformer import layers

    size = settings.model_dim
    ids = keras.Input((settings.length,), dtype="int32")
    hidden = keras.layers.Embedding(settings.symbols + 1, size)(ids)
    hidden = layers.LearnedPositions(settings.length)(hidden)
    attention = layers.MultiHeadAttention(settings.num_heads, relation=settings.relation or None)
    hidden = layers.EncoderBlock(attention, layers.FeedForward(4 * size))(hidden)
    compiled = keras.Model(ids, keras.layers.Dense(settings.symbols)(hidden))
    compiled.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(settings.learning_rate, settings.steps)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1),
        jit_compile=True,
    )
    return compiled


def compare(run: references.Run) -> references.Figures:
    """Train on new sequences in each batch, and return the accuracy on masked tokens of others, in percent."""
    import keras

    settings = run.settings
    keras.utils.set_random_seed(run.seed)
    trained = model(settings)
    count = settings.steps * settings.batch_size
    trained.fit(*sentences(settings, count, run.seed), settings.batch_size, verbose=0)
    ids, labels = sentences(settings, 2048, run.seed + 1000)
    right = trained.predict(ids, settings.batch_size, verbose=0).argmax(axis=-1) == labels
    return {
        "accuracy": 100 * float(right[labels >= 0].mean()),
        "chance": 100 / settings.symbols,
        "parameters": trained.count_params(),
    }


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {"BERT's mask": Settings(), "GPT's mask": Settings("causal")},
    compare,
    measures=("accuracy", "chance"),
    settings=Settings,
    seeds=(0, 1, 2),
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
