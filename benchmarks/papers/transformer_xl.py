"""Transformer-XL with and without its memory, beside a GPT: copying from the segment before, and Tiny Shakespeare.

"copy": streams of segments of 24 random symbols, each followed by its copy; the share of symbols that are predicted in
copies. "shakespeare": the validation loss in nats per character, of the first 8 characters of each segment and of all,
after as many updates on as many characters as nanoGPT's configuration for a CPU. A memory needs batches whose rows
continue; models without are trained on them, too, and on segments in random order ("shuffled"). The model with memory
is also validated without. `--help` lists the options.
"""

import argparse
import dataclasses
import pathlib
import sys
from typing import Any

import numpy as np
import shakespeare

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import references

FIRST = 8  # characters of a segment


@dataclasses.dataclass(frozen=True)
class Settings:
    """A model, and its training."""

    model: str = "memory"
    num_layers: int = 4
    num_heads: int = 4
    model_dim: int = 128
    length: int = 64
    memory_length: int = 64
    batch_size: int = 12
    steps: int = 2000
    learning_rate: float = 2e-3
    warmup: int = 100
    symbols: int = 8
    order: str = "continued"


COPY: dict[str, Any] = {
    "num_layers": 2,
    "model_dim": 64,
    "length": 24,
    "memory_length": 24,
    "batch_size": 32,
    "steps": 1500,
}
CASES = {
    "copy, memory": Settings(**COPY),
    "copy, no memory": Settings("no memory", **COPY),
    "shakespeare, memory": Settings(),
    "shakespeare, no memory": Settings("no memory"),
    "shakespeare, no memory, shuffled": Settings("no memory", order="shuffled"),
    "shakespeare, GPT": Settings("gpt"),
}


def build(vocabulary_size: int, settings: Settings) -> Any:
    """Return the compiled model."""
    import keras

    from keras_transformer import models, training

    sizes = settings.num_layers, settings.num_heads, settings.model_dim, 4 * settings.model_dim
    if settings.model == "gpt":
        model: Any = models.GPT(vocabulary_size, *sizes, settings.length, 0.0, end_id=0)
    else:
        model = models.TransformerXL(
            vocabulary_size,
            *sizes,
            settings.memory_length,
            settings.batch_size if settings.model == "memory" else None,
            0.0,
            "gelu_tanh",
            "pre",
            end_id=0,
        )
    warmup = min(settings.warmup, settings.steps // 2)  # for a short try
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, settings.steps - warmup, 0.1, warmup_target=settings.learning_rate, warmup_steps=warmup
    )
    optimizer = keras.optimizers.AdamW(rate, beta_2=0.99, global_clipnorm=1.0)
    model.compile(optimizer, training.LabelSmoothedCrossentropy(0.0), jit_compile=True)
    return model


def callbacks(model: Any) -> list[Any]:
    """Return the callbacks that a model needs."""
    from keras_transformer import training

    return [training.ResetState()] if getattr(model, "batch_size", None) else []


def reset(model: Any) -> None:
    """Forget the earlier segments, if the model has a memory."""
    if getattr(model, "batch_size", None):
        model.reset_state()


def copies(settings: Settings, batches: int, seed: int) -> np.ndarray:
    """Return streams (batch_size, batches · length + 1) of random segments, each followed by its copy."""
    shape = settings.batch_size, batches // 2 + 1, 1, settings.length
    segments = np.random.default_rng(seed).integers(1, settings.symbols + 1, shape)
    return np.tile(segments, (1, 1, 2, 1)).reshape(len(segments), -1)[:, : batches * settings.length + 1]


def segments_of(streams: np.ndarray, length: int) -> np.ndarray:
    """Return the segments of streams (B, n · length), in batches whose rows continue, (n · B, length)."""
    return np.swapaxes(streams.reshape(len(streams), -1, length), 0, 1).reshape(-1, length)


