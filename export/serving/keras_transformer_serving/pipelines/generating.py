"""Exported pipelines that generate: texts in, texts out."""

import abc
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer_serving.graphs import DECODER, ENCODER, TEMPERATURES, Graphs
from keras_transformer_serving.pipelines import documents, languages
from keras_transformer_serving.pipelines.errors import (
    Errors,
    InvalidInputError,
    RowErrors,
    check_batch_size,
    check_string,
    check_truncate,
)
from keras_transformer_serving.tasks import DEFAULT, ERROR_OUTPUT, TEXT, ExportedPipeline, Task, Tensor
from keras_transformer_serving.text import Tokenizer, splitting
from keras_transformer_serving.text.alignment import Score
from keras_transformer_serving.text.chat import Chat, ChatTemplate, is_conversation

NEW_SEED = -1  # draws a new seed
_MOST_LOGITS = 2**24  # of a batch that is scored
_NO_TEXT = (
    "`texts` must be rows of ids, for `generate`: the export's tokenizer is not one of `keras_transformer.text`, so "
    "that texts are for its SavedModel."
)


class GeneratingTask(Task):
    """Generation: from texts to texts."""

    @classmethod
    def tensors(cls, config: dict[str, Any]) -> dict[str, tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
        """Return the inputs and the outputs of each signature.

        With N > 1 hypotheses, generated outputs have an axis of N. A model of many languages takes the language of a
        text and that of its output.
        """
        count, length = config["generation"].get("num_return", 1), config["max_new_tokens"]
        padding_value = config["end_id"] if config["pad_id"] is None else config["pad_id"]
        hypotheses = (count,) if count > 1 else ()
        text = Tensor("text", "string", hypotheses, empty=[""] * count if hypotheses else "")
        no_ids = np.full((*hypotheses, length), padding_value)
        ids = Tensor("ids", "int32", (*hypotheses, length), empty=no_ids, padding=padding_value)
        lengths = Tensor("lengths", "int32", hypotheses, empty=np.zeros(hypotheses, int) if hypotheses else 0)
        numbers = (ids, lengths, Tensor("scores", "float32", hypotheses))
        encoded = Tensor("source_ids", "int32", (None,), padding=padding_value)
        token_scores = Tensor("token_scores", "float32", (None,))
        scores = (Tensor("scores", "float32"), token_scores, Tensor("lengths", "int32", empty=0))
        translated = (TEXT, *languages.options(config))
        source = translated[:2]  # without the language of the output
        return {
            DEFAULT: (translated, (text, ERROR_OUTPUT)),
            "generate": ((*translated, *cls.options(config)), (text, *numbers, ERROR_OUTPUT)),
            "generate_ids": ((*translated, *cls.noise(config)), (*numbers, ERROR_OUTPUT)),
            "encode": (source, (encoded, Tensor("padding_mask", "bool", (None,)), ERROR_OUTPUT)),
            "score": ((TEXT, Tensor("target", "string"), *translated[1:]), (*scores, ERROR_OUTPUT)),
        }

    @classmethod
    def options(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the options of each row of "generate".

        "max_new_tokens" and "min_new_tokens" limit the number of new tokens; of sampling, "temperature", "seed" and
        "rows" replace the temperature, the seed and the row number that seed the noise. The seed −1, the default of a
        sampler without one, draws a new one, and the row number −1 is the index in the batch.
        """
        sampler = config["generation"]
        limits = (
            Tensor("max_new_tokens", "int32", default=config["max_new_tokens"]),
            Tensor("min_new_tokens", "int32", default=0),
        )
        if sampler["sampler"] != "sample":
            return limits
        return (
            *limits,
            Tensor("temperature", "float32", default=float(sampler["temperature"])),
            Tensor("seed", "int64", default=NEW_SEED if sampler["seed"] is None else int(sampler["seed"])),
            Tensor("rows", "int32", default=-1),
        )

    @classmethod
    def ranges(cls, config: dict[str, Any]) -> dict[str, tuple[float, float]]:
        """Return the least and the largest value of each option."""
        limit, constraints = config["max_new_tokens"], config.get("constraints", [])
        counts = [
            constraint["count"] for constraint in constraints if constraint["constraint"] == "MinNewTokens"
        ]
        return {
            "max_new_tokens": (max([1, *counts]), limit),
            "min_new_tokens": (0, limit),
            "temperature": TEMPERATURES,
            "seed": (NEW_SEED, 2**32 - 1),
            "rows": (-1, 2**31 - 1),
        }

    @classmethod
    def noise(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the input of the uniform noise of sampling (N, M); none for other samplers."""
        sampler = config["generation"]
        if sampler["sampler"] != "sample":
            return ()
        return (Tensor("noise", "float32", (sampler["num_return"], config["max_new_tokens"]), optional=True),)


class Generating(GeneratingTask, ExportedPipeline, abc.ABC):
    """Base class of exported pipelines that generate: from texts to texts, or to token ids by `generate`.

    A task defines `tokenize` and `decode`.

    Args:
        graphs: the export's graphs.
        tokenizer: the export's tokenizer; None if it needs TensorFlow, so that inputs must be token ids.
        config: the export's settings.
    """

    _or_long_texts = ""  # in the error of a text that is too long, an alternative to truncation

    def __init__(self, graphs: Graphs, tokenizer: Tokenizer | None, config: dict[str, Any]) -> None:
        self.graphs = graphs
        self.tokenizer = tokenizer
        self.config = config
        constraints = config.get("constraints", [])
        self._other_ends = {
            id_
            for constraint in constraints
            if constraint["constraint"] == "EndTokens"
            for id_ in constraint["end_ids"]
        }

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end an output: the model's end token and those of constraints."""
        return frozenset((self.graphs.end_id, *self._other_ends))

    @property
    def languages(self) -> Sequence[str]:
        """The languages of a translation model of many languages; none for most models."""
        known: Sequence[str] = self.config.get("languages", ())
        return known

    @property
    def _text_tokenizer(self) -> Tokenizer:
        """The tokenizer, or a ValueError if it needs TensorFlow."""
        if self.tokenizer is None:
            raise ValueError(_NO_TEXT)
        return self.tokenizer

    @abc.abstractmethod
    def tokenize(self, text: str, source_language: str = "") -> list[int]:
        """Return the source ids of a text, which is in a language if the model has languages."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of generated ids."""

    def _decoded_ids(self, ids: Sequence[int]) -> list[int]:
        """Return the ids before the first of the other end tokens, without special tokens to skip.

        The tokenizer finds the model's own end token.
        """
        before_end = itertools.takewhile(lambda id_: id_ not in self._other_ends, ids)
        if not self.config.get("skip_special_tokens"):
            return [*before_end]
        skipped = {*self._text_tokenizer.special_token_ids.values()} - {self.graphs.end_id}
        return [id_ for id_ in before_end if id_ not in skipped]

    def __call__(
        self,
        texts: str | Iterable[str],
        batch_size: int = 64,
        *,
        max_new_tokens: Any = None,
        min_new_tokens: Any = None,
        temperature: Any = None,
        source_language: Any = None,
        target_language: Any = None,
        long_texts: str | None = None,
        tag_handling: str | None = None,
        placeholders: Any = None,
        glossary: Any = None,
        glossary_mode: str = "hard",
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        r"""Generate texts.

        Args:
            texts: strings, or one string. A text of only spaces and unknown characters gives an empty output; a
                prompt must have at least one token.
            batch_size: the number of texts in a batch.
            max_new_tokens: as in `generate`; the options of a text that is split hold for each part.
            min_new_tokens: as in `generate`.
            temperature: as in `generate`.
            source_language: as in `generate`.
            target_language: as in `generate`.
            long_texts: of an encoder–decoder, "refuse", an error, for texts of more than `max_source_tokens` tokens, or
                "split" them into lines and sentences, whose outputs are joined; by default the export's setting.
            tag_handling: of an encoder–decoder, "html" to keep tags and placeholders, or "placeholders" to keep
                placeholders such as `{name}` and `%s`: they are put around or beside the words that translate theirs.
            placeholders: the kinds of placeholders that are kept: of "jinja", "icu", "python", "rails", "variables",
                "printf" and "url", by default all of them, "colon" and "at", and patterns of `re.compile`. With them,
                `tag_handling` is by default "placeholders".
            glossary: of an encoder–decoder, a mapping of at most 1,000 terms to their translations, or one for each
                text. Those whose term is in a text are in its output, in place of the words that translate the term.
            glossary_mode: "hard", or "soft" to keep other words if the model finds the translation of a term too
                improbable.
            errors: "raise" the error of a text, or "return" it in place of the output.
            truncate: whether to cut a text of more than `max_source_tokens` tokens. An encoder–decoder reads its first
                tokens and the end token; a prompt is truncated to its last tokens, which the output continues.

        Returns:
            The first hypothesis of each text: a list as long as `texts`, or a string for a string.

        Raises:
            TypeError: if a text is not a string.
            ValueError: if a text is not valid Unicode or too long, its tags are not closed, an option is out of range,
                a language is unknown or missing, there is no tokenizer, the export lacks graphs of single steps, which
                `tag_handling` and `glossary` need, or a decoder-only model is given one of them or `long_texts`.

        Example:
            >>> translate(["la casa", "el perro"], max_new_tokens=[4, 8])
            ['the house', 'the dog']
            >>> translate("La casa.\n\nEl perro.", long_texts="split")
            'The house.\n\nThe dog.'
            >>> translate("<p>La <b>casa</b> azul", tag_handling="html", glossary={"casa": "home"})
            '<p>The blue <b>home</b>'
        """
        one = self._is_one(texts)
        rows = [texts] if one else list(texts)
        if self.tokenizer is None:
            raise ValueError(_NO_TEXT)
        options = _numbers(len(rows), max_new_tokens, min_new_tokens, temperature)
        chosen = self._languages(len(rows), source_language, target_language)
        tag_handling, placeholders = documents.chosen_tags(tag_handling, placeholders)
        if tag_handling is not None or glossary is not None:
            self.check_documents(truncate)
            outputs = documents.translate(
                rows,
                tag_handling,
                placeholders,
                documents.glossaries_of(len(rows), glossary, glossary_mode),
                self.split_function(long_texts),
                lambda split: self._outputs(
                    split.parts, batch_size, *_of_parts(split, options, chosen), "return"
                ),
                lambda row: self.score_function({name: values[row] for name, values in chosen.items()}),
                errors,
            )
        elif splitting_function := self.split_function(long_texts):
            split = splitting.SplitTexts(splitting_function(rows))
            options, chosen = _of_parts(split, options, chosen)
            outputs = split.join(self._outputs(split.parts, batch_size, options, chosen, errors, truncate))
        else:
            outputs = self._outputs(rows, batch_size, options, chosen, errors, truncate)
        return outputs[0] if one else outputs

    def _outputs(
        self,
        rows: Sequence[Any],
        batch_size: int,
        options: dict[str, np.ndarray],
        chosen: dict[str, list[str]],
        errors: Errors,
        truncate: bool = False,
    ) -> list[Any]:
        """Return the output texts, or errors, of texts that are not split."""
        row_errors = RowErrors(errors)
        for row, text in enumerate(rows):
            with row_errors.of(row):
                self._check_text(row, text)
        ids = self._generate(rows, batch_size, row_errors, truncate, options, chosen)["ids"]
        first = ids if ids.ndim == 2 else ids[:, 0]
        return row_errors.merge({row: self.decode(first[row]) for row in row_errors.accepted(len(rows))})

    def _is_one(self, texts: Any) -> bool:
        """Return whether the argument of a call is one text."""
        return isinstance(texts, str)

    def _check_text(self, row: int, text: Any) -> None:
        """Raise a TypeError or ValueError unless the item of a call at index `row` is a text."""
        check_string("texts", row, text)

    def split_function(
        self, long_texts: str | None = None
    ) -> Callable[[Sequence[Any]], list[splitting.Split]] | None:
        """Return the function that splits texts into parts that fit `max_source_tokens`; None if long ones are errors.

        Args:
            long_texts: "refuse" or "split", by default the export's setting.

        Raises:
            ValueError: if the setting is unknown, or the model is decoder-only.
        """
        if long_texts is not None:
            raise ValueError(
                f"`long_texts` must be None for a decoder-only model. Received: long_texts={long_texts!r}"
            )
        return None

    def check_documents(self, truncate: bool = False) -> None:
        """Raise a ValueError unless texts can have tags and a glossary."""
        raise ValueError(
            "`tag_handling` and `glossary` must be None for a decoder-only model. Received: an export of a "
            f"{self.config['pipeline']}"
        )

    def score_function(self, chosen: dict[str, str]) -> Score:
        """Return a function from sources and a target to log-probabilities, with which translations are aligned.

        Args:
            chosen: the languages of the texts and the outputs, by option.
        """
        tokenizer = self._text_tokenizer

        def score(sources: Sequence[str], target: str) -> tuple[np.ndarray, list[int]]:
            rows = [self.tokenize(source, chosen.get(languages.SOURCE, "")) for source in sources]
            target_ids = tokenizer.tokenize(target)
            scores = np.full((len(rows), len(target_ids)), -np.inf)
            accepted = [row for row, ids in enumerate(rows) if ids]
            size = max(_MOST_LOGITS // max(len(target_ids) * self.graphs.vocabulary_size, 1), 1)
            for begin in range(0, len(accepted) if target_ids else 0, size):
                batch = accepted[begin : begin + size]
                input_ids, mask = self.padded([rows[row] for row in batch])
                targets = stacked([self.target_inputs(chosen.get(languages.TARGET, ""))] * len(batch))
                scores[batch] = self.graphs.score(
                    input_ids, np.tile(target_ids, (len(batch), 1)), mask, **targets
                )
            ends = [len(tokenizer.detokenize(target_ids[: end + 1])) for end in range(len(target_ids))]
            return scores, [min(end, len(target)) for end in ends]

        return score

    def generate(
        self,
        texts: Sequence[Any],
        batch_size: int = 64,
        *,
        max_new_tokens: Any = None,
        min_new_tokens: Any = None,
        temperature: Any = None,
        source_language: Any = None,
        target_language: Any = None,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> dict[str, Any]:
        """Generate token ids.

        Args:
            texts: B strings, or lists of token ids.
            batch_size: the number of texts in a batch.
            max_new_tokens: the maximum number of new tokens, or one for each text, at most the export's.
            min_new_tokens: the minimum number of tokens before an end token, or one for each text, by default 0.
            temperature: the temperature of sampling, or one for each text, by default the sampler's.
            source_language: for a model of many languages, the language of the texts, or one for each; by default that
                of the export. Lists of ids have it already.
            target_language: the language of the outputs, likewise.
            errors: "raise" the error of a text, or "return" it in "error", with empty values in its row.
            truncate: as in a call; lists of ids are truncated, too.

        Returns:
            "ids" int64 (B, M), "lengths" int64 (B,), "scores" float32 (B,); with an axis N after the first if the
            export returns N > 1 hypotheses. With errors="return" also "error", a list of B errors, None for none.

        Raises:
            TypeError: as for a call.
            ValueError: as for a call, or if ids are out of range.
        """
        options = _numbers(len(texts), max_new_tokens, min_new_tokens, temperature)
        chosen = self._languages(len(texts), source_language, target_language)
        row_errors = RowErrors(errors)
        outputs = self._generate(texts, batch_size, row_errors, truncate, options, chosen)
        if errors == "raise":
            return outputs
        return {**outputs, "error": row_errors.merge(dict.fromkeys(range(len(texts))))}

    def _generate(
        self,
        texts: Sequence[Any],
        batch_size: int,
        errors: RowErrors,
        truncate: bool,
        options: dict[str, np.ndarray],
        chosen: dict[str, list[str]],
    ) -> dict[str, np.ndarray]:
        """Generate the outputs of `generate`; the outputs of texts with an error are empty."""
        check_batch_size(batch_size)
        if isinstance(texts, str):
            raise TypeError(f"`texts` must be a list of strings. Received: texts={texts!r}")
        rows = self._encoded(texts, errors, truncate, chosen.get(languages.SOURCE))
        targets: dict[int, dict[str, Any]] = {}
        for row in rows:
            with errors.of(row):
                targets[row] = self.target_inputs(chosen[languages.TARGET][row] if chosen else "")
        order = sorted(targets, key=lambda row: len(rows[row]))  # batches of similar lengths
        count = self.graphs.num_return
        shape = (len(texts), count) if count > 1 else (len(texts),)
        ids = np.full((*shape, self.graphs.max_new_tokens), self.graphs.padding_value, np.int64)
        lengths, scores = np.zeros(shape, np.int64), np.zeros(shape, np.float32)

        def generate(batch: list[int]) -> dict[str, np.ndarray]:
            input_ids, mask = self.padded([rows[row] for row in batch])
            batch_options = {
                name: values[batch] if values.ndim else values for name, values in options.items()
            }
            batch_options |= stacked([targets[row] for row in batch])
            return self.graphs.generate(input_ids, np.array(batch), attention_mask=mask, **batch_options)

        batches = [order[begin : begin + batch_size] for begin in range(0, len(order), batch_size)]
        for batch, part in zip(batches, self.graphs.session.map(generate, batches), strict=True):
            ids[batch], lengths[batch], scores[batch] = part["ids"], part["lengths"], part["scores"]
        return {"ids": ids, "lengths": lengths, "scores": scores}

    def run(self, input_ids: np.ndarray, **arrays: Any) -> dict[str, np.ndarray]:
        """Return the outputs of the graph with the generation loop for token ids, without a tokenizer or batches.

        Args:
            input_ids: integers (B, S), padded.
            **arrays: the other arguments of `Graphs.generate`.

        Returns:
            As `generate`.

        Raises:
            ValueError: if an argument has another shape, or values out of range.
        """
        return self.graphs.generate(input_ids, **arrays)

    def encode(
        self, texts: Sequence[Any], truncate: bool = False, *, source_language: Any = None
    ) -> list[list[int]]:
        """Return the source ids of each text or list of ids."""
        chosen = self._languages(len(texts), source_language, None)
        return list(self._encoded(texts, RowErrors(), truncate, chosen.get(languages.SOURCE)).values())

    def preprocess(self, text: str, truncate: bool = False, source_language: str = "") -> list[int]:
        """Return the source ids of a text.

        Args:
            text: the text.
            truncate: whether to truncate it if it has too many tokens.
            source_language: its language, if the model has languages.

        Raises:
            InvalidInputError: if it has too many tokens, is a prompt without tokens, or the language is unknown.
        """
        ids = self.tokenize(text, source_language)
        if self.graphs.start_id is None and not ids:
            raise InvalidInputError("texts", "`texts` must each have a token. Received: none")
        return self._limited(ids, truncate)

    def target_inputs(self, language: str = "") -> dict[str, Any]:
        """Return the inputs of the generation loop for a row in a target language, "" for none.

        Raises:
            InvalidInputError: if the model has languages, and this is none of them.
        """
        return {}

    def _languages(self, count: int, source_language: Any, target_language: Any) -> dict[str, list[str]]:
        """Return the languages of each text and of each output, by option; none if the model has none."""
        chosen = languages.of_each(
            count,
            bool(self.languages),
            source_language=source_language,
            target_language=target_language,
        )
        defaults = {option.name: [option.default] * count for option in languages.options(self.config)}
        return {**defaults, **chosen}

    def _encoded(
        self, texts: Sequence[Any], errors: RowErrors, truncate: bool, source_languages: list[str] | None
    ) -> dict[int, list[int]]:
        """Return the source ids of the texts or lists of ids that have no error, by index."""
        check_truncate(truncate)
        rows = {}
        for row in errors.accepted(len(texts)):
            with errors.of(row):
                language = source_languages[row] if source_languages else ""
                rows[row] = self._ids(texts[row], row, truncate, language)
        return rows

    def _ids(self, text: Any, row: int, truncate: bool, language: str) -> list[int]:
        ids = None
        if isinstance(text, list | tuple | np.ndarray):
            ids = np.asarray(text, None if len(text) else np.int64)
        if ids is None or ids.dtype.kind not in "iu":
            check_string("texts", row, text)
            return self.preprocess(text, truncate, language)
        if ids.ndim != 1 or not ((ids >= 0) & (ids < self.graphs.vocabulary_size)).all():
            raise ValueError(
                f"`texts` must have ids from 0 to {self.graphs.vocabulary_size - 1}. Received: texts[{row}]={text!r}"
            )
        return self._limited([id_ for id_ in ids.tolist() if id_ != self.graphs.pad_id], truncate)

    @abc.abstractmethod
    def _truncated(self, ids: list[int], limit: int) -> list[int]:
        """Return `limit` of more ids, special ones among them."""

    def _limited(self, ids: list[int], truncate: bool) -> list[int]:
        limit = self.graphs.max_source_tokens
        if len(ids) > limit and truncate:
            return self._truncated(ids, limit)
        if len(ids) > limit:
            raise InvalidInputError(
                "texts",
                f"`texts` must have at most {limit} tokens each (max_source_tokens){self._or_long_texts}, or "
                f"truncate=True. Received: {len(ids)} tokens",
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

    def split_function(
        self, long_texts: str | None = None
    ) -> Callable[[Sequence[Any]], list[splitting.Split]] | None:
        """Return the function that splits texts into parts that fit `max_source_tokens`; None if long ones are errors.

        Args:
            long_texts: "refuse" or "split", by default the export's setting.

        Raises:
            ValueError: if the setting is unknown.
        """
        return self.split_texts if self.splits(long_texts) else None

    def check_documents(self, truncate: bool = False) -> None:
        """Raise a ValueError unless texts can have tags and a glossary."""
        if truncate:
            raise ValueError(
                "`truncate` must be False with `tag_handling` or `glossary`. Received: truncate=True"
            )
        if not self.graphs.can_score:
            raise ValueError(
                f"`tag_handling` and `glossary` need the graphs {ENCODER} and {DECODER}, by which words are aligned: "
                "load an export of a Transformer or T5 with precision='float32'. Received: an export without them"
            )

    def splits(self, long_texts: str | None = None) -> bool:
        """Return whether long texts are split, by an argument or the export's setting."""
        return splitting.is_split(
            self.config.get("long_texts", "refuse") if long_texts is None else long_texts
        )

    def split_texts(self, texts: Iterable[str]) -> list[splitting.Split]:
        """Split texts into parts that fit `max_source_tokens`; see `text.splitting.split_texts`."""
        any_language = next(iter(self._text_tokenizer.languages), "")  # all have one token
        return splitting.split_texts(
            list(texts),
            lambda parts: [len(self.tokenize(part, any_language)) for part in parts],
            self.graphs.max_source_tokens,
        )

    def tokenize(self, text: str, source_language: str = "") -> list[int]:
        """Return the source ids of a text, the end id and its language's; none for only spaces and unknown characters.

        Raises:
            InvalidInputError: if the model has languages, and this is none of them.
        """
        tokenizer = self._text_tokenizer
        language = self._language_ids(languages.SOURCE, source_language)
        ids = tokenizer.tokenize(text)
        no_text = {self.graphs.pad_id, self.graphs.end_id, *self.config["empty_ids"]}
        if no_text.issuperset(ids):
            return []
        ids = [*tokenizer.source_prefix_ids, *ids, self.graphs.end_id]
        return [*ids, *language] if tokenizer.language_after_source else [*language, *ids]

    def target_inputs(self, language: str = "") -> dict[str, Any]:
        """Return the inputs of the generation loop for a row in a target language.

        Raises:
            InvalidInputError: if the model has languages, and this is none of them.
        """
        ids = self._language_ids(languages.TARGET, language)
        if not ids:
            return {}
        return {"start_ids": ids[0]} if self._text_tokenizer.language_is_start else {"prefix_ids": ids}

    def _language_ids(self, name: str, language: str) -> list[int]:
        """Return the id of a language's token, [] if the model has no languages."""
        known = {} if self.tokenizer is None else self.tokenizer.languages
        if known and language not in known:
            received = language if language else "none"
            raise InvalidInputError(name, languages.expectation(name, known) + received)
        return [known[language]] if known else []

    def _truncated(self, ids: list[int], limit: int) -> list[int]:
        last = 2 if self.tokenizer and self.tokenizer.language_after_source else 1
        return [*ids[: limit - last], *ids[-last:]]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of generated ids."""
        return self._text_tokenizer.detokenize(self._decoded_ids(ids))


class TextGeneration(Chat, Generating):
    """An exported decoder-only model, from prompts to their continuations; `load` creates it.

    With a chat template, a prompt may be a conversation: a list of messages, or a mapping with "messages" and other
    arguments of `apply_chat_template`.
    """

    def __init__(self, graphs: Graphs, tokenizer: Tokenizer | None, config: dict[str, Any]) -> None:
        super().__init__(graphs, tokenizer, config)
        self.chat_template = ChatTemplate.of(config.get("chat_template"), {})

    def _is_one(self, texts: Any) -> bool:
        return isinstance(texts, str) or is_conversation(texts)

    def _check_text(self, row: int, text: Any) -> None:
        if not is_conversation(text):
            super()._check_text(row, text)

    def _ids(self, text: Any, row: int, truncate: bool, language: str) -> list[int]:
        if is_conversation(text):  # its special tokens are in the template
            return self._limited(self._text_tokenizer.tokenize(self._text_of(text), True), truncate)
        return super()._ids(text, row, truncate, language)

    def tokenize(self, text: str, source_language: str = "") -> list[int]:
        """Return the source ids of a prompt."""
        ids = self._text_tokenizer.tokenize(text, self.config["special_tokens"])
        return [self._text_tokenizer.start_id, *ids] if self.config["add_start"] else ids

    def _truncated(self, ids: list[int], limit: int) -> list[int]:
        start = int(self.config["add_start"])
        return [*ids[:start], *ids[len(ids) - limit + start :]]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of generated ids, including the space after the prompt."""
        # As in the pipeline: without an ordinary token before them, the leading space would be stripped.
        anchor, ids = self.config["anchor_id"], self._decoded_ids(ids)
        text, prefix = (self._text_tokenizer.detokenize(row) for row in ([anchor, *ids], [anchor]))
        return text.removeprefix(prefix)


def generating_pipeline(graphs: Graphs, tokenizer: Tokenizer | None, config: dict[str, Any]) -> Generating:
    """Return an exported pipeline that generates, of the class of its name or, if it has none, of its kind of model."""
    pipeline_class = ExportedPipeline.of(config["pipeline"])
    if pipeline_class is None or not issubclass(pipeline_class, Generating):
        pipeline_class = TextGeneration if config["start_id"] is None else TextToText
    return pipeline_class(graphs, tokenizer, config)


def stream_text(
    tokens: Iterable[int], decode: Callable[[list[int]], str], ids: Sequence[int] = ()
) -> Iterator[str]:
    """Yield the text of tokens while they are generated: a piece for each, "" if it adds none, and the rest.

    Args:
        tokens: the ids.
        decode: a function from ids to their text.
        ids: the ids before the first token, part of the text.
    """
    ids, emitted = list(ids), ""
    for token in tokens:
        ids.append(token)
        text = decode(ids)
        # The last character may be incomplete until later tokens add its remaining bytes.
        complete = text.startswith(emitted) and not text.endswith("\ufffd")
        yield text[len(emitted) :] if complete else ""
        emitted = text if complete else emitted
    yield decode(ids)[len(emitted) :] if ids else ""


def stacked(rows: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the inputs of B ≥ 1 rows, of `target_inputs`, as arrays (B, …)."""
    return {name: np.array([row[name] for row in rows], np.int64) for name in rows[0]}


def _of_parts(
    split: splitting.SplitTexts, options: dict[str, np.ndarray], chosen: dict[str, list[str]]
) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Return the options and the languages of the parts of texts."""
    return (
        {name: values[split.owners] if values.ndim else values for name, values in options.items()},
        {name: split.of_each(values) for name, values in chosen.items()},
    )


def _numbers(count: int, *values: Any) -> dict[str, np.ndarray]:
    """Return the options that are given as arrays, () or (count,).

    Args:
        count: the number of texts.
        *values: `max_new_tokens`, `min_new_tokens` and `temperature`.

    Raises:
        ValueError: if one has another shape.
    """
    options = dict(zip(("max_new_tokens", "min_new_tokens", "temperature"), values, strict=True))
    arrays = {name: np.asarray(value) for name, value in options.items() if value is not None}
    for name, array in arrays.items():
        if array.shape not in ((), (count,)):
            raise ValueError(
                f"`{name}` must be one number, or one for each of {count} texts. Received: {name}={options[name]!r}"
            )
    return arrays
