"""Bounds: requests of one token, what CANCEL leaves for later, names that QUEUES looks at, users."""

from __future__ import annotations

import pytest

from harness import Server, wait_until
from harness.notify import Listener
from harness.raw import RawConnection, RespError
from harness.waiting import HOUR

REQUESTS_OF_TOKEN = 1024


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


def _crowd(listener: Listener, token: str, names_each: int = 2) -> None:
    """As many requests of this token as may wait, each for `k` and for names of its own."""
    for number in range(REQUESTS_OF_TOKEN):
        names = ["k", *(f"{number}:{name}" for name in range(names_each - 1))]
        command = ("SLOCK.MLOCK", len(names), *names, token, HOUR)
        assert listener.ask(*command, tag=b"%d" % number) is None


def test_a_user_may_have_1024_requests_of_a_token_waiting(server: Server, listener: Listener) -> None:
    listener.call("SLOCK.LOCK", "k", "holder", HOUR)
    _crowd(listener, "shared")
    refused = listener.ask("SLOCK.LOCK", "k", "shared", HOUR)
    assert isinstance(refused, RespError)
    assert str(refused).startswith("QUEUEFULL This user has 1024 requests of this token waiting")
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
    assert listener.call("SLOCK.CANCEL", "k", "shared") == REQUESTS_OF_TOKEN + 1
    assert listener.ask("SLOCK.LOCK", "k", "shared", HOUR) is None, "they are not counted any more"
    wait_until(lambda: _waiters(server) == before - REQUESTS_OF_TOKEN)


def test_none_of_a_crowd_is_granted_after_its_cancel(server: Server, listener: Listener) -> None:
    listener.call("SLOCK.LOCK", "k", "holder", HOUR)
    _crowd(listener, "crowd", names_each=20)
    listener.ask("SLOCK.LOCK", "k", "behind", HOUR, tag="behind")
    raw = server.raw()
    raw.send("MULTI")
    for command in (("SLOCK.CANCEL", "k", "crowd"), ("SLOCK.UNLOCK", "k", "holder")):
        raw.send(*command)
    raw.send("EXEC")
    assert [raw.read() for _ in range(3)] == [b"OK", b"QUEUED", b"QUEUED"]
    assert raw.read() == [REQUESTS_OF_TOKEN, 1]
    told = [listener.message() for _ in range(REQUESTS_OF_TOKEN + 1)]
    ends = {tag: number for number, tag in told if tag != b"behind"}
    assert len(ends) == REQUESTS_OF_TOKEN and set(ends.values()) == {0}
    assert dict((tag, number) for number, tag in told)[b"behind"] > 0
    assert _waiters(server) == 0 and server.client().dbsize() == 1


def test_queues_looks_at_a_thousand_names(server: Server, listener: Listener) -> None:
    client = server.client()
    listener.call("SLOCK.LOCK", "k", "holder", HOUR)
    for number in range(600):
        assert listener.ask("SLOCK.MLOCK", 3, "k", f"a{number}", f"b{number}", f"t{number}", HOUR) is None
    assert listener.ask("SLOCK.MLOCK", 2, "k", "readable", "last", HOUR) is None
    assert len(client.execute_command("SLOCK.QUEUES", "COUNT", 0)) == 1000
    client.execute_command("ACL", "SETUSER", "few", "reset", "on", "nopass", "+slock.queues", "~readable")
    few = server.raw(3)
    few.ok("AUTH", "few", "any")
    assert few.ok("SLOCK.QUEUES", "COUNT", 0) == []
    client.execute_command("ACL", "DELUSER", "few")


def test_users_that_have_gone_are_forgotten_while_others_wait(server: Server, listener: Listener) -> None:
    client = server.client()
    listener.call("SLOCK.LOCK", "k", "holder", HOUR)
    listener.ask("SLOCK.LOCK", "k", "waiter", HOUR)
    for number in range(50):
        raw = _as_user(server, f"user{number}")
        raw.send("SLOCK.LOCK", "k", f"t{number}", HOUR, "WAIT", HOUR)
        wait_until(lambda: _waiters(server) == 2)
        assert client.info("slock")["slock_waiting_callers"] == 2
        assert client.execute_command("SLOCK.CANCEL", "k", f"t{number}") == 1
        assert raw.read() == 0
        client.execute_command("ACL", "DELUSER", f"user{number}")
    assert client.info("slock")["slock_waiting_callers"] == 1
