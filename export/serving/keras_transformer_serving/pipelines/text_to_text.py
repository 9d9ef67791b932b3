"""Generation by an encoder–decoder: languages, prefixes, long texts, tags and glossaries."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_transformer_serving.generation import GenerationEngine, Source
from keras_transformer_serving.jobs import Steps, gather
from keras_transformer_serving.pipelines import languages
from keras_transformer_serving.pipelines.errors import InvalidInputError, RowErrors, check_string
from keras_transformer_serving.pipelines.generating import Generating, GeneratingTask
from keras_transformer_serving.pipelines.texts import LEFT, RIGHT
from keras_transformer_serving.tasks import Row
from keras_transformer_serving.text import Tokenizer, splitting
from keras_transformer_serving.text.marked_text import MarkedText
from keras_transformer_serving.text.splitting import Split


class TextToTextTask(GeneratingTask):
    """Generation by an encoder–decoder.

    Attributes:
        long_texts: "refuse" for errors of long texts, or "split".
        truncation_side: what truncate=True keeps, "right" the first tokens of a text or "left" its last.
        source_language: for a model of languages, that of texts; None if calls must give it.
        target_language: that of outputs, likewise.
        empty_ids: the ids without content; a text of these only is empty.
    """

    long_texts: str
    truncation_side: str
    source_language: str | None
    target_language: str | None
    empty_ids: Sequence[int]
    _or_long_texts = ", or long_texts='split'"

    def split_texts(self, texts: Iterable[str]) -> list[Split]:
        """Split texts into parts that fit `max_source_tokens`.

        Args:
            texts: a list of any length.

        Returns:
            The parts of each text, and a function that joins their outputs; an invalid text is not split. See
            `text.splitting.split` for the rule.
        """
        self._check_reads_texts()
        row_errors = RowErrors("return")
        found = self._run(texts, 1, row_errors, False, {}, lambda text, *_: self._parts(text))
        return row_errors.merge(found)

    def _parts(self, text: str) -> Steps[Split]:
        """Split a text into parts that fit."""
        if not splitting.is_valid_text(text):
            return Split.whole(text)
        any_language = next(iter(self.languages), None)  # all have one token

        def count(parts: Sequence[str]) -> Steps[list[int]]:
            rows = yield from gather(
                self._tokenized(part, {languages.SOURCE: any_language}) for part in parts
            )
            return [len(ids) for ids in rows]

        return (yield from splitting.split(text, count, self.max_source_tokens))

    def _split(self, text: Any, row: Row, index: int) -> Steps[Split | MarkedText]:
        splits = splitting.is_split(row.get("long_texts", self.long_texts))
        if not isinstance(text, str) or not (splits or row.keys() & {"tag_handling", "glossary"}):
            return Split.whole(text)
        check_string("texts", index, text)
        if not row.keys() & {"tag_handling", "glossary"}:
            return (yield from self._parts(text))
        try:
            return (
                yield from MarkedText.of(
                    text,
                    row.get("tag_handling"),
                    row.get("glossary"),
                    self._parts if splits else None,
                    row.get("placeholders"),
                )
            )
        except ValueError as error:
            raise InvalidInputError("texts", str(error)) from None

    def check_options(self, options: Mapping[str, Any], truncate: bool) -> None:
        """Raise a ValueError if there is no such option."""
        if "long_texts" in options:
            splitting.is_split(options["long_texts"])
        if not options.keys() & {"tag_handling", "placeholders", "glossary"}:
            return
        if truncate:
            raise ValueError(
                "`truncate` must be False with `tag_handling` or `glossary`. Received: truncate=True"
            )
        self._check_scores("`tag_handling` and `glossary`, which align words,")

    def _tokenized(self, text: Any, row: Row) -> Steps[list[int]]:
        """Return the ids of a text, the end id and its language's; none for only spaces and unknown characters."""
        tokenizer, end_id = self.tokenizer, self.engine.end_id
        language = self._language_ids(languages.SOURCE, row)
        ids = yield from self._tokenize(text)
        if {self.engine.pad_id, end_id, *tokenizer.source_prefix_ids, *self.empty_ids}.issuperset(ids):
            return []
        ids = [*tokenizer.source_prefix_ids, *ids, end_id]
        return [*ids, *language] if tokenizer.language_after_source else [*language, *ids]

    def _truncated(self, ids: list[int], limit: int) -> list[int]:
        first, last = 0, 1  # special ids
        if self.tokenizer is not None:
            language_is_last = self.tokenizer.language_after_source
            first = len(self.tokenizer.source_prefix_ids) + bool(self.languages and not language_is_last)
            last += language_is_last
        begin = first if self.truncation_side == LEFT else limit - last
        return [*ids[:begin], *ids[begin + len(ids) - limit :]]

    def _target_ids(self, text: Any, target: str) -> Steps[list[int]]:
        ids = yield from self._tokenize(target)
        return [*ids, self.engine.end_id]

    def _begin(self, row: Row, index: int, part: int) -> Steps[tuple[list[int], int | None]]:
        language = self._language_ids(languages.TARGET, row)
        is_start = bool(language) and self.tokenizer.language_is_start
        prefix = row.get("prefix", "") if part == 0 else ""
        ids = (yield from self._tokenize(prefix)) if prefix else []
        if {*ids} & ({self.engine.start_id, self.engine.end_id} - {self.engine.pad_id}):
            raise ValueError(
                f"`prefixes` must not have start or end tokens. Received: one in prefixes[{index}]"
            )
        return [*([] if is_start else language), *ids], language[0] if is_start else None

    def _shown_prefix(self, source: Source) -> Sequence[int]:
        return source.prefix_ids[1 if self.languages and source.start_id is None else 0 :]

    def _language_ids(self, name: str, row: Row) -> list[int]:
        """Return the id of a language's token, [] if the model has no languages."""
        if not self.languages:
            return []
        language = row[name] if row.get(name) is not None else getattr(self, name)
        if language not in self.languages:
            raise InvalidInputError(name, languages.expectation(name, self.languages) + (language or "none"))
        return [self.languages[language]]


class TextToText(TextToTextTask, Generating):
    """An exported encoder–decoder; `load` creates it."""

    def __init__(self, engine: GenerationEngine, config: dict[str, Any], tokenizer: Tokenizer | None) -> None:
        super().__init__(engine, config, tokenizer)
        self.long_texts = config.get("long_texts", "refuse")
        self.truncation_side = config.get("truncation_side", RIGHT)
        self.source_language, self.target_language = (config.get(name) for name in languages.NAMES)
        self.empty_ids = config["empty_ids"]
