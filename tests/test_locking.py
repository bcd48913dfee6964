"""Locking in a server: a smoke test of each rule of the core, and what only a server shows.

Also test_arguments.py (what is refused), test_inspect.py (PTTL, CHECK, INFO) and test_upgrade.py.
"""

from __future__ import annotations

import pytest
import redis

from harness import Locks, RawConnection, Server, now_ms, stays, wait_past, wait_until

# A hold that ends during the test, and one that does not.
SHORT = 60
LONG = 60_000

# The clock that a command sees may be a few milliseconds behind the one that TIME shows.
CLOCK_SLACK_MS = 10


# --- write locks


def test_a_writer_excludes_all_and_only_its_token_releases(client: redis.Redis, locks: Locks) -> None:
    before = now_ms(client)
    fence = locks.lock("k", "a", LONG)
    assert (before - CLOCK_SLACK_MS) * 1000 <= fence < 2**53
    assert locks.lock("k", "b", LONG) == locks.rlock("k", "b", LONG) == 0
    assert locks.unlock("k", "b") == locks.runlock("k", "a") == 0
    assert locks.unlock("k", "a") == 1 and client.exists("k") == 0
    assert locks.unlock("k", "a") == 0
    assert locks.lock("k", "b", LONG) > fence


def test_a_hold_ends_at_its_deadline_and_not_before(client: redis.Redis, locks: Locks) -> None:
    before = now_ms(client)
    first = locks.lock("k", "a", 300)
    granted = wait_until(lambda: locks.lock("k", "b", LONG), what="the hold to end")
    assert granted > first and now_ms(client) >= before + 300 - CLOCK_SLACK_MS


def test_an_expired_holder_holds_nothing_in_any_command(client: redis.Redis, locks: Locks) -> None:
    fence = locks.lock("k", "a", SHORT, meta="old")
    wait_past(client, client.pexpiretime("k"))
    assert locks.unlock("k", "a") == locks.extend("k", "a", LONG) == locks.check("k", fence) == 0
    assert locks.pttl("k", "a") == -2
    assert locks.info("k") is locks.full("k") is None
    assert client.exists("k") == 0
    assert locks.rlock("k", "a", LONG) > fence, "in the other mode too"
    assert locks.full("k").holders[0].meta == b""


def test_the_owner_is_the_token_and_not_the_connection(server: Server, locks: Locks) -> None:
    connection = server.raw()
    assert connection.ok("SLOCK.LOCK", "k", "a", LONG)
    connection.reset()
    stays(lambda: locks.pttl("k", "a") > 0, 0.1, "the lock to be held")
    assert locks.unlock("k", "a") == 1


def test_a_token_is_any_bytes_and_is_compared_whole(locks: Locks) -> None:
    for token in (b"\x00", b"\r\n", b"\xff" * 255, b"0", bytes(range(255)), b"a\x00b"):
        assert locks.lock("k", token, LONG)
        for other in (token[:-1] + b"?", token[:-1] or b"?"):
            assert locks.lock("k", other, LONG) == locks.unlock("k", other) == 0
        assert [holder.token for holder in locks.full("k").holders] == [token]
        assert locks.unlock("k", token) == 1


def test_names_of_commands_and_options_are_case_insensitive(raw: RawConnection) -> None:
    assert raw.ok("slock.lock", "k", "a", LONG, "meta", "m", "Wait", 5) > 0
    assert raw.ok("slock.info", "k", "full", "Count", 0) is not None
    assert raw.ok("sLoCk.unlock", "k", "a") == 1


# --- readers


def test_readers_share_the_lock_and_shut_out_a_writer(client: redis.Redis, locks: Locks) -> None:
    fences = [locks.rlock("k", token, LONG) for token in "abc"]
    assert fences == sorted(set(fences)) and fences[0] > 0
    for left, token in ((2, "b"), (1, "a")):
        assert locks.runlock("k", token) == 1
        assert locks.runlock("k", token) == locks.lock("k", "w", LONG) == 0
        assert locks.info("k").readers == left
    assert locks.runlock("k", "c") == 1 and client.exists("k") == 0
    assert locks.lock("k", "w", LONG)


def test_a_reader_expires_alone(client: redis.Redis, locks: Locks) -> None:
    brief = locks.rlock("k", "brief", SHORT)
    end = client.pexpiretime("k")
    staying = locks.rlock("k", "staying", LONG)
    wait_past(client, end)
    assert locks.pttl("k", "brief") == -2
    assert locks.runlock("k", "brief") == locks.extend("k", "brief", LONG) == 0
    assert (locks.check("k", brief), locks.check("k", staying)) == (0, 1)
    assert locks.info("k").readers == 1 and [h.token for h in locks.full("k").holders] == [b"staying"]
    assert locks.upgrade("k", "staying", LONG) > staying


def test_the_keys_own_expiry_is_the_latest_deadline(client: redis.Redis, locks: Locks) -> None:
    def expiry_follows(token: str) -> None:
        deadline = now_ms(client) + locks.pttl("k", token)
        # But for the time that the test's own round trips take on a busy machine.
        assert abs(client.pexpiretime("k") - deadline) < 2000

    locks.rlock("k", "a", LONG)
    expiry_follows("a")
    locks.rlock("k", "b", 10 * LONG)
    expiry_follows("b")
    locks.rlock("k", "c", LONG // 2)
    expiry_follows("b")
    locks.runlock("k", "b")
    expiry_follows("a")
    locks.extend("k", "c", 5 * LONG)
    expiry_follows("c")
    locks.extend("k", "c", 1000)
    expiry_follows("a")


# --- the same token again


@pytest.mark.parametrize("command", ["LOCK", "RLOCK"])
def test_the_same_token_refreshes_its_hold(client: redis.Redis, locks: Locks, command: str) -> None:
    fence = client.execute_command(f"SLOCK.{command}", "k", "a", LONG, "META", "first")
    for words, least, most, meta in (
        ((command, 10 * LONG), 9 * LONG, 10 * LONG, b"first"),
        ((command, LONG // 2, "META", "second"), 0, LONG // 2, b"second"),
        (("EXTEND", 10 * LONG), 9 * LONG, 10 * LONG, b"second"),
        (("EXTEND", 5000), 0, 5000, b"second"),
        ((command, LONG, "META", ""), LONG // 2, LONG, b""),
    ):
        name, *rest = words
        expected = 1 if name == "EXTEND" else fence
        assert client.execute_command(f"SLOCK.{name}", "k", "a", *rest) == expected
        (holder,) = locks.full("k").holders
        assert (holder.fence, holder.meta) == (fence, meta)
        assert least < holder.pttl <= most
    release = locks.unlock if command == "LOCK" else locks.runlock
    assert release("k", "a") == 1 and client.exists("k") == 0, "one release is enough"


def test_a_refresh_does_not_restart_the_holding_time(locks: Locks) -> None:
    locks.lock("k", "a", LONG)
    wait_until(lambda: locks.full("k").holders[0].held_ms >= 30, what="some time to pass")
    locks.lock("k", "a", LONG)
    assert locks.full("k").holders[0].held_ms >= 30
