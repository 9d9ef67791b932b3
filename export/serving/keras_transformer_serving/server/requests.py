"""Requests: reading and parsing their bodies, and answering them within the limits."""

import asyncio
import email.parser
import email.policy
import functools
import json
import math
import secrets
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
from starlette.requests import ClientDisconnect, Request

from keras_transformer_serving.pipelines.errors import ErrorMessage
from keras_transformer_serving.server import tracing
from keras_transformer_serving.server.batching import Batcher, Limits
from keras_transformer_serving.server.signatures import RequestError, Signature, Started
from keras_transformer_serving.tasks import ERROR, Row, shown

T = TypeVar("T")
P = TypeVar("P")
Parse = Callable[[Any, Mapping[str, Signature]], tuple[str, list[Row], T]]
_PREPARED_IN_PLACE = 2**10  # bytes of a request that is parsed and tokenised in the event loop
# The argument of zlib for each content encoding; None for no compression.
_WINDOW_BITS = {"identity": None, "gzip": 31, "x-gzip": 31, "deflate": 15}
_OF = " (`--max-bytes` of the server)"
_VECTOR = secrets.token_hex()  # stands for an array in a value that is encoded; no client knows it
_UNWATCHED = 0.1  # seconds after which a request is watched for its client to disconnect


async def read(request: Request, limits: Limits) -> bytes:
    """Return the body of a request.

    Raises:
        RequestError: if it is too large (413), too slow (408) or compressed otherwise than by gzip or deflate (415).
    """
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in _WINDOW_BITS:
        expected = " or ".join(_WINDOW_BITS)
        raise RequestError(415, f"The content encoding must be {expected}. Received: {shown(encoding)}")
    content = bytearray()
    try:
        async with asyncio.timeout(limits.timeout):
            async for chunk in request.stream():
                content += chunk
                if len(content) > limits.max_bytes:
                    raise RequestError(
                        413, f"The request must have at most {limits.max_bytes} bytes{_OF}. Received: more"
                    )
    except TimeoutError:
        raise RequestError(408, f"The request must arrive within {limits.timeout:g} s") from None
    return _inflated(bytes(content), encoding, limits.max_bytes)


def _inflated(content: bytes, encoding: str, max_bytes: int) -> bytes:
    """Return a body without compression."""
    bits = _WINDOW_BITS[encoding]
    if bits is None:
        return content
    inflater = zlib.decompressobj(bits)
    try:
        inflated = inflater.decompress(content, max_bytes + 1)
    except zlib.error as error:
        raise RequestError(400, f"The request must be compressed by {encoding}. Received: {error}") from None
    if len(inflated) > max_bytes:
        raise RequestError(
            413, f"The request must have at most {max_bytes} bytes{_OF}, inflated. Received: more"
        )
    if not inflater.eof or inflater.unused_data:
        raise RequestError(
            400, f"The request must be compressed by {encoding}. Received: part of it, or more"
        )
    return inflated


def parse_json(body: bytes) -> Any:
    """Return the JSON value of a request."""
    try:
        return json.loads(body.decode(), parse_constant=_reject_constant)
    except UnicodeDecodeError as error:
        raise RequestError(
            400, f"The request must be UTF-8. Received: another byte at {error.start}"
        ) from None
    except ValueError as error:
        raise RequestError(400, f"The request must be JSON. Received: {error}") from None
    except RecursionError:
        raise RequestError(400, "The request must be JSON. Received: values nested too deeply") from None


def given_twice(name: str) -> RequestError:
    """Return the error of a field that a form has more than once."""
    return RequestError(400, f"`{name}` must be given once. Received: several", param=name)


