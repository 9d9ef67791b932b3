"""Constraints on generated sequences: logits processors that lower the logits of forbidden or unwanted tokens.

A constraint sees the tokens generated so far, without the prompt. Pass any number of them as `constraints=[...]`.
Axes: B rows of the batch, R hypotheses of a row, M new tokens, V vocabulary size.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check, is_integer, is_number

FORBIDDEN = -1e30
"""An upper bound of the logits and scores of forbidden tokens: finite, so that sums and differences are never NaN."""


@dataclasses.dataclass(frozen=True)
class History:
    """The tokens generated before this step.

    Attributes:
        ids: integers (B, R, M), valid before index `step` of the last axis.
        step: integer scalar, or integers (B, R), one for each hypothesis.
        end_ids: the tokens that end a sequence.
        limits: integers (B,), the maximum number of new tokens of each row; by default M.
        minimums: integers (B,), the minimum number of new tokens of each row; by default 0.
        last_prompt_ids: integers (B,), the last token of each prompt; None where it is not known.
    """

    ids: Tensor
    step: Tensor
    end_ids: tuple[int, ...]
    limits: Tensor | None = None
    minimums: Tensor | None = None
    last_prompt_ids: Tensor | None = None

    @property
    def at(self) -> Tensor:
        """The step, a scalar or (B, R, 1), for comparison with indices of the last axis of `ids`."""
        return self.step[..., None] if len(getattr(self.step, "shape", ())) else self.step

    @property
    def written(self) -> Tensor:
        """The mask (M,) or (B, R, M) of the valid elements of `ids`."""
        return ops.arange(self.ids.shape[-1]) < self.at

    @property
    def at_limit(self) -> Tensor:
        """True if this step generates the last token within the limit: a scalar, (B, 1, 1) or (B, R, 1)."""
        return self.at + 1 >= (self.ids.shape[-1] if self.limits is None else self.limits[:, None, None])

    def last(self, count: int) -> list[Tensor]:
        """Return the last `count` ids, each (B, R), the oldest first; arbitrary ids if there are fewer."""
        columns = [ops.maximum(self.at - back, 0) for back in range(count, 0, -1)]
        if len(getattr(self.step, "shape", ())):
            return [ops.take_along_axis(self.ids, column, axis=2)[..., 0] for column in columns]
        return [ops.take(self.ids, column, axis=2) for column in columns]


class Constraint(abc.ABC):
    """Base class of constraints, which are frozen dataclasses that map logits to logits."""

    @abc.abstractmethod
    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Return the processed logits (B, R, V).

        No logit increases, except those of forced tokens. `Beam` passes log-probabilities.
        """

    def ids(self) -> tuple[int, ...]:
        """Return the token ids in the constraint's settings, which must be in the vocabulary."""
        return ()

    def violated_by(self, sequence: tuple[int, ...], end_ids: tuple[int, ...]) -> bool:
        """Return True if the constraint forbids a token of `sequence`, generated ids without the prompt."""
        return False

    def on_shortlist(self, index: Mapping[int, int]) -> "Constraint | None":
        """Return the constraint on logits (B, R, S) of a `VocabularyShortlist`, or None if it has no effect on them.

        Args:
            index: the index in the shortlist of each of its ids. It has the ids that the constraint forces.
        """
        return self


@dataclasses.dataclass(frozen=True)
class VocabularyShortlist(Constraint):
    """Generate only tokens of a shortlist, and compute only their logits.

    Probabilities, and so the scores, are normalized over the shortlist. A greedy output whose tokens are all in the
    shortlist is the same as without it. For models whose `output_kernel` accepts ids, with `Greedy`, `Beam` and
    `Sample`.

    Args:
        token_ids: the ids, with the model's `end_id`.

    References:
        Jean et al., "On Using Very Large Target Vocabulary for Neural Machine Translation" (2015).
    """

    token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", tuple(sorted({*_ids("token_ids", self.token_ids)})))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Return the logits unchanged; the search computes those of the shortlist only."""
        return logits

    def ids(self) -> tuple[int, ...]:
        """Return the ids of the shortlist."""
        return self.token_ids

    def violated_by(self, sequence: tuple[int, ...], end_ids: tuple[int, ...]) -> bool:
        """Return True if a token is not in the shortlist."""
        return not {*sequence}.issubset(self.token_ids)

    def on_shortlist(self, index: Mapping[int, int]) -> None:
        """Return None: all tokens are in the shortlist."""


