"""LoRA: train low-rank adapters instead of the weights, and save and load them."""

import hashlib
import os
import pathlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import h5py
import keras
import numpy as np
from keras import ops

from keras_transformer.layers import GraphAttention, MultiHeadAttention
from keras_transformer.models.model import flatten_layers
from keras_transformer.training.states import replaced
from keras_transformer_options.arguments import check_positive, check_positive_integer

_SUFFIX = ".lora.h5"
_A, _B = "lora_kernel_a", "lora_kernel_b"
_QUANTIZATIONS = (None, "int8", "int4")  # Keras can merge adapters into these kernels


def enable_lora(
    model: keras.Model, rank: int, targets: Collection[str] | None = None, lora_alpha: float | None = None
) -> None:
    r"""Add low-rank adapters to the projections of a model, and freeze all other weights.

    $$W' = W + \frac{\alpha}{r} A B, \qquad A \in \mathbb{R}^{m \times r},\; B \in \mathbb{R}^{r \times n}$$

    B starts at zero, so the model computes the same as before. Only A and B are trained: kernels, biases, norms and
    embeddings are frozen. Compile the model afterwards. To train a new head too, add adapters to the encoder below it
    only: `enable_lora(classifier.encoder, 8)`.

    The model can be saved, exported, quantized and used in pipelines as before; `model.save` writes merged weights.
    `save_lora_weights` saves only the adapters; `merge_lora` ends their training.

    Args:
        model: a built Keras model.
        rank: r, the rank of the adapters.
        targets: the names of the `keras.layers.Dense` layers to adapt, such as "query", or the ends of their paths,
            such as "self_attention/query" or "feed_forward/hidden". By default all projections of
            `layers.MultiHeadAttention` and `layers.GraphAttention`: "query", "key", "value" and "output" of each.
        lora_alpha: α, by default `rank`.

    Raises:
        ValueError: if `rank` or `lora_alpha` is not positive, a target matches no layer, or the model already has
            adapters. The model is then unchanged.

    Example:
        >>> from keras_transformer.models import GPT
        >>> model = GPT(100, num_layers=1, num_heads=2, model_dim=16, max_length=8)
        >>> enable_lora(model, rank=2, targets=["query", "value"])
        >>> [weight.name for weight in model.trainable_weights]
        ['lora_kernel_a', 'lora_kernel_b', 'lora_kernel_a', 'lora_kernel_b']

    References:
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2022).
    """
    check_positive_integer(rank=rank)
    if lora_alpha is not None:
        check_positive(lora_alpha=lora_alpha)
    _check_model(model)
    if _adapted(model):
        raise ValueError(
            "`model` must not have adapters yet; `merge_lora` merges them. "
            f"Received: a model with {len(_adapted(model))} adapted layers"
        )
    layers = _attention_projections(model) if targets is None else _targeted(model, targets)
    for layer in layers:
        _check_layer(layer)
    _freeze(model)
    for layer in layers:
        layer.enable_lora(rank, lora_alpha=lora_alpha)


def merge_lora(model: keras.Model) -> None:
    """Add the adapters of a model to its kernels, and remove them.

    The outputs stay the same, and a call no longer computes A·B. All weights that were frozen stay frozen; set
    `model.trainable = True` to train them. Compile the model before another `fit`.

    Args:
        model: a model with the adapters of `enable_lora`.
    """
    for layer in _checked_adapted(model):
        store: dict[str, Any] = {}
        layer.save_own_variables(store)  # with the adapter added to the kernel
        layer.load_own_variables({name: ops.convert_to_numpy(value) for name, value in store.items()})
        for name in (_A, _B):
            delattr(layer, name)
        layer.lora_enabled, layer.lora_rank, layer.lora_alpha = False, None, None
    model.compiled = False


def save_lora_weights(model: keras.Model, filepath: str | os.PathLike[str]) -> None:
    """Save the adapters of a model, and its other trainable weights, such as a head, without frozen weights.

    Args:
        model: a model with the adapters of `enable_lora`.
        filepath: the file, an HDF5 file whose name ends in ".lora.h5". An existing file is replaced when the new one
            is complete.

    Example:
        >>> save_lora_weights(model, "support.lora.h5")
        >>> load_lora_weights(base_model, "support.lora.h5")
    """
    layers = _checked_adapted(model)
    path = _checked_path(filepath)
    adapter_ids = {id(getattr(layer, name)) for layer in layers for name in (_A, _B)}
    others = [variable for variable in model.trainable_variables if id(variable) not in adapter_ids]
    with replaced(path) as temporary, h5py.File(temporary, "w") as file:
        for layer in layers:
            group = file.create_group(_name(model, layer))
            group.attrs.update(lora_alpha=layer.lora_alpha, kernel=_digest(layer))
            for name in (_A, _B):
                group[name] = _array(getattr(layer, name))
        for variable in others:
            file[_name(model, variable)] = _array(variable)


