"""A request for many keys is granted on all of them or on none, whatever moves or expires in between.

Requests wait in a cluster for keys of one slot. The deadlines of the present holders, or the expiry of their
keys, come at the moment of the grant, and meanwhile the slot is set to MIGRATING and IMPORTING and back, or
its keys are moved. A server may find a key at its first look and not at its second: its clock may go on
between the two, and a node whose slot is MIGRATING answers only for keys that are there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from harness import Cluster, RawConnection, RespError, Server, key_slot, rounds
from harness.many import many
from harness.waiting import HOUR, Line, WaitingClient

pytest_plugins = ["harness.cleanup"]

HOLDER = "holder"
KEYS = [f"{{whole}}:{number}" for number in range(64)]
REDIRECTED = {"ASK", "MOVED"}
RETRIABLE = {*REDIRECTED, "TRYAGAIN", "CLUSTERDOWN", "UNBLOCKED"}


class Slot:
    """A slot between its owner and a node to which it moves, or does not."""

    def __init__(self, cluster: Cluster, key: str) -> None:
        self.source = cluster.node_of(key)
        self.target = cluster.other_than(self.source)
        self.number = key_slot(self.source, key)
        self._ids = {node: cluster.node_id(node) for node in (self.source, self.target)}
        self._controls = {node: node.raw() for node in (self.source, self.target)}

    def control(self, node: Server | None = None) -> RawConnection:
        return self._controls[node or self.source]

    def _set(self, node: Server, *state: str) -> None:
        self.control(node).ok("CLUSTER", "SETSLOT", self.number, *state)

    def open(self) -> None:
        self._set(self.target, "IMPORTING", self._ids[self.source])
        self._set(self.source, "MIGRATING", self._ids[self.target])

    def close(self) -> None:
        self._set(self.source, "STABLE")
        self._set(self.target, "STABLE")

    def flip(self) -> None:
        self.close()
        self.open()

    def move_keys(self, count: int) -> None:
        keys = self.control().ok("CLUSTER", "GETKEYSINSLOT", self.number, count)
        if keys:
            self.control().ok("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *keys)

    def ask_everywhere(self, commands: list[tuple]) -> list[list[Any]]:
        """What the source and the target answer to each, without the answers of a node that has not the key.

        The slot is open. Each node gets all commands in one write.
        """
        replies = [
            self.control(self.source).pipeline(commands),
            self.control(self.target).pipeline([part for one in commands for part in (("ASKING",), one)])[
                1::2
            ],
        ]
        return [
            [reply for reply in both if not _is_redirection(reply)] for both in zip(*replies, strict=True)
        ]

    def clear(self, keys: list[str]) -> None:
        self.ask_everywhere([("DEL", key) for key in keys])
        self.close()


def _is_redirection(reply: Any) -> bool:
    return isinstance(reply, RespError) and reply.prefix in REDIRECTED


def _let_expire(slot: Slot, keys: list[str], dice: random.Random, release: tuple | None) -> None:
    """The holds end in a few milliseconds: all in the same one, or in neighbouring ones. So do their keys,
    which may also outlive the holds by a little. The key that `release` names is given up at that moment."""
    control, ttl = slot.control(), dice.randint(4, 9)
    due_ms = _now_ms(control) + ttl
    brief = [key for key in keys if not release or key != release[1]]
    spread, outlives = dice.choice([(0, 0), (0, 0), (2, 0), (0, 2), (2, 2)])
    # In one write: a PEXPIREAT that came after the grant would delete what was granted.
    if spread:
        ends = [("SLOCK.EXTEND", key, HOLDER, ttl - dice.randint(0, spread)) for key in brief]
    else:
        ends = [many("MEXTEND", brief, HOLDER, ttl)]
    if outlives:
        ends += [("PEXPIREAT", key, due_ms + dice.randint(0, outlives)) for key in brief]
    control.pipeline(ends)
    if release:
        while _now_ms(control) < due_ms:
            pass
        control.ok(*release)


def _now_ms(control: RawConnection) -> int:
    seconds, microseconds = map(int, control.ok("TIME"))
    return seconds * 1000 + microseconds // 1000


def _play(slot: Slot, line: Line, keys: list[str], dice: random.Random, cause: str) -> int:
    """One round; returns how many requests were granted, each of which had all its keys."""
    slot.control().ok(*many("MLOCK", keys, HOLDER, HOUR))
    command, tokens = dice.choice([("MLOCK", ["writer"]), ("MRLOCK", ["reader 1", "reader 2"])])
    waiting = []
    for token in tokens:
        waiter = WaitingClient(slot.source, token)
        waiter.ask(*many(command, keys, token, HOUR, "WAIT", 0))
        line.wait_until_waiting(waiter)
        waiting.append(waiter)
    slot.open()
    what = dice.choice(["stays open", "flips", "moves keys"])
    # A key that UNLOCK deletes has gone to the target. One that is downgraded stays, and readers may join.
    last = dice.choice(keys)
    given_up = (
        ("SLOCK.UNLOCK", last, HOLDER) if command == "MLOCK" else ("SLOCK.DOWNGRADE", last, HOLDER, HOUR)
    )
    _let_expire(slot, keys, dice, given_up if cause == "release" else None)
    if what == "moves keys":
        waiting[0].is_answered(dice.uniform(0, 0.012))
        slot.move_keys(dice.randint(1, len(keys)))
    while what == "flips" and not all(waiter.is_answered() for waiter in waiting):
        slot.flip()

    granted = 0
    for waiter in waiting:
        reply = waiter.reply()
        waiter.connection.close()
        if isinstance(reply, RespError):
            assert reply.prefix in RETRIABLE, reply.text
            lefts = slot.ask_everywhere([("SLOCK.PTTL", key, waiter.token) for key in keys])
            assert all(left == -2 for both in lefts for left in both), f"{reply.text}, but it holds {lefts}"
        else:
            checks = slot.ask_everywhere([("SLOCK.CHECK", key, reply) for key in keys])
            missing = [key for key, both in zip(keys, checks, strict=True) if both.count(1) != 1]
            assert not missing, (
                f"{what}: {len(missing)} of {len(keys)} keys lack the fence {reply}: {missing}; {checks}"
            )
            granted += 1
    slot.clear(keys)
    return granted


@pytest.fixture
def slot(cluster: Cluster) -> Iterator[Slot]:
    """A slot without keys, which stays with its owner also when the test fails."""
    slot = Slot(cluster, KEYS[0])
    yield slot
    slot.open()
    slot.clear(KEYS)


@pytest.mark.parametrize("cause", ["deadline", "release"])
def test_each_fence_that_is_told_is_on_every_key(slot: Slot, cause: str) -> None:
    line = Line(slot.source, KEYS[0])
    dice = random.Random(cause)
    wanted, granted, played = rounds(20, 500), 0, 0
    while granted < wanted:
        keys = KEYS[: dice.randint(2, len(KEYS))]
        granted += _play(slot, line, keys, dice, cause)
        played += 1
        assert played < 50 * wanted, f"only {granted} grants"
