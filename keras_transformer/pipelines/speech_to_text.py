"""Speech recognition."""

import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from keras import ops

from keras_transformer import ops as kt_ops
from keras_transformer.generation import samplers
from keras_transformer.generation.constraints import serialize as serialize_constraint
from keras_transformer.generation.loop import run_search
from keras_transformer.generation.search.base import Inputs
from keras_transformer.generation.settings import Settings
from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models import CTC, Whisper
from keras_transformer.pipelines.arguments import check_model, check_tokenizer
from keras_transformer.pipelines.babble import babble
from keras_transformer.pipelines.base import DEFAULT, Arrays, Preprocessed
from keras_transformer.pipelines.forward import FORWARD, ForwardPipeline, check_no_texts
from keras_transformer.pipelines.hugging_face_generation import GENERATION_CONFIG, settings_from
from keras_transformer.pipelines.hugging_face_speech import prefix_of, write_features
from keras_transformer.pipelines.tokenizer_methods import methods_of
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_ids, check_positive
from keras_transformer_serving import files
from keras_transformer_serving.pipelines.speech_to_text import ALL, SpeechTask
from keras_transformer_serving.text.methods import TextMethods

_MAX_SECONDS = 30.0


class SpeechToText(SpeechTask, ForwardPipeline):
    """A pipeline of a model of speech and its tokenizer: from audio to text, with the features inside the graph.

    Args:
        model: such as `models.CTC`, that reads audio, or `models.Whisper`.
        tokenizer: with the model's vocabulary.
        generation: for a model that generates, a `Greedy` or `Beam`, or its name.
        constraints: for a model that generates, constraints on the text, such as `generation.BannedWords`.
        prefix_ids: for a model that generates, the ids before each text, such as those of a language and a task.
        max_new_tokens: for a model that generates, the maximum number of tokens of a text.
        max_seconds: the maximum duration of audio, by default 30 seconds or, if it is shorter, the model's duration.

    Raises:
        TypeError: if the model does not read audio, or `tokenizer` is not a tokenizer.
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
        max_new_tokens: int = 128,
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
        if hasattr(model, "step"):
            check_ids(model.vocabulary_size, **{f"prefix_ids[{i}]": id_ for i, id_ in enumerate(prefix_ids)})
            self.prefix_ids = [int(id_) for id_ in prefix_ids]
            settings = Settings.of(model, generation, max_new_tokens, 0, constraints)
            check(not settings.sampler.draws, "not sample for speech", generation=settings.sampler)
            limit = model.max_length - len(self.prefix_ids)
            positions = f"be at most {limit}, the positions of the model after `prefix_ids`"
            check(max_new_tokens <= limit, positions, max_new_tokens=max_new_tokens)
            self._generation = settings
            self.sampler, self.max_new_tokens = settings.sampler, settings.max_new_tokens
            self.constraints = settings.logits_processors.constraints

    @property
    def text_methods(self) -> TextMethods:  # type: ignore[override]
        """The methods of the tokenizer, in TensorFlow's graph or without TensorFlow."""
        return methods_of(self.tokenizer)

    @property
    def padding(self) -> dict[str, tuple[int, float]]:
        """The axis of samples, and their padding value."""
        return {"audio": (1, 0.0)}

    @property
    def max_padded_length(self) -> int:
        """The number of samples of the longest audio."""
        return int(self.max_seconds * self.model.sample_rate)

    def preprocess(self, audio: Tensor, lengths: Tensor | None = None) -> Preprocessed:
        """Check audio (B, N), of lengths (B,) if it is padded, as TensorFlow operations."""
        if lengths is None:
            lengths = tf.fill(tf.shape(audio)[:1], ALL)
        lengths = tf.cast(tf.where(lengths == ALL, tf.shape(audio, lengths.dtype)[1], lengths), tf.int32)
        is_real = tf.range(tf.shape(audio)[1]) < lengths[:, None]
        finite = tf.reduce_all(tf.math.is_finite(audio) | ~is_real, axis=1)
        low, high = self.min_samples, self.max_padded_length
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
        return {"audio": audio, "lengths": ops.cast(lengths, "int32")}

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the logits (B, T', V), zeros after the end of a row, or of a model that generates the ids (B, T)."""
        if self._generation is None:
            logits = self.model(inputs, training=False)
            return {
                "logits": ops.where(self.model.is_real(inputs["lengths"], ops.shape(logits)[1]), logits, 0.0)
            }
        audio, lengths = inputs["audio"], inputs["lengths"]
        is_real = ops.arange(ops.shape(audio)[1], dtype="int32") < ops.cast(lengths, "int32")[:, None]
        prefix = ops.zeros((ops.shape(audio)[0], 1), "int32") + np.array([self.prefix_ids], "int32")
        found = run_search(
            Inputs(
                self.model,
                self._generation,
                kt_ops.StaticCache(in_place=False),
                ops.where(is_real, audio, 0.0),
                prefix_ids=prefix if self.prefix_ids else None,
            )
        )
        return {"ids": found["ids"][:, 0]}

    def postprocess(self, outputs: dict[str, Tensor], batch: Preprocessed) -> dict[str, Tensor]:
        """Convert logits or ids to "text" (B,)."""
        ids = outputs["ids"] if "ids" in outputs else self._best_path(outputs["logits"])
        return {"text": self.tokenizer.detokenize(ids)}

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
        return {FORWARD: audio, DEFAULT: audio}

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
            "max_new_tokens": self.max_new_tokens,
        }

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        config = {**super().export_config(), "sample_rate": self.model.sample_rate}
        # The graph has the generation loop, so that serving does not generate.
        for name in ("generation", "constraints", "prefix_ids", "max_new_tokens"):
            config.pop(name, None)
        return {**config, "min_samples": self.min_samples}

    @property
    def min_samples(self) -> int:
        """The number of samples of the shortest audio: of one frame."""
        return int(self.model.features.hop_length)

    @classmethod
    def hugging_face_arguments(cls, folder: Any, config: Any, model: Any, settings: Any) -> dict[str, Any]:
        """Return the sampler, the constraints, the maximum number of tokens, and the ids before each text."""
        prefix = list(settings["prefix_ids"] if "prefix_ids" in settings else prefix_of(folder))
        # The maximum length of `transformers` includes the start token and the prefix.
        limit = model.max_length - 1 - len(prefix)
        found = settings_from(folder, model, settings)
        if "max_new_tokens" not in settings:
            found["max_new_tokens"] = min(limit, found.get("max_new_tokens", limit))
        return {**found, "prefix_ids": prefix}

    @property
    def hugging_face_rows(self) -> dict[str, bool]:
        """The prefix of texts is a setting of generation."""
        return {"add_start": False, "add_end": False}

    def write_hugging_face(self, folder: pathlib.Path) -> None:
        """Write the prefix of texts into generation_config.json, and the features."""
        path = folder / GENERATION_CONFIG
        prefix = [[place, id_] for place, id_ in enumerate(self.prefix_ids, 1)]
        # Without timestamps, whose token is in the prefix.
        settings = {"forced_decoder_ids": prefix or None, "return_timestamps": False}
        files.write_json(path, {**files.read_json(path), **settings})
        write_features(self.model, folder)
