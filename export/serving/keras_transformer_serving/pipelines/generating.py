"""Exported pipelines that generate: texts in, texts out."""

import abc
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.graphs import Graphs
from keras_transformer_serving.pipelines.texts import RefusedError, check_batch_size, check_string
from keras_transformer_serving.text import Tokenizer, splitting

_NO_TEXT = (
    "`texts` must be rows of ids, for `generate`: the export's tokenizer is not one of `keras_transformer.text`, so "
    "that texts are for its SavedModel."
)


class Generating(abc.ABC):
    """Base class of exported pipelines that generate: from texts to texts, or to token ids by `generate`.

    A task defines `tokenize` and `decode`.

    Args:
        graphs: the export's graphs.
        tokenizer: the export's tokenizer; None if it needs TensorFlow, so that inputs must be token ids.
        config: the export's settings.
    """

    _or_long_texts = ""  # offered by the error of a text that is too long

    def __init__(self, graphs: Graphs, tokenizer: Tokenizer | None, config: dict[str, Any]) -> None:
        self.graphs = graphs
        self.tokenizer = tokenizer
        self.config = config

    @property
    def _text_tokenizer(self) -> Tokenizer:
        """The tokenizer, or a ValueError if it needs TensorFlow."""
        if self.tokenizer is None:
            raise ValueError(_NO_TEXT)
        return self.tokenizer

    @abc.abstractmethod
    def tokenize(self, text: str) -> list[int]:
        """Return the source ids of a text."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of generated ids."""

    def __call__(self, texts: str | Iterable[str], batch_size: int = 64, **options: Any) -> Any:
        """Generate texts.

        Args:
            texts: strings, or one string. A text of only spaces and unknown characters gives an empty output; a
                prompt must have at least one token.
            batch_size: the number of texts in a batch.
            **options: those of `generate`.

        Returns:
            The first hypothesis of each text: a list as long as `texts`, or a string for a string.

        Raises:
            TypeError: if a text is not a string.
            ValueError: if a text is not valid Unicode or too long, an option is out of range, or there is no tokenizer.

        Example:
            >>> translate(["la casa", "el perro"], max_new_tokens=[4, 8])
            ['the house', 'the dog']
        """
        if isinstance(texts, str):
            return self([texts], batch_size, **options)[0]
        texts = list(texts)
        for row, text in enumerate(texts):
            check_string("texts", row, text)
        ids = self.generate(texts, batch_size, **options)["ids"]
        return [self.decode(row if row.ndim == 1 else row[0]) for row in ids]

    def generate(
        self,
        texts: Sequence[Any],
        batch_size: int = 64,
        *,
        max_new_tokens: Any = None,
        min_new_tokens: Any = None,
        temperature: Any = None,
    ) -> dict[str, np.ndarray]:
        """Generate token ids.

        Args:
            texts: B strings, or lists of token ids.
            batch_size: the number of texts in a batch.
            max_new_tokens: the maximum number of new tokens, or one for each text, at most that of the export.
            min_new_tokens: the minimum number of tokens before an end token, or one for each text, by default 0.
            temperature: the temperature of sampling, or one for each text, by default the sampler's.

        Returns:
            "ids" int64 (B, M), "lengths" int64 (B,), "scores" float32 (B,); with an axis N after the first if the
            export returns N > 1 hypotheses.

        Raises:
            TypeError: as for a call.
            ValueError: as for a call, or if ids are out of range.
        """
        check_batch_size(batch_size)
        if isinstance(texts, str):
            raise TypeError(f"`texts` must be a list of strings. Received: texts={texts!r}")
        rows = self.encode(texts)
        options = {
            "max_new_tokens": max_new_tokens,
            "min_new_tokens": min_new_tokens,
            "temperature": temperature,
        }
        given = _numbers(options, len(rows))
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))  # batches of similar lengths
        count = self.graphs.num_return
        shape = (len(rows), count) if count > 1 else (len(rows),)
        ids = np.full((*shape, self.graphs.max_new_tokens), self.graphs.padding_value, np.int64)
        lengths, scores = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        for begin in range(0, len(order), batch_size):
            chosen = order[begin : begin + batch_size]
            input_ids, mask = self.padded([rows[row] for row in chosen])
            each = {name: values[chosen] if values.ndim else values for name, values in given.items()}
            part = self.graphs.generate(input_ids, np.array(chosen), attention_mask=mask, **each)
            ids[chosen], lengths[chosen], scores[chosen] = part["ids"], part["lengths"], part["scores"]
        return {"ids": ids, "lengths": lengths, "scores": scores}

    def encode(self, texts: Sequence[Any]) -> list[list[int]]:
        """Return the source ids of each text or list of ids."""
        rows = []
        for row, text in enumerate(texts):
            try:
                rows.append(self._ids(text, row))
            except RefusedError as error:
                raise ValueError(f"{error} in {error.argument}[{row}]") from None
        return rows

    def preprocess(self, text: str) -> list[int]:
        """Return the source ids of a text.

        Raises:
            RefusedError: if it has too many tokens, or as a prompt none.
        """
        ids = self.tokenize(text)
        if self.graphs.start_id is None and not ids:
            raise RefusedError("texts", "`texts` must have a token each. Received: none")
        return self._limited(ids)

    def _ids(self, text: Any, row: int) -> list[int]:
        ids = None
        if isinstance(text, list | tuple | np.ndarray):
            ids = np.asarray(text, None if len(text) else np.int64)
        if ids is None or ids.dtype.kind not in "iu":
            check_string("texts", row, text)
            return self.preprocess(text)
        if ids.ndim != 1 or not ((ids >= 0) & (ids < self.graphs.vocabulary_size)).all():
            raise ValueError(
                f"`texts` must have ids from 0 to {self.graphs.vocabulary_size - 1}. Received: texts[{row}]={text!r}"
            )
        return self._limited([id_ for id_ in ids.tolist() if id_ != self.graphs.pad_id])

    def _limited(self, ids: list[int]) -> list[int]:
        limit = self.graphs.max_source_tokens
        if len(ids) > limit:
            raise RefusedError(
                "texts",
                f"`texts` must have at most {limit} tokens each (max_source_tokens){self._or_long_texts}. "
                f"Received: {len(ids)} tokens",
            )
        return ids

    def padded(self, rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Return padded ids and their mask (0 for padding), both int64 (B, S), S at least 1."""
        ids = np.full((len(rows), max(map(len, rows), default=0) or 1), self.graphs.padding_value, np.int64)
        mask = np.zeros_like(ids)
        for row, content in enumerate(rows):
            ids[row, : len(content)] = content
            mask[row, : len(content)] = 1
        return ids, mask


class TextToText(Generating):
    """An exported encoder–decoder; `load` creates it."""

    _or_long_texts = ", or long_texts='split'"

    def __call__(
        self,
        texts: str | Iterable[str],
        batch_size: int = 64,
        *,
        long_texts: str | None = None,
        **options: Any,
    ) -> Any:
        r"""Generate texts, as `Generating`.

        Args:
            texts: strings, or one string.
            batch_size: the number of texts in a batch.
            long_texts: "refuse" texts of more than `max_source_tokens` tokens, or "split" them into lines and sentences
                (see `split_texts`), whose outputs are joined; by default the export's setting.
            **options: those of `generate`; the options of a text hold for each of its parts.

        Example:
            >>> translate("La casa.\n\nEl perro.", long_texts="split")
            'The house.\n\nThe dog.'
        """
        if not self.splits(long_texts):
            return super().__call__(texts, batch_size, **options)
        if isinstance(texts, str):
            return self([texts], batch_size, long_texts=long_texts, **options)[0]
        texts = list(texts)
        split = splitting.SplitTexts(self.split_texts(texts))
        given = _numbers(options, len(texts))
        each = {name: split.of_each(values) if values.ndim else values for name, values in given.items()}
        return split.join(super().__call__(split.parts, batch_size, **each))

    def splits(self, long_texts: str | None = None) -> bool:
        """Return whether long texts are split, by an argument or the export's setting."""
        return splitting.is_split(
            self.config.get("long_texts", "refuse") if long_texts is None else long_texts
        )

    def split_texts(self, texts: Iterable[str]) -> list[splitting.Split]:
        """Split texts into parts that fit `max_source_tokens`; see `text.splitting.split_texts`."""
        texts = list(texts)
        for row, text in enumerate(texts):
            check_string("texts", row, text)
        return splitting.split_texts(
            texts, lambda parts: [len(self.tokenize(part)) for part in parts], self.graphs.max_source_tokens
        )

    def tokenize(self, text: str) -> list[int]:
        """Return the source ids of a text and the end id; none for only spaces and unknown characters."""
        ids = self._text_tokenizer.tokenize(text)
        no_text = {self.graphs.pad_id, self.graphs.end_id, *self.config["empty_ids"]}
        return [] if no_text.issuperset(ids) else [*ids, self.graphs.end_id]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of generated ids."""
        return self._text_tokenizer.detokenize(ids)


class TextGeneration(Generating):
    """An exported decoder-only model, from prompts to their continuations; `load` creates it."""

    def tokenize(self, text: str) -> list[int]:
        """Return the source ids of a prompt."""
        ids = self._text_tokenizer.tokenize(text, self.config["special_tokens"])
        return [self._text_tokenizer.start_id, *ids] if self.config["add_start"] else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of generated ids, including the space after the prompt."""
        # As in the pipeline: without an ordinary token before them, the leading space would be stripped.
        anchor = self.config["anchor_id"]
        text, prefix = (self._text_tokenizer.detokenize(each) for each in ([anchor, *ids], [anchor]))
        return text.removeprefix(prefix)


def generating_pipeline(graphs: Graphs, tokenizer: Tokenizer | None, config: dict[str, Any]) -> Generating:
    """Return an exported pipeline that generates: a `TextToText`, or of a decoder-only model a `TextGeneration`."""
    return (TextGeneration if config["start_id"] is None else TextToText)(graphs, tokenizer, config)


def _numbers(options: dict[str, Any], count: int) -> dict[str, np.ndarray]:
    """Return the options that are given as arrays, () or (count,).

    Raises:
        ValueError: if one has another shape.
    """
    given = {name: np.asarray(each) for name, each in options.items() if each is not None}
    for name, values in given.items():
        if values.shape not in ((), (count,)):
            raise ValueError(
                f"`{name}` must be one number, or one for each of {count} texts. Received: {name}={options[name]!r}"
            )
    return given
