"""Generation settings from a folder of Hugging Face's `transformers`."""

import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

from keras_transformer import generation
from keras_transformer.generation.constraints import Constraint
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.generation.validation import padding_value
from keras_transformer.interop.settings import (
    ANSWER_UNSUPPORTED,
    BEAM_UNSUPPORTED,
    CONSTRAINTS_UNSUPPORTED,
    GENERATION,
    SAMPLER_UNSUPPORTED,
    SAMPLING_UNSUPPORTED,
)
from keras_transformer_serving import files

GENERATION_CONFIG = "generation_config.json"
_CONFIG = "config.json"

_EARLY_STOPPING = {True: "num_beams", False: "heuristic", "never": True}
_TOP_K = 50  # the default of `transformers`


def settings_from(folder: pathlib.Path, model: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments `generation`, `constraints` and `max_new_tokens` of a pipeline that generates.

    They are read from generation_config.json or, without that file, from config.json, where older versions of
    `transformers` store them. There, `max_length` and `min_length` of an encoder–decoder include the start token, and
    many settings of a decoder-only model also apply to the prompt. Settings without a counterpart are listed in one
    `UserWarning`.

    Args:
        folder: the folder with generation_config.json or config.json.
        model: the generating model.
        arguments: the caller's arguments, which override the folder's settings.

    Returns:
        The pipeline's arguments, including `arguments`.
    """
    path = folder / GENERATION_CONFIG
    path = path if path.is_file() else folder / _CONFIG
    config = {name: value for name, value in files.read_json(path).items() if value is not None}
    settings: dict[str, Any] = {}
    unsupported = _changed(config, ANSWER_UNSUPPORTED)
    if path.name == GENERATION_CONFIG:  # config.json has the settings of the model as well
        unsupported |= {name: value for name, value in config.items() if name not in GENERATION}
    without_prompt: dict[str, Any] = {}
    if "generation" not in arguments:
        settings["generation"] = _sampler(config)
        unsupported.update(_unsupported_sampler_settings(config))
    if "max_new_tokens" not in arguments:
        settings.update(_max_new_tokens(config, model))
        if "max_new_tokens" not in settings:  # `max_length` includes the prompt
            unsupported.update(_changed(config, {"max_length": None}))
    if "constraints" not in arguments:
        limit = arguments.get("max_new_tokens", settings.get("max_new_tokens"))
        settings["constraints"] = _constraints(config, model, limit)
        unsupported.update(_unsupported_constraints(config, model))
        without_prompt.update({} if is_encoder_decoder(model) else _settings_that_count_prompts(config))
    _warn(
        path, {"not supported": unsupported, "applied to generated tokens, not to the prompt": without_prompt}
    )
    return {**settings, **arguments}


def generation_config_of(pipeline: Any) -> dict[str, Any]:
    """Return the `generation_config.json` of a pipeline for `transformers`, the inverse of `settings_from`.

    Settings without a counterpart are omitted: a beam with another normalisation than "length" or with diversity,
    contrastive search, forced words, and the seed of sampling.
    """
    model = pipeline.model
    config: dict[str, Any] = {
        "eos_token_id": [model.end_id],
        "pad_token_id": padding_value(model),
        "max_new_tokens": pipeline.max_new_tokens,
    }
    never = {model.pad_id, getattr(model, "start_id", None)} - {model.end_id, None}
    if never:
        config["suppress_tokens"] = sorted(never)
    if is_encoder_decoder(model):
        config["decoder_start_token_id"] = model.start_id
    if language := getattr(pipeline, "target_language", None):
        is_start = pipeline.tokenizer.language_is_start
        name = "decoder_start_token_id" if is_start else "forced_bos_token_id"
        config[name] = pipeline.languages[language]
    config |= _sampler_config(pipeline.sampler)
    for constraint in pipeline.constraints:
        match constraint:
            case generation.EndTokens(end_ids):
                config["eos_token_id"] += end_ids
            case generation.BannedWords(words):
                config["bad_words_ids"] = [list(word) for word in words]
            case generation.MinNewTokens(count):
                config["min_new_tokens"] = count
            case generation.RepetitionPenalty(factor):
                config["repetition_penalty"] = factor
            case generation.NoRepeatNGram(size):
                config["no_repeat_ngram_size"] = size
            case generation.ForcedLastToken(token_ids):
                config["forced_eos_token_id"] = list(token_ids)
            case generation.ForcedPrefix((first,)) if is_encoder_decoder(model):
                config["forced_bos_token_id"] = first
            case generation.Timestamps(no_timestamps_id, max_initial):
                config["no_timestamps_token_id"] = no_timestamps_id
                config["max_initial_timestamp_index"] = max_initial
    return config


def _sampler_config(sampler: Any) -> dict[str, Any]:
    num_return = {"num_return_sequences": sampler.num_return} if sampler.num_return > 1 else {}
    if isinstance(sampler, generation.Beam) and sampler.normalization == "length" and not sampler.diversity:
        hf_values = {value: hf_value for hf_value, value in _EARLY_STOPPING.items()}
        return {
            "num_beams": sampler.num_beams,
            "length_penalty": sampler.length_penalty,
            # True (stop early without changing results) and False (do not stop early) both correspond to "never".
            "early_stopping": hf_values.get(sampler.early_stopping, "never"),
            **num_return,
        }
    if isinstance(sampler, generation.Sample):
        names = ("temperature", "top_k", "top_p", "min_p")
        return {"do_sample": True, **{name: getattr(sampler, name) for name in names}, **num_return}
    return {}


def _warn(path: pathlib.Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
    messages = [
        f"{reason}: " + ", ".join(f"{name}={value!r}" for name, value in named.items())
        for reason, named in settings.items()
        if named
    ]
    if messages:
        warnings.warn(
            f"`{path}` has generation settings that are not fully supported. {'; '.join(messages)}",
            stacklevel=7,  # of the caller of `from_hugging_face`
        )


def _sampler(config: Mapping[str, Any]) -> Any:
    num_beams, num_return = config.get("num_beams", 1), config.get("num_return_sequences", 1)
    if num_beams > 1:
        early_stopping = config.get("early_stopping", False)
        return generation.Beam(
            num_beams,
            float(config.get("length_penalty", 1.0)),
            "length",
            early_stopping=_EARLY_STOPPING.get(early_stopping, early_stopping),
            num_return=num_return,
        )
    if not config.get("do_sample", False):
        return generation.Greedy()
    return generation.Sample(
        float(config.get("temperature", 1.0)),
        config.get("top_k", _TOP_K),
        float(config.get("top_p", 1.0)),
        float(config.get("min_p", 0.0)),
        num_return=num_return,
    )


def _unsupported_sampler_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    samples, beams = config.get("do_sample", False), config.get("num_beams", 1) > 1
    neutral = {
        **SAMPLER_UNSUPPORTED,
        **(SAMPLING_UNSUPPORTED if samples else {}),
        **({"do_sample": False, **BEAM_UNSUPPORTED} if beams else {}),
    }
    return _changed(config, neutral)


def _max_new_tokens(config: Mapping[str, Any], model: Any) -> dict[str, int]:
    if "max_new_tokens" in config:
        return {"max_new_tokens": config["max_new_tokens"]}
    if "max_length" in config and is_encoder_decoder(model):
        return {"max_new_tokens": config["max_length"] - 1}
    return {}


def _constraints(config: Mapping[str, Any], model: Any, limit: int | None) -> list[Constraint]:
    constraints: list[Constraint] = []
    if (factor := config.get("repetition_penalty", 1.0)) > 1:
        constraints.append(generation.RepetitionPenalty(factor))
    if size := config.get("no_repeat_ngram_size", 0):
        constraints.append(generation.NoRepeatNGram(size))
    if words := _banned_words(config, model):
        constraints.append(generation.BannedWords(words))
    # A model with a padding id never generates it.
    if more := [id_ for id_ in _end_ids(config, model) if id_ not in (model.end_id, model.pad_id)]:
        constraints.append(generation.EndTokens(more))
    last = _as_list(config.get("forced_eos_token_id"))
    minimum = config.get(
        "min_new_tokens", config.get("min_length", 0) - 1 if is_encoder_decoder(model) else 0
    )
    if (
        limit is not None
    ):  # in `transformers`, tokens forced at the limit take precedence over a minimum length
        minimum = min(minimum, limit - bool(last))
    if minimum > 0:
        constraints.append(generation.MinNewTokens(minimum))
    if "forced_bos_token_id" in config and is_encoder_decoder(model):
        constraints.append(generation.ForcedPrefix([config["forced_bos_token_id"]]))
    if last:
        constraints.append(generation.ForcedLastToken(last))
    if (without_timestamps := config.get("no_timestamps_token_id")) is not None:
        constraints.append(
            generation.Timestamps(without_timestamps, config.get("max_initial_timestamp_index"))
        )
    return constraints


def _unsupported_constraints(config: Mapping[str, Any], model: Any) -> dict[str, Any]:
    unsupported = _changed(config, CONSTRAINTS_UNSUPPORTED)
    if config.get("repetition_penalty", 1.0) < 1:
        unsupported["repetition_penalty"] = config["repetition_penalty"]
    if model.end_id not in _end_ids(config, model):
        unsupported["eos_token_id"] = config["eos_token_id"]
    if is_encoder_decoder(model):
        if config.get("decoder_start_token_id", model.start_id) != model.start_id:
            unsupported["decoder_start_token_id"] = config["decoder_start_token_id"]
        return unsupported
    if "forced_bos_token_id" in config:  # in `transformers`, only after a prompt of one token
        unsupported["forced_bos_token_id"] = config["forced_bos_token_id"]
    if "min_new_tokens" not in config:
        unsupported.update(_changed(config, {"min_length": 0}))
    return unsupported


def _settings_that_count_prompts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of constraints that also apply to the prompt in `transformers`."""
    settings = _changed(config, {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0})
    if any(len(word) > 1 for word in config.get("bad_words_ids", ())):
        settings["bad_words_ids"] = config["bad_words_ids"]
    return settings


def _banned_words(config: Mapping[str, Any], model: Any) -> list[list[int]]:
    """Return the banned words, except padding, the start token and single end tokens, which are never generated."""
    never = {model.pad_id, getattr(model, "start_id", None)} - {model.end_id}
    ends = [[id_] for id_ in _end_ids(config, model)]
    words = [word for word in config.get("bad_words_ids", ()) if word not in ends]
    words += [[id_] for id_ in config.get("suppress_tokens", ())]
    return [word for word in words if not never & set(word)]


def _end_ids(config: Mapping[str, Any], model: Any) -> list[int]:
    return _as_list(config.get("eos_token_id", model.end_id))


def _as_list(ids: Any) -> list[int]:
    return [] if ids is None else list(ids) if isinstance(ids, list) else [ids]


def _changed(config: Mapping[str, Any], neutral: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name, value in neutral.items() if name in config and config[name] != value}