def copy(settings: Settings, seed: int) -> references.Figures:
    """Train on copies, and return the share of predicted symbols in copies of other segments."""
    import keras

    keras.utils.set_random_seed(seed)
    model = build(settings.symbols + 1, settings)
    streams = copies(settings, settings.steps, seed)
    inputs, labels = (segments_of(part, settings.length) for part in (streams[:, :-1], streams[:, 1:]))
    options = {"batch_size": settings.batch_size, "verbose": 0}
    losses = model.fit(inputs, labels, shuffle=False, callbacks=callbacks(model), **options).history["loss"]
    tested = copies(settings, 40, seed + 100)
    reset(model)
    logits = model.predict(segments_of(tested[:, :-1], settings.length), **options)
    right = (logits.argmax(axis=-1) == segments_of(tested[:, 1:], settings.length)).reshape(
        -1, settings.batch_size, settings.length
    )
    # The last label of a segment is the first symbol of the next.
    return {
        "copied": float(right[1::2, :, :-1].mean()),
        "parameters": sum(int(np.prod(weight.shape)) for weight in model.trainable_weights),
        "loss": losses[-1],
    }


def characters(settings: Settings, seed: int, folder: pathlib.Path) -> references.Figures:
    """Train on Tiny Shakespeare, and return the loss at each position of a segment of the validation text."""
    import keras

    from keras_transformer import data

    keras.utils.set_random_seed(seed)
    texts = shakespeare.read(folder)
    tokenizer = shakespeare.Characters(texts[0] + texts[1])
    model = build(tokenizer.vocabulary_size, settings)
    options: dict[str, Any] = {"batch_size": settings.batch_size, "length": settings.length}
    train = data.language_modeling(
        [texts[0]], tokenizer, contiguous=settings.order == "continued", seed=seed, **options
    )
    every = min(int(train.cardinality()), settings.steps)
    epochs = settings.steps / every
    for epoch in range(-(-settings.steps // every)):
        steps = round(min(1.0, epochs - epoch) * every)
        reset(model)
        history = model.fit(train.take(steps), verbose=0, shuffle=False).history
        print(f"{epoch + 1} of {epochs:.1f}: {history['loss'][-1]:.4f}", file=sys.stderr, flush=True)
    held_out = data.language_modeling([texts[1]], tokenizer, shuffle=False, contiguous=True, **options)
    figures = validate(model, held_out, settings)
    if settings.model == "memory":
        without = validate(model.with_batch_size(None), held_out, settings)
        figures |= {f"{name} without memory": value for name, value in without.items()}
    return {**figures, "parameters": sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)}


def validate(model: Any, held_out: Any, settings: Settings) -> references.Figures:
    """Return the loss of all characters, of the first of a segment, and at each position of a segment."""
    losses, counts = np.zeros(settings.length), np.zeros(settings.length)
    reset(model)
    for ids, labels in held_out:
        logits = model.predict_on_batch(ids).astype("float64")
        labels = labels.numpy()
        of_labels = np.take_along_axis(logits, np.maximum(labels, 0)[..., None], axis=-1)[..., 0]
        loss = np.log(np.exp(logits).sum(axis=-1)) - of_labels
        real = labels > 0
        losses, counts = losses + (loss * real).sum(axis=0), counts + real.sum(axis=0)
    return {
        "loss": float(losses.sum() / counts.sum()),
        "first": float(losses[:FIRST].sum() / counts[:FIRST].sum()),
        "positions": (losses / counts).tolist(),
    }


def run(run: references.Run) -> references.Figures:
    """Train and test one model."""
    if run.settings.length == COPY["length"]:
        return copy(run.settings, run.seed)
    return characters(run.settings, run.seed, run.options.data)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the data."""
    shakespeare.add_options(parser)


REFERENCE = references.Reference(
    __file__,
    __doc__,
    CASES,
    run,
    measures=("copied", "loss", "first", "loss without memory", "first without memory"),
    settings=Settings,
    seeds=(0, 1, 2),
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
