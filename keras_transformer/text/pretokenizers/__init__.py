"""Pre-tokenizers: split text into words in the TensorFlow graph."""
