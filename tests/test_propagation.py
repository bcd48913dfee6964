"""A change that nobody would hear need not be replicated; whoever listens, or may ask later, misses nothing.

Each test changes who listens while locks are taken and given back without a pause, and compares in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harness import Locks, Server, promote, replica_of, rewrite_aof, wait_synced, wait_until
from harness.load import Load, agree, all_digests
from harness.many import many
from harness.waiting import HOUR

MakeServer = Callable[..., Server]


@pytest.fixture
def load() -> Iterator[Callable[[Server], Load]]:
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
    client = replica.client()
    client.execute_command("REPLICAOF", "127.0.0.1", primary.port)
    _linked(replica)


def _linked(replica: Server) -> None:
    client = replica.client()

    def is_up() -> bool:
        return client.info("replication").get("master_link_status") == "up"

    wait_until(is_up, 30, f"the link of {replica} to be up")


def _partial_syncs(primary: Server) -> int:
    return primary.client().info("stats")["sync_partial_ok"]


def _cut(primary: Server, replica: Server, load: Load) -> None:
    """The replica is gone for a while without knowing it; meanwhile nobody listens."""
    replica.pause()
    client = primary.client()
    client.client_kill_filter(_type="replica")
    wait_until(lambda: client.info("replication")["connected_slaves"] == 0, what="the link to be cut")
    load.goes_on()


def _back(primary: Server, replica: Server) -> None:
    replica.resume()
    client = primary.client()
    wait_until(lambda: client.info("replication")["connected_slaves"] == 1, 30, "the replica to be back")
    _linked(replica)


# --- replicas that come and go


@pytest.mark.parametrize(
    ("diskless", "delay"), [(False, 0), (True, 0), (True, 1)], ids=["disk", "diskless", "diskless, delayed"]
)
def test_a_replica_that_comes_under_load_misses_nothing(
    make_server: MakeServer, load: Callable[[Server], Load], diskless: bool, delay: int
) -> None:
    primary = make_server(repl_diskless_sync=diskless, repl_diskless_sync_delay=delay)
    replica = make_server(repl_diskless_load="swapdb" if diskless else "disabled")
    busy = load(primary)
    _follow(replica, primary)
    busy.goes_on()
    busy.stop()
    agree(primary, replica)


def test_a_replica_that_leaves_and_comes_again_misses_nothing(
    make_server: MakeServer, load: Callable[[Server], Load]
) -> None:
    primary, replica = make_server(), make_server()
    busy = load(primary)
    for _ in range(3):
        _follow(replica, primary)
        busy.goes_on(100)
        promote(replica)
        busy.goes_on(100)
    _follow(replica, primary)
    busy.stop()
    agree(primary, replica)


def test_a_replica_whose_link_was_cut_goes_on_from_where_it_was(
    make_server: MakeServer, load: Callable[[Server], Load]
) -> None:
    primary, replica = make_server(repl_backlog_size="64mb"), make_server()
    busy = load(primary)
    _follow(replica, primary)
    for _ in range(3):
        before = _partial_syncs(primary)
        _cut(primary, replica, busy)
        _back(primary, replica)
        assert _partial_syncs(primary) == before + 1, "it should have been a partial synchronization"
        busy.goes_on(100)
    busy.stop()
    agree(primary, replica)


def test_what_happens_while_the_only_replica_is_away_is_kept_for_it(make_server: MakeServer) -> None:
    """One change alone, in the moment in which nobody is connected."""
    primary, replica = make_server(), make_server()
    replica_of(replica, primary)
    raw = primary.raw()
    changes = [
        ("SLOCK.LOCK", "k", "a", HOUR),
        ("SLOCK.EXTEND", "k", "a", 2 * HOUR),
        ("SLOCK.DOWNGRADE", "k", "a", HOUR),
        ("SLOCK.RLOCK", "k", "b", HOUR),
        ("SLOCK.RUNLOCK", "k", "a"),
        ("SLOCK.UPGRADE", "k", "b", HOUR),
        many("MLOCK", "x y", "a", HOUR),
        many("MUNLOCK", "x", "a"),
    ]
    client = primary.client()
    for change in changes:
        before = _partial_syncs(primary)
        replica.pause()
        client.client_kill_filter(_type="replica")
        wait_until(lambda: client.info("replication")["connected_slaves"] == 0, what="the link to be cut")
        assert raw.ok(*change) > 0
        _back(primary, replica)
        assert _partial_syncs(primary) == before + 1
        agree(primary, replica)


def test_a_second_replica_and_a_replica_of_a_replica_miss_nothing(
    make_server: MakeServer, load: Callable[[Server], Load]
) -> None:
    primary, first, second, third = (make_server() for _ in range(4))
    busy = load(primary)
    _follow(first, primary)
    busy.goes_on(100)
    _follow(second, primary)
    _follow(third, first)
    busy.goes_on(100)
    promote(first)
    busy.goes_on(100)
    _follow(first, primary)
    busy.goes_on(100)
    busy.stop()
    agree(primary, first, second)
    _linked(third)
    agree(first, third)


# --- roles


def test_roles_may_be_swapped_under_load(make_server: MakeServer, load: Callable[[Server], Load]) -> None:
    one, two = make_server(), make_server()
    busy = load(one)
    _follow(two, one)
    for old, new in ((one, two), (two, one), (one, two)):
        busy.goes_on(100)
        busy.stop()
        wait_synced(old, new)
        promote(new)
        busy = load(new)  # and nobody listens to it yet
        _follow(old, new)
    busy.stop()
    agree(two, one)


def test_a_primary_that_was_a_replica_for_a_moment_is_heard_again(
    make_server: MakeServer, load: Callable[[Server], Load]
) -> None:
    one, two = make_server(), make_server()
    busy = load(one)
    _follow(two, one)
    busy.stop()
    replica_of(two, one)
    promote(two)
    replica_of(one, two)
    promote(one)
    busy = load(one)
    _follow(two, one)
    busy.goes_on(100)
    busy.stop()
    agree(one, two)


# --- the append-only file


def test_a_log_that_is_switched_on_under_load_has_everything(
    make_server: MakeServer, load: Callable[[Server], Load]
) -> None:
    server = make_server()
    client, busy = server.client(), load(server)
    for _ in range(2):
        client.config_set("appendonly", "yes")
        busy.goes_on()
        client.config_set("appendonly", "no")
        busy.goes_on(100)
    client.config_set("appendonly", "yes")
    busy.goes_on(100)
    rewrite_aof(server)
    busy.goes_on(100)
    busy.stop()
    before = all_digests(server)
    server.restart(kill=True, appendonly=True)
    assert before and all_digests(server) == before


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


# --- restarts that keep the place in the stream


def test_a_replica_that_restarts_goes_on_from_its_snapshot(
    make_server: MakeServer, load: Callable[[Server], Load]
) -> None:
    primary, replica = make_server(repl_backlog_size="64mb"), make_server()
    busy = load(primary)
    _follow(replica, primary)
    busy.goes_on(100)
    before = _partial_syncs(primary)
    replica.stop(save=True)
    busy.goes_on()
    replica.configure(replicaof=f"127.0.0.1 {primary.port}")
    replica.start()
    _linked(replica)
    assert _partial_syncs(primary) == before + 1
    busy.stop()
    agree(primary, replica)


@pytest.mark.parametrize("absent", [False, True], ids=["the replica is there", "the replica is away"])
def test_a_primary_that_restarts_from_its_snapshot_loses_no_replica(
    make_server: MakeServer, load: Callable[[Server], Load], absent: bool
) -> None:
    """It may offer to go on from where the snapshot was: then what it does next must be in its stream."""
    primary, replica = make_server(), make_server()
    busy = load(primary)
    _follow(replica, primary)
    busy.stop()
    wait_synced(primary, replica)
    if absent:
        replica.pause()
    primary.restart(save=True)
    busy = load(primary)
    if absent:
        busy.goes_on()
        replica.resume()
    _linked(replica)
    client = primary.client()
    wait_until(lambda: client.info("replication")["connected_slaves"] == 1, 30, "the replica to be back")
    busy.goes_on(100)
    busy.stop()
    agree(primary, replica)


# --- save points


def test_changes_of_locks_count_for_the_save_points(make_server: MakeServer) -> None:
    server = make_server()
    client, raw = server.client(), server.raw()

    def changes() -> int:
        return client.info("persistence")["rdb_changes_since_last_save"]

    for words in [
        ("SLOCK.LOCK", "k", "a", HOUR),
        ("SLOCK.EXTEND", "k", "a", HOUR),
        ("SLOCK.LOCK", "k", "a", HOUR),
        ("SLOCK.DOWNGRADE", "k", "a", HOUR),
        ("SLOCK.RLOCK", "k", "b", HOUR),
        ("SLOCK.RUNLOCK", "k", "b"),
        ("SLOCK.UPGRADE", "k", "a", HOUR),
        ("SLOCK.UNLOCK", "k", "a"),
        many("MLOCK", "x y", "a", HOUR),
        many("MEXTEND", "x y", "a", HOUR),
        many("MUNLOCK", "x", "a"),
    ]:
        before = changes()
        assert raw.ok(*words) > 0
        assert changes() > before, words
    before = changes()
    assert Locks(client).lock("y", "other", HOUR) == 0 and raw.ok("SLOCK.UNLOCK", "y", "other") == 0
    assert raw.ok("SLOCK.PTTL", "y", "a") > 0 and raw.ok("SLOCK.INFO", "y")
    assert changes() == before, "what is refused or only looks is no change"


def test_a_save_point_is_reached_by_locks_alone(make_server: MakeServer) -> None:
    server = make_server(save="1 3")
    client, locks = server.client(), Locks(server.client())
    for key in "abc":
        locks.lock(key, "a", HOUR)

    def is_saved() -> bool:
        state = client.info("persistence")
        return state["rdb_changes_since_last_save"] == 0 and not state["rdb_bgsave_in_progress"]

    wait_until(is_saved, 20, "the server to save by itself")
    before = all_digests(server)
    server.restart(kill=True)
    assert all_digests(server) == before and len(before) == 3
