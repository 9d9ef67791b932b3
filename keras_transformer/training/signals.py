"""Signals that end training."""

import contextlib
import os
import signal
import types
from collections.abc import Callable, Iterator
from typing import Any

from keras_transformer import processes

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def received_by(receive: Callable[[int], None]) -> Iterator[None]:
    """Call a function with the number of the first SIGINT or SIGTERM; the next one has its usual effect.

    In threads other than the main thread, it does nothing. In several processes, a signal also makes
    `processes.should_stop` return True in all of them: JAX receives SIGTERM, and SIGINT is passed on as SIGTERM.
    """
    before: dict[int, Any] = {}
    single = processes.current().count == 1

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        before.clear()

    def handle(number: int, frame: types.FrameType | None) -> None:
        restore()
        receive(number)
        if not single:
            os.kill(os.getpid(), signal.SIGTERM)

    with contextlib.suppress(ValueError):  # not in the main thread
        for number in _SIGNALS if single else _SIGNALS[:1]:
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
