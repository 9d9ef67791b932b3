"""Readers of files, and batches for `fit` from texts, pairs and images: `tf.data` datasets of known cardinality."""

from keras_transformer.data.classification import classification
from keras_transformer.data.conll import TaggedSentence, read_conll
from keras_transformer.data.files import read_examples, read_summaries, stream_examples
from keras_transformer.data.fine_tuning import fine_tuning, input_rows
from keras_transformer.data.images import image_batches
from keras_transformer.data.instruction_tuning import instruction_tuning
from keras_transformer.data.language_modeling import language_modeling
from keras_transformer.data.masked_language_modeling import masked_language_modeling, next_sentences
from keras_transformer.data.pairs import multi_task_pairs, translation_pairs
from keras_transformer.data.questions import questions
from keras_transformer.data.sentence_pairs import sentence_pairs
from keras_transformer.data.span_corruption import span_corruption
from keras_transformer.data.speech import read_transcripts, speech_recognition
from keras_transformer.data.splitting import split
from keras_transformer.data.squad import Question, read_squad
from keras_transformer.data.tagging import tagging
from keras_transformer.data.transforms import with_class_weight, with_lengths

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
    "read_summaries",
    "read_transcripts",
    "sentence_pairs",
    "span_corruption",
    "speech_recognition",
    "split",
    "stream_examples",
    "tagging",
    "translation_pairs",
    "with_class_weight",
    "with_lengths",
]
