"""MLOCK, MRLOCK, MUNLOCK, MEXTEND and MPTTL: all keys or none, in one step and under one fence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from harness import (
    Events,
    Locks,
    RawConnection,
    ReplicationStream,
    Server,
    aof_commands,
    key_slot,
    lock_state,
    now_ms,
    replica_of,
    wait_past,
    wait_synced,
    wait_until,
)
from harness.many import many
from harness.settings import free_port

HOUR = 3_600_000
TAKE = {"MLOCK": "write", "MRLOCK": "read"}

# What each command is told behind its keys.
REST = {
    "MLOCK": ("me", HOUR),
    "MRLOCK": ("me", HOUR),
    "MUNLOCK": ("me",),
    "MEXTEND": ("me", HOUR),
    "MPTTL": ("me",),
}


@pytest.mark.parametrize("command", TAKE)
def test_all_keys_are_taken_under_one_fence(raw: RawConnection, locks: Locks, command: str) -> None:
    before = locks.lock("before", "me", HOUR)
    fence = raw.ok(*many(command, "a b c", "me", HOUR, "META", "why"))
    assert fence > before
    for key in "abc":
        info = locks.full(key)
        assert (info.mode, info.fence) == (TAKE[command], fence)
        (holder,) = info.holders
        assert (holder.token, holder.fence, holder.meta) == (b"me", fence, b"why")
        assert locks.check(key, fence) == 1
    assert locks.lock("after", "me", HOUR) > fence


def test_1024_keys_may_be_named(raw: RawConnection, client: redis.Redis) -> None:
    keys = [f"key:{number}" for number in range(1024)]
    fence = raw.ok(*many("MLOCK", keys, "me", HOUR))
    assert client.dbsize() == 1024
    assert raw.ok(*many("MEXTEND", keys, "me", HOUR)) == 1
    assert 0 < raw.ok(*many("MPTTL", keys, "me")) <= HOUR
    assert raw.ok("SLOCK.CHECK", keys[-1], fence) == 1
    assert raw.ok(*many("MUNLOCK", keys, "me")) == 1024
    assert client.dbsize() == 0


@pytest.mark.parametrize("taken", "abc")
@pytest.mark.parametrize("command", TAKE)
def test_one_taken_key_refuses_all(
    server: Server, raw: RawConnection, locks: Locks, command: str, taken: str
) -> None:
    locks.lock(taken, "other", HOUR)
    before = lock_state(locks.client, taken)
    events, stream = Events(server), ReplicationStream(server)
    assert raw.ok(*many(command, "a b c", "me", HOUR)) == 0
    assert locks.client.keys() == [taken.encode()]
    assert lock_state(locks.client, taken) == before
    assert events.so_far() == [] and stream.commands() == []
    events.close()
    stream.close()


def test_readers_share_and_writers_do_not(raw: RawConnection, locks: Locks) -> None:
    assert locks.rlock("b", "single", HOUR)
    assert raw.ok(*many("MRLOCK", "a b", "one", HOUR))
    assert raw.ok(*many("MRLOCK", "b c", "two", HOUR))
    assert locks.info("b").readers == 3
    assert raw.ok(*many("MLOCK", "c d", "three", HOUR)) == 0
    assert raw.ok(*many("MLOCK", "d e", "three", HOUR))


def test_a_waiting_request_is_not_overtaken_on_one_of_the_keys(
    server: Server, raw: RawConnection, locks: Locks
) -> None:
    locks.rlock("a", "reader", HOUR)
    with server.raw() as waiting:
        waiting.send("SLOCK.LOCK", "a", "writer", HOUR, "WAIT", 0)
        wait_until(lambda: locks.info("a").waiters == 1, what="the writer to wait")
        assert raw.ok(*many("MRLOCK", "a b", "me", HOUR)) == 0
        assert locks.info("b") is None
        locks.runlock("a", "reader")
        assert waiting.read() > 0


# --- what is refused


def _bad_arguments(command: str) -> dict[str, tuple]:
    rest, name = REST[command], f"SLOCK.{command}"
    bad: dict[str, tuple] = {
        f"numkeys {count}": (name, count, "a", "b", *rest)
        for count in (0, -1, 1025, "x", "", "1.5", " 1", 2**63, 2**64, -(2**63))
    }
    bad |= {f"numkeys {count} of 2": (name, count, "a", "b", *rest) for count in (4, 1024)}
    bad["a key twice"] = many(command, "a b a", *rest)
    bad["an empty token"] = many(command, "a b", "", *rest[1:])
    bad["a long token"] = many(command, "a b", "t" * 256, *rest[1:])
    bad["a word too many"] = many(command, "a b", *rest, "extra")
    if len(rest) > 1:
        bad |= {f"ttl {ttl}": many(command, "a b", "me", ttl) for ttl in (0, -1, "x", 86_400_001, 2**64)}
    if command in TAKE:
        bad["WAIT without a number"] = many(command, "a b", *rest, "WAIT")
        bad["a negative WAIT"] = many(command, "a b", *rest, "WAIT", -1)
        bad["META without data"] = many(command, "a b", *rest, "META")
        bad["a long META"] = many(command, "a b", *rest, "META", "m" * 1025)
        bad["META twice"] = many(command, "a b", *rest, "META", "m", "META", "m")
    else:
        bad["WAIT"] = many(command, "a b", *rest, "WAIT", 0)
        bad["META"] = many(command, "a b", *rest, "META", "m")
    return bad


def test_a_bad_argument_is_an_error_and_changes_nothing(
    server: Server, raw: RawConnection, client: redis.Redis
) -> None:
    raw.ok(*many("MLOCK", "a b", "me", HOUR, "META", "mine"))
    before = [lock_state(client, key) for key in "ab"]
    stream = ReplicationStream(server)
    for command in REST:
        for name, words in _bad_arguments(command).items():
            text = raw.error(*words)
            assert text.startswith("ERR "), f"{command}, {name}: {text}"
            if name.startswith("numkeys") and "of" not in name:
                assert "numkeys" in text and "1024" in text, f"{command}, {name}: {text}"
            if name.startswith("ttl"):
                assert "ttl" in text and "86400000" in text
            if "token" in name:
                assert "token" in text and "255" in text
    assert [lock_state(client, key) for key in "ab"] == before
    assert stream.commands() == []
    stream.close()


@pytest.mark.parametrize("command", REST)
def test_too_few_words_are_the_servers_own_error(raw: RawConnection, command: str) -> None:
    words = many(command, "a", *REST[command])
    for count in range(1, len(words)):
        text = raw.error(*words[:count])
        assert text == f"ERR wrong number of arguments for 'slock.{command.lower()}' command"
    assert not isinstance(raw.call(*words), Exception)


@pytest.mark.parametrize("keys", ["str a b", "a str b", "a b str"])
@pytest.mark.parametrize("command", REST)
def test_a_key_of_another_type_is_an_error_and_changes_nothing(
    raw: RawConnection, client: redis.Redis, command: str, keys: str
) -> None:
    raw.ok(*many("MRLOCK" if command == "MRLOCK" else "MLOCK", "a b", "me", HOUR // 2))
    client.set("str", "text")
    before = [lock_state(client, key) for key in "ab"]
    assert raw.error(*many(command, keys, *REST[command])).startswith("WRONGTYPE ")
    assert [lock_state(client, key) for key in "ab"] == before
    assert client.get("str") == b"text" and client.dbsize() == 3


@pytest.mark.parametrize(("command", "held"), [("MLOCK", "RLOCK"), ("MRLOCK", "LOCK")])
def test_a_key_held_in_the_other_mode_is_an_error(raw: RawConnection, command: str, held: str) -> None:
    raw.ok(f"SLOCK.{held}", "b", "me", HOUR)
    text = raw.error(*many(command, "a b c", "me", HOUR))
    assert text.startswith("WRONGMODE ")
    assert ("UPGRADE" if command == "MLOCK" else "DOWNGRADE") in text
    assert raw.ok("EXISTS", "a", "c") == 0


def test_a_cluster_refuses_keys_of_several_slots_or_of_a_slot_it_lacks(
    make_server: Callable[..., Server],
) -> None:
    server = make_server(cluster_enabled=True, cluster_port=free_port(), cluster_require_full_coverage=False)
    raw = server.raw()
    raw.ok("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
    wait_until(lambda: b"cluster_state:ok" in raw.ok("CLUSTER", "INFO"), what="the cluster to be up")
    here, elsewhere = (
        [tag for tag in "abcdefgh" if (key_slot(server, tag) < 8192) == own] for own in (True, False)
    )
    refused = {"CROSSSLOT ": here[:2], "CLUSTERDOWN ": [f"{{{elsewhere[0]}}}{name}" for name in "xy"]}
    for prefix, keys in refused.items():
        own = raw.error("DEL", *keys)
        assert own.startswith(prefix)
        for command, rest in REST.items():
            assert raw.error(*many(command, keys, *rest)) == own
    assert raw.ok("DBSIZE") == 0
    same = [f"{{{here[0]}}}{name}" for name in "xy"]
    assert raw.ok(*many("MLOCK", same, "me", HOUR))
    assert raw.ok(*many("MUNLOCK", same, "me")) == 2


# --- the same token again


@pytest.mark.parametrize("command", TAKE)
def test_the_same_request_again_refreshes_under_the_same_fence(
    raw: RawConnection, locks: Locks, command: str
) -> None:
    fence = raw.ok(*many(command, "a b", "me", HOUR, "META", "first"))
    assert raw.ok(*many(command, "a b", "me", 2 * HOUR)) == fence
    for key in "ab":
        (holder,) = locks.full(key).holders
        assert (holder.fence, holder.meta) == (fence, b"first") and holder.pttl > HOUR
    assert raw.ok(*many(command, "b a", "me", HOUR, "META", "second")) == fence
    for key in "ab":
        (holder,) = locks.full(key).holders
        assert holder.meta == b"second" and holder.pttl <= HOUR
    assert raw.ok(*many("MUNLOCK", "a b", "me")) == 2, "one release is enough"
    assert locks.client.dbsize() == 0


def test_a_request_that_adds_a_key_gives_all_keys_one_fence(raw: RawConnection, locks: Locks) -> None:
    first = raw.ok(*many("MLOCK", "a b", "me", HOUR))
    fence = raw.ok(*many("MLOCK", "a b c", "me", HOUR))
    assert fence > first
    assert [locks.info(key).fence for key in "abc"] == [fence] * 3


# --- release, extension, time left


def test_a_release_counts_what_was_released_in_either_mode(raw: RawConnection, locks: Locks) -> None:
    locks.lock("written", "me", HOUR)
    locks.rlock("read", "me", HOUR)
    locks.rlock("read", "other", HOUR)
    locks.lock("taken", "other", HOUR)
    assert raw.ok(*many("MUNLOCK", "written read taken free", "me")) == 2
    assert raw.ok(*many("MUNLOCK", "written read taken free", "me")) == 0
    assert locks.info("written") is None
    assert (locks.info("read").readers, locks.info("taken").mode) == (1, "write")


def test_an_extension_reaches_all_keys_or_none(raw: RawConnection, locks: Locks) -> None:
    locks.lock("a", "me", HOUR)
    locks.rlock("b", "me", HOUR)
    assert raw.ok(*many("MEXTEND", "a b", "me", 2 * HOUR)) == 1
    assert HOUR < locks.pttl("a", "me") <= 2 * HOUR
    assert HOUR < locks.pttl("b", "me") <= 2 * HOUR
    locks.lock("c", "other", HOUR)
    before = [lock_state(locks.client, key) for key in "abc"]
    for keys in ("a b c", "c a b", "a free b"):
        assert raw.ok(*many("MEXTEND", keys, "me", 1000)) == 0
    assert [lock_state(locks.client, key) for key in "abc"] == before


def test_a_set_that_has_lost_a_key_by_its_deadline_is_not_extended(raw: RawConnection, locks: Locks) -> None:
    raw.ok(*many("MLOCK", "a b c", "me", HOUR))
    locks.extend("b", "me", 20)
    wait_past(locks.client, now_ms(locks.client) + 25)
    before = [lock_state(locks.client, key) for key in "ac"]
    assert raw.ok(*many("MPTTL", "a b c", "me")) == -2
    assert raw.ok(*many("MEXTEND", "a b c", "me", HOUR)) == 0
    assert [lock_state(locks.client, key) for key in "ac"] == before
    assert raw.ok(*many("MUNLOCK", "a b c", "me")) == 2


def test_the_least_time_left_is_told(raw: RawConnection, locks: Locks) -> None:
    locks.lock("a", "me", HOUR)
    locks.rlock("b", "me", HOUR // 2)
    locks.rlock("b", "other", 1000)
    assert HOUR // 4 < raw.ok(*many("MPTTL", "a b", "me")) <= HOUR // 2
    assert HOUR // 2 < raw.ok(*many("MPTTL", "a", "me")) <= HOUR
    for keys, token in (("a b free", "me"), ("a b", "other"), ("a b", "nobody")):
        assert raw.ok(*many("MPTTL", keys, token)) == -2


# --- what replicas and the log see

STORY = [
    many("MLOCK", "a b c", "me", HOUR, "META", "m"),
    many("MLOCK", "a b c", "me", HOUR),
    many("MEXTEND", "c b a", "me", HOUR),
    many("MUNLOCK", "a b c", "me"),
    many("MRLOCK", "a b c", "me", HOUR),
]


def test_the_effects_of_one_command_are_one_unit_everywhere(make_server: Callable[..., Server]) -> None:
    primary, replica = make_server(appendonly=True), make_server()
    replica_of(replica, primary)
    raw, stream = primary.raw(), ReplicationStream(primary)
    for command in STORY:
        raw.ok(*command)
        (unit,) = stream.units()
        assert sorted(effect[1] for effect in unit) == [b"a", b"b", b"c"], unit
        assert {effect[0].upper() for effect in unit} == {b"SLOCK.APPLY"}
    logged = [command[0].upper() for command in aof_commands(primary)]
    unit = [b"MULTI", *[b"SLOCK.APPLY"] * 3, b"EXEC"]
    assert [name for name in logged if name != b"SELECT"] == unit * len(STORY)
    wait_synced(primary, replica)
    before = [lock_state(primary.client(), key) for key in "abc"]
    assert [lock_state(replica.client(), key) for key in "abc"] == before
    primary.restart()
    assert [lock_state(primary.client(), key) for key in "abc"] == before


def test_a_transaction_of_the_client_stays_one_unit(server: Server, raw: RawConnection) -> None:
    stream = ReplicationStream(server)
    raw.pipeline([("MULTI",), *STORY, ("SET", "x", 1), ("EXEC",)])
    (unit,) = stream.units()
    assert len(unit) == 3 * len(STORY) + 1
    stream.close()
