"""Tokenizer, model and generation settings as one object: text in, text out."""

import os
from typing import Any

from keras_transformer.pipelines.embedding import Embedding as Embedding
from keras_transformer.pipelines.evaluation import evaluate as evaluate
from keras_transformer.pipelines.evaluation import scorers as scorers
from keras_transformer.pipelines.fill_mask import FillMask as FillMask
from keras_transformer.pipelines.fill_mask import MaskPrediction as MaskPrediction
from keras_transformer.pipelines.hugging_face import from_hugging_face as from_hugging_face
from keras_transformer.pipelines.hugging_face_folders import to_hugging_face as to_hugging_face
from keras_transformer.pipelines.image_classification import ImageClassification as ImageClassification
from keras_transformer.pipelines.keras_hub import from_keras_hub as from_keras_hub
from keras_transformer.pipelines.node_classification import NodeClassification as NodeClassification
from keras_transformer.pipelines.pipeline import CONFIG, folder_of
from keras_transformer.pipelines.pipeline import Pipeline as Pipeline
from keras_transformer.pipelines.question_answering import QuestionAnswering as QuestionAnswering
from keras_transformer.pipelines.question_answering import Span as Span
from keras_transformer.pipelines.reranking import RankedText as RankedText
from keras_transformer.pipelines.reranking import Reranking as Reranking
from keras_transformer.pipelines.speech_to_text import SpeechToText as SpeechToText
from keras_transformer.pipelines.text_classification import TextClassification as TextClassification
from keras_transformer.pipelines.text_generation import TextGeneration as TextGeneration
from keras_transformer.pipelines.text_to_text import TextToText as TextToText
from keras_transformer.pipelines.token_classification import TaggedWord as TaggedWord
from keras_transformer.pipelines.token_classification import TokenClassification as TokenClassification
from keras_transformer.pipelines.zero_shot_classification import ScoredLabel as ScoredLabel
from keras_transformer.pipelines.zero_shot_classification import (
    ZeroShotClassification as ZeroShotClassification,
)
from keras_transformer_options.arguments import Message
from keras_transformer_serving import bundle, files
from keras_transformer_serving.generation import Alignment as Alignment
from keras_transformer_serving.generation import Answer as Answer

__all__ = [
    "Alignment",
    "Answer",
    "Embedding",
    "FillMask",
    "ImageClassification",
    "MaskPrediction",
    "NodeClassification",
    "Pipeline",
    "QuestionAnswering",
    "RankedText",
    "Reranking",
    "ScoredLabel",
    "Span",
    "SpeechToText",
    "TaggedWord",
    "TextClassification",
    "TextGeneration",
    "TextToText",
    "TokenClassification",
    "ZeroShotClassification",
    "evaluate",
    "from_hugging_face",
    "from_keras_hub",
    "load",
    "scorers",
    "to_hugging_face",
]


def load(folder: str | os.PathLike[str]) -> Any:
    """Load a saved pipeline.

    Args:
        folder: the folder that a pipeline's `save` wrote, or the folder of a training run, whose `pipeline/` is loaded.

    Raises:
        FileNotFoundError: if the folder is neither.
        ValueError: if a file in it is damaged, or of a newer format.

    Example:
        >>> load("runs/es-en")(["¿Dónde está la estación?"])  # doctest: +SKIP
        ['Where is the station?']
    """
    folder = folder_of(files.as_folder(folder))
    config_file = folder / CONFIG
    if bundle.is_bundle(folder):
        raise FileNotFoundError(
            Message(
                "{folder} must be a pipeline, not an export, which `keras_transformer_serving.load` reads",
                folder=str(folder),
            )
        )
    config = files.read_json(config_file) if config_file.is_file() else {}
    pipeline = Pipeline.named(str(config.get("pipeline"))) if isinstance(config, dict) else None
    if pipeline is None:
        raise FileNotFoundError(
            Message(
                "{folder} must be a saved pipeline, or a training run. Received: {folder=}, which {reason!s}",
                folder=str(folder),
                reason="has another config.json" if config_file.is_file() else "has no config.json",
            )
        )
    return pipeline.load(folder)
