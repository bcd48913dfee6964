"""A fixture of all tests, which tests/conftest.py imports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.server import Server
from harness.waiting import Line, WaitingClient


@pytest.fixture(autouse=True)
def close_connections() -> Iterator[None]:
    """After each test its connections are closed, also when it has failed.

    Nobody waits any more, who would be granted in the middle of the next test, and a server that many tests
    share does not collect the sockets of them all.
    """
    before = {server: (len(server._clients), len(server._raw)) for server in Server.every}
    yield
    while WaitingClient.every:
        WaitingClient.every.pop().connection.close()
    while Line.every:
        Line.every.pop().client.close()
    for server in Server.every:
        clients, connections = before.get(server, (0, 0))
        for opened in (*server._clients[clients:], *server._raw[connections:]):
            opened.close()
        del server._clients[clients:], server._raw[connections:]
