"""The base class of pipelines, whose definition calls, SavedModels, ONNX graphs and parity checks share."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import keras
import numpy as np

import keras_transformer_serving as serving
from keras_transformer import text
from keras_transformer.interop.source import Source
from keras_transformer.lazy_tensorflow import tf
from keras_transformer.typing import Tensor
from keras_transformer_serving import bundle, files, tasks
from keras_transformer_serving.pipelines.errors import RowErrors
from keras_transformer_serving.tasks import DEFAULT as DEFAULT

Arrays = dict[str, np.ndarray]
Axes = dict[str, list[str | None]]
"""The names of the first axes of each tensor; None for axes of static size."""

CONFIG = "config.json"
FORMAT = 1  # of a saved pipeline
BATCH = "batch_size"


class Preprocessed(NamedTuple):
    """Texts, images or graphs as inputs of a model.

    Attributes:
        inputs: the model's inputs, by name.
        error: strings (B,), the reason why an input is invalid, "" if it is valid. The model's inputs for an invalid
            one are placeholders, and its answer has no meaning.
        state: other tensors that `postprocess` needs, by name.
    """

    inputs: dict[str, Tensor]
    error: Tensor
    state: dict[str, Tensor]

    def add_errors_to(self, errors: RowErrors, indices: Sequence[int] | None = None) -> None:
        """Add a ValueError for each invalid input; the reason must begin with the argument's name.

        Args:
            errors: the errors of the rows of a call.
            indices: the index of each input in its argument, by default 0, 1, 2, …
        """
        reasons = self.error.numpy()
        indices = range(len(reasons)) if indices is None else indices
        for index, reason in sorted(zip(indices, reasons, strict=True)):
            if reason:
                message = reason.decode()
                errors.add(int(index), ValueError(f"{message} in {message.split('`')[1]}[{index}]"))

    def arrays(self) -> Arrays:
        """Return the inputs as arrays, or raise a ValueError if any input is invalid."""
        self.add_errors_to(RowErrors())
        return {name: values.numpy() for name, values in self.inputs.items()}


@dataclasses.dataclass(frozen=True)
class ExportedFunction:
    """An exported function: a signature of a SavedModel, or an ONNX graph.

    Attributes:
        function: a function from tensors to a dictionary of tensors.
        inputs: the specs of its inputs.
        axes: the names of the dynamic axes of inputs and outputs, for ONNX; outputs have by default those of the first
            input.
        defaults: the values of optional inputs, each with a first axis of 1.
    """

    function: Callable[..., dict[str, Tensor]]
    inputs: list[tf.TensorSpec]
    axes: Axes = dataclasses.field(default_factory=dict)
    defaults: Arrays = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, function: Callable[..., dict[str, Tensor]], inputs: Sequence[tasks.Tensor]) -> Self:
        """Return a signature of a SavedModel with declared inputs, which may have defaults."""
        defaults = {
            tensor.name: np.array([tensor.default], tensor.names.numpy)
            for tensor in inputs
            if tensor.default is not None
        }
        return cls(function, [spec_of(tensor) for tensor in inputs], defaults=defaults)


def spec_of(tensor: tasks.Tensor) -> tf.TensorSpec:
    """Return the spec (B, …) of a declared input."""
    return tf.TensorSpec([None, *tensor.shape], tensor.dtype, name=tensor.name)


class Pipeline(tasks.Task, abc.ABC):
    """Base class of pipelines: a model, its tokenizer (if any) and settings.

    A subclass extends the declaration of its task, which the class that serves its export extends as well. It defines
    `preprocess` and the computation of the declared outputs from the model's outputs, in TensorFlow operations. Calls,
    the SavedModel's signatures, the ONNX graphs and the parity check of an export all use them.

    Attributes:
        source: the published model from which the weights come, if any; it is saved with the pipeline, and named by
            its exports.
        quality: how good its outputs are, as a sentence for the model card of its exports; it is not saved.
        generates: whether the pipeline generates in a loop rather than running its model once.
        examples_are_typical: whether the channels of `example_inputs` are those of real inputs, so that int8 graphs
            are fitted to them; those of noise are not.
        summary: what it does, as a sentence for the model card of its exports.
        hub_task: the task's name on the Hugging Face Hub, for the same; None if it has none.
        engine: the engine that runs the model on its backend.
        classes: all subclasses, by name.
        model_classes: the classes of models for which `from_hugging_face` and `from_keras_hub` create this pipeline.
    """

    model: Any
    tokenizer: Any = None
    source: Source | None = None
    quality: str = ""
    engine: Any
    generates: ClassVar[bool] = False
    examples_are_typical: ClassVar[bool] = False
    summary: ClassVar[str] = ""
    hub_task: ClassVar[str | None] = None
    classes: ClassVar[dict[str, type[Pipeline]]] = {}
    model_classes: ClassVar[tuple[type, ...]] = ()
    _settings_file: ClassVar[str] = "settings.json"
    # The values of settings that files of earlier versions lack, where they differ from the defaults.
    _settings_before: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class by its name, for `pipelines.load`."""
        super().__init_subclass__(**kwargs)
        Pipeline.classes[cls.__name__] = cls

    @staticmethod
    def named(name: str) -> type[Pipeline] | None:
        """Return the class with a name, None if there is none.

        A class that is not imported is loaded from the entry point of this name in the group
        "keras_transformer.pipelines".
        """
        return tasks.registered(Pipeline.classes, "keras_transformer.pipelines", name)

    @staticmethod
    def of_model(model: Any) -> type[Pipeline]:
        """Return the first pipeline class that has a model's class among its `model_classes`."""
        for pipeline in Pipeline.classes.values():
            if type(model) in pipeline.model_classes:
                return pipeline
        raise ValueError(
            f"`model` must be of a class that a pipeline supports. Received: a {type(model).__name__}"
        )

    @classmethod
    def classes_of_folders(cls) -> tuple[type, ...]:
        """Return the classes of models of folders of `transformers` from which this pipeline can be created."""
        return cls.model_classes

    @classmethod
    def hugging_face_arguments(
        cls, folder: pathlib.Path, config: dict[str, Any], model: Any, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the constructor's arguments that a folder of `transformers` determines.

        Args:
            folder: the folder.
            config: the content of its `config.json`.
            model: the model that `interop.from_hugging_face` returns for it.
            settings: the arguments of the caller, which take precedence.
        """
        return {}

    @classmethod
    def hugging_face_settings(cls, folder: pathlib.Path, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of the caller, with what they name in a folder in place of its name."""
        return settings

    @property
    def hugging_face_model(self) -> Any:
        """The model whose weights a folder of `transformers` has."""
        return self.model

    @property
    def hugging_face_rows(self) -> dict[str, bool]:
        """The special tokens around texts in a folder of `transformers`, as arguments of `encode`."""
        return {"add_start": True, "add_end": True}

    def hugging_face_config(self) -> dict[str, Any]:
        """Return the entries of the `config.json` of `transformers` besides those of the model."""
        return {}

    def write_hugging_face(self, folder: pathlib.Path) -> None:  # most have no other files
        """Write the files of a folder of `transformers` besides those of model, tokenizer and generation."""

    @classmethod
    def keras_hub_arguments(cls, model: Any, tokenizer: Any, converted: Any) -> dict[str, Any]:
        """Return the constructor's arguments that a model of KerasHub determines.

        Args:
            model: the model of KerasHub.
            tokenizer: its tokenizer; None for a model that reads no texts.
            converted: the model that `interop.from_keras_hub` returns for it.
        """
        return {}

    @abc.abstractmethod
    def preprocess(self, *inputs: Tensor) -> Preprocessed:
        """Convert a batch of texts, images or graphs to the model's inputs, as TensorFlow operations."""

    @abc.abstractmethod
    def signatures(self) -> dict[str, ExportedFunction]:
        """Return the signatures of a SavedModel, including "serving_default"."""

    @abc.abstractmethod
    def onnx_graphs(self) -> dict[str, ExportedFunction]:
        """Return the ONNX graphs, by file name."""

    @abc.abstractmethod
    def example_inputs(self, texts: Sequence[Any] | None = None) -> dict[str, list[Arrays]]:
        """Return inputs of an export's signatures, to compare the export with the pipeline and to warm it up.

        Args:
            texts: the texts for "serving_default", or pairs if it takes two; by default made from the vocabulary.

        Returns:
            For each signature, several inputs.
        """

    @property
    def text_columns(self) -> int:
        """The number of texts of an input: 2 for pairs, 0 for a pipeline that reads none."""
        inputs = self.columns(self.config)[DEFAULT]
        return sum(each.required and each.dtype == "string" and not each.shape for each in inputs)

    def example_batch(self, rows: Sequence[tuple[str, ...]]) -> Preprocessed:
        """Convert rows of `text_columns` texts to the model's inputs, with examples of what else these need."""
        return self.preprocess(*map(tf.constant, zip(*rows, strict=True)))

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except model and tokenizer, by default from attributes of equal names."""
        names = inspect.signature(type(self)).parameters
        return {name: getattr(self, name) for name in names if name not in ("model", "tokenizer")}

    @property
    def config(self) -> dict[str, Any]:
        """The settings on which the declaration of the task depends."""
        return self.export_config()

    @property
    def encoder(self) -> Any:
        """The part of the model that reads the inputs."""
        return self.model

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        config = {"pipeline": type(self).__name__}
        if self.tokenizer is not None:
            config |= {
                "tokenizer_class": type(self.tokenizer).__name__,
                "tokenizer_file": self.tokenizer.file_name,
                "tokenizer_sha256": self.tokenizer.sha256,
                "vocabulary_size": self.encoder.vocabulary_size,  # includes special ids that the tokenizer may lack
                "empty_ids": list(self.tokenizer.empty_ids),
                "pad_id": self.encoder.pad_id,
                "start_id": getattr(self.encoder, "start_id", None),  # only encoder–decoders have one
                "end_id": getattr(self.encoder, "end_id", None),
            }
        return {**config, **self.settings()}

    def served(self) -> Any:
        """Return the class that serves exports of the pipeline, with the model on its backend as the engine.

        It needs no export, and `keras_transformer_serving.server.create_app` serves it. Its answers are those of the
        weights at each request; while `fit` runs, serve a pipeline that `save` and `pipelines.load` copied.

        Raises:
            ValueError: if the sampler has a draft model.
        """
        config = json.loads(json.dumps(self.export_config()))
        reads_text = serving.reads_text(config)
        tokenizer = serving.tokenizer_of(self.tokenizer.model_bytes, config) if reads_text else None
        return serving.pipelines.pipeline_of(self.engine, config, tokenizer)

    def save(self, folder: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Save model, tokenizer and settings to a folder, which `pipelines.load` reads.

        Args:
            folder: the folder, written atomically.
            overwrite: whether to replace an existing pipeline.

        Raises:
            FileExistsError: if `folder` exists and `overwrite` is False, or it is not a pipeline.
            ValueError: if the model is an `Ensemble`, the sampler has a draft model, or `folder` is empty.
        """
        if not hasattr(self.model, "save"):
            raise ValueError(
                "`model` must be a Keras model; save each model of an ensemble in a separate pipeline. "
                f"Received: a {type(self.model).__name__}"
            )
        folder = files.as_folder(folder)
        if folder.exists() and overwrite and not is_pipeline(folder):
            raise FileExistsError(
                f"`folder` must be new, or a pipeline if overwrite=True. Received: folder={str(folder)!r}"
            )
        settings = self.settings()
        with files.new_folder(folder, overwrite) as new:
            self.model.save(new / "model.keras")
            files.write_json(new / self._settings_file, settings)
            digest = files.sha256(new / "model.keras")
            config = {"format": FORMAT, "pipeline": type(self).__name__, "model_sha256": digest}
            if self.tokenizer is not None:
                self.tokenizer.save(new / "tokenizer")
                config["tokenizer_sha256"] = self.tokenizer.sha256
            if self.source is not None:
                config["source"] = self.source.as_json()
            files.write_json(new / CONFIG, config)

    def __reduce__(self) -> tuple[Any, ...]:
        with tempfile.TemporaryDirectory() as parent:
            folder = pathlib.Path(parent) / "pipeline"
            self.save(folder)
            paths = [path for path in folder.rglob("*") if path.is_file()]
            content = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        return _loaded, (type(self), content)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Load a pipeline from the folder written by `save`.

        Raises:
            ValueError: if a file is damaged, or of a newer format.
        """
        folder = pathlib.Path(folder)
        config = files.read_json(folder / CONFIG)
        files.check_format(folder / CONFIG, config, FORMAT)
        _check_sha256(
            folder / "model.keras", config.get("model_sha256"), files.sha256(folder / "model.keras")
        )
        tokenizers = []
        if (folder / "tokenizer").exists() or "tokenizer_sha256" in config:
            tokenizers = [text.load(folder / "tokenizer")]
            _check_sha256(folder / "tokenizer", config.get("tokenizer_sha256"), tokenizers[0].sha256)
        model = keras.saving.load_model(folder / "model.keras")
        settings = files.read_json(folder / cls._settings_file)
        try:
            pipeline = cls(model, *tokenizers, **{**cls._settings_before, **settings})
        except TypeError as error:
            raise ValueError(
                f"`{folder / cls._settings_file}` must hold a pipeline's settings. Received: {settings!r}"
            ) from error
        pipeline.source = Source.of_json(config.get("source"))
        return pipeline


def _loaded(pipeline: type[Pipeline], content: Mapping[str, bytes]) -> Pipeline:
    """Return a pipeline from the files of its folder."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in content.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return pipeline.load(folder)


def is_pipeline(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder is a saved pipeline, by its `config.json`."""
    path = pathlib.Path(folder) / CONFIG
    if not path.is_file() or bundle.is_bundle(folder):  # an export has a config.json, too
        return False
    config = files.read_json(path)
    return isinstance(config, dict) and "pipeline" in config


def folder_of(folder: str | os.PathLike[str]) -> pathlib.Path:
    """Return the folder `pipeline/` of a training run, and any other folder unchanged."""
    folder = pathlib.Path(folder)
    return folder / "pipeline" if not is_pipeline(folder) and is_pipeline(folder / "pipeline") else folder


def _check_sha256(path: pathlib.Path, expected: str | None, actual: str) -> None:
    if expected is None:
        raise ValueError(f"`{path.parent / CONFIG}` must have the sha256 of {path.name}. Received: none")
    if actual != expected:
        raise ValueError(f"`{path}` is damaged: its sha256 must be {expected}. Received: {actual}")
