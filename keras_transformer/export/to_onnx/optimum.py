"""Configuration files with which Optimum's `ORTModel…` classes load the graphs of an export."""

import json
from typing import Any

from keras_transformer import interop
from keras_transformer.models import ViT
from keras_transformer.pipelines.hugging_face_generation import GENERATION_CONFIG, generation_config_of

_CONFIG = "config.json"


def configurations(pipeline: Any) -> dict[str, dict[str, Any]] | None:
    """Return the configuration files for Optimum, by name; None for a pipeline that Optimum cannot run.

    Optimum cannot run models without a counterpart in `transformers`, models whose attention heads have other numbers
    or sizes than it computes from `config.json`, and image models, whose inputs have another layout there.
    """
    model = pipeline.model
    config = interop.config_of(model)
    if config is None or isinstance(model, ViT) or (pipeline.generates and not _has_standard_heads(model)):
        return None
    if hasattr(pipeline, "labels"):
        labels = [str(label) for label in pipeline.labels]
        config |= {
            "id2label": dict(enumerate(labels)),
            "label2id": {name: i for i, name in enumerate(labels)},
        }
    configs = {_CONFIG: config}
    if pipeline.generates:
        configs[GENERATION_CONFIG] = generation_config_of(pipeline)
    files: dict[str, dict[str, Any]] = json.loads(json.dumps(configs))
    return files


def _has_standard_heads(model: Any) -> bool:
    """Return whether keys and values have the axes (B, N, S, D / N) for each of N query heads."""
    blocks = model.decoder_blocks if hasattr(model, "decoder_blocks") else model.blocks
    size = model.model_dim // blocks[0].self_attention.num_heads
    return all(
        (layer.num_kv_heads, layer.key_dim, layer.value_dim) == (layer.num_heads, size, size)
        for layer in (block.self_attention for block in blocks)
    )
