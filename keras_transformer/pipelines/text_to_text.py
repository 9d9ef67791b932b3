"""Text-to-text generation with an encoder–decoder."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from keras_transformer.models import T5, Transformer
from keras_transformer.pipelines import arguments
from keras_transformer.pipelines.base import Preprocessed
from keras_transformer.pipelines.generating import GeneratingPipeline
from keras_transformer.pipelines.texts import utf8_error
from keras_transformer.text.tokenizers.strings import to_string_tensor
from keras_transformer.typing import Tensor
from keras_transformer_serving.pipelines.errors import Errors, RowErrors
from keras_transformer_serving.text import splitting


class TextToText(GeneratingPipeline):
    """A pipeline of a model, its tokenizer and generation settings, from strings to strings.

    Args:
        model: an encoder–decoder such as `models.Transformer`, or an `Ensemble` of some, which cannot be saved.
        tokenizer: with the model's vocabulary, such as `text.SentencePieceTokenizer`.
        generation: a sampler or its name.
        constraints: constraints on the outputs, such as `generation.NoRepeatNGram(3)`.
        max_new_tokens: the maximum number of tokens of an output.
        max_source_tokens: the maximum number of tokens of an input; see `long_texts`.
        long_texts: "refuse" longer texts with an error, or "split" them in calls and streams into lines and sentences,
            whose outputs are joined (see `split_texts`). A SavedModel refuses them.

    Raises:
        TypeError: if the model is of another type.
        ValueError: if model and tokenizer do not match, or settings contradict each other.

    Example:
        >>> translator = TextToText(model, tokenizer)
        >>> translator(["¿Dónde está la estación?"])
        ['Where is the station?']
    """

    model_classes: ClassVar[tuple[type, ...]] = (Transformer, T5)
    _model_description: ClassVar[str] = "an encoder–decoder such as `models.Transformer`"
    _has_encoder: ClassVar[bool] = True
    _or_long_texts: ClassVar[str] = ", or long_texts='split'"
    _shared: ClassVar[tuple[str, ...]] = ("vocabulary_size", "pad_id", "start_id", "end_id")

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        generation: Any = "greedy",
        *,
        constraints: Sequence[Any] = (),
        max_new_tokens: int = 64,
        max_source_tokens: int = 512,
        long_texts: str = "refuse",
    ) -> None:
        splitting.is_split(long_texts)
        super().__init__(
            model,
            tokenizer,
            generation,
            constraints=constraints,
            max_new_tokens=max_new_tokens,
            max_source_tokens=max_source_tokens,
        )
        self.long_texts = long_texts

    def __call__(
        self,
        texts: str | Iterable[str],
        batch_size: int = 64,
        *,
        prefixes: str | Iterable[str] | None = None,
        max_new_tokens: int | Sequence[int] | None = None,
        long_texts: str | None = None,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        r"""Generate output texts.

        Args:
            texts: a list of any length, or one string. A text of only spaces and unknown characters gives an empty
                output, or only its prefix.
            batch_size: the number of rows in a batch.
            prefixes: the prefix of the output of each text, "" for none; a string for a string. The prefix of a text
                that is split is that of its first part.
            max_new_tokens: the maximum number of new tokens, or one for each text, up to the pipeline's own; prefixes
                do not count. Of a text that is split it limits each part.
            long_texts: "refuse" or "split" texts of more than `max_source_tokens` tokens; by default the pipeline's
                setting.
            errors: "raise" the error of a text or prefix, or "return" it in place of the output.
            truncate: whether to cut a text that is refused to its first tokens and the end token.

        Returns:
            A list as long as `texts`, or a string for a string: the first of several hypotheses (see `answers`).

        Raises:
            TypeError: if an argument is of another type.
            ValueError: if a text is not valid Unicode or refused, a limit is out of range, a prefix has special tokens,
                or the numbers of prefixes or limits and texts differ.

        Example:
            >>> translator(["la casa", "la casa"], prefixes=["the", "a"], max_new_tokens=8)
            ['the house', 'a house']
            >>> translator("La casa.\n\nEl perro.", long_texts="split")
            'The house.\n\nThe dog.'
        """
        options: dict[str, Any] = {"errors": errors, "truncate": truncate}
        if not self._splits(long_texts):
            return super().__call__(
                texts, batch_size, prefixes=prefixes, max_new_tokens=max_new_tokens, **options
            )
        if isinstance(texts, str):
            prefixes = [prefixes] if isinstance(prefixes, str) else prefixes
            options |= {"max_new_tokens": max_new_tokens, "long_texts": long_texts}
            return self([texts], batch_size, prefixes=prefixes, **options)[0]
        texts = arguments.as_list("texts", texts)
        split = splitting.SplitTexts(self.split_texts(texts))
        limits = arguments.limits_of(max_new_tokens, len(texts), self.max_new_tokens)
        if prefixes is not None:
            # The call below has the errors of single prefixes.
            prefixes = arguments.one_for_each("prefixes", prefixes, len(texts), RowErrors("return"))
            prefixes = split.of_first(prefixes, "")
        outputs = super().__call__(
            split.parts, batch_size, prefixes=prefixes, max_new_tokens=split.of_each(limits), **options
        )
        return split.join(outputs)

    def stream(
        self,
        text: str,
        prefix: str = "",
        *,
        max_new_tokens: int | None = None,
        long_texts: str | None = None,
        truncate: bool = False,
    ) -> Iterator[str]:
        """Stream the output text while it is generated; the concatenated pieces equal the output of a call.

        Args:
            text: one text.
            prefix: the prefix of the output, part of the first piece.
            max_new_tokens: as in a call.
            long_texts: as in a call.
            truncate: as in a call.

        Raises:
            TypeError: if an argument has a wrong type.
            ValueError: if the sampler has several parallel hypotheses, or a call would raise one.
        """
        if not self._splits(long_texts):
            return super().stream(text, prefix, max_new_tokens=max_new_tokens, truncate=truncate)
        arguments.check_text("text", text)
        (split,) = self.split_texts([text])
        first, *others = split.parts
        streams = (
            self._stream(part, "", max_new_tokens, truncate, row) for row, part in enumerate(others, start=1)
        )
        return split.stream(itertools.chain([self._stream(first, prefix, max_new_tokens, truncate)], streams))

    def _splits(self, long_texts: str | None) -> bool:
        return splitting.is_split(self.long_texts if long_texts is None else long_texts)

    def split_texts(self, texts: Iterable[str]) -> list[splitting.Split]:
        r"""Split texts into parts that fit `max_source_tokens`.

        Args:
            texts: a list of any length.

        Returns:
            For each text its parts, and a function that joins the outputs for them; a text that a call refuses is its
            only part. See `keras_transformer_serving.text.splitting.split_texts` for the rule.
        """

        def count_tokens(parts: Sequence[str]) -> list[int]:
            return self._source_rows(to_string_tensor(parts)).row_lengths().numpy().tolist()

        texts = arguments.as_list("texts", texts)
        # Invalid UTF-8 becomes lone surrogates, which calls refuse.
        decoded = (
            text.decode(errors="surrogateescape") if isinstance(text, bytes) else text for text in texts
        )
        return splitting.split_texts([*decoded], count_tokens, self.max_source_tokens)

    def generation_config(self) -> dict[str, Any]:
        """Return the settings of an export, with derived values in place of defaults."""
        return {**super().generation_config(), "long_texts": self.long_texts}

    def preprocess(self, texts: Tensor, truncate: bool = False) -> Preprocessed:
        """Convert texts to the inputs of the model, as TensorFlow operations.

        Args:
            texts: a string tensor (B,).
            truncate: whether to cut texts that are too long to their first tokens and the end token.

        Returns:
            As inputs "source_ids", int32 (B, S): tokens, the end id and padding; only padding for a text without tokens
            other than spaces and unknown characters. "padding_mask", booleans (B, S), False for padding. Texts that are
            too long are refused.
        """
        return self._padded_inputs(self._source_rows(texts, truncate), utf8_error(texts=texts))

    def _source_rows(self, texts: Tensor, truncate: bool = False) -> tf.RaggedTensor:
        """Return the ids (B, None) of texts with end ids, and none of texts without tokens of text."""
        rows = self.tokenizer.encode_ragged(texts, add_end=True)
        if truncate:
            rows = self._truncated(rows, self.max_source_tokens - 1)
        no_text = tf.constant([self.model.pad_id, self.model.end_id, *self.tokenizer.empty_ids])
        is_text = tf.reduce_all(rows.values[:, None] != no_text, axis=-1)
        has_text = tf.reduce_any(rows.with_values(is_text), axis=1)
        return tf.ragged.boolean_mask(rows, rows.with_values(tf.repeat(has_text, rows.row_lengths())))

    def _prefix_ids(self, prefixes: Any, count: int, errors: RowErrors) -> np.ndarray:
        """Return the ids of prefixes, integers (count, Q), padded on the right; Q = 0 for None."""
        if prefixes is None or count == 0:
            return np.zeros((count, 0), np.int32)
        prefixes = arguments.one_for_each("prefixes", prefixes, count, errors)
        (utf8,) = arguments.utf8_columns(errors, prefixes=prefixes)
        ids = self.tokenizer.encode(utf8).numpy()
        special = np.isin(ids, [*{self.model.start_id, self.model.end_id} - {self.model.pad_id}]).any(axis=1)
        for row in np.flatnonzero(special).tolist():
            message = f"`prefixes` must have no start or end token. Received: one in prefixes[{row}]"
            errors.add(row, ValueError(message))
        return ids

    def _target_rows(self, texts: Tensor, targets: Tensor) -> tuple[tf.RaggedTensor, Tensor]:
        """Return the ids (B, None) of outputs, with end tokens, and no errors (B,)."""
        del texts
        return self.tokenizer.encode_ragged(targets, add_end=True), tf.fill(tf.shape(targets), "")
