"""Batches for `fit` from texts, pairs and images: `tf.data` datasets with static shapes and known cardinality."""

from keras_transformer.data.fine_tuning import fine_tuning as fine_tuning
from keras_transformer.data.fine_tuning import input_rows as input_rows
from keras_transformer.data.images import image_batches as image_batches
from keras_transformer.data.language_modeling import language_modeling as language_modeling
from keras_transformer.data.lengths import with_lengths as with_lengths
from keras_transformer.data.masked_language_modeling import (
    masked_language_modeling as masked_language_modeling,
)
from keras_transformer.data.masked_language_modeling import next_sentences as next_sentences
from keras_transformer.data.multi_task import multi_task_pairs as multi_task_pairs
from keras_transformer.data.pairs import translation_pairs
from keras_transformer.data.span_corruption import span_corruption as span_corruption

__all__ = [
    "fine_tuning",
    "image_batches",
    "input_rows",
    "language_modeling",
    "masked_language_modeling",
    "multi_task_pairs",
    "next_sentences",
    "span_corruption",
    "translation_pairs",
    "with_lengths",
]
