"""Commands that arrive late: FENCE, GT, XX and MUNLOCK … REFUSE, option by option.

What they are for, all together and in any order, is in tests/test_late_histories.py.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from harness import (
    Locks,
    MakeServer,
    RawConnection,
    ReplicationStream,
    Server,
    aof_commands,
    digest,
    lock_state,
    replica_of,
    wait_synced,
    wait_until,
)
from harness.many import many
from harness.notify import Listener
from harness.waiting import HOUR, Line

KEY = "k"


@pytest.fixture
def own(make_server: MakeServer) -> Server:
    """A server of the test's own: what is refused stays so when the data are flushed."""
    return make_server()


# --- FENCE


@pytest.mark.parametrize("mode", ["LOCK", "RLOCK"])
def test_with_another_fence_it_is_as_if_the_token_held_nothing(
    server: Server, raw: RawConnection, mode: str
) -> None:
    fence = raw.ok(f"SLOCK.{mode}", KEY, "a", HOUR)
    release, other_release = ("UNLOCK", "RUNLOCK") if mode == "LOCK" else ("RUNLOCK", "UNLOCK")
    stream, before = ReplicationStream(server), digest(server.client(), KEY)
    for other in (fence - 1, fence + 1, 1, 2**53 - 1):
        assert raw.ok(f"SLOCK.{release}", KEY, "a", "FENCE", other) == 0
        assert raw.ok("SLOCK.EXTEND", KEY, "a", HOUR, "FENCE", other) == 0
        assert raw.ok("SLOCK.EXTEND", KEY, "a", 2 * HOUR, "GT", "FENCE", other) == 0
        assert raw.ok(*many("MUNLOCK", KEY, "a", "FENCE", other)) == 0
        assert raw.ok(*many("MEXTEND", KEY, "a", 2 * HOUR, "fence", other, "gt")) == 0
        change = "DOWNGRADE" if mode == "LOCK" else "UPGRADE"
        assert raw.error(f"SLOCK.{change}", KEY, "a", HOUR, "FENCE", other).startswith("NOTHELD ")
    assert raw.ok(f"SLOCK.{other_release}", KEY, "a", "FENCE", fence) == 0, "the fence is not the mode"
    assert raw.ok(f"SLOCK.{release}", KEY, "b", "FENCE", fence) == 0, "nor the token"
    assert (digest(server.client(), KEY), stream.commands()) == (before, [])
    assert raw.ok("SLOCK.EXTEND", KEY, "a", HOUR, "FENCE", fence) == 1
    assert raw.ok(f"SLOCK.{release}", KEY, "a", "FENCE", fence) == 1
    assert raw.ok(f"SLOCK.{release}", KEY, "a", "FENCE", fence) == 0


def test_a_release_that_comes_late_leaves_the_next_hold_of_the_token(raw: RawConnection) -> None:
    first = raw.ok("SLOCK.LOCK", KEY, "a", HOUR)
    assert raw.ok("SLOCK.UNLOCK", KEY, "a", "FENCE", first) == 1
    second = raw.ok("SLOCK.LOCK", KEY, "a", HOUR)
    assert raw.ok("SLOCK.UNLOCK", KEY, "a", "FENCE", first) == 0
    assert raw.ok("SLOCK.CHECK", KEY, second) == 1


@pytest.mark.parametrize(
    ("take", "change", "back"), [("LOCK", "DOWNGRADE", "UPGRADE"), ("RLOCK", "UPGRADE", "DOWNGRADE")]
)
def test_a_change_of_mode_can_be_repeated_and_comes_late_to_no_other_hold(
    raw: RawConnection, take: str, change: str, back: str
) -> None:
    first = raw.ok(f"SLOCK.{take}", KEY, "a", HOUR)
    command = (f"SLOCK.{change}", KEY, "a", HOUR, "FENCE", first)
    second = raw.ok(*command)
    assert second > first == first and raw.ok(*command) == second, "a refresh, whatever the fence"
    third = raw.ok(f"SLOCK.{back}", KEY, "a", HOUR, "FENCE", second)
    assert raw.error(*command).startswith("NOTHELD "), "late, it changes no later hold"
    assert raw.ok("SLOCK.CHECK", KEY, third) == 1


