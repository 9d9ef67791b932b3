"""Requests to an ASGI app in this process."""

import asyncio
import contextlib
import json

from keras_transformer_serving.server import create_app


async def call(app, method, path, body=b"", headers=(), disconnect=None, chunks=None, reads=None):
    """Return the status, headers and content of a request to an ASGI app.

    `body` is JSON unless it is bytes. `disconnect` is an event after which the client is gone; `chunks` is the body as
    an asynchronous iterator. The client does not read before the event `reads`.
    """
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent, done, messages = False, asyncio.Event(), []

    async def receive():
        nonlocal sent
        if chunks is not None:
            async for chunk in chunks:
                return {"type": "http.request", "body": chunk, "more_body": True}
        if not sent:
            sent = True
            return {"type": "http.request", "body": content if chunks is None else b"", "more_body": False}
        await (done if disconnect is None else disconnect).wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if reads is not None:
            await reads.wait()
        messages.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            done.set()

    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "scheme": "http",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        "server": ("test", 80),
        "client": ("test", 1),
    }
    await app(scope, receive, send)
    if not messages:
        return None, {}, b""
    head = messages[0]
    found = {name.decode(): value.decode() for name, value in head["headers"]}
    return head["status"], found, b"".join(message.get("body", b"") for message in messages[1:])


async def json_call(app, method, path, body=b"", **options):
    """Return the status and the JSON value of a request."""
    status, _, content = await call(app, method, path, body, **options)
    return status, json.loads(content)


@contextlib.asynccontextmanager
async def started(app):
    """Run the lifespan of an app, from when its models are loaded."""
    async with app.router.lifespan_context(app):
        await asyncio.wait_for(app.state.server.started.wait(), 30)
        yield app


@contextlib.contextmanager
def calling(app):
    """Run an app in an event loop; the value is a function from a path, a body and headers to the result of `call`."""
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        lifespan = started(app)
        runner.run(lifespan.__aenter__())
        stack.callback(lambda: runner.run(lifespan.__aexit__(None, None, None)))
        yield lambda path, body, headers=(), method="POST": runner.run(call(app, method, path, body, headers))
        assert app.state.server.active == 0


def run(exports, test, *names, **options):
    """Run an asynchronous test with an app that serves exports."""
    limits = options.pop("limits", None)

    async def main():
        app = create_app({name: exports[name] for name in names or exports}, limits, **options)
        async with started(app):
            return await test(app)

    return asyncio.run(main())
