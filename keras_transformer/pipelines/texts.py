"""The base classes of pipelines that run a model once on texts, with special ids, windows and words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.lazy_tensorflow import is_installed, tf
from keras_transformer.pipelines import arguments
from keras_transformer.pipelines.example_texts import checked_rows, texts_from_vocabulary
from keras_transformer.pipelines.forward import FORWARD, ForwardPipeline
from keras_transformer.pipelines.pipeline import DEFAULT, Arrays, Preprocessed
from keras_transformer.pipelines.ragged_rows import (
    accepted_rows,
    first_error,
    first_ids,
    first_lengths,
    joined,
    lengths_of,
    padded,
    utf8_error,
)
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_one_of
from keras_transformer_serving.pipelines.errors import RowErrors
from keras_transformer_serving.pipelines.texts import (
    LEFT,
    RIGHT,
    TOKENIZER_WORDS,
    TRUNCATION_SIDES,
    WHITE_SPACE_WORDS,
    TextTask,
)

_SIZES = ("vocabulary_size", "max_length")


class Windows(NamedTuple):
    """Overlapping windows of token ids that fit the model's maximum length.

    Attributes:
        ids: int32, ragged (R, None).
        owner: int32 (R,), the index of each window's text.
        start: int32 (R,), the offset of each window in its text's ids.
        places: int32, ragged (R, None), the index of each id among the ids of all texts.
        error: strings (B,), "" for valid texts.
    """

    ids: tf.RaggedTensor
    owner: Tensor
    start: Tensor
    places: tf.RaggedTensor
    error: Tensor


class TextPipeline(ForwardPipeline, TextTask):
    """Base class of pipelines that run an encoder or decoder once on texts.

    Args:
        model: with an `encoder`, or with a `decoder` and the ids of start, delimiter and extract, such as
            `models.GPTClassifier`.
        tokenizer: with the vocabulary of the encoder, or of the decoder with or without the three special tokens.
        long_texts: "refuse" to raise an error for texts longer than `max_length`, or "window" to split them into
            windows that overlap by half.
        max_length: the maximum number of tokens, including special ones; by default the encoder's.
        truncation_side: "right" to truncate texts to their first tokens, "left" to their last.
    """

    examples_are_typical: ClassVar[bool] = True
    long_text_options: ClassVar[tuple[str, ...]] = ("refuse", "window")

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        long_texts: str = "refuse",
        max_length: int | None = None,
        truncation_side: str = RIGHT,
    ) -> None:
        check_one_of(self.long_text_options, long_texts=long_texts)
        check_one_of(TRUNCATION_SIDES, truncation_side=truncation_side)
        arguments.check_tokenizer(tokenizer)
        self.model = model
        arguments.check_model(self.encoder, "an encoder, a decoder or a model with one", *_SIZES)
        self.tokenizer = tokenizer
        self.long_texts = long_texts
        self.truncation_side = truncation_side
        self.max_length = arguments.check_max_length(max_length, self.encoder.max_length)
        special_ids = getattr(model, "special_ids", None)
        ids = len({*range(tokenizer.vocabulary_size), *(special_ids or ())})
        for name, received in (("vocabulary_size", ids), ("pad_id", tokenizer.pad_id)):
            expected = getattr(self.encoder, name)
            if expected != received and not (name == "pad_id" and expected is None):
                including = (
                    f", including the special tokens {special_ids}"
                    if name == "vocabulary_size" and special_ids
                    else ""
                )
                raise ValueError(
                    f"`model` and `tokenizer` must have the same {name}{including}. Received: "
                    f"{expected} and {received}"
                )
        if special_ids is None and min(tokenizer.start_id, tokenizer.end_id) < 0:
            raise ValueError(
                "`tokenizer` must have start and end ids. "
                f"Received: start_id={tokenizer.start_id}, end_id={tokenizer.end_id}"
            )

    @property
    def encoder(self) -> Any:
        """The encoder or decoder of the model, which reads the ids."""
        return getattr(self.model, "encoder", getattr(self.model, "decoder", self.model))

    @property
    def padding(self) -> dict[str, tuple[int, float]]:
        """The axis of tokens and the padding value of each of the model's inputs."""
        return {
            "token_ids": (-1, self.tokenizer.padding_value),
            "padding_mask": (-1, False),
            "segment_ids": (-1, 0),
        }

    def export_config(self) -> dict[str, Any]:
        """Return the settings that serving needs to run an export without this package."""
        sizes = {"max_length": self.max_length}
        if hasattr(self.encoder, "num_segments"):
            sizes["num_segments"] = self.encoder.num_segments
        special_ids = getattr(self.model, "special_ids", None)
        return {
            **super().export_config(),
            **sizes,
            "special_ids": None if special_ids is None else list(special_ids),
            "symmetric": getattr(self.model, "symmetric", False),
        }

    def model_inputs(self, *arrays: Tensor) -> dict[str, Tensor]:
        """Return the ids, with padding where the mask is 0, and the segments."""
        input_ids, attention_mask, *segment_ids = arrays
        real, pad_id = attention_mask != 0, self.encoder.pad_id
        if pad_id is None:
            inputs = {"token_ids": input_ids, "padding_mask": real}
        else:
            inputs = {"token_ids": ops.where(real, input_ids, pad_id)}
        return {**inputs, **({"segment_ids": segment_ids[0]} if segment_ids else {})}

    def example_inputs(self, texts: Sequence[Any] | None = None) -> dict[str, list[Arrays]]:
        """Return inputs of an export's signatures; see `Pipeline`."""
        examples = {FORWARD: [*self._example_ids(), *(self._batches_of(texts) if texts is not None else ())]}
        for name, inputs in self.columns(self.config).items():
            names = [tensor.name for tensor in inputs if tensor.required]
            if texts is not None and name == DEFAULT:
                rows = checked_rows(texts, self.text_columns)
            else:
                rows = self._example_rows(len(names))
            examples[name] = [
                dict(zip(names, map(np.array, zip(*chosen, strict=True)), strict=True))
                for chosen in (rows, rows[:1])
            ]
        return examples

    def _example_ids(self) -> list[Arrays]:
        """Return batches of random ids, with rows of all lengths, full and empty."""
        random, encoder = np.random.default_rng(0), self.encoder
        first, *_, last = self.graph_inputs(self.config)
        batches = []
        for rows, length in ((3, 12), (1, 4), (33, 16)):
            length = min(length, self.max_length or length)
            lengths = length - np.arange(rows) * length // max(rows - 1, 1)  # from full to empty
            shape = (rows, *first.shape[:-1], length)
            ids, pad_id = random.integers(0, encoder.vocabulary_size, shape), encoder.pad_id
            if pad_id is not None:  # padding only stands after tokens
                ids = np.where(ids == pad_id, (pad_id + 1) % encoder.vocabulary_size, ids)
            real = np.zeros_like(ids)
            for row, count in enumerate(lengths):
                real[row, ..., :count] = 1
            inputs = {"input_ids": np.where(real, ids, self.tokenizer.padding_value), "attention_mask": real}
            if last.name not in inputs:
                inputs[last.name] = random.integers(0, encoder.num_segments, shape)
            batches.append(inputs)
        return batches

    def _batches_of(self, texts: Sequence[Any], size: int = 32) -> Iterator[Arrays]:
        """Yield batches of the ids of texts, or of tuples of texts, as calls read them."""
        rows = checked_rows(texts, self.text_columns)
        for begin in range(0, len(rows), size):
            batch = self.example_batch(rows[begin : begin + size])
            arrays = {name: values.numpy() for name, values in batch.inputs.items()}
            ids = arrays["token_ids"]
            values = [ids, ids != self.tokenizer.padding_value, arrays.get("segment_ids")]
            names = [tensor.name for tensor in self.graph_inputs(self.config)]  # without segments, two
            yield {name: array.astype("int64") for name, array in zip(names, values, strict=False)}

    def _example_rows(self, columns: int) -> list[tuple[str, ...]]:
        """Return valid texts, or tuples of texts, made from the vocabulary."""
        texts = self.example_texts()
        rows = list(zip(*(texts[i:] + texts[:i] for i in range(columns)), strict=True))
        errors = self.preprocess(*map(tf.constant, zip(*rows, strict=True))).error.numpy()
        rows_without_error = [row for row, message in zip(rows, errors, strict=True) if not message]
        if not rows_without_error:
            raise ValueError(
                "`texts` must be passed, because all texts made from the vocabulary are invalid. Received: None"
            )
        return rows_without_error

    def example_texts(self) -> list[str]:
        """Return texts made from the vocabulary."""
        return texts_from_vocabulary(self.tokenizer)

    def _column(self, name: str, texts: list[Any], errors: RowErrors) -> Sequence[str | bytes]:
        (utf8,) = arguments.utf8_columns(errors, **{name: texts})
        return utf8 if is_installed() else [text.decode() for text in utf8]

    def preprocess(self, text: Tensor, truncate: bool = False) -> Preprocessed:
        """Convert strings (B,) to the model's inputs, as TensorFlow operations."""
        windows = self._windows(self.tokenizer.tokenize(text), "text", utf8_error(text=text), truncate)
        return Preprocessed(self._inputs(windows.ids), windows.error, {"owner": windows.owner})

    def _preprocess_pairs(self, truncate: bool, **texts: Tensor) -> Preprocessed:
        """Convert pairs of texts (B,), by the names of their arguments, to the model's inputs.

        The second text is split into windows; or the longer text is truncated first, as in `transformers`.
        """
        first_name, name = texts
        # One call, since each would trace the tokenizer.
        ids = self.tokenizer.tokenize(tf.concat([*texts.values()], axis=0))
        count = tf.size(texts[first_name])
        first, second = ids[:count], ids[count:]
        if truncate or self.long_texts == "truncate":
            counts = first_lengths(lengths_of(first), lengths_of(second), self._max_ids(2))
            first = self._truncated(first, counts)
        windows = self._windows(second, name, utf8_error(**texts), truncate, **{first_name: first})
        first = accepted_rows(first, windows.error)
        inputs = self._inputs(tf.gather(first, windows.owner), windows.ids)
        return Preprocessed(inputs, windows.error, {"owner": windows.owner})

    def _windows(
        self,
        ids: tf.RaggedTensor,
        name: str,
        error: Tensor,
        truncate: bool = False,
        **first: tf.RaggedTensor,
    ) -> Windows:
        """Split ids into windows that fit the model, truncate them, or add errors for long texts.

        Windows overlap by half, the last one more; or by `doc_stride`, and the last is shorter.

        Args:
            ids: the ids of the texts, ragged (B, None).
            name: the name of the argument with the texts.
            error: strings (B,), the errors of texts so far, "" for none. Texts with an error become empty.
            truncate: whether to keep the ids that fit, the first or the last.
            **first: for pairs, the ids of the first text, by the name of its argument; each window repeats them.
        """
        lengths = all_lengths = lengths_of(ids)
        max_ids = self._max_ids(len(first) + 1) - sum(map(lengths_of, first.values()), tf.zeros_like(lengths))
        if truncate or self.long_texts == "truncate":
            lengths = tf.where(max_ids > 0, tf.minimum(lengths, max_ids), lengths)
        fits = (lengths <= max_ids) | ((max_ids >= 2) & (self.long_texts == "window"))
        beside = "".join(f" beside its `{argument}`" for argument in first)
        too_long = tf.strings.join(
            [
                f"`{name}` must have at most ",
                tf.strings.as_string(tf.maximum(max_ids, 0)),
                f" tokens each{beside}, as `max_length` is {self.max_length}",
                "" if self.long_texts == "window" else ", or long_texts='window'",
                ". Received: ",
                tf.strings.as_string(lengths),
                " tokens",
            ]
        )
        error = first_error(error, tf.where(fits, "", too_long))
        accepted = error == ""
        lengths, max_ids = tf.where(accepted, lengths, 0), tf.where(accepted, max_ids, 0)
        last_start = tf.maximum(lengths - max_ids, 0)
        doc_stride = getattr(self, "doc_stride", None)
        overlap = max_ids // 2 if doc_stride is None else tf.minimum(doc_stride, max_ids - 1)
        stride = tf.maximum(max_ids - overlap, 1)
        count = 1 + (last_start + stride - 1) // stride
        owner = tf.repeat(tf.range(tf.size(count)), count)
        number = tf.ragged.range(count).values
        start = number * tf.gather(stride, owner)
        if doc_stride is None:
            start = tf.minimum(start, tf.gather(last_start, owner))
        size = tf.minimum(tf.gather(max_ids, owner), tf.gather(lengths, owner) - start)
        if self.truncation_side == LEFT:
            start += tf.gather(tf.where(accepted, all_lengths - lengths, 0), owner)
        begin = tf.gather(tf.cast(ids.row_starts(), tf.int32), owner) + start
        places = tf.ragged.range(begin, begin + size)
        return Windows(
            places.with_values(tf.gather(ids.values, places.values)),
            owner,
            start,
            places,
            error,
        )

    def _truncated(self, rows: tf.RaggedTensor, counts: Tensor) -> tf.RaggedTensor:
        """Return `counts` (B,) ids of each row (B, None), the first or the last."""
        if self.truncation_side == RIGHT:
            return first_ids(rows, counts)
        return first_ids(rows[:, ::-1], counts)[:, ::-1]

    def _max_ids(self, num_texts: int) -> int:
        """Return the maximum number of ids of a text or pair, without special ids."""
        separators = (num_texts - 1) * (self.tokenizer.pair_separators - 1)
        return (self.max_length or 2**30) - 1 - num_texts - separators

    def _inputs(self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None) -> dict[str, Tensor]:
        """Return the model's inputs for rows of ids, with special ids added."""
        model, tokenizer = self.model, self.tokenizer
        special_ids = getattr(model, "special_ids", None)
        if special_ids is None:
            before = joined(tokenizer.start_id, first, tokenizer.end_id)
            separators = [tokenizer.end_id] * (tokenizer.pair_separators - 1)
            after = before[:, :0] if second is None else joined(*separators, second, tokenizer.end_id)
            inputs = {"token_ids": padded(tf.concat([before, after], axis=1), tokenizer.padding_value)}
            if getattr(self.encoder, "num_segments", 1) > 1:
                segments = tf.concat([tf.zeros_like(before), tf.ones_like(after)], axis=1)
                inputs["segment_ids"] = padded(segments, 0)
            return inputs
        start, delimiter, extract = special_ids
        if second is None:
            return {"token_ids": padded(joined(start, first, extract), tokenizer.padding_value)}
        orders = [(first, second), (second, first)] if model.symmetric else [(first, second)]
        rows = [
            padded(joined(start, one, delimiter, other, extract), tokenizer.padding_value)
            for one, other in orders
        ]
        return {"token_ids": tf.stack(rows, axis=1) if model.symmetric else rows[0]}


class WordPipeline(TextPipeline):
    """Base class of pipelines that answer with words of a text.

    Args:
        model: see `TextPipeline`.
        tokenizer: likewise.
        long_texts: likewise.
        words: "tokenizer" for the words of the tokenizer, see `text.Tokenizer.tokenize_words`; "white_space" for those
            delimited by white space and tokenised one by one, as pipelines of earlier versions do.
        **limits: `max_length` and `truncation_side`, see `TextPipeline`.
    """

    _settings_before: ClassVar[dict[str, Any]] = {"words": WHITE_SPACE_WORDS}

    def __init__(self, model: Any, tokenizer: Any, long_texts: str, words: str, **limits: Any) -> None:
        super().__init__(model, tokenizer, long_texts, **limits)
        check_one_of((TOKENIZER_WORDS, WHITE_SPACE_WORDS), words=words)
        self.words = words

    def _tokenize_words(self, text: Tensor) -> Any:
        """Return the words of texts (B,) and their ids."""
        from keras_transformer.text.tokenizers.words import TokenizedWords, white_space_words

        if self.words == TOKENIZER_WORDS:
            return self.tokenizer.tokenize_words(text)
        return TokenizedWords.of(white_space_words(text), self.tokenizer.tokenize)
