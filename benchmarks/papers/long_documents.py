"""Long documents whose key facts lie beyond the cut: cut off, in windows, and with an Unlimiformer.

A document is random symbols with a few facts, each a topic and the symbols after it. A model learns from documents of
one chunk, in which some facts are missing. Then it reads documents of 8 chunks: cut off after the first chunk; in
windows, whose probabilities are averaged, or whose summaries are joined; as an Unlimiformer without further training;
and as an Unlimiformer after a few updates on documents of up to 3 chunks. Each seed has its own weights and data.

"classification": the word of a statement or, in half of the documents, of the correction of it elsewhere. "summary":
all facts in the order of their topics, by ROUGE and exactly.
`--help` lists the options.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import measuring
import references

PAD, START, END, FIRST_TOPIC = 0, 2, 3, 4
ROUGE = ("rouge1", "rouge2", "rougeL")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The documents, the model and its training."""

    task: str = "classification"
    topics: int = 2
    words: int = 1  # of a fact, after its topic
    symbols: int = 4
    kept: float = 0.8  # the share of facts in short documents
    chunk_length: int = 16
    overlap: int = 8
    top_k: int = 8
    times_longer: int = 8
    num_layers: int = 1
    num_heads: int = 4
    model_dim: int = 32
    hidden_dim: int = 64
    batch_size: int = 64
    peak_rate: float = 0.005
    updates: int = 1500
    tuning_times_longer: int = 3
    tuning_rate: float = 0.0003
    tuning_updates: int = 40
    tested: int = 400


CASES = {
    "classification": Settings(),
    "summary": Settings("summary", topics=3, symbols=8, updates=3000),
}


class Documents(NamedTuple):
    """Documents that end with the end token.

    Attributes:
        ids: (n, S), padded.
        facts: (n, topics, 1 + words), each topic and its words, padding for a fact that is missing.
        label: (n,), the index of the word of the second fact if the document has it, otherwise of the first.
    """

    ids: np.ndarray
    facts: np.ndarray
    label: np.ndarray


