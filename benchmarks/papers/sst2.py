"""Sentiment of SST-2's 6,920 sentences, from scratch: BERT, with and without pre-training, a causal encoder, an LSTM.

All have the same vocabulary, embeddings, number of weights (nearly), updates, batches, dropout, optimiser and pooling
(the mean of all tokens). Weights are averaged over updates. The number of epochs is chosen by the cross-entropy on the
validation sentences; then the model is trained again on training and validation sentences. Pre-training is masked
language modelling on the training sentences; its embeddings are mixed with random ones. `--help` lists the options.

`--train`, `--validation` and `--test` name files of other sentences: a label, a tab and the sentence on each line.
"""

import argparse
import dataclasses
import functools
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import references

BERT, PRETRAINED, CAUSAL, LSTM = "bert", "bert_pretrained", "causal", "lstm"
BOTH = "train and validation"
FILES = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The models and their training."""

    vocabulary_size: int = 8000
    num_layers: int = 2
    num_heads: int = 4
    model_dim: int = 64
    hidden_dim: int = 128
    dropout: float = 0.5
    word_dropout: float = 0.3
    label_smoothing: float = 0.1
    batch_size: int = 32
    epochs: int = 8
    peak_rate: float = 1e-3
    averaging: float = 0.998
    weight_decay: float = 0.01
    pretraining_rate: float = 2e-3
    pretraining_gaps: float = 0.25
    pretraining_epochs: int = 30
    pretraining_share: float = 0.5
    pretraining_length: int = 40
    pretraining_dropout: float = 0.0
    boundaries: tuple[int, ...] = (17, 33, 49)


def read(files: Sequence[pathlib.Path]) -> tuple[list[list[tuple[str, int]]], list[str]]:
    """Return the (sentence, class) pairs of files of `label<TAB>sentence` lines, and the labels of the first file."""
    parts = []
    for path in files:
        part, expected = [], f"{path} must have a label, a tab and a sentence on each line"
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            label, _, sentence = line.partition("\t")
            if line and not (label and sentence.strip()):
                raise ValueError(f"{expected}. Received: {line!r} in line {number}")
            if line:
                part.append((sentence, label))
        if not part:
            raise ValueError(f"{expected}. Received: no line")
        parts.append(part)
    classes = sorted({label for _, label in parts[0]})
    for path, part in zip(files, parts, strict=True):
        if unknown := sorted({label for _, label in part} - set(classes)):
            raise ValueError(
                f"{path} must have only the labels of {files[0]}: {classes}. Received: {unknown}"
            )
    return [[(sentence, classes.index(label)) for sentence, label in part] for part in parts], classes


class Data:
    """Sentences as ids.

    Args:
        settings: The vocabulary's and the batches' sizes.
        parts: The (sentence, class) pairs for training, validation and test.
        num_classes: The number of classes.
    """

    def __init__(self, settings: Settings, parts: Sequence[list[tuple[str, int]]], num_classes: int) -> None:
        from keras_transformer import text

        self.num_classes = num_classes
        self.parts = dict(zip(FILES, parts, strict=True))
        self.parts[BOTH] = [*self.parts["train"], *self.parts["validation"]]
        self.sentences = [sentence for sentence, _ in self.parts["train"]]
        self.tokenizer = text.WordPieceTokenizer.train(self.sentences, settings.vocabulary_size)
        self.ids, self.labels = {}, {}
        for name, part in self.parts.items():
            texts, labels = zip(*part, strict=True)
            self.ids[name] = self.tokenizer.encode(list(texts), add_start=True, add_end=True)
            self.labels[name] = np.array(labels, "int32")
        self.length = max(int(ids.shape[1]) for ids in self.ids.values())

    def batches(self, part: str, settings: Settings, seed: int | None) -> Any:
        """Return batches of similar lengths; with a seed, in random order and with words masked at random."""
        import tensorflow as tf

        pad_id, mask_id = self.tokenizer.pad_id, self.tokenizer.mask_id
        dataset = tf.data.Dataset.from_tensor_slices((self.ids[part], self.labels[part]))
        dataset = dataset.map(lambda ids, label: (tf.boolean_mask(ids, ids != pad_id), label))
        if seed is not None:
            dataset = dataset.shuffle(len(self.labels[part]), seed=seed)
            random = tf.random.Generator.from_seed(seed)

            def drop(ids: Any, label: Any) -> Any:
                dropped = random.uniform(tf.shape(ids)) < settings.word_dropout
                return tf.where(dropped & (ids > mask_id), mask_id, ids), label

            dataset = dataset.map(drop)
        batches = dataset.bucket_by_sequence_length(
            lambda ids, _: tf.size(ids),
            list(settings.boundaries),
            [settings.batch_size] * (len(settings.boundaries) + 1),
            padding_values=(pad_id, 0),
        )
        if seed is None:  # otherwise the number of batches differs between epochs
            batches = batches.apply(tf.data.experimental.assert_cardinality(sum(1 for _ in batches)))
        return batches.prefetch(tf.data.AUTOTUNE)


def build(kind: str, data: Data, settings: Settings, dropout: float) -> Any:
    """Return an encoder, and a classifier with it."""
    import keras

    from keras_transformer import models

    if kind == LSTM:
        ids = keras.Input((None,), dtype="int32")
        embedding = keras.layers.Embedding(
            data.tokenizer.vocabulary_size,
            settings.model_dim,
            keras.initializers.RandomNormal(stddev=0.02),
            mask_zero=True,
        )
        hidden = keras.layers.Dropout(dropout)(embedding(ids))
        # As many weights as the blocks of the other encoders: 4 (units² + D units + units) per layer.
        for _ in range(settings.num_layers):
            hidden = keras.layers.LSTM(lstm_units(settings), return_sequences=True)(hidden)
            hidden = keras.layers.Dropout(dropout)(hidden)
        pooled = keras.layers.GlobalAveragePooling1D()(hidden)
        return None, keras.Model(ids, keras.layers.Dense(data.num_classes)(pooled))
    encoder = models.BERT(
        data.tokenizer.vocabulary_size,
        num_layers=settings.num_layers,
        num_heads=settings.num_heads,
        model_dim=settings.model_dim,
        hidden_dim=settings.hidden_dim,
        max_length=data.length,
        num_segments=1,
        dropout=dropout,
        normalization="pre",
        relation="causal" if kind == CAUSAL else None,
        epsilon=1e-6,
    )
    return encoder, models.SequenceClassifier(encoder, data.num_classes, pooling="mean")


def lstm_units(settings: Settings) -> int:
    """Return the number of units for which the LSTM layers have as many weights as the Transformer blocks."""
    size, hidden = settings.model_dim, settings.hidden_dim
    blocks = settings.num_layers * (4 * size * size + 2 * size * hidden)
    # First layer 4 (u² + D u), the others 8 u².
    a, b = 4 + 8 * (settings.num_layers - 1), 4 * size
    return round((-b + (b * b + 4 * a * blocks) ** 0.5) / (2 * a))


def rate(peak: float, updates: int) -> Any:
    """Return a schedule that warms up over a tenth of the updates and decays to zero."""
    import keras

    return keras.optimizers.schedules.CosineDecay(
        0.0, round(0.9 * updates), warmup_target=peak, warmup_steps=round(0.1 * updates)
    )


def pretrain(data: Data, settings: Settings, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return the embeddings of an encoder pre-trained on masked training sentences, and its history."""
    import keras

    from keras_transformer import models, training
    from keras_transformer.data import masked_language_modeling

    encoder, _ = build(BERT, data, settings, settings.pretraining_dropout)
    model = models.MaskedLanguageModel(encoder)
    batches = masked_language_modeling(
        data.sentences,
        data.tokenizer,
        settings.batch_size,
        max_length=min(settings.pretraining_length, data.length),
        rate=settings.pretraining_gaps,
        seed=seed,
    )
    updates = settings.pretraining_epochs * len(batches)
    model.compile(
        keras.optimizers.AdamW(
            rate(settings.pretraining_rate, updates), weight_decay=settings.weight_decay, clipnorm=1.0
        ),
        training.LabelSmoothedCrossentropy(0.0),
        metrics=[training.TokenAccuracy()],
        jit_compile=False,
    )
    start = time.perf_counter()
    history = model.fit(batches, epochs=settings.pretraining_epochs, verbose=0).history
    results = {name: values[-1] for name, values in history.items()}
    return table(encoder).numpy(), {**results, "updates": updates, "seconds": time.perf_counter() - start}


