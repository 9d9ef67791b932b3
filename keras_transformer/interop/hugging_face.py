"""Reading and writing of `transformers` folders: `config.json` and `model.safetensors`."""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer import memory
from keras_transformer.interop import bart, bert, gemma, gpt, llama, modernbert, t5, vit, whisper
from keras_transformer.interop.architecture import Architecture, Parameter
from keras_transformer.interop.assignment import (
    INT8,
    QUANTIZATION,
    in_floats,
    quantize_weights,
    scales_of,
)
from keras_transformer.interop.hub import CONFIG, local_folder
from keras_transformer.interop.quantized_files import dequantized
from keras_transformer.interop.settings import warn_of_unknown
from keras_transformer.interop.tensors import (
    SAFETENSORS,
    StoredTensor,
    import_safetensors,
    save_tensors,
    tensors_of,
)
from keras_transformer.layers.quantization import quantized_matrices
from keras_transformer.models import CausalLanguageModel
from keras_transformer_options.arguments import Message, check, check_one_of
from keras_transformer_serving import files

ALL = (
    gpt.GPT2,
    gpt.OPENAI_GPT,
    *llama.ARCHITECTURES,
    *gemma.ARCHITECTURES,
    *bart.ARCHITECTURES,
    *bert.ARCHITECTURES,
    *modernbert.ARCHITECTURES,
    *t5.ARCHITECTURES,
    vit.VIT,
    whisper.WHISPER,
)
# The first architecture of each model type; `config.json` names the class if there are several.
ARCHITECTURES: dict[str, Architecture] = {
    architecture.model_type: architecture for architecture in reversed(ALL)
}

_ADAPTER = "adapter_config.json"  # `transformers` adds its weights to the model's
PRECISIONS = ("float32", "float16", "bfloat16", INT8)

_SHOWN = 5
_FREED_AT_ONCE = 16 << 20  # bytes; to trim memory takes longer than to read a small tensor
_PAD_TOKEN_OF_BERT = "[PAD]"
_PAD_ID_OF_XLM_ROBERTA = 1


def from_hugging_face(
    source: str | os.PathLike[str],
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    precision: str | None = None,
    *,
    model_class: type[keras.Model] | None = None,
    **kwargs: Any,
) -> keras.Model:
    """Load a model that `transformers` has saved, from a folder or from the Hugging Face Hub.

    Args:
        source: a folder with `config.json` and weights, or the id of a model of the hub, whose files `huggingface_hub`
            downloads into its cache. The weights are `model.safetensors` or `pytorch_model.bin`, or shards of either
            and their index; PyTorch is not needed. On the main branch of the hub, safetensors of the open pull request
            in which the hub has converted them are preferred to `pytorch_model.bin`.
        revision: a branch, a tag or a commit of the hub, by default the main branch.
        token: a token of the hub, by default the one that `huggingface_hub` has stored.
        cache_dir: the folder of the cache, by default that of `huggingface_hub`.
        precision: "float32", "float16" or "bfloat16", in which weights are stored and the model computes; or "int8", in
            which matrices are stored, each column with a scale, while the model computes in floats (`dtype`); they are
            quantized one at a time while they are read. By default Keras' dtype policy, float32 unless it was set,
            whatever the precision of the file.
        model_class: the class of the model, if `config.json` names no class of `transformers` or another one, such as
            `models.BERT` for the encoder of a `RobertaForMaskedLM`. An encoder is read without weights of heads.
        **kwargs: constructor arguments to override, such as `dropout` or `dtype`. The `pad_id` of decoder-only models
            is None by default: their padding token may occur in texts, and a `padding_mask` says what is padding.

    Returns:
        A `models.GPT` for GPT-2 and OpenAI GPT, a `models.Llama` for Llama, Mistral, Qwen, SmolLM and Phi-3, a
        `models.Gemma`, a `models.Transformer` for Marian, a `models.T5`, a `models.ViT` or a `models.Whisper`; for BERT
        and BART the model for its class, such as `models.Pretraining` or `models.SequenceClassifier`.

    Raises:
        FileNotFoundError: if there is no such folder or model, or a file is missing.
        ImportError: if huggingface_hub is not installed, for a model of the hub.
        OSError: if a download fails.
        PermissionError: if the model of the hub requires a token.
        ValueError: if a file is damaged, the architecture is not supported, or the weights do not match `config.json`.
            In the last case the error lists missing names, unknown names and wrong shapes. Also if `precision` is
            unknown, or a float precision is given with a `dtype`.

    Example:
        >>> model = from_hugging_face("openai-community/gpt2", precision="bfloat16")  # doctest: +SKIP
    """
    _dtype(precision, kwargs)  # raises an error before a download
    folder = local_folder(source, [_ADAPTER], revision=revision, token=token, cache_dir=cache_dir)
    model = read_model(folder, precision, () if model_class is None else (model_class,), **kwargs)
    if precision == INT8:
        quantize_weights(model)
    return model


