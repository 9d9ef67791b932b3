"""Serve exports over HTTP; needs the extra `server`."""

from keras_transformer_serving.server.api import Api as Api
from keras_transformer_serving.server.api import Server as Server
from keras_transformer_serving.server.app import create_app as create_app
from keras_transformer_serving.server.batching import Limits as Limits
from keras_transformer_serving.server.keys import Keys as Keys

__all__ = ["Api", "Keys", "Limits", "Server", "create_app"]
