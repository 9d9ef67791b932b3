"""Settings of published models and models that are not supported, and other invalid arguments of `interop`."""

import json
import pathlib

import pytest

from keras_transformer import interop, models
from keras_transformer.interop.hub import local_folder
from keras_transformer.models import BERT, GAT, GPT, T5, Gemma, Llama, Transformer
from keras_transformer.relations import SlidingWindow, Strided
from tests.interop.configurations import BERT_CONFIG, CONFIGS, T5_CONFIG, VIT_CONFIG, decoder_config

from .table import InvalidCalls, must

invalid = InvalidCalls()


def loaded(config):
    """Load a model from a folder without weights."""
    pathlib.Path("config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    interop.from_hugging_face(".")


def must_have(expectation, **settings):
    """Return a row for each setting: "`config.json` of … must have … as name. Received: name=value"."""
    return [
        ({name: value}, f"…must have {expectation} as {name}. Received: {name}={value!r}")
        for name, value in settings.items()
    ]


INTEGER, NUMBER, INTEGER_OR_TWO = "an integer", "a number", "an integer or two"
for name, config, rows in (
    (
        "gpt2",
        CONFIGS["gpt2"],
        [
            ({"model_type": "mamba"}, "…model_type among …Received: model_type='mamba'"),
            ({"activation_function": "tanh"}, "…an activation among …Received: activation_function='tanh'"),
            must_have("a string", activation_function=3),
            ({"scale_attn_weights": False}, "…must have scale_attn_weights=True…scale_attn_weights=False"),
            *[({size: None}, f"…must have '{size}'. Received: none") for size in ("n_head", "n_embd")],
            must_have(INTEGER, n_positions="16", n_embd="8", vocab_size={}),
            must_have(NUMBER, attn_pdrop="0.1", resid_pdrop=float("nan"), layer_norm_epsilon=[1e-5]),
        ],
    ),
    ("openai-gpt", CONFIGS["openai-gpt"], [must_have(INTEGER, n_layer=2.0, n_head=True)]),
    (
        "marian",
        CONFIGS["marian"],
        [
            ({"vocab_size": None}, "…must have 'vocab_size'. Received: none"),
            must_have(INTEGER, decoder_layers="2"),
            ({"decoder_vocab_size": 9}, "…one value for vocab_size and decoder_vocab_size"),
        ],
    ),
    (
        "t5",
        T5_CONFIG,
        [
            must_have(INTEGER, num_decoder_layers=2.5),
            must_have(NUMBER, dropout_rate="0.1"),
            must_have("a boolean", tie_word_embeddings="no"),
            (
                {"feed_forward_proj": "gated-tanh"},
                "…an activation among …Received: feed_forward_proj='gated-tanh'",
            ),
            ({"is_encoder_decoder": False}, "…must have is_encoder_decoder=True"),
            ({"num_layers": None}, "…must have 'num_layers'. Received: none"),
        ],
    ),
    (
        "bert",
        {**BERT_CONFIG, "architectures": ["BertForSequenceClassification"]},
        [
            ({"architectures": ["BertLMHeadModel"]}, "…must have architectures with one of …BertLMHeadModel"),
            ({"is_decoder": True}, "…must have is_decoder=False"),
            must_have(INTEGER, hidden_size="8", num_labels="3"),
            must_have("a dictionary", id2label="abc"),
            ({"hidden_act": "mish"}, "…activation among …Received: hidden_act='mish'"),
        ],
    ),
    (
        "vit",
        VIT_CONFIG,
        [
            *[must_have(INTEGER_OR_TWO, patch_size=size) for size in ("4", [4, 4, 4])],
            must_have(INTEGER_OR_TWO, image_size=[8, 1.5]),
            must_have("a boolean", qkv_bias="yes"),
        ],
    ),
):
    invalid(
        lambda config, **settings: loaded({**config, **settings}),
        {"config": config},
        *rows,
        name=f"config of {name}",
    )

SLIDING, FULL = "sliding_attention", "full_attention"
TYPES = [SLIDING, FULL, FULL, SLIDING]
ROPE = "rope_scaling"
YARN = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16, "attention_factor": 1.5}
POSITIVE_NUMBER, POSITIVE_INTEGER = "a positive number", "a positive integer"
INTEGERS = "an integer or a list of integers"
EACH_LAYER = "for each layer as"
for model_type, rows in {
    "llama": [
        ({"attention_bias": True}, "…must have attention_bias=False"),
        ({"mlp_bias": True}, "…mlp_bias=False"),
        must_have("1", partial_rotary_factor=0.5),
        ({ROPE: {"rope_type": "proportional"}}, "…a rope_type among …'llama3'…rope_type='proportional'"),
        (
            {
                ROPE: {"type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "default", "rope_theta": 5.0},
            },
            "…rope_parameters or rope_scaling, not two that differ",
        ),
        *[
            ({ROPE: {"type": "linear", **factor}}, "…valid settings of rope_type='linear'")
            for factor in ({}, {"factor": "2"})
        ],
        ({ROPE: {**YARN, "mscale": 0.7}}, "…no other settings of …Received: mscale=0.7"),
        ({ROPE: {**YARN, "truncate": False}}, "…Received: truncate=False"),
        ({ROPE: [2.0]}, "…a dictionary as rope_parameters or rope_scaling"),
        must_have(POSITIVE_NUMBER, rope_theta="5"),
        must_have(POSITIVE_INTEGER, max_position_embeddings="32"),
        *[must_have(INTEGERS, eos_token_id=ids) for ids in ("2", [])],
        must_have(INTEGER, pad_token_id=0.5, head_dim=2.5),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "…with 'LlamaForCausalLM'. Received: …Sequence",
        ),
    ],
    "mistral": [
        ({"hidden_act": "gelu"}, "…hidden_act='silu', as in Llama. Received: hidden_act='gelu'"),
        must_have(POSITIVE_INTEGER, sliding_window=0),
        ({"layer_types": TYPES}, "…no layer_types, or …Received: layer_types="),
    ],
    "phi3": [
        must_have("a number up to 1", partial_rotary_factor=1.5),
        ({ROPE: {"type": "linear", "factor": 2.0}}, "…rope_type among ['default', 'longrope']"),
    ],
    "qwen2": [must_have(INTEGERS, eos_token_id=None), must_have(INTEGER, max_window_layers=None)],
    "qwen2_moe": [({}, "…a model_type among …'qwen2'…Received: model_type='qwen2_moe'")],
    "qwen3": [
        ({"attention_bias": True}, "…attention_bias=False, as in Llama. Received: attention_bias=True")
    ],
    "smollm3": [({"no_rope_layers": [1, 0]}, f"…{EACH_LAYER} no_rope_layers")],
    "gemma": [({"hidden_activation": "silu"}, "…'gelu_pytorch_tanh' as hidden_act. Received: …'silu'")],
    "gemma2": [
        ({"attention_bias": True}, "…attention_bias=False, as in Gemma. Received: attention_bias=True"),
        ({"hidden_activation": "gelu"}, "…hidden_activation='gelu_pytorch_tanh'…Received: …'gelu'"),
        ({"attn_logit_softcapping": -1}, "…positive number or null as attn_logit_softcapping"),
        ({"query_pre_attn_scalar": "6"}, "…a positive number as query_pre_attn_scalar"),
        ({"tie_word_embeddings": False}, "…tie_word_embeddings=True"),
        ({"layer_types": ["chunked_attention"] * 4}, f"…{EACH_LAYER} layer_types. Received: …chunked"),
        ({"layer_types": 4}, f"…{EACH_LAYER} layer_types. Received: layer_types=4"),
        ({"layer_types": [FULL]}, f"…{EACH_LAYER} layer_types"),
        ({"sliding_window": None}, "…a window for 'sliding_attention'. Received: sliding_window=None"),
    ],
    "gemma3_text": [
        ({"use_bidirectional_attention": True}, "…use_bidirectional_attention=False"),
        ({"attn_logit_softcapping": 50.0}, "…attn_logit_softcapping=None"),
        *[
            ({"rope_parameters": parameters}, "…rope_parameters for 'full_attention' and")
            for parameters in ({"rope_theta": 5.0}, [5.0])
        ],
        must_have("a dictionary", rope_scaling=8.0),
        must_have(POSITIVE_INTEGER, sliding_window_pattern=0),
    ],
}.items():
    invalid(
        lambda model_type, **settings: loaded(decoder_config(model_type, settings)),
        {"model_type": model_type},
        *rows,
        name=f"config of {model_type}",
    )

