"""The weights of a model on JAX after an error or an interrupt in `fit`, `evaluate` or `predict`.

While a step runs, Keras takes the values out of a model's variables, and gives JAX their buffers to write to.
"""

import contextlib
import signal
import types
from collections.abc import Callable, Iterator
from typing import Any

Step = Callable[[Any, Any], tuple[Any, Any]]

# The parts of the state of a step of `predict`, `evaluate` and `fit`, by their number.
_PARTS = {
    2: ("trainable_variables", "non_trainable_variables"),
    3: ("trainable_variables", "non_trainable_variables", "metrics_variables"),
    4: ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables"),
}


def recording(model: Any, step: Step) -> Step:
    """Return a step that first records its state in the model, from which Keras restores the variables."""

    def recording_step(state: Any, data: Any) -> tuple[Any, Any]:
        _record(model, state)
        return step(state, data)

    return recording_step


def uninterrupted(model: Any, step: Step) -> Step:
    """Return a step that records its new state before an interrupt is handled."""

    def uninterrupted_step(state: Any, data: Any) -> tuple[Any, Any]:
        with _interrupts_deferred():
            outputs, state = step(state, data)
            _record(model, state)
        return outputs, state

    return uninterrupted_step


def _record(model: Any, state: Any) -> None:
    # Keras does the same after each step, but not before the first one.
    model._jax_state = dict(zip(_PARTS[len(state)], state, strict=True))


@contextlib.contextmanager
def restored(model: Any) -> Iterator[None]:
    """Restore the variables of a model from the last recorded state if an exception is raised."""
    try:
        yield
    except BaseException:
        if hasattr(model, "jax_state_sync"):
            model.jax_state_sync()
            model._jax_state = None
        raise


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Handle the first SIGINT at the end, in the main thread; the next one has its usual effect."""
    received: list[tuple[int, types.FrameType | None]] = []
    before: Any = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: types.FrameType | None) -> None:
        if received:
            before(number, frame)
        received.append((number, frame))

    if not callable(before):
        yield
        return
    try:
        signal.signal(signal.SIGINT, handle)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received:
            before(*received[0])
