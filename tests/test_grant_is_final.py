"""A grant is made at the end of the turn of the event loop in which the lock came free, and is final then.

Whoever goes before that moment was never granted. Whoever goes after it leaves a hold that lasts until its
ttl, whether its client has read the fence or not.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from harness import (
    RawConnection,
    ReplicationStream,
    RespError,
    Server,
    rounds,
    wait_synced,
    wait_until,
)
from harness.causes import HOLDER, KEY
from harness.locks import as_dict
from harness.many import many
from harness.moment_of_grant import FIRST, NEXT, HandOffs, holders, slow_script, wait_gone
from harness.settings import free_port
from harness.waiting import HOUR, Line, WaitingClient, at_once, is_blocked, wait_unblocked

pytest_plugins = ["harness.cleanup"]

MakeServer = Callable[..., Server]

RELEASE = ("SLOCK.UNLOCK", KEY, HOLDER)


# --- whoever goes at about the moment of its grant

THREADS = {
    "one thread": {"io_threads": 1},
    "three threads": {"io_threads": 3},
    "three threads that read": {"io_threads": 3, "io_threads_do_reads": True},
}


@pytest.fixture(scope="module", params=THREADS.values(), ids=THREADS)
def threaded(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(name="threaded", busy_reply_threshold=1, **request.param).start()
    yield server
    try:
        server.stop()
    finally:
        server.discard()


def _kill(hand_offs: HandOffs, number: int) -> None:
    assert hand_offs.first
    kill = ("CLIENT", "KILL", "ID", hand_offs.first.id)
    told = None
    moment = number % 8
    if moment < 2:
        commands = [hand_offs.release, kill]
        assert hand_offs.control.pipeline(commands[:: 1 if moment else -1]) == [1, 1]
    else:
        if moment == 2:
            hand_offs.turn()
        if moment == 3:
            hand_offs.other.send(*kill)
        hand_offs.send_release()
        if moment == 4:
            told = hand_offs.fence()
        if moment > 4:
            hand_offs.spin(0.0002)
        if moment != 3:
            hand_offs.other.send(*kill)
        hand_offs.released()
        assert hand_offs.finish(hand_offs.other, kill) == 1
    # What was sent before the connection was closed can be read still.
    held = hand_offs.end(told or hand_offs.first.outcome(), has_gone=True)
    assert not (held and moment < 2), "it had gone before the end of the turn"


def _close(hand_offs: HandOffs, number: int, leave: Callable[[RawConnection], None]) -> None:
    assert hand_offs.first
    told = None
    moment = number % 6
    if moment == 0:
        hand_offs.turn()
    if moment == 1:
        leave(hand_offs.first.connection)
    hand_offs.send_release()
    if moment == 2:
        told = hand_offs.fence()
    if moment > 2:
        hand_offs.spin(0.0002)
    if moment != 1:
        told = told or hand_offs.read_away()
        leave(hand_offs.first.connection)
    hand_offs.released()
    hand_offs.end(told, has_gone=True)


def _slow_script(hand_offs: HandOffs, number: int) -> None:
    """The first closes when it has read its fence, or at some moment of the script, or it stays."""
    assert hand_offs.first
    script = slow_script()
    runner = None if hand_offs.is_shared else hand_offs.other if number % 4 else hand_offs.control
    hand_offs.send_release(*([script] if runner is hand_offs.control else []))
    if runner is hand_offs.other:
        hand_offs.spin(0.0002)
        hand_offs.other.send(*script)
    when = number % 3
    told = hand_offs.fence() if when else hand_offs.read_away(0.01)
    if when != 2:
        hand_offs.first.connection.close()
    hand_offs.released()
    if runner:
        assert hand_offs.finish(runner, script) == 1
    hand_offs.end(told, has_gone=when != 2)


GOINGS: dict[str, Callable[[HandOffs, int], None]] = {
    "killed": _kill,
    "closed": lambda hand_offs, number: _close(hand_offs, number, RawConnection.close),
    "reset": lambda hand_offs, number: _close(hand_offs, number, RawConnection.reset),
    "closed beside a slow script": _slow_script,
    "closed while the script behind another wait runs": _slow_script,
}


@pytest.mark.parametrize("going", GOINGS)
def test_who_goes_at_the_moment_of_its_grant(threaded: Server, going: str) -> None:
    """A fence that was read stays good; else the hold stays, or the next is served; and never two at once."""
    hand_offs = HandOffs(threaded)
    hand_offs.control.ok("FLUSHALL")
    for number in range(rounds(25, 2000)):
        hand_offs.begin(f"k{number}", script_behind="behind" in going)
        GOINGS[going](hand_offs, number)
    hand_offs.judge()


A_AND_B = {
    "two locks, one MUNLOCK": (
        [("SLOCK.LOCK", "k", "a", HOUR, "WAIT", 0), ("SLOCK.LOCK", "k2", "b", HOUR, "WAIT", 0)],
        many("MUNLOCK", "k k2", HOLDER),
    ),
    "requests for many keys": (
        [many("MLOCK", "k x", "a", HOUR, "WAIT", 0), many("MRLOCK", "k2 y", "b", HOUR, "WAIT", 0)],
        many("MUNLOCK", "k k2", HOLDER),
    ),
    "readers of one key": (
        [("SLOCK.RLOCK", "k", "a", HOUR, "WAIT", 0), ("SLOCK.RLOCK", "k", "b", HOUR, "WAIT", 0)],
        many("MUNLOCK", "k", HOLDER),
    ),
}


@pytest.mark.parametrize(("requests", "release"), A_AND_B.values(), ids=A_AND_B)
def test_who_reads_its_fence_and_closes_while_a_script_runs_keeps_its_hold(
    make_server: MakeServer, requests: list[tuple], release: tuple
) -> None:
    """A script that stands behind the other's wait begins when both are granted."""
    server = make_server(busy_reply_threshold=1)
    line, control = Line(server), server.raw()
    for _ in range(rounds(3, 20)):
        for key in release[2:-1]:
            assert control.ok("SLOCK.LOCK", key, HOLDER, HOUR)
        a, b = WaitingClient(server, "a"), WaitingClient(server, "b")
        for waiter, request in zip((a, b), requests, strict=True):
            waiter.ask(*request)
            line.wait_until_waiting(waiter)
        behind = line.write("behind")
        b.ask(*slow_script(0.1))
        assert control.ok(*release) == len(release) - 3
        fence = a.fence()
        a.connection.close()
        assert b.fence() and b.reply() == 1
        wait_gone(control, a.id)
        assert holders(control, KEY).get("a") == fence
        assert control.ok("SLOCK.CHECK", KEY, fence) == 1 and behind.is_waiting()
        line.client.flushall()
        assert behind.fence()
        line.client.flushall()


