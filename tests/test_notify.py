"""NOTIFY: a request that waits without a blocked client, and one message when it ends."""

from __future__ import annotations

import pytest

from harness import MakeServer, ReplicationStream, Server, aof_commands, wait_synced, wait_until
from harness.bound import hang_up
from harness.causes import FREEING, HOLDER, KEY, REPLACING, Cause
from harness.cluster import one_node
from harness.many import many
from harness.notify import Listener
from harness.queues import Queues
from harness.waiting import HOUR, Line, at_once

ME, NEXT = "me", "next"
LOCK = ("SLOCK.LOCK", KEY, ME, HOUR)


@pytest.fixture
def me(server: Server) -> Listener:
    return Listener(server)


# --- how a request ends

# Any bytes, as many as are allowed.
CHANNEL, TAG = b"\x00\r\n\xff ".ljust(255, b"c"), b"\xff \r\n0 ".ljust(64, b"t")
REQUESTS = {
    "LOCK": (*LOCK, "META", "m"),
    "RLOCK": ("SLOCK.RLOCK", *LOCK[1:], "META", "m", "LIMIT", 1),
    "UPGRADE": ("SLOCK.UPGRADE", *LOCK[1:]),
    "MLOCK": many("MLOCK", "a k b", ME, HOUR, "META", "m"),
    "MRLOCK": many("MRLOCK", "a k b", ME, HOUR, "META", "m", "LIMIT", 1),
}


@pytest.mark.parametrize("protocol", [3, 2])
@pytest.mark.parametrize("command", REQUESTS)
def test_a_fence_at_once_or_null_and_later_one_message(line: Line, command: str, protocol: int) -> None:
    """On one connection with RESP3, on two with RESP2."""
    me, request = Listener(line.server, protocol, CHANNEL), REQUESTS[command]
    is_upgrade = command == "UPGRADE"
    assert not is_upgrade or line.locks.rlock(KEY, ME, HOUR)
    fence = me.ask(*request, tag=TAG)
    assert fence > 0 and line.locks.check(KEY, fence) == 1 and me.messages() == []
    line.client.flushall()
    (line.locks.lock if command in ("LOCK", "MLOCK") else line.locks.rlock)(KEY, HOLDER, HOUR)
    assert not is_upgrade or line.locks.rlock(KEY, ME, HOUR)
    assert me.ask(*request, tag=TAG) is None
    behind = line.write(NEXT)
    first, second = line.info().queue
    assert (first.token, first.client, first.channel) == (ME.encode(), me.id, CHANNEL)
    assert (second.client, second.channel) == (behind.id, None)
    assert repr(TAG) not in repr(line.server.raw().ok("SLOCK.INFO", KEY, "FULL")), "only the waiter knows it"
    assert me.call("ECHO", "goes on") == b"goes on" and not line.client.client_unblock(me.id)
    assert me.messages() == []
    assert line.release(HOLDER) == 1
    fence = me.fence(TAG)
    (holder,) = line.info().holders
    assert (holder.token, holder.fence, holder.meta) == (ME.encode(), fence, b"" if is_upgrade else b"m")
    assert me.messages() == [] and behind.is_waiting()
    assert me.call(*many("MUNLOCK", "a k b", ME)) == (3 if command.startswith("M") else 1)
    assert behind.fence() > fence


@pytest.mark.parametrize("cause", FREEING, ids=str)
def test_whatever_frees_the_lock_is_told_once(line: Line, me: Listener, cause: Cause) -> None:
    cause.hold(line.client)
    assert me.ask(*LOCK) is None
    behind = line.write(NEXT)
    at_once(line.server, *cause.commands(line.client))
    assert line.locks.check(KEY, me.fence()) == 1
    assert me.messages() == [] and behind.is_waiting()
    assert line.release(ME) == 1 and behind.fence()


NO_GRANT = [
    Cause("time-out", "PING"),
    Cause("CANCEL", f"SLOCK.CANCEL {KEY} {ME}"),
    Cause("MUNLOCK", f"SLOCK.MUNLOCK 1 {KEY} {ME} REFUSE 1"),
    *REPLACING,
]


