"""A connection that hides nothing: bytes out, RESP2 or RESP3 values in.

Client libraries strip error prefixes, retry, and read every reply they asked for. A test of the protocol
must see the prefix, send half a command, leave replies unread, or go away in the middle.
"""

from __future__ import annotations

import select
import socket
import struct
from typing import Any

from harness.connection_state import ConnectionState

Argument = bytes | str | int | float


class RespError(Exception):
    """An error reply, with its prefix. Returned as a value by `read`, not raised."""

    @property
    def text(self) -> str:
        return str(self.args[0])

    @property
    def prefix(self) -> str:
        return self.text.split(" ", 1)[0]


def encode_command(*args: Argument) -> bytes:
    """The command as the RESP array of bulk strings that servers read and log."""
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        data = arg if isinstance(arg, bytes) else str(arg).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)


class RawConnection:
    """One socket to a server. A server that does not answer in `timeout` seconds fails the test."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout: float = 15.0) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.state = ConnectionState(self.socket, port)
        self._buffer = bytearray()
        self.bytes_read = 0

    def send(self, *args: Argument) -> None:
        """Sends one command and does not read its reply."""
        self.send_bytes(encode_command(*args))

    def send_bytes(self, data: bytes) -> None:
        self.state.note(data)
        self.socket.sendall(data)

    def call(self, *args: Argument) -> Any:
        """Sends one command and returns its reply; an error reply comes back as a `RespError` value."""
        self.send(*args)
        return self.read()

    def ok(self, *args: Argument) -> Any:
        """Like `call`, and fails on an error reply."""
        reply = self.call(*args)
        assert not isinstance(reply, RespError), f"{args!r} answered {reply.text!r}"
        return reply

    def error(self, *args: Argument) -> str:
        """Sends one command that must be answered by an error, and returns its text with the prefix."""
        reply = self.call(*args)
        assert isinstance(reply, RespError), f"{args!r} should be an error and answered {reply!r}"
        return reply.text

    def is_not_permitted(self, *args: Argument) -> bool:
        reply = self.call(*args)
        return isinstance(reply, RespError) and reply.prefix == "NOPERM"

    def pipeline(self, commands: list[tuple[Argument, ...]]) -> list[Any]:
        """Sends all commands at once and returns all replies."""
        self.send_bytes(b"".join(encode_command(*command) for command in commands))
        return [self.read() for _ in commands]

    def hello(self, protocol: int) -> Any:
        return self.ok("HELLO", protocol)

    def client_id(self) -> int:
        return self.ok("CLIENT", "ID")

    def read(self, timeout: float | None = None) -> Any:
        """The next reply. Maps become dicts, sets and arrays lists, null None, errors `RespError` values."""
        if timeout is None:
            return self._read_value()
        before = self.socket.gettimeout()
        self.socket.settimeout(timeout)
        try:
            return self._read_value()
        finally:
            self.socket.settimeout(before)

    def has_reply(self, seconds: float = 0.0) -> bool:
        """Whether the server has sent something (or closed the connection) within `seconds`."""
        return bool(self._buffer or select.select([self.socket], [], [], seconds)[0])

    def read_bytes(self, count: int) -> bytes:
        """Exactly `count` raw bytes."""
        while len(self._buffer) < count:
            self._fill()
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        self.bytes_read += count
        return data

    def read_line(self) -> bytes:
        """Raw bytes up to CRLF or LF, without it."""
        while b"\n" not in self._buffer:
            self._fill()
        return self.read_bytes(self._buffer.index(b"\n") + 1).rstrip(b"\r\n")

    def _fill(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._buffer += data

    def _read_value(self) -> Any:
        line = self.read_line()
        kind, rest = line[:1], line[1:]
        match kind:
            case b"+":
                return rest
            case b"-":
                return RespError(rest.decode("utf-8", "replace"))
            case b":" | b"(":
                return int(rest)
            case b",":
                return float(rest)
            case b"#":
                return rest == b"t"
            case b"_":
                return None
            case b"$" | b"=" | b"!":
                return self._read_bulk(kind, int(rest))
            case b"*" | b"~" | b">":
                return [self._read_value() for _ in range(int(rest))] if int(rest) >= 0 else None
            case b"%":
                return {self._read_value(): self._read_value() for _ in range(int(rest))}
        raise AssertionError(f"not a RESP value: {line!r}")

    def _read_bulk(self, kind: bytes, length: int) -> Any:
        if length < 0:
            return None
        data = self.read_bytes(length + 2)[:-2]
        if kind == b"!":
            return RespError(data.decode("utf-8", "replace"))
        return data[4:] if kind == b"=" else data

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Closes with a TCP reset: what a server sees of a client that crashed with unread data."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
