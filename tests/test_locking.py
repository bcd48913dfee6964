"""Locking and looking at locks: a smoke test of each rule of the core, and what only a server shows.

Also test_arguments.py (what is refused) and test_upgrade.py.
"""

from __future__ import annotations

import pytest
import redis

from harness import Locks, RawConnection, Server, now_ms, wait_until
from harness.locks import as_dict

# A hold that does not end during the test.
LONG = 60_000

# The clock that a command sees may be a few milliseconds behind the one that TIME shows.
CLOCK_SLACK_MS = 10


def test_a_writer_excludes_all_and_only_its_token_releases(client: redis.Redis, locks: Locks) -> None:
    before = now_ms(client)
    fence = locks.lock("k", "a", LONG)
    assert (before - CLOCK_SLACK_MS) * 1000 <= fence < 2**53
    assert locks.lock("k", "b", LONG) == locks.rlock("k", "b", LONG) == 0
    assert locks.unlock("k", "b") == locks.runlock("k", "a") == 0
    assert locks.unlock("k", "a") == 1 and client.exists("k") == 0
    assert locks.unlock("k", "a") == 0
    assert locks.lock("k", "b", LONG) > fence


def test_a_token_is_any_bytes_and_is_compared_whole(locks: Locks) -> None:
    for token in (b"\x00", b"\r\n", bytes(range(255)), b"a\x00b"):
        assert locks.lock("k", token, LONG)
        for other in (token[:-1] + b"?", token[:-1] or b"?"):
            assert locks.lock("k", other, LONG) == locks.unlock("k", other) == 0
        assert [holder.token for holder in locks.full("k").holders] == [token]
        assert locks.unlock("k", token) == 1


def test_names_of_commands_and_options_are_case_insensitive(raw: RawConnection) -> None:
    assert raw.ok("slock.lock", "k", "a", LONG, "meta", "m", "Wait", 5) > 0
    assert raw.ok("slock.info", "k", "full", "Count", 0) is not None
    assert raw.ok("sLoCk.unlock", "k", "a") == 1


def test_the_keys_own_expiry_is_the_latest_deadline(client: redis.Redis, locks: Locks) -> None:
    def expiry_follows(token: str) -> None:
        deadline = now_ms(client) + locks.pttl("k", token)
        # But for the time that the test's own round trips take on a busy machine.
        assert abs(client.pexpiretime("k") - deadline) < 2000

    locks.rlock("k", "a", LONG)
    expiry_follows("a")
    locks.rlock("k", "b", 10 * LONG)
    locks.rlock("k", "c", LONG // 2)
    expiry_follows("b")
    locks.runlock("k", "b")
    expiry_follows("a")
    locks.extend("k", "c", 5 * LONG)
    expiry_follows("c")
    locks.extend("k", "c", 1000)
    expiry_follows("a")


@pytest.mark.parametrize("command", ["LOCK", "RLOCK"])
def test_the_same_token_refreshes_its_hold(client: redis.Redis, locks: Locks, command: str) -> None:
    fence = client.execute_command(f"SLOCK.{command}", "k", "a", LONG, "META", "first")
    wait_until(lambda: locks.full("k").holders[0].held_ms >= 5, what="some time to pass")
    for words, least, most, meta in (
        ((command, 10 * LONG), 9 * LONG, 10 * LONG, b"first"),
        ((command, LONG // 2, "META", "second"), 9 * LONG, 10 * LONG, b"second"),
        ((command, LONG // 2), 9 * LONG, 10 * LONG, b"second"),
        (("EXTEND", 10 * LONG), 9 * LONG, 10 * LONG, b"second"),
        (("EXTEND", 5000), 0, 5000, b"second"),
        ((command, LONG, "META", ""), LONG // 2, LONG, b""),
    ):
        name, *rest = words
        expected = 1 if name == "EXTEND" else fence
        assert client.execute_command(f"SLOCK.{name}", "k", "a", *rest) == expected
        (holder,) = locks.full("k").holders
        assert (holder.fence, holder.meta) == (fence, meta)
        assert least < holder.pttl <= most and holder.held_ms >= 5
    release = locks.unlock if command == "LOCK" else locks.runlock
    assert release("k", "a") == 1 and client.exists("k") == 0, "one release is enough"


# --- looking: PTTL, CHECK and INFO


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


def test_info_full_has_everything_of_each_of_count_holders(locks: Locks) -> None:
    metas = {b"a": b"", b"\x00\xff\r\n": b"host=\x00 pid=1", b"c": b"m" * 1024}
    metas |= {b"t%d" % number: b"" for number in range(147)}
    fences = {token: locks.rlock("k", token, LONG, meta=meta or None) for token, meta in metas.items()}
    wait_until(lambda: all(h.held_ms >= 5 for h in locks.full("k").holders), what="5 ms of holding")
    info = locks.full("k")
    assert {h.token: (h.meta, h.fence) for h in info.holders} == {t: (metas[t], fences[t]) for t in metas}
    assert all(0 < h.pttl <= LONG and 5 <= h.held_ms < LONG for h in info.holders)
    assert info.queue == () and info.readers == 150
    for count, expected in {1: 1, 100: 100, 1000: 150, None: 100}.items():
        some = locks.full("k", count)
        assert [h.token for h in some.holders] == [h.token for h in info.holders][:expected]
        assert some.readers == 150 and some.fence == info.fence


def test_info_is_a_flat_array_in_resp2_and_a_map_in_resp3(server: Server) -> None:
    old, new = server.raw(), server.raw(protocol=3)
    assert new.ok("SLOCK.INFO", "k") is None is old.ok("SLOCK.INFO", "k", "FULL")
    old.ok("SLOCK.RLOCK", "k", "a", LONG, "META", "m")
    for full in ((), ("FULL",)):
        array, mapping = old.ok("SLOCK.INFO", "k", *full), new.ok("SLOCK.INFO", "k", *full)
        assert isinstance(array, list) and isinstance(mapping, dict)
        assert array[::2] == list(mapping)
    assert mapping.keys() == {b"mode", b"readers", b"waiters", b"fence", b"pttl", b"holders", b"queue"}
    (holder,) = mapping[b"holders"]
    assert isinstance(holder, dict)
    assert holder.keys() == {b"token", b"fence", b"pttl", b"held-ms", b"meta"}
    (flat,) = array[array.index(b"holders") + 1]
    assert isinstance(flat, list) and as_dict(flat).keys() == as_dict(holder).keys()
    assert (holder[b"token"], holder[b"meta"]) == (b"a", b"m")
    assert isinstance(holder[b"fence"], int) and isinstance(holder[b"held-ms"], int)
