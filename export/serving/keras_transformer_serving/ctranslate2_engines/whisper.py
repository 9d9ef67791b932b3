"""Whisper, run by CTranslate2, with the features of the export."""

import collections
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from keras_transformer_serving.ctranslate2_engines.arrays import Arrays
from keras_transformer_serving.ctranslate2_engines.encoder import mapped
from keras_transformer_serving.ctranslate2_engines.loading import ctranslate2_package, load
from keras_transformer_serving.forward import Batch, Result
from keras_transformer_serving.part_files import PartFiles
from keras_transformer_serving.pipelines.speech_to_text import DETECTED, PREFIX, PROMPT
from keras_transformer_serving.targets import EngineOptions

SPEECH = "speech"
"""The files of the features and the settings of the search, without their suffixes."""
START, END, NO_TIMESTAMPS = "<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>"
"""The tokens that CTranslate2 finds by name."""
_OF_SEVERAL_LANGUAGES = ""  # a token that CTranslate2 finds in the vocabularies of multilingual models
_FLOOR = 1e-10  # of energies, before the logarithm
_RANGE = 8.0  # in powers of ten, below the loudest value


class WhisperModel:
    """A Whisper of CTranslate2, from audio to ids: a `ForwardEngine`.

    The arguments are those of `ServedTarget.engine`.
    """

    def __init__(self, files: PartFiles, config: Mapping[str, Any], options: EngineOptions) -> None:
        self._speech, self._workers = Arrays.read(files, SPEECH), options.workers
        self._start_id, self._end_id = config["start_id"], config["end_id"]
        self._padding_value = self._end_id if config["pad_id"] is None else config["pad_id"]
        self._no_timestamps_id = self._speech.settings[PREFIX][-1]
        self._languages = sorted(config.get("languages", {}).values())
        names = {self._start_id: START, self._end_id: END, self._no_timestamps_id: NO_TIMESTAMPS}
        if self._languages:
            others = (
                id_ for id_ in range(config["vocabulary_size"]) if id_ not in {*names, *self._languages}
            )
            names[next(others)] = _OF_SEVERAL_LANGUAGES
        self._model, self.device = load(
            "models.Whisper",
            files,
            options,
            {"vocabulary.json": [names.get(id_, str(id_)) for id_ in range(config["vocabulary_size"])]},
            {},
            lambda model: model.encode(self._view(np.zeros((1, 1), np.float32))),
        )
        self.inputs, self.outputs = (self._speech.tensors(side) for side in ("inputs", "outputs"))

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the "ids" of texts (B, M), and of a multilingual model the "language_ids" (B,)."""
        audio, lengths = inputs["audio"], inputs["lengths"]
        count = len(audio)
        is_real = np.arange(audio.shape[1]) < lengths[:, None]
        states = self._model.encode(self._view(np.where(is_real, audio, 0)))
        prompts, outputs = np.asarray(inputs[PROMPT]), {}
        if self._languages:
            prompts = np.where(prompts == DETECTED, self._languages_of(states, prompts), prompts)
            is_language = np.isin(prompts, self._languages)
            outputs["language_ids"] = np.where(is_language, prompts, -1).max(axis=1).astype(np.int32)
        ids = np.full((count, self._speech.settings["max_new_tokens"]), self._padding_value, np.int32)
        # Prompts are padded at the end; the first id may be the padding id.
        sizes = 1 + (prompts[:, 1:] != self._padding_value).sum(axis=1)
        groups = collections.defaultdict(list)
        for row, (prompt, length) in enumerate(zip(prompts.tolist(), sizes, strict=True)):
            tokens = prompt[:length]
            groups[length, tokens.index(self._start_id), tokens[-1] == self._no_timestamps_id].append(row)
        for (length, *_), rows in groups.items():
            of_group = states if len(groups) == 1 else _taken(states, rows)
            for row, found in zip(
                rows, self._generated(of_group, prompts[rows, :length].tolist()), strict=True
            ):
                ids[row, : len(found)] = found
        return {"ids": ids, **outputs}

    def _generated(self, states: Any, prompts: list[list[int]]) -> list[list[int]]:
        """Return the ids after prompts of one length and one place of the start, all with timestamps or none."""
        settings, before = self._speech.settings, len(prompts[0])
        limit = min(settings["max_new_tokens"], max(1, settings["max_length"] + 1 - before))
        results = self._model.generate(
            states,
            prompts,
            beam_size=1,
            # CTranslate2 stops at half of `max_length`, or where the prompt and the text reach it.
            max_length=limit + max(limit, before - 1),
            suppress_blank=False,
            suppress_tokens=settings["suppressed_ids"],
            max_initial_timestamp_index=settings["max_initial"],
        )
        return [[*result.sequences_ids[0], self._end_id][:limit] for result in results]

    def map(self, function: Callable[[Batch], Result], batches: Iterable[Batch]) -> list[Result]:
        """Return the results of a function for batches, some of which are computed at the same time."""
        return mapped(self._workers, function, batches)

    def _languages_of(self, states: Any, prompts: np.ndarray) -> np.ndarray:
        """Return the ids (B, 1) of the most probable languages, if a prompt has one to be detected."""
        if (prompts != DETECTED).all():
            return prompts
        return np.array([[int(rows[0][0])] for rows in self._model.detect_language(states)])

    def _view(self, audio: np.ndarray) -> Any:
        """Return the features (B, M, T) of audio (B, N)."""
        features = log_mel(audio, self._speech)
        return ctranslate2_package().StorageView.from_array(np.ascontiguousarray(features.transpose(0, 2, 1)))


def _taken(states: Any, rows: list[int]) -> Any:
    """Return rows of the outputs of an encoder."""
    return ctranslate2_package().StorageView.from_array(np.ascontiguousarray(np.array(states)[rows]))


def log_mel(audio: np.ndarray, speech: Arrays) -> np.ndarray:
    """Return the features (B, T, M) of audio (B, N), padded or cut to the model's duration.

    They are those of `keras_transformer.layers.LogMelSpectrogram` with Whisper's normalization.

    Args:
        audio: the audio.
        speech: the settings "samples", "window_length" and "hop_length", and the "filters" (K, M) of the mel scale.
    """
    samples, window, hop = (speech.settings[name] for name in ("samples", "window_length", "hop_length"))
    padded = np.zeros((len(audio), samples), np.float64)
    size = min(samples, audio.shape[1])
    padded[:, :size] = audio[:, :size]
    padded = np.pad(padded, ((0, 0), (window // 2, window // 2)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, window, axis=1)[:, ::hop][:, : samples // hop]
    hann = np.sin(np.pi * np.arange(window) / window) ** 2
    energies = np.square(np.abs(np.fft.rfft(windows * hann))) @ speech.arrays["filters"]
    frames = np.log10(np.maximum(energies, _FLOOR).astype(np.float32))
    largest = frames.max(axis=(1, 2), keepdims=True, initial=math.log10(_FLOOR))
    normalized: np.ndarray = (np.maximum(frames, largest - _RANGE) + 4) / 4
    return normalized
