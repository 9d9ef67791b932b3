"""Generation streamed as server-sent events."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

from prometheus_client import Histogram
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.server import generating, tracing
from keras_transformer_serving.server.api import FAILED, LOG
from keras_transformer_serving.server.batching import Batcher, Limits
from keras_transformer_serving.server.metrics import Metrics
from keras_transformer_serving.server.signatures import TRUNCATE, RequestError, truncate_of
from keras_transformer_serving.server.versions import Loaded
from keras_transformer_serving.tasks import Row, shown

T = TypeVar("T")


class EventStream(StreamingResponse):
    """A response of server-sent events that closes a stack of contexts at its end, also if the client disconnects.

    A client that does not read an event for longer than the time limit is disconnected.
    """

    def __init__(self, content: AsyncIterator[str], stack: contextlib.ExitStack, limits: Limits) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._stack, self._limits = stack, limits
        self._span = tracing.started_span("stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""

        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), self._limits.timeout)

        with self._stack:
            if self._span is not None:
                self._stack.callback(self._span.end)
            with contextlib.suppress(ClientDisconnect, TimeoutError):
                await super().__call__(scope, receive, send_in_time)


class Stepper:
    """Computes the items of iterators in a model's queue, each between two batches and within the time limit.

    Args:
        batcher: the queue.
        limits: the limits of the server.
        stack: contexts that last as long as the stream, which is counted until they are closed.
        first: the histogram of the time to the first item.
    """

    def __init__(
        self, batcher: Batcher, limits: Limits, stack: contextlib.ExitStack, first: Histogram
    ) -> None:
        self._batcher, self._limits = batcher, limits
        self._first: Histogram | None = first
        self._begin = time.perf_counter()
        batcher.begin_stream()
        stack.callback(batcher.end_stream)

    async def items(self, iterator: Iterator[T], together: bool = False) -> AsyncIterator[T]:
        """Yield the items of an iterator.

        Args:
            iterator: the iterator.
            together: whether the time limit is that of all items since the request came, as they are one answer, rather
                than that of each.

        Raises:
            RequestError: if an input is invalid (400), or they fail (500) or take too long (504).
        """
        limit = self._limits.timeout
        while True:
            step = self._batcher.step(lambda: next(iterator, None))
            seconds = max(self._begin + limit - time.perf_counter(), 0) if together else limit
            try:
                # Not asyncio.timeout, which would also cancel a send between two steps.
                item = await asyncio.wait_for(step, seconds)
            except TimeoutError:
                subject = "The request" if together else "Each part of the stream"
                raise RequestError(504, f"{subject} must be computed within {limit:g} s") from None
            except InvalidInputError as error:
                raise RequestError(400, str(error)) from None
            except Exception:  # the status is sent: the stream ends with an error
                LOG.exception("a stream failed")
                raise RequestError(500, FAILED) from None
            if item is None:
                return
            if self._first is not None:
                self._first.observe(time.perf_counter() - self._begin)
                self._first = None
            yield item


def event(data: str, kind: str | None = None) -> str:
    """Return a server-sent event."""
    lines = [f"event: {kind}"] if kind else []
    return "\n".join([*lines, f"data: {data}", "", ""])


async def response(
    document: Any,
    loaded: Loaded,
    batcher: Batcher,
    stack: contextlib.ExitStack,
    limits: Limits,
    metrics: Metrics,
    name: str,
) -> StreamingResponse:
    """Return the response to a request {"text": …, "max_new_tokens": …, "long_texts": …} and languages.

    Each event has a piece of the text, {"text": …}. The last one, of the type "done", has the complete text, which the
    pieces make up. An event of the type "error" ends a stream that failed.

    Args:
        document: the request; its "truncate" shortens a text that is too long.
        loaded: the version of the model.
        batcher: its queue.
        stack: contexts that last as long as the response.
        limits: the limits of the server.
        metrics: the metrics of the server.
        name: the name of the model.

    Raises:
        RequestError: if the request is wrong, the model cannot stream, or there are too many streams.
    """
    pipeline = generating.check_stream(loaded.pipeline)
    inputs = {tensor.name: tensor for tensor in generating.stream_inputs(pipeline)}
    known = {*inputs, TRUNCATE}
    if not isinstance(document, dict) or not set(document) <= known or "text" not in document:
        optional = ", ".join([*inputs, TRUNCATE][1:])
        raise RequestError(
            400,
            f'The request must be {{"text": …}}, optionally with {optional}. Received: {shown(document)}',
        )
    truncate = truncate_of(document)
    try:
        row: Row = {
            name: tensor.convert(document[name], name) for name, tensor in inputs.items() if name in document
        }
    except ValueError as error:
        raise RequestError(400, str(error)) from None
    if len(row["text"]) > limits.max_characters:
        raise RequestError(
            400,
            f"`text` must have at most {limits.max_characters} characters. Received: {len(row['text'])}",
        )
    if truncate:
        row[TRUNCATE] = True
    stepper = Stepper(batcher, limits, stack, metrics.first_token_seconds.labels(name))
    try:
        pieces = await batcher.step(lambda: generating.pieces(pipeline, row))
    except InvalidInputError as error:
        raise RequestError(400, str(error)) from None

    async def events() -> AsyncIterator[str]:
        text_so_far = ""
        try:
            async for piece in stepper.items(pieces):
                text_so_far += piece
                if piece:
                    yield event(json.dumps({"text": piece}))
            yield event(json.dumps({"text": text_so_far}), "done")
        except RequestError as error:
            yield event(json.dumps({"error": str(error)}), "error")

    return EventStream(events(), stack.pop_all(), limits)
