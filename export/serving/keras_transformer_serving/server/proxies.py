"""Reverse proxies: the scheme, the host and the prefix by which clients know the server."""

import ipaddress
import re
from collections.abc import Sequence
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

_HOST = re.compile(r"[\w.:\[\]-]+")
_PREFIX = re.compile(r"(/[\w.~%-]+)+")


class Proxies:
    """An ASGI application behind reverse proxies.

    The headers `X-Forwarded-Proto`, `X-Forwarded-Host` and `X-Forwarded-Prefix` of trusted proxies replace the scheme,
    the host and the prefix of requests.

    Args:
        app: the application.
        trusted: the addresses and networks of proxies, such as "10.0.0.0/8", or "*" for any.
        root_path: the prefix of requests without `X-Forwarded-Prefix`, such as "/translate"; "" for none. Proxies may
            remove it from the path or not.
    """

    def __init__(self, app: ASGIApp, trusted: Sequence[str] = (), root_path: str = "") -> None:
        self._root_path = root_path.rstrip("/")
        if self._root_path and not _PREFIX.fullmatch(self._root_path):
            raise ValueError(f"`root_path` must be of the form /path. Received: {root_path}")
        self._app, self._trusts_all = app, "*" in trusted
        try:
            self._networks = [ipaddress.ip_network(each.strip()) for each in trusted if each != "*"]
        except ValueError as error:
            raise ValueError(
                f"`trusted_proxies` must be addresses or networks, or *. Received: {error}"
            ) from None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            scope = self._seen_by_clients(scope)
        await self._app(scope, receive, send)

    def _seen_by_clients(self, scope: Scope) -> Scope:
        """Return the scope of a request as the client sent it to the first proxy."""
        changes: dict[str, Any] = {}
        prefix = self._root_path
        if self._trusts(scope):
            given = {name: value.decode("latin-1").split(",")[0].strip() for name, value in scope["headers"]}
            if (scheme := given.get(b"x-forwarded-proto", "").lower()) in ("http", "https"):
                changes["scheme"] = scheme
            if _HOST.fullmatch(host := given.get(b"x-forwarded-host", "")):
                others = [header for header in scope["headers"] if header[0] != b"host"]
                changes["headers"] = [(b"host", host.encode()), *others]
            if _PREFIX.fullmatch(forwarded := given.get(b"x-forwarded-prefix", "").rstrip("/")):
                prefix = forwarded
        if prefix:
            path = scope["path"]
            has_prefix = path == prefix or path.startswith(f"{prefix}/")
            changes |= {"root_path": prefix, "path": path if has_prefix else prefix + path}
        return {**scope, **changes}

    def _trusts(self, scope: Scope) -> bool:
        if self._trusts_all or not scope.get("client") or not self._networks:
            return self._trusts_all
        try:
            address: Any = ipaddress.ip_address(scope["client"][0])
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)
