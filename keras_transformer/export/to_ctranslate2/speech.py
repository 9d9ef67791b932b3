"""The features and the search of Whisper, which the engine computes and gives to CTranslate2."""

from typing import Any

from keras_transformer.layers.spectrogram import mel_filters
from keras_transformer_serving.ctranslate2_engines.arrays import Arrays
from keras_transformer_serving.pipelines.speech_to_text import PREFIX


def speech_of(pipeline: Any) -> Arrays:
    """Return the settings of the search, and the filters of the features; see serving's `WhisperModel`.

    Raises:
        ValueError: if CTranslate2 does not have the sampler, a constraint, or the tokens before texts.
    """
    model, config = pipeline.model, pipeline.settings()
    sampler, features = config["generation"]["sampler"], model.features
    if sampler != "greedy":
        raise ValueError(
            f"`generation` must be greedy search for speech in CTranslate2. Received: {sampler!r}"
        )
    suppressed = {model.pad_id, model.start_id} - {model.end_id, None}
    max_initial = None
    for constraint in config["constraints"]:
        if constraint["constraint"] == "Timestamps":  # CTranslate2 has their rules
            max_initial = constraint["max_initial"]
            continue
        words = constraint.get("words", ())
        if constraint["constraint"] != "BannedWords" or any(len(word) != 1 for word in words):
            received = f"{constraint['constraint']} of several tokens" if words else constraint["constraint"]
            raise ValueError(
                "`constraints` must be Timestamps, or BannedWords of one token each, for speech in CTranslate2. "
                f"Received: {received}"
            )
        suppressed |= {id_ for (id_,) in words}
    before = [*pipeline.languages.values(), *pipeline.tasks.values(), *pipeline.prefix_ids]
    # CTranslate2 finds the tokens before texts by their ids.
    is_known = (
        pipeline.prefix_ids and model.start_id < min(before) and max(before[:-1], default=-1) < before[-1]
    )
    if not is_known:
        raise ValueError(
            "`prefix_ids` must end with the id that turns timestamps off for CTranslate2, after the ids of the start, "
            "languages and tasks: as published models have them. "
            f"Received: prefix_ids={[*pipeline.prefix_ids]}, the start {model.start_id}"
        )
    language = {"language_ids": ["int32", []]} if pipeline.languages else {}
    settings = {
        PREFIX: [*pipeline.prefix_ids],
        "max_new_tokens": pipeline.max_new_tokens,
        "max_length": model.max_length,
        "max_initial": model.vocabulary_size if max_initial is None else max_initial,
        "suppressed_ids": sorted(suppressed),
        "samples": model.max_samples,
        "window_length": features.window_length,
        "hop_length": features.hop_length,
        "inputs": {
            tensor.name: [tensor.dtype, [*tensor.shape]] for tensor in pipeline.graph_inputs(pipeline.config)
        },
        "outputs": {"ids": ["int32", [pipeline.max_new_tokens]], **language},
    }
    filters = mel_filters(
        features.num_mels,
        features.sample_rate,
        features.window_length,
        features.min_frequency,
        features.max_frequency,
    )
    return Arrays(settings, {"filters": filters})