@dataclasses.dataclass(frozen=True)
class MinNewTokens(Constraint):
    """Forbid end tokens until `count` tokens have been generated."""

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", as_count("count", self.count, 0))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Return the logits unchanged; `LogitsProcessors` forbids the end tokens."""
        return logits

    def violated_by(self, sequence: tuple[int, ...], end_ids: tuple[int, ...]) -> bool:
        """Return True if an end token is among the first `count`."""
        return any(id_ in end_ids for id_ in sequence[: self.count])


@dataclasses.dataclass(frozen=True)
class RepetitionPenalty(Constraint):
    """Penalize tokens generated before: divide positive logits by `factor` and multiply others by it.

    `Beam` applies it to log-probabilities, as `transformers` does, because logits of different hypotheses are not
    comparable; log-probabilities are never positive and are therefore multiplied.

    References:
        Keskar et al., "CTRL" (2019), section 4.1.
    """

    factor: float

    def __post_init__(self) -> None:
        is_valid = is_number(self.factor) and 1 <= self.factor < float("inf")
        check(is_valid, "be a number of at least 1", factor=self.factor)
        object.__setattr__(self, "factor", float(self.factor))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Lower the logits of tokens generated before."""
        lower = ops.where(logits > 0, logits / self.factor, ops.maximum(logits * self.factor, FORBIDDEN))
        return ops.where(_occurs(history.ids, history.written, logits), lower, logits)


@dataclasses.dataclass(frozen=True)
class NoRepeatNGram(Constraint):
    """Forbid the repetition of n-grams of `size` tokens."""

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_count("size", self.size, 1))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Forbid tokens that would complete an n-gram generated before."""
        max_length = history.ids.shape[-1]
        if self.size > max_length:
            return logits
        followers = history.ids[:, :, self.size - 1 :]  # (B, R, M − n + 1), the last token of each n-gram
        repeated = ops.arange(self.size - 1, max_length) < history.at
        for offset, latest in enumerate(history.last(self.size - 1)):
            earlier = history.ids[:, :, offset : max_length - self.size + 1 + offset]
            repeated = ops.logical_and(repeated, ops.equal(earlier, latest[:, :, None]))
        return forbid(logits, _occurs(followers, repeated, logits))

    def violated_by(self, sequence: tuple[int, ...], end_ids: tuple[int, ...]) -> bool:
        """Return True if an n-gram is repeated."""
        grams = [sequence[i : i + self.size] for i in range(len(sequence) - self.size + 1)]
        return len(set(grams)) < len(grams)


@dataclasses.dataclass(frozen=True)
class BannedWords(Constraint):
    """Forbid words, given as sequences of ids.

    Args:
        words: sequences of at least one id.
    """

    words: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", _words(self.words))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Forbid tokens that would complete a banned word."""
        for word in self.words:
            complete = history.at >= len(word) - 1
            for id_, latest in zip(word, history.last(len(word) - 1), strict=False):
                complete = ops.logical_and(complete, ops.equal(latest, id_)[:, :, None])
            logits = forbid(logits, ops.logical_and(complete, _is_one_of(word[-1:], logits)))
        return logits

    def ids(self) -> tuple[int, ...]:
        """Return the ids of all words."""
        return tuple(id_ for word in self.words for id_ in word)

    def violated_by(self, sequence: tuple[int, ...], end_ids: tuple[int, ...]) -> bool:
        """Return True if a banned word occurs."""
        return any(sequence[i : i + len(word)] == word for word in self.words for i in range(len(sequence)))

    def on_shortlist(self, index: Mapping[int, int]) -> "BannedWords | None":
        """Return the words whose tokens are in the shortlist."""
        words = [word for word in self.words if index.keys() >= {*word}]
        return BannedWords(_indices(words, index)) if words else None


@dataclasses.dataclass(frozen=True)
class ForcedPrefix(Constraint):
    """Force every output to begin with a prefix.

    The `prefix_ids` of `generate`, in contrast, may differ between rows and are not part of the output.
    """

    prefix: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", _ids("prefix", self.prefix))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Force the token of the prefix at this step."""
        prefix = ops.convert_to_tensor(self.prefix, "int32")
        forced = ops.take(prefix, ops.minimum(history.at, len(self.prefix) - 1), axis=0)
        return force(logits, history.at < len(self.prefix), ops.equal(ops.arange(logits.shape[-1]), forced))

    def ids(self) -> tuple[int, ...]:
        """Return the ids of the prefix."""
        return self.prefix

    def violated_by(self, sequence: tuple[int, ...], end_ids: tuple[int, ...]) -> bool:
        """Return True if the sequence does not begin with the prefix."""
        return any(id_ != forced for id_, forced in zip(sequence, self.prefix, strict=False))

    def on_shortlist(self, index: Mapping[int, int]) -> "ForcedPrefix":
        """Return the prefix in indices of the shortlist."""
        return ForcedPrefix(_indices(self.prefix, index))


