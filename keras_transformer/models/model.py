"""The base class of the models, and models of published sizes by name."""

import contextlib
import inspect
import pathlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np

from keras_transformer import memory, processes, xla
from keras_transformer.configuration import Configured
from keras_transformer.layers.embeddings import nan_for_unknown_rows
from keras_transformer.models import jax_state
from keras_transformer.models.fit_arguments import prepare_callbacks, settings_of_fit
from keras_transformer.models.input_checks import InputCheck
from keras_transformer.models.input_specs import (
    InputSpecs,
    are_inputs_checked,
    as_dictionary,
    inputs_checked,
    with_assertions,
    with_integers,
)
from keras_transformer.models.loss_checks import check_class_weight, check_losses, expanded_weights
from keras_transformer.models.strategies import check_strategy
from keras_transformer.processes import check_agreement
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of


def _with_arguments_of_keras(method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a method the signature of the method of `keras.Model` that it extends, with `check_inputs`."""
    signature = inspect.signature(getattr(keras.Model, method.__name__))
    check_inputs = inspect.signature(method).parameters["check_inputs"]
    parameters = sorted([*signature.parameters.values(), check_inputs], key=lambda one: one.kind)
    method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return method


class Model(Configured, keras.Model):
    """Base class of the models: `keras.Model` with what all models of this package share.

    It compiles with XLA only where XLA is enabled (see `xla`). `fit`, `evaluate`, `predict`, `train_on_batch`,
    `test_on_batch` and `predict_on_batch` have an argument `check_inputs`, by default True: they raise a `ValueError`
    that names the argument, row and column of an id outside the vocabulary or a label outside the classes, for which
    XLA would read another entry. Arrays are checked at the start, batches of a dataset when they are read. Callbacks
    that write logs (`writes_logs`) are called before the others. A callback with a method `fit_context(model,
    arguments)` can change the arguments of `fit`, a dictionary by name, and wrap the call: the method returns a context
    manager in which `fit` runs.

    The constructor of a subclass creates all weights, and `input_specs` describes the inputs, so that a model can be
    summarized, quantized and exported before its first call.
    """

    returns_logits = False
    """Whether the outputs are logits or predicted numbers, which losses of probabilities do not accept."""
    parts: ClassVar[tuple[str, ...]] = ()
    """The arguments that are models or layers."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Compare the arguments in all processes before JAX distributes weights, which must have equal shapes."""
        if processes.current().count > 1 and keras.distribution.distribution() is not None:
            arguments = inspect.signature(cls).bind_partial(*args, **kwargs).arguments
            arguments |= arguments.pop("kwargs", {})
            # Models among the arguments were compared when they were created.
            others = {name: value for name, value in arguments.items() if not isinstance(value, keras.Model)}
            check_agreement(**{"model": cls.__name__, **others})
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.supports_jit = xla.is_enabled()
        self.supports_masking = True

    @property
    def built(self) -> bool:
        """True if the weights exist; those of a model that was created with `trainable=False` are then frozen."""
        return self._built

    @built.setter
    def built(self, built: bool) -> None:
        is_new, self._built = not getattr(self, "_built", False), built
        if is_new and built and not self._trainable:
            # Keras freezes the layers that exist when `trainable` is set, and ignores a value that it already has.
            self.trainable = True
            self.trainable = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model as a layer, with integers in place of the floats with which Keras builds enclosing models.

        The methods of an enclosing model and a function of your own do not check inputs, so that their graph does.
        Where it cannot raise an error, on JAX and under XLA, ids outside the vocabulary and edges of other nodes give
        NaN.
        """
        specs = self.input_specs()
        # Keras has no public name of the outermost layer of a call, whose methods check inputs if it is one of ours.
        outermost = self._get_call_context().entry_layer
        is_checked = isinstance(outermost, Model) and are_inputs_checked()
        # On JAX, an enclosing model is not known: its step calls its layers only.
        is_enclosed = not is_checked or (outermost is self and keras.backend.backend() == "jax")
        try:
            if args:
                args = (_prepared(args[0], specs, is_checked), *args[1:])
            elif "inputs" in kwargs:
                kwargs["inputs"] = _prepared(kwargs["inputs"], specs, is_checked)
            with nan_for_unknown_rows() if is_enclosed else contextlib.nullcontext():
                return super().__call__(*args, **kwargs)
        finally:
            self._maybe_reset_call_context()

    def stateless_call(
        self, trainable_variables: Any, non_trainable_variables: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Call the model with values of its variables, as Keras does on JAX; the outputs have their masks."""
        # Keras calls `call`, which sets no mask.
        results = super().stateless_call(trainable_variables, non_trainable_variables, *args, **kwargs)
        self._set_mask_metadata(args[0] if args else kwargs["inputs"], results[0], None)
        return results

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the Keras mask of each output that has the tokens' axes, False for padding; None without a mask.

        Layers, losses and metrics of Keras that follow the model skip the padding.
        """
        return None

    def input_specs(self) -> InputSpecs:
        """Return the integer inputs of a call, by name, which `fit` checks."""
        return {}

    def input_signature(self) -> Any:
        """Return the `keras.InputSpec` of each input of an exported model, by name, or of a single input.

        By default, exports have no other optional inputs; `export(input_signature=...)` accepts any inputs of a call.
        """
        return {name: spec.for_keras(name) for name, spec in self.input_specs().items() if spec.is_exported}

    @_with_arguments_of_keras
    def fit(self, x: Any = None, y: Any = None, *args: Any, check_inputs: bool = True, **kwargs: Any) -> Any:
        """Train as `keras.Model.fit`, with a check of ids and labels unless `check_inputs` is False.

        A dataset of `keras_transformer.data` begins with the batches of its next epoch, or with `initial_epoch=n` with
        the batches of epoch n, so that `fit` continues where an earlier call ended. On Linux, the process keeps freed
        memory until `fit` ends.
        """
        check_strategy(self)
        bound = inspect.signature(super().fit).bind(x, y, *args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        check_losses(self)
        check_class_weight(self, arguments["class_weight"])
        check_agreement(**settings_of_fit(self, arguments))
        if arguments["verbose"] == "auto" and not processes.current().is_main:
            arguments["verbose"] = 0
        with jax_state.restored(self), inputs_checked(), contextlib.ExitStack() as stack:
            stack.enter_context(memory.freed_memory_kept())
            prepare_callbacks(self, arguments, stack)
            if check_inputs:
                check = stack.enter_context(InputCheck(self).raised())
                arguments["x"] = check.data(arguments["x"], y)
                arguments["validation_data"] = check.validation_data(arguments["validation_data"])
            _build_optimizer(self)
            return super().fit(**arguments)

    @_with_arguments_of_keras
    def evaluate(
        self, x: Any = None, y: Any = None, *args: Any, check_inputs: bool = True, **kwargs: Any
    ) -> Any:
        """Evaluate as `keras.Model.evaluate`, with a check of ids and labels unless `check_inputs` is False."""
        check_losses(self)
        # `fit`, which passes its list of callbacks, has already checked the validation data.
        checked = check_inputs and not isinstance(kwargs.get("callbacks"), keras.callbacks.CallbackList)
        with jax_state.restored(self), inputs_checked(), InputCheck(self).raised() as check:
            return super().evaluate(check.data(x, y) if checked else x, y, *args, **kwargs)

    @_with_arguments_of_keras
    def predict(self, x: Any, *args: Any, check_inputs: bool = True, **kwargs: Any) -> Any:
        """Predict as `keras.Model.predict`, with a check of ids unless `check_inputs` is False."""
        with jax_state.restored(self), inputs_checked(), InputCheck(self).raised() as check:
            return super().predict(check.data(x) if check_inputs else x, *args, **kwargs)

    @_with_arguments_of_keras
    def train_on_batch(
        self, x: Any, y: Any = None, *args: Any, check_inputs: bool = True, **kwargs: Any
    ) -> Any:
        """Train as `keras.Model.train_on_batch`, with a check of ids and labels unless `check_inputs` is False."""
        check_losses(self)
        bound = inspect.signature(super().train_on_batch).bind(x, y, *args, **kwargs)
        check_class_weight(self, bound.arguments.get("class_weight"))
        with _checked_batch(self, x, y, check_inputs):
            _build_optimizer(self)
            return super().train_on_batch(x, y, *args, **kwargs)

    @_with_arguments_of_keras
    def test_on_batch(
        self, x: Any, y: Any = None, *args: Any, check_inputs: bool = True, **kwargs: Any
    ) -> Any:
        """Evaluate as `keras.Model.test_on_batch`, with a check of ids and labels unless `check_inputs` is False."""
        check_losses(self)
        with _checked_batch(self, x, y, check_inputs):
            return super().test_on_batch(x, y, *args, **kwargs)

    @_with_arguments_of_keras
    def predict_on_batch(self, x: Any, check_inputs: bool = True) -> Any:
        """Predict as `keras.Model.predict_on_batch`, with a check of ids unless `check_inputs` is False."""
        with _checked_batch(self, x, None, check_inputs):
            return super().predict_on_batch(x)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Return the loss as `keras.Model.compute_loss`; weights of rows are those of all their tokens."""
        return super().compute_loss(x, y, y_pred, expanded_weights(sample_weight, y_pred), *args, **kwargs)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Return the metrics as `keras.Model.compute_metrics`, with weights as in `compute_loss`."""
        return super().compute_metrics(x, y, y_pred, expanded_weights(sample_weight, y_pred))

    def _make_function(self, step_function: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the function of a step of `fit`, `evaluate` or `predict`, whose state is kept on JAX."""
        # Keras has no public hook between reading a batch and the step.
        if keras.backend.backend() != "jax":
            return super()._make_function(step_function, *args, **kwargs)
        step = jax_state.uninterrupted(self, step_function)
        return jax_state.recording(self, super()._make_function(step, *args, **kwargs))

    def named_inputs(self, inputs: Any) -> dict[str, Tensor]:
        """Return the inputs of a call by name, after checking their names, ranks and dtypes."""
        specs = self.input_specs()
        return as_dictionary(with_integers(inputs, specs), specs)

    def count_tokens(self, inputs: Any) -> int:
        """Return the number of tokens in a batch without padding, for an encoder–decoder in source and target.

        Args:
            inputs: NumPy arrays, as in a call.

        Returns:
            The number; 0 for a model whose inputs are not ids.
        """
        named = inputs if isinstance(inputs, dict) else {"token_ids": inputs}
        pad_id, count = getattr(self, "pad_id", None), 0
        for name in {"token_ids", "source_ids", "target_ids"} & named.keys() & self.input_specs().keys():
            if pad_id is not None:
                count += int(np.count_nonzero(np.asarray(named[name]) != pad_id))
            elif "lengths" in named:
                count += int(np.sum(named["lengths"]))
            else:
                count += (
                    int(np.count_nonzero(named["padding_mask"]))
                    if "padding_mask" in named
                    else np.size(named[name])
                )
        return count

    @property
    def _default_save_signature(self) -> None:
        """None, so that a SavedModel has the signatures of `export` only."""
        # No public hook disables Keras' default signature, for which every built model is called with floats as ids.

    def build(self, input_shape: Any = None) -> None:
        """Accept inputs of any shape: the constructor has created the weights."""

    def build_as_sublayer(self) -> None:
        """Build the model with the shapes of `input_signature`, which the summary of an enclosing model shows."""
        self.build(keras.tree.map_structure(lambda spec: spec.shape, self.input_signature()))

    def export(
        self,
        filepath: Any,
        format: str = "tf_saved_model",  # noqa: A002  (Keras' name)
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """Export the model as `keras.Model.export`, by default with the inputs of `input_signature`.

        Raises:
            ValueError: if `format` is "onnx" and Keras cannot convert an operation.
        """
        signature = [self.input_signature()] if input_signature is None else input_signature
        with inputs_checked():
            super().export(filepath, format, verbose, signature, **kwargs)
        if format == "onnx":
            _check_onnx(pathlib.Path(filepath))

    def get_compile_config(self) -> dict[str, Any] | None:
        """Return how the model was compiled; None with adapters, as a saved model has merged weights instead."""
        has_adapters = any(getattr(layer, "lora_enabled", False) for layer in flatten_layers(self))
        return None if has_adapters else super().get_compile_config()

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, the paths of frozen layers and, if any, the "quantization" of layers.

        A subclass adds the arguments whose attributes have other names or values.
        """
        layers = flatten_layers(self)
        quantization = {
            layer.path: {
                "mode": layer.quantization_mode,
                "config": keras.saving.serialize_keras_object(getattr(layer, "quantization_config", None)),
            }
            for layer in layers
            if layer.quantization_mode is not None
        }
        frozen = [layer.path for layer in layers if layer.path and not layer.trainable]
        return {
            **super().get_config(),
            **({"quantization": quantization} if quantization else {}),
            "frozen": frozen,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Create the model from its config, and quantize and freeze its layers as saved.

        Weights of quantized layers can only be loaded into quantized layers.
        """
        parts = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects=custom_objects)
            for name in cls.parts
        }
        config = {**config, **parts}
        quantization, frozen = config.pop("quantization", {}), config.pop("frozen", None)
        model = super().from_config(config, custom_objects)
        layers = flatten_layers(model)
        with memory.quick_collections():
            for layer in layers:
                if layer.path in quantization and layer.quantization_mode is None:
                    saved = quantization[layer.path]
                    config = keras.saving.deserialize_keras_object(saved["config"])
                    layer.quantize(saved["mode"], config=config)
        if frozen is not None:
            _set_frozen(layers, {*frozen})
        return model


