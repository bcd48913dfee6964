"""NOTIFY: requests whose subscriber goes leave, and what comes and goes leaves no memory behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import MakeServer, ReplicationStream, Server, rounds, wait_until
from harness.bound import hang_up
from harness.causes import HOLDER, KEY
from harness.many import many
from harness.notify import Listener
from harness.waiting import HOUR, Line

ME, NEXT = "me", "next"
LOCK = ("SLOCK.LOCK", KEY, ME, HOUR)
# Long enough for the next of the test's requests, on a slow machine too.
SHORT = 250


@pytest.fixture
def me(server: Server) -> Listener:
    return Listener(server)


def _cut_off(line: Line, me: Listener) -> None:
    line.client.config_set("client-output-buffer-limit", "pubsub 100000 0 0")
    line.client.execute_command("SPUBLISH", me.channel, "x" * 30_000_000)


def _may_not_listen(line: Line, me: Listener) -> None:
    line.client.execute_command("ACL", "SETUSER", "guest", "on", "nopass", "~*", "&*", "+@all")
    me.call("AUTH", "guest", "any")
    line.client.execute_command("ACL", "SETUSER", "guest", "resetchannels")


GOINGS: dict[str, Callable[[Line, Listener], object]] = {
    "SUNSUBSCRIBE": lambda line, me: me.call("SUNSUBSCRIBE"),
    "RESET": lambda line, me: me.call("RESET"),
    "close": lambda line, me: me.connection.close(),
    "reset of the connection": lambda line, me: me.connection.reset(),
    "CLIENT KILL": lambda line, me: line.client.client_kill_filter(_id=me.id),
    "client-output-buffer-limit": _cut_off,
    "ACL SETUSER": _may_not_listen,
}


@pytest.mark.parametrize("when", ["at the grant", "soon"])
@pytest.mark.parametrize("going", GOINGS)
def test_without_a_subscriber_its_requests_leave(make_server: MakeServer, going: str, when: str) -> None:
    line = Line(make_server())
    me, other = Listener(line.server), Listener(line.server)
    line.locks.lock(KEY, HOLDER, HOUR), line.locks.lock("elsewhere", HOLDER, HOUR)
    assert me.ask(*LOCK, tag=1) is None is me.ask(*many("MLOCK", "k a", ME, HOUR), tag=2)
    assert me.ask("SLOCK.LOCK", "elsewhere", ME, HOUR, tag=3) is None
    assert other.ask(*LOCK[:2], "other", HOUR) is None
    behind = line.write(NEXT)
    stream = ReplicationStream(line.server)
    GOINGS[going](line, me)
    numsub = ("PUBSUB", "SHARDNUMSUB", me.channel)
    wait_until(lambda: line.client.execute_command(*numsub)[1] == 0, what="the subscription to end")
    if when == "soon":
        line.wait_for_waiters(2)
    assert line.release(HOLDER) == 1
    assert line.locks.check(KEY, other.fence()) == 1 and behind.is_waiting()
    line.wait_for_waiters(1)
    assert line.queued() == [NEXT] and line.holders("elsewhere") == [HOLDER]
    assert line.count("no_subscriber") == 3 and other.messages() == []
    said = [word for command in stream.commands() for word in command[1:]]
    assert not any(word.endswith(b" me") for word in said), "it was given a hold"
    assert line.release("other") == 1 and behind.fence()
    again = Listener(line.server, channel=me.channel)
    assert again.ask("SLOCK.LOCK", "elsewhere", ME, HOUR) is None
    assert line.client.delete("elsewhere") == 1 and again.fence() and again.messages() == []


def test_who_listened_at_the_last_grant_is_asked_again_at_the_next(line: Line, me: Listener) -> None:
    """The subscription ends in the very turn in which the lock comes free."""
    line.locks.lock(KEY, HOLDER, HOUR)
    assert me.ask("SLOCK.LOCK", KEY, "first", HOUR) is None is me.ask("SLOCK.LOCK", KEY, "second", HOUR)
    behind = line.write(NEXT)
    assert line.release(HOLDER) == 1 and me.fence()
    me.connection.pipeline([("SUNSUBSCRIBE", me.channel), ("SLOCK.UNLOCK", KEY, "first")])
    assert behind.fence() and line.holders() == [NEXT] and line.queued() == []


def test_another_subscriber_of_the_channel_will_do(line: Line, me: Listener) -> None:
    """All who listen are told, and one of them is enough."""
    line.locks.lock(KEY, HOLDER, HOUR)
    other, third = (Listener(line.server, channel=me.channel) for _ in range(2))
    assert me.ask(*LOCK) is None
    hang_up(line.server, me.connection)
    assert line.release(HOLDER) == 1 and other.fence() == third.fence()
    assert other.messages() == [] == third.messages()


# --- what comes and goes leaves nothing behind


@pytest.mark.parametrize("end", ["granted", "no subscriber"])
def test_many_requests_come_and_go_and_leave_nothing_behind(make_server: MakeServer, end: str) -> None:
    requests = rounds(2000, 100_000)
    line = Line(make_server(slock_max_waiters=2 * requests, client_output_buffer_limit="pubsub 0 0 0"))

    def used() -> int:
        return line.client.info("memory")["used_memory"]

    def come_and_go() -> None:
        me, raw = Listener(line.server), line.server.raw()
        assert line.locks.lock(KEY, HOLDER, HOUR)
        for number in range(requests):
            take = ("SLOCK.RLOCK", KEY, number, HOUR, "WAIT", 0, "NOTIFY", me.channel, number)
            assert raw.ok(*take) is None
        assert line.count("waiters") == requests
        if end == "granted":
            assert line.release(HOLDER) == 1
            told = [me.message() for _ in range(requests)]
            assert len({fence for fence, _ in told}) == len({tag for _, tag in told}) == requests
            assert me.messages() == []
        me.connection.close(), raw.close()
        line.wait_for_waiters(0)
        line.client.flushall()
        wait_until(lambda: line.client.info("clients")["connected_clients"] == 1, what="all to be gone")

    come_and_go()
    before = used()
    come_and_go()
    wait_until(lambda: used() - before < requests * 50, what="the memory to be given back")
    assert line.count("no_subscriber") == (2 * requests if end == "no subscriber" else 0)
