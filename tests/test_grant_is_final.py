"""A grant is made at the end of the turn of the event loop in which the lock came free, and is final then.

Whoever goes before was never granted; whoever goes after leaves a hold, whether it has read the fence or not.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from harness import MakeServer, ReplicationStream, Server, rounds, wait_synced, wait_until
from harness.causes import HOLDER, KEY
from harness.moment_of_grant import FIRST, NEXT, HandOffs, in_one_turn, slow_script
from harness.notify import Listener, NotifiedClient
from harness.system_calls import AOF, SYNCS, traced
from harness.waiting import HOUR, Line, WaitingClient, at_once, is_blocked

RELEASE = ("SLOCK.UNLOCK", KEY, HOLDER)
KILL = ("CLIENT", "KILL", "ID")

# --- before the end of the turn

CAUSES = {
    "UNLOCK": lambda key: [("SLOCK.UNLOCK", key, HOLDER)],
    "FLUSHALL": lambda key: [("FLUSHALL", "ASYNC")],
    "a deadline": lambda key: [("SLOCK.EXTEND", key, HOLDER, 1), ("DEBUG", "SLEEP", "0.002")],
}
ENDINGS = {
    "TIMEOUT": lambda client: [("CLIENT", "UNBLOCK", client, "TIMEOUT")],
    "ERROR": lambda client: [("CLIENT", "UNBLOCK", client, "ERROR")],
    "TIMEOUT and KILL": lambda client: [("CLIENT", "UNBLOCK", client, "TIMEOUT"), (*KILL, client)],
}


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
@pytest.mark.parametrize("where", ["pipeline", "transaction"])
def test_who_goes_before_the_end_of_the_turn_is_not_granted(
    server: Server, cause: Callable[[str], list[tuple]], how: str, where: str
) -> None:
    hand_offs, stream = HandOffs(server), ReplicationStream(server)
    for number in range(rounds(10, 200)):
        hand_offs.begin(f"k{number}")
        going = ENDINGS[how](hand_offs.first.id)
        replies = in_one_turn(hand_offs.control, [*cause(hand_offs.key), *going], where)
        assert replies[-len(going) :] == [1] * len(going), "it was granted before the end of the turn"
        has_gone = "KILL" in how
        told = None if has_gone else hand_offs.first.reply()
        assert has_gone or (told == 0 if how == "TIMEOUT" else told.prefix == "UNBLOCKED"), told
        assert not hand_offs.end(None, has_gone=has_gone)
    said = b" ".join(word for command in stream.commands() for word in command)
    assert NEXT.encode() in said and FIRST.encode() not in said
    hand_offs.judge()


@pytest.mark.parametrize("order", ["release first", "user first", "transaction"])
def test_a_client_whose_user_is_deleted_in_the_turn_of_its_grant(server: Server, order: str) -> None:
    """The server closes it at the end of the turn. It is granted, and its hold stays, or it never was."""
    hand_offs = HandOffs(server)
    delete = ("ACL", "DELUSER", "guest")
    for number in range(rounds(10, 200)):
        hand_offs.control.ok("ACL", "SETUSER", "guest", "on", "nopass", "~*", "+@all")
        hand_offs.first = WaitingClient(server, FIRST)
        hand_offs.first.connection.ok("AUTH", "guest", "any")
        hand_offs.begin(f"k{number}")
        commands = [delete, hand_offs.release] if order == "user first" else [hand_offs.release, delete]
        in_one_turn(hand_offs.control, commands, order)
        assert hand_offs.first.outcome() is None
        hand_offs.end(None, has_gone=True)
    hand_offs.judge()


# --- at about the moment of the grant

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


def _leave(hand_offs: HandOffs, number: int, how: str) -> None:
    """It goes before the release, in the same turn, when it has read its fence, or at some moment after."""
    first, kill = hand_offs.first, (*KILL, hand_offs.first.id)
    leave = partial(hand_offs.other.send, *kill) if how == "kill" else getattr(first.connection, how)
    told = None
    moment = number % 6
    if moment == 0:
        hand_offs.turn()
    if moment == 1:
        leave()
    hand_offs.send_release()
    if moment == 2:
        told = hand_offs.fence()
    if moment > 2:
        hand_offs.spin(0.0002)
    if moment != 1:
        told = told or hand_offs.read_away()
        leave()
    hand_offs.released()
    if how == "kill":
        assert hand_offs.finish(hand_offs.other, kill) == 1
        # What was sent before the connection was closed can be read still.
        told = told or first.outcome()
    hand_offs.end(told, has_gone=True)


def _slow_script(hand_offs: HandOffs, number: int) -> None:
    """The first closes when it has read its fence, or at some moment of the script, or it stays."""
    script = slow_script()
    runner = hand_offs.other if number % 4 else hand_offs.control
    hand_offs.send_release(*([script] if runner is hand_offs.control else []))
    if runner is hand_offs.other:
        hand_offs.spin(0.0002)
        hand_offs.other.send(*script)
    when = number % 3
    told = hand_offs.fence() if when else hand_offs.read_away(0.01)
    if when != 2:
        hand_offs.first.connection.close()
    hand_offs.released()
    assert hand_offs.finish(runner, script) == 1
    hand_offs.end(told, has_gone=when != 2)


GOINGS: dict[str, Callable[[HandOffs, int], None]] = {
    "killed": partial(_leave, how="kill"),
    "closed": partial(_leave, how="close"),
    "reset": partial(_leave, how="reset"),
    "closed beside a slow script": _slow_script,
}


@pytest.mark.parametrize("waiter", [WaitingClient, NotifiedClient], ids=["blocked", "notified"])
@pytest.mark.parametrize("going", GOINGS)
def test_who_goes_at_about_its_grant(threaded: Server, going: str, waiter: type[WaitingClient]) -> None:
    """A fence that was read stays good; else the hold stays, or the next is served; and never two at once."""
    threaded.client().flushall()
    hand_offs = HandOffs(threaded, waiter)
    for number in range(rounds(25, 2000)):
        hand_offs.begin(f"k{number}")
        GOINGS[going](hand_offs, number)
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


# --- replicas and the log


@pytest.mark.parametrize("cause", [RELEASE, ("DEL", KEY), ("SLOCK.EXTEND", KEY, HOLDER, 1)], ids=str)
def test_wait_tells_whether_a_replica_has_it(
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


@pytest.mark.skipif(not shutil.which("strace"), reason="needs the program strace")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("how", ["blocked", "blocked, with a backlog", "notified"])
def test_a_grant_is_synced_before_its_owner_is_told(make_server: MakeServer, threads: int, how: str) -> None:
    server = make_server(appendonly=True, appendfsync="always", io_threads=threads)
    line, control = Line(server), server.raw()
    backlog = BACKLOG if "backlog" in how else 0
    for number in range(rounds(2, 8)):
        token = f"owner-{number}-of-the-lock"
        assert control.ok("SLOCK.LOCK", KEY, HOLDER, HOUR)
        if how == "notified":
            owner = Listener(server)
            assert owner.ask("SLOCK.LOCK", KEY, token, HOUR) is None
        else:
            owner = _wait_behind_replies(line, token, backlog)
        (state,) = line.client.client_list(client_id=[owner.id])
        with traced(server) as calls:
            control.send(*RELEASE)
            for _ in range(backlog):
                owner.reply()
            fence = owner.fence()
            assert [control.read(), control.ok("PING"), control.ok("PING")] == [1, b"PONG", b"PONG"]
        logged = next(call for call in calls if token in call.data and AOF in call.path)
        synced = next(call for call in calls if call.name in SYNCS and call.begun > logged.ended)
        assert synced.fd == logged.fd and synced.result == 0 and logged.result > 0
        told = [call for call in calls if call.fd == int(state["fd"]) and call.result > 0][-1]
        assert backlog or f"{fence}" in told.data
        assert synced.ended < told.begun, (logged, synced, told._replace(data=""))
        assert control.ok("SLOCK.UNLOCK", KEY, token) == 1
        owner.connection.close()
