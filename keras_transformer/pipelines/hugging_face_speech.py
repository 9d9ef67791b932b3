"""The tokens before the texts of Whisper, from a folder of Hugging Face's `transformers`."""

import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer.pipelines.hugging_face_generation import GENERATION_CONFIG
from keras_transformer_options.arguments import is_integer
from keras_transformer_serving import files

_CONFIG, _PREPROCESSOR = "config.json", "preprocessor_config.json"
_DEFAULT_LANGUAGE, _DEFAULT_TASK = "en", "transcribe"
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


def prefix_of(folder: pathlib.Path) -> list[int]:
    """Return the ids of the language, of the task and of no timestamps, as `transformers` puts them before a text.

    They are read from `language` and `task` of generation_config.json or, without both, from `forced_decoder_ids`,
    also of config.json. An undefined language, which `transformers` detects, is English.

    Args:
        folder: the folder.

    Raises:
        ValueError: if the language or the task is unknown, or `forced_decoder_ids` is not a prefix.
    """
    path = folder / GENERATION_CONFIG
    config, of_model = (files.read_json(each) if each.is_file() else {} for each in (path, folder / _CONFIG))
    language, task = config.get("language"), config.get("task")
    prefix: list[int | None] = []
    if language is None and task is None:
        forced = config.get("forced_decoder_ids") or of_model.get("forced_decoder_ids") or []
        prefix = _forced(path, forced)
    languages = config.get("lang_to_id") or {}
    if not prefix or prefix[0] is None:
        chosen = _DEFAULT_LANGUAGE if language is None else language
        code = [] if not languages and language is None else [_language(path, languages, chosen)]
        prefix = [*code, *prefix[1:]]
    tasks = config.get("task_to_id") or {}
    if task is not None or (tasks and not set(prefix) & {*tasks.values()}):
        prefix.append(_task(path, tasks, _DEFAULT_TASK if task is None else task))
    without_timestamps = config.get("no_timestamps_token_id")
    if without_timestamps is not None and prefix[-1:] != [without_timestamps]:
        prefix.append(without_timestamps)
    return [id_ for id_ in prefix if id_ is not None]


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


def _language(path: pathlib.Path, languages: Mapping[str, int], language: Any) -> int:
    """Return the id of a language: of its token, its code or its name."""
    name = str(language).lower()
    for token in (name, f"<|{name}|>", f"<|{_CODES.get(name)}|>"):
        if token in languages:
            return languages[token]
    raise ValueError(
        f"`{path}` must have a language among those of lang_to_id, {sorted(languages)}. "
        f"Received: language={language!r}"
    )


def _task(path: pathlib.Path, tasks: Mapping[str, int], task: Any) -> int:
    if task not in tasks:
        raise ValueError(
            f"`{path}` must have a task among those of task_to_id, {sorted(tasks)}. Received: task={task!r}"
        )
    return tasks[task]


def _forced(path: pathlib.Path, pairs: Any) -> list[int | None]:
    """Return the ids of pairs of a position, which begin with 1, and an id; None for a language to be detected."""
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
    return ids