def table(encoder: Any) -> Any:
    """Return the weight with the token embeddings of an encoder."""
    return encoder.embedding.embedding.embeddings


def mix(encoder: Any, learnt: np.ndarray, share: float) -> None:
    """Mix learned embeddings with random ones, which distinguish words; `share` is the learned part of the variance."""
    drawn = table(encoder).numpy()
    table(encoder).assign((1 - share) ** 0.5 * drawn + share**0.5 * drawn.std() / learnt.std() * learnt)


def smoothed_loss(smoothing: float, num_classes: int) -> Any:
    """Return the label-smoothed cross-entropy of the classes."""
    import keras

    crossentropy = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
    return lambda labels, logits: crossentropy(keras.ops.one_hot(labels, num_classes), logits)


def fit(
    kind: str, data: Data, settings: Settings, seed: int, learnt: np.ndarray | None, part: str, epochs: int
) -> tuple[Any, dict[str, list[float]]]:
    """Return a classifier with averaged weights after the first `epochs` epochs, and its history."""
    import keras

    keras.utils.set_random_seed(seed)
    encoder, model = build(kind, data, settings, settings.dropout)
    if learnt is not None:
        mix(encoder, learnt, settings.pretraining_share)
    batches = data.batches(part, settings, seed)
    steps = sum(1 for _ in batches)
    model.compile(
        keras.optimizers.AdamW(
            rate(settings.peak_rate, settings.epochs * steps),
            weight_decay=settings.weight_decay,
            clipnorm=1.0,
            use_ema=True,
            ema_momentum=settings.averaging,
            ema_overwrite_frequency=None,
        ),
        smoothed_loss(settings.label_smoothing, data.num_classes),
        metrics=["accuracy", keras.metrics.SparseCategoricalCrossentropy("crossentropy", from_logits=True)],
        jit_compile=False,
    )
    history = model.fit(
        batches.repeat(),
        steps_per_epoch=steps,
        epochs=epochs,
        validation_data=data.batches("validation", settings, None),
        callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
        verbose=0,
    ).history
    return model, history


