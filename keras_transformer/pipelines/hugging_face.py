"""Pipelines from folders of Hugging Face's `transformers` and of `sentence-transformers`."""

import inspect
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from keras_transformer import interop, text
from keras_transformer.interop import sentence_transformers
from keras_transformer.interop.hub import CONFIG, MODULES, local_folder
from keras_transformer.interop.hugging_face import has_tokenizer_of_xlm_roberta
from keras_transformer.models import EncoderDecoderClassifier
from keras_transformer.pipelines.base import Pipeline
from keras_transformer.pipelines.embedding import Embedding
from keras_transformer.pipelines.reranking import Reranking
from keras_transformer_serving import files

# Files of the hub that pipelines read in addition to the model's.
_FILES = (
    MODULES,
    "README.md",
    "adapter_config.json",
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
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


def from_hugging_face(
    source: str | os.PathLike[str],
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    pipeline: type[Pipeline] | None = None,
    **settings: Any,
) -> Any:
    """Load a pipeline from a folder, or a model of the Hub, of `transformers` or `sentence-transformers`.

    | folder | pipeline |
    |---|---|
    | Marian, BART, Pegasus, T5, T5 v1.1, mT5 | `TextToText` |
    | GPT-2, OpenAI GPT | `TextGeneration` |
    | BERT and its relatives for masked language modelling or pre-training | `FillMask` |
    | for sequences, tokens, questions | `TextClassification`, `TokenClassification`, `QuestionAnswering` |
    | without head | `Embedding` |
    | encoders with `modules.json` of `sentence-transformers` | `Embedding` |
    | cross-encoders of `sentence-transformers` with one label | `Reranking` |
    | ViT | `ImageClassification` |

    BERT's relatives are RoBERTa, XLM-RoBERTa, CamemBERT and DistilBERT. For mBART, M2M-100, ALBERT, ModernBERT and
    Llama, whose tokenizers cannot be read, pass a `tokenizer`.

    Args:
        source: a folder with the tokenizer's files and the files that `interop.from_hugging_face` reads, or the id of a
            model of the hub, of which only these files are downloaded; for ViT optionally with
            `preprocessor_config.json`, whose mean and standard deviation become part of the weights, so that images
            have values from 0 to 255.
        revision: a branch, a tag or a commit of the hub, by default the main branch.
        token: a token of the hub, by default the one that `huggingface_hub` has stored.
        cache_dir: the folder of the cache, by default that of `huggingface_hub`.
        pipeline: the class of the pipeline, by default that of the table: `pipelines.Reranking` for a reranker whose
            files do not name `sentence-transformers`, such as bge-reranker; they describe a regression.
        **settings: arguments of the pipeline, such as `generation` and `max_new_tokens`. Labels are read from
            `config.json`; `generation`, `constraints` and `max_new_tokens` by default from `generation_config.json` or,
            without that file, `config.json`. Unsupported settings are listed in a `UserWarning`. For a folder with
            `modules.json`, the pooling, the layers after it, normalisation, the maximum length, to which texts are
            truncated, and the prompts are read from its files.

    Returns:
        The pipeline.

    Raises:
        FileNotFoundError: if there is no such folder or model, or a file is missing.
        ImportError: if huggingface_hub is not installed, for a model of the hub.
        OSError: if a download fails.
        PermissionError: if the model of the hub requires a token.
        TypeError: if `pipeline` is not a class of pipelines.
        ValueError: if a file is damaged, the architecture or a module or setting of `sentence-transformers` is not
            supported, or model and tokenizer do not match.

    Example:
        >>> writer = from_hugging_face("openai-community/gpt2", max_new_tokens=32)  # doctest: +SKIP
    """
    if pipeline is not None and not (inspect.isclass(pipeline) and issubclass(pipeline, Pipeline)):
        raise TypeError(f"`pipeline` must be a class of pipelines. Received: pipeline={pipeline!r}")
    folder = local_folder(source, _FILES, revision=revision, token=token, cache_dir=cache_dir)
    if sentence_transformers.has_modules(folder) and pipeline in (None, Embedding):
        return _embedding(folder, settings)
    model = interop.from_hugging_face(folder)
    config = files.read_json(folder / CONFIG)
    pipeline = _class_of(folder, config, model) if pipeline is None else pipeline
    arguments = {"model": model}
    if "tokenizer" in inspect.signature(pipeline).parameters and "tokenizer" not in settings:
        arguments["tokenizer"] = _tokenizer(folder, model, special_tokens_in_text=pipeline is Reranking)
    arguments |= pipeline.hugging_face_arguments(folder, config, model, settings)
    return pipeline(**{**arguments, **settings})


def _class_of(folder: pathlib.Path, config: Mapping[str, Any], model: Any) -> type[Pipeline]:
    """Return the class of the pipeline of a model and its folder."""
    has_one_logit = getattr(model, "num_classes", None) == 1
    if has_one_logit and sentence_transformers.is_cross_encoder(folder, config):
        return Reranking
    return Pipeline.of_model(model)


def _embedding(folder: pathlib.Path, settings: Mapping[str, Any]) -> Embedding:
    loaded = sentence_transformers.from_sentence_transformers(folder)
    arguments = {**loaded.settings, **settings}
    if "tokenizer" not in settings:
        arguments["tokenizer"] = _tokenizer(
            loaded.folder, loaded.model.encoder, special_tokens_in_text=True, lowercase=loaded.lowercase
        )
    return Embedding(loaded.model, **arguments)


def _tokenizer(folder: pathlib.Path, model: Any, **arguments: bool) -> text.Tokenizer:
    """Read the tokenizer of a folder.

    Args:
        folder: the folder.
        model: its model.
        **arguments: arguments of the tokenizer's constructor to set to True. Special tokens in texts are ordinary text
            for a class without this argument.
    """
    model_type = files.read_json(folder / CONFIG)["model_type"]
    if model_type not in _TOKENIZERS:
        raise ValueError(
            f"`tokenizer` must be passed for model types other than {', '.join(sorted(_TOKENIZERS))}. "
            f"Received: model_type={model_type!r}"
        )
    if model_type == "bert" and has_tokenizer_of_xlm_roberta(folder):
        model_type = "xlm-roberta"
    tokenizer = _TOKENIZERS[model_type](folder, model)
    known = inspect.signature(type(tokenizer)).parameters
    if arguments.get("lowercase") and "lowercase" not in known:
        raise ValueError(
            f"`{folder}` must have do_lower_case=False in sentence_bert_config.json for a {type(tokenizer).__name__}. "
            "Received: do_lower_case=True"
        )
    changed = {name: True for name, value in arguments.items() if value and name in known}
    return tokenizer.with_arguments(**changed) if changed else tokenizer


def _marian_or_t5(folder: pathlib.Path, model: Any) -> text.MarianT5Tokenizer:
    return text.MarianT5Tokenizer.from_files(folder, vocabulary_size=model.vocabulary_size)


_ROBERTA: dict[str, Any] = {"pair_separators": 2, "lstrip_mask": True}


def _bart(folder: pathlib.Path, model: Any) -> text.BytePairTokenizer:
    """Read BART's tokenizer: a classifier reads rows such as RoBERTa's, a generated text starts with the end token."""
    if isinstance(model, EncoderDecoderClassifier):
        return text.BytePairTokenizer.from_files(folder, **_ROBERTA)
    return text.BytePairTokenizer.from_files(folder, start="</s>", source_prefix=["<s>"])


def _camembert(folder: pathlib.Path, model: Any) -> text.MarianT5Tokenizer:
    """Read CamemBERT's `tokenizer.json`; the ids of its SentencePiece model begin otherwise than XLM-RoBERTa's."""
    if not (folder / "tokenizer.json").is_file():
        raise FileNotFoundError(
            f"`source` of a CamemBERT must have tokenizer.json, which `transformers` writes with `save_pretrained`. "
            f"Received: {str(folder)!r}"
        )
    return text.MarianT5Tokenizer.from_files(folder, **_ROBERTA)


# The tokenizer of each model type that reads texts.
_TOKENIZERS: dict[str, Callable[[pathlib.Path, Any], text.Tokenizer]] = {
    **dict.fromkeys(("marian", "t5", "mt5", "pegasus"), _marian_or_t5),
    "gpt2": lambda folder, _: text.BytePairTokenizer.from_files(folder),
    "openai-gpt": lambda folder, _: text.OpenAIGPTTokenizer.from_files(folder),
    **dict.fromkeys(("bert", "distilbert"), lambda folder, _: text.WordPieceTokenizer.from_files(folder)),
    "bart": _bart,
    "roberta": lambda folder, _: text.BytePairTokenizer.from_files(folder, **_ROBERTA),
    "xlm-roberta": lambda folder, _: text.MarianT5Tokenizer.from_files(folder, **_ROBERTA),
    "camembert": _camembert,
}