@pytest.mark.parametrize("asked", ["in the turn of the release", "after its reply"])
def test_what_pttl_says_of_a_waiter_that_closes_stays_true(server: Server, asked: str) -> None:
    hand_offs = HandOffs(server)
    wrong = []
    for number in range(rounds(50, 1000)):
        hand_offs.begin(f"pttl{number}")
        assert hand_offs.first
        ask = ("SLOCK.PTTL", hand_offs.key, FIRST)
        if asked == "after its reply":
            hand_offs.send_release()
            hand_offs.first.connection.close()
            hand_offs.released()
            with server.raw() as late:
                said = late.ok(*ask)
        else:
            hand_offs.turn()
            hand_offs.send_release(ask)
            hand_offs.first.connection.close()
            hand_offs.released()
            said = hand_offs.control.read()
        held = hand_offs.end(None, has_gone=True)
        # In the turn of the release nobody has been granted yet, but may be at its end.
        if held != (said > 0) and (said > 0 or asked == "after its reply"):
            wrong.append((hand_offs.key, said, held))
    assert not wrong, f"{len(wrong)} answers did not stay true: {wrong[:3]}"
    hand_offs.judge()


# --- replies that do not leave

BACKLOG = 24


def _wait_behind_replies(line: Line, token: str, replies: int) -> WaitingClient:
    """A client that waits for the lock, and has not read so many replies of 1 MB to earlier commands."""
    line.client.set("big", b"x" * 1_000_000)
    waiter = WaitingClient(line.server, token)
    for _ in range(replies):
        waiter.ask("GET", "big")
    waiter.ask("SLOCK.LOCK", KEY, token, HOUR, "WAIT", 0)
    wait_until(lambda: is_blocked(line.client, waiter.id), what="it to wait")
    (state,) = line.client.client_list(client_id=[waiter.id])
    assert not replies or int(state["omem"]) > 1_000_000, "nothing waits to be sent"
    return waiter


