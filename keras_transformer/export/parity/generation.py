"""Parity of generated ids between an export and its pipeline."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (a SavedModel has its operations)

import keras_transformer_serving as serving
from keras_transformer import generation, xla
from keras_transformer.export.parity.near_ties import beams_of, near_choices_of, near_ties_of
from keras_transformer.export.to_onnx import tf2onnx_speed
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.pipelines.example_texts import accepted_texts, continued_texts
from keras_transformer_serving import parity
from keras_transformer_serving.parity import Answers
from keras_transformer_serving.pipelines import languages
from keras_transformer_serving.pipelines.generating import GeneratingTask

SAVED_MODEL = "saved_model"
_BATCH = 64


class Reference(parity.Reference):
    """Reference outputs of a pipeline, made by running it."""

    @classmethod
    def of(cls, pipeline: Any, texts: Sequence[str] | None = None, as_ids: bool = False) -> "Reference":
        """Run a pipeline on `texts`, by default made from its vocabulary, and by a language model continued.

        `as_ids` is for graphs that take ids.
        """
        if texts is None:
            texts = (accepted_texts if is_encoder_decoder(pipeline.model) else continued_texts)(pipeline)
        texts = list(texts)
        if not texts:
            raise ValueError("`texts` must not be empty. Received: texts=[]")
        if isinstance(pipeline.sampler, generation.Sample):
            texts = texts[:_BATCH]
            if pipeline.sampler.seed is None:
                pipeline = pipeline.with_settings(dataclasses.replace(pipeline.sampler, seed=parity.SEED))
        row_languages = pipeline.example_languages(len(texts))
        with xla.off(), tf2onnx_speed.one_operation_per_value():
            out = pipeline.generate(texts, **row_languages)
        ids = out.ids if pipeline.sampler.num_return > 1 else out.best
        scores = out.scores[:, 0]
        sampler = pipeline.sampler

        def inputs_of(row: int) -> dict[str, np.ndarray]:
            of_row = {name: values[row : row + 1] for name, values in row_languages.items()}
            return pipeline.prepared(tf.constant([texts[row]]), of_row).arrays()

        def search(other: Any, rows: np.ndarray) -> generation.Generation:
            of_rows = {name: [values[row] for row in rows] for name, values in row_languages.items()}
            with xla.off():
                found: generation.Generation = other.generate([texts[row] for row in rows], **of_rows)
            return found

        if as_ids:
            inputs = pipeline.prepared(tf.constant(texts), row_languages).inputs
            model_inputs = tf.ragged.boolean_mask(inputs["source_ids"], inputs["padding_mask"]).to_list()
            answers = ids.tolist()
        else:
            model_inputs = texts
            decoded = pipeline.decode(ids.reshape(-1, ids.shape[-1])).numpy()
            answers = _strings(decoded.reshape(ids.shape[:-1]))
        near_ties = near_ties_of(pipeline, out, inputs_of)
        near_choices = near_choices_of(pipeline, out, inputs_of)
        draws = isinstance(sampler, generation.Sample)
        is_greedy = near_ties is not None and not draws and not isinstance(sampler, generation.Contrastive)
        if is_greedy and not pipeline.constraints:
            return cls(
                model_inputs,
                ids,
                answers,
                near_ties,
                scores=scores,
                languages=row_languages,
                near_choices=near_choices,
            )
        greedy = cls.of(pipeline.with_settings("greedy", constraints=None if draws else ()), texts, as_ids)
        return cls(
            model_inputs,
            ids,
            answers,
            near_ties,
            beams_of(pipeline, out, inputs_of, search),
            greedy.greedy or greedy,
            scores,
            row_languages,
            draws,
            greedy if greedy.greedy else None,
            near_choices,
        )


class GeneratingSavedModel:
    """A SavedModel on disk, run by TensorFlow without XLA; `config` has the export's settings."""

    def __init__(self, path: pathlib.Path, config: dict[str, Any]) -> None:
        self._signatures = tf.saved_model.load(str(path)).signatures
        self._new_seed = config["generation"].get("seed", parity.SEED) is None
        self._config = parity.seeded(config)
        self._defaults = {option.name: option.default for option in languages.options(config)}

    def __call__(self, texts: Sequence[str], **row_languages: Any) -> Answers:
        """Return the ids and texts that its signatures generate, or raise the first error as a ValueError.

        Args:
            texts: the inputs.
            **row_languages: for a model of many languages, those of the texts and outputs; by default the export's.
        """
        ids, answers = [], []
        row_languages = languages.of_each(len(texts), bool(self._defaults), **row_languages)
        rows = {
            name: row_languages.get(name, [default] * len(texts)) for name, default in self._defaults.items()
        }
        for begin in range(0, len(texts), _BATCH):
            batch = tf.constant(list(texts[begin : begin + _BATCH]), tf.string)
            columns = {name: tf.constant(values[begin : begin + _BATCH]) for name, values in rows.items()}
            noise = self._noise(len(batch))
            ids.append(self._signatures["generate_ids"](text=batch, **columns, **noise)["ids"].numpy())
            outputs = self._texts(batch, columns)
            for index, error in enumerate(_strings(outputs["error"].numpy())):
                if error:
                    raise ValueError(f"{error} in texts[{begin + index}]")
            answers += _strings(outputs["text"].numpy())
        return {SAVED_MODEL: (np.concatenate(ids), answers)}

    def _texts(self, batch: tf.Tensor, row_languages: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the outputs of "serving_default", or of "generate" with a fixed seed if the former draws new ones."""
        if not self._new_seed:
            return self._signatures["serving_default"](text=batch, **row_languages)
        options = {
            option.name: tf.constant([option.default], option.dtype)
            for option in GeneratingTask.options(self._config)
        }
        return self._signatures["generate"](text=batch, **row_languages, **options)

    def _noise(self, rows: int) -> dict[str, tf.Tensor]:
        seed, numbers = self._config["generation"].get("seed"), np.arange(rows)
        return {
            tensor.name: tf.constant(serving.uniform_noise(seed, numbers, *tensor.shape))
            for tensor in GeneratingTask.noise(self._config)
        }


def _strings(texts: np.ndarray) -> list[Any]:
    """Decode bytes (B,) or (B, N) to lists of strings."""
    return [text.decode() if isinstance(text, bytes) else _strings(text) for text in texts]
