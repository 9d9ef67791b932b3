"""Speech recognition."""

import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.generation import samplers
from keras_transformer.generation.constraints import serialize as serialize_constraint
from keras_transformer.generation.loop import run_search
from keras_transformer.generation.search.interface import Inputs
from keras_transformer.generation.search.logits import highest
from keras_transformer.generation.settings import Settings
from keras_transformer.generation.timestamps import Timestamps
from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models import CTC, Whisper
from keras_transformer.pipelines.arguments import check_model, check_tokenizer
from keras_transformer.pipelines.babble import babble
from keras_transformer.pipelines.forward import FORWARD, ForwardPipeline, check_no_texts
from keras_transformer.pipelines.hugging_face_generation import GENERATION_CONFIG, settings_from
from keras_transformer.pipelines.hugging_face_speech import prompt_config, prompt_of, write_features
from keras_transformer.pipelines.pipeline import DEFAULT, Arrays, Preprocessed
from keras_transformer.pipelines.ragged_rows import first_error, ids_of_names
from keras_transformer.pipelines.tokenizer_methods import methods_of
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_ids, check_one_of, check_positive
from keras_transformer_serving import files
from keras_transformer_serving.pipelines.speech_to_text import (
    ALL,
    DETECTED,
    OPTIONS,
    PREFIX,
    PROMPT,
    SpeechTask,
    expected_samples,
)
from keras_transformer_serving.pipelines.speech_windows import LONG_AUDIO, REFUSE, SEQUENTIAL
from keras_transformer_serving.text.methods import TextMethods

_MAX_SECONDS = 30.0
_DEFAULT_TASK = "transcribe"


