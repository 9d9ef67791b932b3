"""The constraints of a generation, combined and checked against each other and the model."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.generation.constraints import (
    BannedWords,
    Constraint,
    EndTokens,
    ForcedLastToken,
    ForcedPrefix,
    ForcedWords,
    History,
    MinNewTokens,
    forbid,
    get,
)
from keras_transformer.generation.samplers import Sampler
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import ArgumentError


@dataclasses.dataclass(frozen=True)
class LogitsProcessors:
    """Apply all constraints to logits, and detect end tokens.

    Attributes:
        constraints: the given constraints, and `MinNewTokens` for `min_new_tokens`.
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
            ValueError: if two arguments contradict each other, or constraints the model's vocabulary.
        """
        constraints = _checked(constraints)
        if min_new_tokens:
            constraints = (*constraints, MinNewTokens(min_new_tokens))
        more = [constraint.end_ids for constraint in constraints if isinstance(constraint, EndTokens)]
        end_ids = tuple(dict.fromkeys([model.end_id, *(id_ for ids in more for id_ in ids)]))
        special = {model.pad_id, getattr(model, "start_id", None)} - {None, *end_ids}
        logits_processors = cls(constraints, end_ids, tuple(sorted(special)))
        logits_processors._check(model, max_new_tokens)
        return logits_processors

    @property
    def changes_logits(self) -> bool:
        """True if any constraint changes logits."""
        return any(not isinstance(constraint, EndTokens) for constraint in self.constraints)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Apply all constraints to logits (B, R, V); forbidden tokens get `FORBIDDEN`."""
        for constraint in self.constraints:
            logits = constraint(logits, history)
        index = np.arange(logits.shape[-1])
        forbidden: Any = np.isin(index, self.never)
        if history.minimums is not None:
            early = history.at < history.minimums[:, None, None]
            forbidden = ops.where(early, np.isin(index, [*self.never, *self.end_ids]), forbidden)
        elif not self.never:
            return logits
        return forbid(logits, forbidden)

    @property
    def words(self) -> ForcedWords | None:
        """The forced words of all constraints as one constraint, or None if there are none."""
        words = [word for one in self.constraints if isinstance(one, ForcedWords) for word in one.words]
        return ForcedWords(tuple(words)) if words else None

    def check_sampler(self, sampler: Sampler) -> None:
        """Raise a ValueError if the sampler does not support the constraints."""
        if self.words is not None and not sampler.forces_words:
            raise ValueError(
                "`sampler` must be a `Beam` with at least two beams for `ForcedWords`. "
                f"Received: sampler={sampler}"
            )

    def ends(self, tokens: Tensor) -> Tensor:
        """Return the mask of the end tokens."""
        return functools.reduce(ops.logical_or, [ops.equal(tokens, id_) for id_ in self.end_ids])

    def _check(self, model: Any, max_new_tokens: int) -> None:
        vocabulary = model.vocabulary_size
        for constraint in self.constraints:
            if any(not 0 <= id_ < vocabulary for id_ in constraint.ids()):
                raise ValueError(f"`constraints` must have ids in [0, {vocabulary}). Received: {constraint}")
            if isinstance(constraint, MinNewTokens) and constraint.count > max_new_tokens:
                raise ArgumentError(
                    "{min_new_tokens} must be at most {max_new_tokens}. "
                    "Received: {count!s} with {max_new_tokens=}",
                    count=constraint.count,
                    max_new_tokens=max_new_tokens,
                )
            if isinstance(constraint, EndTokens) and model.pad_id in {*constraint.ids()} - {model.end_id}:
                raise ValueError(
                    "`constraints` must have end tokens that are not padding. "
                    f"Received: {constraint}, where pad_id={model.pad_id}"
                )
            if isinstance(constraint, ForcedLastToken) and set(constraint.token_ids) <= set(self.never):
                raise ValueError(
                    "`constraints` must force tokens that can be generated: no padding, no start token. "
                    f"Received: {constraint}"
                )
            if isinstance(constraint, ForcedPrefix):
                self._check_prefix(constraint, max_new_tokens)
        self._check_words(max_new_tokens)
        banned = [
            word
            for constraint in self.constraints
            if isinstance(constraint, BannedWords)
            for word in constraint.words
        ]
        first = (
            self.end_ids
            if any(isinstance(one, MinNewTokens) and one.count for one in self.constraints)
            else ()
        )
        forbidden = {*self.never, *first, *(word[0] for word in banned if len(word) == 1)}
        if all(id_ in forbidden for id_ in range(vocabulary)):
            raise ValueError("`constraints` must allow at least one token. Received: all are banned")

    def _check_words(self, max_new_tokens: int) -> None:
        if self.words is None:
            return
        before = max(
            (len(one.prefix) for one in self.constraints if isinstance(one, ForcedPrefix)), default=0
        )
        if before + self.words.total > max_new_tokens:
            raise ArgumentError(
                "{constraints} must fit {max_new_tokens}. "
                f"Received: {self.words}, {before} tokens of a prefix and {{max_new_tokens=}}",
                max_new_tokens=max_new_tokens,
            )
        for word in self.words.words:
            if set(word) & {*self.never, *self.end_ids}:
                raise ValueError(
                    "`constraints` must force tokens that can be generated: no padding, no start token, no end "
                    f"token. Received: the word {list(word)}"
                )
            for other in self.constraints:
                if not isinstance(other, ForcedPrefix) and other.violated_by(word, self.end_ids):
                    raise ValueError(
                        "`constraints` must not contradict each other. "
                        f"Received: the forced word {list(word)} and {other}"
                    )

    def _check_prefix(self, forced: ForcedPrefix, max_new_tokens: int) -> None:
        prefix = forced.prefix
        if len(prefix) > max_new_tokens:
            raise ArgumentError(
                f"{{constraints}} must fit {{max_new_tokens}}. Received: {forced} with {{max_new_tokens=}}",
                max_new_tokens=max_new_tokens,
            )
        if set(prefix) & set(self.never) or set(prefix[:-1]) & set(self.end_ids):
            raise ValueError(
                "`constraints` must force tokens that can be generated: no padding, no start token, an end token "
                f"only as the last. Received: {forced}"
            )
        for other in self.constraints:
            if other.violated_by(prefix, self.end_ids):
                raise ValueError(
                    f"`constraints` must not contradict each other. Received: {forced} and {other}"
                )


def _checked(constraints: Any) -> tuple[Constraint, ...]:
    if isinstance(constraints, Constraint) or not isinstance(constraints, Sequence):
        raise ValueError(
            f"`constraints` must be a list of constraints. Received: constraints={constraints!r}"
        )
    return tuple(get(constraint) for constraint in constraints)
