"""Readers of files, and batches for `fit` from texts, pairs and images: `tf.data` datasets of known cardinality."""

from keras_transformer.data.classification import classification as classification
from keras_transformer.data.conll import TaggedSentence as TaggedSentence
from keras_transformer.data.conll import read_conll as read_conll
from keras_transformer.data.files import read_examples as read_examples
from keras_transformer.data.files import stream_examples as stream_examples
from keras_transformer.data.fine_tuning import fine_tuning as fine_tuning
from keras_transformer.data.fine_tuning import input_rows as input_rows
from keras_transformer.data.images import image_batches as image_batches
from keras_transformer.data.instruction_tuning import instruction_tuning as instruction_tuning
from keras_transformer.data.language_modeling import language_modeling as language_modeling
from keras_transformer.data.masked_language_modeling import (
    masked_language_modeling as masked_language_modeling,
)
from keras_transformer.data.masked_language_modeling import next_sentences as next_sentences
from keras_transformer.data.pairs import multi_task_pairs as multi_task_pairs
from keras_transformer.data.pairs import translation_pairs as translation_pairs
from keras_transformer.data.questions import questions as questions
from keras_transformer.data.sentence_pairs import sentence_pairs as sentence_pairs
from keras_transformer.data.span_corruption import span_corruption as span_corruption
from keras_transformer.data.splitting import split as split
from keras_transformer.data.squad import Question as Question
from keras_transformer.data.squad import read_squad as read_squad
from keras_transformer.data.tagging import tagging as tagging
from keras_transformer.data.transforms import with_class_weight as with_class_weight
from keras_transformer.data.transforms import with_lengths as with_lengths

__all__ = [
    "Question",
    "TaggedSentence",
    "classification",
    "fine_tuning",
    "image_batches",
    "input_rows",
    "instruction_tuning",
    "language_modeling",
    "masked_language_modeling",
    "multi_task_pairs",
    "next_sentences",
    "questions",
    "read_conll",
    "read_examples",
    "read_squad",
    "sentence_pairs",
    "span_corruption",
    "split",
    "stream_examples",
    "tagging",
    "translation_pairs",
    "with_class_weight",
    "with_lengths",
]
