"""Constraints combined into one function of logits, and checked against each other and the model."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.generation.constraints import (
    FORBIDDEN,
    BannedWords,
    Constraint,
    EndTokens,
    ForcedLastToken,
    ForcedPrefix,
    ForcedWords,
    History,
    MinNewTokens,
    VocabularyShortlist,
    forbid,
    get,
)
from keras_transformer.generation.samplers import Sampler
from keras_transformer.generation.timestamps import Timestamps
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check

_POSSIBLE = "force tokens that can be generated: no padding"


@dataclasses.dataclass(frozen=True)
class LogitsProcessors:
    """Apply all constraints to logits, and detect end tokens.

    Attributes:
        constraints: the constraints, including `MinNewTokens` for `min_new_tokens`.
        end_ids: the tokens that end a sequence.
        never: ids that are never generated: padding and start tokens.
    """

    constraints: tuple[Constraint, ...]
    end_ids: tuple[int, ...]
    never: tuple[int, ...]

    @classmethod
    def of(
        cls, model: Any, max_new_tokens: int, min_new_tokens: int = 0, constraints: Sequence[Constraint] = ()
    ) -> "LogitsProcessors":
        """Create the logits processors of a model.

        Raises:
            ValueError: if two arguments contradict each other, or a constraint does not fit the model's vocabulary.
        """
        constraints = _checked(constraints)
        if min_new_tokens:
            constraints = (*constraints, MinNewTokens(min_new_tokens))
        added = [constraint.end_ids for constraint in constraints if isinstance(constraint, EndTokens)]
        end_ids = tuple(dict.fromkeys([model.end_id, *(id_ for ids in added for id_ in ids)]))
        special = {model.pad_id, getattr(model, "start_id", None)} - {None, *end_ids}
        logits_processors = cls(constraints, end_ids, tuple(sorted(special)))
        logits_processors._check(model, max_new_tokens)
        return logits_processors

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Apply all constraints to logits (B, R, V), and forbid special tokens."""
        logits = self.constrained(logits, history)
        index = np.arange(logits.shape[-1])
        never, early = np.isin(index, self.never), self._early(history)
        if early is None:
            return forbid(logits, never) if self.never else logits
        # One pass over the logits, as they may be large.
        biases = (
            np.where(mask, FORBIDDEN, 0).astype("float32")
            for mask in (never | np.isin(index, self.end_ids), never)
        )
        return logits + ops.where(early, *biases)

    def constrained(self, logits: Tensor, history: History) -> Tensor:
        """Apply all constraints to logits (B, R, V) without forbidding special tokens."""
        for constraint in self.constraints:
            logits = constraint(logits, history)
        return logits

    def special(self, history: History) -> tuple[int, ...]:
        """Return the tokens that `forbid_special` can forbid: `never`, and end tokens if there is a minimum."""
        return self.never if self._early(history) is None else (*self.never, *self.end_ids)

    def forbid_special(self, logits: Tensor, tokens: Tensor, history: History) -> Tensor:
        """Return the logits (B, R, C) of tokens (B, R, C), `FORBIDDEN` for those that must not be generated."""
        forbidden, early = _is_any_of(tokens, self.never), self._early(history)
        if early is not None:
            forbidden = ops.logical_or(forbidden, ops.logical_and(early, self.ends(tokens)))
        return ops.where(forbidden, FORBIDDEN, logits)

    @property
    def min_new_tokens(self) -> int:
        """The minimum number of new tokens of every row."""
        counts = (constraint.count for constraint in self.constraints if isinstance(constraint, MinNewTokens))
        return max(counts, default=0)

    @property
    def words(self) -> ForcedWords | None:
        """The forced words of all constraints as one constraint, or None if there are none."""
        forced = [constraint for constraint in self.constraints if isinstance(constraint, ForcedWords)]
        words = [word for constraint in forced for word in constraint.words]
        return ForcedWords(tuple(words)) if words else None

    @property
    def shortlist(self) -> VocabularyShortlist | None:
        """The shortlist of the vocabulary, or None."""
        return next(
            (constraint for constraint in self.constraints if isinstance(constraint, VocabularyShortlist)),
            None,
        )

    def on_shortlist(self) -> "LogitsProcessors":
        """Return the logits processors of the logits (B, R, S) of the shortlist, in which a token is its index."""
        assert self.shortlist is not None
        index = {id_: i for i, id_ in enumerate(self.shortlist.token_ids)}
        constraints = [constraint.on_shortlist(index) for constraint in self.constraints]
        return LogitsProcessors(
            tuple(constraint for constraint in constraints if constraint is not None),
            tuple(index[id_] for id_ in self.end_ids if id_ in index),
            tuple(index[id_] for id_ in self.never if id_ in index),
        )

    def check_sampler(self, sampler: Sampler) -> None:
        """Raise a ValueError if the sampler does not support the constraints."""
        is_valid = self.shortlist is None or sampler.supports_shortlist
        check(is_valid, "be a `Greedy`, `Beam` or `Sample` for a `VocabularyShortlist`", sampler=sampler)
        is_valid = self.words is None or sampler.forces_words
        check(is_valid, "be a `Beam` with at least two beams for `ForcedWords`", sampler=sampler)

    def ends(self, tokens: Tensor) -> Tensor:
        """Return the mask of the end tokens."""
        return _is_any_of(tokens, self.end_ids)

    def _early(self, history: History) -> Tensor | None:
        """Return a mask, (), (B, 1, 1) or (B, R, 1), True before the minimum number of tokens; None without one."""
        minimum: Any = self.min_new_tokens
        if history.minimums is not None:
            minimums = history.minimums[:, None, None]
            minimum = ops.maximum(minimums, minimum) if minimum else minimums
        elif not minimum:
            return None
        return history.at < minimum

    def _check(self, model: Any, max_new_tokens: int) -> None:
        vocabulary = model.vocabulary_size
        for constraint in self.constraints:
            are_ids = all(0 <= id_ < vocabulary for id_ in constraint.ids())
            check(are_ids, f"have ids in [0, {vocabulary})", constraints=constraint)
            if isinstance(constraint, EndTokens):
                is_valid = model.pad_id not in {*constraint.ids()} - {model.end_id}
                expectation = "have end tokens that are not padding"
                check(is_valid, expectation, constraints=constraint, pad_id=model.pad_id)
            if isinstance(constraint, ForcedLastToken):
                is_valid = not set(constraint.token_ids) <= set(self.never)
                check(is_valid, f"{_POSSIBLE}, no start token", constraints=constraint)
            if isinstance(constraint, ForcedPrefix):
                self._check_prefix(constraint, max_new_tokens)
            if isinstance(constraint, VocabularyShortlist):
                self._check_shortlist(constraint, model)
        count = self.min_new_tokens
        check(
            count <= max_new_tokens,
            "be at most {max_new_tokens}",
            min_new_tokens=count,
            max_new_tokens=max_new_tokens,
        )
        self._check_words(max_new_tokens)
        banned = [
            word
            for constraint in self.constraints
            if isinstance(constraint, BannedWords)
            for word in constraint.words
        ]
        first = self.end_ids if self.min_new_tokens else ()
        forbidden = {*self.never, *first, *(word[0] for word in banned if len(word) == 1)}
        is_valid = not forbidden.issuperset(range(vocabulary))
        check(is_valid, "allow at least one token", constraints=self.constraints)

    def _check_shortlist(self, shortlist: VocabularyShortlist, model: Any) -> None:
        ids = {*shortlist.token_ids}
        check(model.end_id in ids, "have a shortlist with the end token", end_id=model.end_id)
        count = sum(isinstance(other, VocabularyShortlist) for other in self.constraints)
        check(count == 1, "have one shortlist", constraints=self.constraints)
        is_valid = not any(isinstance(other, Timestamps) for other in self.constraints)
        check(is_valid, "have no `Timestamps` beside a shortlist", constraints=self.constraints)
        for other in self.constraints:
            forces = isinstance(other, ForcedPrefix | ForcedLastToken | ForcedWords)
            check(
                not forces or ids.issuperset(other.ids()), "force tokens of the shortlist", constraints=other
            )
        if not hasattr(model, "output_kernel") or model.output_kernel(shortlist.token_ids) is None:
            raise ValueError(
                "`model` must compute logits by a matrix of floats, with an `output_kernel`, for a "
                f"`VocabularyShortlist`. Received: a {type(model).__name__}"
            )

    def _check_words(self, max_new_tokens: int) -> None:
        if self.words is None:
            return
        prefixes = [constraint for constraint in self.constraints if isinstance(constraint, ForcedPrefix)]
        prefix_length = max((len(constraint.prefix) for constraint in prefixes), default=0)
        check(
            prefix_length + self.words.total <= max_new_tokens,
            "fit {max_new_tokens}",
            constraints=self.constraints,
            max_new_tokens=max_new_tokens,
        )
        for word in self.words.words:
            is_valid = not set(word) & {*self.never, *self.end_ids}
            check(is_valid, f"{_POSSIBLE}, no start token, no end token", constraints=self.words, word=word)
            for other in self.constraints:
                is_valid = isinstance(other, ForcedPrefix) or not other.violated_by(word, self.end_ids)
                check(is_valid, "not contradict each other", constraints=[self.words, other], word=word)

    def _check_prefix(self, forced: ForcedPrefix, max_new_tokens: int) -> None:
        prefix = forced.prefix
        is_valid = len(prefix) <= max_new_tokens
        check(is_valid, "fit {max_new_tokens}", constraints=forced, max_new_tokens=max_new_tokens)
        is_valid = not (set(prefix) & set(self.never) or set(prefix[:-1]) & set(self.end_ids))
        check(is_valid, f"{_POSSIBLE}, no start token, an end token only as the last", constraints=forced)
        for other in self.constraints:
            is_valid = not other.violated_by(prefix, self.end_ids)
            check(is_valid, "not contradict each other", constraints=[forced, other])


def _is_any_of(tokens: Tensor, ids: tuple[int, ...]) -> Tensor:
    masks = [ops.equal(tokens, id_) for id_ in ids]
    return functools.reduce(ops.logical_or, masks) if masks else ops.zeros_like(tokens, "bool")


def _checked(constraints: Any) -> tuple[Constraint, ...]:
    is_valid = isinstance(constraints, Sequence) and not isinstance(constraints, Constraint)
    check(is_valid, "be a list of constraints", constraints=constraints)
    return tuple(get(constraint) for constraint in constraints)
