"""Writing of pipelines as folders of Hugging Face's `transformers` and of `sentence-transformers`."""

import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

from keras_transformer import text
from keras_transformer.generation import ForcedPrefix, samplers
from keras_transformer.generation.constraints import serialize as serialize_constraint
from keras_transformer.interop.hub import CONFIG
from keras_transformer.interop.hugging_face import write_model
from keras_transformer.pipelines.hugging_face_chat import write_chat_template
from keras_transformer.pipelines.hugging_face_generation import (
    GENERATION_CONFIG,
    generation_config_of,
    settings_from,
)
from keras_transformer.pipelines.hugging_face_truncation import truncation_config
from keras_transformer.pipelines.pipeline import Pipeline
from keras_transformer_serving import files


def to_hugging_face(
    pipeline: Pipeline,
    folder: str | os.PathLike[str],
    model_type: str | None = None,
    *,
    tokenizer_folder: str | os.PathLike[str] | None = None,
) -> pathlib.Path:
    """Save a pipeline as a folder of `transformers`, or of `sentence-transformers`, the inverse of `from_hugging_face`.

    | pipeline | files beside those of the model and its tokenizer |
    |---|---|
    | classifiers | the labels, in `config.json` |
    | that generates | `generation_config.json`, with all end tokens |
    | `TextGeneration` | the chat templates |
    | `ImageClassification` | `preprocessor_config.json`, of images in [−1, 1], as the weights expect them |
    | `SpeechToText` of a Whisper | `generation_config.json` with the prefix, `preprocessor_config.json` |
    | `Embedding` | `modules.json` and the modules, prompts and the maximum length of `sentence-transformers` |
    | `Reranking` | the activation and the maximum length of a `CrossEncoder` |

    Weights are float32, also those of models in int8. How a pipeline treats long texts, and a threshold, have no place
    in the files.

    Args:
        pipeline: a pipeline of a model that `interop.to_hugging_face` writes.
        folder: the folder to create; it is not created if an error is raised.
        model_type: the `model_type` of `config.json`, as for `interop.to_hugging_face`.
        tokenizer_folder: a folder with the files of the tokenizer, such as the one from which the pipeline was read. By
            default they are written from the tokenizer. It is needed for Marian, whose tokenizer of the target
            language is not part of a pipeline, and for models of many languages.

    Raises:
        FileExistsError: if `folder` exists.
        FileNotFoundError: if `tokenizer_folder` has no files of a tokenizer.
        ImportError: if safetensors is not installed.
        ValueError: if the model, a setting or the tokenizer has no form in these libraries, such as a tokenizer of
            SentencePiece that was trained here.

    Example:
        >>> to_hugging_face(pipelines.load("runs/sentiment"), "published/sentiment")  # doctest: +SKIP
    """
    with files.new_folder(folder) as new:
        write_model(pipeline.hugging_face_model, new, model_type)
        config = {**files.read_json(new / CONFIG), **pipeline.hugging_face_config()}
        files.write_json(new / CONFIG, config)
        if pipeline.tokenizer is not None:
            _write_tokenizer(pipeline, new, tokenizer_folder)
        if hasattr(pipeline, "sampler"):
            _write_generation(pipeline, new)
        if getattr(pipeline, "chat_template", None) is not None:
            write_chat_template(pipeline.chat_template, new)
        pipeline.write_hugging_face(new)
    return pathlib.Path(folder)


def _write_tokenizer(pipeline: Pipeline, folder: pathlib.Path, source: Any) -> None:
    """Write the tokenizer, with the truncation and the languages of the pipeline."""
    config = truncation_config(pipeline)
    if source is None:
        segments = getattr(pipeline.encoder, "num_segments", 0) or 0
        text.to_hugging_face(
            pipeline.tokenizer, folder, **pipeline.hugging_face_rows, has_segments=segments > 1, **config
        )
        return
    from keras_transformer.text.tokenizers import hugging_face_files

    hugging_face_files.copy_files(pipeline.tokenizer, source, folder)
    names = {"src_lang": "source_language", "tgt_lang": "target_language"}
    chosen = {name: getattr(pipeline, attribute, None) for name, attribute in names.items()}
    config |= {name: language for name, language in chosen.items() if language is not None}
    path = folder / hugging_face_files.CONFIG
    files.write_json(path, {**(files.read_json(path) if path.is_file() else {}), **config})


def _write_generation(pipeline: Any, folder: pathlib.Path) -> None:
    """Write the settings of generation, or raise a ValueError if reading them gives others."""
    config = generation_config_of(pipeline)
    files.write_json(folder / GENERATION_CONFIG, config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of settings that also apply to prompts in `transformers`
        read = settings_from(folder, pipeline.model, {})
    if getattr(pipeline, "target_language", None) is not None:  # it was read as the prefix of its token
        read["constraints"] = [each for each in read["constraints"] if not isinstance(each, ForcedPrefix)]
    expected, found = (
        _described(pipeline.sampler, pipeline.constraints),
        _described(read["generation"], read["constraints"]),
    )
    expected["max_new_tokens"], found["max_new_tokens"] = pipeline.max_new_tokens, read.get("max_new_tokens")
    differing = [name for name, value in expected.items() if value != found.get(name)]
    if differing:
        shown = ", ".join(f"{name}={expected[name]}" for name in differing)
        raise ValueError(
            f"`pipeline` must have settings of generation that {GENERATION_CONFIG} can hold. Received: {shown}"
        )


def _described(sampler: Any, constraints: Sequence[Any]) -> dict[str, Any]:
    """Return settings of generation for a comparison, without the seed of noise."""
    return {
        "generation": {**samplers.serialize(sampler), "seed": None},
        "constraints": sorted(map(serialize_constraint, constraints), key=str),
    }
