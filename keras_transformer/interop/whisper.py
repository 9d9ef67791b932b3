"""Whisper."""

import dataclasses

import numpy as np

from keras_transformer.interop.architecture import Architecture, Parameter, Parameters, norm
from keras_transformer.interop.bart import attention_parameters, feed_forward_parameters
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
    for i, block in enumerate(model.encoder_blocks):
        name = f"model.encoder.layers.{i}"
        yield from attention_parameters(f"{name}.self_attn", block.attention, block.attention_residual)
        yield from feed_forward_parameters(name, block)
    for i, block in enumerate(model.decoder_blocks):
        name = f"model.decoder.layers.{i}"
        yield from attention_parameters(
            f"{name}.self_attn", block.self_attention, block.self_attention_residual
        )
        yield from attention_parameters(
            f"{name}.encoder_attn", block.cross_attention, block.cross_attention_residual
        )
        yield from feed_forward_parameters(name, block)


WHISPER = Architecture(
    model_type="whisper",
    class_name="WhisperForConditionalGeneration",
    model=Whisper,
    settings={
        "vocabulary_size": "vocab_size",
        "num_layers": "encoder_layers",
        "num_decoder_layers": "decoder_layers",
        "num_heads": "encoder_attention_heads",
        "num_decoder_heads": "decoder_attention_heads",
        "model_dim": "d_model",
        "hidden_dim": "encoder_ffn_dim",
        "decoder_hidden_dim": "decoder_ffn_dim",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "hidden_dropout": "activation_dropout",
        "activation": "activation_function",
        "num_mels": "num_mel_bins",
        "max_source_length": "max_source_positions",
        "max_length": "max_target_positions",
        "pad_id": "pad_token_id",
        "start_id": "decoder_start_token_id",
        "end_id": "eos_token_id",
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
