"""Waiters that go, or whose time runs out, at about the moment of their grant.

With more ways to go, and more causes of the grant, than test_grant_is_final.py, whose rounds they use.
Time-outs at that moment are for tests/test_soak.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import ReplicationStream, Server, rounds
from harness.causes import HOLDER
from harness.many import many
from harness.moment_of_grant import FIRST, NEXT, HandOffs, in_one_turn
from harness.waiting import HOUR, Line, WaitingClient

CAUSES = {
    "UNLOCK": lambda key: [("SLOCK.UNLOCK", key, HOLDER)],
    "DEL": lambda key: [("DEL", key)],
    "FLUSHALL": lambda key: [("FLUSHALL", "ASYNC")],
    "a deadline": lambda key: [("SLOCK.EXTEND", key, HOLDER, 1), ("DEBUG", "SLEEP", "0.002")],
}
KILL = ("CLIENT", "KILL", "ID")
GOINGS = {
    "TIMEOUT": lambda client: [("CLIENT", "UNBLOCK", client, "TIMEOUT")],
    "ERROR": lambda client: [("CLIENT", "UNBLOCK", client, "ERROR")],
    "KILL": lambda client: [(*KILL, client)],
    "TIMEOUT and KILL": lambda client: [("CLIENT", "UNBLOCK", client, "TIMEOUT"), (*KILL, client)],
}


@pytest.mark.parametrize("how", GOINGS)
@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
@pytest.mark.parametrize("where", ["pipeline", "transaction"])
def test_who_goes_before_the_end_of_the_turn_is_not_granted(
    server: Server, cause: Callable[[str], list[tuple]], how: str, where: str
) -> None:
    hand_offs, stream = HandOffs(server), ReplicationStream(server)
    for number in range(rounds(10, 200)):
        hand_offs.begin(f"k{number}")
        going = GOINGS[how](hand_offs.first.id)
        replies = in_one_turn(hand_offs.control, [*cause(hand_offs.key), *going], where)
        assert replies[-len(going) :] == [1] * len(going), "it was granted before the end of the turn"
        has_gone = "KILL" in how
        told = None if has_gone else hand_offs.first.reply()
        assert has_gone or (told == 0 if how == "TIMEOUT" else told.prefix == "UNBLOCKED"), told
        assert not hand_offs.end(None, has_gone=has_gone)
    said = b" ".join(word for command in stream.commands() for word in command)
    assert NEXT.encode() in said and FIRST.encode() not in said
    hand_offs.judge()


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
def test_an_unblock_at_about_the_moment_of_the_release(server: Server, how: str) -> None:
    """CLIENT UNBLOCK says 0 to whoever found nobody to unblock: then the client has its grant."""
    hand_offs = HandOffs(server)
    for number in range(rounds(50, 1000)):
        hand_offs.begin(f"k{number}")
        (unblock,) = GOINGS[how](hand_offs.first.id)
        hand_offs.send_release()
        hand_offs.spin(0.0003)
        hand_offs.other.send(*unblock)
        hand_offs.released()
        has_grant = hand_offs.finish(hand_offs.other, unblock) == 0
        told = hand_offs.first.fence() if has_grant else hand_offs.first.reply()
        assert has_grant or (told == 0 if how == "TIMEOUT" else told.prefix == "UNBLOCKED"), told
        assert hand_offs.end(told if has_grant else None, has_gone=False) == has_grant
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


def test_who_is_granted_with_a_quit_behind_its_wait_keeps_its_hold(server: Server) -> None:
    hand_offs = HandOffs(server)
    for number in range(rounds(10, 200)):
        hand_offs.begin(f"k{number}")
        hand_offs.first.ask("QUIT")
        hand_offs.send_release()
        fence = hand_offs.fence()
        hand_offs.released()
        assert hand_offs.first.reply() == b"OK" and hand_offs.first.outcome() is None
        assert hand_offs.end(fence, has_gone=True)
    hand_offs.judge()


def test_who_is_killed_by_a_client_that_was_granted_with_it_keeps_its_hold(server: Server) -> None:
    """The kill stands behind the other's wait, and so runs before any reply of this turn has left."""
    hand_offs, other = HandOffs(server), Line(server, "other")
    for number in range(rounds(10, 200)):
        other.locks.lock("other", HOLDER, HOUR)
        killer = other.write("killer")
        hand_offs.begin(f"k{number}")
        killer.ask(*KILL, hand_offs.first.id)
        assert hand_offs.control.ok(*many("MUNLOCK", [hand_offs.key, "other"], HOLDER)) == 2
        assert killer.fence() and killer.reply() == 1
        assert hand_offs.end(hand_offs.first.outcome(), has_gone=True)
        assert other.release("killer") == 1
    hand_offs.judge()
