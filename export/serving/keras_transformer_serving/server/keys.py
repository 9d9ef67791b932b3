"""Keys that requests must have, and the number of requests of each."""

import hashlib
import hmac
import math
import time
from collections.abc import Iterable, Mapping

from keras_transformer_serving.server.signatures import RequestError

_MINUTE = 60.0


class _Bucket:
    """A token bucket: requests at a rate, and as many at once as in a minute.

    Args:
        per_minute: the number of requests per minute; None for no limit.
    """

    def __init__(self, per_minute: int | None) -> None:
        self._per_minute = per_minute
        self._tokens = float(per_minute or 0)
        self._updated = time.monotonic()

    def take(self) -> None:
        """Count a request.

        Raises:
            RequestError: if there are too many (429).
        """
        if self._per_minute is None:
            return
        now = time.monotonic()
        added = (now - self._updated) * self._per_minute / _MINUTE
        self._tokens, self._updated = min(self._tokens + added, self._per_minute), now
        if self._tokens < 1:
            seconds = math.ceil((1 - self._tokens) * _MINUTE / self._per_minute)
            raise RequestError(
                429,
                f"The key must have at most {self._per_minute} requests per minute. Received: more. "
                f"Try again in {seconds} s",
                seconds,
                code="rate_limit_exceeded",
            )
        self._tokens -= 1


class Keys:
    """The keys that requests must have one of.

    Args:
        lines: for each key a line with the key and, optionally after a space, its number of requests per minute. Empty
            lines and those that begin with "#" are skipped.
        per_minute: the number of requests per minute of a key without a number; None for no limit.
    """

    def __init__(self, lines: Iterable[str], per_minute: int | None = None) -> None:
        self._buckets: dict[bytes, _Bucket] = {}
        for number, line in enumerate(lines, 1):
            key, *others = line.split()[:3] or [""]
            if not key or key.startswith("#"):
                continue
            if not key.isascii() or not key.isprintable():
                raise ValueError(
                    "Each key must be of printable ASCII characters, as headers of requests are. "
                    f"Received: others in line {number}"
                )
            limit = others[0] if others else ""
            if len(others) > 1 or (others and not (limit.isascii() and limit.isdigit() and int(limit) > 0)):
                raise ValueError(
                    "Each line of the file of keys must have a key and, optionally, its number of requests per minute. "
                    f"Received: another line {number}"
                )
            self._buckets[_digest(key)] = _Bucket(int(limit) if others else per_minute)
        if not self._buckets:
            raise ValueError("The file of keys must have at least one key. Received: none")

    def check(self, key: str | None) -> None:
        """Count a request with a key.

        Raises:
            RequestError: if the key is none of these (401), or has too many requests (429).
        """
        digest, found = _digest(key or ""), None
        for known, bucket in self._buckets.items():  # all, so that the time tells nothing about them
            if hmac.compare_digest(known, digest):
                found = bucket
        if found is None:
            raise RequestError(
                401,
                "The request must have a key: send the header Authorization: Bearer KEY. "
                f"Received: {'another key' if key else 'none'}",
                code="invalid_api_key",
            )
        found.take()


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the key in the headers of a request: Authorization: Bearer KEY, or X-API-Key: KEY."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


def _digest(key: str) -> bytes:
    """Return a hash of a key, of the same length for all."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()