invalid(
    loaded,
    {},
    ({"config": CONFIGS["gpt2"]}, "`folder` must hold model.safetensors or pytorch_model.bin, or the"),
    name="from_hugging_face",
    error=FileNotFoundError,
)
invalid(loaded, {}, ({"config": "{"}, "…config.json` must be JSON"), name="from_hugging_face")
invalid(
    lambda source: interop.from_hugging_face(source),
    {},
    ({"source": "."}, "`folder` must hold config.json"),
    name="from_hugging_face",
    error=FileNotFoundError,
)
invalid(
    lambda source: pytest.importorskip("huggingface_hub") and local_folder(source),
    {},
    *[
        ({"source": source}, f"… Received: {source!r}")
        for source in ("a/b/c", "../model", "/no/folder", "", "a b/c")
    ],
    name="local_folder",
    error=FileNotFoundError,
)
invalid(
    lambda **options: interop.from_hugging_face(".", **options),
    {},
    must("be None for a folder", revision="main"),
    must("be one of", precision="int4"),
    (
        {"precision": "float16", "dtype": "float32"},
        "`precision` must be None or 'int8' if `dtype` is given… Received: ",
    ),
    name="from_hugging_face",
)
SIZES = {"num_layers": 2, "num_heads": 2, "model_dim": 8, "hidden_dim": 6}


