"""Find and copy: a source of 8 times the encoder's length has a marker, and the tokens after it are to be copied.

A small Transformer learns the task on sources that its encoder reads at once. Then it reads long sources in five ways:
truncated; at full length; in chunks, with attention to all of their states; as an Unlimiformer without further
training; and as an Unlimiformer after a few updates with retrieval. Each seed has its own weights and data.
The memory of generation is XLA's own count for several source lengths, on the JAX backend in a separate process.
`--help` lists the options.
"""

import dataclasses
import pathlib
import sys
from typing import Any

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import measuring
import references

START, END, MARKER, FIRST_SYMBOL = 2, 3, 4, 5


@dataclasses.dataclass(frozen=True)
class Settings:
    """The task, the model and its training."""

    vocabulary_size: int = 32
    copied_tokens: int = 4
    chunk_length: int = 32
    overlap: int = 16
    top_k: int = 16
    times_longer: int = 8
    num_layers: int = 2
    num_heads: int = 4
    model_dim: int = 64
    hidden_dim: int = 128
    batch_size: int = 64
    peak_rate: float = 0.002
    updates: int = 3000
    tuning_times_longer: int = 3
    tuning_rate: float = 0.0003
    tuning_updates: int = 200
    tested: int = 1000


def examples(settings: Settings, count: int, min_length: int, max_length: int, seed: int) -> tuple[Any, Any]:
    """Return padded sources (count, max_length), and targets (count, copied_tokens + 1) with the end token.

    All tokens except marker and padding are drawn from the same symbols, including the tokens to copy.
    """
    random, copied = np.random.default_rng(seed), settings.copied_tokens
    source = random.integers(FIRST_SYMBOL, settings.vocabulary_size, (count, max_length))
    length = random.integers(min_length, max_length + 1, (count, 1))
    marker_position = random.integers(0, length - copied)
    position = np.arange(max_length)
    source = np.where(position == marker_position, MARKER, np.where(position < length, source, 0))
    target = np.take_along_axis(source, marker_position + 1 + np.arange(copied), axis=1)
    return source, np.concatenate([target, np.full((count, 1), END)], axis=1)


