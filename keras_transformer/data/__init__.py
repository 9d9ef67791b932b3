"""Text to batches of ids for `fit`: `tf.data` datasets with static shapes and exact cardinality."""

from keras_transformer.data.images import image_batches as image_batches
from keras_transformer.data.language_modeling import language_modeling as language_modeling
from keras_transformer.data.masked_language_modeling import (
    masked_language_modeling as masked_language_modeling,
)
from keras_transformer.data.masked_language_modeling import next_sentences as next_sentences
from keras_transformer.data.pairs import translation_pairs
from keras_transformer.data.span_corruption import span_corruption as span_corruption

__all__ = [
    "image_batches",
    "language_modeling",
    "masked_language_modeling",
    "next_sentences",
    "span_corruption",
    "translation_pairs",
]
