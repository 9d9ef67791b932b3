"""Text to text with an encoder–decoder."""

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import tensorflow as tf

from keras_transformer import generation
from keras_transformer.generation import samplers
from keras_transformer.generation.constraints import serialize as serialize_constraint
from keras_transformer.generation.rules import Rules
from keras_transformer.pipelines.folders import Saved

Tensor = Any


@dataclasses.dataclass(frozen=True)
class Answer:
    """One of the outputs for a text.

    Attributes:
        text: the output.
        score: its summed log-probability.
        ranking_score: the same after a beam's length penalty.
        ids: its tokens, the end token included.
        token_scores: the log-probability of each.
    """

    text: str
    score: float
    ranking_score: float
    ids: list[int]
    token_scores: list[float]


class TextToText(Saved):
    """A model, its tokenizer and the settings of generation: strings in, strings out.

    Args:
        model: an encoder–decoder such as `models.Transformer`.
        tokenizer: with the model's vocabulary, such as `text.SentencePieceTokenizer`.
        generation: a sampler or its name.
        constraints: what else may not be generated, such as `generation.NoRepeatNGram(3)`.
        max_new_tokens: the longest output, in tokens.
        max_source_tokens: the longest input, in tokens; a longer one is an error.

    Raises:
        ValueError: where model and tokenizer do not belong together, or settings contradict each other.

    Example:
        >>> translator = TextToText(model, tokenizer)
        >>> translator(["¿Dónde está la estación?"])
        ['Where is the station?']
    """

    _settings_file: ClassVar[str] = "generation_config.json"
    # What model and tokenizer must agree on.
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
    ) -> None:
        check_limit("max_new_tokens", max_new_tokens)
        check_limit("max_source_tokens", max_source_tokens)
        for name in self._shared:
            if getattr(model, name) != getattr(tokenizer, name):
                raise ValueError(
                    f"`model` and `tokenizer` must have the same {name}. Received: "
                    f"model.{name}={getattr(model, name)}, tokenizer.{name}={getattr(tokenizer, name)}"
                )
        self.model = model
        self.tokenizer = tokenizer
        self.sampler = samplers.get(generation)
        rules = Rules.of(model, max_new_tokens, 0, constraints)
        rules.check_sampler(self.sampler)
        self.constraints = rules.constraints
        self.max_new_tokens = int(max_new_tokens)
        self.max_source_tokens = int(max_source_tokens)

    def __call__(self, texts: str | Iterable[str], batch_size: int = 64) -> Any:
        """The output texts.

        Args:
            texts: a list of any length, or one string. A text of nothing but spaces and unknown characters
                gives an empty output.
            batch_size: rows that run together; it changes the speed alone.

        Returns:
            A list as long as `texts`, or a string for a string: of several hypotheses the first (see `answers`).

        Raises:
            ValueError: where a text is no valid Unicode or has more than `max_source_tokens` tokens.
        """
        if isinstance(texts, str):
            return self([texts])[0]
        out = self.generate(texts, batch_size)
        if not len(out.ids):
            return []
        return [decoded.decode() for decoded in self.decode(out.best).numpy()]

    def answers(self, texts: Iterable[str], batch_size: int = 64) -> list[list[Answer]]:
        """All that the sampler's settings return for each text: the n-best of a beam, several samples.

        Args:
            texts: a list of any length.
            batch_size: rows that run together.

        Returns:
            For each text its N answers, fewer where there are not so many different ones.

        Example:
            >>> translator = TextToText(model, tokenizer, Beam(4, num_return=2))
            >>> [[one.text for one in of] for of in translator.answers(["la casa"])]
            [['the house', 'a house']]
        """
        out = self.generate(texts, batch_size)
        return [
            [self._answer(out, row, n) for n in range(out.ids.shape[1]) if out.scores[row, n] > -np.inf]
            for row in range(len(out.ids))
        ]

    def stream(self, text: str) -> Iterator[str]:
        """The output text, piece by piece as it is generated; together the pieces are what a call answers.

        Raises:
            ValueError: where the sampler runs several hypotheses side by side.
        """
        if not isinstance(text, str):
            raise TypeError(f"`text` must be a string. Received: text={text!r}")
        tokens = generation.stream(
            self.model,
            self.encode([text]).numpy(),
            self.sampler,
            max_new_tokens=self.max_new_tokens,
            constraints=self.constraints,
        )
        return self._pieces(tokens)

    def _pieces(self, tokens: Iterator[np.ndarray]) -> Iterator[str]:
        ids: list[int] = []
        said = ""
        for token in tokens:
            ids.append(int(token[0]))
            text = self._text(ids)
            # The last character may still want bytes that come with later tokens.
            if text.startswith(said) and len(text) > len(said) and not text.endswith("\ufffd"):
                yield text[len(said) :]
                said = text
        if ids and (rest := self._text(ids)[len(said) :]):
            yield rest

    def _text(self, ids: Sequence[int] | np.ndarray) -> str:
        return self.decode(np.array([ids], np.int32)).numpy()[0].decode()

    def _answer(self, out: generation.Generation, row: int, n: int) -> Answer:
        ids = out.ids[row, n, : out.lengths[row, n]]
        scores = out.token_scores[row, n, : len(ids)]
        text = self._text(ids) if len(ids) else ""
        numbers = (float(out.scores[row, n]), float(out.ranking_scores[row, n]))
        return Answer(text, *numbers, ids.tolist(), scores.tolist())

    def generate(self, texts: Iterable[str], batch_size: int = 64) -> generation.Generation:
        """The output ids, lengths and scores (see `generation.Generation`)."""
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be positive. Received: batch_size={batch_size}")
        if isinstance(texts, str):
            raise TypeError(f"`texts` must be a list of strings. Received: texts={texts!r}")
        texts = list(texts)
        source_ids = self.encode(texts).numpy() if texts else np.zeros((0, 0), np.int32)
        lengths = (source_ids != self.model.pad_id).sum(axis=1)
        samples = isinstance(self.sampler, samplers.Sample)
        order = np.argsort(lengths, kind="stable")  # rows of near length run together
        parts = [
            generation.generate(
                self.model,
                source_ids[rows, : max(1, lengths[rows].max())],
                self.sampler,
                max_new_tokens=self.max_new_tokens,
                constraints=self.constraints,
                rows=rows if samples else None,
            )
            for rows in (order[i : i + batch_size] for i in range(0, len(order), batch_size))
        ]
        if not parts:
            return generation.generate(
                self.model, source_ids, self.sampler, max_new_tokens=self.max_new_tokens
            )
        back = np.argsort(order)
        return generation.Generation(
            *(
                np.concatenate([getattr(part, field.name) for part in parts])[back]
                for field in dataclasses.fields(generation.Generation)
            )
        )

    def encode(self, texts: Any) -> Tensor:
        """The source ids of texts, as TensorFlow operations: the same in Python and in an export.

        Args:
            texts: a list of strings, or a string tensor (B,).

        Returns:
            int32 (B, S): tokens and the end id, then padding; all padding for a text that has only spaces and
            unknown characters, or nothing.

        Raises:
            ValueError: where a text is too long (tf.errors.InvalidArgumentError inside a graph).
        """
        ids = self.tokenizer.encode(texts, add_end=True)
        silent = tf.constant([self.model.pad_id, self.model.end_id, *self.tokenizer.blank_ids])
        says_something = tf.reduce_any(tf.reduce_all(ids[:, :, None] != silent, axis=-1), axis=1)
        ids = tf.where(says_something[:, None], ids, self.model.pad_id)
        self._check_length(tf.math.count_nonzero(ids != self.model.pad_id, axis=1))
        return ids

    def decode(self, ids: Any) -> Tensor:
        """The texts, strings (B,), of generated ids (B, M), as TensorFlow operations."""
        return self.tokenizer.detokenize(ids)

    def _check_length(self, lengths: Tensor) -> None:
        limit = self.max_source_tokens
        if not tf.executing_eagerly():
            tf.debugging.assert_less_equal(
                lengths, tf.constant(limit, lengths.dtype), f"a text is longer than {limit} tokens"
            )
        elif len(lengths) and (longest := int(np.argmax(lengths))) >= 0 and lengths[longest] > limit:
            raise ValueError(
                f"`texts` must have at most {limit} tokens each (max_source_tokens). "
                f"Received: {int(lengths[longest])} tokens in texts[{longest}]"
            )

    def with_settings(
        self,
        generation: Any = None,
        *,
        constraints: Sequence[Any] | None = None,
        max_new_tokens: int | None = None,
    ) -> Self:
        """The same model and tokenizer with other settings of generation; what is None stays."""
        plain = copy.copy(self)
        plain.sampler = samplers.Greedy()  # for one that drafts has no config
        settings = {
            **plain.generation_config(),
            "generation": self.sampler if generation is None else generation,
            "constraints": self.constraints if constraints is None else constraints,
            "max_new_tokens": self.max_new_tokens if max_new_tokens is None else max_new_tokens,
        }
        return type(self)(self.model, self.tokenizer, **settings)

    def settings(self) -> dict[str, Any]:
        """What is saved beside model and tokenizer: those of generation."""
        return self.generation_config()

    def generation_config(self) -> dict[str, Any]:
        """The settings, as they are written beside a model."""
        return {
            "generation": samplers.serialize(self.sampler),
            "constraints": [serialize_constraint(constraint) for constraint in self.constraints],
            "max_new_tokens": self.max_new_tokens,
            "max_source_tokens": self.max_source_tokens,
        }


def check_limit(name: str, limit: Any) -> None:
    """Raise where a number of tokens is no positive integer."""
    if not isinstance(limit, int | np.integer) or isinstance(limit, bool):
        raise TypeError(f"`{name}` must be an integer. Received: {name}={limit!r}")
    if limit < 1:
        raise ValueError(f"`{name}` must be positive. Received: {name}={limit}")
