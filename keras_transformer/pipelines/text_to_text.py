"""Text-to-text generation with an encoder–decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from keras_transformer.lazy_tensorflow import tf
from keras_transformer.models import T5, Transformer
from keras_transformer.pipelines.generating import GeneratingPipeline
from keras_transformer.pipelines.pipeline import Preprocessed
from keras_transformer.pipelines.ragged_rows import first_error, ids_of_names, utf8_error
from keras_transformer.text.tokenizers.strings import to_string_tensor
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, check_one_of
from keras_transformer_serving.pipelines import languages
from keras_transformer_serving.pipelines.text_to_text import TextToTextTask
from keras_transformer_serving.pipelines.texts import LEFT, RIGHT, TRUNCATION_SIDES
from keras_transformer_serving.text import splitting

_SOURCE_TOKENS = 512  # by default


class TextToText(TextToTextTask, GeneratingPipeline):
    """A pipeline of a model, its tokenizer and generation settings, from strings to strings.

    Args:
        model: an encoder–decoder such as `models.Transformer`, or an `Ensemble` of some, which cannot be saved.
        tokenizer: with the model's vocabulary, such as `text.SentencePieceTokenizer`.
        generation: a sampler or its name.
        constraints: constraints on the outputs, such as `generation.NoRepeatNGram(3)`.
        max_new_tokens: the maximum number of tokens of an output.
        skip_special_tokens: whether outputs are without special tokens such as "<unk>", as in `transformers`.
        max_source_tokens: the maximum number of tokens of an input, by default 512 or the model's `max_length` if that
            is less; see `long_texts`.
        long_texts: "refuse" to raise an error for longer texts, or "split" to split them in calls and streams into
            lines and sentences, whose outputs are joined (see `split_texts`). A SavedModel returns an error for them.
        truncation_side: what truncate=True keeps of a longer text: "right" its first tokens, "left" its last.
        source_language: for a tokenizer with `languages`, such as NLLB-200's, the language of texts; None if calls must
            give it.
        target_language: the language of outputs, likewise.

    Example:
        >>> translator = TextToText(model, tokenizer)
        >>> translator(["¿Dónde está la estación?"])
        ['Where is the station?']
    """

    summary: ClassVar[str] = "It reads a text and writes another one, such as a translation or a summary."
    model_classes: ClassVar[tuple[type, ...]] = (Transformer, T5)
    _model_description: ClassVar[str] = "an encoder–decoder such as `models.Transformer`"
    _has_encoder: ClassVar[bool] = True
    _shared: ClassVar[tuple[str, ...]] = ("vocabulary_size", "pad_id", "start_id", "end_id")

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        generation: Any = "greedy",
        *,
        constraints: Sequence[Any] = (),
        max_new_tokens: int = 64,
        max_source_tokens: int | None = None,
        long_texts: str = "refuse",
        source_language: str | None = None,
        target_language: str | None = None,
        skip_special_tokens: bool = False,
        truncation_side: str = RIGHT,
    ) -> None:
        splitting.is_split(long_texts)
        check_one_of(TRUNCATION_SIDES, truncation_side=truncation_side)
        super().__init__(
            model,
            tokenizer,
            generation,
            constraints=constraints,
            max_new_tokens=max_new_tokens,
            max_source_tokens=_source_limit(model, max_source_tokens),
            skip_special_tokens=skip_special_tokens,
        )
        self.long_texts = long_texts
        self.truncation_side = truncation_side
        self.languages: Mapping[str, int] = getattr(tokenizer, "languages", {})
        self.empty_ids = tokenizer.empty_ids
        known = self.languages
        given = {languages.SOURCE: source_language, languages.TARGET: target_language}
        for name, (language,) in languages.of_each(1, bool(known), **given).items():
            if language not in known:
                raise ValueError(f"{languages.expectation(name, known)}{name}={language!r}")
        self.source_language, self.target_language = source_language, target_language

    @property
    def hugging_face_rows(self) -> dict[str, bool]:
        """Sources end with the end token."""
        return {"add_start": False, "add_end": True}

    def other_settings(self) -> dict[str, Any]:
        """Return the settings without the sampler."""
        own_languages = {name: getattr(self, name) for name in languages.NAMES if self.languages}
        return {
            **super().other_settings(),
            "long_texts": self.long_texts,
            **own_languages,
            **({"truncation_side": LEFT} if self.truncation_side == LEFT else {}),
        }

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        known = list(self.languages)
        return {**super().export_config(), **({"languages": known} if known else {})}

    def preprocess(self, texts: Tensor, truncate: bool = False, source_language: Any = None) -> Preprocessed:
        """Convert texts to the inputs of the model, as TensorFlow operations.

        Args:
            texts: a string tensor (B,).
            truncate: whether to truncate long texts to their first tokens, or last tokens, and the end token.
            source_language: for a model of many languages, those of the texts, (B,) or (1,); by default the pipeline's.

        Returns:
            The inputs "source_ids", int32 (B, S): tokens, the end id, the token of the language and padding, or only
            padding for a text of spaces and unknown characters; and "padding_mask", booleans (B, S), False for padding.
            Texts that are too long or of an unknown language have an error.
        """
        ids, error = self._language_columns(languages.SOURCE, source_language)
        rows = self._source_rows(texts, ids, truncate)
        return self._padded_inputs(rows, first_error(utf8_error(texts=texts), error))

    def prepared(
        self, texts: Tensor, row_languages: Mapping[str, Any] = MappingProxyType({}), truncate: bool = False
    ) -> Preprocessed:
        """Convert texts to the inputs of the generation loop, as TensorFlow operations; see the base class."""
        if not self.languages:
            return super().prepared(texts, row_languages, truncate)
        batch = self.preprocess(texts, truncate, row_languages.get(languages.SOURCE))
        ids, error = self._language_columns(languages.TARGET, row_languages.get(languages.TARGET))
        is_start = self.tokenizer.language_is_start
        placeholder = self.model.start_id if is_start else self.model.pad_id
        ids = tf.broadcast_to(tf.where(error == "", ids, placeholder), tf.shape(batch.error))
        target = {"start_ids": ids} if is_start else {"prefix_ids": ids[:, None]}
        return batch._replace(inputs={**batch.inputs, **target}, error=first_error(batch.error, error))

    def _language_columns(self, name: str, given: Any) -> tuple[Tensor, Tensor]:
        """Return the ids of the tokens of languages, int32 (B,) or (1,), by default of the setting, and errors.

        Without languages there are no ids, (0,).
        """
        known = self.languages
        if not known:
            return tf.zeros([0], tf.int32), tf.constant([""])
        names = tf.constant([getattr(self, name) or ""]) if given is None else to_string_tensor(given)
        return ids_of_names(name, names, known)

    def _source_rows(self, texts: Tensor, language_ids: Tensor, truncate: bool = False) -> tf.RaggedTensor:
        """Return the ids of texts with end ids and the ids of their languages (B, None).

        Texts of spaces and unknown characters only have no ids. The ids of languages are (B,), (1,) for all, or (0,).
        """
        tokenizer = self.tokenizer
        rows = tokenizer.encode_ragged(texts, add_end=True)
        if tokenizer.source_prefix_ids:
            prefix = tf.tile(tf.constant([tokenizer.source_prefix_ids]), [rows.nrows(), 1])
            rows = tf.concat([prefix, rows], axis=1)
        first, last = len(tokenizer.source_prefix_ids), 1  # of special ids
        if self.languages:
            column = tf.broadcast_to(language_ids, [rows.nrows()])[:, None]
            first += not tokenizer.language_after_source
            last += tokenizer.language_after_source
            rows = tf.concat([rows, column] if tokenizer.language_after_source else [column, rows], axis=1)
        if truncate:
            begin = first if self.truncation_side == LEFT else self.max_source_tokens - last
            rows = self._truncated_rows(rows, begin)
        no_text = tf.constant(
            [
                *(self.model.pad_id, self.model.end_id, *tokenizer.source_prefix_ids, *tokenizer.empty_ids),
                *self.languages.values(),
            ]
        )
        is_text = tf.reduce_all(rows.values[:, None] != no_text, axis=-1)
        has_text = tf.reduce_any(rows.with_values(is_text), axis=1)
        return tf.ragged.boolean_mask(rows, rows.with_values(tf.repeat(has_text, rows.row_lengths())))

    def _target_rows(self, texts: Tensor, targets: Tensor) -> tuple[tf.RaggedTensor, Tensor]:
        """Return the ids of targets with end tokens (B, None), and no errors (B,)."""
        del texts
        return self.tokenizer.encode_ragged(targets, add_end=True), tf.fill(tf.shape(targets), "")


def _source_limit(model: Any, max_source_tokens: int | None) -> int:
    """Return the maximum number of tokens of an input, after a check that a model with learned positions has them."""
    limit = getattr(model, "max_length", None)
    if max_source_tokens is None:
        return _SOURCE_TOKENS if limit is None else min(_SOURCE_TOKENS, limit)
    check(
        limit is None or max_source_tokens <= limit,
        f"be at most max_length={limit}",
        max_source_tokens=max_source_tokens,
    )
    return max_source_tokens
