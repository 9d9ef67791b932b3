"""The signatures of a SavedModel of a generating pipeline."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer import generation, ops
from keras_transformer.generation.constraints import MinNewTokens
from keras_transformer.generation.scoring import score_ids
from keras_transformer.generation.search.categorical import uniform
from keras_transformer.generation.validation import padding_value
from keras_transformer.pipelines.base import DEFAULT, Arrays, Graph, Preprocessed
from keras_transformer.pipelines.generation_graphs import exportable, generate_ids, noise_spec
from keras_transformer.pipelines.texts import first_error
from keras_transformer.typing import Tensor
from keras_transformer_serving import uniform_noise


class Signatures:
    """Functions of strings (B,), which share one traced generation loop.

    All return "error" (B,): the reason why a text is refused, whose other outputs are empty, or "". If the sampler
    returns N > 1 hypotheses, "text", "ids", "lengths" and "scores" have an axis of N after the first.

    Args:
        pipeline: the pipeline.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._samples = isinstance(pipeline.sampler, generation.Sample)
        matrix = [tf.TensorSpec([None, None], dtype) for dtype in (tf.int32, tf.bool)]
        specs = [*matrix, tf.TensorSpec([None], tf.int32), *noise_spec(pipeline)]
        self._loop = tf.function(
            lambda source_ids, padding_mask, limits, noise=None: generate_ids(
                pipeline, source_ids, padding_mask, limits=limits, noise=noise
            ),
            input_signature=specs,
            autograph=False,
        )

    def graphs(self) -> dict[str, Graph]:
        """Return the signatures, by name."""
        text, target = (tf.TensorSpec([None], tf.string, name=name) for name in ("text", "target"))
        limits, rows = (tf.TensorSpec([None], tf.int32, name=name) for name in ("max_new_tokens", "rows"))
        return {
            DEFAULT: Graph(self.text_to_text, [text]),
            "generate": Graph(self.generate, [text, limits, *([rows] if self._samples else [])]),
            "generate_ids": Graph(self.generate_ids, [text, *noise_spec(self._pipeline)]),
            "encode": Graph(self.encode, [text]),
            "score": Graph(self.score, [text, target]),
        }

    def example_inputs(self, texts: Sequence[str]) -> dict[str, list[Arrays]]:
        """Return the inputs of each signature for texts."""
        sampler, limit = self._pipeline.sampler, self._pipeline.max_new_tokens
        rows, given = np.arange(len(texts), dtype="int32"), np.array(texts, str)
        values = {"text": given, "target": given, "max_new_tokens": np.full_like(rows, limit), "rows": rows}
        if self._samples:
            values["noise"] = uniform_noise(sampler.seed, rows, sampler.num_return, limit)
        return {
            name: [{spec.name: values[spec.name] for spec in graph.inputs}]
            for name, graph in self.graphs().items()
        }

    def text_to_text(self, texts: Tensor) -> dict[str, Tensor]:
        """Generate "text"."""
        out = self.generate_ids(texts)
        return {"text": self._decoded(out["ids"]), "error": out["error"]}

    def generate_ids(self, texts: Tensor, noise: Tensor | None = None) -> dict[str, Tensor]:
        """Generate "ids" int32 (B, M), "lengths" int32 (B,) and "scores" float32 (B,).

        Sampling uses `noise` (B, N, M), by default that of the sampler's seed for rows 0, 1, 2, …
        """
        batch = self._pipeline.preprocess(texts)
        rows = tf.range(tf.size(batch.error))
        return self._run(batch, tf.zeros_like(rows) + self._pipeline.max_new_tokens, rows, noise)

    def generate(
        self, texts: Tensor, max_new_tokens: Tensor, rows: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Generate "text", "ids", "lengths" and "scores" with options for each text.

        Args:
            texts: strings (B,).
            max_new_tokens: int32 (B,), the maximum number of new tokens, at most that of the pipeline.
            rows: int32 (B,), the row numbers that seed the noise of sampling.
        """
        batch, constraints = self._pipeline.preprocess(texts), self._pipeline.constraints
        least = max([1, *(each.count for each in constraints if isinstance(each, MinNewTokens))])
        most = self._pipeline.max_new_tokens
        limits = tf.clip_by_value(max_new_tokens, least, most)
        received = tf.strings.as_string(max_new_tokens)
        error = tf.strings.join([f"`max_new_tokens` must be in [{least}, {most}]. Received: ", received])
        error = first_error(batch.error, tf.where(limits == max_new_tokens, "", error))
        out = self._run(batch._replace(error=error), limits, rows)
        return {"text": self._decoded(out["ids"]), **out}

    def encode(self, texts: Tensor) -> dict[str, Tensor]:
        """Encode texts to "source_ids" int32 (B, S) and "padding_mask" booleans (B, S)."""
        batch = self._pipeline.preprocess(texts)
        return {**batch.inputs, "error": batch.error}

    def score(self, texts: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Score given outputs (B,) of T tokens.

        Returns:
            "scores" float32 (B,), the summed log-probabilities, "token_scores" float32 (B, T) and "lengths" int32 (B,).
        """
        batch = self._pipeline.preprocess_pairs(texts, targets)
        inputs = dict(batch.inputs)
        real = inputs.pop("target_padding_mask")
        token_scores = score_ids(exportable(self._pipeline.model), **inputs, kv_cache=ops.GrowingCache())
        token_scores = tf.where(real, token_scores, 0.0)
        return {
            "scores": tf.reduce_sum(token_scores, axis=1),
            "token_scores": token_scores,
            "lengths": tf.reduce_sum(tf.cast(real, tf.int32), axis=1),
            "error": batch.error,
        }

    def _run(
        self, batch: Preprocessed, limits: Tensor, rows: Tensor | None, noise: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Run the loop; refused texts are empty, for which it generates nothing."""
        sampler = self._pipeline.sampler
        accepted = (batch.error == "")[:, None]
        ids = tf.where(accepted, batch.inputs["source_ids"], padding_value(self._pipeline.model))
        if self._samples and noise is None:
            steps = tf.range(self._pipeline.max_new_tokens)
            noise = uniform(sampler.seed, rows, sampler.num_return, steps)
        given = (noise,) if self._samples else ()
        out = self._loop(ids, batch.inputs["padding_mask"] & accepted, limits, *given)
        return {**out, "error": batch.error}

    def _decoded(self, ids: Tensor) -> Tensor:
        """Decode ids (…, M) to strings."""
        rows = tf.reshape(ids, [-1, ids.shape[-1]])
        return tf.reshape(self._pipeline.decode(rows), tf.shape(ids)[:-1])
