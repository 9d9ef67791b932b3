"""Signals that end training."""

import contextlib
import signal
import types
from collections.abc import Callable, Iterator
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def received_by(receive: Callable[[int], None]) -> Iterator[None]:
    """Call a function with the number of the first SIGINT or SIGTERM; the next one has its usual effect.

    Signals are those of the main thread; in other threads there are none.
    """
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        before.clear()

    def handle(number: int, frame: types.FrameType | None) -> None:
        restore()
        receive(number)

    with contextlib.suppress(ValueError):  # not in the main thread
        for number in _SIGNALS:
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
