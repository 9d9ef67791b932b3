"""Puts a pipeline into production: SavedModel for TensorFlow Serving, ONNX for ONNX Runtime, both verified."""

from keras_transformer.export.parity import ParityError as ParityError
from keras_transformer.export.to_onnx import onnx as onnx
from keras_transformer.export.to_saved_model import saved_model as saved_model
from keras_transformer.export.verification import verify as verify

__all__ = ["ParityError", "onnx", "saved_model", "verify"]
