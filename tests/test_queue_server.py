"""A queue while the server is busy otherwise: it pauses, shuts down, rewrites, feeds a new replica."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest

from conftest import Pair
from harness import MakeServer, RespError, Server, digest
from harness.bound import take_bound
from harness.causes import BRIEF, HOLDER, KEY
from harness.load import level
from harness.notify import NotifiedClient
from harness.replication import replica_of, wait_synced
from harness.wait import now_ms, stays, wait_past, wait_until
from harness.waiting import HOUR, Line, at_once, serve_in_order

SHORTEN = ("SLOCK.EXTEND", KEY, HOLDER, BRIEF)


# --- CLIENT PAUSE


def test_a_deadline_in_a_pause_of_writes_is_granted_after_it(primary_and_replica: Pair) -> None:
    """So is what comes free because a waiter leaves, or a connection that a hold is bound to."""
    primary, replica = primary_and_replica
    line, shared, bound = Line(primary), Line(primary, "shared"), Line(primary, "bound")
    line.locks.lock(KEY, HOLDER, HOUR)
    shared.locks.rlock("shared", HOLDER, HOUR)
    owner = take_bound(primary, key="bound")
    first, second, next_owner = line.write("first"), line.write("second"), bound.write("next")
    killed, unblocked = shared.write("killed"), shared.write("unblocked")
    timed_out, reader = shared.write("timed-out", wait=300), shared.read("reader")
    assert at_once(primary, SHORTEN, ("CLIENT", "PAUSE", 600_000, "WRITE")) == [1, b"OK"]
    owner.close()
    line.client.client_kill_filter(_id=killed.id)
    line.client.client_unblock(unblocked.id, error=True)
    assert unblocked.error().startswith("UNBLOCKED ")
    wait_past(line.client, now_ms(line.client) + BRIEF)
    before = line.client.info("replication")["master_repl_offset"]
    assert timed_out.reply() == 0
    waiting = [first, second, next_owner, reader]
    stays(lambda: all(waiter.is_waiting() for waiter in waiting), 0.15, "who waits while writes are paused")
    assert line.holders() == [] and line.queued() == ["first", "second"]
    assert (line.info().mode, line.client.exists(KEY)) == ("free", 0)
    assert shared.holders() == [HOLDER] and bound.holders() == ["owner"]
    assert line.client.info("replication")["master_repl_offset"] == before
    line.client.execute_command("CLIENT", "UNPAUSE")
    serve_in_order(line, [first, second])
    assert reader.fence() and next_owner.fence()
    level(primary, replica)


@pytest.mark.parametrize("kind", ["WRITE", "ALL"])
def test_pauses_that_end_by_themselves_are_followed_by_the_grant(server: Server, kind: str) -> None:
    line = Line(server)
    for ttl in [*range(1, 25, 3), 2 * BRIEF]:
        line.locks.lock(KEY, HOLDER, HOUR)
        waiting = [line.write("first"), line.read("second")]
        at_once(server, ("SLOCK.EXTEND", KEY, HOLDER, ttl), ("CLIENT", "PAUSE", max(12, 2 * ttl), kind))
        serve_in_order(line, waiting)


# --- SHUTDOWN that waits for a replica


def test_a_shutdown_that_waits_grants_nothing(primary_and_replica: Pair) -> None:
    primary, replica = primary_and_replica
    line, control = Line(primary), primary.raw()
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write("first"), line.read("second")]
    line.client.config_set("shutdown-timeout", 600)
    replica.pause()
    # The replica has not acknowledged this, so the shutdown waits for it.
    control.send_bytes(b"SLOCK.EXTEND k holder 60\r\nSHUTDOWN NOSAVE\r\n")
    assert control.read() == 1
    wait_until(lambda: line.holders() == [], what="the deadline")
    stays(lambda: all(waiter.is_waiting() for waiter in waiting), 0.1, "who waits during a shutdown")
    line.client.execute_command("SHUTDOWN", "ABORT")
    replica.resume()
    serve_in_order(line, waiting)
    line.client.config_set("shutdown-timeout", 0)
    level(primary, replica)


# --- writes that are refused


def test_who_waits_is_served_when_the_memory_is_full(make_server: MakeServer) -> None:
    """Only new requests are refused for want of memory: theirs was taken in before."""
    server = make_server()
    line = Line(server)
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write("first"), NotifiedClient.for_write(server, KEY, "second"), line.read("third")]
    wait = ("SLOCK.LOCK", KEY, "new", HOUR, "WAIT", 0)
    replies = at_once(
        server,
        ("CONFIG", "SET", "maxmemory", 1),
        wait,
        (*wait, "NOTIFY", waiting[1].listener.channel, "tag"),
        ("SLOCK.UNLOCK", KEY, HOLDER),
    )
    assert [isinstance(reply, RespError) and reply.prefix for reply in replies[1:]] == ["OOM", "OOM", False]
    serve_in_order(line, waiting)


def _refuses_writes(line: Line, prefix: str, setting: str, stop: object, go_on: Callable[[], object]) -> None:
    """The deadline passes while clients may not write: a timer grants nothing, either, until what was
    missing is there. The server tells modules nothing of that."""
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting, impatient = line.write("waiting"), line.write("impatient", wait=400)
    told = NotifiedClient.for_write(line.server, KEY, "told")
    impatient_too = NotifiedClient.for_write(line.server, KEY, "impatient, too", 400)
    assert at_once(line.server, SHORTEN, ("CONFIG", "SET", setting, stop)) == [1, b"OK"]
    wait_until(lambda: line.locks.pttl(KEY, HOLDER) == -2, what="the deadline to pass")
    assert line.server.raw().error("SLOCK.LOCK", "other", "c", HOUR).startswith(prefix)
    assert impatient.reply() == impatient_too.reply() == 0, "a wait runs out as ever"
    stays(lambda: waiting.is_waiting() and told.is_waiting(), 0.2, "who waits while writes are refused")
    assert line.info().mode == "free" and line.queued() == ["waiting", "told"]
    go_on()
    serve_in_order(line, [waiting, told])


def test_a_primary_without_enough_replicas_grants_nothing(
    primary_and_replica: Pair, make_server: MakeServer
) -> None:
    primary, second = primary_and_replica.primary, make_server(name="second")
    go_on = partial(replica_of, second, primary)
    _refuses_writes(Line(primary), "NOREPLICAS", "min-replicas-to-write", 2, go_on)


def test_a_primary_whose_snapshots_fail_grants_nothing(make_server: MakeServer) -> None:
    server = make_server(save="3600 1", stop_writes_on_bgsave_error=False)
    line = Line(server)
    in_the_way = server.directory / "dump.rdb"
    in_the_way.mkdir()  # it cannot be replaced by a file
    line.client.set("changed", 1)
    line.client.bgsave()
    wait_until(lambda: line.client.info("persistence")["rdb_last_bgsave_status"] == "err", what="the failure")

    def go_on() -> None:
        in_the_way.rmdir()
        line.client.bgsave()

    _refuses_writes(line, "MISCONF", "stop-writes-on-bgsave-error", "yes", go_on)


# --- deadlines far away, and a crowd that waits


def test_the_server_sleeps_until_a_deadline_that_is_far_away(make_server: MakeServer) -> None:
    line = Line(make_server())
    assert line.locks.lock(KEY, HOLDER, 24 * HOUR)
    line.write("waiting")
    # A timer that is due, after which the server computes when the next one is.
    assert line.write("impatient", wait=1).reply() == 0
    before = _cpu_seconds(line)
    time.sleep(0.5)
    assert _cpu_seconds(line) - before < 0.1, "the server does not sleep"


def _cpu_seconds(line: Line) -> float:
    used = line.client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def test_a_crowd_waits_through_a_rewrite_and_a_full_sync(make_server: MakeServer) -> None:
    primary, replica = make_server(name="primary", appendonly=True), make_server(name="replica")
    client, line = primary.client(), Line(primary)
    # Enough keys for the child process to be busy for a while, so that grants fall into its time.
    client.execute_command("DEBUG", "POPULATE", 240)
    client.config_set("rdb-key-save-delay", 1000)
    line.locks.lock(KEY, HOLDER, HOUR)
    crowd = [line.write(f"t{number}") for number in range(100)]
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], 30)
    client.bgrewriteaof()
    line.release(HOLDER)
    fences = serve_in_order(line, crowd[:40])
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], 30, "the rewrite")
    replica.client().execute_command("REPLICAOF", "127.0.0.1", primary.port)
    wait_until(lambda: client.info("replication")["connected_slaves"], what="the replica")
    fences += serve_in_order(line, crowd[40:80])
    wait_synced(primary, replica)
    fences.append(crowd[80].fence())
    assert fences == sorted(set(fences)) and line.locks.info(KEY).waiters == 19
    level(primary, replica)
    before = digest(client, KEY)
    primary.restart(kill=True)
    assert digest(primary.client(), KEY) == before
    assert all(waiter.outcome() is None for waiter in crowd[81:]), "granted by a server that was killed"