def load_lora_weights(model: keras.Model, filepath: str | os.PathLike[str]) -> None:
    """Load a file of `save_lora_weights` into a model with the same frozen weights.

    If the model has no adapters, they are added, and all weights that are not in the file are frozen.

    Args:
        model: the base model, or a model with adapters of the same rank on the same layers.
        filepath: the file.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file was not saved by `save_lora_weights`, or its adapters were trained for other layers,
            sizes or weights. The model is then unchanged.
    """
    _check_model(model)
    path = _checked_path(filepath)
    adapters, others = _read(path)
    layers = _by_name(path, model, _dense_layers(model), adapters)
    variables = _by_name(path, model, model.variables, others)
    for name, variable in variables.items():
        _check_shape(path, name, others[name].shape, tuple(variable.shape))
    for name, adapter in adapters.items():
        adapter.check(path, name, layers[name])
    adapted = {_name(model, layer) for layer in _adapted(model)}
    if not adapted:
        for layer in layers.values():
            _check_layer(layer)
        _freeze(model)
        for name, layer in layers.items():
            layer.enable_lora(adapters[name].a.shape[1], lora_alpha=adapters[name].alpha)
        for variable in variables.values():
            variable.trainable = True
    elif adapted != set(adapters):
        raise ValueError(
            f"`model` must have no adapters, or the same as `{path}`. "
            f"Received: adapters of {sorted(adapted ^ set(adapters))} in only one of them"
        )
    for name, layer in layers.items():
        layer.lora_alpha = adapters[name].alpha
        layer.lora_kernel_a.assign(adapters[name].a)
        layer.lora_kernel_b.assign(adapters[name].b)
    for name, variable in variables.items():
        variable.assign(others[name])


class _Adapter(NamedTuple):
    """The adapter of one layer, as read from a file."""

    a: np.ndarray
    b: np.ndarray
    alpha: float
    kernel: str  # the digest of the layer's kernel

    def check(self, path: pathlib.Path, name: str, layer: Any) -> None:
        """Raise a ValueError unless it is an adapter of the layer."""
        rank = self.a.shape[-1]
        size, units = layer.input_spec.axes[-1], layer.units
        _check_shape(path, f"{name}/{_A}", self.a.shape, (size, rank))
        _check_shape(path, f"{name}/{_B}", self.b.shape, (rank, units))
        if layer.lora_enabled and layer.lora_rank != rank:
            raise ValueError(
                f"`model` must have adapters of the rank of `{path}`. "
                f"Received: rank {layer.lora_rank} of {name}, expected: {rank}"
            )
        if _digest(layer) != self.kernel:
            raise ValueError(
                f"`model` must have the weights that the adapters of `{path}` were trained with. "
                f"Received: a different kernel of {name}"
            )


