"""A queue while the server is busy otherwise: it pauses, shuts down, rewrites, feeds a new replica."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import (
    RespError,
    Server,
    aof_commands,
    digest,
    now_ms,
    replica_of,
    rounds,
    stays,
    wait_past,
    wait_synced,
    wait_until,
)
from harness.causes import BRIEF, HOLDER, KEY
from harness.load import level
from harness.waiting import (
    HOUR,
    Line,
    WaitingClient,
    at_once,
    blocked_clients,
    serve_in_order,
    wait_unblocked,
)

pytest_plugins = ["harness.cleanup"]

CROWD = 240

PAUSE = ("CLIENT", "PAUSE", 600_000, "WRITE")
SHORTEN = ("SLOCK.EXTEND", KEY, HOLDER, BRIEF)


@pytest.fixture
def pair(make_server: Callable[..., Server]) -> tuple[Server, Server]:
    primary = make_server(name="primary", appendonly=True)
    replica = make_server(name="replica")
    replica_of(replica, primary)
    return primary, replica


# --- CLIENT PAUSE


def test_a_deadline_in_a_pause_of_writes_is_granted_after_it(pair: tuple[Server, Server]) -> None:
    line = Line(pair[0])
    line.locks.lock(KEY, HOLDER, HOUR)
    first, second = line.write("first"), line.write("second")
    assert at_once(line.server, SHORTEN, PAUSE) == [1, b"OK"]
    wait_past(line.client, now_ms(line.client) + BRIEF)
    before = line.client.info("replication")["master_repl_offset"]
    stays(lambda: first.is_waiting() and second.is_waiting(), 0.15, "who waits while writes are paused")
    assert line.holders() == [] and line.queued() == ["first", "second"]
    assert line.client.info("replication")["master_repl_offset"] == before
    line.client.execute_command("CLIENT", "UNPAUSE")
    serve_in_order(line, [first, second])
    level(*pair)


@pytest.mark.parametrize("kind", ["WRITE", "ALL"])
def test_pauses_that_end_by_themselves_are_followed_by_the_grant(
    pair: tuple[Server, Server], kind: str
) -> None:
    primary, replica = pair
    line = Line(primary)
    for ttl in [*range(1, 25, 3), 2 * BRIEF]:
        line.locks.lock(KEY, HOLDER, HOUR)
        waiting = [line.write("first"), line.read("second")]
        at_once(primary, ("SLOCK.EXTEND", KEY, HOLDER, ttl), ("CLIENT", "PAUSE", max(12, 2 * ttl), kind))
        serve_in_order(line, waiting)
    level(primary, replica)


def test_who_leaves_in_a_pause_lets_the_others_in_after_it(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    line = Line(primary)
    line.locks.rlock(KEY, HOLDER, HOUR)
    killed, unblocked, timed_out = line.write("killed"), line.write("unblocked"), line.write("t", wait=300)
    readers = [line.read("r1"), line.read("r2")]
    at_once(primary, PAUSE)
    line.client.client_kill_filter(_id=killed.id)
    line.client.client_unblock(unblocked.id, error=True)
    assert unblocked.error().startswith("UNBLOCKED ")
    assert timed_out.reply() == 0
    stays(lambda: all(reader.is_waiting() for reader in readers), 0.1, "readers of a paused server")
    assert line.holders() == [HOLDER]
    line.client.execute_command("CLIENT", "UNPAUSE")
    assert all(reader.fence() for reader in readers)
    level(primary, replica)


# --- SHUTDOWN that waits for a replica


def _shutting_down(primary: Server, replica: Server, timeout: int) -> tuple[Line, list[WaitingClient]]:
    """The server waits for a replica that is stopped, and the holder's deadline has passed meanwhile."""
    line = Line(primary)
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write("first"), line.read("second")]
    line.client.config_set("shutdown-timeout", timeout)
    replica.pause()
    control = primary.raw()
    # The replica has not acknowledged this, so the shutdown waits for it.
    control.send_bytes(b"SLOCK.EXTEND k holder 60\r\nSHUTDOWN NOSAVE\r\n")
    assert control.read() == 1
    return line, waiting


