"""Start a server in this process, for benchmarks that count its processor time as theirs."""

import json
import os
import socket
import threading
import time
from typing import Any


class LocalServer:
    """An ASGI application on uvicorn in a thread, and a connection to it that costs little.

    Args:
        app: the application.
        **options: further options of uvicorn.
    """

    def __init__(self, app: Any, **options: Any) -> None:
        import uvicorn

        config = uvicorn.Config(
            app,
            port=0,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=3600,  # others' turns are between two requests
            **options,
        )
        server = uvicorn.Server(config)
        threading.Thread(target=server.run, daemon=True).start()
        while not server.started:
            time.sleep(0.01)
        self._socket = socket.create_connection(server.servers[0].sockets[0].getsockname()[:2], 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def of_export(cls, folder: str | os.PathLike[str], **options: Any) -> "LocalServer":
        """Serve an export as "model", as `keras-transformer-serve` does; `options` are those of `create_app`."""
        from keras_transformer_serving import server

        try:
            from keras_transformer_serving.server.connections import Connection
        except ImportError:  # in an older checkout that `paired.py` compares
            http: Any = "h11"
        else:
            http = Connection
        made = cls(server.create_app({"model": folder}, **options), http=http)
        while made.request("GET", "/v1/models/model/metadata")[0] != 200:
            time.sleep(0.1)  # models are loaded after the start
        return made

    def post(self, path: str, values: Any) -> bytes:
        """Return the body of the answer to a request with JSON.

        Raises:
            RuntimeError: if the status is not 200.
        """
        status, body = self.request("POST", path, json.dumps(values).encode())
        if status != 200:
            raise RuntimeError(f"The status must be 200. Received: {status}, {body.decode()}")
        return body

    def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return the status and the body of the answer to a request with JSON."""
        head = f"{method} {path} HTTP/1.1\r\nHost: it\r\nContent-Type: application/json\r\n"
        self._socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._received()
        answer, _, content = received.partition(b"\r\n\r\n")
        size = int(answer.lower().partition(b"content-length:")[2].split(b"\r", 1)[0])
        parts = [content]
        while sum(map(len, parts)) < size:
            parts.append(self._received())
        return int(answer[9:12]), b"".join(parts)

    def _received(self) -> bytes:
        received = self._socket.recv(2**16)
        if not received:
            raise ConnectionError("The server closed the connection")
        return received
