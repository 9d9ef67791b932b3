"""GPT on Tiny Shakespeare, character by character: the validation loss, over seeds.

The configurations are nanoGPT's published ones ("cpu": 1.88; "gpu": 1.4697), and "ours": as many steps on as many
characters as "cpu", with rotary positions, RMS norms and SwiGLU. "gpu" needs a GPU: `KERAS_BACKEND=jax … --only gpu`.
Losses are in nats per character. `--help` lists the options.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
from typing import Any

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import references


@dataclasses.dataclass(frozen=True)
class Settings:
    """nanoGPT's settings for a CPU."""

    num_layers: int = 4
    num_heads: int = 4
    model_dim: int = 128
    hidden_dim: int = 512
    length: int = 64
    batch_size: int = 12
    steps: int = 2000
    dropout: float = 0.0
    activation: str = "gelu"
    norm: str = "layer"
    position_encoding: str = "learned"
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-4
    warmup: int = 100
    beta_2: float = 0.99
    weight_decay: float = 0.1
    validate_every: int = 250


CONFIGS = {
    "cpu": Settings(),
    "ours": Settings(
        hidden_dim=344,  # gated: two thirds of the width, as many weights
        activation="swiglu",
        norm="rms",
        position_encoding="rotary",
        learning_rate=4e-3,
        final_learning_rate=0.0,
    ),
    "gpu": Settings(
        num_layers=6,
        num_heads=6,
        model_dim=384,
        hidden_dim=1536,
        length=256,
        batch_size=64,
        steps=5000,
        dropout=0.2,
    ),
}


class Characters:
    """A tokenizer of the characters of a text, all of one byte; 0 is padding and end."""

    pad_id = end_id = 0

    def __init__(self, text: bytes) -> None:
        characters = sorted(set(text))
        self.vocabulary_size = len(characters) + 1
        self.ids = np.zeros(256, np.int32)
        self.ids[characters] = np.arange(1, self.vocabulary_size)

    def tokenize(self, texts: Any) -> Any:
        """Convert strings (B,) to int32 ids (B, None)."""
        import tensorflow as tf

        rows = tf.strings.bytes_split(texts)
        return rows.with_values(
            tf.gather(self.ids, tf.cast(tf.io.decode_raw(rows.values, tf.uint8)[:, 0], tf.int32))
        )


def read(folder: pathlib.Path) -> tuple[bytes, bytes]:
    """Return the first 90 % of the characters, and the rest."""
    text = (folder / "input.txt").read_bytes()
    return text[: int(0.9 * len(text))], text[int(0.9 * len(text)) :]


def build(tokenizer: Characters, settings: Settings) -> Any:
    """Return the compiled model."""
    import keras

    from keras_transformer import models, training

    model = models.GPT(
        tokenizer.vocabulary_size,
        settings.num_layers,
        settings.num_heads,
        settings.model_dim,
        settings.hidden_dim,
        settings.length,
        settings.dropout,
        settings.activation,
        norm=settings.norm,
        position_encoding=settings.position_encoding,
        use_bias=False,
        end_id=tokenizer.end_id,
    )
    warmup = min(settings.warmup, settings.steps // 2)  # for a short try
    rate = keras.optimizers.schedules.CosineDecay(
        0.0,
        settings.steps - warmup,
        settings.final_learning_rate / settings.learning_rate,
        warmup_target=settings.learning_rate,
        warmup_steps=warmup,
    )
    common = {"weight_decay": settings.weight_decay, "global_clipnorm": 1.0}
    if settings.optimizer == "muon":
        optimizer = keras.optimizers.Muon(
            rate, adam_beta_2=settings.beta_2, exclude_layers=["embedding", "positions"], **common
        )
    else:
        optimizer = keras.optimizers.AdamW(rate, beta_2=settings.beta_2, **common)
    optimizer.exclude_from_weight_decay(var_names=["beta", "gamma", "scale", "bias"])
    model.compile(
        optimizer,
        training.LabelSmoothedCrossentropy(0.0),
        metrics=[training.Perplexity()],
        jit_compile="auto",
    )
    return model


def train(texts: tuple[bytes, bytes], settings: Settings, seed: int) -> dict[str, Any]:
    """Train a model, and validate it on the full validation text after every `validate_every` steps."""
    import keras

    from keras_transformer import data

    keras.utils.set_random_seed(seed)
    tokenizer = Characters(texts[0] + texts[1])
    model = build(tokenizer, settings)
    options = {"length": settings.length}
    rows = data.language_modeling([texts[0]], tokenizer, settings.batch_size, seed=seed, **options)
    held_out = data.language_modeling([texts[1]], tokenizer, 64, shuffle=False, **options)
    every = min(settings.validate_every, settings.steps)
    history = model.fit(
        rows.repeat(),
        steps_per_epoch=every,
        epochs=settings.steps // every,
        validation_data=held_out,
        verbose=0,
        shuffle=False,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=report)],
    )
    # In nats, over all characters, each predicted once.
    losses = np.log(history.history["val_perplexity"]).tolist()
    return {
        "backend": keras.backend.backend(),
        "final": losses[-1],
        "best": min(losses),
        "losses": {every * (epoch + 1): loss for epoch, loss in enumerate(losses)},
        "parameters": model.count_params(),
    }


def report(epoch: int, logs: dict[str, float]) -> None:
    """Print the progress of training."""
    print(f"{epoch + 1}: {np.log(logs['val_perplexity']):.4f}", file=sys.stderr, flush=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the data."""
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        default=pathlib.Path(os.environ.get("KERAS_TRANSFORMER_DATA", ".")) / "tinyshakespeare",
        help="folder of input.txt (default: tinyshakespeare in that of KERAS_TRANSFORMER_DATA)",
    )


REFERENCE = references.Reference(
    __file__,
    __doc__,
    CONFIGS,
    lambda run: train(read(run.options.data), run.settings, run.seed),
    measures=("final",),
    published={"cpu": 1.88, "ours": 1.88, "gpu": 1.4697},
    settings=Settings,
    seeds=(0, 1, 2),
    chosen=("cpu", "ours"),
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
