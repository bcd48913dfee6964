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
from harness.samples import HISTORY_KEY, release_samples, sample_states, take_samples

MakeServer = Callable[..., Server]

LONG = 60_000

# Long enough to be stored, short enough to be waited for.
BRIEF = 150

RDB: dict[str, object] = {}
AOF_PREAMBLE = {"appendonly": True, "appendfsync": "always", "aof_use_rdb_preamble": True}
AOF_COMMANDS = {"appendonly": True, "appendfsync": "always", "aof_use_rdb_preamble": False}
each_log = pytest.mark.parametrize("settings", [AOF_PREAMBLE, AOF_COMMANDS], ids=["preamble", "no preamble"])


def _save(server: Server) -> None:
    server.client().save()


def _bgsave(server: Server) -> None:
    client = server.client()
    client.bgsave()
    wait_until(lambda: not client.info("persistence")["rdb_bgsave_in_progress"], what="BGSAVE")


def _restart(server: Server) -> None:
    server.restart()


def _crash(server: Server) -> None:
    server.restart(kill=True)


def _save_on_shutdown(server: Server) -> None:
    server.restart(save=True)


def _reload(server: Server) -> None:
    server.client().execute_command("DEBUG", "RELOAD")


def _load_aof(server: Server) -> None:
    server.client().execute_command("DEBUG", "LOADAOF")


LOG = [_restart, _crash, _load_aof, rewrite_aof, _restart, rewrite_aof, _crash, _load_aof]
ROADS = {
    "RDB": (RDB, [_save, _restart, _bgsave, _crash, _save_on_shutdown, _reload]),
    "AOF with preamble": (AOF_PREAMBLE, LOG),
    "AOF without preamble": (AOF_COMMANDS, LOG),
}


@pytest.mark.parametrize("road", ROADS)
def test_locks_are_the_same_afterwards_and_their_owners_release_them(
    make_server: MakeServer, road: str
) -> None:
    settings, steps = ROADS[road]
    server = make_server(**settings)
    before = take_samples(server)
    for number, step in enumerate(steps):
        step(server)
        assert sample_states(server) == before, step
        if settings is not RDB:
            # What is changed after a rewrite is on top of it.
            locks = Locks(server.client())
            assert locks.extend(HISTORY_KEY, b"stays", 800_000 + number) == 1
            assert locks.rlock(HISTORY_KEY, b"%d" % number, 700_000, meta="later")
            assert locks.runlock(HISTORY_KEY, b"%d" % (number - 1)) == (number > 0)
            before = sample_states(server)
    release_samples(server)


@each_log
def test_a_lock_with_very_many_readers_survives_a_rewrite(
    make_server: MakeServer, settings: dict[str, object]
) -> None:
    """With some that have expired, more than the last change has dropped: the bytes stay as they are."""
    server = make_server(**settings)
    client = server.client()
    pipe = client.pipeline(transaction=False)
    for number in range(3000):
        ttl = LONG + number if number < 1000 else BRIEF
        pipe.execute_command("SLOCK.RLOCK", "k", b"\xff%d" % number, ttl, "META", f"m{number}")
    pipe.execute()
    wait_past(client, now_ms(client) + BRIEF)
    assert Locks(client).rlock("k", "late", LONG)
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


def test_the_log_holds_effects_and_no_request(make_server: MakeServer) -> None:
    server = make_server(**AOF_COMMANDS)
    take_samples(server)
    known = {"SELECT", "SLOCK.APPLY", "PEXPIREAT"}
    for more in ({"MULTI", "EXEC", "DEL", "UNLINK"}, {"PERSIST"}):
        names = {command[0].upper().decode() for command in aof_commands(server)}
        assert "SLOCK.APPLY" in names and names <= known | more
        rewrite_aof(server)


@each_log
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
    rewrite_aof(server)
    server.restart()
    client = server.client()
    assert {key: (digest(client, key), client.pexpiretime(key)) for key in client.keys("*")} == before


def test_applying_a_log_twice_is_applying_it_once(make_server: MakeServer) -> None:
    source, target = make_server(), make_server(slock_allow_apply=True)
    stream = ReplicationStream(source)
    before = take_samples(source)
    commands = stream.commands(keep_select=True)
    once = (b"MULTI", b"EXEC", b"SELECT")
    each_twice = [same for one in commands for same in [one] * (1 if one[0].upper() in once else 2)]
    for sent in (commands, commands, each_twice):
        ReplicationStream.replay(sent, target)
        assert sample_states(target) == before
    target.client().flushall()
    ReplicationStream.replay(each_twice, target)
    assert sample_states(target) == before


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
    dead = ("writer", "readers", "refreshed", "upgraded", "persisted")
    for key in dead:
        assert locks.full(key) is None, f"{key} was revived"
        assert locks.pttl(key, "brief") == -2
        assert locks.unlock(key, "brief") == locks.runlock(key, "brief") == 0
    assert client.exists("writer", "readers", "refreshed", "upgraded") == 0
    info = locks.full("mixed")
    assert (info.readers, [h.token for h in info.holders]) == (1, [b"lasting"])
    assert locks.runlock("mixed", "brief") == 0
    assert all(locks.lock(key, "successor", LONG) for key in dead)
    assert locks.runlock("mixed", "lasting") == 1
    assert client.exists("mixed") == 0


@pytest.mark.parametrize(
    ("settings", "persist"),
    [
        (RDB, _save),
        (AOF_PREAMBLE, None),
        (AOF_PREAMBLE, rewrite_aof),
        (AOF_COMMANDS, None),
        (AOF_COMMANDS, rewrite_aof),
    ],
    ids=["RDB", "preamble", "preamble, rewritten", "no preamble", "no preamble, rewritten"],
)
def test_what_is_loaded_after_the_deadlines_revives_nothing(
    make_server: MakeServer,
    server: Server,
    settings: dict[str, object],
    persist: Callable[[Server], None] | None,
) -> None:
    keeper = make_server(**settings)
    end = take_brief_locks(keeper)
    if persist:
        persist(keeper)
    keeper.kill9()
    wait_past(server.client(), end)  # the clock of a server that runs
    keeper.start()
    assert_only_the_lasting_live(keeper)


def test_a_log_used_elsewhere_after_the_deadlines_revives_nothing(make_server: MakeServer) -> None:
    """Loaded from its files, and replayed to a server that runs."""
    source, loading, replaying = (
        make_server(**AOF_COMMANDS),
        make_server(),
        make_server(slock_allow_apply=True),
    )
    stream = ReplicationStream(source)
    end = take_brief_locks(source)
    commands = stream.commands(keep_select=True)
    loading.stop()
    shutil.copytree(aof_directory(source), aof_directory(loading))
    wait_past(source.client(), end)
    loading.configure(**AOF_COMMANDS)
    assert_only_the_lasting_live(loading.start())
    ReplicationStream.replay(commands, replaying)
    assert_only_the_lasting_live(replaying)
