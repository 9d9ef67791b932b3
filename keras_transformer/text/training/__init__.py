"""Training of vocabularies."""
