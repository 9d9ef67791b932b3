"""Speech recognition: from audio to text."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from keras_transformer_serving import closeness, jobs
from keras_transformer_serving.audio import checked_audio, read_wav
from keras_transformer_serving.forward import ForwardEngine, ForwardJobs
from keras_transformer_serving.jobs import Steps
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


class SpeechTask(Task):
    """Speech recognition.

    Attributes:
        engine: what runs the model.
        text_methods: what detokenizes.
    """

    reads: ClassVar[str] = "audio"
    engine: Any
    text_methods: TextMethods

    def __call__(
        self, audio: Any, batch_size: int = 16, *, resample: bool = False, errors: Errors = "raise"
    ) -> Any:
        """Return the text of each audio.

        Args:
            audio: a list of floats (N,) at the model's `sample_rate`, usually in [−1, 1], or of paths of WAV files; or
                a single one.
            batch_size: the number of rows in a batch; audio of similar length is computed together.
            resample: whether to resample files of other sample rates, which are refused otherwise.
            errors: "raise" the error of an audio, or "return" it in place of the text.

        Returns:
            A list as long as `audio`, or a string for a single one.

        Raises:
            FileNotFoundError: if a file does not exist.
            ImportError: if a file is to be resampled, and SciPy is not installed.
            ValueError: if audio is neither an array nor a path, has another sample rate, several channels or integers,
                is not finite, or is too short or too long.
        """
        check_batch_size(batch_size)
        if is_single(audio):
            return self([audio], batch_size, resample=resample, errors=errors)[0]
        config, row_errors, steps = self.config, RowErrors(errors), dict[int, Steps[Row]]()
        for row, each in enumerate(audio):
            with row_errors.catching(row):
                steps[row] = self.recognized(checked_audio(each, config["sample_rate"], resample))
        found = jobs.run(steps, {}, ForwardJobs(self.engine), batch_size, row_errors)
        return row_errors.merge({row: self.answer(outputs, config) for row, outputs in found.items()})

    def recognized(self, samples: np.ndarray) -> Steps[Row]:
        """Return the outputs of the task for audio (N,).

        Raises:
            InvalidInputError: if it is not finite, or is too short or too long.
        """
        check_samples(samples, self.config)
        inputs = {"audio": samples, "lengths": len(samples)}
        return self._outputs([(yield from jobs.compute(FORWARD, inputs, len(samples)))])

    def _outputs(self, rows: Sequence[Mapping[str, np.ndarray]]) -> Row:
        """Return the outputs of the task for those of the model for one audio."""
        (ids,) = (
            row["ids"] if "ids" in row else _best_path(row["logits"], self.config["pad_id"]) for row in rows
        )
        (text,) = self.text_methods.methods[DETOKENIZE]([ids.tolist()])
        return {"text": text}

    @classmethod
    def columns(cls, config: dict[str, Any]) -> dict[str, tuple[Tensor, ...]]:
        """Return the inputs: audio, and the numbers of samples of audio padded at the end."""
        audio = AudioTensor(
            "audio", "float32", (None,), axis="num_samples", sample_rate=config["sample_rate"]
        )
        return {DEFAULT: (audio, Tensor("lengths", "int64", default=ALL))}

    @classmethod
    def outputs(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the text."""
        return (Tensor("text", "string"),)

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

    @property
    def row_inputs(self) -> tuple[Tensor, ...]:
        """The inputs of `steps`."""
        return self.columns(self.config)[DEFAULT]

    def steps(self, row: Row) -> Steps[Row]:
        """Return the text of audio."""
        samples, length = row["audio"], row["lengths"]
        return (yield from self.recognized(samples if length == ALL else samples[: max(0, length)]))

    def feed(self, **arrays: Any) -> dict[str, np.ndarray]:
        """Return the graph's inputs; the lengths are by default those of audio without padding."""
        audio = np.asarray(arrays["audio"]) if "audio" in arrays else None
        if audio is not None and audio.ndim == 2:
            lengths = np.asarray(arrays.get("lengths", np.full(len(audio), ALL)))
            arrays["lengths"] = np.where(lengths == ALL, audio.shape[1], lengths)
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


def is_single(audio: Any) -> bool:
    """Return whether a value is one audio rather than a list of several."""
    if isinstance(audio, np.ndarray):
        return audio.ndim < 2 and audio.dtype != object
    return not isinstance(audio, list | tuple) or (len(audio) > 0 and isinstance(audio[0], float | int))


def check_samples(samples: np.ndarray, config: Mapping[str, Any]) -> None:
    """Raise an `InvalidInputError` unless audio (N,) is finite, and neither too short nor too long."""
    if not np.isfinite(samples).all():
        raise InvalidInputError("audio", "`audio` must be finite. Received: NaN or infinite samples")
    low, high = config["min_samples"], int(config["max_seconds"] * config["sample_rate"])
    if not low <= len(samples) <= high:
        raise InvalidInputError(
            "audio",
            f"`audio` must have {low} to {high} samples ({config['max_seconds']} seconds). "
            f"Received: {len(samples)} samples",
        )
