"""A subscriber of another module that runs commands in the middle of ours.

Opening a key can expire it, and storing a lock makes a new one. The server tells subscribers at once,
while our own operation is under way.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import redis

from harness import Locks, MakeServer, Server, now_ms, wait_past
from harness.replication import replica_of, wait_synced
from harness.settings import REPOSITORY
from harness.waiting import HOUR, Line

TAKE = "SLOCK.LOCK taken subscriber 60000"


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    """With the module of tests/subscriber, and no expiry but of keys that somebody opens."""
    library = os.environ.get("SLOCK_SUBSCRIBER") or REPOSITORY / "target/release/libsubscriber.so"
    if not Path(library).exists():
        pytest.skip("tests/subscriber is not built: make test builds it")
    server = make_server(slock_allow_apply=True)
    client = server.client()
    client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    client.execute_command("MODULE", "LOAD", str(library))
    return server


def _expire(client: redis.Redis, *keys: str) -> None:
    for key in keys:
        Locks(client).lock(key, "brief", 20)
    wait_past(client, now_ms(client) + 25)


@pytest.mark.parametrize(
    ("command", "grants"),
    [("LOCK k b 60000", True), ("RLOCK k b 60000", True), ("UNLOCK k b", False), ("EXTEND k b 60000", False)],
)
def test_a_slock_command_in_the_middle_of_ours_is_refused(server: Server, command: str, grants: bool) -> None:
    client = server.client()
    client.set("order", TAKE)
    _expire(client, "k")
    reply = client.execute_command(*f"SLOCK.{command}".split())
    assert (reply > 0) == grants
    (answer,) = client.lrange("answers", 0, -1)
    assert b"cannot run inside a notification" in answer
    assert Locks(client).lock("taken", "b", HOUR) > 0


def test_in_the_middle_of_somebody_elses_it_is_run(server: Server) -> None:
    client = server.client()
    client.set("order", TAKE)
    client.set("k", "a string", px=20)
    wait_past(client, now_ms(client) + 25)
    assert client.get("k") is None
    assert client.lrange("answers", 0, -1) == [b"done"]
    assert Locks(client).pttl("taken", "subscriber") > 0


ORDERS = ["DEL a", "RENAME a c", "FLUSHALL", "FLUSHDB ASYNC", "SWAPDB 0 1", "SLOCK.APPLY a RELEASE_0_me"]


@pytest.mark.parametrize("order", ORDERS)
def test_keys_that_go_while_others_are_opened_are_opened_again(server: Server, order: str) -> None:
    """MLOCK has opened `a` when it opens `b`, which expires."""
    client, locks = server.client(), Locks(server.client())
    before = locks.lock("a", "me", HOUR)
    _expire(client, "b")
    client.set("order", order)
    fence = client.execute_command("SLOCK.MLOCK", 2, "a", "b", "me", HOUR)
    assert client.lrange("answers", 0, -1)[-1:] in ([b"done"], []), "the list may have gone too"
    assert fence > before and locks.check("a", fence) == locks.check("b", fence) == 1


@pytest.mark.parametrize("order", ["DEL b", "UNLINK b c", "RENAME b elsewhere"])
@pytest.mark.parametrize("somebody_waits", [False, True])
def test_keys_that_go_meanwhile_are_stored_anew(server: Server, order: str, somebody_waits: bool) -> None:
    """MLOCK has opened all three when it stores `a`, which makes a new key. `b` is there, `c` too or not."""
    client, locks = server.client(), Locks(server.client())
    if somebody_waits:
        line = Line(server, "waited-for")
        line.locks.lock("waited-for", "holder", HOUR)
        line.write("next")
    for name in ("b", "c") if "c" in order else ("b",):
        locks.lock(name, "me", HOUR)
    client.set("order:a", order)
    fence = client.execute_command("SLOCK.MLOCK", 3, "a", "b", "c", "me", HOUR)
    assert client.lrange("answers", 0, -1) == [b"done"]
    assert all(locks.pttl(name, "me") > 0 for name in ("a", "b", "c"))
    assert client.execute_command("SLOCK.MUNLOCK", 3, "a", "b", "c", "me", "FENCE", fence) == 3
    assert client.exists("a", "b", "c") == 0


def test_no_replica_is_told_of_a_lock_that_another_type_has_replaced(
    server: Server, make_server: MakeServer
) -> None:
    """MLOCK has opened `b` when it stores `a`, and then a string takes its place."""
    client, locks = server.client(), Locks(server.client())
    replica = make_server()
    replica_of(replica, server)
    before = locks.lock("b", "me", HOUR)
    client.set("text", "of another")
    client.set("order:a", "RENAME text b")
    fence = client.execute_command("SLOCK.MLOCK", 2, "a", "b", "me", HOUR)
    assert client.get("b") == b"of another" and locks.check("a", fence) == 1
    wait_synced(server, replica)
    # Commands that another module calls reach no replica unless it says so.
    told = Locks(replica.client())
    assert (told.check("a", fence), told.check("b", fence), told.check("b", before)) == (1, 0, 1)
