"""A change that nobody would hear need not be replicated; whoever listens, or may ask later, misses nothing.

Each test changes who listens while locks are taken and given back without a pause, and compares in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harness import MakeServer, ReplicationStream, Server, replica_of, wait_synced, wait_until
from harness.load import Load, agree, all_digests
from harness.many import many
from harness.waiting import HOUR

StartLoad = Callable[[Server], Load]

# A change of each kind, one after the other.
CHANGES = [
    ("SLOCK.LOCK", "k", "a", HOUR),
    ("SLOCK.EXTEND", "k", "a", 2 * HOUR),
    ("SLOCK.LOCK", "k", "a", 3 * HOUR),
    ("SLOCK.DOWNGRADE", "k", "a", HOUR),
    ("SLOCK.RLOCK", "k", "b", HOUR),
    ("SLOCK.RUNLOCK", "k", "a"),
    ("SLOCK.UPGRADE", "k", "b", HOUR),
    ("SLOCK.UNLOCK", "k", "b"),
    many("MLOCK", "x y", "a", HOUR),
    many("MEXTEND", "x y", "a", 2 * HOUR),
    many("MUNLOCK", "x", "a"),
]


@pytest.fixture
def load() -> Iterator[StartLoad]:
    loads: list[Load] = []

    def start(server: Server) -> Load:
        loads.append(Load(server))
        loads[-1].goes_on(100)
        return loads[-1]

    yield start
    for one in loads:
        one._end.set()


def _follow(replica: Server, primary: Server) -> None:
    """Like `replica_of`, for a primary that is never still: waits for the link only."""
    replica.client().execute_command("REPLICAOF", "127.0.0.1", primary.port)
    _wait_for(replica, "master_link_status", "up")


def _wait_for(server: Server, field: str, value: object) -> None:
    client = server.client()
    wait_until(lambda: client.info("replication").get(field) == value, 30, f"{field} of {server}: {value}")


def _partial_syncs(primary: Server) -> int:
    return primary.client().info("stats")["sync_partial_ok"]


def _cut(primary: Server, replica: Server) -> None:
    """The replica is gone for a while without knowing it; meanwhile nobody listens."""
    replica.pause()
    primary.client().client_kill_filter(_type="replica")
    _wait_for(primary, "connected_slaves", 0)


def _back(primary: Server, replica: Server) -> None:
    """It goes on from where it was: by a partial synchronization."""
    before = _partial_syncs(primary)
    replica.resume()
    _wait_for(primary, "connected_slaves", 1)
    _wait_for(replica, "master_link_status", "up")
    assert _partial_syncs(primary) == before + 1


# --- replicas that come and go


@pytest.mark.parametrize("diskless", [False, True], ids=["disk", "diskless, delayed"])
def test_a_replica_that_comes_and_goes_has_all(
    make_server: MakeServer, load: StartLoad, diskless: bool
) -> None:
    primary = make_server(
        repl_diskless_sync=diskless, repl_diskless_sync_delay=int(diskless), repl_backlog_size="64mb"
    )
    replica = make_server(repl_diskless_load="swapdb" if diskless else "disabled")
    busy = load(primary)
    _follow(replica, primary)
    busy.goes_on(100)
    _cut(primary, replica)
    busy.goes_on()
    _back(primary, replica)
    busy.goes_on(100)
    before = _partial_syncs(primary)
    replica.stop(save=True)
    busy.goes_on()
    replica.configure(replicaof=f"127.0.0.1 {primary.port}")
    replica.start()  # and goes on from its snapshot
    _wait_for(replica, "master_link_status", "up")
    assert _partial_syncs(primary) == before + 1
    busy.stop()
    agree(primary, replica)


def test_what_happens_while_the_only_replica_is_away_is_kept_for_it(make_server: MakeServer) -> None:
    """One change alone, in the moment in which nobody is connected."""
    primary, replica = make_server(), make_server()
    replica_of(replica, primary)
    raw = primary.raw()
    for change in CHANGES:
        _cut(primary, replica)
        assert raw.ok(*change) > 0
        _back(primary, replica)
        if primary.client().dbsize():
            agree(primary, replica)


# --- roles


# --- the append-only file


def test_a_log_that_is_switched_on_has_the_very_next_change(make_server: MakeServer) -> None:
    server = make_server()
    raw = server.raw()
    raw.ok("SLOCK.LOCK", "before", "a", HOUR)
    raw.pipeline([("CONFIG", "SET", "appendonly", "yes"), ("SLOCK.LOCK", "next", "a", HOUR)])
    raw.ok("SLOCK.UNLOCK", "before", "a")
    raw.ok(*many("MLOCK", "x y", "a", HOUR))
    client = server.client()
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], what="the first log")
    before = all_digests(server)
    server.restart(kill=True, appendonly=True)
    assert all_digests(server) == before and len(before) == 3


def test_a_primary_that_restarts_loses_no_replica(make_server: MakeServer, load: StartLoad) -> None:
    """It may offer to go on from where the snapshot was: then what it does next must be in its stream."""
    primary, replica = make_server(), make_server()
    busy = load(primary)
    _follow(replica, primary)
    busy.stop()
    wait_synced(primary, replica)
    replica.pause()
    primary.restart(save=True)
    busy = load(primary)
    busy.goes_on()
    replica.resume()
    _wait_for(replica, "master_link_status", "up")
    _wait_for(primary, "connected_slaves", 1)
    busy.stop()
    agree(primary, replica)


# --- save points


def test_changes_of_locks_count_for_the_save_points(make_server: MakeServer) -> None:
    server = make_server()
    client, raw = server.client(), server.raw()

    def changes() -> int:
        return client.info("persistence")["rdb_changes_since_last_save"]

    for words in CHANGES:
        before = changes()
        assert raw.ok(*words) > 0
        assert changes() > before, words
    before = changes()
    assert raw.ok("SLOCK.LOCK", "y", "other", HOUR) == 0 == raw.ok("SLOCK.UNLOCK", "y", "other")
    assert raw.ok("SLOCK.PTTL", "y", "a") > 0 and raw.ok("SLOCK.INFO", "y")
    assert changes() == before, "what is refused or only looks is no change"


def test_a_release_reaches_replicas_where_the_server_has_renamed_del(make_server: MakeServer) -> None:
    primary, replica = make_server(rename_command="DEL REMOVE", appendonly=True), make_server()
    replica_of(replica, primary)
    stream = ReplicationStream(primary)
    client = primary.client()
    assert client.execute_command("SLOCK.LOCK", "k", "me", HOUR)
    assert client.execute_command("SLOCK.UNLOCK", "k", "me") == 1
    taken, released = stream.commands()
    assert taken[2].startswith(b"HOLD ") and released[2].startswith(b"RELEASE "), released
    wait_synced(primary, replica)
    assert replica.client().exists("k") == 0
    primary.restart()
    assert primary.client().exists("k") == 0