def test_a_shutdown_that_waits_for_a_replica_grants_nothing(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    _, waiting = _shutting_down(primary, replica, timeout=1)
    assert primary.process is not None
    assert primary.process.wait(20) == 0, primary.log()[-3000:]
    for waiter in waiting:
        outcome = waiter.outcome()
        assert outcome is None or isinstance(outcome, RespError), outcome
    primary.kill9()
    replica.resume()
    primary.start()
    wait_unblocked(primary.client())
    assert Line(primary).info() is None
    replica_of(replica, primary)
    level(primary, replica)


def test_an_aborted_shutdown_serves_the_queue(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    line, waiting = _shutting_down(primary, replica, timeout=600)
    wait_until(lambda: line.holders() == [], what="the deadline")
    stays(lambda: all(waiter.is_waiting() for waiter in waiting), 0.1, "who waits during a shutdown")
    line.client.execute_command("SHUTDOWN", "ABORT")
    replica.resume()
    serve_in_order(line, waiting)
    line.client.config_set("shutdown-timeout", 0)
    level(primary, replica)


# --- too little memory


def test_who_waits_is_served_when_the_memory_is_full(make_server: Callable[..., Server]) -> None:
    """Only new requests are refused for want of memory: theirs was taken in before."""
    server = make_server()
    line = Line(server)
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write("first"), line.read("second")]
    replies = at_once(
        server,
        ("CONFIG", "SET", "maxmemory", 1),
        ("SLOCK.LOCK", KEY, "new", HOUR, "WAIT", 0),
        ("SLOCK.UNLOCK", KEY, HOLDER),
    )
    assert isinstance(replies[1], RespError) and replies[1].prefix == "OOM"
    assert replies[2] == 1
    serve_in_order(line, waiting)


# --- writes that are refused


def _refuses_writes(line: Line, prefix: str, *stop: object) -> WaitingClient:
    """The deadline passes while the server refuses clients' writes: a timer grants nothing, either."""
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting, impatient = line.write("waiting"), line.write("impatient", wait=400)
    assert at_once(line.server, SHORTEN, ("CONFIG", "SET", *stop)) == [1, b"OK"]
    wait_until(lambda: line.locks.pttl(KEY, HOLDER) == -2, what="the deadline to pass")
    assert line.server.raw().error("SLOCK.LOCK", "other", "c", HOUR).startswith(prefix)
    assert impatient.reply() == 0, "a wait runs out as ever"
    stays(waiting.is_waiting, 0.2, "who waits while writes are refused")
    assert line.info().mode == "free" and line.queued() == ["waiting"]
    return waiting


def test_a_primary_without_enough_replicas_grants_nothing(make_server: Callable[..., Server]) -> None:
    line = Line(make_server())
    waiting = _refuses_writes(line, "NOREPLICAS", "min-replicas-to-write", 1)
    line.client.config_set("min-replicas-to-write", 0)
    assert waiting.fence()


def test_a_primary_whose_snapshots_fail_grants_nothing(make_server: Callable[..., Server]) -> None:
    server = make_server(save="3600 1", stop_writes_on_bgsave_error=False)
    line = Line(server)
    (server.directory / "dump.rdb").mkdir()  # what cannot be replaced by a file
    line.client.set("changed", 1)
    line.client.bgsave()
    wait_until(lambda: line.client.info("persistence")["rdb_last_bgsave_status"] == "err", what="the failure")
    waiting = _refuses_writes(line, "MISCONF", "stop-writes-on-bgsave-error", "yes")
    line.client.config_set("stop-writes-on-bgsave-error", "no")
    assert waiting.fence()


# --- a great many keys


def test_many_expiring_keys_do_not_hide_a_deadline(make_server: Callable[..., Server]) -> None:
    server = make_server(hz=1, dynamic_hz=False)
    line = Line(server)
    script = (
        "for i = 1, 50000 do redis.call('PSETEX', ARGV[1] .. ':' .. i, math.floor(1000 + i / 10), '') end"
    )
    for number in range(rounds(4, 20)):
        line.client.eval(script, 0, number)
    for command in (SHORTEN, ("SLOCK.UNLOCK", KEY, HOLDER), ("FLUSHALL", "ASYNC")):
        line.locks.lock(KEY, HOLDER, HOUR)
        waiting = line.write("waiting")
        at_once(server, command)
        assert waiting.fence()
        line.release("waiting")


# --- a crowd that waits


@pytest.mark.parametrize("preamble", [True, False], ids=["rdb preamble", "no preamble"])
def test_a_crowd_waits_through_a_rewrite_and_a_full_sync(
    make_server: Callable[..., Server], preamble: bool
) -> None:
    primary = make_server(name="primary", appendonly=True, aof_use_rdb_preamble=preamble)
    replica, client = make_server(name="replica"), primary.client()
    # Enough keys for the child process to be busy for a while, so that grants fall into its time.
    client.execute_command("DEBUG", "POPULATE", CROWD)
    line = Line(primary)
    fences, holding = [line.locks.lock(KEY, HOLDER, HOUR)], HOLDER
    waiting = [line.write(f"t{number}") for number in range(CROWD)]

    def serve(count: int) -> None:
        nonlocal holding
        for waiter in waiting[:count]:
            assert waiter.is_waiting() and line.release(holding) == 1
            fences.append(waiter.fence())
            holding = waiter.token
        del waiting[:count]
        assert fences == sorted(set(fences))
        assert blocked_clients(client) == len(waiting) == line.locks.info(KEY).waiters

    client.config_set("rdb-key-save-delay", 1000)
    client.config_set("aof-rewrite-incremental-fsync", "no")
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], 30)
    client.bgrewriteaof()
    serve(CROWD // 5)
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], 30, "the rewrite")
    assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"

    replica.client().execute_command("REPLICAOF", "127.0.0.1", primary.port)
    wait_until(lambda: client.info("replication")["connected_slaves"], what="the replica")
    serve(CROWD // 5)
    wait_synced(primary, replica)
    serve(CROWD // 5)
    level(primary, replica)

    client.config_set("rdb-key-save-delay", 0)
    assert not any(b"WAIT" in command for command in aof_commands(primary))
    before = digest(client, KEY)
    if preamble:
        serve(len(waiting))
        return
    primary.restart(kill=True)
    assert digest(primary.client(), KEY) == before
    assert all(waiter.outcome() is None for waiter in waiting), "granted by a server that was killed"
