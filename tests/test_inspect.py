"""Looking at a lock: PTTL, CHECK and INFO."""

from __future__ import annotations

from harness import Locks, Server, digest, wait_until
from harness.locks import as_dict

LONG = 60_000


def test_pttl_and_check_are_of_this_holder(locks: Locks) -> None:
    first, second = locks.rlock("k", "a", LONG), locks.rlock("k", "b", 2 * LONG)
    left = locks.pttl("k", "a")
    assert LONG - 5000 < left <= LONG < locks.pttl("k", "b") <= 2 * LONG
    wait_until(lambda: locks.pttl("k", "a") < left, what="PTTL to fall")
    assert locks.check("k", first) == locks.check("k", second) == 1
    for wrong in (first - 1, second + 1, 1):
        assert locks.check("k", wrong) == locks.check("elsewhere", first) == 0
    locks.runlock("k", "a")
    again = locks.rlock("k", "a", LONG)
    assert [locks.check("k", fence) for fence in (first, second, again)] == [0, 1, 1]


def test_info_of_a_writer_and_of_readers(locks: Locks) -> None:
    fence = locks.lock("w", "a", LONG)
    info = locks.info("w")
    assert (info.mode, info.readers, info.waiters, info.fence) == ("write", 0, 0, fence)
    assert 0 < info.pttl <= LONG
    assert info.holders is None and info.queue is None
    locks.rlock("r", "a", 2 * LONG)
    fence = locks.rlock("r", "b", LONG)
    info = locks.info("r")
    assert (info.mode, info.readers, info.waiters, info.fence) == ("read", 2, 0, fence)
    assert LONG < info.pttl <= 2 * LONG, "the last deadline"


def test_info_full_has_everything_of_each_holder(locks: Locks) -> None:
    metas = {b"a": b"", b"\x00\xff\r\n": b"host=\x00 pid=1", b"c": b"m" * 1024}
    fences = {token: locks.rlock("k", token, LONG, meta=meta or None) for token, meta in metas.items()}
    wait_until(lambda: all(h.held_ms >= 5 for h in locks.full("k").holders), what="5 ms of holding")
    info = locks.full("k")
    assert {h.token: (h.meta, h.fence) for h in info.holders} == {t: (metas[t], fences[t]) for t in metas}
    assert all(0 < h.pttl <= LONG and 5 <= h.held_ms < LONG for h in info.holders)
    assert info.queue == ()


def test_info_full_gives_count_holders_of_all(locks: Locks) -> None:
    for number in range(150):
        locks.rlock("k", f"t{number}", LONG)
    everybody = locks.full("k", 0)
    assert everybody.readers == len({h.token for h in everybody.holders}) == 150
    for count, expected in {1: 1, 100: 100, 1000: 150, None: 100}.items():
        some = locks.full("k", count)
        assert [h.token for h in some.holders] == [h.token for h in everybody.holders][:expected]
        assert some.readers == 150 and some.fence == everybody.fence


def test_info_is_a_flat_array_in_resp2_and_a_map_in_resp3(server: Server) -> None:
    old, new = server.raw(), server.raw(protocol=3)
    assert new.ok("SLOCK.INFO", "k") is None is old.ok("SLOCK.INFO", "k", "FULL")
    old.ok("SLOCK.RLOCK", "k", "a", LONG, "META", "m")
    for full in ((), ("FULL",)):
        array, mapping = old.ok("SLOCK.INFO", "k", *full), new.ok("SLOCK.INFO", "k", *full)
        assert isinstance(array, list) and isinstance(mapping, dict)
        assert array[::2] == list(mapping)
    fields = {b"mode", b"readers", b"waiters", b"fence", b"pttl", b"holders", b"queue"}
    assert mapping.keys() == fields
    (holder,) = mapping[b"holders"]
    assert isinstance(holder, dict)
    assert holder.keys() == {b"token", b"fence", b"pttl", b"held-ms", b"meta"}
    (flat,) = array[array.index(b"holders") + 1]
    assert isinstance(flat, list) and as_dict(flat).keys() == as_dict(holder).keys()
    assert (holder[b"token"], holder[b"meta"]) == (b"a", b"m")
    assert isinstance(holder[b"fence"], int) and isinstance(holder[b"held-ms"], int)


def test_looking_is_allowed_while_writes_are_paused_and_changes_nothing(server: Server) -> None:
    client = server.client()
    fence = Locks(client).rlock("k", "a", LONG)
    before = digest(client, "k"), client.pexpiretime("k")
    client.execute_command("CLIENT", "PAUSE", LONG, "WRITE")
    try:
        reader = server.raw()
        assert reader.ok("SLOCK.PTTL", "k", "a") > 0
        assert reader.ok("SLOCK.MPTTL", 1, "k", "a") > 0
        assert reader.ok("SLOCK.CHECK", "k", fence) == 1
        assert reader.ok("SLOCK.INFO", "k", "FULL")
    finally:
        client.execute_command("CLIENT", "UNPAUSE")
    assert (digest(client, "k"), client.pexpiretime("k")) == before
