"""Connections of HTTP clients."""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """uvicorn's connection with h11, which sends the head and the body of an answer together.

    In two parts they would wake a client twice. httptools would lose the body of a request with the header Upgrade,
    such as of Java's clients.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        super().connection_made(cast(asyncio.Transport, Joined(transport, self.loop)))


class Joined:
    """A transport that sends at once what is written in one step of the event loop, or until an empty part.

    Args:
        transport: the transport that sends.
        loop: its event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def write(self, part: bytes) -> None:
        """Send a part soon; an empty one ends an answer, which is sent now."""
        if not part:
            self._flush()
            return
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(part)

    def close(self) -> None:
        """Close the connection after what was written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
