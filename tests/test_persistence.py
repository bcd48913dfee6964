"""A lock comes back from disk as it was, by every road, and a dead one stays dead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import Locks, MakeServer, Server, aof_commands, lock_state, rewrite_aof
from harness.replication import ReplicationStream
from harness.samples import HISTORY_KEY, release_samples, sample_states, take_samples
from harness.wait import now_ms, wait_past, wait_until

LONG = 60_000

# Long enough to be stored, short enough to be waited for.
BRIEF = 150

RDB: dict[str, object] = {}
AOF_PREAMBLE = {"appendonly": True, "appendfsync": "always", "aof_use_rdb_preamble": True}
AOF_COMMANDS = {"appendonly": True, "appendfsync": "always", "aof_use_rdb_preamble": False}
each_log = pytest.mark.parametrize("settings", [AOF_PREAMBLE, AOF_COMMANDS], ids=["preamble", "no preamble"])


def _bgsave(server: Server) -> None:
    client = server.client()
    client.bgsave()
    wait_until(lambda: not client.info("persistence")["rdb_bgsave_in_progress"], what="BGSAVE")


STEPS: dict[str, Callable[[Server], object]] = {
    "save": lambda server: server.client().save(),
    "bgsave": _bgsave,
    "restart": lambda server: server.restart(),
    "crash": lambda server: server.restart(kill=True),
    "save at shutdown": lambda server: server.restart(save=True),
    "reload": lambda server: server.client().execute_command("DEBUG", "RELOAD"),
    "load the log": lambda server: server.client().execute_command("DEBUG", "LOADAOF"),
    "rewrite": rewrite_aof,
}
OF_LOG = "restart, crash, load the log, rewrite, restart, rewrite, crash, load the log"
ROADS = {
    "RDB": (RDB, "save, restart, bgsave, crash, save at shutdown, reload"),
    "AOF with preamble": (AOF_PREAMBLE, OF_LOG),
    "AOF without preamble": (AOF_COMMANDS, OF_LOG),
}


@pytest.mark.parametrize("road", ROADS)
def test_locks_are_the_same_afterwards(make_server: MakeServer, road: str) -> None:
    settings, steps = ROADS[road]
    server = make_server(**settings)
    before = take_samples(server)
    for number, step in enumerate(steps.split(", ")):
        STEPS[step](server)
        assert sample_states(server) == before, step
        if settings is not RDB:
            # What is changed after a rewrite is on top of it.
            locks = Locks(server.client())
            assert locks.extend(HISTORY_KEY, b"stays", 800_000 + number) == 1
            assert locks.rlock(HISTORY_KEY, b"%d" % number, 700_000, meta="later")
            assert locks.runlock(HISTORY_KEY, b"%d" % (number - 1)) == (number > 0)
            before = sample_states(server)
    release_samples(server)


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
    for more in ({"MULTI", "EXEC", "DEL", "UNLINK"}, set()):
        commands = aof_commands(server)
        names = {command[0].upper().decode() for command in commands}
        assert "SLOCK.APPLY" in names and names <= known | more
        rewrite_aof(server)
    fences = [command for command in commands if command[2:] and command[2].startswith(b"FENCE")]
    assert len(fences) == 1, "the last fence stands in a rewritten log once"


@each_log
def test_the_expiry_that_a_user_gave_is_rewritten(
    make_server: MakeServer, settings: dict[str, object]
) -> None:
    """With readers that have expired, more than the last change has dropped: the bytes stay as they are."""
    server = make_server(**settings)
    client = server.client()
    pipe = client.pipeline(transaction=False)
    for number in range(3000):
        ttl = LONG + number if number < 1000 else BRIEF
        pipe.execute_command("SLOCK.RLOCK", "long", b"\xff%d" % number, ttl, "META", f"m{number}")
    pipe.execute()
    wait_past(client, now_ms(client) + BRIEF)
    assert Locks(client).rlock("long", "late", LONG)
    for key in ("persisted", "longer"):
        Locks(client).lock(key, "a", LONG)
    client.persist("persisted")
    client.pexpire("longer", 10 * LONG)
    before = {key: lock_state(client, key) for key in ("long", "persisted", "longer")}
    assert before["persisted"].latest_deadline_ms == -1
    rewrite_aof(server)
    server.restart()
    assert {key: lock_state(server.client(), key) for key in before} == before


def test_applying_a_log_twice_is_applying_it_once(make_server: MakeServer) -> None:
    source, target = make_server(), make_server(slock_allow_apply=True)
    stream = ReplicationStream(source)
    before = take_samples(source)
    commands = stream.commands(keep_select=True)
    once = (b"MULTI", b"EXEC", b"SELECT")
    each_twice = [same for one in commands for same in [one] * (1 if one[0].upper() in once else 2)]
    for sent in (commands, commands, each_twice, [[b"FLUSHALL"], *each_twice]):
        ReplicationStream.replay(sent, target)
        assert sample_states(target) == before


# --- what died stays dead


@pytest.mark.parametrize("road", ROADS)
def test_what_is_loaded_late_revives_nothing(make_server: MakeServer, server: Server, road: str) -> None:
    """From its file, and its log replayed to a server that runs."""
    keeper, replaying = make_server(**ROADS[road][0]), make_server(slock_allow_apply=True)
    stream, client, locks = ReplicationStream(keeper), keeper.client(), Locks(keeper.client())
    locks.lock("writer", "brief", BRIEF)
    locks.rlock("mixed", "brief", BRIEF, meta="m")
    locks.rlock("mixed", "lasting", LONG, meta="m")
    locks.lock("shortened", "brief", LONG)
    locks.extend("shortened", "brief", BRIEF)
    locks.rlock("upgraded", "brief", BRIEF // 2)
    locks.upgrade("upgraded", "brief", BRIEF)
    locks.lock("persisted", "brief", BRIEF)
    client.persist("persisted")
    end = now_ms(client) + BRIEF
    commands = stream.commands(keep_select=True)
    STEPS["save" if road == "RDB" else "rewrite"](keeper)
    keeper.kill9()
    wait_past(server.client(), end)  # the clock of a server that runs
    keeper.start()
    ReplicationStream.replay(commands, replaying)
    for loaded in (keeper, replaying):
        locks = Locks(loaded.client())
        for key in ("writer", "shortened", "upgraded", "persisted"):
            assert locks.full(key) is None and locks.pttl(key, "brief") == -2, f"{key} was revived"
            assert locks.unlock(key, "brief") == locks.runlock(key, "brief") == 0
            assert locks.lock(key, "successor", LONG)
        assert [one.token for one in locks.full("mixed").holders] == [b"lasting"]
        assert locks.runlock("mixed", "brief") == 0 and locks.runlock("mixed", "lasting") == 1