def test_of_several_keys_those_whose_hold_has_the_fence(raw: RawConnection) -> None:
    both = raw.ok(*many("MLOCK", "a b", "me", HOUR))
    alone = raw.ok("SLOCK.RLOCK", "c", "me", HOUR)
    for fence in (both, alone):
        assert raw.ok(*many("MEXTEND", "a b c", "me", HOUR, "FENCE", fence)) == 0
    assert raw.ok(*many("MEXTEND", "a b", "me", 2 * HOUR, "FENCE", both)) == 1
    assert raw.ok("SLOCK.PTTL", "a", "me") > HOUR > raw.ok("SLOCK.PTTL", "c", "me") - 1
    assert raw.ok(*many("MUNLOCK", "a b c d", "me", "FENCE", both)) == 2
    assert raw.ok(*many("MUNLOCK", "a b c d", "me", "FENCE", alone)) == 1


@pytest.mark.parametrize("how", ["blocked", "notify"])
def test_a_waiting_upgrade_looks_at_its_fence_again_at_the_grant(server: Server, how: str) -> None:
    line, locks = Line(server), Locks(server.client())
    fence = locks.rlock(KEY, "a", HOUR)
    assert locks.rlock(KEY, "b", HOUR) and locks.lock("other", "b", HOUR)
    request, listener = ("SLOCK.UPGRADE", KEY, "a", HOUR, "FENCE", fence), Listener(server)
    if how == "blocked":
        waiting = line.ask("a", *request, "WAIT", 0)
    else:
        assert listener.ask(*request) is None
    # By another request of its own the hold gets another fence.
    both = line.ask("a", *many("MRLOCK", f"{KEY} other", "a", HOUR, "WAIT", 0))
    assert locks.unlock("other", "b") == 1 and both.fence() > fence
    if how == "blocked":
        assert waiting.error().startswith("NOTHELD ")
    else:
        assert listener.message() == ("-NOTHELD", b"tag")
    assert line.holders() == ["a", "b"] and line.queued() == []


# --- only EXTEND and MEXTEND without GT lower a deadline