def form(kind: str, body: bytes) -> tuple[dict[str, Any], tuple[str, bytes] | None]:
    """Return the fields of a form of several parts, and the name and the content of its part `file`, if it has one.

    Values are strings; those of a list, whose name ends in "[]", are joined.

    Args:
        kind: the content type of the request.
        body: its body.
    """
    head = f"Content-Type: {kind}\r\n\r\n".encode("latin-1")
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    if not message.is_multipart():
        raise RequestError(400, f"The request must be a form of several parts. Received: {shown(kind)}")
    fields: dict[str, Any] = {}
    file = None
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if not isinstance(name, str) or not isinstance(content, bytes):
            continue
        filename = part.get_filename()
        if (filename is None) == (name == "file"):
            expected = (
                "a file part of the form, with a filename" if name == "file" else "a field without a filename"
            )
            received = shown(content.decode(errors="replace") if filename is None else filename)
            raise RequestError(400, f"`{name}` must be {expected}. Received: {received}", param=name)
        if (name in fields and not name.endswith("[]")) or (filename is not None and file is not None):
            raise given_twice(name)
        if filename is not None:
            file = (filename, content)
            continue
        try:
            value = content.decode()
        except UnicodeDecodeError:
            raise RequestError(400, f"`{name}` must be UTF-8. Received: other bytes") from None
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields, file


def _reject_constant(name: str) -> Any:
    raise ValueError(f"the constant {name}, which JSON does not have")


async def answer(
    request: Request,
    body: bytes,
    parse: Parse[T],
    respond: Callable[[Signature, Mapping[str, Any], T], Any],
    signatures: Mapping[str, Signature],
    batcher: Batcher,
    limits: Limits,
) -> bytes:
    """Return the JSON answer to a request.

    Args:
        request: the request.
        body: its body.
        parse: the protocol's function from a JSON value and signatures to a signature's name, rows and the format.
        respond: the protocol's function from a signature, its outputs and the format to a JSON value.
        signatures: those of the model, by name.
        batcher: the model's queue.
        limits: the limits.

    Raises:
        RequestError: if the request is wrong, rejected, or takes too long (504).
    """

    def parsed() -> tuple[str, list[Row], T]:
        return parse(parse_json(body), signatures)

    return await compute(request, len(body), parsed, respond, signatures, batcher, limits)


class Watched(Protocol):
    """A request whose client can disconnect."""

    @property
    def receive(self) -> Callable[[], Awaitable[Any]]:
        """Return the function that returns the next message of the client."""


async def compute(
    request: Watched,
    size: int,
    parse: Callable[[], tuple[str, list[Row], T]],
    respond: Callable[[Signature, Mapping[str, Any], T], Any],
    signatures: Mapping[str, Signature],
    batcher: Batcher,
    limits: Limits,
) -> bytes:
    """Return the JSON answer to a request whose document is known.

    Args:
        request: the request.
        size: the size of its body.
        parse: a function that returns a signature's name, rows and the format; of a large body in another thread.
        respond: as for `answer`, or to bytes, which are the answer.
        signatures: as for `answer`.
        batcher: as for `answer`.
        limits: as for `answer`.

    Raises:
        RequestError: as `answer`.
    """
    begin = time.perf_counter()

    def seconds_left() -> float:
        return max(begin + limits.timeout - time.perf_counter(), 0.0)

    async def prepared(task: Callable[[], P]) -> P:
        try:
            return await in_thread(task, size, seconds_left())
        except TimeoutError:
            raise _timeout(batcher, limits) from None

    with tracing.span("parse"):
        name, rows, style = await prepared(functools.partial(_within_limits, parse, limits))
    signature = signatures[name]

    with batcher.reserved(len(rows)):
        with tracing.span("tokenize"):
            started = await prepared(functools.partial(signature.start, rows, batcher.local))
        count = sum(len(row.jobs) if isinstance(row, Started) else 1 for row in started)
        if count > limits.max_rows:
            raise RequestError(
                400,
                f"A request must have at most {limits.max_rows} rows and parts of long texts. Received: {count}",
            )

        def encoded(outputs: list[Row]) -> bytes:
            answered = respond(signature, signature.stack(outputs), style)
            return answered if isinstance(answered, bytes) else encode(answered)

        with batcher.reserved(count - len(rows)), tracing.span("wait and compute"):
            result = batcher.submit(started, encoded)
            if await _in_time(request, result, seconds_left()):
                return result.result()
    raise _timeout(batcher, limits)


async def in_thread(task: Callable[[], P], size: int, seconds: float) -> P:
    """Return the result of a task on a body of this size, which runs in another thread if it is large.

    Raises:
        TimeoutError: if it takes longer.
    """
    if size <= _PREPARED_IN_PLACE:
        return task()
    return await asyncio.wait_for(asyncio.to_thread(task), seconds)


