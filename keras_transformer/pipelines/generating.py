"""The base class of pipelines that generate texts, and score and align target texts."""

import abc
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import tensorflow as tf

from keras_transformer import generation
from keras_transformer.generation import samplers
from keras_transformer.generation.constraints import EndTokens
from keras_transformer.generation.constraints import serialize as serialize_constraint
from keras_transformer.generation.generative_model import is_encoder_decoder
from keras_transformer.generation.settings import Settings
from keras_transformer.generation.validation import padding_value
from keras_transformer.pipelines import arguments, batched, generation_graphs
from keras_transformer.pipelines.base import Arrays, Graph, Pipeline, Preprocessed
from keras_transformer.pipelines.generation_signatures import Signatures
from keras_transformer.pipelines.hugging_face_generation import settings_from
from keras_transformer.pipelines.texts import accepted_rows, accepted_texts, first_error, padded, utf8_error
from keras_transformer.text.tokenizers.strings import to_string_tensor
from keras_transformer.typing import Tensor
from keras_transformer_serving.pipelines import documents, languages
from keras_transformer_serving.pipelines.errors import Errors, RowErrors, check_truncate
from keras_transformer_serving.pipelines.generating import GeneratingTask, stream_text
from keras_transformer_serving.text import splitting
from keras_transformer_serving.text.alignment import Score

_SCORED = 16  # rows that are scored together to align a translation


@dataclasses.dataclass(frozen=True)
class Answer:
    """A generated or scored output for a text.

    Attributes:
        text: the output.
        score: its log-probability, summed over tokens.
        ranking_score: the score after the beam's length penalty.
        ids: its tokens, including the end token but not the prefix.
        token_scores: the log-probability of each.
        seed: the seed of a sampled output.
    """

    text: str
    score: float
    ranking_score: float
    ids: list[int]
    token_scores: list[float]
    seed: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Alignment:
    """The attention of each target piece over the source pieces.

    Attributes:
        source: S pieces, including the end token.
        target: T pieces, including the end token.
        weights: float32 (T, S), whose rows sum to 1.
    """

    source: list[str]
    target: list[str]
    weights: np.ndarray


