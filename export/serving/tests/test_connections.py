"""Answers of the server on their connections, and their JSON."""

import asyncio
import json

import numpy as np

from keras_transformer_serving.server.connections import Joined
from keras_transformer_serving.server.requests import encode


class Sent:
    """A transport that keeps what was sent."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, part: bytes) -> None:
        self.parts.append(part)

    def close(self) -> None:
        self.parts.append(b"closed")

    def is_closing(self) -> bool:
        return self.parts[-1:] == [b"closed"]


def test_head_and_body_are_sent_together_and_a_stream_at_once():
    async def answers() -> list[list[bytes]]:
        found = []
        for written in ([b"head", b"body", b""], [b"head"], [b"head", b"body"]):
            sent = Sent()
            joined = Joined(sent, asyncio.get_running_loop())
            for part in written:
                joined.write(part)
            at_once = [*sent.parts]
            await asyncio.sleep(0)
            joined.close()
            assert joined.is_closing()
            found.append([at_once, sent.parts])
        return found

    whole = [b"headbody", b"closed"]
    expected = [[whole[:1], whole], [[], [b"head", b"closed"]], [[], whole]]
    assert asyncio.run(answers()) == expected


def test_json_of_arrays_is_read_back_exactly():
    random = np.random.default_rng(0)
    values = random.standard_normal((3, 2, 50)).astype("float32") * 10.0 ** random.integers(-30, 30, 50)
    values = values.astype("float32")
    document = {
        "a": values,
        "b": [{"c": values[0, 0]}, "text"],
        "d": np.arange(3),
        "e": values.astype("float64"),
    }
    found = json.loads(encode(document))
    assert (np.array(found["a"], "float32") == values).all()
    assert (np.array(found["b"][0]["c"], "float32") == values[0, 0]).all()
    assert (found["b"][1], found["d"]) == ("text", [0, 1, 2])
    assert (np.array(found["e"]) == values.astype("float64")).all()
    assert json.loads(encode(np.float32([[1, 0], [-2, 3]]))) == [[1, 0], [-2, 3]]


def test_numbers_that_are_not_finite_are_null():
    assert json.loads(encode({"a": np.array([1, np.nan], "float32"), "b": np.float32(np.inf)})) == {
        "a": [1.0, None],
        "b": None,
    }