async def in_time(verb: str, task: Callable[[], P], size: int, limits: Limits) -> P:
    """Return the result of a task on a body of this size.

    Args:
        verb: what the task does to the request: it is "read" or "computed".
        task: the task.
        size: the size of the body.
        limits: the limits.

    Raises:
        RequestError: if it takes too long.
    """
    try:
        return await in_thread(task, size, limits.timeout)
    except TimeoutError:
        status = {"read": 408, "computed": 504}[verb]
        raise RequestError(status, f"The request must be {verb} within {limits.timeout:g} s") from None


def encode(value: Any) -> bytes:
    """Return a value as JSON, in ASCII: a message may have a lone surrogate, which cannot be encoded as UTF-8.

    Arrays are lists. Numbers of float32 have nine digits, from which each is read back exactly, and are written in one
    call: this takes a third of the time of `json.dumps`, which writes 17. A number that is not finite is null.
    """
    vectors: list[str] = []

    def listed(array: Any) -> Any:
        if array.dtype == np.float32 and array.ndim and np.isfinite(array).all():
            vectors.append(_digits(array))
            return _VECTOR
        return _finite(array.tolist())

    text = json.dumps(value, default=listed)
    if vectors:
        parts = text.split(f'"{_VECTOR}"')
        text = "".join(part for pair in zip(parts, [*vectors, ""], strict=True) for part in pair)
    return text.encode()


def _digits(array: np.ndarray) -> str:
    """Return an array of float32 as JSON."""
    if array.ndim > 1:
        return f"[{','.join(map(_digits, array))}]"
    return _format(len(array)) % tuple(array.tolist())


@functools.lru_cache
def _format(count: int) -> str:
    """Return the format of a list of float32 numbers."""
    return f"[{', '.join(['%.9g'] * count)}]"


def _finite(values: Any) -> Any:
    """Return values with None for each number that is not finite."""
    if isinstance(values, list):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def _within_limits(parse: Callable[[], tuple[str, list[Row], T]], limits: Limits) -> tuple[str, list[Row], T]:
    """Return the signature, the rows and the format of a request, within the limits."""
    name, rows, style = parse()
    # The model reads a row for each entry of a list, such as a label.
    count = sum(max([1, *(len(each) for each in row.values() if isinstance(each, list))]) for row in rows)
    if count > limits.max_rows:
        raise RequestError(400, f"A request must have at most {limits.max_rows} rows. Received: {count}")
    for index, row in enumerate(rows):
        texts = [
            (key, text)
            for key, value in row.items()
            if key != ERROR
            for text in (value if isinstance(value, list) else [value])
            if isinstance(text, str | bytes)
        ]
        for key, text in texts:
            if len(text) > limits.max_characters:
                expected = f"`{key}` must have at most {limits.max_characters} characters"
                message = f"{expected}. Received: {len(text)} in row {index}"
                row.setdefault(ERROR, ErrorMessage(message, "length"))
    return name, rows, style


async def _in_time(request: Watched, result: asyncio.Future[Any], seconds: float) -> bool:
    """Wait for a result; return whether it was there within this time. If not, it is cancelled.

    Raises:
        ClientDisconnect: if the client disconnects before.
    """
    gone: asyncio.Future[None] | None = None
    try:
        await asyncio.wait((result,), timeout=min(seconds, _UNWATCHED))
        if not result.done() and seconds > _UNWATCHED:
            gone = asyncio.ensure_future(_disconnected(request))
            await asyncio.wait(
                (result, gone), timeout=seconds - _UNWATCHED, return_when=asyncio.FIRST_COMPLETED
            )
        if not result.done() and gone is not None and gone.done():
            raise ClientDisconnect
        return result.done()
    finally:
        result.cancel()
        if gone is not None:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)


def _timeout(batcher: Batcher, limits: Limits) -> RequestError:
    """Count and return the error of a request that takes too long."""
    batcher.reject("timeout")
    return RequestError(504, f"The request must be computed within {limits.timeout:g} s. Send fewer rows")


async def _disconnected(request: Watched) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
