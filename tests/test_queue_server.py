"""A queue while the server is busy otherwise: it pauses, shuts down, rewrites, feeds a new replica."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest

from harness import (
    RespError,
    Server,
    aof_commands,
    digest,
    now_ms,
    replica_of,
    stays,
    wait_past,
    wait_synced,
    wait_until,
)
from harness.causes import BRIEF, HOLDER, KEY
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

CROWD = 1000

PAUSE = ("CLIENT", "PAUSE", 600_000, "WRITE")
SHORTEN = ("SLOCK.EXTEND", KEY, HOLDER, BRIEF)


@pytest.fixture
def pair(make_server: Callable[..., Server]) -> tuple[Server, Server]:
    primary = make_server(name="primary", appendonly=True)
    replica = make_server(name="replica")
    replica_of(replica, primary)
    return primary, replica


def _level(primary: Server, replica: Server) -> None:
    wait_synced(primary, replica)
    at_primary, at_replica = primary.client(), replica.client()
    assert sorted(at_primary.keys()) == sorted(at_replica.keys())
    for key in at_primary.scan_iter():
        assert digest(at_primary, key) == digest(at_replica, key)


# --- CLIENT PAUSE


def test_a_deadline_in_a_pause_of_writes_is_granted_after_it(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    line = Line(primary)
    line.locks.lock(KEY, HOLDER, HOUR)
    first, second = line.write("first"), line.write("second")
    assert at_once(primary, SHORTEN, PAUSE) == [1, b"OK"]
    wait_past(line.client, now_ms(line.client) + BRIEF)
    before = line.client.info("replication")["master_repl_offset"]
    stays(lambda: first.is_waiting() and second.is_waiting(), 0.15, "who waits while writes are paused")
    assert line.holders() == [] and line.queued() == ["first", "second"]
    assert line.client.info("replication")["master_repl_offset"] == before
    line.client.execute_command("CLIENT", "UNPAUSE")
    assert first.fence() and second.is_waiting()
    _level(primary, replica)
    line.release("first")
    assert second.fence()
    _level(primary, replica)


@pytest.mark.parametrize("kind", ["WRITE", "ALL"])
def test_a_pause_that_ends_by_itself_is_followed_by_the_grant(pair: tuple[Server, Server], kind: str) -> None:
    primary, replica = pair
    line = Line(primary)
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write("first"), line.write("second")]
    at_once(primary, SHORTEN, ("CLIENT", "PAUSE", 300, kind))
    assert waiting[0].fence()
    line.release("first")
    assert waiting[1].fence()
    _level(primary, replica)


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
    _level(primary, replica)


def test_many_pauses_across_many_deadlines(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    line = Line(primary)
    for number in range(25):
        line.locks.lock(KEY, HOLDER, HOUR)
        waiting = [line.write("first"), line.read("second")]
        shorten = ("SLOCK.EXTEND", KEY, HOLDER, 1 + number)
        at_once(primary, shorten, ("CLIENT", "PAUSE", 12, "WRITE"))
        serve_in_order(line, waiting)
    _level(primary, replica)


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
    _, waiting = _shutting_down(primary, replica, timeout=2)
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
    _level(primary, replica)


def test_an_aborted_shutdown_serves_the_queue(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    line, waiting = _shutting_down(primary, replica, timeout=600)
    wait_until(lambda: line.holders() == [], what="the deadline")
    stays(lambda: all(waiter.is_waiting() for waiter in waiting), 0.1, "who waits during a shutdown")
    line.client.execute_command("SHUTDOWN", "ABORT")
    replica.resume()
    serve_in_order(line, waiting)
    line.client.config_set("shutdown-timeout", 0)
    _level(primary, replica)


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


# --- a great many keys


def test_a_million_expiring_keys_do_not_hide_a_deadline(make_server: Callable[..., Server]) -> None:
    server = make_server(hz=1, dynamic_hz=False)
    line = Line(server)
    script = """
        for i = 1, tonumber(ARGV[2]) do
            redis.call('SET', 'x' .. ARGV[1] .. ':' .. i, '', 'PX', 2000 + i)
        end
    """
    for number in range(10):
        line.client.eval(script, 0, number, 100_000)
    for commands in (
        [SHORTEN],
        [("SLOCK.UNLOCK", KEY, HOLDER)],
        [("FLUSHALL", "ASYNC")],
    ):
        line.locks.lock(KEY, HOLDER, HOUR)
        waiting = line.write("waiting")
        at_once(server, *commands)
        assert waiting.fence()
        line.release("waiting")


# --- a thousand who wait


def _allow_many_sockets() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = CROWD + 500
    if hard != resource.RLIM_INFINITY and hard < need:
        pytest.skip(f"only {hard} files may be open")
    if soft != resource.RLIM_INFINITY and soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


class Crowd:
    """Many writers, waiter on a few locks in a known order, and who of them has been served."""

    def __init__(self, server: Server, size: int, keys: int) -> None:
        self.lines = [Line(server, f"k{number}") for number in range(keys)]
        self.served: list[int] = []
        for line in self.lines:
            assert line.locks.lock(line.key, HOLDER, HOUR)
        self.waiting = [
            (line, line.write(f"{line.key}:{number}"))
            for number in range(size // keys)
            for line in self.lines
        ]
        self._holding = dict.fromkeys([line.key for line in self.lines], HOLDER)

    def serve(self, count: int) -> None:
        """Serves so many, each in his turn: he is granted once, by the release of the one before him."""
        for line, waiter in self.waiting[:count]:
            assert waiter.is_waiting()
            assert line.release(self._holding[line.key]) == 1
            self.served.append(waiter.fence())
            self._holding[line.key] = waiter.token
        self.waiting = self.waiting[count:]

    def is_whole(self, client: object) -> None:
        assert blocked_clients(client) == len(self.waiting)
        assert [line.locks.info(line.key).waiters for line in self.lines] == [
            sum(other is line for other, _ in self.waiting) for line in self.lines
        ]


@pytest.mark.parametrize("preamble", [True, False], ids=["rdb preamble", "no preamble"])
def test_a_thousand_wait_through_a_rewrite_and_a_full_sync(
    make_server: Callable[..., Server], preamble: bool
) -> None:
    _allow_many_sockets()
    primary = make_server(
        name="primary", appendonly=True, aof_use_rdb_preamble=preamble, maxclients=CROWD + 200
    )
    replica = make_server(name="replica")
    client = primary.client()
    # Enough keys for the child process to be busy for a while, so that grants fall into its time.
    client.execute_command("DEBUG", "POPULATE", 1000)
    crowd = Crowd(primary, CROWD, keys=4)
    crowd.is_whole(client)
    client.config_set("rdb-key-save-delay", 1000)
    client.config_set("aof-rewrite-incremental-fsync", "no")
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], 30)

    client.bgrewriteaof()
    crowd.serve(200)
    crowd.is_whole(client)
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], 30, "the rewrite")
    assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"

    replica.client().execute_command("REPLICAOF", "127.0.0.1", primary.port)
    wait_until(lambda: client.info("replication")["connected_slaves"], what="the replica")
    crowd.serve(200)
    crowd.is_whole(client)
    wait_synced(primary, replica)
    crowd.serve(200)
    _level(primary, replica)

    client.config_set("rdb-key-save-delay", 0)
    assert not any(b"WAIT" in command for command in aof_commands(primary))
    before = {line.key: digest(client, line.key) for line in crowd.lines}
    assert crowd.served == sorted(set(crowd.served))
    if preamble:
        crowd.serve(len(crowd.waiting))
        assert crowd.served == sorted(set(crowd.served)) and len(crowd.served) == CROWD
        wait_unblocked(client)
        return
    rest = crowd.waiting
    primary.restart(kill=True)
    again = primary.client()
    assert {key: digest(again, key) for key in before} == before
    assert all(waiter.outcome() is None for _, waiter in rest), "granted by a server that was killed"
