"""T5's recipe at a small size: span corruption, then fine-tuning on two tasks, beside training from scratch.

The sentences of the phrasebook in English and Spanish are the unlabelled text; with `--corpus multi30k`, the captions
of Multi30k in English and German, which need more time than two cores have. The tasks, from text to text, have few
examples: "order", the words of an English sentence in their order, and "translation" from English, both by chrF. As in
the paper, the model is pre-trained once, and each task is compared with training from scratch for the same processor
time as fine-tuning; another model trains from scratch for the time of pre-training and fine-tuning. Each keeps the
weights of the epoch with the lowest validation loss. The optimizer is the paper's Adafactor: with Adam at 2e-3,
attention without a scale collapses in pre-training. `--help` lists the options.
"""

import dataclasses
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import measuring
import references

Pairs = list[tuple[str, str]]
CONTENDERS = ("pre-trained", "from scratch", "from scratch in the time of both")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The model, its data and its training."""

    vocabulary_size: int = 800
    sentinels: int = 16
    num_layers: int = 2
    num_heads: int = 4
    model_dim: int = 128
    hidden_dim: int = 256
    key_dim: int = 32
    dropout: float = 0.1
    length: int = 40
    batch_size: int = 64
    corpus: str = "phrasebook"
    examples: int = 300  # of a task
    pretraining_seconds: float = 400.0
    tuning_seconds: float = 40.0
    learning_rate: float = 2e-2  # of Adafactor, relative to the size of weights
    tested: int = 500


def shuffled(captions: Sequence[str], seed: int) -> Pairs:
    """Return captions with their words in a random order, and the captions."""
    random = np.random.default_rng(seed)
    return [(f"order: {' '.join(random.permutation(caption.split()))}", caption) for caption in captions]


def tasks_of(splits: Sequence[Pairs], settings: Settings, seed: int) -> dict[str, list[Pairs]]:
    """Return the training, validation and test pairs of each task."""
    train, validation, test = (
        split[:count]
        for split, count in zip(splits, (settings.examples, settings.tested, settings.tested), strict=True)
    )
    parts = (train, validation, test)
    return {
        "order": [shuffled([en for en, _ in part], seed + i) for i, part in enumerate(parts)],
        "translation": [[(f"translate: {en}", de) for en, de in part] for part in parts],
    }


def new_model(tokenizer: Any, settings: Settings) -> Any:
    """Return an untrained T5, whose vocabulary ends with the sentinels."""
    from keras_transformer import models

    names = ("num_layers", "num_heads", "model_dim", "hidden_dim", "key_dim", "dropout")
    return models.T5(
        tokenizer.vocabulary_size + settings.sentinels,
        **{name: getattr(settings, name) for name in names},
        **{name: getattr(tokenizer, name) for name in ("pad_id", "start_id", "end_id")},
    )


def fit(model: Any, batches: Any, validation: Any, seconds: float, settings: Settings) -> dict[str, Any]:
    """Train for a processor time with a rate that rises and then decays to zero; keep the best weights.

    The time includes validation, but neither the first batch nor the first validation, which compile.
    """
    import keras

    from keras_transformer import training

    class ProcessorTime(keras.callbacks.Callback):
        """Set the rate by the time, stop at its end, and restore the weights of the lowest validation loss."""

        def __init__(self) -> None:
            super().__init__()
            self.started: float | None = None
            self.compiling = 0.0  # time of the first validation
            self.best: tuple[float, Any] = (np.inf, None)
            self.losses: list[float] = []
            self.updates = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.started is None:
                self.started = time.process_time()
            self.updates += 1
            done = (time.process_time() - self.started - self.compiling) / seconds
            self.model.optimizer.learning_rate = settings.learning_rate * max(
                0.0, min(done / 0.1, (1 - done) / 0.9)
            )
            if done >= 1:
                self.model.stop_training = True

        def on_test_begin(self, logs: Any = None) -> None:
            self.validating = time.process_time()

        def on_test_end(self, logs: Any = None) -> None:
            self.compiling = self.compiling or time.process_time() - self.validating

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.losses.append(logs["val_loss"])
            measuring.progress(f"epoch {epoch + 1}: {logs['loss']:.3f}, {logs['val_loss']:.3f}")
            if logs["val_loss"] < self.best[0]:
                self.best = logs["val_loss"], model.get_weights()

    clock = ProcessorTime()
    model.compile(
        keras.optimizers.Adafactor(0.0, relative_step=False),
        training.LabelSmoothedCrossentropy(0.0, pad_id=model.pad_id),
        jit_compile=False,
    )
    model.fit(
        batches, validation_data=validation, epochs=100_000, shuffle=False, verbose=0, callbacks=[clock]
    )
    model.set_weights(clock.best[1])
    return {
        "updates": clock.updates,
        "epochs": len(clock.losses),
        "best epoch": int(np.argmin(clock.losses)) + 1,
        "validation loss": clock.best[0],
    }


def score(model: Any, tokenizer: Any, test: Pairs, settings: Settings) -> float:
    """Return the chrF of a model on the test pairs."""
    from keras_transformer import generation, pipelines

    sources = tokenizer.encode([source for source, _ in test], add_end=True).numpy()
    parts = [
        generation.generate(model, sources[i : i + 100], max_new_tokens=settings.length).best
        for i in range(0, len(sources), 100)
    ]
    ids = np.concatenate(parts)
    ids = np.where(ids < tokenizer.vocabulary_size, ids, tokenizer.unknown_id)
    answers = [text.decode() for text in tokenizer.detokenize(ids).numpy()]
    numbered = [(str(i), target) for i, (_, target) in enumerate(test)]
    return pipelines.evaluate(lambda _: answers, numbered, metrics=["chrf"])["chrf"]


def train(run: references.Run) -> references.Figures:
    """Pre-train a model, and fine-tune it on each task; train others from scratch."""
    import keras

    from keras_transformer import data, text
    from keras_transformer.datasets import multi30k, phrasebook

    settings, seed = run.settings, run.seed
    keras.utils.set_random_seed(seed)
    if settings.corpus == "phrasebook":
        loaded = [[(en, es) for es, en in split] for split in phrasebook.load_data()]
    else:
        loaded = multi30k.load_data("en", "de")
    splits = [[(first.lower(), second.lower()) for first, second in split] for split in loaded]
    captions = [caption for pair in splits[0] for caption in pair]
    prompts = ["order: translate:"] * 20
    tokenizer = text.SentencePieceTokenizer.train([*captions[:8000], *prompts], settings.vocabulary_size)
    ids = {
        "start_id": tokenizer.start_id,
        "sentinels": range(tokenizer.vocabulary_size, tokenizer.vocabulary_size + settings.sentinels),
    }

    def corrupted(texts: Sequence[str], shuffle: bool) -> Any:
        return data.span_corruption(
            texts,
            tokenizer,
            settings.batch_size,
            max_length=settings.length,
            shuffle=shuffle,
            seed=seed,
            **ids,
        )

    def batches(pairs: Pairs, shuffle: bool) -> Any:
        return data.translation_pairs(
            pairs, tokenizer, settings.batch_size, max_length=64, length_buckets=3, shuffle=shuffle, seed=seed
        )

    pretrained = new_model(tokenizer, settings)
    held_out = [caption for pair in splits[1][: settings.tested] for caption in pair]
    validation = corrupted(held_out, False)
    results: dict[str, Any] = {
        "pre-training": fit(
            pretrained, corrupted(captions, True), validation, settings.pretraining_seconds, settings
        ),
        "parameters": pretrained.count_params(),
    }
    for task, (train_pairs, validation_pairs, test) in tasks_of(splits, settings, seed).items():
        for contender in CONTENDERS:
            model, seconds = new_model(tokenizer, settings), settings.tuning_seconds
            if contender == CONTENDERS[2]:
                seconds += settings.pretraining_seconds
            if contender == CONTENDERS[0]:
                model.set_weights(pretrained.get_weights())
            name = f"{task}, {contender}"
            results[f"{name}, training"] = fit(
                model, batches(train_pairs, True), batches(validation_pairs, False), seconds, settings
            )
            results[name] = score(model, tokenizer, test, settings)
            measuring.progress(f"{name}: {results[name]:.1f}")
    return results


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {"phrasebook": None},
    train,
    measures=[f"{task}, {contender}" for task in ("order", "translation") for contender in CONTENDERS],
    settings=Settings,
    seeds=(0, 7, 14),
    packages=("sacrebleu",),
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