def train(run: references.Run) -> references.Figures:
    """Train one classifier, and return its accuracies in percent."""
    import keras

    kind, settings, seed = run.name, run.settings, run.seed
    keras.utils.set_random_seed(seed)
    files = [getattr(run.options, part) for part in FILES]
    if any(files) and run.options.name == "sst2":
        raise ValueError("--name must name the results of other sentences. Received: --name sst2")
    data, source = load(settings, run.options.data, *files)
    results, learnt = {}, None
    if kind == PRETRAINED:
        learnt, results["pretraining"] = pretrain(data, settings, seed)
    _, history = fit(kind, data, settings, seed, learnt, "train", settings.epochs)
    best = int(np.argmin(history["val_crossentropy"]))
    model, _ = fit(kind, data, settings, seed, learnt, BOTH, best + 1)
    return {
        **source,
        **results,
        "validation": 100 * history["val_accuracy"][best],
        "validation_crossentropy": history["val_crossentropy"][best],
        "test": 100 * model.evaluate(data.batches("test", settings, None), verbose=0)[1],
        "epoch": best + 1,
        "parameters": model.count_params(),
        "history": history,
    }


@functools.cache
def load(
    settings: Settings, folder: pathlib.Path | None, *files: pathlib.Path | None
) -> tuple[Data, references.Figures]:
    """Return the sentences of SST-2 or of files, and a description of the files."""
    if any(files):
        if folder or not all(files):
            raise ValueError(
                f"--train, --validation and --test go together, and without --data. Received: {files}"
            )
        parts, classes = read(files)
        source = {"files": dict(zip(FILES, map(str, files), strict=True)), "classes": classes}
        return Data(settings, parts, len(classes)), source
    from keras_transformer.datasets import sst2

    return Data(settings, sst2.load_data(folder), 2), {}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the data."""
    add = parser.add_argument
    add("--data", type=pathlib.Path, help="folder of stsa.binary.* (default: see the dataset)")
    for part in FILES:
        add(
            f"--{part}",
            type=pathlib.Path,
            help="file of label<TAB>sentence lines, for all three; give a --name",
        )


REFERENCE = references.Reference(
    __file__,
    __doc__,
    dict.fromkeys((BERT, PRETRAINED, CAUSAL, LSTM)),
    train,
    measures=("validation", "test"),
    # Kim, "Convolutional Neural Networks for Sentence Classification" (2014), CNN-rand; perhaps trained on phrases too.
    published=83.5,
    settings=Settings,
    seeds=(0, 1, 2),
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