def read_model(
    folder: pathlib.Path,
    precision: str | None = None,
    model_classes: Sequence[type[keras.Model]] = (),
    **kwargs: Any,
) -> keras.Model:
    """Load a model from a folder, as `from_hugging_face`, but do not quantize all matrices.

    In precision "int8", those of blocks, embeddings and heads of language models are quantized while they are read.
    Others stay floats, which can be changed before `quantize_weights`.

    Args:
        folder: the folder.
        precision: as for `from_hugging_face`.
        model_classes: the possible classes of the model, by default all. If that of `config.json` is not among them,
            the first that its model type has is read.
        **kwargs: constructor arguments to override.
    """
    kwargs |= _dtype(precision, kwargs)
    if (folder / _ADAPTER).is_file():
        raise ValueError(
            f"`{folder}` must hold the weights of a model without an adapter; merge the adapter first. "
            f"Received: {_ADAPTER}"
        )
    config = _read_config(folder)
    architecture = _architecture(folder, config, model_classes)
    if architecture.encoder is not None and "pad_id" in architecture.settings:
        pad_id = _pad_id_of_tokenizer(folder)
        config = config if pad_id is None else {**config, "pad_token_id": pad_id}
    arguments = architecture.arguments(config)
    if issubclass(architecture.model, CausalLanguageModel):
        arguments["pad_id"] = None  # the padding token may occur in texts, as Qwen's "<|endoftext|>" does
    arguments |= kwargs
    stored = dequantized(folder / CONFIG, config, tensors_of(folder))
    tensors = {
        name: tensor
        for name, tensor in ((architecture.rename(old), tensor) for old, tensor in stored.items())
        if not re.search(architecture.ignored, name)
    }
    if not architecture.has_head:
        tensors = _without_head(architecture, tensors)
    present = {argument: name in tensors for argument, name in architecture.present.items()}
    with quantized_matrices(QUANTIZATION) if precision == INT8 else contextlib.nullcontext():
        model = (architecture.make or architecture.model)(**{**present, **arguments})
    parameters = dict(architecture.parameters(model))
    tensors = _with_base(architecture, parameters, tensors)
    if config.get("tie_word_embeddings", architecture.defaults.get("tie_word_embeddings", True)):
        copies = {
            name: other
            for name, other in architecture.tied.items()
            if name in parameters and other in tensors
        }
        tensors = {**{name: tensors[other] for name, other in copies.items()}, **tensors}
    _check(folder, architecture, parameters, tensors)
    warn_of_unknown(folder / CONFIG, config, architecture.keys)  # of a folder without errors
    memory.trim()  # initializers leave free memory in parts
    scales, freed = scales_of(model), 0
    for name, parameter in parameters.items():
        values = tensors[name].read()
        parameter.read(values, scales)
        freed += values.nbytes
        del values
        if freed >= _FREED_AT_ONCE:
            memory.trim()
            freed = 0
    return model


def to_hugging_face(
    model: keras.Model, folder: str | os.PathLike[str], model_type: str | None = None
) -> pathlib.Path:
    """Save a model as a folder for `from_pretrained` of `transformers`, with float32 weights.

    Args:
        model: a model of an architecture that `from_hugging_face` loads.
        folder: the folder to create; it is not created if an error is raised.
        model_type: the `model_type` of `config.json`, by default the first that supports the model; several types can
            be one model, such as "roberta", "xlm-roberta" and "camembert".

    Raises:
        FileExistsError: if `folder` exists.
        ImportError: if safetensors is not installed.
        ValueError: if no architecture of `transformers` supports an argument of the model, which the error names.

    Example:
        >>> to_hugging_face(model, "runs/gpt2")  # doctest: +SKIP
    """
    with files.new_folder(folder) as new:
        write_model(model, new, model_type)
    return pathlib.Path(folder)


