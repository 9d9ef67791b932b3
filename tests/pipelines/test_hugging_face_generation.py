"""generation_config.json of `transformers` as a sampler, constraints and limits."""

import json
import pathlib
import types
import warnings

import pytest

from keras_transformer.generation import (
    BannedWords,
    Beam,
    EndTokens,
    ForcedLastToken,
    ForcedPrefix,
    Greedy,
    MinNewTokens,
    NoRepeatNGram,
    RepetitionPenalty,
    Sample,
)
from keras_transformer.pipelines.hugging_face_generation import settings_from
from keras_transformer.pipelines.hugging_face_speech import prompt_of

PAD, END = 59, 0
TRANSLATOR = types.SimpleNamespace(pad_id=PAD, start_id=PAD, end_id=END, encode=lambda ids: ids)
DECODER = types.SimpleNamespace(pad_id=1, end_id=2)


@pytest.fixture
def read(tmp_path):
    """Return read(settings, model, config=…, **arguments), which gives the pipeline arguments for a folder."""

    def call(settings, model=TRANSLATOR, config=None, **given):
        (tmp_path / "config.json").write_text(json.dumps(config or {}))
        if settings is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(settings))
        return settings_from(tmp_path, model, given)

    return call


@pytest.mark.parametrize(
    ("settings", "sampler"),
    [
        ({}, Greedy()),
        ({"num_beams": 1, "temperature": 0.5, "top_k": 3}, Greedy()),
        ({"num_beams": 4}, Beam(4, 1.0, "length", "heuristic")),
        (
            {"num_beams": 6, "length_penalty": 2, "early_stopping": True, "num_return_sequences": 3},
            Beam(6, 2.0, "length", "num_beams", num_return=3),
        ),
        ({"num_beams": 2, "early_stopping": "never"}, Beam(2, 1.0, "length", True)),
        ({"do_sample": True}, Sample(top_k=50)),
        (
            {"do_sample": True, "temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.1},
            Sample(0.7, 0, 0.9, 0.1),
        ),
    ],
    ids=str,
)
def test_the_sampler_has_the_settings_of_the_folder(read, settings, sampler):
    found = read({**settings, "temperature": settings.get("temperature"), "transformers_version": "5"})
    assert found == {"generation": sampler, "constraints": []}


@pytest.mark.parametrize(
    ("settings", "constraints"),
    [
        ({"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0}, []),
        ({"repetition_penalty": 1.3}, [RepetitionPenalty(1.3)]),
        ({"no_repeat_ngram_size": 3}, [NoRepeatNGram(3)]),
        ({"bad_words_ids": [[PAD]]}, []),
        ({"bad_words_ids": [[PAD], [END], [5], [6, END]]}, [BannedWords([[5], [6, END]])]),
        ({"suppress_tokens": [7, END]}, [BannedWords([[7], [END]])]),
        ({"eos_token_id": [END, 8]}, [EndTokens([8])]),
        ({"eos_token_id": END}, []),
        ({"eos_token_id": [END, PAD, 8], "pad_token_id": PAD}, [EndTokens([8])]),
        ({"min_length": 6}, [MinNewTokens(5)]),
        ({"min_new_tokens": 6, "min_length": 3}, [MinNewTokens(6)]),
        ({"forced_bos_token_id": 7}, [ForcedPrefix([7])]),
        ({"forced_eos_token_id": END}, [ForcedLastToken([END])]),
        ({"forced_eos_token_id": [END, 8]}, [ForcedLastToken([END, 8])]),
    ],
    ids=str,
)
def test_constraints_have_the_settings_of_the_folder(read, settings, constraints):
    assert read(settings)["constraints"] == constraints


def test_lengths_of_an_encoder_decoder_count_the_start_token(read):
    assert read({"max_length": 512})["max_new_tokens"] == 511
    assert read({"max_length": 512, "max_new_tokens": 9})["max_new_tokens"] == 9
    assert "max_new_tokens" not in read({})
    # A minimum length beyond the limit never ends; a forced end token still ends the output.
    assert read({"max_length": 5, "min_length": 9})["constraints"] == [MinNewTokens(4)]
    found = read({"min_length": 9, "forced_eos_token_id": END}, max_new_tokens=4)
    assert found["constraints"] == [MinNewTokens(3), ForcedLastToken([END])]


def test_config_json_is_the_fallback(read, tmp_path):
    legacy = {"num_beams": 4, "max_length": 9, "bad_words_ids": [[5]], "vocab_size": 60}
    expected = {
        "generation": Beam(4, 1.0, "length", "heuristic"),
        "constraints": [BannedWords([[5]])],
        "max_new_tokens": 8,
    }
    assert read(None, config=legacy) == expected
    assert read({"max_new_tokens": 3}, config=legacy) == {
        "generation": Greedy(),
        "constraints": [],
        "max_new_tokens": 3,
    }


def test_arguments_override_the_settings_of_the_folder(read):
    settings = {"num_beams": 4, "max_length": 9, "repetition_penalty": 1.2, "diversity_penalty": 0.5}
    given = {"generation": "greedy", "constraints": [], "max_new_tokens": 3, "max_source_tokens": 7}
    assert read(settings, **given) == given


UNSUPPORTED = {
    "typical_p": 0.9,
    "diversity_penalty": 0.5,
    "sequence_bias": [[[5], 1.0]],
    "stop_strings": ["."],
    "decoder_start_token_id": 4,
    "eos_token_id": 9,
    "repetition_penalty": 0.8,
}


def test_unsupported_settings_are_listed_in_one_warning(read):
    with pytest.warns(UserWarning, match=r"generation_config.json.*not supported: ") as caught:
        found = read({**UNSUPPORTED, "do_sample": True, "top_k": 0})
    assert found["generation"] == Sample()
    (warning,) = caught
    assert all(f"{name}={value!r}" in str(warning.message) for name, value in UNSUPPORTED.items())
    with pytest.warns(UserWarning, match="not supported: do_sample=True, renormalize_logits=True$"):
        read({"num_beams": 2, "do_sample": True, "renormalize_logits": True, "typical_p": 1.0})


def test_settings_without_effect_do_not_warn(read):
    neutral = {
        "typical_p": 0.9,  # settings of sampling
        "diversity_penalty": 0.0,
        "num_beam_groups": 1,
        "encoder_no_repeat_ngram_size": 0,
        "guidance_scale": None,
        "use_cache": True,
        "pad_token_id": 3,
        "bos_token_id": 4,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(neutral)


def test_settings_that_count_prompt_tokens_warn(read):
    settings = {"max_length": 30, "min_length": 3, "no_repeat_ngram_size": 2, "bad_words_ids": [[5], [6, 7]]}
    with pytest.warns(UserWarning, match="generation settings that are not fully supported") as caught:
        found = read(settings, DECODER)
    (warning,) = caught
    assert str(warning.message).endswith(
        "not supported: max_length=30, min_length=3; applied to generated tokens, not to the prompt: "
        "no_repeat_ngram_size=2, bad_words_ids=[[5], [6, 7]]"
    )
    assert found == {
        "generation": Greedy(),
        "constraints": [NoRepeatNGram(2), BannedWords([[5], [6, 7]])],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read({"max_new_tokens": 5, "min_new_tokens": 2, "bad_words_ids": [[5]]}, DECODER)
    assert found == {
        "generation": Greedy(),
        "constraints": [BannedWords([[5]]), MinNewTokens(2)],
        "max_new_tokens": 5,
    }


def test_an_end_token_that_is_padding_too_may_be_part_of_a_banned_word(read):
    model = types.SimpleNamespace(pad_id=2, end_id=2)
    with pytest.warns(UserWarning, match="bad_words_ids"):
        found = read({"bad_words_ids": [[2], [5, 2]]}, model)
    assert found["constraints"] == [BannedWords([[5, 2]])]


@pytest.mark.parametrize(
    "settings",
    [
        {"num_beams": 2, "early_stopping": "soon"},
        {"do_sample": True, "temperature": -1.0},
        {"no_repeat_ngram_size": -1},
    ],
    ids=str,
)
def test_settings_out_of_range_are_rejected(read, settings):
    with pytest.raises(ValueError, match=r"` must be .*Received: "):
        read(settings)


WHISPER = json.loads(
    (pathlib.Path(__file__).parents[1] / "interop" / "settings" / "whisper.json").read_text()
)


def prefix_of(folder):
    """Return the ids before a text of the language and the task of a folder."""
    prompt = prompt_of(folder)
    names = [("languages", "language"), ("tasks", "task")]
    ids = [prompt[known][prompt[name]] for known, name in names if name in prompt]
    return [*ids, *prompt.get("prefix_ids", [])]


@pytest.mark.parametrize("case", WHISPER, ids=lambda case: str(case["prefix"]))
def test_the_ids_before_a_text_of_whisper_equal_transformers(case, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(case["settings"]))
    assert prefix_of(tmp_path) == case["prefix"]


def test_whisper_without_a_language_detects_it_and_has_the_forced_task(tmp_path):
    settings = {**WHISPER[0]["settings"], "language": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    assert "language" not in prompt_of(tmp_path)
    assert prefix_of(tmp_path) == [23, 25]
    (tmp_path / "config.json").write_text(json.dumps({"forced_decoder_ids": [[1, None], [2, 24]]}))
    assert prefix_of(tmp_path) == [24, 25]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"language": "klingon"}, "a language among those of lang_to_id.*language='klingon'"),
        ({"language": "german"}, "a language among those of lang_to_id.*language='german'"),
        ({"task": "sing"}, "a task among those of task_to_id.*task='sing'"),
        ({"language": None, "forced_decoder_ids": [[2, 24]]}, "forced_decoder_ids=..2, 24.."),
        ({"language": None, "forced_decoder_ids": [7]}, "pairs of a position, 1, 2, …, and an id"),
    ],
    ids=str,
)
def test_other_languages_and_tasks_of_whisper_are_rejected(change, message, tmp_path):
    settings = {**WHISPER[0]["settings"], **change}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message):
        prefix_of(tmp_path)


def test_timestamps_and_unknown_settings_are_reported(read):
    settings = {"return_timestamps": True, "use_cache": True, "assistant_lookbehind": 3, "creativity": 0.5}
    with pytest.warns(UserWarning, match=r"not supported: return_timestamps=True, creativity=0\.5$"):
        read(settings)


def test_unknown_keys_of_the_config_are_not_settings_of_generation(read):
    read(None, config={"creativity": 0.5})
