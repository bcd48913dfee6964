"""Taking and giving back a lock: who may hold it, how long, and who is refused."""

from __future__ import annotations

import pytest
import redis

from harness import Locks, RawConnection, Server, digest, now_ms, stays, wait_past, wait_until

# A hold that ends during the test, and one that does not.
SHORT = 60
LONG = 60_000

# The clock that a command sees may be a few milliseconds behind the one that TIME shows.
CLOCK_SLACK_MS = 10


def deadline_of(client: redis.Redis, key: str, token: str | bytes) -> int:
    """The holder's deadline in Unix milliseconds, as exactly as PTTL and TIME can say."""
    left = Locks(client).pttl(key, token)
    assert left > 0, f"{token!r} does not hold {key!r}"
    return now_ms(client) + left


def assert_close(deadline_ms: int, expected_ms: int) -> None:
    """Equal, but for the time that the test's own round trips take on a busy machine."""
    assert abs(deadline_ms - expected_ms) < 2000, f"{deadline_ms - expected_ms} ms off"


# --- write locks


def test_a_free_lock_is_granted_with_a_fence_from_the_clock(client: redis.Redis, locks: Locks) -> None:
    before = now_ms(client)
    fence = locks.lock("k", "a", LONG)
    assert before * 1000 - CLOCK_SLACK_MS * 1000 <= fence < 2**53
    assert locks.info("k").fence == fence


def test_a_second_token_is_refused_while_the_lock_is_held(locks: Locks) -> None:
    assert locks.lock("k", "a", LONG)
    assert locks.lock("k", "b", LONG) == 0
    assert locks.pttl("k", "b") == -2
    assert locks.info("k").fence > 0


def test_after_the_deadline_a_second_token_gets_a_greater_fence(client: redis.Redis, locks: Locks) -> None:
    first = locks.lock("k", "a", SHORT)
    wait_past(client, client.pexpiretime("k"))
    assert locks.lock("k", "b", LONG) > first


def test_a_hold_ends_at_its_deadline_and_not_before(client: redis.Redis, locks: Locks) -> None:
    before = now_ms(client)
    locks.lock("k", "a", 300)
    granted = wait_until(lambda: locks.lock("k", "b", LONG), what="the hold to end")
    assert granted and now_ms(client) >= before + 300 - CLOCK_SLACK_MS


def test_an_expired_holder_holds_nothing_in_any_command(client: redis.Redis, locks: Locks) -> None:
    fence = locks.lock("k", "a", SHORT)
    wait_past(client, client.pexpiretime("k"))
    assert locks.unlock("k", "a") == 0
    assert locks.extend("k", "a", LONG) == 0
    assert locks.pttl("k", "a") == -2
    assert locks.check("k", fence) == 0
    assert locks.info("k") is None
    assert locks.full("k") is None
    assert client.exists("k") == 0


def test_the_same_token_gets_a_new_fence_after_its_hold_expired(client: redis.Redis, locks: Locks) -> None:
    first = locks.lock("k", "a", SHORT, meta="old")
    wait_past(client, client.pexpiretime("k"))
    second = locks.lock("k", "a", LONG)
    assert second > first
    assert locks.full("k").holders[0].meta == b""


def test_only_the_owner_releases_and_only_once(client: redis.Redis, locks: Locks) -> None:
    locks.lock("k", "a", LONG)
    assert locks.unlock("k", "b") == 0
    assert locks.unlock("k", "a") == 1
    assert client.exists("k") == 0
    assert locks.unlock("k", "a") == 0


def test_another_connection_releases_with_the_token(server: Server) -> None:
    taker = server.client()
    Locks(taker).lock("k", "a", LONG)
    taker.close()
    assert Locks(server.client()).unlock("k", "a") == 1


def test_a_closed_connection_keeps_its_lock(server: Server, locks: Locks) -> None:
    connection = server.raw()
    assert connection.ok("SLOCK.LOCK", "k", "a", LONG)
    connection.reset()
    stays(lambda: locks.pttl("k", "a") > 0, 0.1, "the lock to be held")


@pytest.mark.parametrize("token", [b"\x00", b"\r\n", b"\xff" * 255, b"x" * 255, b"0", bytes(range(255))])
def test_a_token_is_any_bytes(locks: Locks, token: bytes) -> None:
    assert locks.lock("k", token, LONG)
    assert locks.lock("k", token[:-1] + b"?", LONG) == 0
    assert [holder.token for holder in locks.full("k").holders] == [token]
    assert locks.unlock("k", token) == 1


