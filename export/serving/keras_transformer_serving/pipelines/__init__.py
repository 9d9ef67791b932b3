"""Exported pipelines: each gives the outputs of the pipeline of `keras_transformer.pipelines` of its name."""

from typing import Any

from keras_transformer_serving.model import Model
from keras_transformer_serving.pipelines.classification import ArrayPipeline
from keras_transformer_serving.pipelines.embedding import Embedding as Embedding
from keras_transformer_serving.pipelines.fill_mask import FillMask as FillMask
from keras_transformer_serving.pipelines.generating import Generating
from keras_transformer_serving.pipelines.question_answering import QuestionAnswering as QuestionAnswering
from keras_transformer_serving.pipelines.reranking import RankedText as RankedText
from keras_transformer_serving.pipelines.reranking import Reranking as Reranking
from keras_transformer_serving.pipelines.speech_to_text import SpeechToText as SpeechToText
from keras_transformer_serving.pipelines.text_classification import TextClassification as TextClassification
from keras_transformer_serving.pipelines.text_generation import TextGeneration as TextGeneration
from keras_transformer_serving.pipelines.text_to_text import TextToText as TextToText
from keras_transformer_serving.pipelines.texts import TextPipeline
from keras_transformer_serving.pipelines.token_classification import (
    TokenClassification as TokenClassification,
)
from keras_transformer_serving.pipelines.zero_shot_classification import (
    ZeroShotClassification as ZeroShotClassification,
)
from keras_transformer_serving.tasks import ExportedPipeline
from keras_transformer_serving.text import Tokenizer


def pipeline_of(engine: Any, config: dict[str, Any], tokenizer: Tokenizer | None) -> Any:
    """Return an exported pipeline.

    Args:
        engine: what computes: a `GenerationEngine` if the pipeline generates, else a `ForwardEngine`.
        config: the export's settings.
        tokenizer: the export's tokenizer; None if there is none, or it needs TensorFlow.

    Returns:
        The class of its name. If there is none, or it needs a tokenizer and there is none: a `Model` or, for one that
        generates, the class of its kind of model.
    """
    pipeline = ExportedPipeline.named(config["pipeline"])
    if "generation" in config:
        if pipeline is None or not issubclass(pipeline, Generating):
            pipeline = TextGeneration if config["start_id"] is None else TextToText
        return pipeline(engine, config, tokenizer)
    if pipeline is not None and issubclass(pipeline, SpeechToText):
        return pipeline(engine, config, tokenizer)
    if pipeline is not None and issubclass(pipeline, ArrayPipeline):
        return pipeline(engine, config)
    if pipeline is not None and issubclass(pipeline, TextPipeline) and tokenizer is not None:
        return pipeline(engine, config, tokenizer)
    return Model(engine, config)
