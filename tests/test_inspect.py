"""Looking at a lock: PTTL, CHECK and INFO."""

from __future__ import annotations

import pytest
import redis

from harness import Locks, RawConnection, Server, digest, now_ms, wait_past, wait_until
from harness.locks import as_dict

SHORT = 60
LONG = 60_000


# --- PTTL and CHECK


def test_pttl_is_what_is_left_to_this_holder(locks: Locks) -> None:
    locks.rlock("k", "a", LONG)
    locks.rlock("k", "b", 2 * LONG)
    assert LONG - 5000 < locks.pttl("k", "a") <= LONG < locks.pttl("k", "b") <= 2 * LONG


def test_pttl_counts_down(locks: Locks) -> None:
    locks.lock("k", "a", LONG)
    first = locks.pttl("k", "a")
    wait_until(lambda: locks.pttl("k", "a") < first, what="PTTL to fall")


def test_pttl_of_a_stranger_is_minus_two(locks: Locks) -> None:
    assert locks.pttl("k", "a") == -2
    locks.lock("k", "a", LONG)
    assert locks.pttl("k", "b") == -2


@pytest.mark.parametrize("command", ["SLOCK.LOCK", "SLOCK.RLOCK"])
def test_check_knows_the_fences_of_live_holders(client: redis.Redis, locks: Locks, command: str) -> None:
    fence = client.execute_command(command, "k", "a", LONG)
    assert locks.check("k", fence) == 1
    for wrong in (fence - 1, fence + 1, 1, 2**63 - 1):
        assert locks.check("k", wrong) == 0
    assert locks.check("elsewhere", fence) == 0


def test_check_of_a_reader_among_others(locks: Locks) -> None:
    first, second = locks.rlock("k", "a", LONG), locks.rlock("k", "b", LONG)
    assert locks.check("k", first) == locks.check("k", second) == 1
    locks.runlock("k", "a")
    assert (locks.check("k", first), locks.check("k", second)) == (0, 1)


def test_check_of_a_released_hold_is_zero_even_when_its_owner_holds_again(locks: Locks) -> None:
    old = locks.lock("k", "a", LONG)
    locks.unlock("k", "a")
    new = locks.lock("k", "a", LONG)
    assert (locks.check("k", old), locks.check("k", new)) == (0, 1)


# --- INFO


def test_info_of_a_free_lock_is_null(raw: RawConnection) -> None:
    assert raw.ok("SLOCK.INFO", "k") is None
    assert raw.ok("SLOCK.INFO", "k", "FULL") is None
    assert raw.ok("SLOCK.INFO", "k", "FULL", "COUNT", 5) is None
    raw.hello(3)
    assert raw.ok("SLOCK.INFO", "k") is None


def test_info_of_a_writer(locks: Locks) -> None:
    fence = locks.lock("k", "a", LONG)
    info = locks.info("k")
    assert (info.mode, info.readers, info.waiters, info.fence) == ("write", 0, 0, fence)
    assert 0 < info.pttl <= LONG
    assert info.holders is None and info.queue is None


def test_info_of_readers_gives_the_highest_fence_and_the_last_deadline(locks: Locks) -> None:
    locks.rlock("k", "a", 2 * LONG)
    fence = locks.rlock("k", "b", LONG)
    info = locks.info("k")
    assert (info.mode, info.readers, info.waiters, info.fence) == ("read", 2, 0, fence)
    assert LONG < info.pttl <= 2 * LONG


def test_info_counts_only_live_holders(client: redis.Redis, locks: Locks) -> None:
    staying = locks.rlock("k", "staying", LONG)
    locks.rlock("k", "brief", SHORT)
    wait_past(client, now_ms(client) + SHORT + 20)
    info = locks.full("k")
    assert (info.readers, info.fence) == (1, staying)
    assert [holder.token for holder in info.holders] == [b"staying"]


def test_info_full_tells_everything_of_each_holder(locks: Locks) -> None:
    metas = {b"a": b"", b"\x00\xff\r\n": b"host=\x00 pid=1", b"c": b"m" * 1024}
    fences = {token: locks.rlock("k", token, LONG, meta=meta or None) for token, meta in metas.items()}
    wait_until(lambda: all(h.held_ms >= 5 for h in locks.full("k").holders), what="5 ms of holding")
    info = locks.full("k")
    assert {h.token: h.meta for h in info.holders} == metas
    assert {h.token: h.fence for h in info.holders} == fences
    assert all(0 < h.pttl <= LONG and 5 <= h.held_ms < LONG for h in info.holders)
    assert info.queue == ()


@pytest.mark.parametrize("count", [1, 2, 100, 0, None])
def test_info_full_gives_count_holders_of_all(locks: Locks, count: int | None) -> None:
    for number in range(150):
        locks.rlock("k", f"t{number}", LONG)
    everybody = locks.full("k", 0)
    assert everybody.readers == len({h.token for h in everybody.holders}) == 150
    some = locks.full("k", count)
    expected = {None: 100, 0: 150}.get(count, count)
    assert [h.token for h in some.holders] == [h.token for h in everybody.holders][:expected]
    assert some.readers == 150 and some.fence == everybody.fence


def test_info_is_a_flat_array_in_resp2_and_a_map_in_resp3(server: Server) -> None:
    old, new = server.raw(), server.raw(protocol=3)
    old.ok("SLOCK.RLOCK", "k", "a", LONG, "META", "m")
    for full in ((), ("FULL",)):
        array, mapping = old.ok("SLOCK.INFO", "k", *full), new.ok("SLOCK.INFO", "k", *full)
        assert isinstance(array, list) and isinstance(mapping, dict)
        assert array[::2] == list(mapping)
    fields = [b"mode", b"readers", b"waiters", b"fence", b"pttl", b"holders", b"queue"]
    assert sorted(mapping) == sorted(fields)
    (holder,) = mapping[b"holders"]
    assert isinstance(holder, dict)
    assert sorted(holder) == sorted([b"token", b"fence", b"pttl", b"held-ms", b"meta"])
    (flat,) = array[array.index(b"holders") + 1]
    assert isinstance(flat, list) and as_dict(flat).keys() == as_dict(holder).keys()
    assert (holder[b"token"], holder[b"meta"]) == (b"a", b"m")
    assert isinstance(holder[b"fence"], int) and isinstance(holder[b"held-ms"], int)


# --- reading changes nothing


def test_reading_changes_nothing_and_is_allowed_while_writes_are_paused(server: Server) -> None:
    client = server.client()
    locks = Locks(client)
    fence = locks.rlock("k", "a", LONG)
    locks.rlock("k", "b", LONG)
    before = digest(client, "k"), client.pexpiretime("k")
    client.execute_command("CLIENT", "PAUSE", LONG, "WRITE")
    try:
        reader = server.raw()
        assert reader.ok("SLOCK.PTTL", "k", "a") > 0
        assert reader.ok("SLOCK.CHECK", "k", fence) == 1
        assert reader.ok("SLOCK.INFO", "k", "FULL")
    finally:
        client.execute_command("CLIENT", "UNPAUSE")
    assert (digest(client, "k"), client.pexpiretime("k")) == before


@pytest.mark.parametrize("command", ["SLOCK.PTTL", "SLOCK.CHECK", "SLOCK.INFO"])
def test_what_only_looks_is_flagged_readonly(client: redis.Redis, command: str) -> None:
    flags = client.execute_command("COMMAND", "INFO", command)[command.lower()]["flags"]
    assert "readonly" in flags and "write" not in flags