def write_model(model: keras.Model, folder: pathlib.Path, model_type: str | None = None) -> None:
    """Write the files of `to_hugging_face` into an existing folder."""
    import_safetensors()
    if not _candidates(model):
        known = sorted({architecture.model.__name__ for architecture in ALL})
        raise ValueError(f"`model` must be of a class among {known}. Received: a {type(model).__name__}")
    architecture, config = _supporting(model, model_type)
    model = in_floats(model)
    scales = scales_of(model)
    tensors = {name: parameter.write(scales) for name, parameter in architecture.parameters(model)}
    files.write_json(folder / CONFIG, config)
    save_tensors(tensors, folder / SAFETENSORS)


def config_of(model: keras.Model) -> dict[str, Any] | None:
    """Return the `config.json` of a model.

    Returns:
        The settings of an architecture of `transformers`. If no architecture supports all arguments of the model, only
        its sizes and ids, without "architectures". None for other models.
    """
    candidates = _candidates(model)
    if not candidates:
        return None
    try:
        return _supporting(model)[1]
    except ValueError:
        return candidates[0].interface(model)


def _dtype(precision: str | None, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the argument `dtype` of a model for a precision, if it determines it."""
    if precision is None:
        return {}
    check_one_of(PRECISIONS, precision=precision)
    if precision == INT8:
        return {}
    check(
        "dtype" not in arguments,
        "be None or 'int8' if {dtype} is given",
        precision=precision,
        dtype=arguments.get("dtype"),
    )
    return {"dtype": precision}


def _candidates(model: keras.Model) -> list[Architecture]:
    """Return the architectures of the classes of a model and its encoder."""
    encoder = type(getattr(model, "encoder", model))
    return [
        architecture
        for architecture in ALL
        if type(model) is architecture.model and architecture.encoder in (None, encoder)
    ]


def _supporting(model: keras.Model, model_type: str | None = None) -> tuple[Architecture, dict[str, Any]]:
    """Return the first architecture, of any model type by default, that supports a model, and its `config.json`."""
    candidates = _candidates(model)
    if model_type is not None:
        check_one_of(sorted({candidate.model_type for candidate in candidates}), model_type=model_type)
        candidates = [candidate for candidate in candidates if candidate.model_type == model_type]
    reasons = []
    for architecture in candidates:
        try:
            return architecture, architecture.config(model)
        except ValueError as error:
            reasons.append((len(architecture.fixed_differences(model)), len(str(error)), error))
    raise min(reasons, key=lambda reason: reason[:2])[-1]


def _read_config(folder: pathlib.Path) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            Message(f"{{folder}} must hold {CONFIG}, as `save_pretrained` writes it", folder=str(folder))
        )
    config = files.read_json(folder / CONFIG)
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if model_type not in ARCHITECTURES:
        raise ValueError(
            f"`{folder / CONFIG}` must have a model_type among {sorted(ARCHITECTURES)}. "
            f"Received: model_type={model_type!r}"
        )
    return config


def has_tokenizer_of_xlm_roberta(folder: pathlib.Path) -> bool:
    """Return whether a folder has XLM-RoBERTa's tokenizer, as multilingual-e5-small, a BERT: by class or file."""
    name = str(_read_settings(folder / "tokenizer_config.json").get("tokenizer_class"))
    return name.startswith("XLMRobertaTokenizer") or (folder / "sentencepiece.bpe.model").is_file()


def _pad_id_of_tokenizer(folder: pathlib.Path) -> int | None:
    """Return the padding id of the tokenizer of an encoder, None if the files do not name it.

    `transformers` masks what the tokenizer has padded, whatever `pad_token_id` of `config.json`.
    """
    names = ("special_tokens_map.json", "tokenizer_config.json")
    tokens = [_read_settings(folder / name).get("pad_token") for name in names]
    texts = [token.get("content") if isinstance(token, dict) else token for token in tokens]
    token = next((text for text in reversed(texts) if isinstance(text, str)), _PAD_TOKEN_OF_BERT)
    content = _read_settings(folder / "tokenizer.json")
    ids = {each.get("content"): each.get("id") for each in content.get("added_tokens") or ()}
    if token in ids:
        return ids[token]
    if has_tokenizer_of_xlm_roberta(folder):
        return _PAD_ID_OF_XLM_ROBERTA
    vocabulary = folder / "vocab.txt"
    if not vocabulary.is_file():
        return None
    pieces = vocabulary.read_text(encoding="utf-8").split("\n")
    return pieces.index(token) if token in pieces else None


def _read_settings(path: pathlib.Path) -> dict[str, Any]:
    """Return the content of a JSON file, empty if there is none."""
    content = files.read_json(path) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def _architecture(
    folder: pathlib.Path, config: dict[str, Any], model_classes: Sequence[type[keras.Model]]
) -> Architecture:
    """Return the architecture of the class that `config.json` names, or the default or only one of the model type.

    Args:
        folder: the folder.
        config: the content of its `config.json`.
        model_classes: the possible classes of the model, see `read_model`.
    """
    candidates = {
        architecture.class_name: architecture
        for architecture in ALL
        if architecture.model_type == config["model_type"]
    }
    if model_classes:
        with_name = [name for name in config.get("architectures") or () if name in candidates]
        found = [candidates[name] for name in with_name if candidates[name].model in model_classes]
        found += [each for kind in model_classes for each in candidates.values() if each.model is kind]
        if not found:
            raise ValueError(
                f"`{folder / CONFIG}` must describe a model of a class among {_names(model_classes)}. Received: a "
                f"{config['model_type']}, of a class among {_names(each.model for each in candidates.values())}"
            )
        return found[0]
    if len(candidates) == 1:
        name, architecture = next(iter(candidates.items()))
        named = config.get("architectures") or ()
        if named and not any(_is_read_as(name, other) for other in named):
            raise ValueError(
                f"`{folder / CONFIG}` must have architectures with {name!r}. "
                f"Received: architectures={config['architectures']!r}"
            )
        return architecture
    names = [name for name in config.get("architectures") or () if name in candidates]
    names += [name for name, architecture in candidates.items() if architecture.is_default]
    if not names:
        raise ValueError(
            f"`{folder / CONFIG}` must have architectures with one of {sorted(candidates)}, unless `model_class` is "
            f"given. Received: architectures={config.get('architectures')!r}"
        )
    return candidates[names[0]]


def _names(classes: Iterable[type]) -> list[str]:
    return sorted({kind.__name__ for kind in classes})


def _is_read_as(name: str, other: str) -> bool:
    """Return whether a class of `config.json` is one, or has the head of one, or is its model without head."""
    head = other.partition("For")[2]
    if head:
        return head == name.partition("For")[2]
    return other == name or other not in {architecture.class_name for architecture in ALL}


def _without_head(architecture: Architecture, tensors: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors of the model without head in a file of a class with one, by their names without it."""
    base = architecture.base
    found = {name.removeprefix(base): tensor for name, tensor in tensors.items() if name.startswith(base)}
    return found or tensors


def _with_base(
    architecture: Architecture, parameters: Mapping[str, Parameter], tensors: dict[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Return the tensors of a file by their names in a class with a head, also if it is of the model without."""
    base, known = architecture.base, {*parameters, *architecture.tied}
    if any(name.startswith(base) for name in tensors):
        return tensors
    return {
        base + name if name not in known and base + name in known else name: tensor
        for name, tensor in tensors.items()
    }


def _check(
    folder: pathlib.Path,
    architecture: Architecture,
    parameters: dict[str, Parameter],
    tensors: dict[str, StoredTensor],
) -> None:
    """Raise a ValueError unless the tensors match the parameters, their shapes and their tied copies."""
    errors = []
    missing = sorted(parameters.keys() - tensors.keys())
    unknown = sorted(tensors.keys() - parameters.keys() - architecture.tied.keys())
    for defect, names in (("missing", missing), ("unknown", unknown)):
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            errors.append(f"{defect}: {', '.join(names[:_SHOWN])}{more}")
    for name in sorted(parameters.keys() & tensors.keys()):
        expected, received = parameters[name].file_shape, tensors[name].shape
        if received != expected:
            errors.append(f"{name} of shape {received} instead of {expected}")
        if tensors[name].dtype.kind in "iu":
            errors.append(f"{name} of {tensors[name].dtype} without a scale")
    for name, other in architecture.tied.items():
        tied = name in tensors and name not in parameters
        if not errors and tied and not np.array_equal(tensors[name].read(), tensors[other].read()):
            errors.append(f"{name} differs from {other}, to which {architecture.class_name} ties it")
    if errors:
        shown = "; ".join(errors[:_SHOWN])
        more = f"; and {len(errors) - _SHOWN} more" if len(errors) > _SHOWN else ""
        raise ValueError(
            f"`{folder}` must have the weights of a {architecture.class_name} as in its {CONFIG}. "
            f"Received: {shown}{more}"
        )