@pytest.mark.parametrize("how", ["closed", "reset", "over its output limit"])
def test_a_fence_that_never_leaves_the_server_is_a_hold(make_server: MakeServer, how: str) -> None:
    server = make_server(hz=1, dynamic_hz=False)
    line, control = Line(server), server.raw()
    fence = control.ok("SLOCK.LOCK", KEY, HOLDER, HOUR)
    first = _wait_behind_replies(line, FIRST, BACKLOG)
    behind = line.write(NEXT)
    limit = ("CONFIG", "SET", "client-output-buffer-limit", "normal 1000000 0 0")
    assert control.pipeline([("PING",) if how != "over its output limit" else limit, RELEASE])[1] == 1
    if how != "over its output limit":
        wait_until(lambda: FIRST in holders(control, KEY), what="the grant")
        (first.connection.close if how == "closed" else first.connection.reset)()
    wait_gone(control, first.id)
    assert holders(control, KEY).get(FIRST, 0) > fence and behind.is_waiting()
    assert control.ok("SLOCK.UNLOCK", KEY, FIRST) == 1
    assert behind.fence()


# --- whoever is answered otherwise in the turn of its grant


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
@pytest.mark.parametrize("where", ["pipeline", "transaction"])
def test_who_is_unblocked_in_the_turn_of_the_release_was_never_granted(
    make_server: MakeServer, how: str, where: str
) -> None:
    server = make_server()
    hand_offs, stream = HandOffs(server), ReplicationStream(server)
    for number in range(rounds(25, 500)):
        hand_offs.begin(f"unblock{number}")
        assert hand_offs.first
        commands = [hand_offs.release, ("CLIENT", "UNBLOCK", hand_offs.first.id, how)]
        if where == "pipeline":
            replies = hand_offs.control.pipeline(commands)
        else:
            replies = hand_offs.control.pipeline([("MULTI",), *commands, ("EXEC",)])[-1]
        assert replies == [1, 1], "it was granted before the end of the turn"
        told = hand_offs.first.reply()
        assert told == 0 if how == "TIMEOUT" else told.prefix == "UNBLOCKED", told
        assert not hand_offs.end(None, has_gone=False)
    said = b" ".join(word for command in stream.commands() for word in command)
    assert NEXT.encode() in said and FIRST.encode() not in said
    hand_offs.judge()


@pytest.mark.parametrize("cause", [RELEASE, ("DEL", KEY), ("SLOCK.EXTEND", KEY, HOLDER, 1)], ids=str)
def test_wait_tells_a_new_owner_whether_a_replica_has_its_grant(
    primary_and_replica: tuple[Server, Server], cause: tuple
) -> None:
    primary, replica = primary_and_replica
    line = Line(primary)
    line.locks.lock(KEY, HOLDER, HOUR)
    first = line.write(FIRST)
    wait_synced(primary, replica)
    replica.pause()
    assert at_once(primary, cause) == [1]
    assert first.fence()
    first.ask("WAIT", 1, 300)
    assert first.reply() == 0, "the replica is stopped and cannot have it"
    replica.resume()
    first.ask("WAIT", 1, 10_000)
    assert first.reply() == 1


@pytest.mark.parametrize("where", ["pipeline", "transaction"])
def test_a_release_and_a_demotion_in_one_turn_leave_no_hold(make_server: MakeServer, where: str) -> None:
    server = make_server()
    line, control = Line(server), server.raw()
    for _ in range(rounds(10, 200)):
        assert control.ok("SLOCK.LOCK", KEY, HOLDER, HOUR)
        waiting = [line.write("writer"), line.read("reader")]
        commands = [RELEASE, ("REPLICAOF", "127.0.0.1", free_port()), ("SLOCK.INFO", KEY, "FULL")]
        if where == "pipeline":
            released, _, info = control.pipeline(commands)
        else:
            released, _, info = control.pipeline([("MULTI",), *commands, ("EXEC",)])[-1]
        assert released == 1
        assert info is None or as_dict(info)["holders"] == []
        for outcome in (waiter.outcome() for waiter in waiting):
            assert outcome is None or isinstance(outcome, RespError), outcome
        assert holders(control, KEY) == {}, "who was turned away holds the lock"
        assert control.ok("REPLICAOF", "NO", "ONE")
        assert holders(control, KEY) == {}
    wait_unblocked(line.client)


