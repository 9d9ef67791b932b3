"""Reading of `sentence-transformers` folders: `modules.json` and the modules that it lists."""

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras

from keras_transformer.interop import hugging_face
from keras_transformer.interop.architecture import Parameter, Parameters, dense, norm
from keras_transformer.interop.assignment import INT8, quantize_weights
from keras_transformer.interop.hub import CONFIG, MODULES, modules_of
from keras_transformer.interop.tensors import SAFETENSORS, save_tensors, tensors_of
from keras_transformer.models import BERT, ModernBERT, SentenceEncoder
from keras_transformer.models.sentence_encoder import pooled_dim
from keras_transformer_options.arguments import is_integer
from keras_transformer_serving import files

_OF_TRANSFORMER = "sentence_bert_config.json"
_OF_MODEL = "config_sentence_transformers.json"
_OF_TOKENIZER = "tokenizer_config.json"
_LEGACY_ACTIVATION = "sbert_ce_default_activation_function"
_SIGMOID = "torch.nn.modules.activation.Sigmoid"
_PACKAGE = "sentence_transformers."
_INPUTS = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
_POOLINGS = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_length",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
# The settings of older versions, in the order in which the pooled vectors are concatenated.
_OLDER_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "linear",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
    _SIGMOID: "sigmoid",
}
_LAYER_NORM_EPSILON = 1e-5


class SentenceTransformer(NamedTuple):
    """The model and the settings of a folder of `sentence-transformers`.

    Attributes:
        model: the encoder, its pooling and the layers after it.
        folder: the folder of the encoder and of its tokenizer.
        lowercase: whether texts are lower-cased before they are tokenized.
        settings: the arguments of `pipelines.Embedding` for normalisation, the maximum length and prompts.
    """

    model: SentenceEncoder
    folder: pathlib.Path
    lowercase: bool
    settings: dict[str, Any]


class _Module(NamedTuple):
    name: str
    folder: pathlib.Path


def has_modules(folder: pathlib.Path) -> bool:
    """Return whether a folder is of a `SentenceTransformer`, which has `modules.json` or at least `1_Pooling`."""
    has_files = any((folder / path).is_file() for path in (MODULES, f"1_Pooling/{CONFIG}"))
    return has_files and not _names_cross_encoder(folder)


def is_cross_encoder(folder: pathlib.Path, config: Mapping[str, Any]) -> bool:
    """Return whether the files of a model say that it is a `CrossEncoder`, by its name or its activation.

    Args:
        folder: the folder.
        config: the content of its `config.json`.
    """
    is_named = any(config.get(name) for name in ("sentence_transformers", _LEGACY_ACTIVATION))
    return is_named or _names_cross_encoder(folder)


