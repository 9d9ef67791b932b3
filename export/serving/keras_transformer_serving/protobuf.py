"""Serialised protocol buffers without the package `protobuf`."""

import struct
from collections.abc import Iterator

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_NUMBERS = {_EIGHT_BYTES: "<d", _FOUR_BYTES: "<f"}


def fields(content: memoryview) -> Iterator[tuple[int, int | float | memoryview]]:
    """Yield the number and value of each field of a message.

    Values are integers, floats, or the bytes of messages, strings, bytes and packed numbers.
    """
    position = 0
    while position < len(content):
        tag, position = _varint(content, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _varint(content, position)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, position = _varint(content, position)
        else:
            size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(wire_type, len(content))
        if position + size > len(content):
            raise _error()
        encoded = content[position : position + size]
        yield number, encoded if wire_type == _BYTES else struct.unpack(_NUMBERS[wire_type], encoded)[0]
        position += size


def integers(value: int | float | memoryview) -> Iterator[int]:
    """Yield the integers of one value of a repeated field, which are packed or a single one."""
    if not isinstance(value, memoryview):
        yield int(value)
        return
    position = 0
    while position < len(value):
        number, position = _varint(value, position)
        yield number


def message(*entries: tuple[int, bool | int | float | str | bytes | memoryview]) -> bytes:
    """Return a serialised message of the numbers of its fields and their values.

    Values are integers, float32 numbers, strings, bytes or messages.
    """
    return b"".join(_field(number, value) for number, value in entries)


def header(number: int, size: int) -> bytes:
    """Return the bytes before the content of a field of bytes: its number and the size of the content."""
    return varint(number << 3 | _BYTES) + varint(size)


def varint(number: int) -> bytes:
    """Return an integer as a number of variable length."""
    rest, content = number & (1 << 64) - 1, bytearray()
    while rest >= 0x80:
        content.append(rest & 0x7F | 0x80)
        rest >>= 7
    content.append(rest)
    return bytes(content)


def _field(number: int, value: bool | int | float | str | bytes | memoryview) -> bytes:
    if isinstance(value, int):
        return varint(number << 3 | _VARINT) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | _FOUR_BYTES) + struct.pack(_NUMBERS[_FOUR_BYTES], value)
    content = value.encode() if isinstance(value, str) else value
    return header(number, len(content)) + content


def _varint(content: memoryview, position: int) -> tuple[int, int]:
    """Return a number of variable length and the position after it."""
    number = shift = 0
    while position < len(content):
        byte = content[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position
    raise _error()


def _error() -> ValueError:
    return ValueError("a file must be a serialised protocol buffer; it is of another format, or truncated")
