"""Settings of folders of `transformers` that no argument of a model has: known to have no effect, or not supported."""

import pathlib
import warnings
from collections.abc import Collection, Mapping
from typing import Any

# Generation. Unsupported settings and their neutral values; None is always neutral.
SAMPLER_UNSUPPORTED = {
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "penalty_alpha": 0.0,
    "dola_layers": None,
    "guidance_scale": 1.0,
}
BEAM_UNSUPPORTED = {"renormalize_logits": False}
SAMPLING_UNSUPPORTED = {"typical_p": 1.0, "top_h": None, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
CONSTRAINTS_UNSUPPORTED = {
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "constraints": None,
    "force_words_ids": None,
    "watermarking_config": None,
    "token_healing": False,
    "stop_strings": None,
    "max_time": None,
}
ANSWER_UNSUPPORTED = {"return_timestamps": False}
# Settings that are read, by a pipeline or its model.
_READ = {
    "bad_words_ids",
    "decoder_start_token_id",
    "do_sample",
    "early_stopping",
    "eos_token_id",
    "forced_bos_token_id",
    "forced_decoder_ids",
    "forced_eos_token_id",
    "lang_to_id",
    "language",
    "length_penalty",
    "max_initial_timestamp_index",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "no_timestamps_token_id",
    "num_beams",
    "num_return_sequences",
    "pad_token_id",
    "prev_sot_token_id",
    "repetition_penalty",
    "suppress_tokens",
    "task",
    "task_to_id",
    "temperature",
    "top_k",
    "top_p",
}
# Settings that do not change which ids are generated: of caches, compilation, drafts, returned values and timestamps.
_WITHOUT_EFFECT = {
    "_from_model_config",
    "alignment_heads",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "disable_compile",
    "is_assistant",
    "is_multilingual",
    "low_memory",
    "max_cache_len",
    "max_matching_ngram_size",
    "median_filter_width",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "remove_invalid_values",
    "return_dict_in_generate",
    "return_legacy_cache",
    "speculation_type",
    "target_lookbehind",
    "transformers_version",
    "use_cache",
    "use_mtp",
}
GENERATION = frozenset(
    {
        *_READ,
        *_WITHOUT_EFFECT,
        *SAMPLER_UNSUPPORTED,
        *BEAM_UNSUPPORTED,
        *SAMPLING_UNSUPPORTED,
        *CONSTRAINTS_UNSUPPORTED,
        *ANSWER_UNSUPPORTED,
    }
)

# Keys of each `config.json` that change no output at inference: of names, training, memory and libraries.
_COMMON = frozenset(
    {
        "architectures",
        "attn_implementation",
        "auto_map",
        "chunk_size_feed_forward",
        "dtype",
        "finetuning_task",
        "gradient_checkpointing",
        "id2label",
        "initializer_factor",
        "initializer_range",
        "is_encoder_decoder",
        "keep_in_fp32_modules",
        "label2id",
        "language",
        "model_type",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "problem_type",
        "pruned_heads",  # a matter of shapes, which are checked
        "quantization_config",  # see `quantized_files`
        "return_dict",
        "sbert_ce_default_activation_function",  # see `sentence_transformers`
        "sentence_transformers",
        "task_specific_params",
        "tf_legacy_loss",
        "tie_word_embeddings",  # read with the weights
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
    }
)
# Ids of special tokens, which the tokenizer has, and rates of training.
_ENCODER = {
    "bos_token_id",
    "classifier_dropout",
    "cls_token_id",
    "eos_token_id",
    "mask_token_id",
    "sep_token_id",
}
# Of the first version of BERT's files.
_BERT = {
    *_ENCODER,
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
}
_SEQ2SEQ = {
    "bos_token_id",
    "classif_dropout",
    "classifier_dropout",
    "decoder_layerdrop",
    "encoder_layerdrop",
    "gradient_checkpointing",
    "init_std",
    "is_decoder",
    "num_hidden_layers",  # that of the encoder
}
# Of classes that were one class with BART's, in its first files.
_OLDER_BART = {"add_bias_logits", "extra_pos_embeddings", "save_step"}
_SINUSOIDAL = {*_SEQ2SEQ, *_OLDER_BART, "max_position_embeddings"}  # a table that is computed
_DECODER = {"bos_token_id", "pretraining_tp"}
_GPT = {
    "bos_token_id",
    "n_ctx",
    "n_special",
    "predict_special_tokens",
    "reorder_and_upcast_attn",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
}
_T5 = {
    "bos_token_id",
    "classifier_dropout",
    "dense_act_fn",  # follows from `feed_forward_proj`, as does the next
    "is_gated_act",
    "is_decoder",
    "n_positions",
    "scale_decoder_outputs",  # read with `tie_word_embeddings`
}
# Those of each model type.
_OF_TYPE: Mapping[str, Collection[str]] = {
    "albert": {
        *_ENCODER,
        "classifier_dropout_prob",
        "down_scale_factor",
        "gap_size",
        "layers_to_keep",
        "net_structure_type",
        "num_memory_blocks",
    },
    "bart": {*_SEQ2SEQ, *_OLDER_BART},
    "bert": _BERT,
    "camembert": _ENCODER,
    "distilbert": {*_ENCODER, "qa_dropout", "seq_classif_dropout", "tie_weights_"},
    "gemma": _DECODER,
    "gemma2": {*_DECODER, "hidden_act"},  # they read `hidden_activation`
    "gemma3_text": {*_DECODER, "hidden_act"},
    "gpt2": _GPT,
    "llama": {*_DECODER, "is_llama_config", "rope_interleaved"},
    "m2m_100": _SINUSOIDAL,
    "marian": _SINUSOIDAL,
    "mbart": {*_SEQ2SEQ, *_OLDER_BART},
    "mistral": _DECODER,
    "modernbert": {
        *_ENCODER,
        "deterministic_flash_attn",
        "initializer_cutoff_factor",
        "layer_types",  # read with `global_attn_every_n_layers`
        "position_embedding_type",
        "reference_compile",
        "repad_logits_with_grad",
        "rope_parameters",  # read with `global_rope_theta`
        "sparse_pred_ignore_index",
        "sparse_prediction",
    },
    "mt5": _T5,
    "openai-gpt": _GPT,
    "pegasus": _SINUSOIDAL,
    "phi3": {*_DECODER, "embd_pdrop", "resid_pdrop"},
    "qwen2": _DECODER,
    "qwen3": _DECODER,
    "roberta": _ENCODER,
    "smollm3": _DECODER,
    "t5": _T5,
    "vit": {"encoder_stride", "pooler_act", "pooler_output_size"},
    "whisper": {
        *_SEQ2SEQ,
        "apply_spec_augment",
        "classifier_proj_size",
        "mask_feature_length",
        "mask_feature_min_masks",
        "mask_feature_prob",
        "mask_time_length",
        "mask_time_min_masks",
        "mask_time_prob",
        "median_filter_width",
        "use_weighted_layer_sum",
    },
    "xlm-roberta": _ENCODER,
}


def without_effect(model_type: str) -> set[str]:
    """Return the keys of a model type's `config.json` that change no output, besides those of all."""
    return set(_OF_TYPE.get(model_type, ()))


def warn_of_unknown(path: pathlib.Path, config: Mapping[str, Any], read: Collection[str]) -> None:
    """Warn of the keys of a `config.json` that are neither read nor known to change no output.

    Args:
        path: its path.
        config: its content.
        read: the keys that the architecture reads or checks.
    """
    known = {*read, *_COMMON, *without_effect(config["model_type"]), *GENERATION}
    unknown = {
        name: value
        for name, value in config.items()
        if name not in known and value is not None and not name.startswith("_")
    }
    if unknown:
        shown = ", ".join(f"{name}={value!r}" for name, value in sorted(unknown.items()))
        warnings.warn(f"`{path}` has settings that are not known, and not applied: {shown}", stacklevel=4)