def cross_encoder_settings(folder: pathlib.Path, config: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return the arguments of `pipelines.Reranking` of a folder.

    Args:
        folder: the folder of a model with one label, which a `CrossEncoder` has saved or can read.
        config: the content of its `config.json`.
        limit: the maximum length of the model.

    Raises:
        ValueError: if a module, an activation or a setting is not supported.
    """
    if (folder / MODULES).is_file():
        names = [name for name, _ in _named_modules(folder)]
        if names != ["Transformer"]:
            raise ValueError(
                f"`{folder / MODULES}` must list only the module Transformer of sentence-transformers. "
                f"Received: {', '.join(names) or 'none'}"
            )
    unused = ("__version__", "keep_in_fp32_modules")  # the latter are layers that autocast leaves in float32
    expected = {"model_type": "CrossEncoder", "default_prompt_name": None}
    of_model = _settings(folder / _OF_MODEL, expected, "activation_fn", *unused, optional=True)
    of_library = config.get("sentence_transformers")
    older = of_library.get("activation_fn") if isinstance(of_library, dict) else None
    activation = of_model.get("activation_fn") or older or config.get(_LEGACY_ACTIVATION) or _SIGMOID
    known = {path: name for path, name in _ACTIVATIONS.items() if name in ("sigmoid", "linear")}
    if activation not in known:
        raise ValueError(
            f"`{folder}` must have an activation among {list(known)}. Received: activation_fn={activation!r}"
        )
    _, length = _transformer_settings(folder, "sequence-classification", "logits", "scores")
    return {"activation": known[activation], "max_length": min(length or limit, limit)}


def _names_cross_encoder(folder: pathlib.Path) -> bool:
    path = folder / _OF_MODEL
    config = files.read_json(path) if path.is_file() else None
    return isinstance(config, dict) and config.get("model_type") == "CrossEncoder"


def from_sentence_transformers(
    folder: str | os.PathLike[str], precision: str | None = None
) -> SentenceTransformer:
    """Read a folder that the `sentence-transformers` library has saved.

    Args:
        folder: a folder with `modules.json`.
        precision: of the encoder, as for `hugging_face.from_hugging_face`.

    Returns:
        The model and its settings. Texts that are too long are truncated, as in `sentence-transformers`.

    Raises:
        FileNotFoundError: if a file is missing, or weights are only in PyTorch's format.
        ImportError: if safetensors is not installed.
        ValueError: if a file is damaged, or a module, an order of modules or a setting is not supported.
    """
    folder = pathlib.Path(folder)
    settings = _model_settings(folder)
    transformer, pooling, *others = _modules(folder)
    lowercase, max_length = _transformer_settings(
        transformer.folder, "feature-extraction", "last_hidden_state", "token_embeddings"
    )
    # Without a head, as in `sentence-transformers`, whatever class `config.json` names.
    encoder: Any = hugging_face.read_model(transformer.folder, precision, (BERT, ModernBERT))
    if precision == INT8:
        quantize_weights(encoder)
    names, head = _poolings(pooling.folder, encoder), []
    size = pooled_dim(encoder, names)
    for module in others:  # including Normalize at the end, to check its settings
        head.append(_LAYERS[module.name](module.folder, size))
        size = head[-1].compute_output_shape((None, size))[-1]
    # The library truncates vectors after its modules, and does not normalise them again.
    normalize = bool(others) and others[-1].name == "Normalize" and settings["truncate_dim"] is None
    return SentenceTransformer(
        SentenceEncoder(encoder, names, head[:-1] if normalize else head),
        transformer.folder,
        lowercase,
        {
            "normalize": normalize,
            "long_texts": "truncate",
            "max_length": min(max_length or encoder.max_length, encoder.max_length),
            **settings,
        },
    )


def _modules(folder: pathlib.Path) -> list[_Module]:
    """Return the modules of a folder: a transformer, a pooling, and layers."""
    named = _named_modules(folder)
    names = [name for name, _ in named]
    if names[:2] != ["Transformer", "Pooling"] or not set(names[2:]) <= _LAYERS.keys():
        raise ValueError(
            f"`{folder / MODULES}` must list the modules Transformer and Pooling of sentence-transformers, followed by "
            f"any of {', '.join(_LAYERS)}. Received: {', '.join(names) or 'none'}"
        )
    return [_Module(name, folder / path) for name, path in named]


def _named_modules(folder: pathlib.Path) -> list[tuple[str, str]]:
    """Return the names of the library's modules, or the types of others, and their folders below `folder`."""
    return [
        (path.rpartition(".")[2] if path.startswith(_PACKAGE) else path, below)
        for path, below in modules_of(folder)
    ]


def _settings(
    path: pathlib.Path, expected: Mapping[str, Any], *read: str, optional: bool = False
) -> dict[str, Any]:
    """Read the settings of a file, and check those that the caller does not read.

    Args:
        path: the file.
        expected: the supported values of settings.
        *read: the names of settings that the caller reads.
        optional: whether the file may be missing.

    Raises:
        FileNotFoundError: if the file is missing and not optional.
        ValueError: if a setting has an unsupported value, or an unknown setting is not empty.
    """
    config = {} if optional and not path.is_file() else files.read_json(path)
    if not isinstance(config, dict):
        raise ValueError(f"`{path}` must be a dictionary. Received: {config!r}")
    for name in config.keys() & expected.keys():
        if config[name] != expected[name]:
            raise ValueError(
                f"`{path}` must have {name}={expected[name]!r}. Received: {name}={config[name]!r}"
            )
    for name, value in config.items():
        if value and name not in {*expected, *read}:
            raise ValueError(
                f"`{path}` must only have the settings {sorted([*expected, *read])}, or empty ones. "
                f"Received: {name}={value!r}"
            )
    return config


def _model_settings(folder: pathlib.Path) -> dict[str, Any]:
    """Return the prompts, the name of the default prompt, and the number of values of vectors to keep."""
    # The similarity function compares vectors; it does not change them.
    unused = ("__version__", "requirements", "similarity_fn_name")
    names = ("prompts", "default_prompt_name", "truncate_dim")
    expected = {"model_type": "SentenceTransformer"}
    config = _settings(folder / _OF_MODEL, expected, *names, *unused, optional=True)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(
        isinstance(prompt, str | None) for prompt in prompts.values()
    ):
        raise ValueError(
            f"`{folder / _OF_MODEL}` must have prompts that are strings, by name. Received: prompts={prompts!r}"
        )
    prompts = {name: prompt or "" for name, prompt in prompts.items()}
    if default is not None and default not in prompts:
        raise ValueError(
            f"`{folder / _OF_MODEL}` must have a default_prompt_name among {list(prompts)}. "
            f"Received: default_prompt_name={default!r}"
        )
    return {
        "prompts": prompts,
        "default_prompt_name": default,
        "truncate_dim": config.get("truncate_dim") or None,
    }


def _transformer_settings(
    folder: pathlib.Path, task: str, method_output: str, output: str
) -> tuple[bool, int | None]:
    """Return whether texts are lower-cased, and the maximum number of tokens, None for the model's.

    Args:
        folder: the folder of the module Transformer.
        task: its task.
        method_output: the output of the model in `transformers`.
        output: the name of that output among the module's.
    """
    config = _settings(
        folder / _OF_TRANSFORMER,
        {
            "transformer_task": task,
            "modality_config": {"text": {"method": "forward", "method_output_name": method_output}},
            "module_output_name": output,
        },
        "max_seq_length",
        "do_lower_case",
        "unpad_inputs",  # computes the same vectors in another way
        optional=True,
    )
    path, name = folder / _OF_TRANSFORMER, "max_seq_length"
    if config.get(name) is None and (folder / _OF_TOKENIZER).is_file():
        path, name = folder / _OF_TOKENIZER, "model_max_length"
        config = {**config, name: files.read_json(path).get(name)}
    limit = config.get(name)
    if limit is not None and not (is_integer(limit) and limit >= 2):
        raise ValueError(f"`{path}` must have an integer of at least 2 as {name}. Received: {name}={limit!r}")
    return bool(config.get("do_lower_case")), limit


def _poolings(folder: pathlib.Path, encoder: Any) -> tuple[str, ...]:
    """Return the names of the poolings whose vectors are concatenated."""
    path = folder / CONFIG
    sizes = dict.fromkeys(("embedding_dimension", "word_embedding_dimension"), encoder.model_dim)
    config = _settings(path, {**sizes, "include_prompt": True}, "pooling_mode", *_OLDER_POOLINGS)
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [name for setting, name in _OLDER_POOLINGS.items() if config.get(setting)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(mode in list(_POOLINGS) for mode in modes):
        raise ValueError(
            f"`{path}` must have a pooling_mode among {list(_POOLINGS)}, or several. Received: pooling_mode={modes!r}"
        )
    return tuple(_POOLINGS[name] for name in modes)


def _dense(folder: pathlib.Path, size: int) -> keras.layers.Dense:
    """Load a module Dense, for inputs (B, size)."""
    path = folder / CONFIG
    config = _settings(path, {**_INPUTS, "in_features": size}, "out_features", "bias", "activation_function")
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"`{path}` must have an activation_function among {list(_ACTIVATIONS)}. "
            f"Received: activation_function={activation!r}"
        )
    if not is_integer(config.get("out_features")) or config["out_features"] < 1:
        raise ValueError(
            f"`{path}` must have a positive integer as out_features. "
            f"Received: out_features={config.get('out_features')!r}"
        )
    layer = keras.layers.Dense(
        config["out_features"],
        _ACTIVATIONS[activation],
        use_bias=bool(config.get("bias", True)),
        dtype="float32",
    )
    layer.build((None, size))
    return _with_weights(folder, layer, dense("linear", layer))


def _layer_norm(folder: pathlib.Path, size: int) -> keras.layers.LayerNormalization:
    """Load a module LayerNorm, for inputs (B, size)."""
    _settings(folder / CONFIG, {"dimension": size})
    layer = keras.layers.LayerNormalization(epsilon=_LAYER_NORM_EPSILON, dtype="float32")
    layer.build((None, size))
    return _with_weights(folder, layer, norm("norm", layer))


def _unit_norm(folder: pathlib.Path, size: int) -> keras.layers.UnitNormalization:
    """Load a module Normalize that is followed by other layers."""
    _settings(folder / CONFIG, _INPUTS, optional=True)  # older versions do not write it
    return keras.layers.UnitNormalization(dtype="float32")


def _with_weights(folder: pathlib.Path, layer: Any, parameters: Parameters) -> Any:
    """Read the weights of a layer, and return it."""
    expected = dict(parameters)
    tensors = tensors_of(folder)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != (needed := {name: parameter.file_shape for name, parameter in expected.items()}):
        raise ValueError(f"`{folder}` must have weights of the shapes {needed}. Received: {shapes}")
    for name, parameter in expected.items():
        parameter.read(tensors[name].read())
    return layer


def activation_path(name: str) -> str:
    """Return the path of an activation in PyTorch.

    Raises:
        ValueError: if `sentence-transformers` has no such activation.
    """
    for path, known in _ACTIVATIONS.items():
        if known == name:
            return path
    raise ValueError(
        f"`activation` must be one of {list(_ACTIVATIONS.values())} in sentence-transformers. "
        f"Received: activation={name!r}"
    )


def write_modules(
    folder: pathlib.Path,
    encoder: Any,
    pooling: str | tuple[str, ...],
    head: Sequence[keras.layers.Layer],
    *,
    normalize: bool,
    max_length: int | None,
    truncate_dim: int | None,
    prompts: Mapping[str, str],
    default_prompt_name: str | None,
) -> None:
    """Write the modules of `sentence-transformers` into the folder of an encoder, the inverse of reading them.

    Args:
        folder: the folder.
        encoder: the encoder.
        pooling: the name or names of the poolings.
        head: the layers after the pooling.
        normalize: whether vectors have unit length.
        max_length: the maximum number of tokens of a text.
        truncate_dim: the number of first values of vectors to keep.
        prompts: texts that are put before the texts, by name.
        default_prompt_name: the name of the default prompt.

    Raises:
        ValueError: if the library has no module for the pooling or a layer, or vectors are normalised after truncation.
    """
    if normalize and truncate_dim is not None:
        raise ValueError(
            "`normalize` must be False with truncate_dim, as sentence-transformers does not normalise vectors after it "
            "truncates them. Received: normalize=True"
        )
    written = {ours: theirs for theirs, ours in _POOLINGS.items()}
    names = [pooling] if isinstance(pooling, str) else [*pooling]
    if unknown := [name for name in names if name not in written]:
        raise ValueError(
            f"`pooling` must be one of {list(written)} in sentence-transformers. Received: pooling={unknown[0]!r}"
        )
    modes = [written[name] for name in names]
    older = {setting: mode in modes for setting, mode in _OLDER_POOLINGS.items()}
    in_order = [mode for mode in _OLDER_POOLINGS.values() if mode in modes] == modes
    settings = (
        {"word_embedding_dimension": encoder.model_dim, **older}
        if in_order
        else {"pooling_mode": modes, "embedding_dimension": encoder.model_dim}
    )
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    _write_config(folder / "1_Pooling", {**settings, "include_prompt": True})
    layers = [*head, *([keras.layers.UnitNormalization()] if normalize else [])]
    size = pooled_dim(encoder, pooling)
    for number, layer in enumerate(layers, 2):
        name, config, parameters = _module_of(layer, size)
        path = f"{number}_{name}"
        _write_config(folder / path, config)
        if parameters:
            tensors = {key: parameter.write() for key, parameter in parameters.items()}
            save_tensors(tensors, folder / path / SAFETENSORS)
        modules.append((path, name))
        size = layer.compute_output_shape((None, size))[-1]
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"{_PACKAGE}models.{name}"}
        for index, (path, name) in enumerate(modules)
    ]
    files.write_json(folder / MODULES, listed)
    files.write_json(folder / _OF_TRANSFORMER, {"max_seq_length": max_length, "do_lower_case": False})
    files.write_json(
        folder / _OF_MODEL,
        {
            "prompts": dict(prompts),
            "default_prompt_name": default_prompt_name,
            **({} if truncate_dim is None else {"truncate_dim": truncate_dim}),
        },
    )


def _module_of(layer: Any, size: int) -> tuple[str, dict[str, Any], dict[str, Parameter]]:
    """Return the name, the settings and the parameters of the module of a layer with inputs of a size."""
    match layer:
        case keras.layers.Dense():
            config = {
                "in_features": size,
                "out_features": layer.units,
                "bias": layer.use_bias,
                "activation_function": activation_path(keras.activations.serialize(layer.activation)),
            }
            return "Dense", config, dict(dense("linear", layer))
        case keras.layers.LayerNormalization() if layer.epsilon == _LAYER_NORM_EPSILON:
            return "LayerNorm", {"dimension": size}, dict(norm("norm", layer))
        case keras.layers.UnitNormalization():
            return "Normalize", {}, {}
    raise ValueError(
        f"`head` must have layers that are modules of sentence-transformers: {', '.join(_LAYERS)}. "
        f"Received: a {type(layer).__name__}"
    )


def _write_config(folder: pathlib.Path, config: Mapping[str, Any]) -> None:
    folder.mkdir()
    files.write_json(folder / CONFIG, config)


_LAYERS: dict[str, Callable[[pathlib.Path, int], Any]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Normalize": _unit_norm,
}
