"""The signatures of a SavedModel of a generating pipeline."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer import generation, ops
from keras_transformer.generation.scoring import score_ids
from keras_transformer.generation.search.categorical import uniform
from keras_transformer.generation.validation import padding_value
from keras_transformer.lazy_tensorflow import tf
from keras_transformer.pipelines.generation_graphs import exportable, generate_ids
from keras_transformer.pipelines.pipeline import DEFAULT, Arrays, ExportedFunction, Preprocessed, spec_of
from keras_transformer.pipelines.ragged_rows import first_error
from keras_transformer.typing import Tensor
from keras_transformer_serving import uniform_noise
from keras_transformer_serving.pipelines import languages


class Signatures:
    """Functions of strings (B,), which share one traced generation loop.

    All return "error" (B,): the reason why a text is invalid and its other outputs are empty, or "". If the sampler
    returns N > 1 hypotheses, "text", "ids", "lengths" and "scores" have a second axis of size N.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._config = pipeline.config
        self._samples = isinstance(pipeline.sampler, generation.Sample)
        self._languages = [option.name for option in languages.options(self._config)]
        specs = {
            "source_ids": tf.TensorSpec([None, None], tf.int32),
            "padding_mask": tf.TensorSpec([None, None], tf.bool),
            "limits": tf.TensorSpec([None], tf.int32),
            "minimums": tf.TensorSpec([None], tf.int32),
        }
        if self._languages and pipeline.tokenizer.language_is_start:
            specs["start_ids"] = tf.TensorSpec([None], tf.int32)
        elif self._languages:
            specs["prefix_ids"] = tf.TensorSpec([None, 1], tf.int32)
        if self._samples:
            (noise,) = pipeline.noise(self._config)
            specs |= {"noise": spec_of(noise), "temperatures": tf.TensorSpec([None], tf.float32)}
        self._inputs = list(specs)
        self._loop = tf.function(
            lambda *tensors: generate_ids(pipeline, **dict(zip(specs, tensors, strict=True))),
            input_signature=list(specs.values()),
            autograph=False,
        )

    def graphs(self) -> dict[str, ExportedFunction]:
        """Return the signatures, by name."""
        functions = {
            DEFAULT: self.text_to_text,
            "generate": self.generate,
            "generate_ids": self.generate_ids,
            "encode": self.encode,
            "score": self.score,
        }
        declared = self._pipeline.tensors(self._config)
        return {name: ExportedFunction.of(functions[name], inputs) for name, (inputs, _) in declared.items()}

    def example_inputs(self, texts: Sequence[str]) -> dict[str, list[Arrays]]:
        """Return the inputs of each signature for texts."""
        sampler, limit = self._pipeline.sampler, self._pipeline.max_new_tokens
        rows, strings = np.arange(len(texts), dtype="int32"), np.array(texts, str)
        defaults = {name: np.repeat(value, len(rows)) for name, value in self._defaults().items()}
        row_languages = {
            name: np.array(values, str)
            for name, values in self._pipeline.example_languages(len(texts)).items()
        }
        values = {"text": strings, "target": strings, **row_languages, **defaults, "rows": rows}
        if self._samples:
            values["seed"] = np.full(len(rows), sampler.seed or 0)  # repeatable
            values["noise"] = uniform_noise(sampler.seed or 0, rows, sampler.num_return, limit)
        return {
            name: [{spec.name: values[spec.name] for spec in graph.inputs}]
            for name, graph in self.graphs().items()
        }

    def text_to_text(self, texts: Tensor, *row_languages: Tensor) -> dict[str, Tensor]:
        """Generate "text", of a model of many languages with those of texts and outputs."""
        out = self.generate_ids(texts, *row_languages)
        return {"text": self._decoded(out["ids"]), "error": out["error"]}

    def generate_ids(self, texts: Tensor, *inputs: Tensor) -> dict[str, Tensor]:
        """Generate "ids" int32 (B, M), "lengths" int32 (B,) and "scores" float32 (B,).

        Args:
            texts: strings (B,).
            *inputs: the languages of texts and outputs (B,) or (1,), of a model of many languages; and of sampling the
                noise (B, N, M), by default drawn from the sampler's seed, or a new seed, for rows 0, 1, 2, …
        """
        row_languages, noise = self._split(inputs)
        return self._run(self._pipeline.prepared(texts, row_languages), self._defaults(), *noise)

    def generate(self, texts: Tensor, *inputs: Tensor) -> dict[str, Tensor]:
        """Generate "text", "ids", "lengths" and "scores" with options for each text.

        Args:
            texts: strings (B,).
            *inputs: (B,) or (1,), the languages as in `generate_ids`, and options in the order of `options`.
        """
        defaults = self._defaults()
        row_languages, options = self._split(inputs)
        batch = self._pipeline.prepared(texts, row_languages)
        values_of = dict(zip(defaults, options, strict=True))
        ranges = {option.name: option.range for option in self._pipeline.options(self._config)}
        error = batch.error
        for name, values in values_of.items():
            low, high = ranges[name]
            received = tf.strings.as_string(values)
            message = tf.strings.join([f"`{name}` must be in [{low}, {high}]. Received: ", received])
            error = first_error(error, tf.where((values >= low) & (values <= high), "", message))
        clipped = {name: tf.clip_by_value(values, *ranges[name]) for name, values in values_of.items()}
        out = self._run(batch._replace(error=error), clipped)
        return {"text": self._decoded(out["ids"]), **out}

    def _defaults(self) -> Arrays:
        """Return the options of `generate`, by name, with their default values (1,)."""
        options = self._pipeline.options(self._config)
        return {option.name: np.array([option.default], option.names.numpy) for option in options}

    def _split(self, inputs: Sequence[Tensor]) -> tuple[dict[str, Tensor], Sequence[Tensor]]:
        """Return the languages, by option, and the inputs after them."""
        count = len(self._languages)
        return dict(zip(self._languages, inputs[:count], strict=True)), inputs[count:]

    def encode(self, texts: Tensor, *source_language: Tensor) -> dict[str, Tensor]:
        """Encode texts to "source_ids" int32 (B, S) and "padding_mask" booleans (B, S)."""
        options = dict(zip(self._languages, source_language, strict=False))
        batch = self._pipeline.preprocess(texts, **options)
        return {**batch.inputs, "error": batch.error}

    def score(self, texts: Tensor, targets: Tensor, *row_languages: Tensor) -> dict[str, Tensor]:
        """Score targets (B,) of T tokens, of a model of many languages with those of texts and outputs.

        Returns:
            "scores" float32 (B,), the summed log-probabilities, "token_scores" float32 (B, T) and "lengths" int32 (B,).
        """
        batch = self._pipeline.preprocess_pairs(texts, targets, self._split(row_languages)[0])
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
        self, batch: Preprocessed, options: dict[str, Any], noise: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Run the loop with options (B,) or (1,); invalid texts are emptied, so that it generates nothing for them."""
        accepted = (batch.error == "")[:, None]
        ids = tf.where(accepted, batch.inputs["source_ids"], padding_value(self._pipeline.model))
        size = tf.shape(ids)[:1]
        row_options = {name: tf.broadcast_to(values, size) for name, values in options.items()}
        values = {**batch.inputs, "source_ids": ids, "padding_mask": batch.inputs["padding_mask"] & accepted}
        if self._samples:
            if noise is None:
                rows = tf.where(row_options["rows"] < 0, tf.range(size[0]), row_options["rows"])
                steps = tf.range(self._pipeline.max_new_tokens)
                # Without a seed attribute, the operation is seeded when the server starts.
                new = tf.raw_ops.RandomUniformInt(
                    shape=[1], minval=tf.constant(0, tf.int64), maxval=tf.constant(2**32, tf.int64)
                )
                seeds = tf.where(row_options["seed"] < 0, new, row_options["seed"])
                noise = uniform(seeds, rows, self._pipeline.sampler.num_return, steps)
            values |= {"noise": noise, "temperatures": row_options["temperature"]}
        values["limits"] = row_options["max_new_tokens"]
        values["minimums"] = tf.minimum(row_options["min_new_tokens"], row_options["max_new_tokens"])
        out = self._loop(*(values[name] for name in self._inputs))
        return {**out, "error": batch.error}

    def _decoded(self, ids: Tensor) -> Tensor:
        """Decode ids (…, M) to strings."""
        rows = tf.reshape(ids, [-1, ids.shape[-1]])
        return tf.reshape(self._pipeline.decode(rows), tf.shape(ids)[:-1])
