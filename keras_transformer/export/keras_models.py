"""Export of any Keras model as an ONNX graph or a SavedModel."""

import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.export import to_saved_model
from keras_transformer.export.parity import outputs
from keras_transformer.export.tensorflow_process import on_tensorflow
from keras_transformer.export.to_onnx import conversion, weights
from keras_transformer.models.model import Model, flatten_layers
from keras_transformer.pipelines.pipeline import BATCH, DEFAULT, Arrays, Axes, ExportedFunction
from keras_transformer.typing import Tensor
from keras_transformer_serving import external_data, files, parity

_SAMPLE_SIZES = (
    (2, 5),
    (3, 7),
)  # batch size and length, two of each to detect sizes that should be dynamic


@on_tensorflow
def onnx_model(
    model: Any,
    file: str | os.PathLike[str],
    *,
    input_signature: Any = None,
    sample_inputs: Any = None,
    overwrite: bool = False,
) -> pathlib.Path:
    """Export a Keras model as an ONNX graph, and compare its outputs with the model's.

    The model may have any layers whose operations ONNX supports: recurrent, convolutional, attention, …; an error names
    an unsupported operation, such as a Fourier transform. As in `onnx`, attention, normalization and GELU have the form
    that ONNX Runtime fuses, and matrices are initializers with the paths of the model's weights. Inputs have their
    names in the model, or "inputs", "input_0", "input_1", …; outputs have the keys of a dictionary, or "output",
    "output_0", "output_1", …. Weights of more than 1 GiB are written to a second file, `<name>.onnx_data`.

    Args:
        model: a `keras.Model` whose call takes one argument, `inputs`: a tensor, a list or a dictionary.
        file: the new file, which ends in ".onnx".
        input_signature: the structure of `inputs`, of `keras.InputSpec`, `keras.KerasTensor` or `tf.TensorSpec`; None
            in a shape for a dynamic size. By default taken from a functional or sequential model, from a model of this
            package, from `sample_inputs` with a dynamic batch size, or from the first call of a subclassed model, whose
            inputs are then floats.
        sample_inputs: inputs for the comparison, arrays in the structure of `inputs`; by default random floats in
            [0, 1), and integers 0 or 1, in two sizes.
        overwrite: whether to replace an existing file.

    Returns:
        The file, which is created only when it is complete and verified.

    Raises:
        FileExistsError: if the file exists and `overwrite` is False.
        ImportError: if a package of the extra "onnx" is not installed.
        ParityError: if an output differs.
        ValueError: if an argument is invalid, or ONNX does not support an operation; the message names its layer.

    Example:
        >>> onnx_model(model, "model.onnx", sample_inputs={"token_ids": ids})
        PosixPath('model.onnx')
    """
    file = pathlib.Path(file)
    conversion.check_packages()
    if file.suffix != ".onnx":
        raise ValueError(f"`file` must end in .onnx. Received: file={str(file)!r}")
    data = file.with_name(external_data.file_name(file.stem))
    for path in (file, data):
        if path.exists() and not overwrite:
            raise FileExistsError(
                f"`file` must be new unless overwrite=True; `{path}` exists and is not changed"
            )
    specs = _specs(model, input_signature, sample_inputs)
    graph = _graph(model, specs)
    examples = _examples(graph, specs, sample_inputs, file.stem)
    detached: dict[str, weights.Reader] = {}
    name, axes = re.sub(r"\W", "_", model.name), _axes(graph, examples)
    converted = conversion.convert(name, graph.function, graph.inputs, axes, model.weights, detached)
    with tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=files.nearest_folder(file)) as temporary:
        new = pathlib.Path(temporary) / file.name
        conversion.save(converted, {}, new, detached)
        parity.compare_tensors(examples, _onnx_runner(new), outputs.tolerance(model))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)  # before its weights are replaced
        data.unlink(missing_ok=True)
        for path in (data, file):
            if (new.parent / path.name).exists():
                os.replace(new.parent / path.name, path)
    return file


