"""The steps of a text that is generated from: how it is prepared, generated from and finished, on any engine."""

import abc
import functools
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from keras_transformer_serving import jobs
from keras_transformer_serving.generation import (
    GENERATE,
    SCORE,
    Alignment,
    Generated,
    GenerationEngine,
    Scored,
    Source,
    part_seed,
    stream_text,
)
from keras_transformer_serving.jobs import Steps, compute, gather
from keras_transformer_serving.pipelines import languages
from keras_transformer_serving.pipelines.errors import (
    InvalidInputError,
    RowErrors,
    check_string,
)
from keras_transformer_serving.pipelines.options import (
    TextOptions,
    glossaries_of,
    numbers_of,
    tags_of,
    texts_of,
)
from keras_transformer_serving.row_options import NEW_SEED, ROW_OPTIONS, SAMPLE, of_calls, tensors_of
from keras_transformer_serving.tasks import DEFAULT, ERROR_OUTPUT, TEXT, Row, Task, Tensor
from keras_transformer_serving.text.alignment import Score
from keras_transformer_serving.text.marked_text import MarkedText, Part
from keras_transformer_serving.text.methods import DETOKENIZE, TOKENIZE, TextMethods
from keras_transformer_serving.text.splitting import Split

T = TypeVar("T")
TRUNCATE = "truncate"
_MOST_ALIGNED = 64  # tokens of a source text: each is hidden once
_NO_TEXT = (
    "`texts` must be rows of ids, for `generate`: the export's tokenizer is not one of `keras_transformer.text`, so "
    "that texts are for its SavedModel."
)


class Output(NamedTuple):
    """The output for a text.

    Attributes:
        texts: the texts of its first hypotheses, as many as were asked for.
        generated: the ids and scores of all.
    """

    texts: list[str]
    generated: Generated


