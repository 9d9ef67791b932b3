"""Requests: reading and parsing their bodies, and answering them within the limits."""

import asyncio
import functools
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from keras_transformer_serving.server.batching import Batcher, Limits
from keras_transformer_serving.server.signatures import RequestError, Row, Signature, shown

T = TypeVar("T")
Parse = Callable[[Any, Mapping[str, Signature]], tuple[str, list[Row], T]]
_PARSED_IN_PLACE = 2**16  # bytes of a request that is parsed in the event loop


async def read(request: Request, limits: Limits) -> bytes:
    """Return the body of a request.

    Raises:
        RequestError: if it is too large (413), too slow (408) or compressed (415).
    """
    if request.headers.get("content-encoding", "identity") != "identity":
        received = shown(request.headers["content-encoding"])
        raise RequestError(415, f"The request must not be compressed. Received: {received}")
    content = bytearray()
    try:
        async with asyncio.timeout(limits.timeout):
            async for chunk in request.stream():
                content += chunk
                if len(content) > limits.max_bytes:
                    raise RequestError(
                        413, f"The request must have at most {limits.max_bytes} bytes. Received: more"
                    )
    except TimeoutError:
        raise RequestError(408, f"The request must arrive within {limits.timeout:g} s") from None
    return bytes(content)


def document(body: bytes) -> Any:
    """Return the JSON value of a request.

    Raises:
        RequestError: if it is not JSON.
    """
    try:
        return json.loads(body.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise RequestError(
            400, f"The request must be UTF-8. Received: another byte at {error.start}"
        ) from None
    except ValueError as error:
        raise RequestError(400, f"The request must be JSON. Received: {error}") from None
    except RecursionError:
        raise RequestError(400, "The request must be JSON. Received: values nested too deeply") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"the constant {name}, which JSON does not have")


async def outputs(
    request: Request,
    body: bytes,
    parse: Parse[T],
    signatures: Mapping[str, Signature],
    batcher: Batcher,
    limits: Limits,
) -> tuple[Signature, Mapping[str, Any], T]:
    """Return the signature of a request, its outputs, and its format.

    Args:
        request: the request.
        body: its body.
        parse: the protocol's function from a JSON value and signatures to a signature's name, rows and the format.
        signatures: those of the model, by name.
        batcher: the model's queue.
        limits: the limits.

    Raises:
        RequestError: if the request is wrong, rejected, or takes too long (504).
    """
    task = functools.partial(_parsed, body, parse, signatures, limits)
    name, rows, style = task() if len(body) <= _PARSED_IN_PLACE else await asyncio.to_thread(task)
    found = await _in_time(request, batcher, batcher.answer(signatures[name], rows), limits)
    return signatures[name], signatures[name].stack(found), style


def _parsed(
    body: bytes, parse: Parse[T], signatures: Mapping[str, Signature], limits: Limits
) -> tuple[str, list[Row], T]:
    """Return the signature, the rows and the format of a request, within the limits."""
    name, rows, style = parse(document(body), signatures)
    if len(rows) > limits.max_rows:
        raise RequestError(400, f"A request must have at most {limits.max_rows} rows. Received: {len(rows)}")
    for index, row in enumerate(rows):
        for key, value in row.items():
            if isinstance(value, str | bytes) and len(value) > limits.max_characters:
                raise RequestError(
                    400,
                    f"`{key}` must have at most {limits.max_characters} characters. Received: {len(value)} in row "
                    f"{index}",
                )
    return name, rows, style


async def _in_time(request: Request, batcher: Batcher, work: Coroutine[Any, Any, T], limits: Limits) -> T:
    """Return the result of a coroutine, which is cancelled after the time limit or when the client disconnects."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    both: set[asyncio.Future[Any]] = {task, gone}
    try:
        await asyncio.wait(both, timeout=limits.timeout, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientDisconnect
        batcher.count_timeout()
        raise RequestError(504, f"The request must be computed within {limits.timeout:g} s. Send fewer rows")
    finally:
        for each in both:
            each.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
