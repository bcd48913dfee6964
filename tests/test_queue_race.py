"""A waiter that goes in the very loop iteration of its grant: it was told, or the next one has the lock.

One connection sends the release and the departure in one write, so that the server runs both before it can
deliver anything. Nobody may be left without a reply, and nobody may hold a lock of which nobody knows.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from harness import RawConnection, RespError, Server, wait_until
from harness.causes import HOLDER, KEY
from harness.many import many
from harness.parked import HOUR, Line, Parked, at_once, wait_unblocked

pytest_plugins = ["harness.going_home"]

REPETITIONS = 300

RELEASE = ("SLOCK.UNLOCK", KEY, HOLDER)
Command = tuple[str | int, ...]
MakeServer = Callable[..., Server]


class Duel:
    """A first waiter that is made to go while it is granted, and a second behind it."""

    def __init__(self, server: Server, how: str = "") -> None:
        self.server = server
        self.how = how
        self.line = Line(server)
        self.control = server.raw()
        self.first: Parked | None = None
        self.second: Parked | None = None

    def begin(self) -> None:
        assert self.control.ok("SLOCK.LOCK", KEY, HOLDER, HOUR)
        self.first = self._park(self.first, "first")
        self.second = self._park(self.second, "second")

    def _park(self, old: Parked | None, token: str) -> Parked:
        parked = old or Parked(self.server, token)
        parked.ask("SLOCK.LOCK", KEY, token, HOUR, "WAIT", 0)
        self.line.settle(parked)
        return parked

    def end(self) -> Any:
        """Checks what came of it and returns what the first was told (None: its connection was closed)."""
        assert self.first and self.second
        told = self.first.outcome()
        if isinstance(told, int) and told > 0:
            assert self.second.is_waiting()
            assert self.line.holders() == ["first"], "who was told does not hold it"
            assert self.control.ok("SLOCK.UNLOCK", KEY, "first") == 1
        else:
            assert told in (0, None) or (isinstance(told, RespError) and told.prefix == "UNBLOCKED"), told
        assert self.second.fence()
        assert self.line.holders() == ["second"]
        assert self.control.ok("SLOCK.UNLOCK", KEY, "second") == 1
        if told is None or self.how == "KILL":
            self.first = None
        return told

    def departure(self) -> Command:
        assert self.first
        if self.how == "KILL":
            return ("CLIENT", "KILL", "ID", self.first.id)
        return ("CLIENT", "UNBLOCK", self.first.id, self.how)

    def agrees(self, departure_reply: Any, told: Any) -> bool:
        """CLIENT UNBLOCK says 0 to whoever found nobody to unblock: then the client has its grant."""
        if self.how == "KILL":
            return departure_reply == 1
        if departure_reply == 0:
            return isinstance(told, int) and told > 0
        return isinstance(told, int if self.how == "TIMEOUT" else RespError)


every_departure = pytest.mark.parametrize("how", ["KILL", "TIMEOUT", "ERROR"])


@every_departure
@pytest.mark.parametrize("order", ["release first", "departure first"])
def test_in_one_pipeline(server: Server, how: str, order: str) -> None:
    duel = Duel(server, how)
    for _ in range(REPETITIONS):
        duel.begin()
        commands = [RELEASE, duel.departure()]
        if order == "departure first":
            commands.reverse()
        replies = duel.control.pipeline(commands)
        if order == "departure first":
            replies.reverse()
        assert replies[0] == 1
        told = duel.end()
        assert duel.agrees(replies[1], told), (replies, told)
    wait_unblocked(duel.line.client)
    assert duel.line.info() is None


@every_departure
def test_in_one_transaction(server: Server, how: str) -> None:
    duel = Duel(server, how)
    for _ in range(REPETITIONS):
        duel.begin()
        *_, replies = duel.control.pipeline([("MULTI",), RELEASE, duel.departure(), ("EXEC",)])
        assert replies[0] == 1
        told = duel.end()
        assert duel.agrees(replies[1], told), (replies, told)
    wait_unblocked(duel.line.client)
    assert duel.line.info() is None


# --- clients that the server has given up: their replies go nowhere


USER = "mortal"
DELETE_USER = ("ACL", "DELUSER", USER)
GIVEN_UP = {
    "release first": [RELEASE, DELETE_USER],
    "departure first": [DELETE_USER, RELEASE],
    "in one transaction": [("MULTI",), RELEASE, DELETE_USER, ("EXEC",)],
}


def _mortal(duel: Duel, token: str) -> Parked:
    duel.control.ok("ACL", "SETUSER", USER, "on", "nopass", "~*", "+@all")
    parked = Parked(duel.server, token)
    parked.connection.ok("AUTH", USER, "any")
    return parked


@pytest.mark.parametrize("commands", GIVEN_UP.values(), ids=GIVEN_UP)
def test_a_client_that_is_to_be_closed_soon_is_not_granted(server: Server, commands: list[Command]) -> None:
    """The server closes it at the end of the turn, and drops until then what it is told."""
    duel = Duel(server)
    for _ in range(20):
        duel.first = _mortal(duel, "first")
        duel.begin()
        duel.control.pipeline(commands)
        assert duel.end() is None
    wait_unblocked(duel.line.client)
    assert duel.line.info() is None


def test_an_upgrade_of_such_a_client_leaves_the_reader_it_was(server: Server) -> None:
    duel = Duel(server)
    fence = duel.line.locks.rlock(KEY, "first", HOUR)
    duel.line.locks.rlock(KEY, "other", HOUR)
    upgrader = _mortal(duel, "first")
    upgrader.ask("SLOCK.UPGRADE", KEY, "first", HOUR, "WAIT", 0)
    duel.line.settle(upgrader)
    duel.control.pipeline([("SLOCK.RUNLOCK", KEY, "other"), DELETE_USER])
    assert upgrader.outcome() is None
    wait_until(lambda: duel.line.locks.info(KEY).mode == "read", what="the upgrade to be taken back")
    assert duel.line.locks.check(KEY, fence) == 1


def test_who_is_unblocked_at_the_grant_of_an_upgrade_releases_as_the_reader_it_was(server: Server) -> None:
    """Whatever comes next finds the read hold again, be it in the same turn of the event loop."""
    duel = Duel(server)
    duel.line.locks.rlock(KEY, "first", HOUR)
    duel.line.locks.rlock(KEY, "other", HOUR)
    upgrader = Parked(server, "first")
    upgrader.ask("SLOCK.UPGRADE", KEY, "first", HOUR, "WAIT", 0)
    duel.line.settle(upgrader)
    release = ("SLOCK.RUNLOCK", KEY, "other")
    unblock = ("CLIENT", "UNBLOCK", upgrader.id, "ERROR")
    assert duel.control.pipeline([release, unblock, ("SLOCK.RUNLOCK", KEY, "first")]) == [1, 1, 1]
    assert upgrader.error().startswith("UNBLOCKED ")
    assert duel.line.info() is None


def test_a_client_that_is_unblocked_and_then_killed(server: Server) -> None:
    duel = Duel(server, "KILL")
    for _ in range(50):
        duel.begin()
        assert duel.first
        unblock = ("CLIENT", "UNBLOCK", duel.first.id, "TIMEOUT")
        duel.control.pipeline([RELEASE, unblock, duel.departure()])
        assert duel.end() is None
    wait_unblocked(duel.line.client)


def test_a_client_that_was_told_and_quits_keeps_its_hold(server: Server) -> None:
    duel = Duel(server)
    for _ in range(50):
        duel.first = Parked(server, "first")
        duel.begin()
        duel.first.ask("QUIT")
        assert duel.control.ok(*RELEASE) == 1
        assert duel.first.fence() and duel.first.reply() == b"OK" and duel.first.outcome() is None
        assert duel.line.holders() == ["first"]
        assert duel.control.ok("SLOCK.UNLOCK", KEY, "first") == 1
        assert duel.second and duel.second.fence()
        duel.control.ok("SLOCK.UNLOCK", KEY, "second")


def test_a_client_that_quits_and_is_killed_before_it_was_sent_anything(server: Server) -> None:
    """It is killed by a client that was granted in the same turn, and so before any reply has left."""
    duel = Duel(server)
    duel.begin()
    assert duel.first and duel.second
    duel.first.ask("QUIT")
    killer, other = Parked(server, "killer"), Line(server, "other")
    other.locks.lock("other", HOLDER, HOUR)
    killer.ask("SLOCK.LOCK", "other", "killer", HOUR, "WAIT", 0)
    other.settle(killer)
    killer.ask("CLIENT", "KILL", "ID", duel.first.id)
    assert duel.control.ok(*many("MUNLOCK", [KEY, "other"], HOLDER)) == 2
    assert killer.fence() and killer.reply() == 1
    assert duel.first.outcome() is None and duel.second.fence()


def test_a_client_that_was_told_and_closes_at_once_keeps_its_hold(server: Server) -> None:
    duel = Duel(server)
    for _ in range(REPETITIONS):
        duel.first = Parked(server, "first")
        duel.begin()
        duel.control.send(*RELEASE)
        assert duel.first.fence()
        duel.first.connection.close()
        assert duel.control.read() == 1
        wait_until(lambda: len(duel.line.client.client_list(client_id=[duel.first.id])) == 0, what="its end")
        assert duel.line.holders() == ["first"]
        assert duel.control.ok("SLOCK.UNLOCK", KEY, "first") == 1
        assert duel.second and duel.second.fence()
        duel.control.ok("SLOCK.UNLOCK", KEY, "second")


def test_a_client_that_was_told_and_is_evicted_keeps_its_hold(make_server: MakeServer) -> None:
    """The server evicts it in the same turn of the event loop, after it has been sent its reply."""
    server = make_server(save="")
    duel = Duel(server)
    duel.control.ok("CLIENT", "NO-EVICT", "on")
    duel.begin()
    assert duel.first
    # The fattest client is evicted: most of a long command stands in its buffer.
    duel.first.connection.socket.sendall(b"*2\r\n$4\r\nECHO\r\n$900000\r\n" + b"x" * 600_000)
    wait_until(lambda: _query_buffer(duel, duel.first) > 500_000, what="the server to read it")
    replies = duel.control.pipeline([RELEASE, ("CONFIG", "SET", "maxmemory-clients", "300kb")])
    assert replies == [1, b"OK"]
    assert duel.first.fence() and duel.first.outcome() is None
    assert duel.line.holders() == ["first"]


def _query_buffer(duel: Duel, parked: Parked) -> int:
    (client,) = duel.line.client.client_list(client_id=[parked.id])
    return int(client["qbuf"])


@every_departure
@pytest.mark.parametrize(
    "cause", [("DEL", KEY), ("FLUSHALL", "ASYNC"), ("SLOCK.EXTEND", KEY, HOLDER, 1)], ids=str
)
def test_with_other_causes_than_a_release(server: Server, how: str, cause: Command) -> None:
    duel = Duel(server, how)
    sleep = ("DEBUG", "SLEEP", "0.002") if cause[0] == "SLOCK.EXTEND" else ("PING",)
    for _ in range(REPETITIONS // 3):
        duel.begin()
        *_, reply = duel.control.pipeline([cause, sleep, duel.departure()])
        assert duel.agrees(reply, duel.end())
    wait_unblocked(duel.line.client)


@every_departure
def test_from_two_connections_at_about_the_same_moment(server: Server, how: str) -> None:
    """The departure comes in the same iteration as the release, or in one of the next."""
    duel = Duel(server, how)
    other = server.raw()
    chance = random.Random(3)
    for _ in range(REPETITIONS):
        duel.begin()
        duel.control.send(*RELEASE)
        until = time.perf_counter() + chance.uniform(0, 0.0003)
        while time.perf_counter() < until:
            pass
        other.send(*duel.departure())
        assert duel.control.read() == 1
        reply = other.read()
        told = duel.end()
        if how != "KILL":
            assert duel.agrees(reply, told), (reply, told)
    wait_unblocked(duel.line.client)


def test_a_connection_that_closes_while_it_is_granted(server: Server) -> None:
    """It cannot say what it was told; but the lock is its own or the next one's, and never nobody's."""
    duel = Duel(server)
    chance = random.Random(5)
    granted = 0
    for _ in range(REPETITIONS):
        duel.begin()
        if chance.random() < 0.5:
            duel.first.connection.reset()
            duel.control.send(*RELEASE)
        else:
            duel.control.send(*RELEASE)
            duel.first.connection.reset()
        assert duel.control.read() == 1
        duel.first = None
        while not duel.second.connection.has_reply(0.02):
            granted += duel.control.ok("SLOCK.UNLOCK", KEY, "first")
        assert duel.second.fence()
        assert duel.line.holders() == ["second"]
        duel.control.ok("SLOCK.UNLOCK", KEY, "second")
    print(f"{granted} of {REPETITIONS} were granted before the server saw them go")
    wait_unblocked(duel.line.client)
    assert duel.line.info() is None


def test_time_outs_at_the_moment_of_the_release(server: Server) -> None:
    """Clients whose WAIT ends just when the lock comes free: each is told 0 or holds it, whatever it was."""
    line = Line(server)
    chance = random.Random(7)
    failures: list[str] = []
    stop = threading.Event()

    def contend(number: int, wait: int) -> None:
        with RawConnection(server.port) as mine:
            token = f"t{number}"
            while not stop.is_set():
                reply = mine.call("SLOCK.LOCK", KEY, token, HOUR, "WAIT", wait)
                if reply == 0:
                    continue
                if not isinstance(reply, int) or mine.call("SLOCK.UNLOCK", KEY, token) != 1:
                    failures.append(f"{token} was told {reply!r} and did not hold the lock")
                    return

    threads = [threading.Thread(target=contend, args=(n, 1 + n % 4)) for n in range(8)]
    for thread in threads:
        thread.start()
    control = server.raw()
    for _ in range(REPETITIONS):
        if control.ok("SLOCK.LOCK", KEY, HOLDER, HOUR, "WAIT", 50):
            until = time.perf_counter() + chance.uniform(0.0005, 0.005)
            while time.perf_counter() < until:
                pass
            assert control.ok(*RELEASE) == 1
    stop.set()
    for thread in threads:
        thread.join(20)
    assert not failures and not any(thread.is_alive() for thread in threads)
    wait_unblocked(line.client)
    assert line.info() is None


def test_everybody_is_unblocked_in_the_iteration_in_which_all_are_granted(server: Server) -> None:
    line = Line(server)
    line.locks.lock(KEY, HOLDER, HOUR)
    for round_number in range(30):
        readers = [line.read(f"r{number}") for number in range(10)]
        writer = line.write("writer")
        how = ("TIMEOUT", "ERROR")[round_number % 2]
        unblocks = [("CLIENT", "UNBLOCK", reader.id, how) for reader in readers]
        at_once(server, RELEASE, *unblocks)
        told = [reader.reply() for reader in readers]
        for reader, reply in zip(readers, told, strict=True):
            if isinstance(reply, int) and reply > 0:
                assert line.release(reader.token) == 1
            else:
                assert line.release(reader.token) == 0
        assert writer.fence()
        assert line.holders() == ["writer"]
        line.release("writer")
        line.locks.lock(KEY, HOLDER, HOUR)
        for parked in [*readers, writer]:
            parked.connection.close()
    wait_unblocked(line.client)
