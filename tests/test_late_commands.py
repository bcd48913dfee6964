"""Commands that arrive late: FENCE, GT, XX and MUNLOCK … REFUSE, option by option.

All together and in any order they are in test_live_model.py.
"""

from __future__ import annotations

import pytest

from harness import MakeServer, RawConnection, ReplicationStream, Server, digest, wait_until
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
def test_with_another_fence_the_token_holds_nothing(server: Server, raw: RawConnection, mode: str) -> None:
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


# --- GT and XX


def test_only_an_extension_without_gt_ends_a_hold_earlier(raw: RawConnection) -> None:
    raw.ok(*many("MLOCK", "k other", "a", HOUR))
    for words in (
        ("SLOCK.LOCK", KEY, "a", 1),
        ("SLOCK.EXTEND", KEY, "a", 1, "GT"),
        many("MEXTEND", "k", "a", 1, "GT"),
    ):
        assert raw.ok(*words) > 0 and raw.ok("SLOCK.PTTL", KEY, "a") > HOUR // 2, words
    assert raw.ok("SLOCK.EXTEND", KEY, "a", 2 * HOUR, "GT") == 1 and raw.ok("SLOCK.PTTL", KEY, "a") > HOUR
    assert raw.ok(*many("MEXTEND", "k other", "a", 5000)) == 1 and raw.ok("SLOCK.PTTL", KEY, "a") <= 5000


# Of the commands and keys below, those by which the token holds already what it wants.
REFRESHES = {
    "LOCK w": True,
    "LOCK r": False,
    "LOCK free": False,
    "RLOCK r": True,
    "MLOCK w v": True,
    "MLOCK w u": False,
}


@pytest.mark.parametrize("how", ["plain", "MULTI", "script"])
@pytest.mark.parametrize("command", REFRESHES)
def test_xx_is_a_refresh_or_nothing(server: Server, raw: RawConnection, command: str, how: str) -> None:
    fences = {"w": raw.ok(*many("MLOCK", "w v", "a", HOUR)), "r": raw.ok("SLOCK.RLOCK", "r", "a", HOUR)}
    assert raw.ok("SLOCK.LOCK", "u", "a", HOUR)
    name, *keys = command.split()
    rest = ("a", 2 * HOUR, "META", "new", "XX")
    words = many(name, keys, *rest) if name == "MLOCK" else (f"SLOCK.{name}", *keys, *rest)
    stream = ReplicationStream(server)
    if how == "MULTI":
        (reply,) = raw.pipeline([("MULTI",), words, ("EXEC",)])[-1]
    elif how == "script":
        reply = raw.ok("EVAL", "return redis.call(unpack(ARGV))", 0, *words)
    else:
        reply = raw.ok(*words)
    assert reply == (fences[keys[0]] if REFRESHES[command] else 0)
    assert bool(stream.commands()) == REFRESHES[command]
    assert raw.ok("EXISTS", "free") == 0


# --- MUNLOCK … REFUSE


def end(keys: str, token: object, ms: int = 60_000) -> tuple[object, ...]:
    return many("MUNLOCK", keys, token, "REFUSE", ms)


def test_what_waits_is_withdrawn_and_what_comes_later_refused(own: Server) -> None:
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


def test_it_goes_by_database_and_name_for_its_time_whatever_befalls_the_data(own: Server) -> None:
    """As a command does that is still on its way. It is neither stored nor replicated."""
    raw = own.raw()
    raw.ok(*end(KEY, "a", 3_600_000)), raw.ok(*end("brief", "a", 200))
    assert raw.error("SLOCK.LOCK", "brief", "a", HOUR).startswith("REFUSED ")
    wait_until(lambda: isinstance(raw.call("SLOCK.LOCK", "brief", "a", HOUR), int), what="it to end")
    for what in (("FLUSHALL",), ("SWAPDB", 0, 1), ("CONFIG", "RESETSTAT"), ("DEBUG", "RELOAD")):
        raw.ok(*what)
        assert raw.error("SLOCK.LOCK", KEY, "a", HOUR).startswith("REFUSED "), what
    raw.ok("SLOCK.LOCK", "other", "a", HOUR)
    raw.ok("RENAME", "other", KEY)
    assert raw.ok("SLOCK.LOCK", KEY, "a", HOUR), "what it holds, it holds"
    own.restart()
    assert own.raw().ok("SLOCK.LOCK", KEY, "a", HOUR)
