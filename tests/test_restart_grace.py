"""slock.restart-grace-ms: after a crash that may have lost a second, nothing new is given for a while."""

from __future__ import annotations

import re

import pytest
import redis

from harness import Locks, MakeServer, ReplicationStream, Server, aof_commands, lock_state, wait_until_logged
from harness.many import many
from harness.notify import NotifiedClient
from harness.waiting import HOUR, Line


@pytest.fixture
def crashed(make_server: MakeServer) -> Server:
    """A server that held locks, was killed, and has come back with an hour of grace."""
    server = make_server(appendonly=True, appendfsync="everysec")
    locks = Locks(server.client())
    assert locks.lock("written", "me", HOUR, meta=b"kept")
    assert locks.rlock("read", "me", HOUR) and locks.rlock("read", "other", HOUR)
    wait_until_logged(server)
    server.restart(kill=True, slock_restart_grace_ms=HOUR)
    return server


def _is_grace(client: redis.Redis, *words: object) -> bool:
    try:
        client.execute_command(*words)
    except redis.ResponseError as error:
        assert str(error).startswith("GRACE "), error
        return True
    return False


NEW = [
    ("SLOCK.LOCK", "free", "me", HOUR, "EPHEMERAL"),
    ("SLOCK.RLOCK", "read", "new reader", HOUR),
    many("MLOCK", "written free", "me", HOUR),
    many("MRLOCK", "free read", "new reader", HOUR),
]


def test_no_new_hold_is_given_in_the_grace_and_who_holds_goes_on(crashed: Server) -> None:
    client = crashed.client()
    before = {key: lock_state(client, key) for key in ("written", "read")}
    logged = aof_commands(crashed)
    for words in NEW:
        assert _is_grace(client, *words), words
    replies = crashed.raw().pipeline([("MULTI",), NEW[0], ("SLOCK.PTTL", "written", "me"), ("EXEC",)])[-1]
    assert replies[0].prefix == "GRACE" and replies[1] > 0
    assert Line(crashed, "free").write("a", wait=30).reply() == 0, "a wait that ends in the grace"
    assert {key: lock_state(client, key) for key in before} == before
    assert client.dbsize() == 2 and aof_commands(crashed) == logged

    locks, stream = Locks(client), ReplicationStream(crashed)
    fence = locks.info("written").fence
    assert locks.lock("written", "me", HOUR // 2, meta=b"again") == fence, "a refresh"
    assert locks.rlock("read", "me", 2 * HOUR) > 0
    assert locks.extend("written", "me", HOUR) == 1
    assert locks.pttl("written", "me") > HOUR // 2 and locks.check("written", fence) == 1
    assert client.execute_command(*many("MEXTEND", "written read", "me", HOUR)) == 1
    assert client.execute_command(*many("MLOCK", "written", "me", 2 * HOUR)) == fence
    assert locks.full("written").holders[0].meta == b"again"
    assert len(stream.commands()) == 8, "each change and the two of the set, in its MULTI"
    assert locks.runlock("read", "other") == 1
    assert client.execute_command(*many("MUNLOCK", "written read", "me")) == 2
    assert client.dbsize() == 0 and _is_grace(client, "SLOCK.LOCK", "written", "me", HOUR)


@pytest.mark.parametrize("soon", [False, True], ids=["at once", "soon"])
def test_waiters_wait_and_are_granted_when_the_grace_ends(crashed: Server, soon: bool) -> None:
    free, written = Line(crashed, "free"), Line(crashed, "written")
    waiting = [free.write("a"), free.write("b"), written.write("next")]
    waiting.append(NotifiedClient.for_write(crashed, "free", "c"))
    assert written.release("me") == 1
    assert all(waiter.is_waiting() for waiter in waiting), "a release in the grace gives the lock to nobody"
    assert free.client.info("slock")["slock_waiters"] == 4
    since_ms = free.client.info("server")["uptime_in_seconds"] * 1000
    free.client.config_set("slock.restart-grace-ms", since_ms + 1300 if soon else 0)
    waiting[0].fence()
    waiting[2].fence()
    assert waiting[1].is_waiting()
    free.release("a")
    waiting[1].fence()
    assert not _is_grace(free.client, *many("MLOCK", "new other", "me", HOUR))
    assert free.client.execute_command("SLOCK.LOCK", "read", "new", HOUR) == 0, "the old holds are there"


def test_a_start_without_a_crash_has_its_grace_too(make_server: MakeServer) -> None:
    assert _is_grace(make_server(slock_restart_grace_ms=HOUR).client(), *NEW[0])
    assert not _is_grace(make_server().client(), *NEW[0])


def test_a_long_load_does_not_use_up_the_grace(make_server: MakeServer) -> None:
    """It begins when the load has ended, which takes two seconds here."""
    server = make_server()
    server.client().mset({f"key{number}": "value" for number in range(40)})
    server.client().save()
    server.restart(slock_restart_grace_ms=HOUR, key_load_delay=50_000)
    left_ms = int(re.search(r"another (\d+) ms", server.raw().error(*NEW[0])).group(1))
    assert left_ms > HOUR - 2000