def fit(
    model: Any, settings: Settings, lengths: tuple[int, int], rate: float, updates: int, seed: int
) -> Any:
    """Train a model for a number of updates, each on new examples, and return the losses."""
    import keras

    from keras_transformer import training

    source, target = examples(settings, updates * settings.batch_size, *lengths, seed)
    target_ids = np.concatenate([np.full((len(target), 1), START), target[:, :-1]], axis=1)
    warmup = updates // 10
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, updates - warmup, warmup_target=rate, warmup_steps=warmup
    )
    model.compile(
        keras.optimizers.Adam(schedule, clipnorm=1.0),
        training.LabelSmoothedCrossentropy(0.0),
        jit_compile=True,
    )
    parts = 10
    history = []
    for part in range(parts):
        rows = slice(part * len(source) // parts, (part + 1) * len(source) // parts)
        inputs = {"source_ids": source[rows], "target_ids": target_ids[rows]}
        history += model.fit(inputs, target[rows], batch_size=settings.batch_size, verbose=0).history["loss"]
        measuring.progress(f"{part + 1} of {parts}: loss {history[-1]:.4f}")
    return history


def exact(model: Any, source: Any, target: Any) -> float:
    """Return the percentage of sources whose answer is right in all tokens."""
    from keras_transformer.generation import generate

    answers = [
        generate(model, source[i : i + 100], max_new_tokens=target.shape[1]).best
        for i in range(0, len(source), 100)
    ]
    return 100 * float((np.concatenate(answers) == target).all(axis=1).mean())


def train(settings: Settings, seed: int) -> references.Figures:
    """Train on short sources, and test on long ones; the data use the four seeds after `seed`."""
    import keras

    from keras_transformer import models

    keras.utils.set_random_seed(seed)
    chunk = settings.chunk_length
    names = ("vocabulary_size", "num_layers", "num_heads", "model_dim", "hidden_dim")
    model = models.Transformer(**{name: getattr(settings, name) for name in names}, dropout=0.0)
    long = models.Unlimiformer(model, settings.top_k, chunk, settings.overlap)
    losses = fit(model, settings, (chunk // 2, chunk), settings.peak_rate, settings.updates, seed + 1)
    short = examples(settings, settings.tested, chunk // 2, chunk, seed + 2)
    length = settings.times_longer * chunk
    source, target = examples(settings, settings.tested, length, length, seed + 3)
    full = models.Unlimiformer(model, length, chunk, settings.overlap)
    accuracy = {
        "short sources": exact(model, *short),
        "cut off after one chunk": exact(model, source[:, :chunk], target),
        "whole, beyond what it was trained on": exact(model, source, target),
        "full attention to the chunks' states": exact(full, source, target),
        "Unlimiformer, not trained further": exact(long, source, target),
    }
    tuning = (chunk, settings.tuning_times_longer * chunk)
    tuning_losses = fit(long, settings, tuning, settings.tuning_rate, settings.tuning_updates, seed + 4)
    accuracy["Unlimiformer, fine-tuned"] = exact(long, source, target)
    return {
        **accuracy,
        "parameters": model.count_params(),
        "losses": losses,
        "tuning_losses": tuning_losses,
    }


def memory(settings: Settings, times: int) -> dict[str, Any]:
    """Return the memory that XLA reserves to generate from one source of `times` chunks, in bytes."""
    import jax
    import keras

    from keras_transformer import models
    from keras_transformer.generation.loop import generate_ids

    names = ("vocabulary_size", "num_layers", "num_heads", "model_dim", "hidden_dim")
    model = models.Transformer(**{name: getattr(settings, name) for name in names}, dropout=0.0)
    long = models.Unlimiformer(model, settings.top_k, settings.chunk_length, settings.overlap)
    length = times * settings.chunk_length

    def run(values: Any, source_ids: Any) -> Any:
        with keras.StatelessScope(state_mapping=zip(long.variables, values, strict=True)):
            return generate_ids(long, source_ids, settings.copied_tokens + 1)["ids"]

    values = [variable.value for variable in long.variables]
    compiled = jax.jit(run).lower(values, np.full((1, length), 5, "int32")).compile()
    temporary = compiled.memory_analysis().temp_size_in_bytes
    store = length * settings.model_dim * 4
    return {
        "times": times,
        "source_tokens": length,
        "store_bytes": store,
        "temporary_bytes": temporary,
        "beyond_store_bytes": temporary - store,
    }


def memory_in_a_process(times: int) -> references.Figures:
    """Return the result of `memory` in a separate process with JAX."""
    worker = measuring.Worker(__file__, "memory", ["--worker"], {"KERAS_BACKEND": "jax"})
    try:
        return worker.ask({"times": times}, 300)
    finally:
        worker.close()


EXACT = (
    "short sources",
    "cut off after one chunk",
    "whole, beyond what it was trained on",
    "full attention to the chunks' states",
    "Unlimiformer, not trained further",
    "Unlimiformer, fine-tuned",
)
LENGTHS = {f"memory of {times} chunks": times for times in (8, 32, 128)}
REFERENCE = references.Reference(
    __file__,
    __doc__,
    {"exact answers, %": None, **LENGTHS},
    lambda run: memory_in_a_process(run.case) if run.case else train(run.settings, run.seed),
    measures=(*EXACT, "store_bytes", "beyond_store_bytes"),
    settings=Settings,
    seeds=(0, 7, 14, 21, 28),  # five or more apart
)

if __name__ == "__main__":
    if "--worker" in sys.argv:
        measuring.serve(lambda times: memory(Settings(), times))
    else:
        sys.exit(REFERENCE.main())
