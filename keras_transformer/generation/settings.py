"""The validated settings of generation."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_transformer.generation import samplers
from keras_transformer.generation.constraints import Constraint
from keras_transformer.generation.logits_processors import LogitsProcessors
from keras_transformer.generation.samplers import Sampler
from keras_transformer.generation.validation import MAX_HYPOTHESES, MAX_NEW_TOKENS, check_generates
from keras_transformer_options.arguments import check, check_positive_integer, is_integer


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings that are compiled into the generation loop, validated once by `of`.

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
        """Validate the settings for a model.

        Raises:
            ValueError: if two settings contradict each other.
        """
        check_generates("model", model)
        check_positive_integer(max_new_tokens=max_new_tokens)
        check(max_new_tokens <= MAX_NEW_TOKENS, f"be at most {MAX_NEW_TOKENS}", max_new_tokens=max_new_tokens)
        is_valid = is_integer(min_new_tokens) and min_new_tokens >= 0
        check(is_valid, "be an integer of at least 0", min_new_tokens=min_new_tokens)
        sampler = samplers.get(sampler)
        is_valid = sampler.hypotheses <= MAX_HYPOTHESES
        check(is_valid, f"have at most {MAX_HYPOTHESES} hypotheses", sampler=sampler)
        logits_processors = LogitsProcessors.of(model, max_new_tokens, min_new_tokens, constraints)
        logits_processors.check_sampler(sampler)
        sampler.check(model, max_new_tokens)
        return cls(sampler, logits_processors, int(max_new_tokens))
