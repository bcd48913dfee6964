"""Changing the mode in one step: UPGRADE and DOWNGRADE, without waiting."""

from __future__ import annotations

import pytest
import redis

from harness import Locks, RawConnection, digest, wait_past

SHORT = 60
LONG = 60_000


def test_the_only_reader_becomes_the_writer_with_a_new_fence(locks: Locks) -> None:
    read = locks.rlock("k", "a", LONG, meta="m")
    write = locks.upgrade("k", "a", 10 * LONG)
    assert write > read
    assert (locks.check("k", read), locks.check("k", write)) == (0, 1)
    info = locks.full("k")
    assert (info.mode, info.readers, info.fence) == ("write", 0, write)
    assert [(h.token, h.fence, h.meta) for h in info.holders] == [(b"a", write, b"m")]
    assert locks.pttl("k", "a") > LONG
    assert locks.rlock("k", "b", LONG) == 0
    assert locks.unlock("k", "a") == 1


def test_an_upgrade_is_refused_while_other_readers_remain(client: redis.Redis, locks: Locks) -> None:
    fence = locks.rlock("k", "a", LONG)
    locks.rlock("k", "b", LONG)
    before = digest(client, "k")
    assert locks.upgrade("k", "a", 10 * LONG) == 0
    assert digest(client, "k") == before
    assert locks.check("k", fence) == 1
    locks.runlock("k", "b")
    assert locks.upgrade("k", "a", LONG) > fence


def test_an_expired_reader_does_not_hinder_an_upgrade(client: redis.Redis, locks: Locks) -> None:
    locks.rlock("k", "brief", SHORT)
    end = client.pexpiretime("k")
    locks.rlock("k", "a", LONG)
    wait_past(client, end)
    assert locks.upgrade("k", "a", LONG)


def test_the_writer_becomes_a_reader_with_a_new_fence(locks: Locks) -> None:
    write = locks.lock("k", "a", LONG, meta="m")
    read = locks.downgrade("k", "a", LONG // 2)
    assert read > write
    assert (locks.check("k", write), locks.check("k", read)) == (0, 1)
    info = locks.full("k")
    assert (info.mode, info.readers) == ("read", 1)
    assert [(h.token, h.fence, h.meta) for h in info.holders] == [(b"a", read, b"m")]
    assert locks.pttl("k", "a") <= LONG // 2
    assert locks.lock("k", "w", LONG) == 0
    assert locks.rlock("k", "b", LONG) > read
    assert locks.runlock("k", "a") == 1


@pytest.mark.parametrize(
    ("take", "change"), [("SLOCK.LOCK", "SLOCK.UPGRADE"), ("SLOCK.RLOCK", "SLOCK.DOWNGRADE")]
)
def test_changing_to_the_mode_one_has_is_a_refresh(
    client: redis.Redis, locks: Locks, take: str, change: str
) -> None:
    fence = client.execute_command(take, "k", "a", LONG, "META", "m")
    assert client.execute_command(change, "k", "a", 10 * LONG) == fence
    assert locks.pttl("k", "a") > LONG
    assert locks.full("k").holders[0].meta == b"m"
    assert client.execute_command(change, "k", "a", 5000) == fence
    assert locks.pttl("k", "a") <= 5000


def test_a_downgrade_among_readers_is_a_refresh_of_one(locks: Locks) -> None:
    fence = locks.rlock("k", "a", LONG)
    locks.rlock("k", "b", LONG)
    assert locks.downgrade("k", "a", 10 * LONG) == fence
    assert locks.pttl("k", "a") > LONG
    assert locks.pttl("k", "b") <= LONG


@pytest.mark.parametrize("command", ["SLOCK.UPGRADE", "SLOCK.DOWNGRADE"])
def test_who_holds_nothing_cannot_change_a_mode(
    client: redis.Redis, locks: Locks, raw: RawConnection, command: str
) -> None:
    assert raw.error(command, "free", "a", LONG).startswith("NOTHELD ")
    assert client.exists("free") == 0
    locks.rlock("r", "other", LONG)
    locks.lock("w", "other", LONG)
    for key in "rw":
        before = digest(client, key)
        assert raw.error(command, key, "a", LONG).startswith("NOTHELD ")
        assert digest(client, key) == before
    locks.rlock("k", "a", SHORT)
    end = client.pexpiretime("k")
    locks.rlock("k", "b", LONG)
    wait_past(client, end)
    assert raw.error(command, "k", "a", LONG).startswith("NOTHELD ")


def test_the_deadline_of_an_upgraded_hold_is_that_of_the_upgrade(client: redis.Redis, locks: Locks) -> None:
    locks.rlock("k", "a", LONG)
    assert locks.upgrade("k", "a", SHORT)
    wait_past(client, client.pexpiretime("k"))
    assert locks.lock("k", "b", LONG)
