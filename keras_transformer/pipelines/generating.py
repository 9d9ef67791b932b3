"""The base class of pipelines that generate texts, and score and align target texts."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from keras_transformer.generation import samplers
from keras_transformer.generation.constraints import EndTokens
from keras_transformer.generation.constraints import serialize as serialize_constraint
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.generation.settings import Settings
from keras_transformer.generation.validation import padding_value
from keras_transformer.lazy_tensorflow import is_installed, tf
from keras_transformer.pipelines import arguments, generation_graphs
from keras_transformer.pipelines.example_texts import accepted_texts
from keras_transformer.pipelines.generation_signatures import Signatures
from keras_transformer.pipelines.hugging_face_generation import settings_from
from keras_transformer.pipelines.keras_engine import KerasEngine
from keras_transformer.pipelines.pipeline import Arrays, ExportedFunction, Pipeline, Preprocessed
from keras_transformer.pipelines.ragged_rows import accepted_rows, first_error, padded, utf8_error
from keras_transformer.pipelines.tokenizer_methods import methods_of
from keras_transformer.text.tokenizers.strings import to_string_tensor
from keras_transformer.typing import Tensor
from keras_transformer_serving.generation import padded as padded_rows
from keras_transformer_serving.pipelines import languages
from keras_transformer_serving.pipelines.generating import GeneratingTask


class GeneratingPipeline(GeneratingTask, Pipeline):
    """Base class of pipelines of a model, its tokenizer and generation settings, from strings to strings.

    Calls run the steps of the task. For SavedModels a subclass defines the same in TensorFlow operations: `preprocess`,
    `decode` and `_target_rows`. The arguments are those of `TextToText`.
    """

    generates: ClassVar[bool] = True
    _settings_file: ClassVar[str] = "generation_config.json"
    _model_description: ClassVar[str]
    _has_encoder: ClassVar[bool]
    # Attributes that must be equal in model and tokenizer.
    _shared: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        generation: Any = "greedy",
        *,
        constraints: Sequence[Any] = (),
        max_new_tokens: int = 64,
        max_source_tokens: int = 512,
        skip_special_tokens: bool = False,
    ) -> None:
        arguments.check_limit("max_source_tokens", max_source_tokens)
        if not hasattr(model, "step") or is_encoder_decoder(model) != self._has_encoder:
            raise TypeError(f"`model` must be {self._model_description}. Received: a {type(model).__name__}")
        arguments.check_tokenizer(tokenizer)
        for name in self._shared:
            expected, received = getattr(model, name), getattr(tokenizer, name)
            # A model without a padding id gets masks, so the tokenizer's padding id is irrelevant.
            irrelevant = name == "pad_id" and expected is None
            irrelevant |= name == "start_id" and getattr(tokenizer, "language_is_start", False)
            if received != expected and not irrelevant:
                raise ValueError(
                    f"`model` and `tokenizer` must have the same {name}. Received: "
                    f"model.{name}={expected}, tokenizer.{name}={received}"
                )
        self.model = model
        self.tokenizer = tokenizer
        settings = Settings.of(model, generation, max_new_tokens, 0, constraints)
        self.sampler = settings.sampler
        self.constraints = settings.logits_processors.constraints
        self.max_new_tokens, self.max_source_tokens = int(max_new_tokens), int(max_source_tokens)
        self.skip_special_tokens = skip_special_tokens
        self.engine = KerasEngine(model, settings)
        self.text_methods = methods_of(tokenizer)

    def prepared(
        self, texts: Tensor, row_languages: Mapping[str, Any] = MappingProxyType({}), truncate: bool = False
    ) -> Preprocessed:
        """Convert texts to the inputs of the generation loop, as TensorFlow operations.

        Args:
            texts: a string tensor (B,).
            row_languages: for a model of many languages, those of the texts and of the outputs, (B,) or (1,), by
                option; by default the pipeline's settings.
            truncate: whether to truncate long texts.

        Returns:
            The inputs of `preprocess` and, for the target language, "prefix_ids" (B, 1) or "start_ids" (B,).
        """
        return self.preprocess(texts, truncate=truncate)

    def example_languages(self, count: int) -> dict[str, list[str]]:
        """Return different languages for each of `count` texts and outputs, by option; none without languages."""
        known = list(self.languages)
        return {
            name: [known[(row + shift) % len(known)] for row in range(count)]
            for shift, name in enumerate(languages.NAMES if known else ())
        }

    @abc.abstractmethod
    def _target_rows(self, texts: Tensor, targets: Tensor) -> tuple[tf.RaggedTensor, Tensor]:
        """Return the ids of targets with end tokens (B, None), and errors (B,)."""

    def preprocess_pairs(
        self, texts: Tensor, targets: Tensor, row_languages: Mapping[str, Any] = MappingProxyType({})
    ) -> Preprocessed:
        """Convert texts and targets, strings (B,), to the inputs of `generation.score`, as TensorFlow operations.

        The languages are those of `prepared`.

        Returns:
            The inputs of `prepared`, "target_ids", int32 (B, T), and "target_padding_mask", booleans (B, T). Empty
            texts, and targets that exceed the model's positions, have an error.
        """
        batch = self.prepared(texts, row_languages)
        rows, error = self._target_rows(texts, targets)
        length, limit = (
            tf.cast(rows.row_lengths(), tf.int32),
            getattr(self.model, "max_length", None) or 2**30,
        )
        sources = tf.reduce_sum(tf.cast(batch.inputs["padding_mask"], tf.int32), axis=1)
        length += int("prefix_ids" in batch.inputs) if self._has_encoder else sources - 1
        expected = f"`targets` must fit the model's {limit} positions. Received: "
        too_long = tf.strings.join([expected, tf.strings.as_string(length), " input tokens"])
        error = first_error(
            batch.error,
            tf.where(sources > 0, "", "`texts` must not be empty. Received: an empty text"),
            utf8_error(targets=targets),
            error,
            tf.where(length > limit, too_long, ""),
        )
        ids, real = self._padded(accepted_rows(rows, error))
        return Preprocessed({**batch.inputs, "target_ids": ids, "target_padding_mask": real}, error, {})

    def encode(self, texts: Any, truncate: bool = False, **options: Any) -> tf.Tensor | np.ndarray:
        """Return the source ids of texts as the model takes them, int32 (B, S), padded to the longest.

        They are a tensor or, where TensorFlow is not installed, an array.

        Args:
            texts: a list of any length, or a string tensor (B,).
            truncate: whether to truncate long texts.
            **options: `source_language`, for a model of many languages.
        """
        in_graph = is_installed()
        listed = to_string_tensor(texts).numpy().tolist() if in_graph else texts
        rows = super().encode(listed, truncate, **options)
        ids, _ = padded_rows(rows, padding_value(self.model))
        return tf.constant(ids, tf.int32) if in_graph else ids.astype(np.int32)

    def signatures(self) -> dict[str, ExportedFunction]:
        """Return the signatures of a SavedModel."""
        self._check_exportable()
        return Signatures(self).graphs()

    def example_batch(self, rows: Sequence[tuple[str, ...]]) -> Preprocessed:
        """Convert texts to the model's inputs, with languages; see `Pipeline`."""
        return self.prepared(tf.constant([text for (text,) in rows]), self.example_languages(len(rows)))

    def example_inputs(self, texts: Sequence[Any] | None = None) -> dict[str, list[Arrays]]:
        """Return inputs of an export's signatures, with the texts as their own targets."""
        return Signatures(self).example_inputs(accepted_texts(self) if texts is None else texts)

    def onnx_graphs(self) -> dict[str, ExportedFunction]:
        """Return the ONNX graphs, by file name: the generation loop, and single steps."""
        return generation_graphs.onnx_graphs(self)

    def _check_exportable(self) -> None:
        if isinstance(self.sampler, samplers.Speculative):
            raise ValueError(
                "`pipeline` must not be speculative: export `pipeline.with_settings('greedy')`, whose ids are equal. "
                f"Received: sampler={self.sampler}"
            )

    def _truncated_rows(self, rows: tf.RaggedTensor, begin: int) -> tf.RaggedTensor:
        """Truncate rows to `max_source_tokens` ids by removing ids from index `begin` on."""
        lengths = rows.row_lengths()
        excess = tf.maximum(lengths - self.max_source_tokens, 0)[:, None]
        index = tf.ragged.range(lengths)
        return tf.ragged.boolean_mask(rows, (index < begin) | (index >= begin + excess))

    def _padded_inputs(self, rows: tf.RaggedTensor, error: Tensor) -> Preprocessed:
        """Pad the source ids; texts that are too long or have an error (B,) become empty."""
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        expected = (
            f"`texts` must have at most {self.max_source_tokens} tokens each (max_source_tokens){self._or_long_texts}, "
            "or truncate=True. Received: "
        )
        too_long = tf.strings.join([expected, tf.strings.as_string(lengths), " tokens"])
        error = first_error(error, tf.where(lengths > self.max_source_tokens, too_long, ""))
        ids, real = self._padded(accepted_rows(rows, error))
        return Preprocessed({"source_ids": ids, "padding_mask": real}, error, {})

    def _padded(self, rows: tf.RaggedTensor) -> tuple[Tensor, Tensor]:
        """Return ids (B, S) padded to the longest row, and booleans (B, S), False for padding."""
        ids = padded(rows, padding_value(self.model))
        return ids, tf.sequence_mask(rows.row_lengths(), tf.shape(ids)[1])

    def decode(self, ids: Any) -> Tensor:
        """Decode generated ids (B, M) to texts, strings (B,), as TensorFlow operations."""
        return self.tokenizer.detokenize(self._ids_to_decode(ids))

    def _ids_to_decode(self, ids: Any) -> Tensor | tf.RaggedTensor:
        """Return ids (B, M) as the tokenizer decodes them: with one end token, and without special tokens to skip."""
        ids = self._with_one_end(ids)
        skipped = {*self.tokenizer.special_token_ids.values()} - {self.model.end_id}
        if not (self.skip_special_tokens and skipped):
            return ids
        is_skipped = tf.reduce_any(ids[..., None] == tf.constant(sorted(skipped), ids.dtype), axis=-1)
        return tf.ragged.boolean_mask(ids, ~is_skipped)

    def _with_one_end(self, ids: Any) -> Tensor:
        """Replace other end tokens by the model's, after which the tokenizer stops."""
        ids = tf.convert_to_tensor(ids)
        others = [
            id_
            for constraint in self.constraints
            if isinstance(constraint, EndTokens)
            for id_ in constraint.ids()
        ]
        if not others:
            return ids
        is_other = tf.reduce_any(ids[..., None] == tf.constant(others, ids.dtype), axis=-1)
        return tf.where(is_other, tf.cast(self.model.end_id, ids.dtype), ids)

    def with_settings(
        self,
        generation: Any = None,
        *,
        model: Any = None,
        constraints: Sequence[Any] | None = None,
        max_new_tokens: int | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> Self:
        """Return a copy with other generation settings, languages or another model; None keeps a setting.

        Example:
            >>> both = translator.with_settings("beam", model=Ensemble([translator.model, other.model]))
        """
        settings = {
            **self.other_settings(),
            "generation": self.sampler if generation is None else generation,
            "constraints": self.constraints if constraints is None else constraints,
            "max_new_tokens": self.max_new_tokens if max_new_tokens is None else max_new_tokens,
        }
        given = languages.of_each(
            1, bool(self.languages), source_language=source_language, target_language=target_language
        )
        settings |= {name: language for name, (language,) in given.items()}
        pipeline = type(self)(self.model if model is None else model, self.tokenizer, **settings)
        if model is None:
            pipeline.source = self.source
        return pipeline

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except model and tokenizer."""
        return {"generation": samplers.serialize(self.sampler), **self.other_settings()}

    def generation_config(self) -> dict[str, Any]:
        """Return the generation settings of an export, with defaults resolved."""
        return self.settings()

    def other_settings(self) -> dict[str, Any]:
        """Return the settings without the sampler, which has no config if it has a draft model."""
        return {
            "constraints": [serialize_constraint(constraint) for constraint in self.constraints],
            "max_new_tokens": self.max_new_tokens,
            "max_source_tokens": self.max_source_tokens,
            **({"skip_special_tokens": True} if self.skip_special_tokens else {}),
        }

    @classmethod
    def hugging_face_arguments(cls, folder: Any, config: Any, model: Any, settings: Any) -> dict[str, Any]:
        """Return the sampler, the constraints and the maximum number of tokens; special tokens are skipped."""
        return {**settings_from(folder, model, settings), "skip_special_tokens": True}

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        self._check_exportable()
        return {**super().export_config(), **self.generation_config()}