@on_tensorflow
def saved_model_of(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    input_signature: Any = None,
    sample_inputs: Any = None,
    overwrite: bool = False,
) -> pathlib.Path:
    """Export a Keras model as a SavedModel for TensorFlow Serving, and compare its outputs with the model's.

    Its signature "serving_default" has the inputs and outputs of `onnx_model` by name. All operations exist in
    TensorFlow 2.20, the newest version of TensorFlow Serving, and do not need XLA, which it disables.

    Args:
        model: a `keras.Model`, as in `onnx_model`.
        folder: the SavedModel's new folder; TensorFlow Serving reads the model "name" from `name/1`, `name/2`, ….
        input_signature: the structure of the inputs, as in `onnx_model`.
        sample_inputs: inputs for the comparison, as in `onnx_model`.
        overwrite: whether to replace an existing SavedModel.

    Returns:
        The folder, which is created only when it is complete and verified.

    Raises:
        FileExistsError: if the folder exists, and is not an empty folder, or a SavedModel and `overwrite` is True.
        ParityError: if an output differs.
        ValueError: if an argument is invalid, or TensorFlow Serving cannot run an operation of the model.

    Example:
        >>> saved_model_of(model, "served/encoder/1")
        PosixPath('served/encoder/1')
    """
    folder = pathlib.Path(folder)
    replaces = overwrite and (folder / "saved_model.pb").exists()
    specs = _specs(model, input_signature, sample_inputs)
    graph = _graph(model, specs)
    with files.new_folder(folder, replaces) as new:
        examples = _examples(graph, specs, sample_inputs, DEFAULT)  # first: it builds the model
        to_saved_model.write_signatures({DEFAULT: graph}, [model], new)
        parity.compare_tensors(examples, outputs.LoadedSavedModel(new), outputs.tolerance(model))
    return folder


def _specs(model: Any, input_signature: Any, sample_inputs: Any) -> Any:
    """Return the structure of the model's inputs, with a named `tf.TensorSpec` for each input."""
    if not isinstance(model, keras.Model):
        raise ValueError(f"`model` must be a keras.Model. Received: {type(model).__name__}")
    stateful = [layer.name for layer in flatten_layers(model) if getattr(layer, "stateful", False)]
    if stateful:
        raise ValueError(
            "`model` must not have a layer with stateful=True, whose state all callers would share. "
            f"Received: {stateful[0]}"
        )
    structure = input_signature
    if structure is None:
        structure = _known_structure(model, sample_inputs)
    leaves = keras.tree.flatten(structure)
    names = _names(structure)
    if len({*names}) < len(names):
        raise ValueError(f"`input_signature` must have distinct names. Received: {', '.join(names)}")
    specs = []
    for name, leaf in zip(names, leaves, strict=True):
        if getattr(leaf, "shape", None) is None or getattr(leaf, "dtype", None) is None:
            raise ValueError(
                f"`input_signature` must have a shape and a dtype for {name}. Received: {leaf!r}"
            )
        dtype = tf.as_dtype(leaf.dtype)
        if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
            raise ValueError(f"`input_signature` must have numeric dtypes. Received: {name} of {dtype.name}")
        specs.append(tf.TensorSpec(tuple(leaf.shape), dtype, name=name))
    return keras.tree.pack_sequence_as(structure, specs)


def _known_structure(model: Any, sample_inputs: Any) -> Any:
    """Return the structure of the model's inputs, with a value that has a shape and a dtype for each input."""
    if isinstance(model, Model):
        return model.input_signature()
    if isinstance(model, keras.Sequential) and model.built:
        return model.inputs[0]
    if getattr(model, "inputs", None):
        return model.input
    if sample_inputs is not None:
        return keras.tree.map_structure(
            lambda array: keras.InputSpec(np.asarray(array).dtype.name, (None, *np.shape(array)[1:])),
            sample_inputs,
        )
    shapes = (model.get_build_config() or {}).get("input_shape") if model.built else None
    if shapes is None:
        raise ValueError(
            "Pass `input_signature` or `sample_inputs` for a subclassed model that has not been called. "
            f"Received: model={model.name}"
        )
    return keras.tree.map_shape_structure(
        lambda shape: keras.InputSpec(model.input_dtype, (None, *shape[1:])), shapes
    )


