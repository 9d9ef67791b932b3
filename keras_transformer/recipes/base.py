"""The base class of recipes: options, data, and one training with `compile` and `fit`."""

import abc
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import keras

from keras_transformer import data, processes, text, training
from keras_transformer.recipes import distributed
from keras_transformer.recipes.accumulation import weighted_by_labels
from keras_transformer.recipes.pretrained import load_pipeline, with_precision
from keras_transformer_options.arguments import (
    check_fraction,
    check_one_of,
    check_positive,
    check_positive_integer,
    check_seed,
    renamed,
)

SIZES = ("num_layers", "num_heads", "model_dim", "hidden_dim")


class Splits(NamedTuple):
    """The examples of a run.

    Attributes:
        train: the examples to train on.
        validation: the examples of the validation after each epoch.
        test: the examples of the report, or None.
    """

    train: Any
    validation: Any
    test: Any


# Arguments of functions of `data` and `text` that examples are given as.
_EXAMPLES = (
    "paths",
    "pairs",
    "texts",
    "examples",
    "sentences",
    "questions",
    "contexts",
    "answers",
    "labels",
    "tags",
)

# Fields' metadata are arguments of `argparse` for their flags.
_FILES = {"nargs": "+", "metavar": "FILE"}


@dataclasses.dataclass(frozen=True)
class Recipe(abc.ABC):
    """The options of a training run, which are the flags of `keras-transformer train`.

    Attributes:
        data: the files to train on, or a list of examples.
        validation: the share of the data that is held out for validation, or files or examples.
        test: files or examples for the report, by default those of the validation.
        dataset: the name of a public data set, in place of `data`.
        columns: the names or indices of the columns of the files; by default all of them.
        on_error: "raise" to refuse files with malformed lines, or "skip" to skip these lines with a warning.
        from_: a folder of a saved pipeline, a run or `transformers`, whose weights and tokenizer are the start.
        tokenizer: the folder of a tokenizer, or the kind to train on the data.
        vocabulary_size: the maximum size of a trained vocabulary, by default 8000.
        model_size: the size of a new model, by default tiny.
        layers: the number of blocks, in place of the size's.
        heads: the number of attention heads, in place of the size's.
        model_dim: the model size D, in place of the size's.
        hidden_dim: the hidden size of the feed-forward networks, in place of the size's; 4 D with `model_dim`.
        dropout: the dropout rate of a new model, by default 0.1.
        max_length: the maximum number of tokens of an example.
        batch_size: the number of examples in a batch, in several processes of all of them.
        accumulate: the number of batches whose gradients are accumulated for one update of the weights, as if they were
            one batch, in the memory of one of them.
        epochs: the maximum number of epochs.
        minutes: the training time, in place of `epochs`.
        patience: the number of epochs without a lower validation loss after which training stops; the weights of the
            best epoch are restored.
        learning_rate: the peak learning rate, by default 1e-3, or 5e-5 with `from_`.
        precision: the dtype policy of training; the saved weights are float32.
        jit_compile: whether to compile training with XLA, which pays off if it takes minutes; by default Keras decides.
        seed: the seed of weights, dropout, the held-out examples and the order of the data.
    """

    data: Any = dataclasses.field(default=None, metadata=_FILES)
    validation: Any = dataclasses.field(default=0.1, metadata={"nargs": "+", "metavar": "FILE|SHARE"})
    test: Any = dataclasses.field(default=None, metadata=_FILES)
    dataset: str | None = None
    columns: tuple[str | int, ...] | None = dataclasses.field(
        default=None, metadata={"nargs": "+", "metavar": "COLUMN"}
    )
    on_error: Literal["raise", "skip"] = "raise"
    from_: str | os.PathLike[str] | None = dataclasses.field(default=None, metadata={"metavar": "FOLDER"})
    tokenizer: str | os.PathLike[str] | None = dataclasses.field(
        default=None, metadata={"metavar": "FOLDER|KIND"}
    )
    vocabulary_size: int | None = None
    model_size: str | None = None
    layers: int | None = None
    heads: int | None = None
    model_dim: int | None = None
    hidden_dim: int | None = None
    dropout: float | None = None
    max_length: int = 128
    batch_size: int | None = 32
    accumulate: int = 1
    epochs: int = 10
    minutes: float | None = None
    patience: int = 3
    learning_rate: float | None = None
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = "float32"
    jit_compile: bool | None = None
    seed: int = 0

    task: ClassVar[str]
    summary: ClassVar[str]
    examples_are_texts: ClassVar[bool] = False
    datasets: ClassVar[tuple[str, ...]] = ()
    tokenizers: ClassVar[dict[str, Callable[..., Any]]] = {}
    model_sizes: ClassVar[dict[str, dict[str, Any]]] = {}

    def __post_init__(self) -> None:
        """Check the options."""
        if (self.data is None) == (self.dataset is None):
            raise ValueError(
                "`data` or `dataset` must be given, and not both. "
                f"Received: data={_shown(self.data)}, dataset={self.dataset}"
            )
        if self.dataset is not None:
            check_one_of(sorted(self.datasets), dataset=self.dataset)
            if self.test is not None:
                raise ValueError(
                    f"`test` must not be given with `dataset`, which has one. Received: test={_shown(self.test)}"
                )
        for name in ("on_error", "precision"):
            check_one_of(choices(type(self), name), **{name: getattr(self, name)})
        for name in ("max_length", "accumulate", "epochs", "patience"):
            check_positive_integer(**{name: getattr(self, name)})
        for name in ("batch_size", "batch_tokens"):  # the one that is not given is None
            if getattr(self, name, None) is not None:
                check_positive_integer(**{name: getattr(self, name)})
        check_seed(seed=self.seed)
        if self.learning_rate is not None:
            check_positive(learning_rate=self.learning_rate)
        if self.minutes is not None:
            training.TimeBudget(self.minutes, self.rate)  # checks them
        if isinstance(self.validation, int | float):
            check_fraction(validation=self.validation)
        if self.from_ is None:
            check_one_of(sorted(self.model_sizes), model_size=self.model_size or "tiny")
        else:
            names = ("model_size", "layers", "heads", "model_dim", "hidden_dim", "dropout")
            for name in (*names, "tokenizer", "vocabulary_size"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"`{name}` must not be given with `from_`, whose model has one. "
                        f"Received: {name}={getattr(self, name)!r}"
                    )

    @abc.abstractmethod
    def read(self, paths: Any) -> Any:
        """Read the examples of files."""

    @abc.abstractmethod
    def new_pipeline(self, train: Any) -> Any:
        """Create the pipeline to train: tokenizer, model, and the names of classes."""

    @abc.abstractmethod
    def batches(self, examples: Any, pipeline: Any, shuffle: bool) -> Any:
        """Return batches of examples for `fit`."""

    @abc.abstractmethod
    def loss(self, pipeline: Any) -> tuple[Any, list[Any]]:
        """Return the loss and the metrics to compile the model with."""

    @abc.abstractmethod
    def evaluate(self, pipeline: Any, examples: Any) -> dict[str, Any]:
        """Return the metrics of a trained pipeline, and "examples": inputs, references and answers."""

    def check_requirements(self) -> None:  # noqa: B027
        """Raise an ImportError if `evaluate` needs a package that is not installed."""

    def untrained(self) -> Any:
        """Return a new pipeline, after setting the seeds of its weights."""
        keras.utils.set_random_seed(self.seed)
        splits = self.splits
        with _examples_are("data"):
            return self.new_pipeline(splits.train)

    def train(
        self, callbacks: Sequence[Any] = (), verbose: int | str = "auto", pipeline: Any = None
    ) -> tuple[Any, keras.callbacks.History]:
        """Train with `compile` and `fit`.

        Args:
            callbacks: further callbacks of `fit`, such as `training.ExactResume`.
            verbose: see `keras.Model.fit`.
            pipeline: the pipeline to train, by default `untrained()`.

        Returns:
            The pipeline with the weights of the best epoch, and the history that `fit` returns.

        Raises:
            ValueError: if the data is malformed or too small.
        """
        pipeline = self.untrained() if pipeline is None else pipeline
        with _examples_are("data"):
            batches = self.batches(self.splits.train, pipeline, shuffle=True)
        with _examples_are("validation"):
            validation = self.batches(self.splits.validation, pipeline, shuffle=False)
        loss, metrics = self.loss(pipeline)
        class_weight = self.class_weight(pipeline)
        if class_weight is not None:
            batches = data.with_class_weight(batches, class_weight)
        steps = None if self.accumulate == 1 else self.accumulate
        if steps is not None:
            batches = weighted_by_labels(batches, loss)
        rate = self.schedule(int(batches.cardinality()))
        model = pipeline.model
        model.compile(
            keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9, gradient_accumulation_steps=steps),
            loss,
            metrics=metrics,
            jit_compile="auto" if self.jit_compile is None else self.jit_compile,
        )
        stopping = keras.callbacks.EarlyStopping(
            "val_loss", patience=self.patience, restore_best_weights=True
        )
        budget = [] if self.minutes is None else [training.TimeBudget(self.minutes, self.rate)]
        history = model.fit(
            batches,
            validation_data=validation,
            epochs=self.epochs if self.minutes is None else 1_000_000,
            callbacks=[training.Progress(), stopping, *budget, *callbacks],
            shuffle=False,  # the dataset shuffles its batches
            verbose=verbose,
        )
        return with_precision(pipeline, "float32"), history

    @functools.cached_property
    def splits(self) -> Splits:
        """The examples, read once."""
        if self.dataset is not None:
            return Splits(*self.load_dataset())
        train, test = self._examples("data"), self._examples("test")
        if isinstance(self.validation, float):
            train, validation = self.split(train)
        else:
            validation = self._examples("validation")
        for name, found in (("data", train), ("validation", validation)):
            if not len(found):
                raise ValueError(f"`{name}` must hold at least one example. Received: none")
        return Splits(train, validation, test)

    def load_dataset(self) -> tuple[Any, Any, Any]:
        """Load the train, validation and test examples of the public data set."""
        raise NotImplementedError

    def split(self, examples: Any) -> tuple[Any, Any]:
        """Hold out the share `validation` of the examples."""
        return data.split(examples, self.validation, self.seed)

    @property
    def rate(self) -> float:
        """The peak learning rate."""
        return self.learning_rate or (1e-3 if self.from_ is None else 5e-5)

    def schedule(self, steps_per_epoch: int) -> Any:
        """Return a learning rate that warms up and then decays to zero; with `minutes`, the callback sets it.

        Args:
            steps_per_epoch: the number of batches in an epoch.

        Raises:
            ValueError: if training has fewer batches than `accumulate`.
        """
        if self.minutes is not None:
            return self.rate
        updates = self.epochs * steps_per_epoch // self.accumulate
        if not updates:
            raise ValueError(
                f"`accumulate` must be at most the number of batches, {self.epochs * steps_per_epoch}. "
                f"Received: accumulate={self.accumulate}"
            )
        warmup = updates // 10
        schedule = keras.optimizers.schedules.CosineDecay(self.rate, updates)
        if warmup:
            schedule = keras.optimizers.schedules.CosineDecay(
                0.0, updates - warmup, warmup_target=self.rate, warmup_steps=warmup
            )
        return schedule if self.accumulate == 1 else training.PerUpdate(schedule, self.accumulate)

    def class_weight(self, pipeline: Any) -> dict[int, float] | None:
        """Return a weight for each class, or None for equal weights."""
        return None

    def sizes(self) -> dict[str, Any]:
        """Return the arguments of a new model that `model_size` and the sizes in its place determine."""
        given = dict(zip(SIZES, (self.layers, self.heads, self.model_dim, self.hidden_dim), strict=True))
        if self.model_dim is not None and self.hidden_dim is None:
            given["hidden_dim"] = 4 * self.model_dim
        sizes = {**self.model_sizes[self.model_size or "tiny"]}
        sizes.update({name: value for name, value in given.items() if value is not None})
        return {**sizes, "dropout": 0.1 if self.dropout is None else self.dropout, "dtype": self.precision}

    def new_tokenizer(self, texts: Iterable[str]) -> Any:
        """Train a tokenizer of the kind `tokenizer`, or load it from that folder."""
        kind = os.fspath(self.tokenizer or next(iter(self.tokenizers)))
        if kind in self.tokenizers:
            train, size = self.tokenizers[kind], self.vocabulary_size or 8000
            return distributed.trained_once(lambda: train(list(texts), size))
        if not os.path.isdir(kind):
            raise ValueError(
                f"`tokenizer` must be a folder or one of {sorted(self.tokenizers)}. Received: tokenizer={kind!r}"
            )
        with renamed(folder="tokenizer"):
            return text.load(kind)

    def pretrained(self) -> Any:
        """Load the pipeline of `from_`, in the precision of training."""
        with renamed(folder="from_"):
            return with_precision(load_pipeline(self.from_), self.precision)

    def batching(self, shuffle: bool) -> dict[str, Any]:
        """Return the arguments of functions of `data` that are common to all recipes.

        Args:
            shuffle: whether the batches are for training, of which each of several processes reads a part.
        """
        process = processes.current()
        found = {"batch_size": distributed.share(self.batch_size), "shuffle": shuffle, "seed": self.seed}
        return {**found, "shard": tuple(process)} if shuffle and process.count > 1 else found

    def options(self, changed: bool = True) -> dict[str, Any]:
        """Return the options, with descriptions in place of examples.

        Args:
            changed: whether to return only those that differ from their defaults.
        """
        return {
            field.name: _shown(value)
            for field in dataclasses.fields(self)
            if ((value := getattr(self, field.name)) is not field.default and value != field.default)
            or not changed
        }

    def _examples(self, field: str) -> Any:
        """Return the examples of files, or those that the field holds; an example that is a str is no path."""
        source = getattr(self, field)
        if source is None:
            return None
        path = os.PathLike if self.examples_are_texts else str | os.PathLike
        is_path = isinstance(source, str | os.PathLike)
        listed = [source] if is_path else list(source)
        if not is_path and not (listed and all(isinstance(one, path) for one in listed)):
            return listed
        with _examples_are(field):
            return self.read(listed)


