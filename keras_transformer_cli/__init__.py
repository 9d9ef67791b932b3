"""The command line."""

from keras_transformer_cli.commands import main as main

__all__ = ["main"]
