"""Pipelines from folders of Hugging Face's `transformers` and of `sentence-transformers`."""

import inspect
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_transformer import text
from keras_transformer.generation import ForcedPrefix
from keras_transformer.interop import sentence_transformers
from keras_transformer.interop.assignment import INT8, quantize_weights
from keras_transformer.interop.hub import CONFIG, MODULES, local_folder
from keras_transformer.interop.hugging_face import has_tokenizer_of_xlm_roberta, read_model
from keras_transformer.interop.source import Source
from keras_transformer.models import EncoderDecoderClassifier
from keras_transformer.pipelines.embedding import Embedding
from keras_transformer.pipelines.hugging_face_chat import PROCESSOR_TEMPLATE, TEMPLATES
from keras_transformer.pipelines.hugging_face_truncation import truncation_arguments
from keras_transformer.pipelines.pipeline import Pipeline
from keras_transformer.pipelines.reranking import Reranking
from keras_transformer.pipelines.speech_to_text import SpeechToText
from keras_transformer.pipelines.text_generation import TextGeneration
from keras_transformer_options.arguments import check
from keras_transformer_serving import files
from keras_transformer_serving.text import chat

# Files of the hub that pipelines read in addition to the model's.
_FILES = (
    MODULES,
    f"{TEMPLATES}/*.jinja",
    "README.md",
    "adapter_config.json",
    chat.FILE,
    PROCESSOR_TEMPLATE,
    "config_sentence_transformers.json",
    "generation_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "sentencepiece.bpe.model",
    "sentence_bert_config.json",
    "source.spm",
    "special_tokens_map.json",
    "spiece.model",
    "target.spm",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


def from_hugging_face(
    source: str | os.PathLike[str],
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    precision: str | None = None,
    *,
    pipeline: type[Pipeline] | None = None,
    **settings: Any,
) -> Any:
    """Load a pipeline from a folder, or a model of the Hub, of `transformers` or `sentence-transformers`.

    | folder | pipeline |
    |---|---|
    | Marian, BART, Pegasus, T5, T5 v1.1, mT5, mBART, M2M-100, NLLB-200 | `TextToText` |
    | GPT-2, OpenAI GPT | `TextGeneration` |
    | BERT and its relatives for masked language modelling or pre-training | `FillMask` |
    | for sequences, tokens, questions | `TextClassification`, `TokenClassification`, `QuestionAnswering` |
    | without head | `Embedding` |
    | for sequences, of entailment, with `pipeline=ZeroShotClassification` | `ZeroShotClassification` |
    | encoders with `modules.json` of `sentence-transformers` | `Embedding` |
    | cross-encoders of `sentence-transformers` with one label | `Reranking` |
    | ViT | `ImageClassification` |
    | Whisper | `SpeechToText` |

    BERT's relatives are RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ALBERT and ModernBERT. The tokenizer is read by
    `text.from_hugging_face`. The languages of mBART, M2M-100 and NLLB-200 are arguments of calls; defaults are read
    from `forced_bos_token_id` and `tokenizer_config.json`.

    Args:
        source: a folder with the tokenizer's files and the files that `interop.from_hugging_face` reads, or the id of a
            model of the hub, of which only these files are downloaded; for ViT optionally with
            `preprocessor_config.json`, whose mean and standard deviation become part of the weights, so that images
            have values from 0 to 255.
        revision: a branch, a tag or a commit of the hub, by default the main branch.
        token: a token of the hub, by default the one that `huggingface_hub` has stored.
        cache_dir: the folder of the cache, by default that of `huggingface_hub`.
        precision: "float32", "float16", "bfloat16" or "int8", as for `interop.from_hugging_face`; for
            `sentence-transformers` the precision of the encoder.
        pipeline: the class of the pipeline, by default that of the table; its model is read also if `config.json` names
            another class of `transformers` or none, such as `pipelines.Embedding` for the encoder of a
            `RobertaForMaskedLM`. `pipelines.Reranking` is for a reranker whose files do not name
            `sentence-transformers`, such as bge-reranker; they describe a regression.
        **settings: arguments of the pipeline, such as `generation` and `max_new_tokens`. Labels are read from
            `config.json`; `generation`, `constraints` and `max_new_tokens` by default from `generation_config.json` or,
            without that file, `config.json`. Unsupported settings are listed in a `UserWarning`. For a folder with
            `modules.json`, the pooling, the layers after it, normalisation, the maximum length, to which texts are
            truncated, and the prompts are read from its files. `model_max_length` and `truncation_side` of
            `tokenizer_config.json` are the maximum number of tokens of a text, and what truncate=True keeps.

    Raises:
        FileNotFoundError: if there is no such folder or model, or a file is missing.
        ImportError: if huggingface_hub is not installed, for a model of the hub.
        OSError: if a download fails.
        PermissionError: if the model of the hub requires a token.
        ValueError: if a file is damaged, the architecture or a module or setting of `sentence-transformers` is not
            supported, or model and tokenizer do not match.

    Example:
        >>> writer = from_hugging_face("openai-community/gpt2", max_new_tokens=32)  # doctest: +SKIP
    """
    if pipeline is not None and not (inspect.isclass(pipeline) and issubclass(pipeline, Pipeline)):
        raise TypeError(f"`pipeline` must be a class of pipelines. Received: pipeline={pipeline!r}")
    return read(download(source, revision, token, cache_dir), revision, settings, precision, pipeline)


def download(
    source: str | os.PathLike[str],
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> pathlib.Path:
    """Return a folder, or the folder in the cache of a model of the hub; see `from_hugging_face`."""
    return local_folder(source, _FILES, revision=revision, token=token, cache_dir=cache_dir)


def read(
    folder: pathlib.Path,
    revision: str | None,
    settings: Mapping[str, Any],
    precision: str | None = None,
    pipeline: type[Pipeline] | None = None,
) -> Any:
    """Load a pipeline from a folder of `download`.

    Args:
        folder: the folder.
        revision: the revision that was requested of the hub.
        settings: arguments of the pipeline, see `from_hugging_face`, also for the arguments below.
        precision: the precision of the weights.
        pipeline: the class of the pipeline.
    """
    if sentence_transformers.has_modules(folder) and pipeline in (None, Embedding):
        result: Any = _embedding(folder, precision, settings)
    else:
        result = _pipeline(folder, precision, pipeline, settings)
    result.source = Source.of_folder(folder, revision)
    return result


def _pipeline(
    folder: pathlib.Path, precision: str | None, pipeline: Any, settings: Mapping[str, Any]
) -> Pipeline:
    classes = () if pipeline is None else pipeline.classes_of_folders()
    model = read_model(folder, precision, classes)
    config = files.read_json(folder / CONFIG)
    pipeline = _class_of(folder, config, model) if pipeline is None else pipeline
    _check_settings(pipeline, settings)
    settings = pipeline.hugging_face_settings(folder, settings)
    arguments = {"model": model}
    if "tokenizer" in inspect.signature(pipeline).parameters and "tokenizer" not in settings:
        arguments["tokenizer"] = _tokenizer(
            folder, pipeline, model, special_tokens_in_text=pipeline is Reranking
        )
    arguments |= pipeline.hugging_face_arguments(folder, config, model, settings)
    if "tokenizer" in arguments:
        from keras_transformer.text.tokenizers import configuration

        if not configuration.has_segments(folder):
            _merge_segments(model)
        arguments |= truncation_arguments(folder, pipeline, model, {**arguments, **settings})
    if getattr(arguments.get("tokenizer"), "languages", {}):
        arguments |= _languages(folder, **arguments)
    if precision == INT8:
        # Last, because the mean of images becomes part of the weights of patches in floats.
        quantize_weights(model)
    return pipeline(**{**arguments, **settings})


def _class_of(folder: pathlib.Path, config: Mapping[str, Any], model: Any) -> type[Pipeline]:
    """Return the class of the pipeline of a model and its folder."""
    has_one_logit = getattr(model, "num_classes", None) == 1
    if has_one_logit and sentence_transformers.is_cross_encoder(folder, config):
        return Reranking
    return Pipeline.of_model(model)


def _check_settings(pipeline: type[Pipeline], settings: Mapping[str, Any]) -> None:
    """Raise a ValueError unless a pipeline takes the arguments of the caller."""
    parameters = inspect.signature(pipeline).parameters
    for name, value in settings.items():
        check(name in parameters, f"not be passed for a {pipeline.__name__}", **{name: value})


def _embedding(folder: pathlib.Path, precision: str | None, settings: Mapping[str, Any]) -> Embedding:
    _check_settings(Embedding, settings)
    loaded = sentence_transformers.from_sentence_transformers(folder, precision)
    arguments = {**loaded.settings, **settings}
    arguments |= truncation_arguments(loaded.folder, Embedding, loaded.model, arguments)
    if "tokenizer" not in settings:
        options = {"special_tokens_in_text": True, "lowercase": loaded.lowercase}
        arguments["tokenizer"] = _tokenizer(loaded.folder, Embedding, loaded.model.encoder, **options)
    return Embedding(loaded.model, **arguments)


def _tokenizer(folder: pathlib.Path, pipeline: Any, model: Any, **arguments: bool) -> text.Tokenizer:
    """Read the tokenizer of a folder, with as many ids as the model has embeddings.

    Args:
        folder: the folder.
        pipeline: the class of the pipeline.
        model: the model, or its encoder.
        **arguments: arguments of the tokenizer's constructor to set to True. Special tokens in texts are ordinary text
            for a class without this argument.
    """
    config = files.read_json(folder / CONFIG)
    model_type = config["model_type"]
    if model_type == "bert" and has_tokenizer_of_xlm_roberta(folder):
        model_type = "xlm-roberta"
    if isinstance(model, EncoderDecoderClassifier):  # reads rows such as RoBERTa's
        model_type = "roberta"
    read, options = _READERS.get(model_type, (text.from_hugging_face, {}))
    if pipeline is TextGeneration:  # of several end tokens, the model determines one
        ids = {"end": model.end_id, "pad": model.pad_id}
        options = {"roles": {role: id_ for role, id_ in ids.items() if id_ is not None}}
    if pipeline is SpeechToText:  # the files name another start token
        options = {"roles": {"start": model.start_id, "end": model.end_id, "pad": model.pad_id}}
    tokenizer = read(folder, vocabulary_size=config.get("vocab_size"), **options)
    known = inspect.signature(type(tokenizer)).parameters
    if arguments.get("lowercase") and "lowercase" not in known:
        raise ValueError(
            f"`{folder}` must have do_lower_case=False in sentence_bert_config.json for a {type(tokenizer).__name__}. "
            "Received: do_lower_case=True"
        )
    changed = {name: True for name, value in arguments.items() if value and name in known}
    return tokenizer.with_arguments(**changed) if changed else tokenizer


def _merge_segments(model: Any) -> None:
    """Give all segments the embedding of the first, the only one that a tokenizer without segments uses."""
    segments = getattr(getattr(model, "encoder", model), "segments", None)
    if segments is not None:
        embeddings = segments.embeddings
        embeddings.assign(keras.ops.broadcast_to(embeddings[:1], embeddings.shape))


def _languages(
    folder: pathlib.Path, model: Any, tokenizer: text.Tokenizer, constraints: Sequence[Any], **_: Any
) -> dict[str, Any]:
    """Return the default languages of a translation model, and the constraints without that of a language."""
    names = {id_: name for name, id_ in tokenizer.languages.items()}
    file = folder / "tokenizer_config.json"
    config = files.read_json(file) if file.is_file() else {}
    source, target = (config.get(name) for name in ("src_lang", "tgt_lang"))
    if tokenizer.language_is_start:
        target = names.get(model.start_id, target)
    others = []
    for constraint in constraints:
        if isinstance(constraint, ForcedPrefix) and constraint.prefix[0] in names:
            target = names[constraint.prefix[0]]
        else:
            others.append(constraint)
    languages = {"source_language": source, "target_language": target}
    known = {name: language for name, language in languages.items() if language in tokenizer.languages}
    return {"constraints": others, **known}


def _camembert(folder: pathlib.Path, **options: Any) -> text.MarianT5Tokenizer:
    """Read CamemBERT's `tokenizer.json`; the ids of its SentencePiece model begin otherwise than XLM-RoBERTa's."""
    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError(
            f"`source` of a CamemBERT must have tokenizer.json, which `transformers` writes with `save_pretrained`. "
            f"Received: {str(folder)!r}"
        )
    return text.MarianT5Tokenizer.from_files(folder, **options)


def _bart(folder: pathlib.Path, **options: Any) -> text.Tokenizer:
    """Read BART's tokenizer: its sources begin with the start token, its targets with the end token."""
    from keras_transformer.text.tokenizers.hugging_face import tokenizer_class

    start, end = "<s>", "</s>"
    if tokenizer_class(folder) == "WordPieceTokenizer":
        tokenizer = text.from_hugging_face(folder)
        start, end = (tokenizer.id_to_piece(id_) for id_ in (tokenizer.start_id, tokenizer.end_id))
    return text.from_hugging_face(folder, start=end, source_prefix=[start], **options)


_ROBERTA: dict[str, Any] = {"pair_separators": 2, "lstrip_mask": True}
# The function that reads the tokenizer, and its options, of model types whose files leave something open.
_READERS: dict[str, tuple[Callable[..., text.Tokenizer], dict[str, Any]]] = {
    "bart": (_bart, {}),
    **dict.fromkeys(("mbart", "m2m_100"), (text.MarianT5Tokenizer.from_files, {})),
    "roberta": (text.from_hugging_face, _ROBERTA),
    "xlm-roberta": (text.MarianT5Tokenizer.from_files, _ROBERTA),
    "camembert": (_camembert, _ROBERTA),
}
