"""Folders of `sentence-transformers`: `modules.json`, the settings of the model and of its transformer."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras

from keras_transformer.interop import hugging_face
from keras_transformer.interop.assignment import INT8, quantize_weights
from keras_transformer.interop.hub import CONFIG, MODULES, modules_of
from keras_transformer.interop.sentence_transformers_modules import (
    ACTIVATIONS,
    LAYERS,
    SIGMOID,
    read_poolings,
    read_settings,
    write_layer,
    write_pooling,
)
from keras_transformer.models import BERT, ModernBERT, SentenceEncoder
from keras_transformer.models.sentence_encoder import pooled_dim
from keras_transformer_options.arguments import is_integer
from keras_transformer_serving import files

_OF_TRANSFORMER = "sentence_bert_config.json"
_OF_MODEL = "config_sentence_transformers.json"
_OF_TOKENIZER = "tokenizer_config.json"
_LEGACY_ACTIVATION = "sbert_ce_default_activation_function"
_PACKAGE = "sentence_transformers."


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
    """Return whether the files of a model say that it is a `CrossEncoder`, by its name or its activation."""
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
    of_model = read_settings(folder / _OF_MODEL, expected, "activation_fn", *unused, optional=True)
    of_library = config.get("sentence_transformers")
    older = of_library.get("activation_fn") if isinstance(of_library, dict) else None
    activation = of_model.get("activation_fn") or older or config.get(_LEGACY_ACTIVATION) or SIGMOID
    known = {path: name for path, name in ACTIVATIONS.items() if name in ("sigmoid", "linear")}
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
    names, head = read_poolings(pooling.folder, encoder), []
    size = pooled_dim(encoder, names)
    for module in others:  # including Normalize at the end, to check its settings
        head.append(LAYERS[module.name](module.folder, size))
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
    if names[:2] != ["Transformer", "Pooling"] or not set(names[2:]) <= LAYERS.keys():
        raise ValueError(
            f"`{folder / MODULES}` must list the modules Transformer and Pooling of sentence-transformers, followed by "
            f"any of {', '.join(LAYERS)}. Received: {', '.join(names) or 'none'}"
        )
    return [_Module(name, folder / path) for name, path in named]


def _named_modules(folder: pathlib.Path) -> list[tuple[str, str]]:
    """Return the names of the library's modules, or the types of others, and their folders below `folder`."""
    return [
        (path.rpartition(".")[2] if path.startswith(_PACKAGE) else path, below)
        for path, below in modules_of(folder)
    ]


def _model_settings(folder: pathlib.Path) -> dict[str, Any]:
    """Return the prompts, the name of the default prompt, and the number of values of vectors to keep."""
    # The similarity function compares vectors; it does not change them.
    unused = ("__version__", "requirements", "similarity_fn_name")
    names = ("prompts", "default_prompt_name", "truncate_dim")
    expected = {"model_type": "SentenceTransformer"}
    config = read_settings(folder / _OF_MODEL, expected, *names, *unused, optional=True)
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
    config = read_settings(
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
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    write_pooling(folder / "1_Pooling", encoder.model_dim, pooling)
    layers = [*head, *([keras.layers.UnitNormalization()] if normalize else [])]
    size = pooled_dim(encoder, pooling)
    for number, layer in enumerate(layers, 2):
        path, name = write_layer(folder, number, layer, size)
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
