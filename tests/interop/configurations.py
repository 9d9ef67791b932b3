"""Small `config.json`, as `save_pretrained` writes them, without settings that have no effect in tests."""

GPT_SIZES = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16}
CONFIGS = {
    "gpt2": {"model_type": "gpt2", "vocab_size": 12, **GPT_SIZES, "n_inner": None, "eos_token_id": 11},
    "openai-gpt": {"model_type": "openai-gpt", "vocab_size": 12, **GPT_SIZES, "afn": "gelu"},
    "marian": {
        "model_type": "marian",
        "vocab_size": 12,
        "d_model": 8,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
        "activation_function": "swish",
        "scale_embedding": True,
        "static_position_embeddings": True,
        "pad_token_id": 11,
        "decoder_start_token_id": 11,
        "eos_token_id": 0,
    },
}
T5_CONFIG = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "vocab_size": 12,
    "d_model": 8,
    "d_kv": 3,
    "d_ff": 16,
    "num_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
    "decoder_start_token_id": 0,
}
BERT_CONFIG = {
    "model_type": "bert",
    "vocab_size": 13,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 9,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "id2label": {"0": "a", "1": "b", "2": "c"},
}
VIT_CONFIG = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": [8, 12],
    "patch_size": 4,
    "hidden_act": "gelu",
    "qkv_bias": True,
    "id2label": {"0": "a", "1": "b", "2": "c"},
}
DECODER_CONFIG = {
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "eos_token_id": 2,
}


def decoder_config(model_type, settings):
    """Return the `config.json` of a decoder-only model, with the activation of its family."""
    gemma = model_type.startswith("gemma")
    activation = {"hidden_activation" if gemma else "hidden_act": "gelu_pytorch_tanh" if gemma else "silu"}
    return {"model_type": model_type, **DECODER_CONFIG, **activation, **settings}
