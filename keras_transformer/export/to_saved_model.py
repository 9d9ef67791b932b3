"""Export of pipelines as SavedModels for TensorFlow Serving."""

import inspect
import logging
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.export import signatures
from keras_transformer.export.bundle_writer import check_pipeline, without_tensorflow_warnings
from keras_transformer.export.parity import generation, outputs
from keras_transformer.export.parity.comparison import Texts, WithPipeline
from keras_transformer.export.targets import ExportTarget, Say
from keras_transformer.export.tensorflow_process import on_tensorflow
from keras_transformer.export.tensorflow_serving import configuration, operations, section, warmup
from keras_transformer.export.writing import write_parts
from keras_transformer.models.input_specs import inputs_checked
from keras_transformer.pipelines.pipeline import ExportedFunction
from keras_transformer.typing import Tensor
from keras_transformer_options.files import checked_model_name
from keras_transformer_serving import bundle, files, parity
from keras_transformer_serving.bundle import Bundle

_LOGGER = logging.getLogger(__name__)


class SavedModel(ExportTarget):
    """A SavedModel for TensorFlow Serving; the arguments are those of the function `saved_model`."""

    name, options = "saved_model", ("name", "version")
    signatures_compared = None

    def __init__(self, name: str | None = None, version: int = 1) -> None:
        self.model_name, self.version = name, version

    def check(self, pipeline: Any) -> None:
        """Raise unless a pipeline can be exported."""
        check_pipeline(pipeline)

    def part(self, folder: pathlib.Path) -> str:
        """Return the folder of the version, which must be new."""
        name = checked_model_name(folder, self.model_name, self.version)
        return bundle.new_version(folder, name, self.version)

    def write(self, pipeline: Any, folder: pathlib.Path) -> None:
        """Write the signatures."""
        tokenizers = [] if pipeline.tokenizer is None else [pipeline.tokenizer]
        _LOGGER.info("Write the signatures")
        write_signatures(pipeline.signatures(), [pipeline.model, *tokenizers], folder)

    def export(
        self, pipeline: Any, folder: pathlib.Path, report: dict[str, Any], compare: WithPipeline, say: Say
    ) -> None:
        """Write the signatures, compare them, and write the requests that warm a server up."""
        self.write(pipeline, folder)
        _LOGGER.info("Compare the signatures with the model")
        report.update(self.compare(compare, folder))
        compare.store(folder)
        warmup.write(folder, folder.parent.name, pipeline.example_inputs(compare.texts))

    @classmethod
    def compare(
        cls, compare: WithPipeline, folder: pathlib.Path, left_out: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the report of the comparison of all signatures."""
        return compare.report(compare.expected(), cls.runner(folder, compare.config, None))

    @classmethod
    def runner(cls, folder: pathlib.Path, config: dict[str, Any], tokenizer: Any) -> Callable[..., Any]:
        """Return the SavedModel as a function, run by TensorFlow."""
        return (
            generation.GeneratingSavedModel(folder, config)
            if "generation" in config
            else outputs.LoadedSavedModel(folder)
        )

    @classmethod
    def verify(cls, bundle: Bundle, part: str) -> dict[str, Any]:
        """Return the report of the comparison with the outputs that were stored at export."""
        return parity.compare_with_stored(bundle, part, cls.runner(bundle.folder / part, bundle.config, None))

    @classmethod
    def signatures(cls, folder: pathlib.Path) -> dict[str, Any]:
        """Return the inputs, outputs, defaults and examples of the signatures."""
        return signatures.of_saved_model(folder)

    @classmethod
    def serving_files(
        cls, config: Mapping[str, Any], reports: Mapping[str, Any]
    ) -> Iterator[tuple[str, bytes]]:
        """Yield the configuration of TensorFlow Serving, and sample requests."""
        return configuration.files(reports)

    @classmethod
    def card(cls, name: str, pipeline: Any, reports: Mapping[str, Any]) -> Iterator[str]:
        """Yield how to run the SavedModels with TensorFlow Serving."""
        return section.section(reports)


@on_tensorflow
def saved_model(
    pipeline: Any,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    version: int = 1,
    texts: Texts | None = None,
    vocabulary_shortlist: Sequence[int] | None = None,
    signature_key: bytes | None = None,
) -> pathlib.Path:
    """Export a pipeline as a SavedModel with its tokenizer in the graph, and verify its outputs.

    Signatures of generating pipelines: `serving_default`, "text" strings (B,) → "text" strings (B,); `generate_ids`,
    "text" strings (B,) → "ids" int32 (B, M), "lengths" int32 (B,), "scores" float32 (B,); `generate`, with options for
    each row; `encode` and `score` (see `export/README.md`). If the pipeline's sampler
    returns N > 1 hypotheses, each output has a second axis of size N; if it samples, `generate_ids` also takes
    "noise" float32 (B, N, M), and `serving_default` samples with the sampler's seed and the row's index in the batch.

    Signatures of other pipelines: `serving_default`, from strings, images or graphs to the pipeline's outputs as
    tensors; `forward`, as exported by `onnx`, from ids, images or graphs to the model's outputs; and for pairs of
    texts `classify_pairs`. `export/README.md` lists their tensors. All but `forward` also return
    "error", strings (B,): the reason why an input is invalid and its other outputs are empty, or "".

    All operations exist in TensorFlow 2.20 and TF.Text 2.20, the versions in the newest TensorFlow Serving, and do not
    need XLA, which it disables.

    Args:
        pipeline: a pipeline of `pipelines`.
        folder: the export's folder; the model is written to `folder/saved_model/name/version`.
        name: the model's name in TensorFlow Serving, by default the folder's name.
        version: the model's version in TensorFlow Serving, a positive integer.
        texts: texts to compare the pipeline and the SavedModel on, as for `bundle`; by default made from the
            vocabulary.
        vocabulary_shortlist: the ids of the tokens that the export generates, such as those of texts in the target
            language, with the model's `end_id`; its graphs compute the logits of no others. By default all. The report
            in `parity.json` has the number of outputs that are the same with the whole vocabulary.
        signature_key: a key to sign the manifest with (HMAC-SHA256), which `verify` and
            `keras_transformer_serving.load` can require; all parts of an export have the same key.

    Returns:
        The version's folder, which is created only when it is complete and verified.

    Raises:
        BlockingIOError: if another export writes to `folder`.
        FileExistsError: if the version exists already.
        ParityError: if an output differs.
        ValueError: if an argument is invalid, or TensorFlow Serving cannot run an operation of the model.

    Example:
        >>> saved_model(translator, "export/es-en")
        PosixPath('export/es-en/saved_model/es-en/1')
    """
    folder = files.as_folder(folder)
    target = SavedModel(name, version)
    (part,) = write_parts(pipeline, folder, [target], texts, vocabulary_shortlist, signature_key, print)
    return folder / part


def _with_defaults(graph: ExportedFunction) -> Callable[..., dict[str, Tensor]]:
    """Return a graph's function with default values in its Python signature, which the SavedModel adopts.

    The function is traced here. Keras, to find the variables, and TensorFlow, in the context of saving, trace the call
    of it.
    """
    specs = graph.inputs
    traced = tf.function(lambda *tensors: graph.function(*tensors), input_signature=specs, autograph=False)
    with inputs_checked():
        concrete = traced.get_concrete_function()

    def function(*tensors: Tensor) -> dict[str, Tensor]:
        return concrete(*tensors)

    defaults = {name: tf.constant(value) for name, value in graph.defaults.items()}
    kind, none = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    parameters = [
        inspect.Parameter(spec.name, kind, default=defaults.get(spec.name, none)) for spec in graph.inputs
    ]
    function.__signature__ = inspect.Signature(parameters)
    return function


def write_signatures(
    signatures: dict[str, ExportedFunction], resources: Sequence[Any], path: pathlib.Path
) -> None:
    """Write a SavedModel, and check that TensorFlow Serving can run its operations.

    Args:
        signatures: the signatures, by name.
        resources: the models and tokenizers that their functions use, for lookup tables and files.
        path: the folder to write into.

    Raises:
        ValueError: if TensorFlow Serving cannot run an operation.
    """
    archive = keras.export.ExportArchive()
    # The functions already save their weights; a tracked Keras model would save them a second time.
    module = tf.Module()
    module.resources = list(resources)
    archive.track(module)
    with without_tensorflow_warnings():
        for name, graph in signatures.items():
            archive.add_endpoint(name, _with_defaults(graph), input_signature=graph.inputs)
        archive.write_out(path, verbose=False)
        debug = tf.saved_model.SaveOptions(save_debug_info=True)
        operations.check(path, lambda folder: archive.write_out(folder, debug, verbose=False))