@pytest.mark.parametrize("mode", ["LOCK", "RLOCK"])
def test_nothing_but_a_plain_extension_ends_a_hold_earlier(
    server: Server, raw: RawConnection, mode: str
) -> None:
    client = server.client()
    raw.ok(f"SLOCK.{mode}", KEY, "a", HOUR)
    change, back = ("DOWNGRADE", "UPGRADE") if mode == "LOCK" else ("UPGRADE", "DOWNGRADE")
    end = client.pexpiretime(KEY)
    stream = ReplicationStream(server)
    for words in (
        (f"SLOCK.{mode}", KEY, "a", 1),
        (f"SLOCK.{mode}", KEY, "a", 1, "XX"),
        (f"SLOCK.{mode}", KEY, "a", 1, "WAIT", 0),
        many(f"M{mode}", KEY, "a", 1),
        (f"SLOCK.{back}", KEY, "a", 1),
        ("SLOCK.EXTEND", KEY, "a", 1, "GT"),
        many("MEXTEND", KEY, "a", 1, "GT"),
    ):
        assert raw.ok(*words) > 0
        assert (client.pexpiretime(KEY), stream.commands()) == (end, []), words
    for words in (
        (f"SLOCK.{mode}", KEY, "a", 1, "META", "new"),
        (f"SLOCK.{change}", KEY, "a", 1),
        (f"SLOCK.{back}", KEY, "a", 1),
        many(f"M{mode}", f"{KEY} other", "a", 1),
    ):
        assert raw.ok(*words) > 0
        assert client.pexpiretime(KEY) == end, words
    assert raw.ok("SLOCK.EXTEND", KEY, "a", 2 * HOUR, "GT") == 1
    assert client.pexpiretime(KEY) > end
    assert raw.ok("SLOCK.EXTEND", KEY, "a", HOUR // 2) == 1
    assert client.pexpiretime(KEY) < end
    assert raw.ok(*many("MEXTEND", KEY, "a", HOUR // 4)) == 1
    assert raw.ok("SLOCK.PTTL", KEY, "a") <= HOUR // 4


def test_a_grant_after_a_wait_ends_no_hold_earlier(server: Server) -> None:
    line, locks = Line(server), Locks(server.client())
    locks.lock(KEY, "a", HOUR)
    locks.lock("other", "b", HOUR)
    waiting = line.ask("a", *many("MLOCK", f"{KEY} other", "a", 5000, "WAIT", 0))
    locks.unlock("other", "b")
    assert waiting.fence() and locks.pttl(KEY, "a") > HOUR - 60_000 and locks.pttl("other", "a") <= 5000


# --- XX


class Refresh(NamedTuple):
    command: str
    keys: str
    is_there: bool


REFRESHES = [
    Refresh("LOCK", "w", True),
    Refresh("LOCK", "r", False),
    Refresh("LOCK", "free", False),
    Refresh("LOCK", "theirs", False),
    Refresh("RLOCK", "r", True),
    Refresh("RLOCK", "w", False),
    Refresh("RLOCK", "free", False),
    Refresh("MLOCK", "w v", True),
    Refresh("MLOCK", "v w", True),
    Refresh("MLOCK", "w v u", False),
    Refresh("MLOCK", "w free", False),
    Refresh("MLOCK", "w r", False),
    Refresh("MRLOCK", "r", True),
    Refresh("MRLOCK", "r w", False),
]


@pytest.mark.parametrize("how", ["plain", "MULTI", "script"])
@pytest.mark.parametrize("refresh", REFRESHES, ids=lambda one: f"{one.command}-{one.keys}")
def test_xx_is_a_refresh_or_nothing(server: Server, raw: RawConnection, refresh: Refresh, how: str) -> None:
    fences = {"w": raw.ok(*many("MLOCK", "w v", "a", HOUR)), "r": raw.ok("SLOCK.RLOCK", "r", "a", HOUR)}
    fences["v"] = fences["w"]
    assert raw.ok("SLOCK.LOCK", "u", "a", HOUR) and raw.ok("SLOCK.LOCK", "theirs", "b", HOUR)
    keys = refresh.keys.split()
    name, rest = f"SLOCK.{refresh.command}", ("a", 2 * HOUR, "META", "new", "XX")
    words = many(refresh.command, keys, *rest) if refresh.command.startswith("M") else (name, *keys, *rest)
    stream = ReplicationStream(server)
    match how:
        case "MULTI":
            (reply,) = raw.pipeline([("MULTI",), words, ("EXEC",)])[-1]
        case "script":
            arguments = ", ".join(f"ARGV[{number + 1}]" for number in range(len(words)))
            reply = raw.ok("EVAL", f"return redis.call({arguments})", 0, *words)
        case _:
            reply = raw.ok(*words)
    assert reply == (fences[keys[0]] if refresh.is_there else 0)
    assert bool(stream.commands()) == refresh.is_there
    if refresh.is_there:
        assert all(raw.ok("SLOCK.PTTL", key, "a") > HOUR for key in keys)
    assert raw.ok("EXISTS", "free") == 0


def test_xx_needs_no_turn_and_waits_for_no_end_of_grace(make_server: MakeServer) -> None:
    server = make_server(slock_restart_grace_ms=HOUR)
    raw = server.raw()
    assert raw.ok("SLOCK.LOCK", KEY, "a", HOUR, "XX") == 0, "not GRACE: it would give nothing new"
    raw.ok("CONFIG", "SET", "slock.restart-grace-ms", 0)
    fence = raw.ok("SLOCK.LOCK", KEY, "a", HOUR)
    Line(server, KEY).write("b")
    assert raw.ok("SLOCK.LOCK", KEY, "a", HOUR, "XX") == fence
    assert raw.ok("SLOCK.LOCK", KEY, "b", HOUR, "XX") == 0
    raw.ok("SET", "string", "value")
    assert raw.error("SLOCK.LOCK", "string", "a", HOUR, "XX").startswith("WRONGTYPE ")
    assert raw.error(*many("MLOCK", f"{KEY} string", "a", HOUR, "XX")).startswith("WRONGTYPE ")
    assert server.client().info("slock")["slock_refusals"] == 0


# --- MUNLOCK … REFUSE


def end(keys: str, token: object, ms: int = 60_000) -> tuple[object, ...]:
    return many("MUNLOCK", keys, token, "REFUSE", ms)


def test_what_waits_is_withdrawn_what_is_held_is_released_and_what_comes_later_is_refused(
    own: Server,
) -> None:
    line, raw = Line(own, KEY), own.raw()
    listener = Listener(own)
    line.locks.lock(KEY, "holder", HOUR)
    assert raw.ok("SLOCK.RLOCK", "read", "a", HOUR)
    waiting = [
        line.write("a"),
        line.read("a"),
        line.ask("a", *many("MLOCK", f"{KEY} x", "a", HOUR, "WAIT", 0)),
    ]
    assert listener.ask("SLOCK.LOCK", KEY, "a", HOUR) is None
    stream = ReplicationStream(own)
    assert raw.ok(*many("MUNLOCK", f"{KEY} read free", "a", "refuse", 3_600_000)) == 1
    assert [waiter.reply() for waiter in waiting] == [0, 0, 0] and listener.message() == (0, b"tag")
    assert stream.names() == ["DEL"] and line.queued() == []
    for words in (
        ("SLOCK.LOCK", KEY, "a", HOUR),
        ("SLOCK.RLOCK", KEY, "a", HOUR, "LIMIT", 5),
        ("SLOCK.LOCK", KEY, "a", HOUR, "WAIT", 0),
        ("SLOCK.LOCK", KEY, "a", HOUR, "EPHEMERAL"),
        many("MLOCK", f"x {KEY}", "a", HOUR),
        many("MRLOCK", "read x", "a", HOUR, "WAIT", 5),
        ("SLOCK.LOCK", KEY, "a", HOUR, "WAIT", 0, "NOTIFY", listener.channel, "late"),
    ):
        for _ in range(2):
            assert raw.error(*words).startswith("REFUSED "), words
        raw.ok("DEL", KEY)  # free or not
        assert raw.error(*words).startswith("REFUSED "), words
        line.locks.lock(KEY, "holder", HOUR)
    assert raw.ok("SLOCK.LOCK", KEY, "a", HOUR, "XX") == 0 and line.queued() == []
    assert raw.ok("SLOCK.LOCK", "x", "a", HOUR) and line.release("holder") == 1
    assert raw.ok("SLOCK.LOCK", KEY, "b", HOUR), "for others nothing has changed"
    elsewhere = own.raw()
    elsewhere.ok("SELECT", 1)
    assert elsewhere.ok("SLOCK.LOCK", KEY, "a", HOUR), "nor in another database"
    section = line.client.info("slock")
    assert (section["slock_revoked_requests"], section["slock_wait_cancels"]) == (21, 4)


def test_repeated_it_replies_what_it_replied_first(own: Server) -> None:
    raw, stream = own.raw(), ReplicationStream(own)
    assert raw.ok(*many("MLOCK", "a b", "me", HOUR)) and raw.ok("SLOCK.RLOCK", "c", "me", HOUR)
    assert raw.ok("SLOCK.LOCK", "d", "other", HOUR)
    assert raw.ok(*end("a b c d", "me")) == 3
    sent = stream.commands()
    assert raw.ok("SLOCK.LOCK", "a", "other", HOUR)
    stream.commands()
    for keys, released in (("a b c d", 3), ("d c b a", 3), ("a", 1), ("d", 0), ("b e", 1)):
        assert raw.ok(*end(keys, "me", 1)) == released, keys
    assert raw.ok(*end("a b", "other")) == 1
    assert [raw.ok(*many("MUNLOCK", "a b c d", "me")), raw.ok("SLOCK.UNLOCK", "a", "me")] == [0, 0]
    assert len(sent) > 0 and stream.names() == ["DEL"], "a repetition changes nothing"


def test_the_later_of_two_moments_counts_and_then_it_is_over(own: Server) -> None:
    raw = own.raw()
    raw.ok("SLOCK.LOCK", KEY, "a", HOUR)
    raw.ok("SLOCK.LOCK", "brief", "a", HOUR)
    assert raw.ok(*end(KEY, "a", 3_600_000)) == raw.ok(*end(KEY, "a", 1)) == 1
    assert raw.ok(*end("brief", "a", 200)) == 1
    assert raw.error("SLOCK.LOCK", "brief", "a", HOUR).startswith("REFUSED ")

    def is_granted() -> bool:
        return isinstance(raw.call("SLOCK.LOCK", "brief", "a", HOUR), int)

    wait_until(is_granted, what="it to end")
    assert raw.ok(*many("MUNLOCK", "brief", "a")) == 1
    assert raw.ok(*end("brief", "a", 1)) == 0, "what was released before counts no more"
    assert raw.error("SLOCK.LOCK", KEY, "a", HOUR).startswith("REFUSED "), "a later one ends no earlier one"


def test_it_goes_by_database_and_name_whatever_befalls_the_data(own: Server) -> None:
    """As a command does that is still on its way."""
    raw = own.raw()
    raw.ok(*end(KEY, "a", 3_600_000))
    for what in (("FLUSHALL",), ("FLUSHDB",), ("SWAPDB", 0, 1), ("CONFIG", "RESETSTAT"), ("DEBUG", "RELOAD")):
        raw.ok(*what)
        assert raw.error("SLOCK.LOCK", KEY, "a", HOUR).startswith("REFUSED "), what
    raw.ok("SLOCK.LOCK", "other", "a", HOUR)
    raw.ok("RENAME", "other", KEY)
    assert raw.ok("SLOCK.LOCK", KEY, "a", HOUR), "what it holds, it holds"
    assert raw.ok(*end(KEY, "a")) == 1
    own.restart()
    raw = own.raw()
    assert raw.ok("SLOCK.LOCK", KEY, "a", HOUR), "it is not stored"


def test_its_memory_has_a_bound_and_what_it_forgets_is_counted(own: Server) -> None:
    """A later entry takes the place of an earlier one, which is the only thing that it can take."""
    raw, client = own.raw(), own.client()
    many_more = """
        for n = ARGV[1], ARGV[2] do redis.call('SLOCK.MUNLOCK', 1, KEYS[1], n, 'REFUSE', 3600000) end
    """
    before = client.info("memory")["used_memory"]
    for first in range(1, 200_000, 50_000):
        raw.ok("EVAL", many_more, 1, KEY, first, first + 49_999)
        assert raw.error("SLOCK.LOCK", KEY, first + 49_999, HOUR).startswith("REFUSED "), "the last is there"
    assert client.info("memory")["used_memory"] - before < 1_300_000
    overwritten = client.info("slock")["slock_revoked_tokens_overwritten"]
    assert 200_000 - 65_536 <= overwritten < 200_000 - 50_000


def test_it_ends_an_acquisition_whatever_comes_after_it(own: Server) -> None:
    line, raw = Line(own, KEY), own.raw()
    line.locks.lock(KEY, "holder", HOUR)
    waiting, behind = line.write("a"), line.write("behind")
    # In one turn: the lock comes free, the owner gives up, its request comes once more.
    late = ("SLOCK.LOCK", KEY, "a", HOUR, "WAIT", 0)
    replies = raw.pipeline([("SLOCK.UNLOCK", KEY, "holder"), end(KEY, "a"), late, end(KEY, "a")])
    assert replies[:2] == [1, 0] and replies[2].prefix == "REFUSED" and replies[3] == 0
    assert waiting.reply() == 0
    assert behind.fence() and line.holders() == ["behind"] and line.queued() == []


def test_an_ephemeral_hold_of_a_closed_connection_is_not_found_held(own: Server) -> None:
    raw, holder = own.raw(), own.raw()
    assert holder.ok("SLOCK.LOCK", KEY, "a", HOUR, "EPHEMERAL")
    holder.close()
    wait_until(lambda: raw.ok("SLOCK.PTTL", KEY, "a") == -2, what="the hold to end")
    assert raw.ok(*end(KEY, "a")) == 0 == raw.ok(*end(KEY, "a"))


def test_errors_of_it_change_nothing(own: Server) -> None:
    line, raw = Line(own, KEY), own.raw()
    fence = line.locks.lock("mine", "a", HOUR)
    line.locks.lock(KEY, "holder", HOUR)
    waiting = line.write("a")
    raw.ok("SET", "text", "a string")
    assert raw.error(*end("mine text k", "a")).startswith("WRONGTYPE ")
    for words, text in (
        (("FENCE", fence, "REFUSE", 5), "option REFUSE does not go with FENCE"),
        (("REFUSE", 5, "FENCE", fence), "option REFUSE does not go with FENCE"),
        (("REFUSE", 5, "REFUSE", 5), "option REFUSE is given twice"),
        (("REFUSE",), "option REFUSE needs a value"),
        (("REFUSE", 0), "REFUSE must be an integer from 1 to 3600000 milliseconds"),
        (("REFUSE", 3_600_001), "REFUSE must be an integer from 1 to 3600000 milliseconds"),
    ):
        assert raw.error(*many("MUNLOCK", "mine k", "a", *words)) == f"ERR {text}"
    assert raw.ok("SLOCK.CHECK", "mine", fence) == 1 and waiting.is_waiting()
    assert raw.ok("SLOCK.LOCK", "free", "a", HOUR) and line.release("holder") == 1 and waiting.fence()


def test_in_a_transaction_and_in_a_script(own: Server) -> None:
    raw = own.raw()
    fence = raw.ok("SLOCK.LOCK", KEY, "a", HOUR)
    replies = raw.pipeline(
        [
            ("MULTI",),
            ("SLOCK.UNLOCK", KEY, "a", "FENCE", fence + 1),
            end(KEY, "a"),
            ("SLOCK.UNLOCK", KEY, "a", "FENCE", fence),
            ("SLOCK.LOCK", KEY, "a", HOUR),
            ("EXEC",),
        ]
    )[-1]
    assert replies[:3] == [0, 1, 0] and replies[3].prefix == "REFUSED"
    script = """
        redis.call('SLOCK.MUNLOCK', 1, KEYS[1], 'b', 'REFUSE', 60000)
        return redis.pcall('SLOCK.LOCK', KEYS[1], 'b', 1000)
    """
    assert raw.error("EVAL", script, 1, KEY).startswith("REFUSED ")
    assert raw.ok("EVAL", "return redis.call('SLOCK.EXTEND', KEYS[1], 'a', 5, 'GT', 'FENCE', 7)", 1, KEY) == 0


# --- what is stored and replicated


def test_copies_agree_and_the_log_brings_the_same_back(make_server: MakeServer) -> None:
    primary, replica = make_server(appendonly=True), make_server()
    replica_of(replica, primary)
    raw = primary.raw()
    fence = raw.ok("SLOCK.LOCK", "w", "a", HOUR)
    raw.ok("SLOCK.LOCK", "w", "a", 1, "META", "m")
    raw.ok("SLOCK.EXTEND", "w", "a", 2 * HOUR, "GT", "FENCE", fence)
    raw.ok("SLOCK.EXTEND", "w", "a", HOUR, "GT", "FENCE", fence)
    read = raw.ok("SLOCK.DOWNGRADE", "w", "a", 1, "FENCE", fence)
    raw.ok("SLOCK.UPGRADE", "w", "a", 1, "FENCE", read)
    raw.ok(*many("MLOCK", "x y", "a", HOUR))
    raw.ok(*many("MEXTEND", "x y", "a", 2 * HOUR, "GT"))
    raw.ok(*many("MLOCK", "x y", "a", 3 * HOUR, "XX"))
    raw.ok(*many("MUNLOCK", "x y", "a", "FENCE", 1))
    assert raw.ok(*end("free", "a")) == 0
    wait_synced(primary, replica)
    keys = ("w", "x", "y")
    before = [lock_state(primary.client(), key) for key in keys]
    assert [lock_state(replica.client(), key) for key in keys] == before
    logged = aof_commands(primary)
    assert not {command[0].upper() for command in logged} - {b"SELECT", b"SLOCK.APPLY", b"MULTI", b"EXEC"}
    replica.client().execute_command("REPLICAOF", "NO", "ONE")
    late = replica.raw()
    assert late.ok("SLOCK.LOCK", "free", "a", HOUR), "what was revoked is not replicated"
    assert late.ok("SLOCK.UNLOCK", "w", "a") == 1
    primary.restart(kill=True)
    assert [lock_state(primary.client(), key) for key in keys] == before


def test_a_replica_decides_nothing(primary_and_replica: tuple[Server, Server]) -> None:
    raw = primary_and_replica[1].raw()
    for words in (
        end(KEY, "a"),
        ("SLOCK.CANCEL", KEY, "a"),
        ("SLOCK.LOCK", KEY, "a", HOUR, "XX"),
        ("SLOCK.UNLOCK", KEY, "a", "FENCE", 7),
        ("SLOCK.EXTEND", KEY, "a", HOUR, "GT"),
    ):
        assert raw.error(*words).startswith("READONLY "), words


def test_refuse_needs_the_permission_of_munlock_for_each_key(own: Server) -> None:
    raw, user = own.raw(), own.raw()
    raw.ok("ACL", "SETUSER", "app", "on", ">pw", "~mine:*", "+slock.munlock", "+slock.lock")
    user.ok("AUTH", "app", "pw")
    for keys in ("theirs", "mine:1 theirs"):
        assert user.error(*end(keys, "a")).startswith("NOPERM")
    assert user.ok(*end("mine:1", "a")) == 0
    assert user.error("SLOCK.LOCK", "mine:1", "a", HOUR).startswith("REFUSED ")
    raw.ok("ACL", "SETUSER", "app", "-slock.munlock")
    assert user.error(*end("mine:1", "a")).startswith("NOPERM")