def _names(structure: Any) -> list[str]:
    """Return a name for each input: its key, its own name, or "inputs", "input_0", ….

    Names that Keras gives are not its own: they change when a model is saved, as it is for an export from JAX.
    """
    paths = keras.tree.flatten_with_path(structure)
    names = []
    for number, (path, leaf) in enumerate(paths):
        name = getattr(leaf, "name", None) or ""
        if path and all(isinstance(key, str) for key in path):
            name = "_".join(path)
        elif not name or re.fullmatch(r"(keras_tensor|input_layer)(_\d+)?", name):
            name = "inputs" if len(paths) == 1 else f"input_{number}"
        names.append(re.sub(r"\W", "_", name))
    return names


def _graph(model: Any, specs: Any) -> ExportedFunction:
    """Return the model as a function from the inputs, in the order of `specs`, to named outputs."""

    def function(*tensors: Tensor) -> dict[str, Tensor]:
        outputs_of_model = model(keras.tree.pack_sequence_as(specs, tensors), training=False)
        flat = keras.tree.flatten(outputs_of_model)
        if isinstance(outputs_of_model, dict):
            names = _names(outputs_of_model)
        else:
            names = ["output"] if len(flat) == 1 else [f"output_{number}" for number in range(len(flat))]
        return dict(zip(names, map(tf.identity, flat), strict=True))

    return ExportedFunction(function, keras.tree.flatten(specs))


def _examples(graph: ExportedFunction, specs: Any, sample_inputs: Any, name: str) -> list[parity.Example]:
    """Return examples of inputs, by default random, and of the model's outputs."""
    if sample_inputs is not None:
        keras.tree.assert_same_structure(specs, sample_inputs)
        batches = [[np.asarray(array) for array in keras.tree.flatten(sample_inputs)]]
    else:
        random = np.random.default_rng(0)
        batches = [[_random(random, spec, sizes) for spec in graph.inputs] for sizes in _SAMPLE_SIZES]
    examples = []
    for arrays in batches:
        inputs = {
            spec.name: array.astype(spec.dtype.as_numpy_dtype)
            for spec, array in zip(graph.inputs, arrays, strict=True)
        }
        tensors = graph.function(*map(tf.constant, inputs.values()))
        examples.append(parity.Example(name, inputs, {key: value.numpy() for key, value in tensors.items()}))
    return examples


def _random(random: np.random.Generator, spec: tf.TensorSpec, sizes: tuple[int, int]) -> np.ndarray:
    shape = [sizes[min(axis, 1)] if size is None else size for axis, size in enumerate(spec.shape)]
    return random.random(shape) if spec.dtype.is_floating else random.integers(0, 2, shape)


def _axes(graph: ExportedFunction, examples: Sequence[parity.Example]) -> Axes:
    """Return the names of the dynamic axes of inputs, and of the batch axis of outputs."""
    axes: Axes = {
        spec.name: [
            (f"{spec.name}_{axis}" if axis else BATCH) if size is None else None
            for axis, size in enumerate(spec.shape)
        ]
        for spec in graph.inputs
    }
    batches = [next(iter(example.inputs.values())).shape[:1] for example in examples]
    has_batch = [BATCH] in [names[:1] for names in axes.values()]
    for name in examples[0].outputs:
        follows = [example.outputs[name].shape[:1] for example in examples] == batches
        axes[name] = [BATCH] if has_batch and follows else []
    return axes


def _onnx_runner(file: pathlib.Path) -> Callable[[str, Arrays], Arrays]:
    """Return a function that runs a graph in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no public base class
        raise ValueError(
            f"`model` must consist of operations that ONNX Runtime supports. Received: {error}"
        ) from error
    names = [output.name for output in session.get_outputs()]
    read = {node.name for node in session.get_inputs()}

    def run(_: str, inputs: Arrays) -> Arrays:
        feed = {name: values for name, values in inputs.items() if name in read}
        return dict(zip(names, session.run(names, feed), strict=True))

    return run
