"""The command line."""

from keras_transformer.cli.commands import main as main

__all__ = ["main"]
