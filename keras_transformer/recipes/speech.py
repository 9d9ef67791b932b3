"""Recipe of a recognizer of speech."""

import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from keras_transformer import data, layers, models, pipelines
from keras_transformer.recipes import scores
from keras_transformer.recipes.pretrained import check_pipeline
from keras_transformer.recipes.recipe import Recipe
from keras_transformer_options.arguments import ArgumentError
from keras_transformer_options.tasks import SpeechOptions

Example = tuple[pathlib.Path | str | np.ndarray, str]


class Speech(SpeechOptions, Recipe):
    """Train a recognizer of speech, a `models.CTC`, on audio and its transcripts.

    Examples are (path of a WAV file or floats (N,), transcript). The held-out fraction of `validation` may have
    speakers of the training examples; files with other speakers measure how well the model recognizes those.

    The options are the fields of `SpeechOptions` and of its base classes in `keras_transformer_options`.

    Example:
        >>> recognize, history = Speech("commands.tsv", epochs=50).train()  # doctest: +SKIP
        >>> recognize("0001.wav")  # doctest: +SKIP
        'turn left'
    """

    size_arguments: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"num_layers": 4, "num_heads": 4, "model_dim": 128, "hidden_dim": 512},
        "small": {"num_layers": 8, "num_heads": 4, "model_dim": 256, "hidden_dim": 1024},
        "base": {"num_layers": 12, "num_heads": 8, "model_dim": 512, "hidden_dim": 2048},
    }

    def read(self, paths: Any) -> Sequence[Example]:
        """Read the paths of WAV files and their transcripts."""
        return data.read_transcripts(
            paths,
            self.columns,
            sample_rate=self.sample_rate,
            resample=self.resample,
            **self.file_format,
            on_error=self.on_error,
        )

    def split(self, examples: Sequence[Example]) -> tuple[Any, Any]:
        """Hold out a fraction of the examples; equal audio stays together."""
        return data.split(examples, self.validation, self.seed, key=_identity)

    def new_pipeline(self, train: Sequence[Example]) -> pipelines.SpeechToText:
        """Create a model with its features and tokenizer, or take those of a `SpeechToText`."""
        if self.from_ is not None:
            return self._checked(check_pipeline(self.pretrained(), pipelines.SpeechToText))
        tokenizer = self.new_tokenizer(text for _, text in train)
        features = layers.LogMelSpectrogram(
            sample_rate=self.sample_rate,
            window_length=2 * (self.sample_rate // 80),  # 25 ms
            hop_length=self.sample_rate // 100,
            normalization="utterance",
        )
        encoder = models.SpeechEncoder(**self.sizes(), features=features)
        model = models.CTC(encoder, tokenizer.vocabulary_size)
        return pipelines.SpeechToText(model, tokenizer, max_seconds=self.max_seconds)

    def batches(self, examples: Sequence[Example], pipeline: Any, shuffle: bool) -> Any:
        """Return batches of audio and the ids of its transcripts."""
        audio, texts = zip(*examples, strict=True)
        return data.speech_recognition(
            audio,
            texts,
            pipeline.tokenizer,
            output_lengths=pipeline.model.encoder.output_lengths,
            sample_rate=pipeline.model.sample_rate,
            resample=self.resample,
            max_seconds=pipeline.max_seconds,
            max_length=self.max_length,
            **self.batching(shuffle),
        )

    def loss(self, pipeline: Any) -> tuple[Any, list[Any]]:
        """Return the loss of connectionist temporal classification."""
        del pipeline
        return keras.losses.CTC(), []

    def evaluate(self, pipeline: Any, examples: Sequence[Example]) -> dict[str, Any]:
        """Return the word error rate, and examples; audio that the pipeline rejects has no words."""
        audio, references = map(list, zip(*examples, strict=True))
        answers = [
            "" if isinstance(answer, Exception) else answer
            for answer in pipeline(audio, resample=self.resample, errors="return")
        ]
        rows = [
            {
                "input": f"audio {number}" if isinstance(source, np.ndarray) else str(source),
                "reference": reference,
                "answer": answer,
            }
            for number, (source, reference, answer) in enumerate(zip(audio, references, answers, strict=True))
        ]
        return {
            "word_error_rate": scores.word_error_rate(references, answers),
            "num_examples": len(rows),
            "examples": scores.wrong_first(rows),
        }

    def _checked(self, pipeline: pipelines.SpeechToText) -> pipelines.SpeechToText:
        """Return a pipeline, or raise an error if its model is not a `CTC` or reads audio of another rate."""
        model = pipeline.model
        if not isinstance(model, models.CTC):
            raise ArgumentError(
                "{from_} must be a pipeline of a `models.CTC`. Received: a {name!s}",
                name=type(model).__name__,
            )
        if model.sample_rate != self.sample_rate:
            raise ArgumentError(
                "{sample_rate} must be that of the model in {from_}, {expected!s}",
                expected=model.sample_rate,
                sample_rate=self.sample_rate,
            )
        return pipeline


def _identity(example: Example) -> Any:
    audio = example[0]
    return audio.tobytes() if isinstance(audio, np.ndarray) else str(audio)
