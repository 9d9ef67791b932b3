"""Generation streamed as server-sent events."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from keras_transformer_serving.pipelines import languages
from keras_transformer_serving.pipelines.errors import InvalidInputError
from keras_transformer_serving.server import generating
from keras_transformer_serving.server.batching import Batcher, Limits
from keras_transformer_serving.server.metrics import Metrics
from keras_transformer_serving.server.signatures import TRUNCATE, RequestError, check_truncate, text_of
from keras_transformer_serving.server.versions import Loaded
from keras_transformer_serving.tasks import shown


class _EventStream(StreamingResponse):
    """A response that closes a stack of contexts at its end, also if the client disconnects."""

    def __init__(self, content: AsyncIterator[str], stack: contextlib.ExitStack) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._stack:
            await super().__call__(scope, receive, send)


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
    begin = time.perf_counter()
    pipeline = generating.check_stream(loaded.pipeline)
    inputs = {tensor.name: tensor for tensor in generating.stream_inputs(pipeline)}
    known = {*inputs, TRUNCATE}
    if not isinstance(document, dict) or not set(document) <= known or "text" not in document:
        optional = ", ".join([*inputs, TRUNCATE][1:])
        raise RequestError(
            400,
            f'The request must be {{"text": …}}, optionally with {optional}. Received: {shown(document)}',
        )
    truncate = document.get(TRUNCATE, False)
    check_truncate(truncate)
    try:
        options = {
            name: tensor.convert(document[name], name) for name, tensor in inputs.items() if name in document
        }
    except ValueError as error:
        raise RequestError(400, str(error)) from None
    if len(options["text"]) > limits.max_characters:
        raise RequestError(
            400,
            f"`text` must have at most {limits.max_characters} characters. Received: {len(options['text'])}",
        )
    batcher.begin_stream()
    stack.callback(batcher.end_stream)
    try:
        generating.check_options(pipeline, options)
        text, limit = text_of(options, "text"), options.get("max_new_tokens")
        setting = options.get("long_texts")
        chosen = {name: options[name] for name in languages.NAMES if name in options}
        pieces = await batcher.step(
            lambda: generating.pieces(pipeline, text, limit, truncate, setting, chosen)
        )
    except InvalidInputError as error:
        raise RequestError(400, str(error)) from None
    first = metrics.first_token_seconds.labels(name)

    async def events() -> AsyncIterator[str]:
        text_so_far, is_first, end = "", True, begin + limits.timeout
        try:
            while True:
                step = batcher.step(lambda: next(pieces, None))
                # Not asyncio.timeout, which would also cancel a send between two steps.
                piece = await asyncio.wait_for(step, max(end - time.perf_counter(), 0))
                if piece is None:
                    break
                if is_first:
                    first.observe(time.perf_counter() - begin)
                    is_first = False
                text_so_far += piece
                if piece:
                    yield _event({"text": piece})
            yield _event({"text": text_so_far}, "done")
        except TimeoutError:
            yield _event({"error": f"The stream must end within {limits.timeout:g} s"}, "error")

    return _EventStream(events(), stack.pop_all())


def _event(data: dict[str, str], kind: str | None = None) -> str:
    lines = [f"event: {kind}"] if kind else []
    return "\n".join([*lines, f"data: {json.dumps(data)}", "", ""])
