"""Where one value of RESP2 or RESP3 ends, and what little of it the proxy has to know."""

from __future__ import annotations

PUSH, ARRAY = b">", b"*"


def end_of_value(data: bytes | bytearray, start: int = 0) -> int | None:
    """The index behind the value that begins at `start`; None when it is not complete yet."""
    line_end = data.find(b"\r\n", start)
    if line_end < 0:
        return None
    kind, end = data[start : start + 1], line_end + 2
    if kind in b"$=!":
        length = int(data[start + 1 : line_end])
        end += length + 2 if length >= 0 else 0
        return end if end <= len(data) else None
    if kind in b"*~>%":
        items = int(data[start + 1 : line_end]) * (2 if kind == b"%" else 1)
        for _ in range(items):
            found = end_of_value(data, end)
            if found is None:
                return None
            end = found
    return end


def words_of(value: bytes) -> list[str]:
    """The bulk strings of a flat array: a request, or a message."""
    words, position = [], value.index(b"\r\n") + 2
    while position < len(value):
        end = end_of_value(value, position)
        assert end is not None
        if value[position : position + 1] == b"$":
            words.append(value[value.index(b"\r\n", position) + 2 : end - 2].decode("utf-8", "replace"))
        position = end
    return words


def is_message(value: bytes) -> bool:
    """Whether it is a message of sharded pub/sub, in either protocol."""
    return value[:1] in (PUSH, ARRAY) and b"\r\nsmessage\r\n" in value[:24]
