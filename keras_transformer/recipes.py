"""Training recipes from data to a pipeline, as run by the command line."""

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from keras_transformer import data, models, pipelines, text, training
from keras_transformer.arguments import check_positive
from keras_transformer.datasets import phrasebook
from keras_transformer.pipelines.base import is_pipeline
from keras_transformer_serving import files

Pairs = Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class TranslatorRecipe:
    """Sizes and hyperparameters of a translator and its training.

    Attributes:
        vocabulary_size: the maximum number of pieces of the tokenizer, shared by both languages.
        num_layers: the number of encoder blocks, and of decoder blocks.
        num_heads: the number of attention heads.
        model_dim: D, the model size.
        hidden_dim: the hidden size of the feed-forward networks.
        dropout: the dropout rate.
        peak_rate: the peak learning rate.
        batch_tokens: the number of target tokens per batch, including padding.
        max_length: the maximum number of tokens of a sentence; longer ones are dropped from training with a warning.
        max_new_tokens: the maximum number of tokens of a translation.
        jit_compile: whether to compile training with XLA, which pays off if training takes minutes or more.
        seed: the seed of initial weights, dropout and the order of the data.
    """

    vocabulary_size: int = 8000
    num_layers: int = 3
    num_heads: int = 8
    model_dim: int = 256
    hidden_dim: int = 1024
    dropout: float = 0.1
    peak_rate: float = 1e-3
    batch_tokens: int = 2048
    max_length: int = 64
    max_new_tokens: int = 64
    jit_compile: bool = True
    seed: int = 0

    def tokenizer(self, pairs: Pairs) -> text.SentencePieceTokenizer:
        """Train a tokenizer for both languages."""
        return text.SentencePieceTokenizer.train(
            [side for pair in pairs for side in pair], self.vocabulary_size
        )

    def model(self, tokenizer: text.SentencePieceTokenizer, learning_rate: Any) -> models.Transformer:
        """Create and compile a model."""
        keras.utils.set_random_seed(self.seed)
        model = models.Transformer(
            tokenizer.vocabulary_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            model_dim=self.model_dim,
            hidden_dim=self.hidden_dim,
            dropout=self.dropout,
            **{name: getattr(tokenizer, name) for name in ("pad_id", "start_id", "end_id")},
        )
        model.compile(
            keras.optimizers.Adam(learning_rate, beta_2=0.98, epsilon=1e-9),
            training.LabelSmoothedCrossentropy(0.1, pad_id=tokenizer.pad_id),
            metrics=[training.TokenAccuracy(pad_id=tokenizer.pad_id)],
            jit_compile=self.jit_compile,
        )
        return model

    def batches(self, pairs: Pairs, tokenizer: text.SentencePieceTokenizer, shuffle: bool) -> Any:
        """Return batches of pairs for `fit`."""
        return data.translation_pairs(
            pairs,
            tokenizer,
            batch_tokens=self.batch_tokens,
            max_length=self.max_length,
            shuffle=shuffle,
            seed=self.seed,
        )

    def train(
        self,
        train: Pairs,
        validation: Pairs,
        epochs: int = 1000,
        minutes: float | None = None,
        verbose: int | str = "auto",
    ) -> tuple[pipelines.TextToText, keras.callbacks.History]:
        """Train a tokenizer and a model, with a learning rate that warms up and then decays to zero.

        Args:
            train: (source, target) sentences for training.
            validation: (source, target) sentences for validation after each epoch.
            epochs: the maximum number of epochs.
            minutes: the maximum duration of training.
            verbose: see `keras.Model.fit`.

        Returns:
            The pipeline, and the history that `fit` returns.

        Raises:
            ValueError: if an argument is out of range.
        """
        check_positive(epochs=epochs)
        callbacks = [] if minutes is None else [training.TimeBudget(minutes, self.peak_rate)]
        tokenizer = self.tokenizer(train)
        batches = self.batches(train, tokenizer, shuffle=True)
        steps = epochs * int(batches.cardinality())
        model = self.model(tokenizer, self._schedule(steps) if minutes is None else self.peak_rate)
        history = model.fit(
            batches,
            validation_data=self.batches(validation, tokenizer, shuffle=False),
            epochs=epochs,
            callbacks=callbacks,
            shuffle=False,  # the dataset shuffles its batches
            verbose=verbose,
        )
        return pipelines.TextToText(model, tokenizer, max_new_tokens=self.max_new_tokens), history

    def _schedule(self, steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
        warmup = steps // 10
        if not warmup:
            return keras.optimizers.schedules.CosineDecay(self.peak_rate, steps)
        return keras.optimizers.schedules.CosineDecay(
            0.0, steps - warmup, warmup_target=self.peak_rate, warmup_steps=warmup
        )


PHRASEBOOK = TranslatorRecipe(
    vocabulary_size=2000,
    num_layers=2,
    num_heads=4,
    model_dim=128,
    hidden_dim=512,
    peak_rate=2e-3,
    batch_tokens=1024,
    max_new_tokens=32,
    jit_compile=False,
)


def quickstart(
    folder: str | os.PathLike[str],
    epochs: int = 5,
    say: Callable[[str], None] = print,
    verbose: int | str = "auto",
) -> dict[str, Any]:
    """Train, evaluate, export and verify a Spanish to English translator on the embedded phrasebook.

    Args:
        folder: the folder for `pipeline/`, `export/` and `report.json`; an earlier quickstart there is replaced when
            the new one is complete.
        epochs: the number of training epochs.
        say: a function that prints a line of progress.
        verbose: see `keras.Model.fit`.

    Returns:
        The content of `report.json`: "exact_match" and "bleu" on the held-out split, "parity" of the exports with the
        model on 1,000 held-out sentences, and "seconds", the duration of each stage.

    Raises:
        FileExistsError: if `folder` has any other content.
        ValueError: if `epochs` is not positive.
    """
    folder = pathlib.Path(folder)
    if folder.exists() and not _is_earlier_quickstart(folder):
        content = sorted(path.name for path in folder.iterdir())[:5] if folder.is_dir() else "a file"
        raise FileExistsError(
            f"`folder` must be new or an earlier quickstart. Received: {folder}, with {content}"
        )
    with files.new_folder(folder, overwrite=True) as new:
        return _quickstart(new, epochs, say, verbose)


def _quickstart(
    folder: pathlib.Path, epochs: int, say: Callable[[str], None], verbose: int | str
) -> dict[str, Any]:
    from keras_transformer import export  # needs the extra "onnx", which training does not

    seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(name: str, title: str) -> Iterator[None]:
        say(f"\n[{len(seconds) + 1}/4] {title}")
        began = time.monotonic()
        yield
        seconds[name] = round(time.monotonic() - began, 1)
        say(f"      {seconds[name]:.1f} s")

    train, validation, test = phrasebook.load_data()
    with stage("train", f"Training on {len(train):,} phrasebook sentences, {epochs} times over"):
        pipeline, _ = PHRASEBOOK.train(train, validation, epochs, verbose=verbose)
        pipeline.save(folder / "pipeline")
    with stage("evaluate", f"Translating {len(test):,} held-out sentences"):
        scores = pipelines.evaluate(pipeline, test)
        say(f"      exact match {scores['exact_match']:.1%}, BLEU {scores['bleu']:.1f}")
    with stage("export", "Exporting to SavedModel and ONNX, in float32 and int8"):
        export.bundle(
            pipeline,
            folder / "export",
            precisions=("float32", "int8"),
            name="es-en",
            say=lambda line: say(f"      {line}"),
        )
    sources = [source for source, _ in test[:1000]]
    with stage("verify", f"Comparing both exports with the model on {len(sources):,} held-out sentences"):
        parity = export.verify(folder / "export", pipeline, sources)
        for part in parity.values():
            for graph, counts in part["graphs"].items():
                say(f"      {graph}: {counts['identical']:,} identical, {counts['near_ties']} near ties")
            for precision, counts in part.get("precisions", {}).items():
                say(f"      {precision}: {counts['identical']:,} identical, {counts['different']} different")
    report = {
        "exact_match": scores["exact_match"],
        "bleu": scores["bleu"],
        "parity": parity,
        "seconds": seconds,
    }
    files.write_json(folder / "report.json", report)
    say("")
    for source, answer in zip(sources[:12], pipeline(sources[:12]), strict=True):
        say(f"  {source}  →  {answer}")
    return report


def _is_earlier_quickstart(folder: pathlib.Path) -> bool:
    """Return whether a folder has exactly the files of a quickstart."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    return not names or (names == {"pipeline", "export", "report.json"} and is_pipeline(folder / "pipeline"))
