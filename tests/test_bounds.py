"""Bounds: places of one token, and users."""

from __future__ import annotations

import pytest

from harness import MakeServer, RawConnection, RespError, Server
from harness.notify import Listener
from harness.waiting import HOUR, Line

PLACES_OF_TOKEN = 1024


@pytest.fixture
def line(make_server: MakeServer) -> Line:
    """Of a lock that is held."""
    line = Line(make_server())
    assert line.locks.lock("k", "holder", HOUR)
    return line


def _as_user(server: Server, name: str) -> RawConnection:
    rules = ["reset", "on", "nopass", "+@all", "allkeys", "allchannels"]
    server.client().execute_command("ACL", "SETUSER", name, *rules)
    raw = server.raw(3)
    raw.ok("AUTH", name, "any")
    return raw


def test_a_user_may_have_1024_places_with_a_token(line: Line) -> None:
    """A request for two names has two."""
    listener = Listener(line.server)
    requests = PLACES_OF_TOKEN // 2
    for number in range(requests):
        assert listener.ask("SLOCK.MLOCK", 2, "k", f"k{number}", "shared", HOUR, tag=number) is None
    refused = listener.ask("SLOCK.LOCK", "k", "shared", HOUR)
    assert isinstance(refused, RespError)
    assert str(refused).startswith("QUEUEFULL The request would wait in more than 1024 queues")
    # Neither another token nor another user is refused, nor a request that need not wait or is sent again.
    assert listener.ask("SLOCK.LOCK", "k", "other", HOUR) is None
    assert listener.call("SLOCK.LOCK", "free", "shared", HOUR) > 0
    assert listener.ask("SLOCK.MLOCK", 2, "k", "k7", "shared", HOUR, tag="7") is None
    another = _as_user(line.server, "another")
    request = ("SLOCK.LOCK", "k", "shared", HOUR, "WAIT", HOUR, "NOTIFY", listener.channel, "theirs")
    assert another.ok(*request) is None
    assert listener.call("SLOCK.CANCEL", "k", "shared") == requests + 1
    assert line.count("waiters") == 1
    assert listener.ask("SLOCK.LOCK", "k", "shared", HOUR) is None, "they are not counted any more"


def test_users_that_have_gone_are_forgotten_while_others_wait(line: Line) -> None:
    line.write("waiter")
    for number in range(50):
        raw = _as_user(line.server, f"user{number}")
        raw.send("SLOCK.LOCK", "k", f"t{number}", HOUR, "WAIT", HOUR)
        line.wait_for_waiters(2)
        assert line.count("waiting_users") == 2
        assert line.client.execute_command("SLOCK.CANCEL", "k", f"t{number}") == 1
        assert raw.read() == 0
        line.client.execute_command("ACL", "DELUSER", f"user{number}")
    assert line.count("waiting_users") == 1