def documents(settings: Settings, count: int, lengths: tuple[int, int], kept: float, seed: int) -> Documents:
    """Return documents of random lengths with facts at random places; a share of the facts is kept."""
    random = np.random.default_rng(seed)
    topics, size = settings.topics, settings.words + 1
    first = FIRST_TOPIC + topics

    def symbols(*shape: int) -> np.ndarray:
        return random.integers(first, first + settings.symbols, shape)

    ids, length = symbols(count, lengths[1]), random.integers(lengths[0], lengths[1] + 1, (count, 1))
    words = symbols(count, topics, settings.words)
    has_fact = np.ones((count, topics, 1), bool)
    if settings.task == "classification":
        has_fact[:, 1] = random.random((count, 1)) < 0.5
    label = np.where(has_fact[:, 1, 0], words[:, 1, 0], words[:, 0, 0]) - first
    facts = np.concatenate([np.tile(np.arange(FIRST_TOPIC, first)[:, None], (count, 1, 1)), words], axis=2)
    # A random slot of the document for each fact.
    slots = random.random((count, lengths[1] // size))
    slots[np.arange(slots.shape[1]) >= (length - 1) // size] = 1
    places = size * slots.argsort(axis=1)[:, :topics, None] + np.arange(size)
    is_kept = has_fact & (random.random((count, topics, 1)) < kept)
    found = np.where(is_kept, facts, np.take_along_axis(ids[:, None], places, axis=2))
    np.put_along_axis(ids, places.reshape(count, -1), found.reshape(count, -1), axis=1)
    position = np.arange(lengths[1])
    ids = np.where(position < length - 1, ids, np.where(position == length - 1, END, PAD))
    return Documents(ids, np.where(is_kept, facts, PAD), label)


def summaries(facts: np.ndarray) -> np.ndarray:
    """Return the facts (n, topics, size) that are not missing one after another, an end token and padding (n, T)."""
    rows = facts.reshape(len(facts), -1)
    ended = np.concatenate([rows, np.full((len(rows), 1), END)], axis=1)
    order = np.argsort(ended == PAD, axis=1, kind="stable")
    return np.take_along_axis(ended, order, axis=1)


def windows(ids: np.ndarray, length: int, stride: int) -> np.ndarray:
    """Return windows (n, W, length) of documents (n, S) without padding, each ended with the end token."""
    starts = np.arange(0, ids.shape[1] - 1 - (length - 1) + stride, stride)
    parts = np.pad(ids[:, :-1], [(0, 0), (0, length)])[:, starts[:, None] + np.arange(length - 1)]
    padded = np.concatenate([parts, np.zeros_like(parts[..., :1])], axis=2)
    end = (padded != PAD).sum(axis=2, keepdims=True)
    return np.where(np.arange(length) == end, END, padded)


def model_of(settings: Settings) -> tuple[Any, ...]:
    """Return a model for the task, and an Unlimiformer for it with the same encoder–decoder."""
    from keras_transformer import models

    names = ("num_layers", "num_heads", "model_dim", "hidden_dim")
    size = FIRST_TOPIC + settings.topics + settings.symbols
    base = models.Transformer(size, **{name: getattr(settings, name) for name in names}, dropout=0.0)
    long = models.Unlimiformer(base, settings.top_k, settings.chunk_length, settings.overlap)
    if settings.task == "summary":
        return base, long
    return tuple(
        models.EncoderDecoderClassifier(encoder, settings.symbols, decoder_input="start")
        for encoder in (base, long)
    )


def fit(
    model: Any, settings: Settings, chunks: tuple[float, float], rate: float, updates: int, seed: int
) -> Any:
    """Train a model on new documents in each update, of `chunks` chunks, and return the losses."""
    import keras

    from keras_transformer import training

    lengths = tuple(round(each * settings.chunk_length) for each in chunks)
    kept = settings.kept if chunks[1] <= 1 else 1.0
    found = documents(settings, updates * settings.batch_size, lengths, kept, seed)
    inputs: Any = found.ids
    labels, loss = found.label, keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if settings.task == "summary":
        labels, loss = summaries(found.facts), training.LabelSmoothedCrossentropy(0.0)
        shifted = np.concatenate([np.full((len(labels), 1), START), labels[:, :-1]], axis=1)
        inputs = {"source_ids": inputs, "target_ids": shifted}
    warmup = updates // 10
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, updates - warmup, warmup_target=rate, warmup_steps=warmup
    )
    model.compile(keras.optimizers.Adam(schedule, clipnorm=1.0), loss, jit_compile=False)
    history = []
    for part in np.array_split(np.arange(len(labels)), 10):
        rows = keras.tree.map_structure(lambda values, part=part: values[part], inputs)
        history += model.fit(rows, labels[part], settings.batch_size, verbose=0).history["loss"]
        measuring.progress(f"loss {history[-1]:.4f}")
    return history


def probabilities(model: Any, ids: np.ndarray) -> np.ndarray:
    """Return the probabilities (n, symbols) of the words of documents."""
    logits = model.predict(ids, batch_size=100, verbose=0).astype("float64")
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def written(model: Any, ids: np.ndarray, count: int) -> np.ndarray:
    """Return generated summaries (n, count)."""
    from keras_transformer.generation import generate

    parts = [ids[start : start + 100] for start in range(0, len(ids), 100)]
    return np.concatenate([generate(model, part, max_new_tokens=count).best for part in parts])


def as_text(ids: Sequence[int]) -> str:
    """Return the words of ids."""
    return " ".join(f"w{id_}" for id_ in ids if id_ > END)


def scores(settings: Settings, model: Any, test: Documents, stride: int | None = None) -> references.Figures:
    """Return the scores of a model on documents, in windows with a `stride` if there is one."""
    from keras_transformer import pipelines

    parts = test.ids[:, None] if stride is None else windows(test.ids, settings.chunk_length, stride)
    rows = parts.reshape(-1, parts.shape[2])
    if settings.task == "classification":
        each = probabilities(model, rows).reshape(*parts.shape[:2], -1)
        return {"accuracy": 100 * float((each.mean(axis=1).argmax(axis=1) == test.label).mean())}
    expected = summaries(test.facts)
    found = written(model, rows, expected.shape[1]).reshape(len(parts), -1)
    answers, correct = map(as_text, found), map(as_text, expected)
    pairs = [(str(number), text) for number, text in enumerate(correct)]
    evaluated = pipelines.evaluate(lambda _: [*answers], pairs, metrics=ROUGE)
    return {"exact": 100 * evaluated["exact_match"], **{name: evaluated[name] for name in ROUGE}}


def train(run: references.Run) -> references.Figures:
    """Train on short documents, and test on long ones; the data use the four seeds after the run's."""
    import keras

    settings, seed, chunk = run.settings, run.seed, run.settings.chunk_length
    keras.utils.set_random_seed(seed)
    model, long = model_of(settings)
    losses = fit(model, settings, (0.5, 1), settings.peak_rate, settings.updates, seed + 1)
    long.set_weights(model.get_weights())
    short = documents(settings, settings.tested, (chunk // 2, chunk), 1.0, seed + 2)
    length = settings.times_longer * chunk
    test = documents(settings, settings.tested, (length, length), 1.0, seed + 3)
    cut = test._replace(ids=windows(test.ids, chunk, length)[:, 0])
    stride = chunk - settings.overlap if settings.task == "classification" else chunk - 1
    found = {
        "short documents": scores(settings, model, short),
        "cut off": scores(settings, model, cut),
        "windows": scores(settings, model, test, stride),
        "Unlimiformer, not trained further": scores(settings, long, test),
    }
    chunks = (1, settings.tuning_times_longer)
    tuning_losses = fit(long, settings, chunks, settings.tuning_rate, settings.tuning_updates, seed + 4)
    found["Unlimiformer, fine-tuned"] = scores(settings, long, test)
    return {
        **{f"{name}, {measure}": value for name, each in found.items() for measure, value in each.items()},
        "parameters": model.count_params(),
        "losses": losses,
        "tuning losses": tuning_losses,
    }


READERS = (
    "short documents",
    "cut off",
    "windows",
    "Unlimiformer, not trained further",
    "Unlimiformer, fine-tuned",
)
REFERENCE = references.Reference(
    __file__,
    __doc__,
    CASES,
    train,
    measures=[f"{reader}, {measure}" for measure in ("accuracy", "exact", *ROUGE) for reader in READERS],
    settings=Settings,
    seeds=(0, 7, 14),  # five or more apart
    packages=("rouge-score",),
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
