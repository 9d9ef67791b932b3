"""Speech recognition: from audio to text."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from keras_transformer_serving import closeness, jobs
from keras_transformer_serving.audio import checked_audio, read_wav
from keras_transformer_serving.forward import ForwardEngine, ForwardJobs
from keras_transformer_serving.jobs import Steps
from keras_transformer_serving.pipelines import languages, speech_segments, speech_windows
from keras_transformer_serving.pipelines.classification import ArrayPipeline
from keras_transformer_serving.pipelines.errors import (
    Errors,
    InvalidInputError,
    RowErrors,
    check_batch_size,
)
from keras_transformer_serving.pipelines.speech_segments import Segment
from keras_transformer_serving.pipelines.speech_windows import SEQUENTIAL, SPLIT
from keras_transformer_serving.tasks import DEFAULT, FORWARD, Row, Task, Tensor
from keras_transformer_serving.text import Tokenizer
from keras_transformer_serving.text.methods import DETOKENIZE, TOKENIZE, PythonMethods, TextMethods

ALL = -1
"""The length of a row of audio without padding."""
DETECTED = -1
"""The id before a text in place of that of a language that is detected."""
PREFIX = "prefix_ids"
PROMPT = "decoder_input_ids"
"""The input of the graph with the ids before the text; graphs of older exports have `PREFIX`, without the first."""
OPTIONS = {"language": "languages", "task": "tasks"}
"""The options of audio, and the settings with their values and ids."""


@dataclasses.dataclass(frozen=True)
class AudioTensor(Tensor):
    """Audio (N,): numbers, or in JSON the base64 of a WAV file, {"b64": "…"}.

    Attributes:
        sample_rate: the number of samples in a second.
    """

    sample_rate: int = 16000

    @property
    def reads_bytes(self) -> bool:
        """True: a WAV file is bytes."""
        return True

    def convert(self, value: Any, place: str) -> Any:
        """Return the samples of a value of JSON, resampled where SciPy is installed."""
        if isinstance(value, bytes):
            try:
                return read_wav(value, self.sample_rate, resample=True)
            except ImportError as error:
                raise InvalidInputError("audio", str(error)) from None
        return super().convert(value, place)


class Transcript(NamedTuple):
    """The text that is spoken in audio, and its language.

    Attributes:
        text: the text.
        language: the code of its language, given or detected; None for a model without languages.
        segments: the parts of the text with their times; None if the text was written without timestamps.
    """

    text: str
    language: str | None
    segments: list[Segment] | None = None


class SpeechTask(Task):
    """Speech recognition.

    Attributes:
        engine: what runs the model.
        text_methods: what detokenizes.
        languages: the languages of a multilingual model that generates, and the ids of their tokens.
        tasks: its tasks, "transcribe" and "translate", and the ids of their tokens.
        language: the language of audio without one of its own; None to detect it.
        task: the task, likewise.
        prefix_ids: the ids after those of the language and the task.
        no_timestamps_id: the last of `prefix_ids`, which is omitted for timestamps, whose ids are greater; None for a
            model without timestamps.
        previous_text_id: the id before the text before a window; None for a model that was trained without.
        long_audio: "refuse" for errors of audio that is too long, "split" for windows that overlap, or "sequential" for
            windows that follow each other; None for a model whose audio cannot be split.
    """

    reads: ClassVar[str] = "audio"
    engine: Any
    text_methods: TextMethods
    languages: Mapping[str, int] = MappingProxyType({})
    tasks: Mapping[str, int] = MappingProxyType({})
    language: str | None = None
    task: str | None = None
    prefix_ids: Sequence[int] = ()
    no_timestamps_id: int | None = None
    previous_text_id: int | None = None
    long_audio: str | None = None

    def __call__(
        self,
        audio: Any,
        batch_size: int = 16,
        *,
        resample: bool = False,
        language: str | Sequence[str] | None = None,
        task: str | Sequence[str] | None = None,
        long_audio: str | None = None,
        prompt: str = "",
        condition_on_previous_text: bool = False,
        progress: Callable[[int, int], None] | None = None,
        errors: Errors = "raise",
    ) -> Any:
        """Return the text of each audio.

        Args:
            audio: a list of floats (N,) at the model's `sample_rate`, usually in [−1, 1], or of paths of WAV files; or
                a single one.
            batch_size: the number of rows in a batch; audio of similar length is computed together.
            resample: whether to resample files of other sample rates, which are refused otherwise.
            language: for a multilingual model, the code of the language such as "es", or one for each audio; "" to
                detect it; by default the pipeline's.
            task: for a multilingual model, "transcribe", or "translate" into English; by default the pipeline's.
            long_audio: for a model that generates, "refuse" to raise an error for audio that is too long, or "split" to
                join the texts of windows that overlap by a third and are computed at once; with timestamps also
                "sequential", where each window begins at the end of the last complete segment of the one before. By
                default the pipeline's.
            prompt: for a model that was trained so, a text that would come before the audio, such as names that are
                spoken in it.
            condition_on_previous_text: for a model that was trained so, whether a window after the first continues the
                text of those before, in place of the prompt; for windows that follow each other.
            progress: a function that is called after each batch with the numbers of windows that are computed and of
                all that are known; audio that is not split is one window.
            errors: "raise" the error of an audio, or "return" it in place of the text.

        Returns:
            A list as long as `audio`, or a string for a single one.

        Raises:
            FileNotFoundError: if a file does not exist.
            ImportError: if a file is to be resampled, and SciPy is not installed.
            ValueError: if audio is neither an array nor a path, has another sample rate, several channels or integers,
                is not finite, or is too short or too long; if the language or the task is unknown, or the model has
                none, or cannot split audio.

        Example:
            >>> recognize("meeting.wav", language="es", long_audio="split")
            'Buenos días a todos. …'
        """
        one = is_single(audio)
        found = self.transcripts(
            [audio] if one else audio,
            batch_size,
            resample=resample,
            language=language,
            task=task,
            long_audio=long_audio,
            prompt=prompt,
            condition_on_previous_text=condition_on_previous_text,
            progress=progress,
            errors=errors,
        )
        texts = [each.text if isinstance(each, Transcript) else each for each in found]
        return texts[0] if one else texts

    def transcripts(
        self,
        audio: Sequence[Any],
        batch_size: int = 16,
        *,
        resample: bool = False,
        language: str | Sequence[str] | None = None,
        task: str | Sequence[str] | None = None,
        timestamps: bool = False,
        long_audio: str | None = None,
        prompt: str = "",
        condition_on_previous_text: bool = False,
        progress: Callable[[int, int], None] | None = None,
        errors: Errors = "raise",
    ) -> list[Any]:
        """Return the `Transcript` of each audio, with the language that was given or detected; see a call.

        With `timestamps`, transcripts of a model that has them have segments; audio that is too long then needs
        `long_audio="sequential"`.

        Example:
            >>> [each.language for each in recognize.transcripts(["a.wav", "b.wav"])]
            ['en', 'es']
            >>> (transcript,) = recognize.transcripts(["a.wav"], timestamps=True)
            >>> transcript.segments
            [Segment(start=0.0, end=2.4, text='Good morning.', window=0.0)]
        """
        check_batch_size(batch_size)
        count, rate, row_errors = len(audio), self.config["sample_rate"], RowErrors(errors)
        columns = {
            **languages.of_each(count, bool(self.languages), "audios", language=language),
            **languages.of_each(count, bool(self.tasks), "audios", "tasks", task=task),
        }
        options: dict[str, Any] = {
            "long_audio": long_audio,
            "timestamps": timestamps or None,
            "prompt": prompt or None,
            "condition_on_previous_text": condition_on_previous_text or None,
        }
        shared = {name: value for name, value in options.items() if value is not None}
        for name, value in shared.items():
            if (needed := self._needed_for(name, value)) is not None:
                raise ValueError(f"`{name}` needs {needed}. Received: {name}={value!r}")
        if long_audio is not None:
            speech_windows.check_long_audio(long_audio)
        columns |= {name: [value] * count for name, value in shared.items()}
        steps = dict[int, Steps[Row]]()
        for row, each in enumerate(audio):
            with row_errors.catching(row):
                samples = checked_audio(each, rate, resample)
                steps[row] = self.recognized(samples, {name: values[row] for name, values in columns.items()})
        found = jobs.run(steps, {}, ForwardJobs(self.engine, progress), batch_size, row_errors)
        return row_errors.merge(
            {
                row: Transcript(outputs["text"], outputs.get("language"), outputs.get("segments"))
                for row, outputs in found.items()
            }
        )

    def recognized(self, samples: np.ndarray, row: Row) -> Steps[Row]:
        """Return the outputs of the task for audio (N,), with "segments" if it is read with timestamps.

        Args:
            samples: the audio.
            row: its options, those of `transcripts`.

        Raises:
            InvalidInputError: if it is not finite, or is too short or too long, an option is unknown, or the model does
                not have it.
        """
        long_audio, limit = self._long_audio(row), max_samples(self.config)
        prompt = self._prompt(row, self._prompt_ids(row))
        is_timed = bool(row.get("timestamps"))
        if is_timed and len(samples) > limit and long_audio != SEQUENTIAL:
            raise InvalidInputError(
                "timestamps",
                f"`timestamps` must be false for audio of more than {self.config['max_seconds']} seconds, or "
                f"long_audio='sequential'. Received: {len(samples)} samples",
            )
        check_samples(samples, self.config, long_audio in (SPLIT, SEQUENTIAL))
        if is_timed or (long_audio == SEQUENTIAL and len(samples) > limit):
            return (yield from self._segments(samples, row))
        windows = speech_windows.windows(samples, limit) if long_audio == SPLIT else [samples]
        outputs = yield from jobs.gather(self._computed(window, prompt) for window in windows)
        return self._outputs(outputs)

    def _segments(self, samples: np.ndarray, row: Row) -> Steps[Row]:
        """Return the outputs of the task for audio that is read with timestamps, in windows that follow each other."""
        assert self.no_timestamps_id is not None
        limit, rate = max_samples(self.config), self.config["sample_rate"]
        unit, first = self.config["timestamp_samples"], self.no_timestamps_id + 1
        context, begin, found = self._prompt_ids(row), 0, list[Segment]()
        outputs, ids = list[Mapping[str, np.ndarray]](), list[int]()
        while len(samples) - begin >= self.config["min_samples"]:
            window = samples[begin : begin + limit]
            language = outputs[0]["language_ids"] if outputs and self.languages else None
            prompt = self._prompt(row, context, is_timed=True, language_id=language)
            outputs.append((yield from self._computed(window, prompt)))
            spans, count = speech_segments.spans(self._ids(outputs[-1:]), first, -(-len(window) // unit))
            texts = [[id_ for id_ in span.ids if id_ < first] for span in spans]
            for span, text in zip(spans, self._texts(texts), strict=True):
                if text.strip():
                    start, end = ((begin + unit * time) / rate for time in (span.start, span.end))
                    found.append(Segment(start, min(end, len(samples) / rate), text.strip(), begin / rate))
            ids += (id_ for text in texts for id_ in text)
            if row.get("condition_on_previous_text"):
                context = [*context, *(id_ for span in spans for id_ in span.ids)]
            begin += unit * count
        (text,) = self._texts([ids])
        return {**self._outputs(outputs[:1]), "text": text, "segments": found}

    def _computed(self, samples: np.ndarray, prompt: Mapping[str, np.ndarray]) -> Steps[Row]:
        """Return the outputs of the model for a window of audio (N,)."""
        row = {"audio": samples, "lengths": len(samples), **prompt}
        outputs: Row = yield from jobs.compute(FORWARD, row, len(samples))
        return outputs

    def _long_audio(self, row: Row) -> str | None:
        """Return how audio that is too long is read, after checking the options of a row."""
        long_audio = _string(row.get("long_audio", self.long_audio) or "") or None
        try:
            if long_audio is not None:
                speech_windows.check_long_audio(long_audio)
        except ValueError as error:
            raise InvalidInputError("long_audio", str(error)) from None
        for name in ("long_audio", "timestamps", "prompt", "condition_on_previous_text"):
            value = long_audio if name == "long_audio" else row.get(name)
            if value and (needed := self._needed_for(name, value)) is not None:
                raise InvalidInputError(name, f"`{name}` needs {needed}. Received: {name}={value!r}")
        if row.get("condition_on_previous_text") and long_audio != SEQUENTIAL:
            raise InvalidInputError(
                "condition_on_previous_text",
                "`condition_on_previous_text` must be false, or long_audio='sequential'. "
                f"Received: long_audio={long_audio!r}",
            )
        return long_audio

    def _needed_for(self, option: str, value: Any) -> str | None:
        """Return the requirement of an option that is not met, or None."""
        if option == "long_audio" and self.long_audio is None:
            return "a model that generates, and an export that is not older"
        if (option == "timestamps" or value == SEQUENTIAL) and self.no_timestamps_id is None:
            return "a model with timestamps, and an export that is not older"
        is_context = option in ("prompt", "condition_on_previous_text")
        if is_context and self.previous_text_id is None:
            return "a model that was trained with the text before its audio, and an export that is not older"
        return None

    def _prompt_ids(self, row: Row) -> list[int]:
        """Return the ids of the text that would come before audio."""
        prompt = _string(row.get("prompt") or "").strip()
        return [*self.text_methods.methods[TOKENIZE]([(f" {prompt}", False)])[0]] if prompt else []

    def _prompt(
        self, row: Row, context: Sequence[int] = (), *, is_timed: bool = False, language_id: Any = None
    ) -> dict[str, np.ndarray]:
        """Return the input of the ids before the text, of a model that generates.

        Args:
            row: the options of the audio, of which the language and the task are used.
            context: the ids of the text before the audio, or before the window.
            is_timed: whether the text has timestamps.
            language_id: the id of the language, in place of that of the row.
        """
        ids = list[int]()
        if self.languages and language_id is None:
            language = row.get("language", self.language)
            language_id = _id_of("language", language, self.languages) if language else DETECTED
        ids += [] if language_id is None else [int(language_id)]
        if self.tasks:
            ids.append(_id_of("task", row.get("task", self.task), self.tasks))
        ids += (id_ for id_ in self.prefix_ids if not (is_timed and id_ == self.no_timestamps_id))
        if "timestamp_samples" not in self.config:  # an older export, whose graph has the start token
            return {PREFIX: np.array(ids, np.int32)} if self.languages or self.tasks else {}
        before = [self.previous_text_id, *context[-self.config["max_previous_tokens"] :]] if context else []
        return {PROMPT: np.array([*before, self.config["start_id"], *ids], np.int32)}

    def _outputs(self, rows: Sequence[Mapping[str, np.ndarray]]) -> Row:
        """Return the outputs of the task for those of the model for one audio."""
        (text,) = self._texts([self._ids(rows)])
        if not self.languages:
            return {"text": text}
        names = {id_: name for name, id_ in self.languages.items()}
        return {"text": text, "language": names[int(rows[0]["language_ids"])]}

    def _texts(self, rows: list[list[int]]) -> list[str]:
        return [*self.text_methods.methods[DETOKENIZE](rows)]

    def _ids(self, rows: Sequence[Mapping[str, np.ndarray]]) -> list[int]:
        """Return the ids of the text of the outputs of windows."""
        if "logits" in rows[0]:
            (row,) = rows
            ids: list[int] = _best_path(row["logits"], self.config["pad_id"]).tolist()
            return ids
        special = {self.config["pad_id"], self.config["end_id"]}
        return speech_windows.joined(
            [[id_ for id_ in row["ids"].tolist() if id_ not in special] for row in rows]
        )

    @classmethod
    def columns(cls, config: dict[str, Any]) -> dict[str, tuple[Tensor, ...]]:
        """Return the inputs: audio, the numbers of samples of audio padded at the end, the language and the task."""
        options = tuple(
            Tensor(name, "string", default=config[name] or "", choices=tuple(config[choices]))
            for name, choices in OPTIONS.items()
            if config.get(choices)
        )
        return {DEFAULT: (*cls._arrays(config), *options)}

    @classmethod
    def graph_inputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the inputs of the graph: audio, the numbers of samples, and the ids before the text."""
        if "timestamp_samples" in config:
            prompt = Tensor(PROMPT, "int32", (None,), padding=config["pad_id"], axis="prompt_length")
            return (*cls._arrays(config), prompt)
        count = sum(bool(config.get(choices)) for choices in OPTIONS.values())
        prefix = Tensor(PREFIX, "int32", (count + len(config.get(PREFIX, ())),))
        return (*cls._arrays(config), *((prefix,) if count else ()))

    @classmethod
    def _arrays(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        audio = AudioTensor(
            "audio", "float32", (None,), axis="num_samples", sample_rate=config["sample_rate"]
        )
        return (audio, Tensor("lengths", "int64", default=ALL))

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the text, and of a multilingual model the language."""
        language = (Tensor("language", "string"),) if config.get("languages") else ()
        return (Tensor("text", "string"), *language)

    @classmethod
    def answer(cls, row: Row, config: dict[str, Any]) -> str:
        """Return the text."""
        return str(row["text"])

    @classmethod
    def closeness(cls, pairs: Sequence[closeness.Pair], config: dict[str, Any]) -> closeness.Figures:
        """Return the share of identical ids, or with CTC the figures of `closeness.choices` of frames."""
        if "logits" not in pairs[0].expected:
            return closeness.tensors(pairs)
        is_real = [pair.expected["logits"].any(axis=-1) for pair in pairs]  # padded frames have zeros
        expected, found = (
            [closeness.softmax(pair[side]["logits"][mask]) for pair, mask in zip(pairs, is_real, strict=True)]
            for side in (1, 2)
        )
        return {**closeness.choices("frames", expected, found), **closeness.logits(pairs)}


class SpeechToText(SpeechTask, ArrayPipeline):
    """An exported recognizer of speech; `load` creates it.

    Args:
        engine: what runs the model.
        config: the export's settings.
        tokenizer: the export's tokenizer.
    """

    def __init__(self, engine: ForwardEngine, config: dict[str, Any], tokenizer: Tokenizer | None) -> None:
        super().__init__(engine, config)
        if tokenizer is None:
            raise ValueError(
                "`tokenizer` must be one of `keras_transformer.text` for speech. Received: tokenizer=None"
            )
        self.tokenizer = tokenizer
        self.text_methods = PythonMethods(tokenizer)
        self.languages, self.tasks = config.get("languages", {}), config.get("tasks", {})
        self.language, self.task = config.get("language"), config.get("task")
        self.prefix_ids = config.get(PREFIX, ())
        self.no_timestamps_id = config.get("no_timestamps_id")
        self.previous_text_id = config.get("previous_text_id")
        self.long_audio = config.get("long_audio")

    @property
    def row_inputs(self) -> tuple[Tensor, ...]:
        """The inputs of `steps`."""
        columns = self.columns(self.config)[DEFAULT]
        if self.long_audio is None:
            return columns
        choices: tuple[str, ...] = speech_windows.LONG_AUDIO
        if self.no_timestamps_id is None:
            choices = tuple(each for each in choices if each != SEQUENTIAL)
        options = [Tensor("long_audio", "string", default=self.long_audio, choices=choices)]
        if self.previous_text_id is not None:
            options += [
                Tensor("prompt", "string", default="", help="a text that would come before the audio"),
                Tensor(
                    "condition_on_previous_text",
                    "bool",
                    default=False,
                    help="whether a window continues the text of those before",
                ),
            ]
        return (*columns, *options)

    @property
    def segment_outputs(self) -> tuple[Tensor, ...]:
        """The outputs of `segments`."""
        times = (Tensor(f"segment_{name}", "float32", (None,)) for name in ("starts", "ends", "windows"))
        return (*self.outputs(self.config), Tensor("segment_texts", "string", (None,)), *times)

    def steps(self, row: Row) -> Steps[Row]:
        """Return the outputs for audio."""
        samples, length = row["audio"], row["lengths"]
        return (yield from self.recognized(samples if length == ALL else samples[: max(0, length)], row))

    def segments(self, row: Row) -> Steps[Row]:
        """Return the outputs for audio with the texts of segments, and the seconds of their starts and ends."""
        outputs = yield from self.steps({**row, "timestamps": True})
        segments = outputs.pop("segments")
        columns = {
            "segment_texts": np.array([each.text for each in segments], object),
            "segment_starts": np.array([each.start for each in segments], np.float32),
            "segment_ends": np.array([each.end for each in segments], np.float32),
            "segment_windows": np.array([each.window for each in segments], np.float32),
        }
        return {**outputs, **columns}

    def feed(self, **arrays: Any) -> dict[str, np.ndarray]:
        """Return the graph's inputs, by default the lengths of audio without padding, and the prefix of the export."""
        audio = np.asarray(arrays["audio"]) if "audio" in arrays else None
        if audio is not None and audio.ndim == 2:
            lengths = np.asarray(arrays.get("lengths", np.full(len(audio), ALL)))
            arrays["lengths"] = np.where(lengths == ALL, audio.shape[1], lengths)
            arrays = {
                **{name: np.tile(ids, (len(audio), 1)) for name, ids in self._prompt({}).items()},
                **arrays,
            }
        feed = super().feed(**arrays)
        for samples, length in zip(feed["audio"], feed["lengths"], strict=True):
            check_samples(samples[: max(0, int(length))], self.config)
        prompt, high = feed.get(PROMPT, feed.get(PREFIX)), self.config["vocabulary_size"] - 1
        if prompt is not None and not ((prompt >= DETECTED) & (prompt <= high)).all():
            raise ValueError(
                f"`{PROMPT if PROMPT in feed else PREFIX}` must be from {DETECTED} to {high}. "
                f"Received: from {prompt.min()} to {prompt.max()}"
            )
        return feed

    def postprocess(self, outputs: Mapping[str, np.ndarray]) -> Row:
        """Return the text of logits (T', V), or of ids (T,)."""
        return self._outputs([outputs])


def _best_path(logits: np.ndarray, pad_id: int) -> np.ndarray:
    """Return the most probable id at each time (T',), `pad_id` where it repeats the one before."""
    ids = logits.argmax(axis=-1)
    return np.where(ids == np.pad(ids[:-1], (1, 0), constant_values=pad_id), pad_id, ids)


def _id_of(name: str, value: str | bytes | None, known: Mapping[str, int]) -> int:
    value = _string(value or "none")
    if value not in known:
        raise InvalidInputError(name, languages.expectation(name, known) + value)
    return known[value]


def _string(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def is_single(audio: Any) -> bool:
    """Return whether a value is one audio rather than a list of several."""
    if isinstance(audio, np.ndarray):
        return audio.ndim < 2 and audio.dtype != object
    return not isinstance(audio, list | tuple) or (len(audio) > 0 and isinstance(audio[0], float | int))


def max_samples(config: Mapping[str, Any]) -> int:
    """Return the number of samples of the longest audio that the model reads."""
    return int(config["max_seconds"] * config["sample_rate"])


def check_samples(samples: np.ndarray, config: Mapping[str, Any], splits: bool = False) -> None:
    """Raise an `InvalidInputError` unless audio (N,) is finite, not too short, and not too long unless it is split."""
    if not np.isfinite(samples).all():
        raise InvalidInputError("audio", "`audio` must be finite. Received: NaN or infinite samples")
    if len(samples) < config["min_samples"] or not (splits or len(samples) <= max_samples(config)):
        raise InvalidInputError("audio", f"{expected_samples(config)}. Received: {len(samples)} samples")


def expected_samples(config: Mapping[str, Any]) -> str:
    """Return the beginning of the error of audio that is too short or too long."""
    option = ", or long_audio='split'" if "long_audio" in config else ""
    low, high, seconds = config["min_samples"], max_samples(config), config["max_seconds"]
    return f"`audio` must have {low} to {high} samples ({seconds} seconds){option}"