@pytest.mark.parametrize("cause", NO_GRANT, ids=str)
def test_a_request_that_ends_without_a_grant_is_told_once(line: Line, me: Listener, cause: Cause) -> None:
    cause.hold(line.client)
    assert me.ask(*LOCK, wait=30 if cause.name == "time-out" else HOUR) is None
    behind = line.write(NEXT)
    at_once(line.server, *cause.commands(line.client))
    assert me.message() == ("-WRONGTYPE" if cause in REPLACING else 0, b"tag")
    assert me.messages() == []
    if cause in REPLACING:
        assert behind.error().startswith("WRONGTYPE ")
    else:
        assert line.queued() == [NEXT] and line.release(HOLDER) == 1 and behind.fence()


def test_a_deadlock_that_arises_later_is_told_the_youngest(server: Server, me: Listener) -> None:
    """Without its older request, which could share y, the newer one of a waits for b."""
    queues = Queues(server)
    queues.hold("a", "z")
    queues.hold("c", "q")
    queues.locks.rlock("y", "b", HOUR)
    assert me.ask(*many("MRLOCK", "y q", "a", HOUR), tag="older") is None
    assert me.ask("SLOCK.LOCK", "y", "a", HOUR, tag="newer") is None
    assert me.ask("SLOCK.LOCK", "z", "b", HOUR, tag="last") is None
    assert me.call("SLOCK.CANCEL", "q", "a") == 1
    assert {me.message(), me.message()} == {(0, b"older"), ("-DEADLOCK", b"last")}
    assert queues.free("b", "y") == 1 and me.fence(b"newer") and me.messages() == []


def test_a_user_who_may_not_have_the_lock_any_more_is_told_so(line: Line, me: Listener) -> None:
    line.locks.lock(KEY, HOLDER, HOUR)
    line.client.execute_command("ACL", "SETUSER", "guest", "on", "nopass", "~*", "&*", "+@all")
    assert me.call("AUTH", "guest", "any") == b"OK" and me.ask(*LOCK) is None
    behind = line.write(NEXT)
    line.client.execute_command("ACL", "SETUSER", "guest", "resetkeys")
    assert line.release(HOLDER) == 1 and behind.fence()
    assert me.messages() == [("-NOPERM", b"tag")]
    line.client.acl_deluser("guest")


# --- asked again

# Long enough for the next of the test's requests, on a slow machine too.
SHORT = 250


