"""Exported pipelines: each gives the outputs of the pipeline of `keras_transformer.pipelines` of its name."""

from typing import Any

from keras_transformer_serving.graphs import Graphs
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
from keras_transformer_serving.sessions import Sessions
from keras_transformer_serving.tasks import ExportedPipeline
from keras_transformer_serving.text import Tokenizer


def forward_pipeline(
    sessions: Sessions,
    config: dict[str, Any],
    tokenizer: Tokenizer | None,
) -> Model:
    """Return an exported pipeline that runs its model once.

    Args:
        sessions: ONNX Runtime's sessions of the graphs.
        config: the export's settings.
        tokenizer: the export's tokenizer; None if there is none, or it needs TensorFlow.

    Returns:
        The class of its name, or a `Model` if there is none, or it needs a tokenizer and there is none.
    """
    pipeline_class = ExportedPipeline.of(config["pipeline"])
    if pipeline_class is not None and issubclass(pipeline_class, SpeechToText):
        return pipeline_class(sessions, config, tokenizer)
    if pipeline_class is not None and issubclass(pipeline_class, ArrayPipeline):
        return pipeline_class(sessions, config)
    if pipeline_class is not None and issubclass(pipeline_class, TextPipeline) and tokenizer is not None:
        return pipeline_class(sessions, config, tokenizer)
    return Model(sessions, config)


def generating_pipeline(graphs: Graphs, tokenizer: Tokenizer | None, config: dict[str, Any]) -> Generating:
    """Return an exported pipeline that generates, of the class of its name or, if it has none, of its kind of model."""
    pipeline_class = ExportedPipeline.of(config["pipeline"])
    if pipeline_class is None or not issubclass(pipeline_class, Generating):
        pipeline_class = TextGeneration if config["start_id"] is None else TextToText
    return pipeline_class(graphs, tokenizer, config)