@dataclasses.dataclass(frozen=True)
class EndTokens(Constraint):
    """Add end tokens to the model's `end_id`."""

    end_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "end_ids", _ids("end_ids", self.end_ids))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Return the logits unchanged; `LogitsProcessors.ends` reads the end tokens."""
        return logits

    def ids(self) -> tuple[int, ...]:
        """Return the end tokens."""
        return self.end_ids

    def on_shortlist(self, index: Mapping[int, int]) -> None:
        """Return None: `LogitsProcessors` has the end tokens of the shortlist."""


@dataclasses.dataclass(frozen=True)
class ForcedLastToken(Constraint):
    """Force the last token within the limit to be one of `token_ids`, such as the end token to avoid truncation.

    Args:
        token_ids: the tokens, which have equal probabilities.
    """

    token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", _ids("token_ids", self.token_ids))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Force the tokens at the limit."""
        return force(logits, history.at_limit, _is_one_of(self.token_ids, logits))

    def ids(self) -> tuple[int, ...]:
        """Return the forced tokens."""
        return self.token_ids

    def on_shortlist(self, index: Mapping[int, int]) -> "ForcedLastToken":
        """Return the tokens as indices of the shortlist."""
        return ForcedLastToken(_indices(self.token_ids, index))


@dataclasses.dataclass(frozen=True)
class ForcedWords(Constraint):
    """Force every output to contain words, given as sequences of ids, in any order; requires a `Beam` of at least two.

    Hypotheses with the same number of generated word tokens form a bank, and the beam is divided among the banks in
    rounds: each round adds the best remaining hypothesis of each bank, from the bank with the most tokens downwards.
    The tokens of a partially generated word count.

    Args:
        words: sequences of at least one id.

    References:
        Post and Vilar, "Fast Lexically Constrained Decoding with Dynamic Beam Allocation" (2018). In the paper, places
        that a bank cannot fill go to its neighbours.
    """

    words: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(dict.fromkeys(_words(self.words))))

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Forbid end tokens while a word is missing."""
        missing = self.progress(history.ids, history.step) < self.total
        ends = _is_one_of(history.end_ids, logits)
        return forbid(logits, ops.logical_and(missing[..., None], ends))

    @property
    def total(self) -> int:
        """The number of tokens of all words."""
        return sum(map(len, self.words))

    def ids(self) -> tuple[int, ...]:
        """Return the ids of all words."""
        return tuple(id_ for word in self.words for id_ in word)

    def violated_by(self, sequence: tuple[int, ...], end_ids: tuple[int, ...]) -> bool:
        """Return True if the sequence ends without one of the words."""
        subsequences = {sequence[i : i + len(word)] for word in self.words for i in range(len(sequence))}
        return not subsequences.issuperset(self.words) and any(id_ in end_ids for id_ in sequence)

    def on_shortlist(self, index: Mapping[int, int]) -> "ForcedWords":
        """Return the words in indices of the shortlist."""
        return ForcedWords(_indices(self.words, index))

    def progress(self, ids: Tensor, length: Any) -> Tensor:
        """Count the word tokens (B, R) among the first `length` of ids (B, R, M); `total` if all words occur."""
        history = History(ids, length, ())
        complete = partial = ops.zeros_like(ids[..., 0])
        for word in self.words:
            starts = ids.shape[-1] - len(word) + 1
            occurs = ops.arange(starts) + len(word) <= length
            for offset, id_ in enumerate(word):
                occurs = ops.logical_and(occurs, ops.equal(ids[..., offset : offset + starts], id_))
            occurs = ops.any(occurs, axis=-1)
            complete = complete + len(word) * ops.cast(occurs, complete.dtype)
            for count in range(1, len(word)):
                is_begun = ops.logical_and(ops.logical_not(occurs), length >= count)
                for id_, latest in zip(word, history.last(count), strict=False):
                    is_begun = ops.logical_and(is_begun, ops.equal(latest, id_))
                partial = ops.maximum(partial, count * ops.cast(is_begun, partial.dtype))
        return complete + partial


def is_allowed(values: Any) -> Any:
    """Return where logits or scores, tensors or arrays, are not `FORBIDDEN`, to which more may have been added."""
    return values > FORBIDDEN / 2


def forbid(logits: Tensor, mask: Tensor, condition: Tensor | None = None) -> Tensor:
    """Add `FORBIDDEN` to the logits (B, R, V) where a mask and a condition, broadcast to them, are True."""
    bias = ops.cast(mask, "float32") * FORBIDDEN
    return logits + (bias if condition is None else bias * ops.cast(condition, "float32"))


def force(logits: Tensor, condition: Tensor, mask: Tensor) -> Tensor:
    """Where a condition is True, set the logits (B, R, V) of tokens in a mask to 0 and all others to `FORBIDDEN`.

    A single forced token has probability 1, so the score of a hypothesis does not change. Forbidden tokens stay
    forbidden.
    """
    allowed = ops.logical_and(mask, is_allowed(logits))
    return ops.where(condition, ops.where(allowed, 0.0, FORBIDDEN), logits)


def get(identifier: Any) -> Constraint:
    """Retrieve a constraint: the constraint itself, or from its config as returned by `serialize`.

    Example:
        >>> get({"constraint": "NoRepeatNGram", "size": 3})
        NoRepeatNGram(size=3)
    """
    if isinstance(identifier, Constraint):
        return identifier
    classes = {cls.__name__: cls for cls in Constraint.__subclasses__()}
    if isinstance(identifier, dict) and str(identifier.get("constraint")) in classes:
        cls: Any = classes[identifier["constraint"]]
        settings = {name: value for name, value in identifier.items() if name != "constraint"}
        if settings.keys() == {field.name for field in dataclasses.fields(cls)}:
            return cls(**settings)
    raise ValueError(
        "`constraints` must contain constraints such as `BannedWords([[5, 6]])`, or their configs. "
        f"Received: a list with {identifier!r}"
    )


def serialize(constraint: Constraint) -> dict[str, Any]:
    """Return the config of a constraint for `get`, which is serializable as JSON."""
    settings = {field.name: getattr(constraint, field.name) for field in dataclasses.fields(constraint)}  # type: ignore[arg-type]
    return {
        "constraint": type(constraint).__name__,
        **{name: _as_lists(value) for name, value in settings.items()},
    }


def _as_lists(value: Any) -> Any:
    return [_as_lists(item) for item in value] if isinstance(value, tuple) else value


def _indices(ids: Any, index: Mapping[int, int]) -> Any:
    """Return the indices of ids, or of sequences of ids."""
    return index[ids] if is_integer(ids) else tuple(_indices(id_, index) for id_ in ids)


def _is_one_of(ids: Sequence[int], logits: Tensor) -> Tensor:
    """Return the mask (V,) of ids."""
    index = ops.arange(logits.shape[-1])
    return ops.any(ops.stack([ops.equal(index, id_) for id_ in ids]), axis=0)


def _occurs(ids: Tensor, mask: Tensor, logits: Tensor) -> Tensor:
    """Return the mask (B, R, V) of tokens that occur in `ids` (B, R, J) where `mask`, (J,) or (B, R, J), is True."""
    ids = ops.where(mask, ids, -1)[..., None]
    return ops.any(ops.equal(ids, ops.arange(logits.shape[-1], dtype="int32")), axis=-2)


def as_count(name: str, count: Any, minimum: int) -> int:
    """Return the setting `name` of a constraint as an integer, or raise a ValueError if it is less than a minimum."""
    check(is_integer(count) and count >= minimum, f"be an integer of at least {minimum}", **{name: count})
    return int(count)


def _words(words: Any) -> tuple[tuple[int, ...], ...]:
    if isinstance(words, str) or not isinstance(words, Sequence | np.ndarray) or not len(words):
        raise ValueError(f"`words` must be a list of at least one sequence of ids. Received: words={words!r}")
    return tuple(_ids("words", word) for word in words)


def _ids(name: str, ids: Any) -> tuple[int, ...]:
    if isinstance(ids, str) or not isinstance(ids, Sequence | np.ndarray) or not len(ids):
        raise ValueError(f"`{name}` must contain at least one id per sequence. Received: {name}={ids!r}")
    if any(not is_integer(id_) or id_ < 0 for id_ in ids):
        raise ValueError(f"`{name}` must contain ids, non-negative integers. Received: {name}={ids!r}")
    return tuple(int(id_) for id_ in ids)
