"""A lock comes back from disk as it was, by every road, and a dead one stays dead."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from harness import (
    Locks,
    ReplicationStream,
    Server,
    aof_commands,
    aof_directory,
    digest,
    lock_state,
    now_ms,
    rewrite_aof,
    wait_past,
    wait_until,
)
from harness.samples import release_samples, sample_states, take_samples

MakeServer = Callable[..., Server]

LONG = 60_000

# Long enough to be stored, short enough to be waited for.
BRIEF = 250

AOF_PREAMBLE = {"appendonly": True, "appendfsync": "always", "aof_use_rdb_preamble": True}
AOF_COMMANDS = {"appendonly": True, "appendfsync": "always", "aof_use_rdb_preamble": False}


def save_and_restart(server: Server) -> None:
    server.client().save()
    server.restart()


def bgsave_and_crash(server: Server) -> None:
    client = server.client()
    client.bgsave()
    wait_until(lambda: not client.info("persistence")["rdb_bgsave_in_progress"], what="BGSAVE")
    server.restart(kill=True)


def save_on_shutdown(server: Server) -> None:
    server.restart(save=True)


def reload(server: Server) -> None:
    server.client().execute_command("DEBUG", "RELOAD")


def restart(server: Server) -> None:
    server.restart()


def crash(server: Server) -> None:
    server.restart(kill=True)


def rewrite_and_restart(server: Server) -> None:
    rewrite_aof(server)
    server.restart()


def rewrite_and_crash(server: Server) -> None:
    rewrite_aof(server)
    server.restart(kill=True)


def load_aof(server: Server) -> None:
    server.client().execute_command("DEBUG", "LOADAOF")


ROADS = {
    "RDB: SAVE and restart": ({}, save_and_restart),
    "RDB: BGSAVE and crash": ({}, bgsave_and_crash),
    "RDB: saved at shutdown": ({}, save_on_shutdown),
    "RDB: DEBUG RELOAD": ({}, reload),
    "AOF with preamble: restart": (AOF_PREAMBLE, restart),
    "AOF with preamble: crash": (AOF_PREAMBLE, crash),
    "AOF with preamble: rewrite and restart": (AOF_PREAMBLE, rewrite_and_restart),
    "AOF with preamble: rewrite and crash": (AOF_PREAMBLE, rewrite_and_crash),
    "AOF without preamble: restart": (AOF_COMMANDS, restart),
    "AOF without preamble: crash": (AOF_COMMANDS, crash),
    "AOF without preamble: rewrite and restart": (AOF_COMMANDS, rewrite_and_restart),
    "AOF without preamble: rewrite and crash": (AOF_COMMANDS, rewrite_and_crash),
    "AOF: DEBUG LOADAOF": (AOF_COMMANDS, load_aof),
}


@pytest.mark.parametrize("road", ROADS)
def test_locks_are_the_same_afterwards_and_their_owners_release_them(
    make_server: MakeServer, road: str
) -> None:
    settings, travel = ROADS[road]
    server = make_server(**settings)
    before = take_samples(server)
    travel(server)
    assert sample_states(server) == before
    travel(server)
    assert sample_states(server) == before
    release_samples(server)


@pytest.mark.parametrize("preamble", [True, False])
def test_changes_after_a_rewrite_are_on_top_of_it(make_server: MakeServer, preamble: bool) -> None:
    server = make_server(**{**AOF_PREAMBLE, "aof_use_rdb_preamble": preamble})
    locks = Locks(server.client())
    locks.lock("released", "a", LONG)
    locks.rlock("changed", "a", LONG)
    rewrite_aof(server)
    locks.unlock("released", "a")
    locks.rlock("changed", "b", 2 * LONG, meta="later")
    locks.extend("changed", "a", 3 * LONG)
    locks.lock("new", "a", LONG)
    before = {key: lock_state(server.client(), key) for key in ("released", "changed", "new")}
    server.restart(kill=True)
    assert {key: lock_state(server.client(), key) for key in before} == before


@pytest.mark.parametrize("preamble", [True, False])
def test_a_lock_with_very_many_readers_survives_a_rewrite(make_server: MakeServer, preamble: bool) -> None:
    server = make_server(**{**AOF_PREAMBLE, "appendfsync": "no", "aof_use_rdb_preamble": preamble})
    client = server.client()
    pipe = client.pipeline(transaction=False)
    for number in range(5000):
        pipe.execute_command("SLOCK.RLOCK", "k", b"\xff%d" % number, LONG + number, "META", f"m{number}")
    pipe.execute()
    before = lock_state(client, "k")
    rewrite_aof(server)
    server.restart()
    assert lock_state(server.client(), "k") == before


def test_a_lock_goes_to_another_server_as_it_is(make_server: MakeServer) -> None:
    source, target = make_server(), make_server()
    before = take_samples(source)
    for database, key in before:
        client = source.client(db=database)
        client.execute_command("MIGRATE", "127.0.0.1", target.port, key, database, 5000)
        assert client.exists(key) == 0
    after = sample_states(target)
    assert {at: state.without_expiry() for at, state in after.items()} == {
        at: state.without_expiry() for at, state in before.items()
    }
    release_samples(target)


# --- the append-only file


def test_the_log_holds_effects_in_absolute_time_and_no_request(make_server: MakeServer) -> None:
    server = make_server(**AOF_COMMANDS)
    take_samples(server)
    names = {command[0].upper().decode() for command in aof_commands(server)}
    assert "SLOCK.APPLY" in names
    assert names <= {"SELECT", "MULTI", "EXEC", "SLOCK.APPLY", "DEL", "UNLINK", "PEXPIREAT"}


def test_a_rewritten_log_holds_effects_and_no_request(make_server: MakeServer) -> None:
    server = make_server(**AOF_COMMANDS)
    take_samples(server)
    rewrite_aof(server)
    names = {command[0].upper().decode() for command in aof_commands(server)}
    assert "SLOCK.APPLY" in names
    assert names <= {"SELECT", "SLOCK.APPLY", "PERSIST", "PEXPIREAT"}, "the key's expiry as it is"


@pytest.mark.parametrize("settings", [AOF_PREAMBLE, AOF_COMMANDS], ids=["preamble", "no preamble"])
def test_the_expiry_that_a_user_gave_the_key_survives_a_rewrite(
    make_server: MakeServer, settings: dict[str, object]
) -> None:
    server = make_server(**settings)
    client = server.client()
    for key in ("persisted", "longer", "as ever"):
        Locks(client).lock(key, "a", LONG)
    client.persist("persisted")
    client.pexpire("longer", 10 * LONG)
    before = {key: (digest(client, key), client.pexpiretime(key)) for key in client.keys("*")}
    assert before[b"persisted"][1] == -1
    rewrite_and_restart(server)
    client = server.client()
    assert {key: (digest(client, key), client.pexpiretime(key)) for key in client.keys("*")} == before


def test_applying_a_log_twice_is_applying_it_once(make_server: MakeServer) -> None:
    source, target = make_server(), make_server(slock_allow_apply=True)
    stream = ReplicationStream(source)
    before = take_samples(source)
    commands = stream.commands(keep_select=True)
    ReplicationStream.replay(commands, target)
    assert sample_states(target) == before
    ReplicationStream.replay(commands, target)
    assert sample_states(target) == before
    target.client().flushall()
    for command in commands:
        if command[0].upper() not in (b"MULTI", b"EXEC"):
            ReplicationStream.replay([*_selecting(commands, command), command, command], target)
    assert sample_states(target) == before


def _selecting(commands: list[list[bytes]], command: list[bytes]) -> list[list[bytes]]:
    """The SELECT that is in force at `command`: every replay is a connection of its own."""
    selects = [c for c in commands[: _index(commands, command)] if c[0].upper() == b"SELECT"]
    return selects[-1:]


def _index(commands: list[list[bytes]], command: list[bytes]) -> int:
    return next(index for index, other in enumerate(commands) if other is command)


# --- what died stays dead


def take_brief_locks(server: Server) -> int:
    """Holds that end soon, some beside one that lasts. Returns when the last brief one ends."""
    client = server.client()
    locks = Locks(client)
    locks.lock("writer", "brief", BRIEF)
    locks.rlock("readers", "brief", BRIEF)
    locks.rlock("readers", "brief too", BRIEF)
    locks.rlock("mixed", "brief", BRIEF, meta="m")
    locks.rlock("mixed", "lasting", LONG, meta="m")
    locks.lock("refreshed", "brief", LONG)
    locks.lock("refreshed", "brief", BRIEF)
    locks.rlock("upgraded", "brief", LONG)
    locks.upgrade("upgraded", "brief", BRIEF)
    locks.lock("persisted", "brief", BRIEF)
    client.persist("persisted")
    return now_ms(client) + BRIEF


def assert_only_the_lasting_live(server: Server) -> None:
    client = server.client()
    locks = Locks(client)
    for key in ("writer", "readers", "refreshed", "upgraded", "persisted"):
        assert locks.full(key) is None, f"{key} was revived"
        assert locks.pttl(key, "brief") == -2
        assert locks.unlock(key, "brief") == locks.runlock(key, "brief") == 0
    info = locks.full("mixed")
    assert (info.readers, [h.token for h in info.holders]) == (1, [b"lasting"])
    assert locks.runlock("mixed", "brief") == 0
    assert client.exists("writer", "readers", "refreshed", "upgraded") == 0
    for key in ("writer", "readers", "refreshed", "upgraded", "persisted"):
        assert locks.lock(key, "successor", LONG)
    assert locks.runlock("mixed", "lasting") == 1
    assert client.exists("mixed") == 0


def wait_past_on_this_machine(clock: Server, deadline_ms: int) -> None:
    """All servers of a test share one clock, so that of a running one tells the time for a stopped one."""
    wait_past(clock.client(), deadline_ms)


@pytest.mark.parametrize("preamble", [True, False])
@pytest.mark.parametrize("rewritten", [False, True], ids=["as logged", "rewritten"])
def test_a_log_loaded_after_the_deadlines_revives_nothing(
    make_server: MakeServer, server: Server, preamble: bool, rewritten: bool
) -> None:
    keeper = make_server(**{**AOF_PREAMBLE, "aof_use_rdb_preamble": preamble})
    end = take_brief_locks(keeper)
    if rewritten:
        rewrite_aof(keeper)
    keeper.kill9()
    wait_past_on_this_machine(server, end)
    keeper.start()
    assert_only_the_lasting_live(keeper)


def test_a_snapshot_loaded_after_the_deadlines_revives_nothing(
    make_server: MakeServer, server: Server
) -> None:
    keeper = make_server()
    end = take_brief_locks(keeper)
    keeper.client().save()
    keeper.kill9()
    wait_past_on_this_machine(server, end)
    keeper.start()
    assert_only_the_lasting_live(keeper)


def test_a_log_kept_back_and_loaded_elsewhere_revives_nothing(make_server: MakeServer) -> None:
    source = make_server(**AOF_COMMANDS)
    end = take_brief_locks(source)
    target = Server(name="elsewhere", **AOF_COMMANDS)
    shutil.copytree(aof_directory(source), aof_directory(target))
    wait_past(source.client(), end)
    target.start()
    try:
        assert_only_the_lasting_live(target)
        target.stop()
    finally:
        target.discard()


def test_a_log_replayed_live_after_the_deadlines_revives_nothing(make_server: MakeServer) -> None:
    source, target = make_server(), make_server(slock_allow_apply=True)
    stream = ReplicationStream(source)
    end = take_brief_locks(source)
    commands = stream.commands(keep_select=True)
    wait_past(source.client(), end)
    ReplicationStream.replay(commands, target)
    assert_only_the_lasting_live(target)


def test_a_log_of_a_dead_hold_and_its_successor_gives_the_successor(make_server: MakeServer) -> None:
    keeper = make_server(**AOF_COMMANDS)
    locks = Locks(keeper.client())
    locks.lock("k", "brief", BRIEF)
    wait_past(keeper.client(), now_ms(keeper.client()) + BRIEF)
    fence = locks.lock("k", "successor", LONG)
    before = digest(keeper.client(), "k")
    keeper.restart(kill=True)
    locks = Locks(keeper.client())
    assert locks.check("k", fence) == 1
    assert digest(keeper.client(), "k") == before
