"""Export pipelines and Keras models to SavedModel, ONNX and CTranslate2, and verify the exports."""

from keras_transformer.export.argos import argos_package as argos_package
from keras_transformer.export.keras_models import onnx_model as onnx_model
from keras_transformer.export.keras_models import saved_model_of as saved_model_of
from keras_transformer.export.parity.comparison import verify as verify
from keras_transformer.export.shortlist import vocabulary_shortlist as vocabulary_shortlist
from keras_transformer.export.targets import ExportTarget as ExportTarget
from keras_transformer.export.to_bundle import bundle as bundle
from keras_transformer.export.to_onnx.target import onnx as onnx
from keras_transformer.export.to_saved_model import saved_model as saved_model
from keras_transformer_serving import ParityError as ParityError

__all__ = [
    "ExportTarget",
    "ParityError",
    "argos_package",
    "bundle",
    "onnx",
    "onnx_model",
    "saved_model",
    "saved_model_of",
    "verify",
    "vocabulary_shortlist",
]
