"""The base class of the models, and models of published sizes by name."""

import pathlib
from typing import Any, ClassVar, Self

import keras

from keras_transformer.arguments import check_one_of


class Model(keras.Model):
    """Base class of the models: `keras.Model` with what all models of this package share.

    The constructor of a subclass creates all weights, and `input_signature` describes the inputs, so that a model can
    be summarized, quantized and exported before its first call.
    """

    def input_signature(self) -> Any:
        """Return the `keras.InputSpec` of the inputs of an exported model, by name or a single one.

        Optional inputs of a call that are not in it are left out of exports; `export(input_signature=...)` takes any.
        """
        raise NotImplementedError

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
            ValueError: if `format` is "onnx" and Keras' conversion has no form for an operation.
        """
        signature = [self.input_signature()] if input_signature is None else input_signature
        super().export(filepath, format, verbose, signature, **kwargs)
        if format == "onnx":
            _check_onnx(pathlib.Path(filepath))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, and "quantization", the modes of quantized layers, if there are any."""
        quantization = {
            layer.path: {
                "mode": layer.quantization_mode,
                "config": keras.saving.serialize_keras_object(getattr(layer, "quantization_config", None)),
            }
            for layer in self._flatten_layers(include_self=False)
            if layer.quantization_mode is not None
        }
        return {**super().get_config(), **({"quantization": quantization} if quantization else {})}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Create the model of a `get_config`, and quantize its layers as saved, so that their weights can be loaded."""
        config = dict(config)
        quantization = config.pop("quantization", {})
        model = super().from_config(config, custom_objects)
        for layer in model._flatten_layers(include_self=False):
            if layer.path in quantization and layer.quantization_mode is None:
                saved = quantization[layer.path]
                layer.quantize(saved["mode"], config=keras.saving.deserialize_keras_object(saved["config"]))
        return model


def _check_onnx(file: pathlib.Path) -> None:
    """Raise and remove the file of an ONNX graph if it has operations that are not of ONNX, which Keras lets pass."""
    import onnx

    nodes = onnx.load(file, load_external_data=False).graph.node
    unknown = sorted({node.op_type for node in nodes if not onnx.defs.has(node.op_type, node.domain)})
    if unknown:
        file.unlink()
        raise ValueError(
            'Keras\' `export(format="onnx")` has no form for an operation of the model. '
            f"Use kt.export.onnx_model(model, file). Received: {', '.join(unknown)}"
        )


def ids_spec(name: str, shape: tuple[int | None, ...] = (None, None)) -> keras.InputSpec:
    """Return the spec of integer ids, by default (B, T)."""
    return keras.InputSpec("int32", shape, name=name)


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

        Raises:
            ValueError: if `name` is unknown.
        """
        check_one_of(sorted(cls.sizes), name=name)
        return cls(**{**cls.sizes[name], **kwargs})
