"""Tokenizers for the TensorFlow graph."""
