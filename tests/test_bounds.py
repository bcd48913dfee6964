"""Bounds: places of one token, many requests that are cancelled at once, users."""

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


def _crowd(listener: Listener, token: str, names_each: int) -> int:
    """As many requests of this token as may wait, each for `k` and for names of its own. How many."""
    requests = PLACES_OF_TOKEN // names_each
    for number in range(requests):
        names = ["k", *(f"{number}:{name}" for name in range(names_each - 1))]
        command = ("SLOCK.MLOCK", len(names), *names, token, HOUR)
        assert listener.ask(*command, tag=b"%d" % number) is None
    return requests


def test_a_user_may_have_1024_places_with_a_token(line: Line) -> None:
    """A request for two names has two."""
    listener = Listener(line.server)
    requests = _crowd(listener, "shared", 2)
    refused = listener.ask("SLOCK.LOCK", "k", "shared", HOUR)
    assert isinstance(refused, RespError)
    assert str(refused).startswith("QUEUEFULL The request would wait in more than 1024 queues")
    # Neither another token nor another user is refused, nor a request that need not wait or is sent again.
    assert listener.ask("SLOCK.LOCK", "k", "other", HOUR) is None
    assert listener.call("SLOCK.LOCK", "free", "shared", HOUR) > 0
    assert listener.ask("SLOCK.MLOCK", 2, "k", "7:0", "shared", HOUR, tag="7") is None
    another = _as_user(line.server, "another")
    request = ("SLOCK.LOCK", "k", "shared", HOUR, "WAIT", HOUR, "NOTIFY", listener.channel, "theirs")
    assert another.ok(*request) is None
    assert listener.call("SLOCK.CANCEL", "k", "shared") == requests + 1
    assert line.count("waiters") == 1
    assert listener.ask("SLOCK.LOCK", "k", "shared", HOUR) is None, "they are not counted any more"


def test_none_of_many_requests_is_granted_after_they_are_cancelled(line: Line) -> None:
    """Many are answered in slices, but have left at once."""
    listener = Listener(line.server)
    requests = _crowd(listener, "crowd", 2)
    listener.ask("SLOCK.LOCK", "k", "behind", HOUR, tag="behind")
    commands = [("SLOCK.CANCEL", "k", "crowd"), ("SLOCK.UNLOCK", "k", "holder")]
    replies = line.server.raw().pipeline([("MULTI",), *commands, ("EXEC",)])
    assert replies[-1] == [requests, 1]
    told = {tag: number for number, tag in (listener.message() for _ in range(requests + 1))}
    assert told.pop(b"behind") > 0
    assert len(told) == requests and set(told.values()) == {0}
    assert line.count("waiters") == 0 and line.client.dbsize() == 1


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
