"""Stream generated tokens as a Python iterator."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.generation.constraints import Constraint
from keras_transformer.generation.generator import Arrays, Generator, cached_generator
from keras_transformer.generation.logits_processors import LogitsProcessors
from keras_transformer.generation.loop import Loop, new_search, prepare
from keras_transformer.generation.samplers import Contrastive, Speculative
from keras_transformer.generation.validation import check_finite

Tensor = Any


def stream(
    model: Any,
    source_ids: Any,
    sampler: Any = "greedy",
    *,
    max_new_tokens: Any = 64,
    min_new_tokens: int = 0,
    constraints: Sequence[Constraint] = (),
    prefix_ids: Any = None,
    padding_mask: Any = None,
    rows: Any = None,
) -> Iterator[np.ndarray]:
    """Generate as `generate` does, and yield one token of each row after every step.

    One compiled function reads the prompt and another decodes a token; see `generate` for when they are recompiled.

    Args:
        model: as in `generate`; so are the other arguments.
        source_ids: integers (B, S).
        sampler: a sampler with one hypothesis: greedy, sampling, or a beam of one.
        max_new_tokens: M, or integers (B,), one for each row, with maximum M.
        min_new_tokens: the minimum number of tokens before an end token.
        constraints: constraints on the output.
        prefix_ids: integers (B, Q).
        padding_mask: booleans (B, S).
        rows: integers (B,).

    Returns:
        An iterator over at most M arrays, int32 (B,), with padding for rows that have ended.

    Raises:
        TypeError: If the model has no `step` or `empty_cache`.
        ValueError: If an argument is out of range, before iteration; if the model's logits are NaN, during iteration.

    Example:
        >>> for tokens in stream(model, source_ids, max_new_tokens=32):
        ...     print(tokens)
    """
    settings = (sampler, max_new_tokens, min_new_tokens, constraints)
    streamer, inputs = cached_generator(Streamer, model, source_ids, *settings)
    return streamer.stream(prefix_ids=prefix_ids, padding_mask=padding_mask, rows=rows, **inputs)


class Streamer(Generator):
    """A generator with two compiled functions: one reads the prompt, the other decodes one token."""

    def __init__(self, model: Any, sampler: Any = "greedy", max_new_tokens: int = 64, **options: Any) -> None:
        super().__init__(model, sampler, max_new_tokens, **options)
        if self.sampler.hypotheses != 1 or isinstance(self.sampler, Speculative | Contrastive):
            raise ValueError(
                "`sampler` must have a single hypothesis to stream its tokens. "
                f"Received: sampler={self.sampler}"
            )

    def stream(
        self,
        source_ids: Any,
        prefix_ids: Any = None,
        rows: Any = None,
        limits: Any = None,
        seed: int | None = None,
        padding_mask: Any = None,
    ) -> Iterator[np.ndarray]:
        """See `stream`; the arguments are validated before iteration."""
        given = {"prefix_ids": prefix_ids, "rows": rows, "limits": limits, "seed": seed}
        return self._tokens(self._checked_inputs(source_ids, padding_mask=padding_mask, **given))

    def _tokens(self, given: Arrays) -> Iterator[np.ndarray]:
        batch_size = len(given["source_ids"])
        if batch_size == 0:
            return
        carry = self._compiled("_start")(self._padded_all(given))
        for _ in range(self._max_limit(given)):
            if keras.ops.convert_to_numpy(carry["state"]["ended"])[:batch_size].all():
                return
            carry |= self._compiled("_step")(carry)
            check_finite(keras.ops.convert_to_numpy(carry["state"]["failed_step"])[:batch_size])
            yield keras.ops.convert_to_numpy(carry["state"]["last_tokens"])[:batch_size, 0].astype(np.int32)

    def _start(self, arrays: dict[str, Tensor]) -> dict[str, Any]:
        """Read the prompt; return the cache, the state of the search and the constants of all steps."""
        loop = prepare(self.model, self.sampler, self._logits_processors(), self.max_new_tokens, **arrays)
        step, cache, state = loop.start()
        rest = {
            "context": loop.context,
            "output_kernel": loop.output_kernel,
            **{name: arrays.get(name) for name in ("rows", "limits", "seed")},
        }
        return {
            "step": step,
            "cache": cache,
            "state": state,
            "before": ops.convert_to_tensor(loop.before, "int32"),
            "last_positions": loop.last_positions,
            **{name: value for name, value in rest.items() if value is not None},
        }

    def _step(self, carry: dict[str, Any]) -> dict[str, Any]:
        """Decode one token; return the new step, cache and state."""
        search = new_search(
            self.model,
            self.sampler,
            self._logits_processors(),
            self.max_new_tokens,
            **{name: carry.get(name) for name in ("rows", "limits", "seed")},
        )
        placed = (
            carry["before"],
            carry["last_positions"],
            carry.get("context"),
            carry.get("output_kernel"),
        )
        loop = Loop(self.model, search, self.max_new_tokens, *placed)
        step, cache, state = loop.step(carry["step"], carry["cache"], carry["state"])
        return {"step": step, "cache": cache, "state": state}

    def _logits_processors(self) -> LogitsProcessors:
        return LogitsProcessors.of(self.model, self.max_new_tokens, self.min_new_tokens, self.constraints)
