"""The tokens before the texts of Whisper, from a folder of Hugging Face's `transformers`."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.pipelines.hugging_face_generation import GENERATION_CONFIG
from keras_transformer_options.arguments import is_integer
from keras_transformer_serving import files

_CONFIG, _PREPROCESSOR = "config.json", "preprocessor_config.json"
_DEFAULT_TASK = "transcribe"
# Names of languages that settings may have in place of codes.
_LANGUAGES = (
    "english:en,chinese:zh,german:de,spanish:es,russian:ru,korean:ko,french:fr,japanese:ja,portuguese:pt,turkish:tr,"
    "polish:pl,catalan:ca,dutch:nl,arabic:ar,swedish:sv,italian:it,indonesian:id,hindi:hi,finnish:fi,vietnamese:vi,"
    "hebrew:he,ukrainian:uk,greek:el,malay:ms,czech:cs,romanian:ro,danish:da,hungarian:hu,tamil:ta,norwegian:no,"
    "thai:th,urdu:ur,croatian:hr,bulgarian:bg,lithuanian:lt,latin:la,maori:mi,malayalam:ml,welsh:cy,slovak:sk,"
    "telugu:te,persian:fa,latvian:lv,bengali:bn,serbian:sr,azerbaijani:az,slovenian:sl,kannada:kn,estonian:et,"
    "macedonian:mk,breton:br,basque:eu,icelandic:is,armenian:hy,nepali:ne,mongolian:mn,bosnian:bs,kazakh:kk,"
    "albanian:sq,swahili:sw,galician:gl,marathi:mr,punjabi:pa,sinhala:si,khmer:km,shona:sn,yoruba:yo,somali:so,"
    "afrikaans:af,occitan:oc,georgian:ka,belarusian:be,tajik:tg,sindhi:sd,gujarati:gu,amharic:am,yiddish:yi,lao:lo,"
    "uzbek:uz,faroese:fo,haitian creole:ht,pashto:ps,turkmen:tk,nynorsk:nn,maltese:mt,sanskrit:sa,luxembourgish:lb,"
    "myanmar:my,tibetan:bo,tagalog:tl,malagasy:mg,assamese:as,tatar:tt,hawaiian:haw,lingala:ln,hausa:ha,bashkir:ba,"
    "javanese:jw,sundanese:su,cantonese:yue,burmese:my,valencian:ca,flemish:nl,haitian:ht,letzeburgesch:lb,pushto:ps,"
    "panjabi:pa,moldavian:ro,moldovan:ro,sinhalese:si,castilian:es,mandarin:zh"
)
_CODES = dict(pair.split(":") for pair in _LANGUAGES.split(","))


def prompt_of(folder: pathlib.Path) -> dict[str, Any]:
    """Return the languages and tasks of a folder, its language and task, and the ids after theirs before a text.

    They are read from `language` and `task` of generation_config.json or, without both, from `forced_decoder_ids`,
    also of config.json, as by `transformers`. An undefined language is None, to detect it, and an undefined task
    "transcribe".

    Returns:
        Arguments of `SpeechToText`.

    Raises:
        ValueError: if the language or the task is unknown, or `forced_decoder_ids` is not a prefix.
    """
    path = folder / GENERATION_CONFIG
    config, of_model = (files.read_json(each) if each.is_file() else {} for each in (path, folder / _CONFIG))
    languages = {
        token.removeprefix("<|").removesuffix("|>"): id_
        for token, id_ in (config.get("lang_to_id") or {}).items()
    }
    tasks = dict(config.get("task_to_id") or {})
    language, task = config.get("language"), config.get("task")
    forced: list[int] = []
    if language is None and task is None:
        forced = _forced(path, config.get("forced_decoder_ids") or of_model.get("forced_decoder_ids") or [])
        language, task = (_name_of(forced, known) for known in (languages, tasks))
    elif language is not None:
        language = _language(path, languages, language)
    if task is not None or tasks:
        task = _task(path, tasks, _DEFAULT_TASK if task is None else task)
    prefix = [id_ for id_ in forced if id_ not in {*languages.values(), *tasks.values()}]
    without_timestamps = config.get("no_timestamps_token_id")
    if without_timestamps is not None and prefix[-1:] != [without_timestamps]:
        prefix.append(without_timestamps)
    prompt = {
        "languages": languages,
        "tasks": tasks,
        "language": language,
        "task": task,
        "prefix_ids": prefix,
        "previous_text_id": config.get("prev_sot_token_id"),
    }
    return {name: value for name, value in prompt.items() if value}


def prompt_config(pipeline: Any) -> dict[str, Any]:
    """Return the entries of generation_config.json for the ids before the texts of a pipeline."""
    config = {"return_timestamps": False, "prev_sot_token_id": pipeline.previous_text_id}
    if not (pipeline.languages or pipeline.tasks):
        prefix = [[place, id_] for place, id_ in enumerate(pipeline.prefix_ids, 1)]
        # Without timestamps, whose token is in the prefix.
        return {**config, "forced_decoder_ids": prefix or None}
    return {
        **config,
        "is_multilingual": bool(pipeline.languages),
        "lang_to_id": {f"<|{name}|>": id_ for name, id_ in pipeline.languages.items()},
        "task_to_id": pipeline.tasks,
        "language": pipeline.language,
        "task": pipeline.task,
        "forced_decoder_ids": None,
        "no_timestamps_token_id": pipeline.prefix_ids[-1] if pipeline.prefix_ids else None,
    }


def write_features(model: Any, folder: pathlib.Path) -> None:
    """Write the `preprocessor_config.json` of the features of a Whisper."""
    features, seconds = model.features, model.max_samples / model.sample_rate
    config = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": model.num_mels,
        "sampling_rate": model.sample_rate,
        "hop_length": features.hop_length,
        "n_fft": features.window_length,
        "chunk_length": int(seconds) if seconds.is_integer() else seconds,
        "n_samples": model.max_samples,
        "nb_max_frames": 2 * model.max_source_length,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }
    files.write_json(folder / _PREPROCESSOR, config)


def _name_of(ids: Sequence[int], known: Mapping[str, int]) -> str | None:
    """Return the first name whose id is among ids."""
    return next((name for name, id_ in known.items() if id_ in ids), None)


def _language(path: pathlib.Path, languages: Mapping[str, int], language: Any) -> str:
    """Return the code of a language: of its token, its code or its name."""
    name = str(language).lower().removeprefix("<|").removesuffix("|>")
    for code in (name, _CODES.get(name)):
        if code in languages:
            return str(code)
    raise ValueError(
        f"`{path}` must have a language among those of lang_to_id, {sorted(languages)}. "
        f"Received: language={language!r}"
    )


def _task(path: pathlib.Path, tasks: Mapping[str, int], task: Any) -> str:
    if task not in tasks:
        raise ValueError(
            f"`{path}` must have a task among those of task_to_id, {sorted(tasks)}. Received: task={task!r}"
        )
    return str(task)


def _forced(path: pathlib.Path, pairs: Any) -> list[int]:
    """Return the ids of pairs of a position, which begin with 1, and an id, without None for a language to detect."""
    try:
        ids = [id_ for (_, id_) in pairs]
        are_valid = [position for (position, _) in pairs] == [*range(1, 1 + len(ids))]
    except (TypeError, ValueError):
        are_valid = False
    if not are_valid or not all(is_integer(id_) or (not i and id_ is None) for i, id_ in enumerate(ids)):
        raise ValueError(
            f"`{path}` must have pairs of a position, 1, 2, …, and an id as forced_decoder_ids. "
            f"Received: forced_decoder_ids={pairs!r}"
        )
    return [id_ for id_ in ids if id_ is not None]