def _read(path: pathlib.Path) -> tuple[dict[str, _Adapter], dict[str, np.ndarray]]:
    """Return the adapters of a file by the paths of layers, and other weights by path."""
    arrays: dict[str, np.ndarray] = {}
    attributes: dict[str, dict[str, Any]] = {}

    def collect(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            arrays[name] = item[()]
        elif item.attrs:
            attributes[name] = dict(item.attrs)

    with open(path, "rb"):  # raises FileNotFoundError, unlike HDF5
        pass
    try:
        with h5py.File(path, "r") as file:
            file.visititems(collect)
        adapters = {
            name: _Adapter(
                arrays.pop(f"{name}/{_A}"),
                arrays.pop(f"{name}/{_B}"),
                float(settings["lora_alpha"]),
                settings["kernel"],
            )
            for name, settings in attributes.items()
        }
    except (OSError, KeyError, RuntimeError) as error:
        raise ValueError(f"`{path}` must be a file of save_lora_weights. Received: {error}") from error
    if not adapters:
        raise ValueError(f"`{path}` must be a file of save_lora_weights. Received: a file without adapters")
    return adapters, arrays


def _dense_layers(model: Any) -> list[Any]:
    return [layer for layer in flatten_layers(model) if isinstance(layer, keras.layers.Dense)]


def _adapted(model: Any) -> list[Any]:
    return [layer for layer in _dense_layers(model) if layer.lora_enabled]


def _checked_adapted(model: Any) -> list[Any]:
    _check_model(model)
    layers = _adapted(model)
    if not layers:
        raise ValueError("`model` must have adapters, see `enable_lora`. Received: a model without adapters")
    return layers


def _attention_projections(model: Any) -> list[Any]:
    attentions = [
        layer for layer in flatten_layers(model) if isinstance(layer, MultiHeadAttention | GraphAttention)
    ]
    projections = {id(layer): layer for attention in attentions for layer in _dense_layers(attention)}
    if not projections:
        raise ValueError(
            "`targets` must be passed for a model without attention layers of keras_transformer. Received: targets=None"
        )
    return list(projections.values())


def _targeted(model: Any, targets: Any) -> list[Any]:
    """Return the layers whose paths end with one of the targets."""
    if isinstance(targets, str) or not isinstance(targets, Collection):
        raise TypeError(f"`targets` must be a list of names. Received: targets={targets!r}")
    layers = _dense_layers(model)
    matches = {
        target: [layer for layer in layers if f"/{layer.path or layer.name}".endswith(f"/{target}")]
        for target in targets
    }
    for target in list(targets) or [None]:
        if not matches.get(target):
            raise ValueError(
                "`targets` must be names of Dense layers or ends of their paths, one of "
                f"{sorted({layer.name for layer in layers})}. Received: targets={list(targets)}"
            )
    matching = {id(layer) for target_layers in matches.values() for layer in target_layers}
    return [layer for layer in layers if id(layer) in matching]


def _check_model(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a Keras model. Received: a {type(model).__name__}")


def _check_layer(layer: Any) -> None:
    """Raise a ValueError for a layer that Keras cannot adapt, before any layer is changed."""
    if not layer.built:
        reason = "has no weights yet; call the model on a batch"
    elif layer.kernel_constraint is not None:
        reason = "has a kernel constraint"
    elif layer.quantization_mode not in _QUANTIZATIONS:
        reason = f"is quantized to {layer.quantization_mode}"
    else:
        return
    raise ValueError(
        f"`targets` must be layers that can have adapters. Received: {layer.name}, which {reason}"
    )


def _freeze(model: Any) -> None:
    """Freeze all weights; the model must then be compiled, because optimizers have variables for trained weights."""
    model.trainable = True  # or new adapters would not be trainable
    for variable in model.trainable_variables:
        variable.trainable = False
    model.compiled = False


def _name(model: Any, item: Any) -> str:
    """Return the path of a layer or variable without the model's name, which Keras numbers."""
    return str(item.path.removeprefix(f"{model.name}/"))


def _by_name(path: pathlib.Path, model: Any, items: Sequence[Any], names: dict[str, Any]) -> dict[str, Any]:
    """Return the layers or variables whose names are in a file."""
    by_name: dict[str, list[Any]] = {name: [] for name in names}
    for item in items:
        by_name.get(_name(model, item), []).append(item)
    for name, matches in by_name.items():
        if len(matches) != 1:
            raise ValueError(
                f"`model` must have the architecture of `{path}`, with one {name}. Received: {len(matches)}"
            )
    return {name: matches[0] for name, matches in by_name.items()}


def _check_shape(path: pathlib.Path, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if tuple(shape) != expected:
        raise ValueError(
            f"`model` must have the architecture of `{path}`, with {name} of shape {tuple(shape)}. "
            f"Received: shape {expected}"
        )


def _checked_path(filepath: Any) -> pathlib.Path:
    path = pathlib.Path(filepath)
    if not path.name.endswith(_SUFFIX):
        raise ValueError(f"`filepath` must end in {_SUFFIX!r}. Received: filepath={str(filepath)!r}")
    return path


def _array(value: Any) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(ops.cast(value, "float32")))


def _digest(layer: Any) -> str:
    """Return a hash of the frozen kernel of a layer."""
    weight = next(
        weight for weight in layer.weights if weight.name == "kernel"
    )  # `layer.kernel` adds the adapter
    kernel = np.ascontiguousarray(_array(weight))
    return hashlib.blake2b(kernel.data, digest_size=8).hexdigest()
