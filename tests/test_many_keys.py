"""MLOCK, MRLOCK, MUNLOCK, MEXTEND and MPTTL: all keys or none, in one step and under one fence.

The rules are proved in the core. What is wrong with other arguments than the keys: tests/test_arguments.py.
"""

from __future__ import annotations

import pytest
import redis

from harness import Events, Locks, RawConnection, Server, lock_state
from harness.many import many
from harness.replication import ReplicationStream
from harness.wait import now_ms, wait_past
from harness.waiting import HOUR

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
def test_all_keys_are_taken_and_released_together(raw: RawConnection, locks: Locks, command: str) -> None:
    before = locks.lock("before", "me", HOUR)
    fence = raw.ok(*many(command, "a b c", "me", HOUR, "META", "why"))
    assert fence > before
    assert raw.ok(*many(command, "c b a", "me", 2 * HOUR)) == fence, "the same request again"
    for key in "abc":
        info = locks.full(key)
        assert (info.mode, info.fence) == (TAKE[command], fence)
        (holder,) = info.holders
        assert (holder.token, holder.fence, holder.meta) == (b"me", fence, b"why") and holder.pttl > HOUR
        assert locks.check(key, fence) == 1
    grown = raw.ok(*many(command, "a b c d", "me", HOUR, "META", "other"))
    assert grown > fence and [locks.info(key).fence for key in "abcd"] == [grown] * 4
    assert [locks.full(key).holders[0].meta for key in "abcd"] == [b"other"] * 4
    assert raw.ok(*many("MUNLOCK", "a b c d", "me")) == 4, "one release is enough"
    assert locks.client.keys() == [b"before"]


# --- what is refused


def test_a_bad_argument_changes_nothing(server: Server, raw: RawConnection, client: redis.Redis) -> None:
    raw.ok(*many("MLOCK", "a b", "me", HOUR, "META", "mine"))
    before = [lock_state(client, key) for key in "ab"]
    stream = ReplicationStream(server)
    for command, rest in REST.items():
        for count in (0, -1, 1025, "x", "", "1.5", 2**64):
            text = raw.error(f"SLOCK.{command}", count, "a", "b", *rest)
            assert text.startswith("ERR ") and "numkeys" in text and "1024" in text, (command, count, text)
        for count in (4, 1024):
            assert raw.error(f"SLOCK.{command}", count, "a", "b", *rest).startswith("ERR "), (command, count)
        assert raw.error(*many(command, "a b a", *rest)).startswith("ERR "), f"{command}: a key twice"
    assert [lock_state(client, key) for key in "ab"] == before
    assert stream.commands() == []


@pytest.mark.parametrize("command", REST)
def test_one_key_refuses_all(server: Server, raw: RawConnection, locks: Locks, command: str) -> None:
    """It has another type, or the other mode, or it is another's."""
    raw.ok("SLOCK.RLOCK" if command == "MLOCK" else "SLOCK.LOCK", "mode", "me", HOUR)
    raw.ok(*many("MRLOCK" if command == "MRLOCK" else "MLOCK", "a b", "me", HOUR // 2))
    raw.ok("SLOCK.LOCK", "taken", "other", HOUR)
    locks.client.set("text", "string")
    keys = ("a", "b", "mode", "taken")
    before = [lock_state(locks.client, key) for key in keys]
    events, stream = Events(server), ReplicationStream(server)
    for names in ("text a b", "a b text"):
        assert raw.error(*many(command, names, *REST[command])).startswith("WRONGTYPE ")
    if command in TAKE:
        text = raw.error(*many(command, "free a mode b", "me", HOUR))
        assert text.startswith("WRONGMODE ") and ("UPGRADE" if command == "MLOCK" else "DOWNGRADE") in text
        for names in ("taken free a", "a free taken"):
            assert raw.ok(*many(command, names, "me", HOUR)) == 0
    assert [lock_state(locks.client, key) for key in keys] == before
    assert sorted(locks.client.keys()) == [b"a", b"b", b"mode", b"taken", b"text"]
    assert events.so_far() == [] and stream.commands() == []


# --- extension, time left


def test_an_extension_reaches_all_keys_or_none(raw: RawConnection, locks: Locks) -> None:
    locks.lock("a", "me", HOUR)
    locks.rlock("b", "me", HOUR // 2)
    locks.rlock("b", "other", 1000)
    assert HOUR // 4 < raw.ok(*many("MPTTL", "a b", "me")) <= HOUR // 2
    assert raw.ok(*many("MEXTEND", "a b", "me", 2 * HOUR)) == 1
    assert HOUR < raw.ok(*many("MPTTL", "a b", "me")) <= 2 * HOUR
    locks.lock("c", "other", HOUR)
    locks.lock("d", "me", 1)
    wait_past(locks.client, now_ms(locks.client) + 1)
    before = [lock_state(locks.client, key) for key in "abc"]
    for keys, token in (("a b c", "me"), ("a free b", "me"), ("a b d", "me"), ("a b", "other")):
        assert raw.ok(*many("MPTTL", keys, token)) == -2 and raw.ok(*many("MEXTEND", keys, token, 1000)) == 0
    assert [lock_state(locks.client, key) for key in "abc"] == before


# --- what replicas and the log see


def test_the_effects_of_one_command_are_one_unit(server: Server, raw: RawConnection) -> None:
    stream = ReplicationStream(server)
    for command in (
        many("MLOCK", "a b c", "me", HOUR, "META", "m"),
        many("MLOCK", "a b c", "me", 2 * HOUR),
        many("MEXTEND", "c b a", "me", HOUR),
        many("MUNLOCK", "a b c", "me"),
        many("MRLOCK", "a b c", "me", HOUR),
    ):
        raw.ok(*command)
        (unit,) = stream.units()
        assert sorted(effect[1] for effect in unit) == [b"a", b"b", b"c"], unit
        name = b"DEL" if command[0] == "SLOCK.MUNLOCK" else b"SLOCK.APPLY"
        assert [effect[0] for effect in unit] == [name] * 3, unit