def test_tokens_are_compared_whole(locks: Locks) -> None:
    locks.lock("k", b"a\x00b", LONG)
    assert locks.unlock("k", b"a") == 0
    assert locks.unlock("k", b"a\x00c") == 0
    assert locks.unlock("k", b"a\x00b") == 1


def test_names_of_commands_and_options_are_case_insensitive(raw: RawConnection) -> None:
    assert raw.ok("slock.lock", "k", "a", LONG, "meta", "m") > 0
    assert raw.ok("sLoCk.PtTl", "k", "a") > 0
    assert raw.ok("slock.info", "k", "full", "Count", 0) is not None
    assert raw.ok("SLOCK.unlock", "k", "a") == 1


def test_the_longest_ttl_is_allowed(locks: Locks) -> None:
    assert locks.lock("k", "a", 86_400_000)
    assert 86_390_000 < locks.pttl("k", "a") <= 86_400_000


# --- readers


def test_readers_share_the_lock_each_with_its_own_fence(locks: Locks) -> None:
    fences = [locks.rlock("k", token, LONG) for token in "abc"]
    assert fences == sorted(set(fences)) and fences[0] > 0
    info = locks.info("k")
    assert (info.mode, info.readers, info.fence) == ("read", 3, fences[-1])


def test_a_writer_shuts_out_readers(locks: Locks) -> None:
    locks.lock("k", "w", LONG)
    assert locks.rlock("k", "r", LONG) == 0
    assert locks.info("k").readers == 0


def test_readers_shut_out_a_writer_until_the_last_has_left(locks: Locks) -> None:
    locks.rlock("k", "a", LONG)
    locks.rlock("k", "b", LONG)
    assert locks.lock("k", "w", LONG) == 0
    locks.runlock("k", "a")
    assert locks.lock("k", "w", LONG) == 0
    locks.runlock("k", "b")
    assert locks.lock("k", "w", LONG)


def test_the_last_reader_to_leave_frees_the_key(client: redis.Redis, locks: Locks) -> None:
    for token in "abc":
        locks.rlock("k", token, LONG)
    for left, token in ((2, "b"), (1, "a")):
        assert locks.runlock("k", token) == 1
        assert locks.runlock("k", token) == 0
        assert locks.info("k").readers == left
    assert locks.runlock("k", "c") == 1
    assert client.exists("k") == 0 and locks.info("k") is None