# --- the log


class Call(NamedTuple):
    """A system call of the server. `begun` and `ended` are places in the order of what happened."""

    begun: int
    ended: int
    name: str
    fd: int
    path: str
    data: str
    result: int


SYNCS = ("fsync", "fdatasync")
CALLS = ("write", "writev", "pwrite64", "sendto", "sendmsg", *SYNCS)
AOF = "appendonlydir"
BEGUN = re.compile(r"^(\d+) +[\d:.]+ (\w+)\((\d+)(?:<([^>]*)>)?(.*)$")
RESUMED = re.compile(r"^(\d+) +[\d:.]+ <\.\.\. \w+ resumed>.*$")
RESULT = re.compile(r" = (-?\d+)(?: .*)?$")


def _calls(trace: str) -> list[Call]:
    calls, unfinished = [], {}
    for at, line in enumerate(trace.splitlines()):
        result = RESULT.search(line)
        if begun := BEGUN.match(line):
            thread, name, fd, path, data = begun.groups()
            call = Call(at, at, name, int(fd), path or "", data, 0)
        elif (resumed := RESUMED.match(line)) and resumed[1] in unfinished:
            call = unfinished.pop(thread := resumed[1])
        else:
            continue
        if result and not line.endswith("<unfinished ...>"):
            calls.append(call._replace(ended=at, result=int(result[1])))
        else:
            unfinished[thread] = call
    return calls


@contextmanager
def _traced(server: Server) -> Iterator[list[Call]]:
    """The list is filled when the block has ended."""
    calls: list[Call] = []
    trace = server.directory / "trace"
    options = ["-f", "-tt", "-y", "-s", "2048", "-e", "trace=" + ",".join(CALLS)]
    command = ["strace", *options, "-p", str(server.pid), "-o", str(trace)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr
        said = strace.stderr.readline()
        if "attached" not in said:
            strace.wait()
            pytest.skip(f"strace cannot attach to a process here: {said}")
        try:
            yield calls
        finally:
            strace.send_signal(signal.SIGINT)
            strace.wait()
    calls += _calls(trace.read_text(errors="replace"))


@pytest.mark.skipif(not shutil.which("strace"), reason="needs the program strace")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("backlog", [0, BACKLOG], ids=["no backlog", "a backlog"])
def test_a_grant_is_written_and_synced_before_its_reply_leaves(
    make_server: MakeServer, threads: int, backlog: int
) -> None:
    server = make_server(appendonly=True, appendfsync="always", io_threads=threads)
    line, control = Line(server), server.raw()
    for number in range(rounds(2, 8)):
        token = f"owner-{number}-of-the-lock"
        assert control.ok("SLOCK.LOCK", KEY, HOLDER, HOUR)
        owner = _wait_behind_replies(line, token, backlog)
        (state,) = line.client.client_list(client_id=[owner.id])
        with _traced(server) as calls:
            # The connection is being written to when the lock comes free.
            early = number * 5 % (backlog + 1)
            for _ in range(early):
                owner.reply()
            control.send(*RELEASE)
            for _ in range(backlog - early):
                owner.reply()
            fence = owner.fence()
            assert [control.read(), control.ok("PING"), control.ok("PING")] == [1, b"PONG", b"PONG"]
        logged = next(call for call in calls if token in call.data and AOF in call.path)
        synced = next(call for call in calls if call.name in SYNCS and call.begun > logged.ended)
        assert synced.fd == logged.fd and synced.result == 0 and logged.result > 0
        told = [call for call in calls if call.fd == int(state["fd"]) and call.result > 0][-1]
        assert backlog or f":{fence}" in told.data
        assert synced.ended < told.begun, (logged, synced, told._replace(data=""))
        assert control.ok("SLOCK.UNLOCK", KEY, token) == 1
        owner.connection.close()