def _examples_are(field: str) -> contextlib.AbstractContextManager[None]:
    """Name fields of a recipe in errors of functions that take its examples."""
    sizes = {"num_layers": "layers", "num_heads": "heads", "length": "max_length"}
    return renamed(**dict.fromkeys(_EXAMPLES, field), **sizes)


def choices(recipe: type[Recipe], name: str) -> tuple[str, ...]:
    """Return the values of an option that is a `Literal`."""
    annotation = next(field.type for field in dataclasses.fields(recipe) if field.name == name)
    return getattr(annotation, "__args__", ())


def check_columns(rows: Sequence[Sequence[Any]], counts: tuple[int, ...], expected: str) -> None:
    """Raise a ValueError if the rows do not have one of the numbers of columns."""
    if rows and len(rows[0]) not in counts:
        raise ValueError(
            f"`columns` must name {expected}, such as columns=({', '.join(map(str, range(counts[0])))}). "
            f"Received: rows of {len(rows[0])} columns"
        )


def _shown(value: Any) -> Any:
    """Return an option for a report: paths as str, and the number of examples in place of them."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        short = len(value) <= 20 and all(isinstance(one, str | int | os.PathLike) for one in value)
        return [_shown(one) for one in value] if short else f"{len(value)} examples"
    return value
