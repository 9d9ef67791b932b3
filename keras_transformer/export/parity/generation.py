"""Parity of generated ids between an export and its pipeline."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (a SavedModel has its operations)

import keras_transformer_serving as serving
from keras_transformer import generation
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.pipelines.texts import accepted_texts
from keras_transformer_serving import parity
from keras_transformer_serving.parity import Answers
from keras_transformer_serving.pipelines.generating import GeneratingTask

SAVED_MODEL = "saved_model"
_BATCH = 64


class Reference(parity.Reference):
    """Reference outputs of a pipeline, made by running it."""

    @classmethod
    def of(cls, pipeline: Any, texts: Sequence[str] | None = None, as_ids: bool = False) -> "Reference":
        """Run a pipeline on `texts`, by default made from its vocabulary; `as_ids` is for graphs that take ids."""
        texts = accepted_texts(pipeline) if texts is None else list(texts)
        if not texts:
            raise ValueError("`texts` must not be empty. Received: texts=[]")
        if isinstance(pipeline.sampler, generation.Sample):
            texts = texts[:_BATCH]
            if pipeline.sampler.seed is None:
                pipeline = pipeline.with_settings(dataclasses.replace(pipeline.sampler, seed=parity.SEED))
        out = pipeline.generate(texts)
        ids = out.ids if pipeline.sampler.num_return > 1 else out.best
        scores = out.scores[:, 0]
        model = pipeline.model
        sampler = pipeline.sampler
        greedy = sampler.hypotheses == 1 and not isinstance(
            sampler, generation.Sample | generation.Contrastive
        )

        def gap(row: int, column: int, id_: int, other: int) -> float:
            source, before = np.asarray(pipeline.encode([texts[row]])), ids[row : row + 1, :column]
            if is_encoder_decoder(model):
                start = np.full((1, 1), model.start_id)
                inputs = {"source_ids": source, "target_ids": np.concatenate([start, before], axis=1)}
            else:
                inputs = np.concatenate([source, before], axis=1)
            logits = np.asarray(model(inputs))[0, -1]
            return float(abs(logits[id_] - logits[other]))

        def rank(row: int, hypotheses: np.ndarray) -> np.ndarray:
            sources = np.repeat(pipeline.encode([texts[row]]), len(hypotheses), axis=0)
            scores = generation.score(model, sources, hypotheses)
            return scores.scores / sampler.penalties(pipeline.max_new_tokens)[scores.lengths]

        if as_ids:
            inputs = pipeline.preprocess(tf.constant(texts)).inputs
            model_inputs = tf.ragged.boolean_mask(inputs["source_ids"], inputs["padding_mask"]).to_list()
            answers = ids.tolist()
        else:
            model_inputs = texts
            decoded = pipeline.decode(ids.reshape(-1, ids.shape[-1])).numpy()
            answers = _strings(decoded.reshape(ids.shape[:-1]))
        if greedy and not pipeline.constraints:
            return cls(model_inputs, ids, answers, gap, scores=scores)
        greedy_reference = cls.of(pipeline.with_settings("greedy", constraints=()), texts, as_ids)
        ranked = rank if isinstance(sampler, generation.Beam) and not greedy else None
        return cls(model_inputs, ids, answers, gap if greedy else None, ranked, greedy_reference, scores)


class SavedModel:
    """A SavedModel on disk, run by TensorFlow without XLA; `config` has the export's settings."""

    def __init__(self, path: pathlib.Path, config: dict[str, Any]) -> None:
        self._signatures = tf.saved_model.load(str(path)).signatures
        self._new_seed = config["generation"].get("seed", parity.SEED) is None
        self._config = parity.seeded(config)

    def __call__(self, texts: Sequence[str]) -> Answers:
        """Return the ids and texts that its signatures generate, or raise the first error as a ValueError."""
        ids, answers = [], []
        for begin in range(0, len(texts), _BATCH):
            batch = tf.constant(list(texts[begin : begin + _BATCH]), tf.string)
            ids.append(self._signatures["generate_ids"](text=batch, **self._noise(len(batch)))["ids"].numpy())
            outputs = self._texts(batch)
            for index, error in enumerate(_strings(outputs["error"].numpy())):
                if error:
                    raise ValueError(f"{error} in texts[{begin + index}]")
            answers += _strings(outputs["text"].numpy())
        return {SAVED_MODEL: (np.concatenate(ids), answers)}

    def _texts(self, batch: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the outputs of "serving_default", or of "generate" with a fixed seed if the former draws new ones."""
        if not self._new_seed:
            return self._signatures["serving_default"](text=batch)
        options = {
            option.name: tf.constant([option.default], option.dtype)
            for option in GeneratingTask.options(self._config)
        }
        return self._signatures["generate"](text=batch, **options)

    def _noise(self, rows: int) -> dict[str, tf.Tensor]:
        seed, numbers = self._config["generation"].get("seed"), np.arange(rows)
        return {
            tensor.name: tf.constant(serving.uniform_noise(seed, numbers, *tensor.shape))
            for tensor in GeneratingTask.noise(self._config)
        }


def _strings(texts: np.ndarray) -> list[Any]:
    """Decode bytes (B,) or (B, N) to lists of strings."""
    return [text.decode() if isinstance(text, bytes) else _strings(text) for text in texts]
