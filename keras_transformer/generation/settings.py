"""The validated settings of a generation."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_transformer.generation import samplers, validation
from keras_transformer.generation.constraints import Constraint
from keras_transformer.generation.logits_processors import LogitsProcessors
from keras_transformer.generation.samplers import Sampler


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings that are compiled into a generation, validated once by `of`.

    Attributes:
        sampler: the sampler.
        logits_processors: the constraints, including `min_new_tokens`.
        max_new_tokens: M, the maximum number of new tokens.
    """

    sampler: Sampler
    logits_processors: LogitsProcessors
    max_new_tokens: int

    @classmethod
    def of(
        cls,
        model: Any,
        sampler: Any,
        max_new_tokens: int,
        min_new_tokens: int = 0,
        constraints: Sequence[Constraint] = (),
    ) -> "Settings":
        """Validate the settings of a generation with a model.

        Raises:
            TypeError: if the model has no `step` or `empty_cache`.
            ValueError: if `sampler` is unknown, a setting is out of range or two of them contradict each other.
        """
        sampler = samplers.get(sampler)
        logits_processors = LogitsProcessors.of(model, max_new_tokens, min_new_tokens, constraints)
        logits_processors.check_sampler(sampler)
        return cls(sampler, logits_processors, int(max_new_tokens)).checked(model)

    def checked(self, model: Any) -> "Settings":
        """Return the settings, or raise a ValueError if the model cannot generate so many tokens with the sampler."""
        validation.check_max_new_tokens(self.max_new_tokens)
        if self.sampler.hypotheses > validation.MAX_HYPOTHESES:
            raise ValueError(
                f"`sampler` must have at most {validation.MAX_HYPOTHESES} hypotheses. Received: sampler={self.sampler}"
            )
        self.sampler.check(model, self.max_new_tokens)
        return self
