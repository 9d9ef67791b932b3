"""Text to batches of ids for `fit`: `tf.data` datasets with static shapes and exact cardinality."""

from keras_transformer.data.pairs import translation_pairs

__all__ = ["translation_pairs"]
