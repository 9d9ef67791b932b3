"""Whisper."""

import dataclasses

import numpy as np

from keras_transformer.interop.architecture import Architecture, Parameter, Parameters, norm
from keras_transformer.interop.bart import SETTINGS, block_parameters
from keras_transformer.models import Whisper

_WORDS = "model.decoder.embed_tokens.weight"


@dataclasses.dataclass(frozen=True)
class _Convolution(Parameter):
    """The kernel (D, F, K) of a convolution, stored as a matrix (K · F, D)."""

    @property
    def file_shape(self) -> tuple[int, ...]:
        return self.shape

    def arrays(self, values: np.ndarray) -> list[np.ndarray]:
        return [values.transpose(2, 1, 0).reshape(self.weights[0].shape)]

    def joined(self, arrays: list[np.ndarray]) -> np.ndarray:
        return np.ascontiguousarray(arrays[0].reshape(self.shape[::-1]).transpose(2, 1, 0))


def _parameters(model: Whisper) -> Parameters:
    yield _WORDS, Parameter((model.embedding.embedding.embeddings,))
    for i, layer in enumerate(model.subsampling.convolutions, 1):
        size = model.subsampling.kernel_size
        shape = (model.model_dim, layer.kernel.shape[0] // size, size)
        yield f"model.encoder.conv{i}.weight", _Convolution((layer.kernel,), shape=shape)
        yield f"model.encoder.conv{i}.bias", Parameter((layer.bias,))
    for side in ("encoder", "decoder"):
        yield f"model.{side}.embed_positions.weight", Parameter((model.positions[side].table,))
        yield from norm(f"model.{side}.layer_norm", model.final_norms[f"{side}_norm"])
    yield from block_parameters(model)


WHISPER = Architecture(
    model_type="whisper",
    class_name="WhisperForConditionalGeneration",
    model=Whisper,
    settings={
        **SETTINGS,
        "num_mels": "num_mel_bins",
        "max_source_length": "max_source_positions",
        "max_length": "max_target_positions",
    },
    fixed={},
    defaults={
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "activation_function": "gelu",
        "num_mel_bins": 80,
        "max_source_positions": 1500,
        "max_target_positions": 448,
    },
    required={"scale_embedding": False, "tie_word_embeddings": True},
    parameters=_parameters,
    tied={"proj_out.weight": _WORDS},
    base="model.",
)
