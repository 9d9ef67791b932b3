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
from keras_transformer_serving.pipelines import languages, speech_windows
from keras_transformer_serving.pipelines.classification import ArrayPipeline
from keras_transformer_serving.pipelines.errors import (
    Errors,
    InvalidInputError,
    RowErrors,
    check_batch_size,
)
from keras_transformer_serving.tasks import DEFAULT, FORWARD, Row, Task, Tensor
from keras_transformer_serving.text import Tokenizer
from keras_transformer_serving.text.methods import DETOKENIZE, PythonMethods, TextMethods

ALL = -1
"""The length of a row of audio without padding."""
DETECTED = -1
"""The id before a text in place of that of a language that is detected."""
PREFIX = "prefix_ids"
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
    """

    text: str
    language: str | None


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
        long_audio: "refuse" for errors of audio that is too long, or "split" for windows; None for a model whose
            audio cannot be split.
    """

    reads: ClassVar[str] = "audio"
    engine: Any
    text_methods: TextMethods
    languages: Mapping[str, int] = MappingProxyType({})
    tasks: Mapping[str, int] = MappingProxyType({})
    language: str | None = None
    task: str | None = None
    prefix_ids: Sequence[int] = ()
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
                join the texts of windows that overlap by a third; by default the pipeline's.
            progress: a function that is called after each batch with the numbers of windows that are computed and of
                all; audio that is not split is one window.
            errors: "raise" the error of an audio, or "return" it in place of the text.

        Returns:
            A list as long as `audio`, or a string for a single one.

        Raises:
            FileNotFoundError: if a file does not exist.
            ImportError: if a file is to be resampled, and SciPy is not installed.
            TypeError: if `language` or `task` is no string.
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
        long_audio: str | None = None,
        progress: Callable[[int, int], None] | None = None,
        errors: Errors = "raise",
    ) -> list[Any]:
        """Return the `Transcript` of each audio, with the language that was given or detected; see a call.

        Example:
            >>> [each.language for each in recognize.transcripts(["a.wav", "b.wav"])]
            ['en', 'es']
        """
        check_batch_size(batch_size)
        count, rate, row_errors = len(audio), self.config["sample_rate"], RowErrors(errors)
        columns = {
            **languages.of_each(count, bool(self.languages), "audios", language=language),
            **languages.of_each(count, bool(self.tasks), "audios", "tasks", task=task),
        }
        if long_audio is not None:
            if self.long_audio is None:
                raise ValueError(
                    "`long_audio` must be None, as the model does not generate, or its export is older. "
                    f"Received: long_audio={long_audio!r}"
                )
            speech_windows.is_split(long_audio)
            columns["long_audio"] = [long_audio] * count
        steps = dict[int, Steps[Row]]()
        for row, each in enumerate(audio):
            with row_errors.catching(row):
                samples = checked_audio(each, rate, resample)
                steps[row] = self.recognized(samples, {name: values[row] for name, values in columns.items()})
        found = jobs.run(steps, {}, ForwardJobs(self.engine, progress), batch_size, row_errors)
        return row_errors.merge(
            {row: Transcript(outputs["text"], outputs.get("language")) for row, outputs in found.items()}
        )

    def recognized(self, samples: np.ndarray, row: Row) -> Steps[Row]:
        """Return the outputs of the task for audio (N,).

        Args:
            samples: the audio.
            row: its options, "language", "task" and "long_audio".

        Raises:
            InvalidInputError: if it is not finite, or is too short or too long, or the language or the task is unknown.
        """
        prefix = self._prefix(row)
        outputs = yield from jobs.gather(
            jobs.compute(FORWARD, {"audio": window, "lengths": len(window), **prefix}, len(window))
            for window in self._windows(samples, row)
        )
        return self._outputs(outputs)

    def _windows(self, samples: np.ndarray, row: Row) -> list[np.ndarray]:
        """Return the windows of audio (N,), of which all but very long audio is one."""
        long_audio = row.get("long_audio", self.long_audio)
        try:
            splits = long_audio is not None and speech_windows.is_split(_string(long_audio))
        except ValueError as error:
            raise InvalidInputError("long_audio", str(error)) from None
        check_samples(samples, self.config, splits)
        return speech_windows.windows(samples, max_samples(self.config)) if splits else [samples]

    def _prefix(self, row: Row) -> dict[str, np.ndarray]:
        """Return the input of the ids before the text, of a model with languages or tasks."""
        ids = []
        if self.languages:
            language = row.get("language", self.language)
            ids.append(_id_of("language", language, self.languages) if language else DETECTED)
        if self.tasks:
            ids.append(_id_of("task", row.get("task", self.task), self.tasks))
        return {PREFIX: np.array([*ids, *self.prefix_ids], np.int32)} if ids else {}

    def _outputs(self, rows: Sequence[Mapping[str, np.ndarray]]) -> Row:
        """Return the outputs of the task for those of the model for one audio."""
        (text,) = self.text_methods.methods[DETOKENIZE]([self._ids(rows)])
        if not self.languages:
            return {"text": text}
        names = {id_: name for name, id_ in self.languages.items()}
        return {"text": text, "language": names[int(rows[0]["language_ids"])]}

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
        self.long_audio = config.get("long_audio")

    @property
    def row_inputs(self) -> tuple[Tensor, ...]:
        """The inputs of `steps`."""
        columns = self.columns(self.config)[DEFAULT]
        if self.long_audio is None:
            return columns
        option = Tensor("long_audio", "string", default=self.long_audio, choices=speech_windows.LONG_AUDIO)
        return (*columns, option)

    def steps(self, row: Row) -> Steps[Row]:
        """Return the outputs for audio."""
        samples, length = row["audio"], row["lengths"]
        return (yield from self.recognized(samples if length == ALL else samples[: max(0, length)], row))

    def feed(self, **arrays: Any) -> dict[str, np.ndarray]:
        """Return the graph's inputs, by default the lengths of audio without padding, and the prefix of the export."""
        audio = np.asarray(arrays["audio"]) if "audio" in arrays else None
        if audio is not None and audio.ndim == 2:
            lengths = np.asarray(arrays.get("lengths", np.full(len(audio), ALL)))
            arrays["lengths"] = np.where(lengths == ALL, audio.shape[1], lengths)
            arrays = {
                **{name: np.tile(ids, (len(audio), 1)) for name, ids in self._prefix({}).items()},
                **arrays,
            }
        feed = super().feed(**arrays)
        for samples, length in zip(feed["audio"], feed["lengths"], strict=True):
            check_samples(samples[: max(0, int(length))], self.config)
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
