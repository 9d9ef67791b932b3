"""The base class of recipes: options, data, and one training with `compile` and `fit`."""

import abc
import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import keras

from keras_transformer import data, processes, text, training
from keras_transformer.recipes import distributed
from keras_transformer.recipes.accumulation import weighted_by_labels
from keras_transformer.recipes.pretrained import fine_tuned_source, load_pipeline, with_precision
from keras_transformer.recipes.stopping import EarlyStopping
from keras_transformer.recipes.tokenizers import TRAINERS
from keras_transformer.training.progress import EpochLines, EpochsWithoutTotal
from keras_transformer_options.arguments import ArgumentError, Message, renamed
from keras_transformer_options.task_options import TASKS, TaskOptions

_LOGGER = logging.getLogger("keras_transformer")
AroundSteps = Callable[[], contextlib.AbstractContextManager[Any]]
SIZES = ("num_layers", "num_heads", "model_dim", "hidden_dim")


class Splits(NamedTuple):
    """The examples of a training run.

    Attributes:
        train: the examples to train on.
        validation: the examples to validate on after each epoch.
        test: the examples to evaluate on for the report, or None.
    """

    train: Any
    validation: Any
    test: Any


# Names of the arguments for examples in functions of `data` and `text`.
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
    "audio",
)


class Recipe(TaskOptions, abc.ABC):
    """Base class of training recipes, whose options (`TaskOptions`) are the flags of `keras-transformer train`.

    A recipe extends the options of a task, and defines how to read examples, and to create, train and evaluate a
    pipeline. It sets `task` and `summary`, or extends a class of options that does.
    """

    size_arguments: ClassVar[dict[str, dict[str, Any]]] = {}
    monitor: str = "loss"  # see `monitored`

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the recipe in place of the options that it extends."""
        super().__init_subclass__(**kwargs)
        options = TASKS.get(getattr(cls, "task", ""))
        if options in cls.__mro__ and not issubclass(options, Recipe):
            TASKS[cls.task] = cls

    @abc.abstractmethod
    def read(self, paths: Any) -> Any:
        """Read the examples of files."""

    @abc.abstractmethod
    def new_pipeline(self, train: Any) -> Any:
        """Create the pipeline to train, with its tokenizer, model and class names."""

    @abc.abstractmethod
    def batches(self, examples: Any, pipeline: Any, shuffle: bool) -> Any:
        """Return batches of examples for `fit`."""

    @abc.abstractmethod
    def loss(self, pipeline: Any) -> tuple[Any, list[Any]]:
        """Return the loss and the metrics to compile the model with."""

    @abc.abstractmethod
    def evaluate(self, pipeline: Any, examples: Any) -> dict[str, Any]:
        """Return the metrics of a trained pipeline, and "examples": inputs, references and answers."""

    def check_requirements(self) -> None:
        """Raise an ImportError if `evaluate` needs a package that is not installed."""

    def untrained(self, around_steps: AroundSteps = contextlib.nullcontext) -> Any:
        """Set the random seed, and return a new pipeline; see `train`."""
        keras.utils.set_random_seed(self.seed)
        splits = self.splits
        with around_steps(), _examples_are("data"):
            pipeline = self.new_pipeline(splits.train)
            if self.from_ is not None:
                pipeline.source = fine_tuned_source(self.from_, self.revision)
            return pipeline

    def train(
        self,
        callbacks: Sequence[Any] = (),
        verbose: int | str = "auto",
        pipeline: Any = None,
        around_steps: AroundSteps = contextlib.nullcontext,
    ) -> tuple[Any, keras.callbacks.History]:
        """Train with `compile` and `fit`.

        Args:
            callbacks: additional callbacks of `fit`, such as `training.ExactResume`.
            verbose: see `keras.Model.fit`; 2 prints one line for each epoch.
            pipeline: the pipeline to train, by default `untrained()`.
            around_steps: a function that returns a context manager, in which each step before `fit` runs.

        Returns:
            The pipeline with the weights of the best epoch, and the history that `fit` returns.

        Raises:
            ValueError: if the data is malformed or too small.
        """
        pipeline = self.untrained(around_steps) if pipeline is None else pipeline
        with around_steps(), _examples_are("data"):
            batches = self.batches(self.splits.train, pipeline, shuffle=True)
        with around_steps(), _examples_are("validation"):
            validation = self.batches(self.splits.validation, pipeline, shuffle=False)
        loss, metrics = self.loss(pipeline)
        class_weight = self.class_weight(pipeline)
        if class_weight is not None:
            batches = data.with_class_weight(batches, class_weight)
        steps = None if self.accumulate == 1 else self.accumulate
        if steps is not None:
            batches = weighted_by_labels(batches, loss)
        rate = self.schedule(len(batches))
        model = pipeline.model
        model.compile(
            training.Adam(rate, beta_2=0.98, epsilon=1e-9, gradient_accumulation_steps=steps),
            loss,
            metrics=metrics,
            jit_compile="auto" if self.jit_compile is None else self.jit_compile,
        )
        time_limits: list[Any] = []
        if self.minutes is not None:
            time_limits = [training.TimeBudget(self.minutes, self.rate)]
            if self.epochs != type(self).epochs:
                message = "Training for {minutes=}, in as many epochs as fit; {epochs=} is not applied"
                _LOGGER.warning(Message(message, minutes=self.minutes, epochs=self.epochs))
        if verbose == 2:
            time_limits.append(EpochLines(self.epochs if self.minutes is None else None))
        elif self.minutes is not None:
            time_limits.append(EpochsWithoutTotal())
        history = model.fit(
            batches,
            validation_data=validation,
            epochs=self.epochs if self.minutes is None else 1_000_000,
            callbacks=[training.Progress(), *self.stopping(pipeline), *time_limits, *callbacks],
            shuffle=False,  # the dataset shuffles its batches
            verbose=0 if verbose == 2 else verbose,
        )
        return with_precision(pipeline, "float32"), history

    @functools.cached_property
    def splits(self) -> Splits:
        """The examples, read once."""
        if self.dataset is not None:
            return Splits(*self.load_dataset())
        train, test = self.examples("data"), self.examples("test")
        if isinstance(self.validation, float):
            train, validation = self.split(train)
        else:
            validation = self.examples("validation")
        for name, examples in (("data", train), ("validation", validation)):
            if not len(examples):
                raise ArgumentError("{} must hold at least one example. Received: none", name)
        return Splits(train, validation, test)

    def load_dataset(self) -> tuple[Any, Any, Any]:
        """Load the train, validation and test examples of the public dataset."""
        raise NotImplementedError

    def split(self, examples: Any) -> tuple[Any, Any]:
        """Hold out the fraction `validation` of the examples."""
        return data.split(examples, self.validation, self.seed)

    @property
    def rate(self) -> float:
        """The peak learning rate."""
        return self.learning_rate or (1e-3 if self.from_ is None else 5e-5)

    def schedule(self, steps_per_epoch: int) -> Any:
        """Return the learning rate: a schedule with warm-up and decay to zero, or with `minutes` the peak rate.

        Args:
            steps_per_epoch: the number of batches in an epoch.

        Raises:
            ValueError: if training has fewer batches than `accumulate`.
        """
        if self.minutes is not None:
            return self.rate
        updates = self.epochs * steps_per_epoch // self.accumulate
        if not updates:
            raise ArgumentError(
                f"{{accumulate}} must be at most the number of batches, {self.epochs * steps_per_epoch}",
                accumulate=self.accumulate,
            )
        warmup = updates // 10
        schedule = keras.optimizers.schedules.CosineDecay(self.rate, updates)
        if warmup:
            schedule = keras.optimizers.schedules.CosineDecay(
                0.0, updates - warmup, warmup_target=self.rate, warmup_steps=warmup
            )
        return schedule if self.accumulate == 1 else training.PerUpdate(schedule, self.accumulate)

    def stopping(self, pipeline: Any) -> list[Any]:
        """Return the callbacks that stop training without improvement, and restore the weights of the best epoch."""
        return [EarlyStopping(**monitored(self.monitor), patience=self.patience, accumulate=self.accumulate)]

    def class_counts(self, examples: Any) -> dict[str, int]:
        """Return the number of examples of each class, for the report; none for tasks without classes."""
        return {}

    def class_weight(self, pipeline: Any) -> dict[int, float] | None:
        """Return a weight for each class, or None for equal weights."""
        return None

    def sizes(self) -> dict[str, Any]:
        """Return the arguments of a new model from `model_size` and the sizes that override it."""
        overrides = dict(zip(SIZES, (self.layers, self.heads, self.model_dim, self.hidden_dim), strict=True))
        if self.model_dim is not None and self.hidden_dim is None:
            overrides["hidden_dim"] = 4 * self.model_dim
        sizes = {**self.size_arguments[self.model_size or "tiny"]}
        sizes.update({name: value for name, value in overrides.items() if value is not None})
        return {**sizes, "dropout": 0.1 if self.dropout is None else self.dropout, "dtype": self.precision}

    def new_tokenizer(self, texts: Iterable[str]) -> Any:
        """Train a tokenizer of the type `tokenizer`, or load it from that folder."""
        trainer, size = self.tokenizer_kind(), self.vocabulary_size or 8000
        normalization = self.normalization or self.default_normalization
        if trainer is not None:
            return distributed.trained_once(lambda: TRAINERS[trainer](list(texts), size, normalization))
        with renamed(folder="tokenizer"):
            return text.load(self.tokenizer)

    def pretrained(self) -> Any:
        """Load the pipeline of `from_`, in the precision of training."""
        with renamed(folder="from_", source="from_"):
            return with_precision(load_pipeline(self.from_, self.revision), self.precision)

    def batching(self, shuffle: bool) -> dict[str, Any]:
        """Return the arguments of `data` functions that all recipes share.

        Args:
            shuffle: whether the batches are for training, which several processes share.
        """
        process = processes.current()
        arguments = {
            "batch_size": distributed.per_process(self.batch_size),
            "shuffle": shuffle,
            "seed": self.seed,
        }
        return {**arguments, "shard": tuple(process)} if shuffle and process.count > 1 else arguments

    def examples(self, field: str) -> Any:
        """Return the examples of the field "data", "validation" or "test", read from files if it holds paths."""
        source = getattr(self, field)
        if source is None:
            return None
        source = source if isinstance(source, str | os.PathLike) else list(source)
        paths = self.as_paths(source)
        if paths is None:
            return source
        with _examples_are(field):
            return self.read(paths)


def monitored(name: str) -> dict[str, str]:
    """Return the arguments `monitor` and `mode` of callbacks for the loss, or for a metric of which more is better."""
    return {"monitor": f"val_{name}", "mode": "min" if name == "loss" else "max"}


def _examples_are(field: str) -> contextlib.AbstractContextManager[None]:
    """Name the recipe's field in errors of functions that take its examples."""
    sizes = {"num_layers": "layers", "num_heads": "heads", "length": "max_length"}
    return renamed(**dict.fromkeys(_EXAMPLES, field), **sizes)


def read_rows(recipe: Any, paths: Any) -> list[tuple[str, ...]]:
    """Read the rows of files for a recipe with `TableOptions`."""
    rows = data.read_examples(paths, recipe.columns, **recipe.file_format, on_error=recipe.on_error)
    recipe.check_columns(rows)
    return rows