def _prepared(inputs: Any, specs: InputSpecs, is_checked: bool) -> Any:
    """Return the inputs of a call as integers, with assertions unless they are checked otherwise."""
    inputs = with_integers(inputs, specs)
    return inputs if is_checked else with_assertions(inputs, specs)


@contextlib.contextmanager
def _checked_batch(model: Model, x: Any, y: Any, check_inputs: bool) -> Iterator[None]:
    """Check a batch, and keep the weights on JAX if an exception is raised."""
    if check_inputs:
        InputCheck(model).batch(x, y)
    with jax_state.restored(model), inputs_checked():
        yield


def flatten_layers(model: keras.Model) -> list[Any]:
    """Return all layers of a model, including nested ones."""
    # Keras has no public function for this: `keras.Model.layers` has the direct layers only.
    return list(model._flatten_layers(include_self=False))


def _build_optimizer(model: Model) -> None:
    """Create the optimizer's variables: TensorFlow traces a step twice if its first call creates variables."""
    optimizer = getattr(model, "optimizer", None)
    if keras.backend.backend() != "tensorflow" or optimizer is None or optimizer.built:
        return
    if all(layer.built for layer in flatten_layers(model)):
        with model.distribute_strategy.scope():
            optimizer.build(model.trainable_variables)


def _set_frozen(layers: Sequence[Any], paths: Collection[str]) -> None:
    """Make the layers with these paths untrainable, and the others trainable."""
    while changed := [
        layer for layer in layers if layer.path and layer.trainable == (layer.path in paths)
    ]:  # until none is left: a layer passes its state on to its parts, which may differ
        for layer in changed:
            layer.trainable = layer.path not in paths


def _check_onnx(file: pathlib.Path) -> None:
    """Remove an ONNX file and raise a ValueError if it has operations unknown to ONNX, which Keras does not check."""
    import onnx

    nodes = onnx.load(file, load_external_data=False).graph.node
    unknown = sorted({node.op_type for node in nodes if not onnx.defs.has(node.op_type, node.domain)})
    if unknown:
        file.unlink()
        raise ValueError(
            'Keras\' `export(format="onnx")` cannot convert an operation of the model. '
            f"Use kt.export.onnx_model(model, file). Received: {', '.join(unknown)}"
        )


class PublishedSizes:
    """Mixin that adds `from_size` to a model.

    A subclass sets `sizes`, the arguments of its constructor for each published size.
    """

    sizes: ClassVar[dict[str, dict[str, Any]]] = {}

    @classmethod
    def from_size(cls, name: str, **kwargs: Any) -> Self:
        """Create a model of a published size, with random weights.

        Args:
            name: a key of `sizes`.
            **kwargs: arguments of the constructor, which replace those of the size.
        """
        check_one_of(sorted(cls.sizes), name=name)
        return cls(**{**cls.sizes[name], **kwargs})
