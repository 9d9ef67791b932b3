"""Settings of decoder-only families, in both forms of `config.json`."""

import pytest

from keras_transformer import interop
from keras_transformer.interop.hugging_face import ALL, ARCHITECTURES
from keras_transformer.layers import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    YaRNScaling,
)
from keras_transformer.models import Gemma, Llama
from keras_transformer.relations import Causal, SlidingWindow
from tests.interop.configurations import DECODER_CONFIG, decoder_config

neutral = pytest.mark.backend_neutral
FAMILIES = [architecture.model_type for architecture in ALL if architecture.model in (Llama, Gemma)]
SLIDING, FULL = "sliding_attention", "full_attention"
TYPES = [SLIDING, FULL, FULL, SLIDING]
LLAMA_3 = {
    "factor": 8.0,
    "original_max_position_embeddings": 16,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
YARN = {"factor": 2.0, "original_max_position_embeddings": 16, "attention_factor": 1.5}
LONGROPE = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 3.0, 4.0]}


def read(model_type, **settings):
    """Return the model of a `config.json`."""
    architecture = ARCHITECTURES[model_type]
    return architecture.model(**architecture.arguments(decoder_config(model_type, settings)))


def of_blocks(values):
    return (
        list(values) if isinstance(values, tuple | list) else [values] * DECODER_CONFIG["num_hidden_layers"]
    )


W = SlidingWindow(4)
WINDOWS = [
    ("llama", {"sliding_window": 5}, [None] * 4),
    ("mistral", {"sliding_window": 5}, [W] * 4),
    ("mistral", {"sliding_window": None}, [None] * 4),
    ("mistral", {}, [SlidingWindow(4095)] * 4),
    ("phi3", {"sliding_window": 5}, [W] * 4),
    ("phi3", {}, [None] * 4),
    ("qwen2", {"sliding_window": 5, "max_window_layers": 3}, [None] * 4),
    ("qwen2", {"sliding_window": 5, "max_window_layers": 3, "use_sliding_window": True}, [None] * 3 + [W]),
    ("qwen3", {"sliding_window": 5, "use_sliding_window": True, "layer_types": TYPES}, [W, None, None, W]),
    ("smollm3", {"sliding_window": 5}, [None] * 4),
    ("smollm3", {"sliding_window": 5, "use_sliding_window": True}, [None] * 3 + [W]),
    ("gemma", {"sliding_window": 5}, [None] * 4),
    ("gemma2", {"sliding_window": 5}, [W, None, W, None]),
    ("gemma2", {"sliding_window": 5, "layer_types": TYPES}, [W, None, None, W]),
    ("gemma3_text", {"sliding_window": 5}, [W] * 4),
    ("gemma3_text", {"sliding_window": 5, "sliding_window_pattern": 3}, [W, W, None, W]),
]


@neutral
@pytest.mark.parametrize(("model_type", "settings", "relations"), WINDOWS, ids=str)
def test_windows_of_blocks(model_type, settings, relations):
    model = read(model_type, **settings)
    assert of_blocks(model.relation) == [each or Causal() for each in relations]
    assert [block.self_attention.relation for block in model.blocks] == of_blocks(model.relation)


@neutral
@pytest.mark.parametrize(
    ("model_type", "settings", "wavelength", "scaling"),
    [
        ("llama", {}, 10000.0, None),
        ("llama", {"rope_theta": 500.0, "rope_scaling": None}, 500.0, None),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, 500.0, None),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, 10000.0, LinearScaling(2.0)),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 10000.0, DynamicNTKScaling(2.0, 32)),
        ("llama", {"rope_scaling": {"rope_type": "llama3", **LLAMA_3}}, 10000.0, Llama3Scaling(8.0, 16)),
        (
            "llama",
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 50.0, **LLAMA_3}},
            50.0,
            Llama3Scaling(8.0, 16),
        ),
        (
            "qwen2",
            {"rope_scaling": {"type": "yarn", **YARN}},
            10000.0,
            YaRNScaling(2.0, 16, attention_factor=1.5),
        ),
        ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, 10000.0, YaRNScaling(2.0, 32)),
        ("smollm3", {}, [2e6, 2e6, 2e6, None], None),
        ("smollm3", {"no_rope_layers": [0, 1, 1, 0], "rope_theta": 9.0}, [None, 9.0, 9.0, None], None),
        (
            "phi3",
            {"rope_scaling": {"type": "su", **LONGROPE}, "original_max_position_embeddings": 16},
            10000.0,
            LongRoPEScaling(2.0, 16, (1.0, 1.5, 2.0), (2.0, 3.0, 4.0)),
        ),
        ("gemma3_text", {"sliding_window_pattern": 2}, [1e4, 1e6, 1e4, 1e6], None),
        (
            "gemma3_text",
            {
                "sliding_window_pattern": 2,
                "rope_theta": 8.0,
                "rope_local_base_freq": 7.0,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            [7.0, 8.0, 7.0, 8.0],
            [None, LinearScaling(8.0)] * 2,
        ),
        (
            "gemma3_text",
            {
                "sliding_window_pattern": 2,
                "rope_parameters": {SLIDING: {"rope_theta": 7.0}, FULL: {"rope_theta": 8.0}},
            },
            [7.0, 8.0, 7.0, 8.0],
            None,
        ),
    ],
    ids=str,
)
def test_rotary_positions_of_blocks(model_type, settings, wavelength, scaling):
    model = read(model_type, **settings)
    assert of_blocks(model.max_wavelength) == of_blocks(wavelength)
    assert of_blocks(model.scaling) == of_blocks(scaling)
    limit = scaling.max_length if isinstance(scaling, DynamicNTKScaling | LongRoPEScaling) else 32
    assert model.max_length == limit


@neutral
def test_ids_and_sizes():
    model = read("llama", eos_token_id=[7, 5], pad_token_id=5, head_dim=None, num_key_value_heads=None)
    assert (model.end_id, model.pad_id, model.key_dim, model.num_kv_heads) == (7, None, 4, 2)
    assert read("qwen3", head_dim=None).key_dim == 4
    assert read("gemma2", query_pre_attn_scalar=6).score.scale is None
    assert read("phi3", partial_rotary_factor=0.7).rotary_dim == 4
    assert read("gemma", hidden_activation=None, hidden_act="gelu").normalization == "pre"


SIZES = {"num_layers": 2, "num_heads": 2, "model_dim": 8, "hidden_dim": 6, "num_kv_heads": 1, "key_dim": 6}


@neutral
@pytest.mark.parametrize(
    ("make", "arguments", "model_type"),
    [
        (Llama, {}, "llama"),
        (Llama, {"relation": SlidingWindow(3)}, "mistral"),
        (Llama, {"qkv_bias": True}, "qwen2"),
        (Llama, {"qkv_bias": True, "relation": ["causal", SlidingWindow(3)]}, "qwen2"),
        (Llama, {"head_norm": True, "max_length": 9}, "qwen3"),
        (Llama, {"max_wavelength": [10.0, None]}, "smollm3"),
        (Llama, {"rotary_dim": 4}, "phi3"),
        (Gemma, {}, "gemma"),
        (Gemma, {"normalization": "sandwich", "soft_cap": 3.0}, "gemma2"),
        (Gemma, {"normalization": "sandwich", "head_norm": True, "max_wavelength": 1e6}, "gemma3_text"),
    ],
    ids=str,
)
def test_a_model_is_written_as_the_first_type_that_supports_it(make, arguments, model_type):
    config = interop.config_of(make(11, **SIZES, **arguments))
    assert config["model_type"] == model_type
    assert config["architectures"] == [ARCHITECTURES[model_type].class_name]
