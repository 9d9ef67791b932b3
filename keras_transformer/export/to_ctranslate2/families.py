"""Specifications of CTranslate2 of the families of models."""

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_transformer import models, relations
from keras_transformer.export.to_ctranslate2.checks import activation_number, require, stack
from keras_transformer.export.to_ctranslate2.weights import Weights, array_of


def _encoder_decoder(model: Any, weights: Weights, size: int) -> Any:
    """Return the specification of a `Transformer` or `T5`."""
    from ctranslate2.specs import transformer_spec

    norms = getattr(model, "embedding_norms", {})
    options = {"layernorm_embedding": bool(norms)}
    spec = transformer_spec.TransformerSpec(
        stack(
            transformer_spec.TransformerEncoderSpec, model.encoder_blocks, relations.Full(), size, **options
        ),
        stack(
            transformer_spec.TransformerDecoderSpec, model.decoder_blocks, relations.Causal(), size, **options
        ),
    )
    positions = getattr(model, "positions", {})
    for side, target in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        blocks, final_norm = getattr(model, f"{side}_blocks"), model.final_norms.get(f"{side}_norm")
        weights.stack(target, blocks, model.embedding, positions.get(side), size, final_norm)
        if norms:
            weights.norm(target.layernorm_embedding, norms[side])
    head = getattr(model, "head", None)
    if head is None:
        weights.projection(spec.decoder, model.embedding, getattr(model, "output_bias", None))
    else:
        weights.linear(spec.decoder.projection, head)
    if isinstance(model, models.T5) and head is None:
        spec.decoder.scale_outputs = np.float32(model.model_dim**-0.5)
    return spec


def _decoder(model: Any, weights: Weights, size: int) -> Any:
    """Return the specification of a decoder-only model."""
    from ctranslate2.specs import transformer_spec

    decoder = stack(
        transformer_spec.TransformerDecoderSpec,
        model.blocks,
        relations.Causal(),
        size,
        with_encoder_attention=False,
        no_final_norm=model.final_norm is None,
    )
    spec = transformer_spec.TransformerDecoderModelSpec(decoder)
    weights.stack(decoder, model.blocks, model.embedding, model.positions, size, model.final_norm)
    weights.projection(decoder, model.embedding)
    return spec


def _encoder(model: Any, weights: Weights, size: int) -> Any:
    """Return the specification of a `BERT`, without its pooler."""
    from ctranslate2.specs import common_spec, transformer_spec

    require(
        model.embedding_dim == model.model_dim,
        "embeddings of the size of the hidden states",
        f"embedding_dim={model.embedding_dim}, model_dim={model.model_dim}",
    )
    encoder = stack(
        transformer_spec.TransformerEncoderSpec,
        model.blocks,
        relations.Full(),
        size,
        layernorm_embedding=True,
        num_source_embeddings=2 if model.num_segments > 1 else 1,
        embeddings_merge=common_spec.EmbeddingsMerge.ADD,
    )
    weights.stack(encoder, model.blocks, model.embedding, model.positions, size, model.final_norm)
    weights.norm(encoder.layernorm_embedding, model.embedding_norm)
    if model.num_segments > 1:
        encoder.embeddings[1].weight = array_of(model.segments.embeddings)
    elif model.num_segments:  # that of all tokens
        encoder.position_encodings.encodings += array_of(model.segments.embeddings)
    return transformer_spec.TransformerEncoderModelSpec(encoder)


def _whisper(model: Any, weights: Weights, size: int) -> Any:
    """Return the specification of a `Whisper`, whose inputs are features."""
    from ctranslate2.specs import common_spec, whisper_spec

    is_gelu = activation_number(model.activation) == common_spec.Activation.GELU
    require(is_gelu, "the activation gelu", getattr(model.activation, "__name__", model.activation))
    spec = whisper_spec.WhisperSpec(
        model.num_layers, model.num_heads, model.num_decoder_layers, model.num_decoder_heads
    )
    subsampling = model.subsampling
    for target, convolution in zip(
        (spec.encoder.conv1, spec.encoder.conv2), subsampling.convolutions, strict=True
    ):
        kernel = array_of(convolution.kernel)  # (K F, D)
        kernel = kernel.reshape(subsampling.kernel_size, -1, kernel.shape[-1])
        target.weight = np.ascontiguousarray(kernel.transpose(2, 1, 0))  # (D, F, K)
        target.bias = array_of(convolution.bias)
    spec.encoder.position_encodings.encodings = array_of(model.positions["encoder"].table)
    weights.blocks(spec.encoder, model.encoder_blocks, model.final_norms["encoder_norm"])
    final_norm = model.final_norms["decoder_norm"]
    weights.stack(
        spec.decoder, model.decoder_blocks, model.embedding, model.positions["decoder"], size, final_norm
    )
    weights.projection(spec.decoder, model.embedding)
    return spec


SPECIFICATIONS: dict[type, Callable[[Any, Weights, int], Any]] = {
    models.Transformer: _encoder_decoder,
    models.T5: _encoder_decoder,
    models.GPT: _decoder,
    models.Llama: _decoder,
    models.Gemma: _decoder,
    models.BERT: _encoder,
    models.Whisper: _whisper,
}