class GeneratingPipeline(GeneratingTask, Pipeline):
    """Base class of pipelines of a model, its tokenizer and generation settings, from strings to strings.

    A task defines `preprocess`, `_prefix_ids` and `_target_rows`. The arguments are those of `TextToText`.
    """

    generates: ClassVar[bool] = True
    _settings_file: ClassVar[str] = "generation_config.json"
    _model_description: ClassVar[str]
    _has_encoder: ClassVar[bool]
    # The remedy beside truncation in the error for a text that is too long.
    _or_long_texts: ClassVar[str] = ""
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

    def __call__(
        self,
        texts: str | Iterable[str],
        batch_size: int = 64,
        *,
        prefixes: str | Iterable[str] | None = None,
        max_new_tokens: int | Sequence[int] | None = None,
        source_language: str | Iterable[str] | None = None,
        target_language: str | Iterable[str] | None = None,
        long_texts: str | None = None,
        tag_handling: str | None = None,
        placeholders: Any = None,
        glossary: Any = None,
        glossary_mode: str = "hard",
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> Any:
        r"""Generate output texts.

        Args:
            texts: a list of any length, or one string. A text of only spaces and unknown characters gives an empty
                output, or only its prefix.
            batch_size: the number of rows in a batch.
            prefixes: for an encoder–decoder, the prefix of each text's output, "" for none; a string for a string. If a
                text is split, its prefix applies to the first part.
            max_new_tokens: the maximum number of new tokens, or one for each text, up to the pipeline's limit; prefixes
                do not count. If a text is split, it limits each part.
            source_language: for a model of many languages, the language of the texts, or one for each; by default the
                pipeline's setting.
            target_language: the language of the outputs, likewise.
            long_texts: for an encoder–decoder, "refuse" to raise an error for texts of more than `max_source_tokens`
                tokens, or "split" to split them; by default the pipeline's setting.
            tag_handling: for an encoder–decoder, "html" to keep HTML and XML tags and placeholders, or "placeholders"
                to keep placeholders such as `{name}` and `%s` only. They are put around or beside the words that
                translate theirs.
            placeholders: the kinds of placeholders that are kept: of "jinja", "icu", "python", "rails", "variables",
                "printf" and "url", by default all of them, "colon" and "at", and patterns of `re.compile`. With them,
                `tag_handling` is by default "placeholders".
            glossary: for an encoder–decoder, a mapping of at most 1,000 terms to their translations, or one for each
                text. Those whose term is in a text are in its output, in place of the words that translate the term.
            glossary_mode: "hard", or "soft" to keep other words if the model finds the translation of a term too
                improbable.
            errors: "raise" the error of a text or prefix, or "return" it in place of the output.
            truncate: whether to truncate texts of more than `max_source_tokens` tokens. An encoder–decoder reads the
                first tokens and the end token; a decoder-only model reads the last tokens of a prompt.

        Returns:
            A list as long as `texts`, or a string for a string: the first of several hypotheses (see `answers`).

        Raises:
            TypeError: if an argument is of another type.
            ValueError: if a text is not valid Unicode or has more than `max_source_tokens` tokens, its tags are not
                closed, a limit is out of range, a prefix has special tokens, a language is unknown or missing, the
                numbers of prefixes, limits, glossaries or languages and texts differ, or `prefixes`, `long_texts`,
                `tag_handling`, `glossary` or languages are passed for a model without.

        Example:
            >>> translator(["la casa", "la casa"], prefixes=["the", "a"], max_new_tokens=8)
            ['the house', 'a house']
            >>> translator("La casa.\n\nEl perro.", long_texts="split")
            'The house.\n\nThe dog.'
            >>> translator("<p>La <b>casa</b> azul.", tag_handling="html", glossary={"casa": "home"})
            '<p>The blue <b>home</b>.'
            >>> translator(["la casa", None], errors="return")
            ['the house', TypeError('`texts` must be a str, … Received: texts[1]=None (of type NoneType)')]
        """
        if isinstance(texts, str):
            prefixes = [prefixes] if isinstance(prefixes, str) else prefixes
            options: dict[str, Any] = {
                "source_language": source_language,
                "target_language": target_language,
                "long_texts": long_texts,
                "tag_handling": tag_handling,
                "placeholders": placeholders,
                "glossary": glossary,
                "glossary_mode": glossary_mode,
                "errors": errors,
                "truncate": truncate,
            }
            return self([texts], batch_size, prefixes=prefixes, max_new_tokens=max_new_tokens, **options)[0]
        texts = arguments.as_list("texts", texts)
        chosen = self._languages(len(texts), source_language, target_language)
        tag_handling, placeholders = documents.chosen_tags(tag_handling, placeholders)
        if tag_handling is None and glossary is None:
            split_texts = self._split_function(long_texts)
            if split_texts is None:
                return self._outputs(texts, batch_size, prefixes, max_new_tokens, chosen, errors, truncate)
            split = splitting.SplitTexts(split_texts(texts))
            inputs = self._of_parts(split, prefixes, max_new_tokens, chosen)
            return split.join(self._outputs(split.parts, batch_size, *inputs, errors, truncate))
        self._check_documents(truncate)

        def run(split: splitting.SplitTexts) -> list[Any]:
            inputs = self._of_parts(split, prefixes, max_new_tokens, chosen)
            return self._outputs(split.parts, batch_size, *inputs, "return", False)

        return documents.translate(
            arguments.decoded(texts),
            tag_handling,
            placeholders,
            documents.glossaries_of(len(texts), glossary, glossary_mode),
            self._split_function(long_texts),
            run,
            lambda row: self._score_function({name: values[row] for name, values in chosen.items()}),
            errors,
        )

    def _of_parts(
        self, split: splitting.SplitTexts, prefixes: Any, max_new_tokens: Any, chosen: dict[str, list[str]]
    ) -> tuple[Any, np.ndarray, dict[str, list[str]]]:
        """Return the prefixes, limits and languages of the parts of texts."""
        count = split.number_of_texts
        limits = split.of_each(arguments.limits_of(max_new_tokens, count, self.max_new_tokens))
        if prefixes is not None:
            # `_outputs` raises or returns the errors of single prefixes.
            prefixes = arguments.one_for_each("prefixes", prefixes, count, RowErrors("return"))
            prefixes = split.of_first(prefixes, "")
        return prefixes, limits, {name: split.of_each(values) for name, values in chosen.items()}

    def _outputs(
        self,
        texts: list[Any],
        batch_size: int,
        prefixes: Any,
        max_new_tokens: Any,
        chosen: dict[str, list[str]],
        errors: Errors,
        truncate: bool,
    ) -> list[Any]:
        """Return the output texts, or errors, of texts that are not split."""
        row_errors = RowErrors(errors)
        rows, out, prefix_ids = self._generate(
            texts, batch_size, prefixes, max_new_tokens, chosen, row_errors, truncate
        )
        ids = np.concatenate([prefix_ids, out.best], axis=1)
        decoded = self.decode(ids).numpy() if rows else []
        return row_errors.merge({row: text.decode() for row, text in zip(rows, decoded, strict=True)})

    def _split_function(
        self, long_texts: str | None
    ) -> Callable[[Sequence[Any]], list[splitting.Split]] | None:
        """Return the function that splits texts into parts that fit `max_source_tokens`; None for "refuse"."""
        if long_texts is not None:
            raise ValueError(
                f"`long_texts` must be None for a decoder-only model. Received: long_texts={long_texts!r}"
            )
        return None

    def _check_documents(self, truncate: bool) -> None:
        """Raise a ValueError unless texts can have tags and a glossary."""
        if not self._has_encoder:
            raise ValueError(
                "`tag_handling` and `glossary` must be None for a decoder-only model. "
                f"Received: a {type(self).__name__}"
            )
        if truncate:
            raise ValueError(
                "`truncate` must be False with `tag_handling` or `glossary`. Received: truncate=True"
            )

    def _score_function(self, chosen: dict[str, str]) -> Score:
        """Return a function from sources and a target to log-probabilities, with which translations are aligned."""

        def score(sources: Sequence[str], target: str) -> tuple[np.ndarray, list[int]]:
            count = len(sources)
            languages_of_rows = {name: [language] * count for name, language in chosen.items()}
            columns = map(to_string_tensor, (list(sources), [target] * count))
            rows, inputs = self.preprocess_pairs(*columns, languages_of_rows).accepted(RowErrors("return"))
            ids = inputs["target_ids"][:1, :-1] if rows else np.zeros((1, 0), np.int32)
            scores = np.full((count, ids.shape[1]), -np.inf)
            if ids.size:
                scores[rows] = batched.score(self.model, inputs, _SCORED)[1][:, :-1]
            # The first ids of the target, and padding.
            prefixes = np.where(np.tri(ids.shape[1], dtype=bool), ids, padding_value(self.model))
            ends = [len(text.decode()) for text in self.decode(prefixes).numpy()] if ids.size else []
            return scores, [min(end, len(target)) for end in ends]

        return score

    def answers(
        self,
        texts: Iterable[str],
        batch_size: int = 64,
        *,
        prefixes: Iterable[str] | None = None,
        max_new_tokens: int | Sequence[int] | None = None,
        source_language: str | Iterable[str] | None = None,
        target_language: str | Iterable[str] | None = None,
        errors: Errors = "raise",
        truncate: bool = False,
    ) -> list[Any]:
        """Generate all hypotheses for each text: the n-best of a beam, or several samples.

        Args:
            texts: a list of any length.
            batch_size: the number of rows in a batch.
            prefixes: as in a call.
            max_new_tokens: as in a call.
            source_language: as in a call.
            target_language: as in a call.
            errors: as in a call.
            truncate: as in a call.

        Returns:
            A list of the N answers to each text, or fewer if there are not N distinct ones.

        Example:
            >>> translator = TextToText(model, tokenizer, Beam(4, num_return=2))
            >>> [[answer.text for answer in answers] for answers in translator.answers(["la casa"])]
            [['the house', 'a house']]
        """
        row_errors, texts = RowErrors(errors), arguments.as_list("texts", texts)
        chosen = self._languages(len(texts), source_language, target_language)
        rows, out, prefix_ids = self._generate(
            texts, batch_size, prefixes, max_new_tokens, chosen, row_errors, truncate
        )
        return row_errors.merge(
            {
                row: [
                    self._answer(out, index, n, prefix_ids[index])
                    for n in range(out.ids.shape[1])
                    if out.scores[index, n] > -np.inf
                ]
                for index, row in enumerate(rows)
            }
        )

    def stream(
        self,
        text: str,
        prefix: str = "",
        *,
        max_new_tokens: int | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
        long_texts: str | None = None,
        truncate: bool = False,
    ) -> Iterator[str]:
        """Stream the output text while it is generated; the concatenated pieces equal the output of a call.

        Args:
            text: one text.
            prefix: the prefix of the output, part of the first piece.
            max_new_tokens: the maximum number of new tokens, at most the pipeline's, which is the default.
            source_language: as in a call.
            target_language: as in a call.
            long_texts: as in a call.
            truncate: as in a call.

        Raises:
            TypeError: if an argument has a wrong type.
            ValueError: if the sampler keeps several parallel hypotheses, or as in a call.
        """
        arguments.check_text("text", text)
        chosen = self._languages(1, source_language, target_language)
        split_texts = self._split_function(long_texts)
        if split_texts is None:
            return self._stream(text, prefix, max_new_tokens, truncate, chosen)
        (split,) = split_texts([text])
        first, *others = split.parts
        streams = (
            self._stream(part, "", max_new_tokens, truncate, chosen, row)
            for row, part in enumerate(others, start=1)
        )
        begin = self._stream(first, prefix, max_new_tokens, truncate, chosen)
        return split.stream(itertools.chain([begin], streams))

    def _stream(
        self,
        text: str,
        prefix: str,
        max_new_tokens: int | None,
        truncate: bool,
        chosen: dict[str, list[str]],
        row: int = 0,
    ) -> Iterator[str]:
        """Stream the output text of a row, whose number seeds the sampling noise."""
        arguments.check_text("prefix", prefix)
        (limit,) = arguments.limits_of(max_new_tokens, 1, self.max_new_tokens)
        check_truncate(truncate)
        inputs = self.prepared(to_string_tensor([text]), chosen, truncate).arrays()
        prefix_ids = self._prefix_ids([prefix] if prefix else None, 1, RowErrors())
        prefix_ids = np.concatenate([inputs.pop("prefix_ids", prefix_ids[:, :0]), prefix_ids], axis=1)
        tokens = generation.stream(
            self.model,
            sampler=self.sampler,
            max_new_tokens=int(limit),
            constraints=self.constraints,
            prefix_ids=prefix_ids if prefix_ids.size else None,
            rows=np.array([row]) if isinstance(self.sampler, samplers.Sample) else None,
            **inputs,
        )
        ids = (int(token[0]) for token in tokens)
        return filter(None, stream_text(ids, self._text, prefix_ids[0].tolist()))

    def _text(self, ids: Sequence[int] | np.ndarray) -> str:
        return self.decode(np.array([ids], np.int32)).numpy()[0].decode()

    def _answer(self, out: generation.Generation, row: int, n: int, prefix: np.ndarray) -> Answer:
        ids = out.ids[row, n, : out.lengths[row, n]]
        scores = out.token_scores[row, n, : len(ids)]
        text = self._text([*prefix, *ids]) if len(prefix) or len(ids) else ""
        numbers = (float(out.scores[row, n]), float(out.ranking_scores[row, n]))
        return Answer(text, *numbers, ids.tolist(), scores.tolist(), out.seed)

    def generate(
        self,
        texts: Iterable[str],
        batch_size: int = 64,
        *,
        prefixes: Iterable[str] | None = None,
        max_new_tokens: int | Sequence[int] | None = None,
        source_language: str | Iterable[str] | None = None,
        target_language: str | Iterable[str] | None = None,
        truncate: bool = False,
    ) -> generation.Generation:
        """Generate ids (excluding prefixes), lengths and scores; see `generation.Generation`."""
        texts = arguments.as_list("texts", texts)
        chosen = self._languages(len(texts), source_language, target_language)
        return self._generate(texts, batch_size, prefixes, max_new_tokens, chosen, RowErrors(), truncate)[1]

    def _generate(
        self,
        texts: Any,
        batch_size: int,
        prefixes: Any,
        max_new_tokens: Any,
        chosen: dict[str, list[str]],
        errors: RowErrors,
        truncate: bool,
    ) -> tuple[list[int], generation.Generation, np.ndarray]:
        """Return the indices of the B valid texts, their `Generation`, and the ids of their prefixes (B, Q)."""
        check_truncate(truncate)
        arguments.check_limit("batch_size", batch_size)
        texts = arguments.as_list("texts", texts)
        limits = arguments.limits_of(max_new_tokens, len(texts), self.max_new_tokens)
        prefix_ids = self._prefix_ids(prefixes, len(texts), errors)
        (utf8,) = arguments.utf8_columns(errors, texts=texts)
        rows, inputs = self.prepared(to_string_tensor(utf8), chosen, truncate).accepted(errors)
        prefix_ids, limits = prefix_ids[rows], limits[rows]
        prefix_ids = np.concatenate([inputs.pop("prefix_ids", prefix_ids[:, :0]), prefix_ids], axis=1)
        if rows:
            out = batched.generate(self, inputs, rows, prefix_ids, limits, batch_size)
        else:
            empty = np.zeros((0, 0), np.int32)
            out = generation.generate(self.model, empty, self.sampler, max_new_tokens=self.max_new_tokens)
        return rows, out, prefix_ids

    @property
    def languages(self) -> Mapping[str, int]:
        """The languages of a translation model of many languages, and the ids of their tokens."""
        return {}

    def _languages(self, count: int, source_language: Any, target_language: Any) -> dict[str, list[str]]:
        """Return the languages of each text and of each output that are not the pipeline's settings, by option."""
        return languages.of_each(
            count, bool(self.languages), source_language=source_language, target_language=target_language
        )

    def prepared(
        self, texts: Tensor, chosen: Mapping[str, Any] = MappingProxyType({}), truncate: bool = False
    ) -> Preprocessed:
        """Convert texts to the inputs of the generation loop, as TensorFlow operations.

        Args:
            texts: a string tensor (B,).
            chosen: for a model of many languages, those of the texts and of the outputs, (B,) or (1,), by option; by
                default the pipeline's settings.
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
    def _prefix_ids(self, prefixes: Any, count: int, errors: RowErrors) -> np.ndarray:
        """Return the ids of prefixes, integers (count, Q), padded on the right; Q = 0 for None."""

    def score(
        self,
        texts: Iterable[str],
        targets: Iterable[str],
        batch_size: int = 64,
        *,
        source_language: str | Iterable[str] | None = None,
        target_language: str | Iterable[str] | None = None,
        errors: Errors = "raise",
    ) -> list[Any]:
        """Score target texts.

        Args:
            texts: a list of any length.
            targets: the target of each text.
            batch_size: the number of rows in a batch.
            source_language: as in a call.
            target_language: as in a call; its token is not scored.
            errors: "raise" the error of a text or target, or "return" it in place of the answer.

        Returns:
            An `Answer` for each target, including its end token.

        Raises:
            TypeError: if an argument is of another type.
            ValueError: if a text is empty or too long, a target is too long for the model's positions, or the numbers
                of texts and targets differ.

        Example:
            >>> [answer.score for answer in translator.score(["la casa"] * 2, ["the house", "a house"])]
            [-0.2, -3.1]
        """
        arguments.check_limit("batch_size", batch_size)
        texts = arguments.as_list("texts", texts)
        row_errors = RowErrors(errors)
        targets = arguments.one_for_each("targets", targets, len(texts), row_errors)
        columns = arguments.utf8_columns(row_errors, texts=texts, targets=targets)
        chosen = self._languages(len(texts), source_language, target_language)
        batch = self.preprocess_pairs(*map(to_string_tensor, columns), chosen)
        rows, inputs = batch.accepted(row_errors)
        if not rows:
            return row_errors.merge({})
        target_ids, lengths = inputs["target_ids"], inputs["target_padding_mask"].sum(axis=1)
        scores, token_scores = batched.score(self.model, inputs, batch_size)
        ranking = scores
        if isinstance(self.sampler, samplers.Beam):
            ranking = scores / self.sampler.penalties(int(lengths.max()))[lengths]
        return row_errors.merge(
            {
                row: Answer(
                    targets[row],
                    float(scores[index]),
                    float(ranking[index]),
                    target_ids[index, : lengths[index]].tolist(),
                    token_scores[index, : lengths[index]].tolist(),
                )
                for index, row in enumerate(rows)
            }
        )

    def align(
        self,
        text: str,
        target: str | None = None,
        *,
        layer: int = -1,
        head: Any = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> Alignment:
        """Align a target with its text by the decoder's cross-attention; see `generation.align`.

        Args:
            text: one text.
            target: the target; by default the output of a call.
            layer: the index of the decoder layer.
            head: the index of a head, or several indices to average; by default all.
            source_language: as in a call.
            target_language: as in a call.

        Returns:
            The `Alignment`.

        Raises:
            TypeError: if an argument is of another type.
            ValueError: if the text is empty, or the model has no such weights, layer or head.

        Example:
            >>> alignment = translator.align("la casa")
            >>> [(piece, alignment.source[row.argmax()]) for piece, row in zip(alignment.target, alignment.weights)]
            [('▁the', '▁la'), ('▁house', '▁casa'), ('</s>', '</s>')]
        """
        arguments.check_text("text", text)
        arguments.check_text("target", target or "")
        chosen = self._languages(1, source_language, target_language)
        inputs = self.preprocess_pairs(*map(to_string_tensor, ([text], [target or ""])), chosen).arrays()
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        if target is None:
            out = self.generate([text], **chosen)
            target_ids = out.best[:, : out.lengths[0, 0]]
        prefix_ids = inputs.get("prefix_ids", target_ids[:, :0])
        rows = np.concatenate([prefix_ids, target_ids], axis=1)
        options = {"layer": layer, "head": head, "start_ids": inputs.get("start_ids")}
        weights = generation.align(self.model, source_ids, rows, **options)[0, prefix_ids.shape[1] :]
        source, generated = (
            [self.tokenizer.id_to_piece(id_) for id_ in ids[0].tolist()] for ids in (source_ids, target_ids)
        )
        return Alignment(source, generated, weights)

    @abc.abstractmethod
    def _target_rows(self, texts: Tensor, targets: Tensor) -> tuple[tf.RaggedTensor, Tensor]:
        """Return the ids of targets with end tokens (B, None), and errors (B,)."""

    def preprocess_pairs(
        self, texts: Tensor, targets: Tensor, chosen: Mapping[str, Any] = MappingProxyType({})
    ) -> Preprocessed:
        """Convert texts and targets, strings (B,), to the inputs of `generation.score`, as TensorFlow operations.

        The languages are `chosen` as in `prepared`.

        Returns:
            The inputs of `prepared`, "target_ids", int32 (B, T), and "target_padding_mask", booleans (B, T). Empty
            texts, and targets that exceed the model's positions, have an error.
        """
        batch = self.prepared(texts, chosen)
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

    def encode(self, texts: list[str], **options: Any) -> tf.Tensor:
        """Return the "source_ids" of `preprocess`, or raise a ValueError if a text or an option is invalid."""
        batch = self.preprocess(to_string_tensor(texts), **options)
        return tf.constant(batch.arrays()["source_ids"])

    def signatures(self) -> dict[str, Graph]:
        """Return the signatures of a SavedModel."""
        self._check_exportable()
        return Signatures(self).graphs()

    def example_inputs(self, texts: Sequence[Any] | None = None) -> dict[str, list[Arrays]]:
        """Return inputs of an export's signatures, with the texts as their own targets."""
        return Signatures(self).example_inputs(accepted_texts(self) if texts is None else texts)

    def onnx_graphs(self) -> dict[str, Graph]:
        """Return the ONNX graphs, by file name: the generation loop, and single steps."""
        return generation_graphs.onnx_graphs(self)

    def _check_exportable(self) -> None:
        if isinstance(self.sampler, samplers.Speculative):
            raise ValueError(
                "`pipeline` must not be speculative: export `pipeline.with_settings('greedy')`, whose ids are equal. "
                f"Received: sampler={self.sampler}"
            )

    def _truncated(self, rows: tf.RaggedTensor, begin: int) -> tf.RaggedTensor:
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
        return self.tokenizer.detokenize(self._decoded_ids(ids))

    def _decoded_ids(self, ids: Any) -> Tensor | tf.RaggedTensor:
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
        greedy = copy.copy(self)
        greedy.sampler = samplers.Greedy()  # a sampler with a draft model has no config
        settings = {
            **greedy.settings(),
            "generation": self.sampler if generation is None else generation,
            "constraints": self.constraints if constraints is None else constraints,
            "max_new_tokens": self.max_new_tokens if max_new_tokens is None else max_new_tokens,
        }
        chosen = self._languages(1, source_language, target_language)
        settings |= {name: language for name, (language,) in chosen.items()}
        pipeline = type(self)(self.model if model is None else model, self.tokenizer, **settings)
        if model is None:
            pipeline.source = self.source
        return pipeline

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments except model and tokenizer."""
        return self.generation_config()

    def generation_config(self) -> dict[str, Any]:
        """Return the generation settings of an export, with defaults resolved."""
        return {
            "generation": samplers.serialize(self.sampler),
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