class SpeechToText(SpeechTask, ForwardPipeline):
    """A pipeline of a model of speech and its tokenizer: from audio to text, with the features inside the graph.

    Args:
        model: such as `models.CTC`, that reads audio, or `models.Whisper`.
        tokenizer: with the model's vocabulary.
        generation: for a model that generates, a `Greedy` or `Beam`, or its name.
        constraints: for a model that generates, constraints on the text, such as `generation.BannedWords`; with
            `generation.Timestamps`, calls can have the option `timestamps`.
        prefix_ids: for a model that generates, the ids before each text, after those of `languages` and `tasks`.
        previous_text_id: for a model that was trained with the text before its audio, the id before that text; calls
            can have the options `prompt` and `condition_on_previous_text`.
        languages: for a multilingual model, the codes of languages and the ids of their tokens.
        tasks: for a multilingual model, "transcribe" and "translate", and the ids of their tokens.
        language: the language of audio without one of its own; None to detect it.
        task: the task of audio without one of its own, by default "transcribe", or the first of `tasks`.
        max_new_tokens: for a model that generates, the maximum number of tokens of a text, or of each of its windows.
        long_audio: for a model that generates, "refuse" to raise errors for audio that is too long, "split" to join
            the texts of windows that overlap by a third, or with timestamps "sequential" for windows that follow each
            other. SavedModels refuse such audio.
        max_seconds: the maximum duration of audio, by default 30 seconds or, if it is shorter, the model's duration.

    Raises:
        ValueError: if model and tokenizer differ in vocabulary or padding id, `generation` samples, or a setting is out
            of range.

    Example:
        >>> from keras_transformer import models, text
        >>> tokenizer = text.ByteTokenizer()
        >>> model = models.CTC(models.SpeechEncoder(1, 2, 16, 32), tokenizer.vocabulary_size)
        >>> recognize = SpeechToText(model, tokenizer)
        >>> len(recognize([np.zeros(16000), np.zeros(8000)]))
        2
    """

    examples_are_typical: ClassVar[bool] = True
    summary: ClassVar[str] = "It writes the words that are spoken in audio."
    hub_task: ClassVar[str | None] = "automatic-speech-recognition"
    model_classes: ClassVar[tuple[type, ...]] = (CTC, Whisper)

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        generation: Any = "greedy",
        *,
        constraints: Sequence[Any] = (),
        prefix_ids: Sequence[int] = (),
        previous_text_id: int | None = None,
        languages: Mapping[str, int] = MappingProxyType({}),
        tasks: Mapping[str, int] = MappingProxyType({}),
        language: str | None = None,
        task: str | None = None,
        max_new_tokens: int = 128,
        long_audio: str = REFUSE,
        max_seconds: float | None = None,
    ) -> None:
        check_model(model, "a recognizer of speech, such as `models.CTC`", "sample_rate", "features")
        if model.sample_rate is None:
            raise TypeError("`model` must read audio rather than frames. Received: model.sample_rate=None")
        check_tokenizer(tokenizer)
        for name in ("vocabulary_size", "pad_id"):
            if getattr(model, name) != getattr(tokenizer, name):
                raise ValueError(
                    f"`model` and `tokenizer` must have the same {name}. Received: "
                    f"model.{name}={getattr(model, name)}, tokenizer.{name}={getattr(tokenizer, name)}"
                )
        limit = getattr(model, "max_samples", _MAX_SECONDS * model.sample_rate) / model.sample_rate
        max_seconds = min(limit, _MAX_SECONDS) if max_seconds is None else max_seconds
        check_positive(max_seconds=max_seconds)
        if hasattr(model, "max_samples"):
            check(max_seconds <= limit, f"be at most {limit}, the model's duration", max_seconds=max_seconds)
        self.model, self.tokenizer = model, tokenizer
        self.max_seconds = float(max_seconds)
        self._generation: Settings | None = None
        check_one_of(LONG_AUDIO, long_audio=long_audio)
        if hasattr(model, "step"):
            check_ids(model.vocabulary_size, **{f"prefix_ids[{i}]": id_ for i, id_ in enumerate(prefix_ids)})
            self.prefix_ids = [int(id_) for id_ in prefix_ids]
            named = {"languages": languages, "tasks": tasks}
            for name, known in named.items():
                check_ids(model.vocabulary_size, **{f"{name}[{key!r}]": id_ for key, id_ in known.items()})
            self.languages, self.tasks = ({**known} for known in named.values())
            if task is None and tasks:
                task = _DEFAULT_TASK if _DEFAULT_TASK in tasks else next(iter(tasks))
            for name, value, known in (("language", language, languages), ("task", task, tasks)):
                check(value is None or value in known, f"be one of {[*known]}", **{name: value})
            self.language, self.task, self.long_audio = language, task, long_audio
            settings = Settings.of(model, generation, max_new_tokens, 0, constraints)
            check(not settings.sampler.draws, "not sample for speech", generation=settings.sampler)
            if previous_text_id is not None:
                check_ids(model.vocabulary_size, previous_text_id=previous_text_id)
            self.previous_text_id = previous_text_id
            limit = model.max_length - len(self.prefix_ids) - bool(languages) - bool(tasks)
            positions = f"be at most {limit}, the positions of the model after `prefix_ids`"
            check(max_new_tokens <= limit, positions, max_new_tokens=max_new_tokens)
            self._generation = settings
            self.sampler, self.max_new_tokens = settings.sampler, settings.max_new_tokens
            self.constraints = settings.logits_processors.constraints
            timed = [each.no_timestamps_id for each in self.constraints if isinstance(each, Timestamps)]
            for id_ in timed:
                last = [id_] == self.prefix_ids[-1:]
                check(last, f"end with {id_}, the `no_timestamps_id` of `Timestamps`", prefix_ids=prefix_ids)
            self.no_timestamps_id = timed[0] if timed else None
            is_possible = bool(timed) or long_audio != SEQUENTIAL
            check(is_possible, "be 'refuse' or 'split' without `Timestamps`", long_audio=long_audio)

    @property
    def text_methods(self) -> TextMethods:  # type: ignore[override]
        """The methods of the tokenizer, in TensorFlow's graph or without TensorFlow."""
        return methods_of(self.tokenizer)

    @property
    def padding(self) -> dict[str, tuple[int, float]]:
        """The axis of samples, and their padding value."""
        audio = {"audio": (1, 0.0)}
        return audio if self._generation is None else {**audio, PROMPT: (1, self.model.pad_id)}

    @property
    def max_padded_length(self) -> int:
        """The number of samples of the longest audio."""
        return int(self.max_seconds * self.model.sample_rate)

    def preprocess(self, audio: Tensor, lengths: Tensor, *options: Tensor) -> Preprocessed:
        """Check audio (B, N), of lengths (B,) or −1 without padding, as TensorFlow operations.

        A multilingual model takes the languages and the tasks (B,), too.
        """
        lengths = tf.cast(tf.where(lengths == ALL, tf.shape(audio, lengths.dtype)[1], lengths), tf.int32)
        is_real = tf.range(tf.shape(audio)[1]) < lengths[:, None]
        finite = tf.reduce_all(tf.math.is_finite(audio) | ~is_real, axis=1)
        low, high = self.min_samples, self.max_padded_length
        fits = (lengths >= low) & (lengths <= high) & (lengths <= tf.shape(audio)[1])
        received = [". Received: ", tf.strings.as_string(lengths), " samples"]
        wrong_length = tf.strings.join([expected_samples(self.config), *received])
        error = tf.where(finite, "", "`audio` must be finite. Received: NaN or infinite samples")
        error = tf.where(fits, error, wrong_length)
        prompt, unknown = self._prompt_columns(tf.shape(audio)[0], options)
        error = first_error(error, *unknown)
        accepted = error == ""
        inputs = {
            "audio": tf.where(accepted[:, None] & is_real, audio, 0.0),
            "lengths": tf.where(accepted, lengths, 0),
            **prompt,
        }
        return Preprocessed(inputs, error, {})

    def _prompt_columns(
        self, count: Tensor, options: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Return the ids (B, P) before texts, of a model that generates, and errors (B,) of each option."""
        if self._generation is None:
            return {}, []
        columns, errors = [tf.fill([count, 1], self.model.start_id)], []
        known = {name: getattr(self, choices) for name, choices in OPTIONS.items()}
        known = {name: ids for name, ids in known.items() if ids}
        given = options or [tf.constant([getattr(self, name) or ""]) for name in known]
        for name, names in zip(known, given, strict=True):
            ids, error = ids_of_names(name, names, known[name])
            if name == "language":
                ids, error = (
                    tf.where(names == "", value, found) for value, found in ((DETECTED, ids), ("", error))
                )
            columns.append(tf.broadcast_to(ids, [count])[:, None])
            errors.append(tf.broadcast_to(error, [count]))
        rest = tf.tile(tf.constant([self.prefix_ids], tf.int32), [count, 1])
        return {PROMPT: tf.concat([*columns, rest], axis=1)}, errors

    def model_inputs(self, *arrays: Tensor) -> dict[str, Tensor]:
        """Return the model's inputs for audio, its lengths, and of a model that generates the ids before the text."""
        named = super().model_inputs(*arrays)
        return {**named, "lengths": ops.cast(named["lengths"], "int32")}

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the logits (B, T', V), zeros after the end of a row, or of a model that generates the ids (B, T)."""
        if self._generation is None:
            logits = self.model(inputs, training=False)
            return {
                "logits": ops.where(self.model.is_real(inputs["lengths"], ops.shape(logits)[1]), logits, 0.0)
            }
        audio, lengths = inputs["audio"], inputs["lengths"]
        is_real = ops.arange(ops.shape(audio)[1], dtype="int32") < ops.cast(lengths, "int32")[:, None]
        model, source = self.model, ops.where(is_real, audio, 0.0)
        prompt, language = ops.cast(inputs[PROMPT], "int32"), {}
        if self.languages:
            model = _OfStates(self.model)
            source, _ = self.model.encoder_states(source, training=False)
            ids = np.array(sorted(self.languages.values()), "int32")
            is_detected = ops.equal(prompt, DETECTED)
            prompt = ops.where(is_detected, self._detected(source, ids)[:, None], prompt)
            known = ops.any(ops.equal(prompt[..., None], ids), axis=-1)
            language = {"language_ids": ops.max(ops.where(known, prompt, -1), axis=1)}
        # Padded at the end; the first id may be the padding id.
        count = 1 + ops.sum(ops.cast(ops.not_equal(prompt[:, 1:], self.model.pad_id), "int32"), axis=1)
        limits = ops.clip(self.model.max_length + 1 - count, 1, self.max_new_tokens)
        cache = kt_ops.StaticCache(in_place=False)
        found = run_search(
            Inputs(
                model,
                self._generation,
                cache,
                source,
                start_ids=prompt[:, 0],
                prefix_ids=prompt[:, 1:],
                limits=limits,
            )
        )
        return {"ids": found["ids"][:, 0], **language}

    def _detected(self, states: Tensor, ids: np.ndarray) -> Tensor:
        """Return the most probable (B,) of the ids of languages for the encoder's outputs (B, S, D)."""
        start = ops.full_like(states[:, :1, 0], self.model.start_id, dtype="int32")
        is_real = ops.ones_like(states[..., 0], "bool")
        logits = self.model.logits(self.model.decoder_states(start, states, is_real, training=False))
        best, _ = highest(ops.take(logits, ids, axis=-1))
        return ops.take(ops.convert_to_tensor(ids), best[:, 0], axis=0)

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Convert logits or ids to "text" (B,), and ids of languages to "language" (B,)."""
        ids = outputs["ids"] if "ids" in outputs else self._best_path(outputs["logits"])
        text = {"text": self.tokenizer.detokenize(ids)}
        if not self.languages:
            return text
        is_language = outputs["language_ids"][:, None] == tf.constant([*self.languages.values()])
        place = tf.argmax(tf.cast(is_language, tf.int32), axis=1)
        return {**text, "language": tf.gather(tf.constant([*self.languages]), place)}

    def _best_path(self, logits: Tensor) -> Tensor:
        """Return the ids of `models.CTC.greedy_ids`, as TensorFlow operations."""
        ids = tf.argmax(logits, -1, tf.int32)
        before = tf.pad(ids[:, :-1], [[0, 0], [1, 0]], constant_values=self.model.pad_id)
        return tf.where(ids == before, self.model.pad_id, ids)

    def example_inputs(self, texts: Any = None) -> dict[str, list[Arrays]]:
        """Return sounds like those of speech as inputs of an export's signatures; see `Pipeline`."""
        check_no_texts(self, texts)
        rate = self.model.sample_rate
        duration = int(min(self.max_seconds, 1) * rate)
        audio = [
            {
                "audio": np.stack([babble(max(lengths), rate, seed) for seed in range(len(lengths))]),
                "lengths": np.array(lengths, "int64"),
            }
            for lengths in ([duration, duration // 2, duration - 77], [duration // 2])
        ]
        options = [self._example_options(len(each["lengths"])) for each in audio]
        forward = []
        for arrays, names in zip(audio, options, strict=True):
            prompt, _ = self._prompt_columns(len(arrays["lengths"]), [*names.values()])
            forward.append({**arrays, **{name: ids.numpy() for name, ids in prompt.items()}})
        if self.no_timestamps_id is not None:
            ids = forward[-1][PROMPT]
            forward[-1][PROMPT] = ids[:, ids[0] != self.no_timestamps_id]
        return {
            FORWARD: forward,
            DEFAULT: [{**arrays, **names} for arrays, names in zip(audio, options, strict=True)],
        }

    def _example_options(self, count: int) -> Arrays:
        """Return different languages, the first to be detected, and tasks for each of `count` rows of audio."""
        values = {"language": ["", *self.languages], "task": [*self.tasks]}
        return {
            name: np.array([values[name][row % len(values[name])] for row in range(count)], object)
            for name, choices in OPTIONS.items()
            if getattr(self, choices)
        }

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except model and tokenizer."""
        settings: dict[str, Any] = {"max_seconds": self.max_seconds}
        if self._generation is None:
            return settings
        return {
            **settings,
            "generation": samplers.serialize(self.sampler),
            "constraints": [serialize_constraint(constraint) for constraint in self.constraints],
            "prefix_ids": self.prefix_ids,
            "previous_text_id": self.previous_text_id,
            **self._named_settings(),
            "max_new_tokens": self.max_new_tokens,
            "long_audio": self.long_audio,
        }

    def _named_settings(self) -> dict[str, Any]:
        names = [name for pair in OPTIONS.items() if getattr(self, pair[1]) for name in pair]
        return {name: getattr(self, name) for name in names}

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        config = {**super().export_config(), "sample_rate": self.model.sample_rate}
        # The graph has the generation loop, so that serving does not generate.
        for name in ("generation", "constraints", "max_new_tokens"):
            config.pop(name, None)
        if self._generation is not None:
            config |= {
                "no_timestamps_id": self.no_timestamps_id,
                "timestamp_samples": self.model.max_samples // self.model.max_source_length,
                "max_previous_tokens": max(1, self.model.max_length // 2 - 1),
            }
        return {**config, "min_samples": self.min_samples}

    @property
    def min_samples(self) -> int:
        """The number of samples of the shortest audio: of one frame."""
        return int(self.model.features.hop_length)

    @classmethod
    def hugging_face_arguments(cls, folder: Any, config: Any, model: Any, settings: Any) -> dict[str, Any]:
        """Return the sampler, the constraints, the maximum number of tokens, and the ids before each text."""
        prompt = {} if PREFIX in settings else prompt_of(folder)
        length = sum(bool(prompt.get(name, settings.get(name))) for name in OPTIONS.values())
        # The maximum length of `transformers` includes the start token and the prefix.
        limit = model.max_length - 1 - length - len(prompt.get(PREFIX, settings.get(PREFIX, ())))
        found = settings_from(folder, model, settings)
        if "max_new_tokens" not in settings:
            found["max_new_tokens"] = min(limit, found.get("max_new_tokens", limit))
        if PREFIX in settings and "constraints" not in settings:  # the given prefix may be of other tokens
            last = settings[PREFIX][-1:]
            found["constraints"] = [
                each
                for each in found["constraints"]
                if not isinstance(each, Timestamps) or [each.no_timestamps_id] == [*last]
            ]
        return {**prompt, **found}

    @property
    def hugging_face_rows(self) -> dict[str, bool]:
        """The prefix of texts is a setting of generation."""
        return {"add_start": False, "add_end": False}

    def write_hugging_face(self, folder: pathlib.Path) -> None:
        """Write the prefix of texts into generation_config.json, and the features."""
        path = folder / GENERATION_CONFIG
        files.write_json(path, {**files.read_json(path), **prompt_config(self)})
        write_features(self.model, folder)


class _OfStates:
    """A model whose source is the output of its encoder."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the model."""
        return getattr(self._model, name)

    def encode(self, states: Tensor) -> Any:
        """Return what the decoder needs of the encoder's outputs (B, S, D)."""
        return self._model.context_of(states, ops.ones_like(states[..., 0], "bool"))
