"""Speech recognition."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from keras_transformer.models import CTC
from keras_transformer.pipelines.arguments import check_model, check_tokenizer
from keras_transformer.pipelines.base import DEFAULT, Arrays, Preprocessed
from keras_transformer.pipelines.forward import FORWARD, ForwardPipeline, check_no_texts, length_bucket
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive
from keras_transformer_serving.audio import checked_audio
from keras_transformer_serving.pipelines.errors import Errors, RowErrors, check_batch_size
from keras_transformer_serving.pipelines.speech_to_text import ALL, SpeechTask, is_single


class SpeechToText(SpeechTask, ForwardPipeline):
    """A pipeline of a model of speech and its tokenizer: from audio to text, with the features inside the graph.

    Args:
        model: such as `models.CTC`, that reads audio.
        tokenizer: with the model's vocabulary.
        max_seconds: the maximum duration of audio.

    Raises:
        TypeError: if the model does not read audio, or `tokenizer` is not a tokenizer.
        ValueError: if the vocabularies differ, or `max_seconds` is not positive.

    Example:
        >>> recognize = SpeechToText(model, tokenizer)
        >>> recognize(["turn_left.wav", samples])
        ['turn left', 'stop']
    """

    model_classes: ClassVar[tuple[type, ...]] = (CTC,)

    def __init__(self, model: Any, tokenizer: Any, max_seconds: float = 30.0) -> None:
        check_model(model, "a recognizer of speech, such as `models.CTC`", "sample_rate", "greedy_ids")
        if model.sample_rate is None:
            raise TypeError("`model` must read audio rather than frames. Received: model.sample_rate=None")
        check_tokenizer(tokenizer)
        check_positive(max_seconds=max_seconds)
        for name in ("vocabulary_size", "pad_id"):
            if getattr(model, name) != getattr(tokenizer, name):
                raise ValueError(
                    f"`model` and `tokenizer` must have the same {name}. Received: "
                    f"model.{name}={getattr(model, name)}, tokenizer.{name}={getattr(tokenizer, name)}"
                )
        self.model, self.tokenizer = model, tokenizer
        self.max_seconds = float(max_seconds)

    def __call__(self, audio: Any, batch_size: int = 16, *, errors: Errors = "raise") -> Any:
        """Return the text of each audio.

        Args:
            audio: a list of floats (N,) at the model's `sample_rate`, usually in [−1, 1], or of paths of WAV files; or
                a single one.
            batch_size: the number of rows in a batch.
            errors: "raise" the error of an audio, or "return" it in place of the text.

        Returns:
            A list as long as `audio`, or a string for a single one.

        Raises:
            FileNotFoundError: if a file does not exist.
            ValueError: if audio is neither an array nor a path, has another sample rate, several channels or integers,
                is not finite, or is too short or too long.
        """
        check_batch_size(batch_size)
        if is_single(audio):
            return self([audio], batch_size, errors=errors)[0]
        row_errors, samples = RowErrors(errors), [np.zeros(0, np.float32)] * len(audio)
        for row, each in enumerate(audio):
            with row_errors.of(row):
                samples[row] = checked_audio(each, self.model.sample_rate)
        accepted = row_errors.accepted(len(samples))
        order = sorted(accepted, key=lambda row: len(samples[row]))
        config = self.config
        rows = self._rows([samples], batch_size, order, row_errors)
        return row_errors.merge({row: self.answer(outputs, config) for row, outputs in rows.items()})

    @property
    def padding(self) -> dict[str, tuple[int, float]]:
        """The axis of samples, and their padding value."""
        return {"audio": (1, 0.0)}

    def preprocess(self, audio: Tensor, lengths: Tensor | None = None) -> Preprocessed:
        """Check audio (B, N), of lengths (B,) if it is padded, as TensorFlow operations."""
        if lengths is None:
            lengths = tf.fill(tf.shape(audio)[:1], ALL)
        lengths = tf.cast(tf.where(lengths == ALL, tf.shape(audio, lengths.dtype)[1], lengths), tf.int32)
        is_real = tf.range(tf.shape(audio)[1]) < lengths[:, None]
        finite = tf.reduce_all(tf.math.is_finite(audio) | ~is_real, axis=1)
        low, high = self.min_samples, int(self.max_seconds * self.model.sample_rate)
        fits = (lengths >= low) & (lengths <= high) & (lengths <= tf.shape(audio)[1])
        wrong_length = tf.strings.join(
            [
                f"`audio` must have {low} to {high} samples ({self.max_seconds} seconds). Received: ",
                tf.strings.as_string(lengths),
                " samples",
            ]
        )
        error = tf.where(finite, "", "`audio` must be finite. Received: NaN or infinite samples")
        error = tf.where(fits, error, wrong_length)
        accepted = finite & fits
        inputs = {
            "audio": tf.where(accepted[:, None] & is_real, audio, 0.0),
            "lengths": tf.where(accepted, lengths, 0),
        }
        return Preprocessed(inputs, error, {})

    def model_inputs(self, *arrays: Tensor) -> dict[str, Tensor]:
        """Return the model's inputs for audio and its lengths."""
        audio, lengths = arrays
        return {"audio": audio, "lengths": tf.cast(lengths, tf.int32)}

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the ids (B, T) of the texts, with padding between them."""
        return {"ids": self.model.greedy_ids(self.model(inputs, training=False))}

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Convert ids to "text" (B,)."""
        return {"text": self.tokenizer.detokenize(outputs["ids"])}

    def example_inputs(self, texts: Any = None) -> dict[str, list[Arrays]]:
        """Return noise as inputs of an export's signatures; see `Pipeline`."""
        check_no_texts(self, texts)
        random, rate = np.random.default_rng(0), self.model.sample_rate
        audio = [
            {
                "audio": 0.1 * random.normal(size=(len(lengths), max(lengths))).astype("float32"),
                "lengths": np.array(lengths, "int64"),
            }
            for lengths in ([rate, rate // 2, rate - 77], [rate // 2])
        ]
        return {FORWARD: audio, DEFAULT: audio}

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        rate = {"sample_rate": self.model.sample_rate, "min_samples": self.min_samples}
        return {**super().export_config(), **rate}

    @property
    def min_samples(self) -> int:
        """The number of samples of the shortest audio: of one frame."""
        return int(self.model.encoder.features.hop_length)

    def _preprocessed(
        self, inputs: Sequence[Sequence[Any]], indices: Sequence[int], **options: Any
    ) -> Preprocessed:
        """Pad the rows of audio at `indices`, to one of a few sizes, and preprocess them."""
        rows = [inputs[0][index] for index in indices]
        if len(inputs) == 2 and len(rows):  # lengths of audio that is padded already
            rows = [
                row if length == ALL else row[:length] for row, length in zip(rows, inputs[1], strict=True)
            ]
        lengths = np.array([len(row) for row in rows], np.int64)
        audio = np.zeros((len(rows), length_bucket(int(lengths.max(initial=1)))), np.float32)
        for row, values in zip(rows, audio, strict=True):
            values[: len(row)] = row
        return super()._preprocessed([audio, lengths], np.arange(len(rows)), **options)