def test_asked_again_it_keeps_its_place_and_takes_what_is_new(line: Line, me: Listener) -> None:
    """From another connection, and for another channel."""
    old = Listener(line.server)
    line.locks.lock(KEY, HOLDER, HOUR)
    assert old.ask(*many("MLOCK", "a k b", ME, HOUR, "META", "old"), wait=SHORT, tag="old") is None
    behind = line.write(NEXT)
    again = many("MLOCK", "b a k", ME, HOUR // 2, "META", "new")
    assert [me.ask(*again, wait=HOUR, tag="new") for _ in range(2)] == [None] * 2
    first, second = line.info().queue
    assert (first.token, first.meta, first.client) == (ME.encode(), b"new", me.id)
    assert first.channel == me.channel
    assert first.timeout_ms >= HOUR and second.client == behind.id
    assert line.count("waiters") == 2
    # Its first time has run out by now.
    wait_until(lambda: line.info().queue[0].waiting_ms > SHORT, what="it to have waited for a while")
    hang_up(line.server, old.connection)
    assert line.release(HOLDER) == 1
    fence = me.fence(b"new")
    assert me.messages() == [] and behind.is_waiting()
    assert HOUR // 2 - 20_000 < line.locks.pttl(KEY, ME) <= HOUR // 2
    assert line.info().holders[0].meta == b"new"
    assert me.ask(*again) == fence and me.messages() == [], "by now it holds"


# --- where it is asked


def test_in_a_transaction_the_message_comes_after_the_reply(line: Line, me: Listener) -> None:
    line.locks.lock(KEY, HOLDER, HOUR)
    take = ("WAIT", 0, "NOTIFY", me.channel)
    commands = [(*LOCK, *take, "tag"), ("SLOCK.UNLOCK", KEY, HOLDER), ("PING",)]
    commands += [("SLOCK.LOCK", "free", ME, HOUR, *take, "free"), ("ECHO", "x" * 50_000)]
    for command in [("MULTI",), *commands]:
        me.call(*command)
    waits, released, pong, fence, text = me.call("EXEC")
    assert (waits, released, pong, text) == (None, 1, b"PONG", b"x" * 50_000)
    assert not me.told and line.locks.check("free", fence) == 1
    assert line.locks.check(KEY, me.fence()) == 1 and me.messages() == []


def test_in_a_script_wait_and_notify_are_ignored(line: Line, me: Listener) -> None:
    call = "redis.call('SLOCK.LOCK', keys[1], args[1], 60000, 'WAIT', 0, 'NOTIFY', args[2], 't')"
    library = f"#!lua name=l\nredis.register_function('f', function(keys, args) return {call} end)"
    line.client.execute_command("FUNCTION", "LOAD", "REPLACE", library)
    script = f"local keys, args = KEYS, ARGV return {call}"
    for run in (("EVAL", script), ("FCALL", "f")):
        assert me.call(*run, 1, KEY, HOLDER, "nobody listens") > 0
        assert me.call(*run, 1, KEY, ME, me.channel) == 0 == line.count("waiters")
    assert line.release(HOLDER) == 1 and me.messages() == [] == line.holders()
    line.client.execute_command("FUNCTION", "DELETE", "l")


@pytest.mark.parametrize("command", ["LOCK", "MRLOCK"])
def test_with_ephemeral_both_end_with_the_connection(line: Line, me: Listener, command: str) -> None:
    line.locks.lock(KEY, HOLDER, HOUR)
    gone, old, last = (line.server.raw() for _ in range(3))
    ids = [connection.client_id() for connection in (gone, last)]
    keys = (KEY,) if command == "LOCK" else (2, "a", KEY)
    for token, connection in (("gone", gone), (ME, old), (ME, last)):
        take = ("EPHEMERAL", "WAIT", 0, "NOTIFY", me.channel, token)
        assert connection.ok(f"SLOCK.{command}", *keys, token, HOUR, *take) is None
    assert [waiter.client for waiter in line.info().queue] == ids
    hang_up(line.server, gone)
    hang_up(line.server, old)
    assert me.message() == (0, b"gone") and line.queued() == [ME]
    assert line.release(HOLDER) == 1
    assert me.message()[0] > 0 and line.info().holders[0].client == ids[1]
    behind = line.write(NEXT)
    assert behind.is_waiting()
    hang_up(line.server, last)
    assert behind.fence() and me.messages() == []


def test_the_connection_that_asked_may_close(line: Line, me: Listener) -> None:
    """Only the channel matters."""
    line.locks.lock(KEY, HOLDER, HOUR)
    asking = line.server.raw()
    assert asking.ok(*LOCK, "WAIT", 0, "NOTIFY", me.channel, "tag") is None
    hang_up(line.server, asking)
    assert line.queued() == [ME] and line.release(HOLDER) == 1 and me.fence() and me.messages() == []


# --- refused at the request


@pytest.mark.parametrize("key", [KEY, "free"])
def test_a_channel_without_a_subscriber_here_is_refused(line: Line, me: Listener, key: str) -> None:
    line.locks.lock(KEY, HOLDER, HOUR)
    stream, other = ReplicationStream(line.server), line.server.raw()
    for command in ("SUBSCRIBE", "PSUBSCRIBE"):
        other.ok(command, "channel")
        other.ok(command, "*")
    ask = ("SLOCK.LOCK", key, ME, HOUR, "WAIT", 0, "NOTIFY")
    with line.server.raw() as raw:
        for channel in ("channel", "*", me.channel + b"s", me.channel[:-1]):
            assert raw.error(*ask, channel, "t").startswith("NOSUBSCRIBER "), channel
        assert me.call("SUNSUBSCRIBE", me.channel)[0] == b"sunsubscribe"
        assert raw.error(*ask, me.channel, "t").startswith("NOSUBSCRIBER ")
    assert (line.count("waiters"), line.client.exists("free"), stream.commands()) == (0, 0, [])


# Of the writer `holder` of k, the readers `me` and `next` of r, the writer `me` of w, and a free lock.
WRONG = {
    "WRONGTYPE": "LOCK text me 9 | MLOCK 2 k text me 9",
    "WRONGMODE": "RLOCK w me 9 | LOCK r me 9",
    "NOTHELD": "UPGRADE k me 9 | UPGRADE free me 9",
    "DEADLOCK": "UPGRADE r next 9 | LOCK w holder 9 | MLOCK 2 free w holder 9",
    "ERR": "LOCK k me 0 | MLOCK 2 k k me 9",
    "NOPERM": "LOCK k me 9 | LOCK free me 9",
}


@pytest.mark.parametrize("code", WRONG)
def test_what_is_refused_at_the_request_is_an_error(line: Line, me: Listener, code: str) -> None:
    line.locks.lock(KEY, HOLDER, HOUR), line.locks.lock("w", ME, HOUR)
    line.locks.rlock("r", ME, HOUR), line.locks.rlock("r", NEXT, HOUR)
    line.client.set("text", "a string")
    for key, command in ((KEY, "LOCK"), ("r", "UPGRADE")):
        assert me.ask(f"SLOCK.{command}", key, ME, HOUR) is None
    stream, asking = ReplicationStream(line.server), line.server.raw()
    if code == "NOPERM":
        guest = ("on", "nopass", "~*", "resetchannels", b"&" + me.channel + b"s", "+@all")
        line.client.execute_command("ACL", "SETUSER", "guest", *guest)
        asking.ok("AUTH", "guest", "any")
    for words in WRONG[code].split(" | "):
        name, *rest = words.split()
        text = asking.error(f"SLOCK.{name}", *rest, "WAIT", 0, "NOTIFY", me.channel, "refused")
        assert text.startswith(f"{code} ") and ("channel" in text) == (code == "NOPERM"), words
    assert line.count("waiters") == 2 and me.messages() == [] == stream.commands()
    assert line.client.dbsize() == 4
    line.client.acl_deluser("guest")


def test_hash_tags_are_read_as_the_server_reads_them(make_server: MakeServer) -> None:
    """The channel of a request that must wait is refused unless it is in the slot of the key."""
    raw = one_node(make_server).raw()
    names = [b"foo", b"{foo}bar", b"foo{}{bar}", b"foo{{bar}}zap", b"{bar", b"{}foo", b"}{a}"]
    slots = {name: raw.ok("CLUSTER", "KEYSLOT", name) for name in names}
    for name in names:
        raw.ok("SLOCK.LOCK", name, HOLDER, HOUR)
        for channel in names:
            refused = raw.error("SLOCK.LOCK", name, ME, HOUR, "WAIT", 0, "NOTIFY", channel, "tag")
            code = "NOSUBSCRIBER" if slots[name] == slots[channel] else "CROSSSLOT"
            assert refused.startswith(f"{code} "), (name, channel, refused)


# --- replicas and the log


def test_of_a_request_nothing_but_its_hold_is_replicated_or_logged(make_server: MakeServer) -> None:
    line, replica = Line(make_server(appendonly=True)), make_server()
    me, stream = Listener(line.server), ReplicationStream(line.server)
    replica.client().execute_command("REPLICAOF", "127.0.0.1", line.server.port)
    wait_synced(line.server, replica)
    beside = Listener(replica, channel=me.channel)
    line.locks.lock(KEY, HOLDER, HOUR)
    assert len(stream.commands()) == 1
    assert [me.ask(*LOCK, tag=tag) for tag in ("first-tag", "the-tag")] == [None] * 2
    assert me.call("SLOCK.CANCEL", KEY, ME) == 1 and me.message() == (0, b"the-tag")
    assert me.ask(*LOCK, tag="the-tag") is None is me.ask(*LOCK[:2], NEXT, HOUR, tag="the-tag")
    assert stream.commands() == []
    assert line.release(HOLDER) == 1 and me.fence(b"the-tag")
    (released,), (granted,) = stream.units()
    assert released == [b"DEL", KEY.encode()] and granted[2].startswith(b"HOLD ")
    wait_synced(line.server, replica)
    assert replica.client().info("slock")["slock_waiters"] == 0 and beside.messages() == []
    said = b" ".join(word for command in aof_commands(line.server) for word in command)
    assert me.channel not in said and b"the-tag" not in said and b"PUBLISH" not in said
    line.server.restart(kill=True)
    line = Line(line.server)
    assert (line.holders(), line.queued(), line.count("waiters")) == ([ME], [], 0)
