"""Bounds: places of one token, a crowd that is cancelled, users."""

from __future__ import annotations

import pytest

from harness import Server, wait_until
from harness.notify import Listener
from harness.raw import RawConnection, RespError
from harness.waiting import HOUR

PLACES_OF_TOKEN = 1024


@pytest.fixture
def listener(server: Server) -> Listener:
    # Requests of earlier tests leave when the server has noticed that their subscribers are gone.
    wait_until(lambda: _waiters(server) == 0, what="nobody to wait")
    return Listener(server)


def _waiters(server: Server) -> int:
    return int(server.client().info("slock")["slock_waiters"])


def _as_user(server: Server, name: str) -> RawConnection:
    server.client().execute_command(
        "ACL", "SETUSER", name, "reset", "on", "nopass", "+@all", "allkeys", "allchannels"
    )
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


def test_a_user_may_have_1024_places_with_a_token(server: Server, listener: Listener) -> None:
    """A request for two names has two."""
    listener.call("SLOCK.LOCK", "k", "holder", HOUR)
    requests = _crowd(listener, "shared", 2)
    refused = listener.ask("SLOCK.LOCK", "k", "shared", HOUR)
    assert isinstance(refused, RespError)
    assert str(refused).startswith("QUEUEFULL The request would wait in more than 1024 queues")
    # Neither another token nor another user is refused, nor a request that need not wait or is asked again.
    assert listener.ask("SLOCK.LOCK", "k", "other", HOUR) is None
    assert listener.call("SLOCK.LOCK", "free", "shared", HOUR) > 0
    assert listener.ask("SLOCK.MLOCK", 2, "k", "7:0", "shared", HOUR, tag="7") is None
    another = _as_user(server, "another")
    assert (
        another.ok("SLOCK.LOCK", "k", "shared", HOUR, "WAIT", HOUR, "NOTIFY", listener.channel, "theirs")
        is None
    )
    before = _waiters(server)
    assert listener.call("SLOCK.CANCEL", "k", "shared") == requests + 1
    assert _waiters(server) == before - requests - 1
    assert listener.ask("SLOCK.LOCK", "k", "shared", HOUR) is None, "they are not counted any more"


@pytest.mark.parametrize("names_each", [2, 20])
def test_none_of_a_crowd_is_granted_after_its_cancel(
    server: Server, listener: Listener, names_each: int
) -> None:
    """Many are answered in slices, but have left at once."""
    listener.call("SLOCK.LOCK", "k", "holder", HOUR)
    requests = _crowd(listener, "crowd", names_each)
    listener.ask("SLOCK.LOCK", "k", "behind", HOUR, tag="behind")
    raw = server.raw()
    raw.send("MULTI")
    for command in (("SLOCK.CANCEL", "k", "crowd"), ("SLOCK.UNLOCK", "k", "holder")):
        raw.send(*command)
    raw.send("EXEC")
    assert [raw.read() for _ in range(3)] == [b"OK", b"QUEUED", b"QUEUED"]
    assert raw.read() == [requests, 1]
    told = [listener.message() for _ in range(requests + 1)]
    ends = {tag: number for number, tag in told if tag != b"behind"}
    assert len(ends) == requests and set(ends.values()) == {0}
    assert dict((tag, number) for number, tag in told)[b"behind"] > 0
    assert _waiters(server) == 0 and server.client().dbsize() == 1


def test_users_that_have_gone_are_forgotten_while_others_wait(server: Server, listener: Listener) -> None:
    client = server.client()
    listener.call("SLOCK.LOCK", "k", "holder", HOUR)
    listener.ask("SLOCK.LOCK", "k", "waiter", HOUR)
    for number in range(50):
        raw = _as_user(server, f"user{number}")
        raw.send("SLOCK.LOCK", "k", f"t{number}", HOUR, "WAIT", HOUR)
        wait_until(lambda: _waiters(server) == 2)
        assert client.info("slock")["slock_waiting_users"] == 2
        assert client.execute_command("SLOCK.CANCEL", "k", f"t{number}") == 1
        assert raw.read() == 0
        client.execute_command("ACL", "DELUSER", f"user{number}")
    assert client.info("slock")["slock_waiting_users"] == 1
