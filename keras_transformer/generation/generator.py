"""Running the generation loop from Python: compiled once for each bucket of shapes."""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_transformer.generation import samplers
from keras_transformer.generation.loop import generate_ids

Tensor = Any


@dataclasses.dataclass(frozen=True)
class Generation:
    """What was generated: B rows of R hypotheses (one for greedy) of up to M tokens.

    Attributes:
        ids: int32 (B, R, M), the end token included, padding after it.
        lengths: int32 (B, R), the end token included.
        scores: float32 (B, R), summed log-probabilities.
        ranking_scores: float32 (B, R), what hypotheses are ranked by.
    """

    ids: np.ndarray
    lengths: np.ndarray
    scores: np.ndarray
    ranking_scores: np.ndarray

    @property
    def best(self) -> np.ndarray:
        """The ids (B, M) of the best hypothesis."""
        return self.ids[:, 0]


class Generator:
    """Generates from one model with fixed settings.

    Batches are filled up with padding to a few shapes, so that calls of near sizes reuse what is compiled.

    Args:
        model: an encoder–decoder such as `models.Transformer`.
        sampler: a sampler or its name.
        max_new_tokens: M.
        jit_compile: whether to compile with XLA.

    Raises:
        ValueError: where `sampler` is unknown or `max_new_tokens` not positive.
    """

    def __init__(
        self, model: Any, sampler: Any = "greedy", max_new_tokens: int = 64, jit_compile: bool = True
    ) -> None:
        if max_new_tokens < 1:
            raise ValueError(f"`max_new_tokens` must be positive. Received: max_new_tokens={max_new_tokens}")
        self.model = model
        self.sampler = samplers.get(sampler)
        self.max_new_tokens = max_new_tokens
        self.jit_compile = jit_compile
        self._variables: list[Any] = []
        self._run: Callable[[Tensor], Any] | None = None

    def __call__(self, source_ids: Any) -> Generation:
        """Generate for a batch of padded sources.

        Args:
            source_ids: integers (B, S).

        Returns:
            A `Generation`; empty for B = 0.

        Raises:
            ValueError: where `source_ids` is no matrix of ids in the vocabulary.
        """
        source_ids = self._checked(source_ids)
        batch_size, length = source_ids.shape
        if batch_size == 0:
            result = {
                "ids": np.zeros((0, self.max_new_tokens)),
                "lengths": np.zeros(0),
                "scores": np.zeros(0),
            }
        else:
            padded = np.full((_bucket(batch_size, 1), _bucket(length, 8)), self.model.pad_id, np.int32)
            padded[:batch_size, :length] = source_ids
            result = {
                name: keras.ops.convert_to_numpy(value)[:batch_size]
                for name, value in self._compiled()(padded).items()
            }
        scores = result["scores"].astype(np.float32)[:, None]
        return Generation(
            ids=result["ids"].astype(np.int32)[:, None],
            lengths=result["lengths"].astype(np.int32)[:, None],
            scores=scores,
            ranking_scores=scores,
        )

    def _compiled(self) -> Callable[[Tensor], Any]:
        """The compiled loop; compiled anew where quantisation or LoRA has given the model other variables."""
        variables = self.model.variables
        same = len(variables) == len(self._variables) and all(map(operator.is_, variables, self._variables))
        if self._run is None or not same:
            self._variables = variables
            self._run = _compile(
                self.model, lambda ids: generate_ids(self.model, ids, self.max_new_tokens), self.jit_compile
            )
        return self._run

    def _checked(self, source_ids: Any) -> np.ndarray:
        source_ids = np.asarray(keras.ops.convert_to_numpy(source_ids))
        if source_ids.ndim != 2 or not (source_ids.size == 0 or np.issubdtype(source_ids.dtype, np.integer)):
            raise ValueError(
                "`source_ids` must be integers of shape (batch, length). "
                f"Received: source_ids.shape={source_ids.shape}, dtype={source_ids.dtype}"
            )
        if source_ids.size and not 0 <= source_ids.min() <= source_ids.max() < self.model.vocabulary_size:
            raise ValueError(
                f"`source_ids` must be in [0, {self.model.vocabulary_size}). "
                f"Received: ids from {source_ids.min()} to {source_ids.max()}"
            )
        return source_ids


def generate(model: Any, source_ids: Any, sampler: Any = "greedy", *, max_new_tokens: int = 64) -> Generation:
    """Generate target ids for source ids.

    Args:
        model: an encoder–decoder such as `models.Transformer`.
        source_ids: integers (B, S), filled up with the model's `pad_id`.
        sampler: a sampler or its name.
        max_new_tokens: M, the longest output, the end token included.

    Returns:
        A `Generation`.

    Raises:
        ValueError: where an argument is out of range.

    Example:
        >>> out = generate(model, source_ids, "greedy", max_new_tokens=32)
        >>> out.best.shape
        (2, 32)
    """
    sampler = samplers.get(sampler)
    # On the model, so that compiled functions live as long as it does; past Keras' tracking of attributes.
    generators = model.__dict__.setdefault("_generators", {})
    key = (sampler, max_new_tokens)
    if key not in generators:
        generators[key] = Generator(model, sampler, max_new_tokens)
    return generators[key](source_ids)


def _bucket(size: int, smallest: int) -> int:
    """The next power of two, so that only a few shapes are compiled."""
    bucket = smallest
    while bucket < size:
        bucket *= 2
    return bucket


def _compile(model: Any, function: Callable[[Tensor], Any], jit_compile: bool) -> Callable[[Tensor], Any]:
    """`function` compiled for the backend; the model's present weights are used at every call."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        traced = tf.function(function, jit_compile=jit_compile, autograph=False)

        @functools.cache
        def of_shape(shape: tuple[int, ...]) -> Callable[[Tensor], Any]:
            return traced.get_concrete_function(tf.TensorSpec(shape, tf.int32))

        return lambda ids: of_shape(ids.shape)(tf.constant(ids))
    if backend == "jax":
        import jax

        def stateless(values: list[Tensor], ids: Tensor) -> Any:
            with keras.StatelessScope(state_mapping=list(zip(model.variables, values, strict=True))):
                return function(ids)

        run = jax.jit(stateless) if jit_compile else stateless
        return lambda ids: run([variable.value for variable in model.variables], ids)
    return function
