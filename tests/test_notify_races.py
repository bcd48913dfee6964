"""Requests answered on a channel, at about whose moment of the grant something else happens to them.

A round is one of harness/moment_of_grant.py: `first` and `next` wait, both by NOTIFY. A fence that was told
is good until its ttl; while the subscriber lives each request is told once; and never two hold at once.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator

import pytest

from harness import MakeServer, RespError, Server, rounds
from harness.causes import HOLDER, KEY
from harness.moment_of_grant import FIRST, NEXT, HandOffs, holders, in_one_turn, poll, slow_script
from harness.notify import Listener, NotifiedClient
from harness.system_calls import AOF, SYNCS, traced
from harness.waiting import HOUR, Command


class Notified(HandOffs):
    """Rounds in which those who wait are told on their channels."""

    waiter = NotifiedClient

    def begin(self, key: str, *, wait: int = 0, script_behind: bool = False) -> None:
        self.key, self.is_shared = key, False
        assert self.control.ok("SLOCK.LOCK", key, HOLDER, HOUR) and not script_behind
        # They wait when they have read their null.
        self.first.ask("SLOCK.LOCK", key, FIRST, HOUR, "WAIT", wait)
        self.next.ask("SLOCK.LOCK", key, NEXT, HOUR, "WAIT", 0)

    def outcome(self) -> int:
        """What the first is told, its subscription being there: one message."""
        told = self.first.reply()
        assert not isinstance(told, RespError), told
        return told

    def end_of_living(self, told: int) -> None:
        """The end of a round that the subscriber has lived through. A hold that it was not told fails."""
        assert self.end(told or None, has_gone=False) == (told > 0), f"{self.key}: {told} was told"
        assert self.first.listener.messages() == [] == self.next.listener.messages(), "told twice"


@pytest.fixture(scope="module", params=[1, 3], ids=["one thread", "three threads"])
def threaded(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(name="threaded", busy_reply_threshold=1, io_threads=request.param).start()
    yield server
    try:
        server.stop()
    finally:
        server.discard()


@pytest.fixture
def rivals(threaded: Server) -> Notified:
    threaded.client().flushall()
    return Notified(threaded)


def test_release_and_cancel(rivals: Notified) -> None:
    """CANCEL says 1: 0 is told, and there is no hold. It says 0: the fence is."""
    told: Counter[bool] = Counter()
    for number in range(rounds(50, 2000)):
        rivals.begin(f"k{number}")
        cancel: Command = ("SLOCK.CANCEL", rivals.key, FIRST)
        if number % 3 == 0:  # in the turn of the release the grant has not been made
            where = "transaction" if number % 2 else "pipeline"
            assert in_one_turn(rivals.control, [rivals.release, cancel], where) == [1, 1]
            cancelled = 1
        else:
            steps = [lambda: rivals.send_release(), lambda cancel=cancel: rivals.other.send(*cancel)]
            for step in steps if number % 3 == 1 else reversed(steps):
                step()
                rivals.spin(0.0003)
            rivals.released()
            cancelled = rivals.finish(rivals.other, cancel)
        fence = rivals.outcome()
        assert cancelled == (fence == 0), (rivals.key, cancelled, fence)
        rivals.end_of_living(fence)
        told[fence > 0] += 1
    print(told)
    rivals.judge()


def test_time_out_and_grant(rivals: Notified) -> None:
    told: Counter[bool] = Counter()
    for number in range(rounds(50, 2000)):
        rivals.begin(f"k{number}", wait=2)
        rivals.spin(0.003)
        if number % 2:
            rivals.turn()
        rivals.send_release()
        rivals.released()
        fence = rivals.outcome()
        rivals.end_of_living(fence)
        told[fence > 0] += 1
    print(told)
    rivals.judge()


@pytest.mark.parametrize("how", ["kill", "close", "reset", "RESET", "SUNSUBSCRIBE"])
def test_the_subscriber_goes_at_about_the_moment_of_the_grant(rivals: Notified, how: str) -> None:
    """It is told, and then the hold stays; or it is not told, and there is a hold until its ttl, or none."""
    for number in range(rounds(20, 2000)):
        first, moment = rivals.first, number % 4
        rivals.begin(f"k{number}")
        kill = ("CLIENT", "KILL", "ID", first.id)
        in_turn = [(rivals.release, kill), (kill, rivals.release)]
        if how == "kill" and moment < 2:
            where = "transaction" if number % 8 < 4 else "pipeline"
            assert in_one_turn(rivals.control, list(in_turn[moment]), where) == [1, 1]
            assert first.outcome() is None, "it was told a fence when its subscription was gone"
            assert not rivals.end(None, has_gone=True), "it was granted when its subscription was gone"
            continue
        if moment == 0:
            rivals.turn()
        rivals.send_release()
        rivals.spin(0.0003)
        told = rivals.read_away() if moment == 1 else None
        if how == "kill":
            rivals.other.send(*kill)
        elif how in ("close", "reset"):
            getattr(first.connection, how)()
        else:
            first.connection.send(how)
        rivals.released()
        if how == "kill":
            assert rivals.finish(rivals.other, kill) == 1
            told = told or first.outcome()
        elif how in ("RESET", "SUNSUBSCRIBE"):
            told = _last_words(first.listener) or told
            first.connection.close()
        rivals.end(told, has_gone=True)
    rivals.judge()


def _last_words(listener: Listener) -> int | None:
    """Reads up to the answer to the end of the subscription; a message that comes later is a mistake."""
    told, connection = None, listener.connection
    while (value := connection.read()) != b"RESET" and value[0] != b"sunsubscribe":
        listener.told.append(value)
        told = listener.message()[0]
    assert connection.ok("PING") == connection.ok("PING") == b"PONG", "it was told without a subscription"
    return told


def test_a_slow_script_runs_at_about_the_moment_of_the_grant(rivals: Notified) -> None:
    """In its middle the server serves connections: the subscriber closes, is told, or stays."""
    script = slow_script()
    for number in range(rounds(30, 2000)):
        rivals.begin(f"k{number}")
        runner = rivals.control if number % 2 else rivals.other
        rivals.send_release(*([script] if runner is rivals.control else []))
        if runner is rivals.other:
            rivals.spin(0.0002)
            rivals.other.send(*script)
        when = number % 3
        told = rivals.fence() if when else rivals.read_away(0.01)
        if when != 2:
            rivals.first.connection.close()
        rivals.released()
        assert rivals.finish(runner, script) == 1
        if when == 2:
            rivals.end_of_living(told)
        else:
            rivals.end(told, has_gone=True)
    rivals.judge()


# --- the log


@pytest.mark.skipif(not shutil.which("strace"), reason="needs the program strace")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("where", ["alone", "transaction", "with a backlog"])
def test_a_grant_is_written_and_synced_before_its_message_leaves(
    make_server: MakeServer, threads: int, where: str
) -> None:
    server = make_server(appendonly=True, appendfsync="always", io_threads=threads)
    control, client = server.raw(), server.client()
    release = ("SLOCK.UNLOCK", KEY, HOLDER)
    for number in range(rounds(2, 8)):
        token = f"owner-{number}-of-the-lock"
        owner = Listener(server)
        assert control.ok("SLOCK.LOCK", KEY, HOLDER, HOUR)
        assert owner.ask("SLOCK.LOCK", KEY, token, HOUR) is None
        backlog = 24 if where == "with a backlog" else 0
        for _ in range(backlog):
            client.execute_command("SPUBLISH", owner.channel, b"x" * 1_000_000)
        (state,) = client.client_list(client_id=[owner.id])
        with traced(server) as calls:
            if where == "transaction":
                assert in_one_turn(control, [release], where) == [1]
            else:
                control.send(*release)
            for _ in range(backlog):
                assert len(owner.connection.read()[2]) == 1_000_000
            fence = owner.fence()
            assert where == "transaction" or control.read() == 1
            assert [control.ok("PING"), control.ok("PING")] == [b"PONG"] * 2
        logged = next(call for call in calls if token in call.data and AOF in call.path)
        synced = next(call for call in calls if call.name in SYNCS and call.begun > logged.ended)
        assert synced.fd == logged.fd and synced.result == 0 and logged.result > 0
        told = [call for call in calls if call.fd == int(state["fd"]) and call.result > 0][-1]
        assert backlog or f"{fence} tag" in told.data
        assert synced.ended < told.begun, (logged, synced, told._replace(data=""))
        assert holders(control, KEY) == {token: fence} and control.ok("SLOCK.UNLOCK", KEY, token) == 1
        owner.connection.close()
        poll(lambda: not holders(control, KEY), "it to be free")