def test_one_readers_deadline_never_moves_anothers(client: redis.Redis, locks: Locks) -> None:
    locks.rlock("k", "a", LONG)
    expected = deadline_of(client, "k", "a")
    locks.rlock("k", "longer", 10 * LONG)
    locks.rlock("k", "shorter", LONG // 2)
    locks.extend("k", "longer", LONG // 10)
    locks.rlock("k", "shorter", 5 * LONG)
    locks.runlock("k", "longer")
    assert_close(deadline_of(client, "k", "a"), expected)


def test_a_reader_expires_alone(client: redis.Redis, locks: Locks) -> None:
    brief = locks.rlock("k", "brief", SHORT)
    end = client.pexpiretime("k")
    staying = locks.rlock("k", "staying", LONG)
    locks.rlock("k", "later", LONG)
    wait_past(client, end)
    assert locks.pttl("k", "brief") == -2
    assert locks.runlock("k", "brief") == 0
    assert locks.extend("k", "brief", LONG) == 0
    assert (locks.check("k", brief), locks.check("k", staying)) == (0, 1)
    assert locks.info("k").readers == 2
    assert [h.token for h in locks.full("k").holders] == [b"staying", b"later"]


def test_expired_readers_do_not_shut_out_a_writer(client: redis.Redis, locks: Locks) -> None:
    locks.rlock("k", "brief", SHORT)
    end = client.pexpiretime("k")
    locks.rlock("k", "other", LONG)
    wait_past(client, end)
    locks.runlock("k", "other")
    assert locks.lock("k", "w", LONG)


def test_the_keys_own_expiry_is_the_latest_deadline(client: redis.Redis, locks: Locks) -> None:
    def expiry_follows(token: str) -> None:
        assert_close(client.pexpiretime("k"), deadline_of(client, "k", token))

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


@pytest.mark.parametrize("command", ["SLOCK.LOCK", "SLOCK.RLOCK"])
def test_the_same_token_refreshes_its_hold(client: redis.Redis, locks: Locks, command: str) -> None:
    fence = client.execute_command(command, "k", "a", LONG, "META", "first")
    assert client.execute_command(command, "k", "a", 10 * LONG) == fence
    assert locks.pttl("k", "a") > LONG
    (holder,) = locks.full("k").holders
    assert (holder.fence, holder.meta) == (fence, b"first")
    assert client.execute_command(command, "k", "a", LONG // 2, "META", "second") == fence
    assert locks.pttl("k", "a") <= LONG // 2
    (holder,) = locks.full("k").holders
    assert (holder.fence, holder.meta) == (fence, b"second")
    assert client.execute_command(command, "k", "a", LONG, "META", "") == fence
    assert locks.full("k").holders[0].meta == b""


def test_one_release_is_enough_however_often_a_hold_was_refreshed(client: redis.Redis, locks: Locks) -> None:
    for _ in range(3):
        locks.lock("w", "a", LONG)
        locks.rlock("r", "a", LONG)
    assert locks.info("r").readers == 1
    assert locks.unlock("w", "a") == 1
    assert locks.runlock("r", "a") == 1
    assert client.exists("w", "r") == 0


def test_a_refresh_does_not_restart_the_holding_time(locks: Locks) -> None:
    locks.lock("k", "a", LONG)
    wait_until(lambda: locks.full("k").holders[0].held_ms >= 30, what="some time to pass")
    locks.lock("k", "a", LONG)
    assert locks.full("k").holders[0].held_ms >= 30


# --- one mode at a time


def test_the_reader_that_asks_to_write_is_told_of_upgrade(client: redis.Redis, raw: RawConnection) -> None:
    raw.ok("SLOCK.RLOCK", "k", "a", LONG)
    for others in ([], ["b"]):
        for token in others:
            raw.ok("SLOCK.RLOCK", "k", token, LONG)
        before = digest(client, "k")
        text = raw.error("SLOCK.LOCK", "k", "a", LONG)
        assert text.startswith("WRONGMODE ") and "UPGRADE" in text
        assert digest(client, "k") == before


def test_the_writer_that_asks_to_read_is_told_of_downgrade(client: redis.Redis, raw: RawConnection) -> None:
    raw.ok("SLOCK.LOCK", "k", "a", LONG)
    before = digest(client, "k")
    text = raw.error("SLOCK.RLOCK", "k", "a", LONG, "META", "m")
    assert text.startswith("WRONGMODE ") and "DOWNGRADE" in text
    assert digest(client, "k") == before


def test_a_release_in_the_other_mode_is_no_release(locks: Locks) -> None:
    locks.lock("w", "a", LONG)
    locks.rlock("r", "a", LONG)
    assert locks.runlock("w", "a") == 0
    assert locks.unlock("r", "a") == 0
    assert locks.pttl("w", "a") > 0 and locks.pttl("r", "a") > 0


def test_the_mode_of_an_expired_hold_does_not_matter(client: redis.Redis, locks: Locks) -> None:
    locks.rlock("k", "a", SHORT)
    end = client.pexpiretime("k")
    wait_past(client, end)
    assert locks.lock("k", "a", LONG)


# --- EXTEND


@pytest.mark.parametrize("command", ["SLOCK.LOCK", "SLOCK.RLOCK"])
def test_extend_sets_the_deadline_in_either_mode_and_may_shorten(
    client: redis.Redis, locks: Locks, command: str
) -> None:
    fence = client.execute_command(command, "k", "a", LONG, "META", "m")
    assert locks.extend("k", "a", 10 * LONG) == 1
    assert LONG < locks.pttl("k", "a") <= 10 * LONG
    assert locks.extend("k", "a", 5000) == 1
    assert 0 < locks.pttl("k", "a") <= 5000
    (holder,) = locks.full("k").holders
    assert (holder.fence, holder.meta) == (fence, b"m")


def test_extend_by_nobody_is_refused(locks: Locks) -> None:
    assert locks.extend("k", "a", LONG) == 0
    assert locks.info("k") is None
    locks.lock("k", "a", LONG)
    assert locks.extend("k", "b", 10 * LONG) == 0
    assert locks.pttl("k", "a") <= LONG