class GenerationSteps(Task, abc.ABC):
    """The declaration of generation, and the steps of a row; `GeneratingTask` has the calls.

    A task defines `_tokenized` and other methods without an implementation here, and what only its kind of model has.

    Attributes:
        engine: what generates and scores.
        text_methods: what tokenizes and detokenizes; None if the export's tokenizer needs TensorFlow, so that inputs
            must be token ids.
        max_source_tokens: the maximum number of tokens of a text.
        skip_special_tokens: whether outputs are without special tokens such as "<unk>".
        languages: the languages of a translation model of many languages, and the ids of their tokens.
    """

    engine: GenerationEngine
    tokenizer: Any
    text_methods: TextMethods | None
    max_source_tokens: int
    skip_special_tokens: bool
    languages: Mapping[str, int] = MappingProxyType({})
    _or_long_texts = ""  # in the error of a text that is too long, an alternative to truncation

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
        """Return the options of each row of "generate", those of `ROW_OPTIONS` that the sampler has."""
        return tensors_of(config)

    @classmethod
    def noise(cls, config: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the input of the uniform noise of sampling (N, M); none for other samplers."""
        sampler = config["generation"]
        if sampler["sampler"] != SAMPLE:
            return ()
        return (Tensor("noise", "float32", (sampler["num_return"], config["max_new_tokens"]), optional=True),)

    def rows(
        self,
        count: int,
        errors: RowErrors,
        truncate: bool,
        options: Mapping[str, Any],
        known: Collection[str] = TextOptions.__annotations__,
    ) -> list[Row]:
        """Return the options of each of `count` texts.

        Args:
            count: the number of texts.
            errors: the errors of texts, to which those of their options are added.
            truncate: whether to truncate long texts.
            options: those of `TextOptions`.
            known: the names that they may have.

        Returns:
            For each text "truncate", and the options that are given: "prefix", the numbers, the languages,
            "long_texts", "tag_handling", "placeholders" and "glossary".
        """
        if unknown := [name for name in options if name not in {*known, *of_calls()}]:
            known = dict.fromkeys([*known, *of_calls()])
            raise TypeError(f"The options must be among {', '.join(known)}. Received: {', '.join(unknown)}")
        given = {name: value for name, value in options.items() if value is not None}
        self.check_options(given, truncate)
        columns: dict[str, Sequence[Any]] = {TRUNCATE: [truncate] * count}
        if "prefixes" in given:
            columns["prefix"] = texts_of("prefixes", given["prefixes"], count, errors)
        declared = self.row_options
        numbers = [name for name in of_calls() if name in given]
        for name in numbers:
            if name not in declared:
                raise ValueError(self._rejected(name, given[name]))
            columns[name] = numbers_of(declared[name], given[name], count)
        of_text = {name: given[name] for name in languages.NAMES if name in given}
        columns |= languages.of_each(count, bool(self.languages), **of_text)
        tags, placeholders = tags_of(given.get("tag_handling"), given.get("placeholders"))
        shared = {"long_texts": given.get("long_texts"), "tag_handling": tags, "placeholders": placeholders}
        columns |= {name: [value] * count for name, value in shared.items() if value is not None}
        if "glossary" in given:
            mode = given.get("glossary_mode", "hard")
            columns["glossary"] = glossaries_of(count, given["glossary"], mode)
        if "seed" not in given and "seed" in declared:
            columns["seed"] = [self._seed(declared["seed"].default)] * count
        rows = [
            {name: values[index] for name, values in columns.items() if values[index] is not None}
            for index in range(count)
        ]
        if numbers:
            for index, row in enumerate(rows):
                with errors.catching(index):
                    self.check_numbers(row)
        return rows

    def check_numbers(self, row: Row) -> None:
        """Raise an `InvalidInputError` if a number of a row is out of its range."""
        for name, tensor in self.row_options.items():
            if name in row:
                low, high = tensor.range
                if not low <= row[name] <= high:
                    raise InvalidInputError(
                        name, f"`{name}` must be in [{low}, {high}]. Received: {row[name]}"
                    )

    def _rejected(self, name: str, value: Any) -> str:
        """Return the error of an option that the sampler or the engine is without."""
        needed, sampler = ROW_OPTIONS[name].sampler, self.engine.sampler["sampler"]
        if needed is None or needed == sampler:
            default = f"an engine that computes it. Received: {name}={value!r}"
            return f"`{name}` needs {self.engine.needed_for_options.get(name, default)}"
        return (
            f"`{name}` needs the sampler `{needed.capitalize()}`. Received: {name}={value!r}, and the sampler "
            f"{sampler!r}"
        )

    def output(self, text: Any, row: Row, index: int, count: int = 1) -> Steps[Output]:
        """Generate the output for a text.

        Args:
            text: the text, or a list of token ids.
            row: its options, see `rows`, and for sampling also "rows", its number in place of the index, and "noise".
            index: its index, which seeds the noise of sampling.
            count: the number of hypotheses whose texts are wanted.
        """
        split = yield from self._split(text, row, index)
        if isinstance(split, Split) and split.is_whole:
            return (yield from self._part(text, row, index, 0, count, None))
        return (yield from self._joined(split, row, index, count))

    # Variables of inner functions are objects: thousands of rows would have garbage collected more often, so that the
    # common way through a row has none.

    def _joined(self, split: Split | MarkedText, row: Row, index: int, count: int) -> Steps[Output]:
        """Return the output for a text in parts."""
        of_parts = split.of_parts if isinstance(split, MarkedText) else [None] * len(split.parts)
        parts = yield from gather(
            self._part(part, row, index, number, count, marked)
            for number, (part, marked) in enumerate(zip(split.parts, of_parts, strict=True))
        )
        texts = [split.join([part.texts[place] for part in parts]) for place in range(count)]
        return Output(texts, _joined([part.generated for part in parts], self.engine))

    def source_of(self, text: Any, row: Row, index: int, part: int = 0) -> Steps[Source]:
        """Return the inputs of the generation for a text, or for a part of it; the arguments are those of `output`."""
        ids = yield from self.source_ids(text, row, index)
        prefix_ids, start_id = yield from self._begin(row, index, part)
        options = {name: row[name] for name in self.row_options if name in row}
        if options.keys() >= {"max_new_tokens", "min_new_tokens"}:
            options["min_new_tokens"] = min(options["min_new_tokens"], options["max_new_tokens"])
        if "seed" in self.row_options:
            seed, number = row.get("seed", self.engine.sampler["seed"]), row.get("rows", -1)
            options["seed"] = part_seed(self._seed(seed), part)
            options["rows"] = index if number < 0 else number
        return Source(ids, prefix_ids, start_id, options, row.get("noise"))

    def scored(self, text: Any, target: str, row: Row, index: int) -> Steps[tuple[np.ndarray, list[int]]]:
        """Return the log-probability of each token of a target, and their ids; see `output` for the arguments."""
        source = yield from self.source_of(text, row, index)
        if not source.ids:
            raise InvalidInputError("texts", "`texts` must not be empty. Received: an empty text")
        target_ids = yield from self._target_ids(text, target)
        limit = self.engine.max_target_tokens(source)
        if len(target_ids) > limit:
            raise InvalidInputError(
                "targets",
                f"`targets` must have at most {limit} tokens each beside their texts. "
                f"Received: {len(target_ids)} tokens",
            )
        scores = yield from self._scores(source, target_ids)
        return scores, target_ids

    def attributed(self, text: Any, target: str | None, row: Row, index: int) -> Steps[Alignment]:
        """Return the `attributions` of a text; see `output` for the arguments."""
        source, target_ids, output = yield from self._pair(text, target, row, index)
        count = len(source.ids)
        if count > _MOST_ALIGNED:
            raise InvalidInputError(
                "texts",
                f"`texts` must have 1 to {_MOST_ALIGNED} tokens to be aligned. Received: {count} tokens",
            )
        masks = 1 - np.eye(count + 1, count, -1, dtype=np.int64)
        scores = yield from gather(self._scores(source, target_ids, mask) for mask in masks)
        decreases = np.maximum(scores[0] - np.array(scores[1:]), 0).T  # (T, S)
        sums = decreases.sum(axis=1, keepdims=True)
        weights = np.divide(decreases, sums, out=np.zeros_like(decreases), where=sums > 0)
        return self._alignment(source, target_ids, weights, output)

    def pieces(self, text: Any, row: Row) -> Iterator[str]:
        """Return an iterator of the pieces of a text while it is generated; joined, they are the text.

        Raises:
            InvalidInputError: if the text or an option is invalid.
            ValueError: if the engine cannot generate token by token.
        """
        if needed := self.engine.needed_to_stream:
            raise ValueError(f"`stream` needs {needed}")
        split = self.now(self._split(text, row, 0))
        assert isinstance(split, Split)  # there are no tags
        sources = [self.now(self.source_of(each, row, 0, part)) for part, each in enumerate(split.parts)]
        streams = [self.engine.tokens(source) for source in sources]
        return split.stream(
            stream_text((token.id for token in tokens), self._text_of_ids, self._shown_prefix(source))
            for source, tokens in zip(sources, streams, strict=True)
        )

    def _text_of_ids(self, ids: Sequence[int]) -> str:
        return self.now(self._decoded(ids))

    def now(self, steps: Steps[T]) -> T:
        """Return the result of steps that are computed now."""
        methods = {} if self.text_methods is None else self.text_methods.methods
        return jobs.run_one(steps, {**methods, **self.engine.methods})

    def _hypotheses(self, source: Source) -> Steps[Generated]:
        """Return the ids of all hypotheses for a source."""
        return compute(GENERATE, source, len(source.ids))

    def _part(
        self, text: Any, row: Row, index: int, number: int, count: int, marked: Part | None
    ) -> Steps[Output]:
        """Return the output for a part of a text, aligned if there are tags or terms in it."""
        source = yield from self.source_of(text, row, index, number)
        out = yield from self._hypotheses(source)
        texts = []
        for ids, length in zip(out.ids[:count], out.lengths, strict=False):
            texts.append((yield from self._decoded([*self._shown_prefix(source), *ids[:length].tolist()])))
        if marked is not None and marked.is_marked:
            texts = yield from self._finished(marked, texts, row, index)
        return Output(texts, out)

    def _finished(self, marked: Part, texts: Sequence[str], row: Row, index: int) -> Steps[list[Any]]:
        """Return outputs with the tags and terms of their part."""
        score = self._score_function(row, index)
        return (yield from gather(marked.finish(each, score) for each in texts))

    def _score_function(self, row: Row, index: int) -> Score:
        """Return the steps from sources and a target to log-probabilities, with which translations are aligned."""
        of_text = {name: value for name, value in row.items() if name in languages.NAMES}

        def score(sources: Sequence[str], target: str) -> Steps[tuple[np.ndarray, list[int]]]:
            target_ids = (yield from self._target_ids("", target))[:-1]
            scores = np.full((len(sources), len(target_ids)), -np.inf)
            if not target_ids:
                return scores, []
            found = yield from gather(self.source_of(source, of_text, index) for source in sources)
            accepted = [place for place, source in enumerate(found) if source.ids]
            scores[accepted] = yield from gather(self._scores(found[place], target_ids) for place in accepted)
            texts = yield from gather(self._decoded(target_ids[: end + 1]) for end in range(len(target_ids)))
            return scores, [min(len(text), len(target)) for text in texts]

        return score

    def _scores(
        self, source: Source, target_ids: Sequence[int], mask: np.ndarray | None = None
    ) -> Steps[np.ndarray]:
        """Return the log-probability of each token of a target."""
        length = len(source.ids) + len(target_ids)
        return compute(SCORE, Scored(source, target_ids, mask), length)

    def _pair(
        self, text: Any, target: str | None, row: Row, index: int
    ) -> Steps[tuple[Source, list[int], str]]:
        """Return the source of a text, the ids of a target, by default the output for it, and the target."""
        source = yield from self.source_of(text, row, index)
        if not source.ids:
            raise InvalidInputError("texts", "`texts` must not be empty. Received: an empty text")
        if target is not None:
            target_ids = yield from self._target_ids(text, target)
            return source, target_ids, target
        out = yield from self._hypotheses(source)
        target_ids = out.ids[0, : out.lengths[0]].tolist()
        output = yield from self._decoded([*self._shown_prefix(source), *target_ids])
        return source, target_ids, output

    def _alignment(
        self, source: Source, target_ids: Sequence[int], weights: np.ndarray, text: str
    ) -> Alignment:
        assert self.text_methods is not None
        piece = self.text_methods.piece
        of_source, of_target = ([*map(piece, ids)] for ids in (source.ids, target_ids))
        return Alignment(of_source, of_target, weights, text)

    def source_ids(self, text: Any, row: Row, index: int) -> Steps[list[int]]:
        """Return the source ids of a text or a list of ids."""
        ids = None
        if isinstance(text, list | tuple | np.ndarray):
            ids = np.asarray(text, None if len(text) else np.int64)
        if ids is None or ids.dtype.kind not in "iu":
            self._check_text(text, index)
            tokenized = yield from self._tokenized(text, row)
            return self._limited(tokenized, row)
        size = self.engine.vocabulary_size
        if ids.ndim != 1 or not ((ids >= 0) & (ids < size)).all():
            raise ValueError(f"`texts` must have ids from 0 to {size - 1}. Received: texts[{index}]={text!r}")
        return self._limited([id_ for id_ in ids.tolist() if id_ != self.engine.pad_id], row)

    def _limited(self, ids: list[int], row: Row) -> list[int]:
        limit = self.max_source_tokens
        if len(ids) > limit and row.get(TRUNCATE):
            return self._truncated(ids, limit)
        if len(ids) > limit:
            raise InvalidInputError(
                "texts",
                f"`texts` must have at most {limit} tokens each (max_source_tokens){self._or_long_texts}, or "
                f"truncate=True. Received: {len(ids)} tokens",
            )
        return ids

    def _tokenize(self, text: str, special_tokens: bool = False) -> Steps[list[int]]:
        return compute(TOKENIZE, (text, special_tokens))

    def _decoded(self, ids: Sequence[int]) -> Steps[str]:
        """Return the text of generated ids."""
        return compute(DETOKENIZE, self._shown_ids(ids))

    def _shown_ids(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the ids before the first of the other end tokens, without special tokens to skip.

        The tokenizer finds the model's own end token.
        """
        if not self.skip_special_tokens and len(self.engine.end_ids) == 1:
            return ids
        others = self.engine.end_ids - {self.engine.end_id}
        before_end = itertools.takewhile(lambda id_: id_ not in others, ids)
        if not self.skip_special_tokens:
            return [*before_end]
        skipped = {*self.tokenizer.special_token_ids.values()} - {self.engine.end_id}
        return [id_ for id_ in before_end if id_ not in skipped]

    @functools.cached_property
    def row_options(self) -> dict[str, Tensor]:
        """The options of a row that the sampler has and the engine computes, by name."""
        config = {
            "generation": self.engine.sampler,
            "constraints": self.engine.constraints,
            "max_new_tokens": self.engine.max_new_tokens,
        }
        return {tensor.name: tensor for tensor in self.options(config) if tensor.name in self.engine.options}

    def _seed(self, seed: int | None) -> int:
        """Return a seed, a new one for None and `NEW_SEED`."""
        return self.engine.new_seed() if seed is None or seed == NEW_SEED else seed

    def _check_text(self, text: Any, index: int) -> None:
        """Raise a TypeError or ValueError unless the item of a call at an index is a text that can be tokenized."""
        check_string("texts", index, text)
        self._check_reads_texts()

    def _check_reads_texts(self) -> None:
        """Raise a ValueError if the tokenizer needs TensorFlow."""
        if self.text_methods is None:
            raise ValueError(_NO_TEXT)

    def _check_scores(self, name: str) -> None:
        """Raise a ValueError if the engine cannot score."""
        if needed := self.engine.needed_to_score:
            raise ValueError(f"{name} needs {needed}")

    @abc.abstractmethod
    def check_options(self, options: Mapping[str, Any], truncate: bool) -> None:
        """Raise a ValueError if the task or the engine has no such option."""

    @abc.abstractmethod
    def _split(self, text: Any, row: Row, index: int) -> Steps[Split | MarkedText]:
        """Return the parts of a text."""

    @abc.abstractmethod
    def _tokenized(self, text: Any, row: Row) -> Steps[list[int]]:
        """Return the source ids of a text."""

    @abc.abstractmethod
    def _truncated(self, ids: list[int], limit: int) -> list[int]:
        """Return `limit` of more ids, special ones among them."""

    @abc.abstractmethod
    def _target_ids(self, text: Any, target: str) -> Steps[list[int]]:
        """Return the ids of a target, with the end token."""

    def _begin(self, row: Row, index: int, part: int) -> Steps[tuple[list[int], int | None]]:
        """Return the prefix of an output of an encoder–decoder, and the decoder's first input; None for the model's."""
        yield from ()
        return [], None

    def _shown_prefix(self, source: Source) -> Sequence[int]:
        """Return the ids of the prefix that are part of the text."""
        return ()


def _joined(parts: Sequence[Generated], engine: GenerationEngine) -> Generated:
    """Return the ids and scores of the parts of a text: the n-th hypothesis is that of each part together."""
    rows = [
        np.concatenate([part.ids[place, : part.lengths[place]] for part in parts])
        for place in range(engine.num_return)
    ]
    lengths = np.sum([part.lengths for part in parts], axis=0)
    ids = np.full((len(rows), max(map(len, rows))), padding_value(engine), parts[0].ids.dtype)
    for row, values in zip(ids, rows, strict=True):
        row[: len(values)] = values
    return Generated(ids, lengths, np.sum([part.scores for part in parts], axis=0))


def padding_value(engine: GenerationEngine) -> int:
    """Return the id that pads outputs."""
    return engine.end_id if engine.pad_id is None else engine.pad_id
