"""Pipelines from folders of Hugging Face's `transformers` and of `sentence-transformers`."""

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer import interop, text
from keras_transformer.interop import sentence_transformers
from keras_transformer.pipelines.embedding import Embedding
from keras_transformer.pipelines.fill_mask import FillMask
from keras_transformer.pipelines.hugging_face_generation import settings_from
from keras_transformer.pipelines.image_classification import ImageClassification
from keras_transformer.pipelines.question_answering import QuestionAnswering
from keras_transformer.pipelines.text_classification import TextClassification
from keras_transformer.pipelines.text_generation import TextGeneration
from keras_transformer.pipelines.text_to_text import TextToText
from keras_transformer.pipelines.token_classification import TokenClassification
from keras_transformer_serving import files

_PREPROCESSOR = "preprocessor_config.json"
_BILINEAR = 2


def from_hugging_face(folder: str | os.PathLike[str], **settings: Any) -> Any:
    """Load a pipeline from a folder written by `transformers` or `sentence-transformers`, or downloaded from their hub.

    | folder | pipeline |
    |---|---|
    | Marian, T5, T5 v1.1 | `TextToText` |
    | GPT-2, OpenAI GPT | `TextGeneration` |
    | BERT for masked language modelling or pre-training | `FillMask` |
    | BERT for sequences, tokens, questions | `TextClassification`, `TokenClassification`, `QuestionAnswering` |
    | BERT without head | `Embedding` |
    | BERT with `modules.json` of `sentence-transformers` | `Embedding` |
    | ViT | `ImageClassification` |

    Args:
        folder: the folder, with the files that `interop.from_hugging_face` reads and the tokenizer's; for ViT
            optionally with `preprocessor_config.json`, whose mean and standard deviation become part of the weights,
            so that images have values from 0 to 255.
        **settings: arguments of the pipeline, such as `generation` and `max_new_tokens`. Labels are the folder's, and
            by default `generation`, `constraints` and `max_new_tokens` are those of `generation_config.json`, or of
            `config.json` without that file. Unsupported settings are listed in a `UserWarning`. Of a folder with
            `modules.json`, the pooling, the layers after it, normalisation, the maximum length, to which texts are
            truncated, and the prompts are those of its files.

    Returns:
        The pipeline.

    Raises:
        FileNotFoundError: if a file is missing.
        ImportError: if safetensors is not installed.
        ValueError: if a file is damaged, the architecture is none of these, or model and tokenizer do not match; also
            if a module or setting of `sentence-transformers` is not supported.

    Example:
        >>> writer = from_hugging_face("downloads/gpt2", max_new_tokens=32)  # doctest: +SKIP
    """
    folder = pathlib.Path(folder)
    if sentence_transformers.has_modules(folder):
        return _embedding(folder, settings)
    model = interop.from_hugging_face(folder)
    config = files.read_json(folder / "config.json")
    return _PIPELINES[config["model_type"]](folder, model, config, settings)


def _embedding(folder: pathlib.Path, settings: Mapping[str, Any]) -> Embedding:
    found = sentence_transformers.from_sentence_transformers(folder)
    tokenizer = text.WordPieceTokenizer.from_files(
        found.folder, special_tokens_in_text=True, lowercase=found.lowercase
    )
    return Embedding(found.model, tokenizer, **{**found.settings, **settings})


def _text_to_text(folder: pathlib.Path, model: Any, config: Any, settings: Mapping[str, Any]) -> TextToText:
    tokenizer = text.MarianT5Tokenizer.from_files(folder, vocabulary_size=model.vocabulary_size)
    return TextToText(model, tokenizer, **settings_from(folder, model, settings))


def _generation(tokenizer_class: Any) -> Callable[..., TextGeneration]:
    def make(folder: pathlib.Path, model: Any, config: Any, settings: Mapping[str, Any]) -> TextGeneration:
        tokenizer = tokenizer_class.from_files(folder)
        return TextGeneration(model, tokenizer, **settings_from(folder, model, settings))

    return make


def _bert(folder: pathlib.Path, model: Any, config: Any, settings: Mapping[str, Any]) -> Any:
    pipeline = _OF_BERT[type(model).__name__]
    model = getattr(model, "masked_language_model", model)  # of the two heads of pre-training
    labels = {"labels": _labels(config)} if pipeline in (TextClassification, TokenClassification) else {}
    return pipeline(model, text.WordPieceTokenizer.from_files(folder), **{**labels, **settings})


def _vit(folder: pathlib.Path, model: Any, config: Any, settings: Mapping[str, Any]) -> ImageClassification:
    path = folder / _PREPROCESSOR
    given = files.read_json(path) if path.is_file() else {}
    _check_preprocessor(path, given, model)
    if given.get("do_normalize", True):
        set_normalization(model, given.get("image_mean", 0.5), given.get("image_std", 0.5))
    else:
        set_normalization(model, 0.0, 1.0)
    # Other interpolations than ours would give other images, so do not resize for them.
    resize = bool(given.get("do_resize", True)) and given.get("resample", _BILINEAR) == _BILINEAR
    return ImageClassification(model, **{"labels": _labels(config), "resize": resize, **settings})


def _labels(config: Mapping[str, Any]) -> list[str] | None:
    """Return the names of the classes in the order of their ids."""
    names = config.get("id2label")
    return None if names is None else [names[number] for number in sorted(names, key=int)]


def _check_preprocessor(path: pathlib.Path, given: Mapping[str, Any], model: Any) -> None:
    size = given.get("size", model.image_size[0])
    size = (size.get("height"), size.get("width")) if isinstance(size, Mapping) else (size, size)
    scale = given.get("rescale_factor", 1 / 255)
    if (
        tuple(size) != tuple(model.image_size)
        or not np.isclose(scale, 1 / 255)
        or not given.get("do_rescale", True)
    ):
        raise ValueError(
            f"`{path}` must describe images of the model's size {tuple(model.image_size)} and values from 0 to 255. "
            f"Received: size={size}, do_rescale={given.get('do_rescale', True)}, rescale_factor={scale}"
        )


def set_normalization(model: Any, mean: Any, deviation: Any) -> None:
    """Fold the normalisation (x / 255 − mean) / deviation into the patch embedding, whose inputs are in [−1, 1].

    With y = 2 x / 255 − 1 it equals y / (2 deviation) + (1 / 2 − mean) / deviation.
    """
    channels = model.num_channels
    mean, deviation = (np.broadcast_to(np.asarray(each, "float64"), channels) for each in (mean, deviation))
    kernel = keras.ops.convert_to_numpy(model.embedding.kernel).astype(
        "float64"
    )  # (size · size · channels, D)
    by_channel = kernel.reshape(-1, channels, kernel.shape[1])
    shift = np.einsum("pcd,c->d", by_channel, (0.5 - mean) / deviation)
    model.embedding.bias.assign(keras.ops.convert_to_numpy(model.embedding.bias) + shift)
    model.embedding.kernel.assign((by_channel / (2 * deviation)[:, None]).reshape(kernel.shape))


_OF_BERT: dict[str, Any] = {
    "MaskedLanguageModel": FillMask,
    "Pretraining": FillMask,
    "SequenceClassifier": TextClassification,
    "TokenClassifier": TokenClassification,
    "SpanClassifier": QuestionAnswering,
    "BERT": Embedding,
}
_PIPELINES: dict[str, Callable[..., Any]] = {
    "marian": _text_to_text,
    "t5": _text_to_text,
    "gpt2": _generation(text.BytePairTokenizer),
    "openai-gpt": _generation(text.OpenAIGPTTokenizer),
    "bert": _bert,
    "vit": _vit,
}
