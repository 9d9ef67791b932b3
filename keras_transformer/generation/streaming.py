"""Stream generated tokens as a Python iterator."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.generation.compilation import Arrays
from keras_transformer.generation.constraints import Constraint
from keras_transformer.generation.generative_model import GenerativeModel
from keras_transformer.generation.generator import Generator, cached_generator
from keras_transformer.generation.loop import new_search
from keras_transformer.generation.prompts import PromptedModel
from keras_transformer.generation.search.interface import Inputs, Tokens
from keras_transformer.generation.settings import Settings
from keras_transformer.generation.validation import check_finite
from keras_transformer.typing import Tensor

_CONSTANTS = ("rows", "limits", "minimums", "temperatures", "seed")
"""The inputs that every step reads."""


def stream(
    model: GenerativeModel,
    source_ids: Any,
    sampler: Any = "greedy",
    *,
    max_new_tokens: Any = 64,
    min_new_tokens: int = 0,
    constraints: Sequence[Constraint] = (),
    prefix_ids: Any = None,
    start_ids: Any = None,
    padding_mask: Any = None,
    rows: Any = None,
    minimums: Any = None,
    temperatures: Any = None,
    seeds: Any = None,
) -> Iterator[np.ndarray]:
    """Generate as in `generate`, and yield one token of each row after every step.

    One compiled function reads the prompt and another decodes a token; see `generate` for when they are recompiled.

    Args:
        model: see `generate`, also for the arguments below.
        source_ids: integers (B, S).
        sampler: a sampler with one hypothesis: greedy, sampling, or a beam of one.
        max_new_tokens: M, or integers (B,), one for each row, with maximum M.
        min_new_tokens: the minimum number of tokens before an end token.
        constraints: constraints on the output.
        prefix_ids: integers (B, Q).
        start_ids: integers (B,).
        padding_mask: booleans (B, S).
        rows: integers (B,).
        minimums: integers (B,).
        temperatures: positive numbers (B,).
        seeds: integers (B,).

    Returns:
        An iterator over at most M arrays, int32 (B,), with padding for rows that have ended.

    Raises:
        ValueError: if an argument is out of range, before iteration; if the model's logits are NaN, during iteration.

    Example:
        >>> for tokens in stream(model, source_ids, max_new_tokens=32):
        ...     print(tokens)
    """
    streamer, source_ids, limits, seed = cached_generator(
        Streamer, model, source_ids, sampler, max_new_tokens, min_new_tokens, constraints
    )
    tokens = streamer.stream(
        source_ids,
        limits,
        prefix_ids=prefix_ids,
        start_ids=start_ids,
        rows=rows,
        seed=seed,
        padding_mask=padding_mask,
        minimums=minimums,
        temperatures=temperatures,
        seeds=seeds,
    )
    return _with_model(model, tokens)


class Streamer(Generator):
    """Generation token by token with two compiled functions: one reads the prompt, the other decodes one token."""

    def _set(self, model: GenerativeModel, settings: Settings, jit_compile: bool = True) -> None:
        if not settings.sampler.streams:
            raise ValueError(
                "`sampler` must have a single hypothesis to stream its tokens. "
                f"Received: sampler={settings.sampler}"
            )
        super()._set(model, settings, jit_compile)
        self._to_id = Tokens.of(model, settings.logits_processors).to_id
        self._read_prompt = self._compile(self._start)
        self._decode = self._compile(self._step)

    def stream(
        self, source_ids: np.ndarray, limits: np.ndarray | None = None, **options: Any
    ) -> Iterator[np.ndarray]:
        """Return an iterator over tokens; the arguments, see `generate`, are validated before iteration."""
        return self._tokens(self._inputs(source_ids, limits, **options))

    def _tokens(self, inputs: Arrays) -> Iterator[np.ndarray]:
        batch_size = len(inputs["source_ids"])
        if batch_size == 0:
            return
        carry = self._read_prompt(self._padded(inputs))
        for _ in range(self._max_limit(inputs.get("limits"))):
            state = carry["state"]
            if keras.ops.convert_to_numpy(state["ended"])[:batch_size].all():
                return
            carry["state"] = state = self._decode(carry)
            check_finite(keras.ops.convert_to_numpy(state["failed_step"])[:batch_size])
            tokens = keras.ops.convert_to_numpy(state["last_tokens"])[:batch_size, 0]
            yield keras.ops.convert_to_numpy(self._to_id(tokens)).astype(np.int32)

    def _start(self, arrays: dict[str, Tensor]) -> dict[str, Any]:
        """Read the prompt; return the state of the search and the constants of all steps."""
        search = new_search(Inputs(self.model, self.settings, **arrays))
        decoder = search.decoder
        constants = {
            "before": ops.convert_to_tensor(decoder.before, "int32"),
            "last_positions": decoder.last_positions,
            "context": decoder.context,
            "output_kernel": decoder.output_kernel,
            **{name: arrays.get(name) for name in _CONSTANTS},
        }
        constants = {name: value for name, value in constants.items() if value is not None}
        return {"state": search.start(), **constants}

    def _step(self, carry: dict[str, Any]) -> dict[str, Any]:
        """Decode one token; return the new state."""
        constants = {name: value for name, value in carry.items() if name != "state"}
        arrays = {name: constants.pop(name) for name in _CONSTANTS if name in constants}
        inputs = Inputs(self.model, self.settings, **arrays)
        search = new_search(inputs, PromptedModel(self.model, inputs.kv_cache, **constants))
        return search.step(carry["state"])


def _with_model(model: GenerativeModel, tokens: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield tokens; unlike the cached `Streamer`, the iterator keeps its model alive."""
    yield from tokens