def written(model, *sizes, **arguments):
    """Write a model that has no class in `transformers`."""
    pytest.importorskip("safetensors")
    interop.to_hugging_face(model(*sizes, **arguments), "folder")


MARIAN = {"normalization": "post", "epsilon": 1e-5, "position_layout": "halves", "output_bias": True}
WINDOW = SlidingWindow(2)
for model, rows in {
    GPT: [
        ({"position_encoding": "rotary"}, "position_encoding="),
        ({"norm": "rms"}, "norm='rms'"),
        ({"normalization": "sandwich"}, "normalization='sandwich'"),
        ({"activation": "swiglu"}, "activation='swiglu'"),
    ],
    Transformer: [
        ({}, "epsilon=1e-06, position_layout='interleaved'"),
        (
            {**MARIAN, "encoder_relation": SlidingWindow(2, 2)},
            "encoder_relation=SlidingWindow(left=2, right=2)",
        ),
    ],
    T5: [({"key_dim": 2, "decoder_relation": WINDOW}, "decoder_relation=SlidingWindow(left=2, right=0)")],
    Llama: [
        ({"relation": Strided(2) & SlidingWindow(3)}, "relation="),
        ({"relation": [WINDOW, SlidingWindow(3)]}, ""),
        ({"max_wavelength": [10.0, 20.0]}, "max_wavelength="),
        ({"qkv_bias": True, "head_norm": True}, ""),
        ({"scaling": {"name": "ntk", "factor": 2.0}}, "scaling=NTKScaling"),
    ],
    Gemma: [({"soft_cap": 3.0}, "soft_cap=3.0"), ({"head_norm": True}, "")],
}.items():
    class_ = model.__name__
    invalid(
        lambda model, **arguments: written(model, 9, **SIZES, **arguments),
        {"model": model},
        *[(arguments, f"`model` must … Received: a {class_} with {message}") for arguments, message in rows],
        name=f"to_hugging_face of a {class_}",
    )
invalid(
    lambda: written(GAT, 4, 2),
    {},
    ({}, "`model` must be of a class among …'GPT'… Received: a GAT"),
    name="to_hugging_face",
)
invalid(
    lambda head, encoder=(), **arguments: written(
        lambda: head(BERT(13, 1, 2, 8, max_length=9, **dict(encoder)), **arguments)
    ),
    {},
    *[
        (
            {"head": models.MaskedLanguageModel, "encoder": {name: value}},
            f"`model` must be supported by …{name}=",
        )
        for name, value in (("normalization", "pre"), ("relation", "causal"))
    ],
    (
        {"head": models.SequenceClassifier, "num_classes": 3, "pooling": "mean"},
        "`model` must be supported by …pooling='mean'",
    ),
    *[
        ({"head": models.MaskedLanguageModel, name: value}, f"`model` must be supported by …{name}=")
        for name, value in (("head_activation", "relu"), ("head_epsilon", 1e-3))
    ],
    name="to_hugging_face of a BERT",
)
