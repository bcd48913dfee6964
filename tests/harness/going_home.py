"""A fixture for tests that park clients: `pytest_plugins = ["harness.going_home"]` in their file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.parked import Line, Parked
from harness.server import Server


@pytest.fixture(autouse=True)
def everybody_goes_home() -> Iterator[None]:
    """After each test its connections are closed, also when it has failed.

    Nobody waits any more, who would be granted in the middle of the next test, and a server that many tests
    share does not collect the sockets of them all.
    """
    before = {server: (len(server._clients), len(server._raw)) for server in Server.every}
    yield
    while Parked.every:
        Parked.every.pop().connection.close()
    while Line.every:
        Line.every.pop().client.close()
    for server in Server.every:
        clients, connections = before.get(server, (0, 0))
        for opened in (*server._clients[clients:], *server._raw[connections:]):
            opened.close()
        del server._clients[clients:], server._raw[connections:]
