"""Requests that wait by NOTIFY while slots move and primaries change: told, or their subscription ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from conftest import Pair
from harness import Cluster, Locks, RespError, Server, encode_command, key_slot, rounds
from harness.causes import BRIEF, HOLDER
from harness.cluster import Slot
from harness.many import many
from harness.replication import fail_over
from harness.wait import wait_until
from harness.waiting import HOUR, RETRIABLE, at_once

REQUESTS, NAMES = rounds(40, 1000), 4


class Asker:
    """One RESP3 connection that waits with all requests, for a few names, each of which has its channel."""

    def __init__(self, server: Server, group: str) -> None:
        self.connection = server.raw()
        self.connection.hello(3)
        self.keys = [f"{{{group}}}key{number}" for number in range(NAMES)]
        # What the old primary publishes at its end may reach a subscriber at the new one, over the bus.
        self.channels = [f"{{{group}}}channel{number}:{server.port}" for number in range(NAMES)]
        self.messages: dict[str, str] = {}
        self.lost: set[str] = set()
        for number, channel in enumerate(self.channels, 1):
            assert self.connection.ok("SSUBSCRIBE", channel) == [b"ssubscribe", channel.encode(), number]

    def call(self, *commands: tuple) -> list[Any]:
        """The replies; messages that come before them are kept."""
        self.connection.send_bytes(b"".join(encode_command(*command) for command in commands))
        replies: list[Any] = []
        while len(replies) < len(commands):
            reply = self.connection.read()
            if isinstance(reply, list):
                self._keep(reply)
            else:
                replies.append(reply)
        return replies

    def ask(self) -> list[Any]:
        def request(number: int) -> tuple:
            lock = ("SLOCK.LOCK", self.keys[number % NAMES], f"t{number}", HOUR, "WAIT", 0)
            return *lock, "NOTIFY", self.channels[number % NAMES], f"t{number}"

        return self.call(*map(request, range(REQUESTS)))

    def hear(self) -> None:
        """Reads on until there is one more message."""
        self._keep(self.connection.read())

    def _keep(self, push: list) -> None:
        kind, channel, data = push
        if kind == b"sunsubscribe":
            self.lost.add(channel.decode())
            return
        result, tag = data.decode().split(" ")
        assert kind == b"smessage" and channel.decode() == self.channels[int(tag[1:]) % NAMES]
        assert tag not in self.messages, f"{tag} was told {self.messages[tag]} and {result}"
        assert channel.decode() not in self.lost
        self.messages[tag] = result

    def wait_until_ended(self) -> None:
        """Each request has had its message, or its channel is gone."""

        def lives(number: int) -> bool:
            return f"t{number}" not in self.messages and self.channels[number % NAMES] not in self.lost

        while any(map(lives, range(REQUESTS))):
            self.hear()

    def granted(self) -> dict[str, int]:
        """The tokens that have been told a fence."""
        return {tag: int(result) for tag, result in self.messages.items() if not result.startswith("-")}


def _waiting(server: Server) -> int:
    return server.client().info("slock")["slock_waiters"]


def _change_while_they_wait(old: Server, new: Server, group: str, change: Callable[[], None]) -> None:
    """All wait at the old node, half of them for holds that end about then; then at the new."""
    asker, control = Asker(old, group), old.raw()
    control.pipeline([("SLOCK.LOCK", key, HOLDER, HOUR) for key in asker.keys])
    assert asker.ask() == [None] * REQUESTS
    brief = asker.keys[NAMES // 2 :]
    assert control.pipeline([("SLOCK.EXTEND", key, HOLDER, BRIEF) for key in brief]) == [1] * len(brief)
    change()
    asker.wait_until_ended()
    wait_until(lambda: _waiting(old) == 0, what="nobody to wait at the old node")
    locks = Locks(new.client())
    wait_until(lambda: {locks.pttl(key, HOLDER) for key in brief} == {-2}, what="the brief holds to end")
    told = asker.granted()
    others = {result for result in asker.messages.values() if result.startswith("-")}
    assert {other[1:] for other in others} <= RETRIABLE
    # Those who were granted at the old node hold at the new one, alone; all others may wait there.
    again = Asker(new, group)
    keys = {tag: again.keys[int(tag[1:]) % NAMES] for tag in told}
    assert len(set(keys.values())) == len(told) and set(keys.values()) <= set(brief)
    assert again.call(*(("SLOCK.CHECK", keys[tag], fence) for tag, fence in told.items())) == [1] * len(told)
    replies = {f"t{number}": reply for number, reply in enumerate(again.ask())}
    holding = {tag: fence for tag, fence in replies.items() if fence is not None}
    assert told.items() <= holding.items()
    # Requests of other tests leave once the server notices that nobody listens to them.
    wait_until(lambda: _waiting(new) == REQUESTS - len(holding), what="all others to wait, and nobody else")
    for key in again.keys[: NAMES // 2]:
        assert again.call(("SLOCK.UNLOCK", key, HOLDER)) == [1]
    while len(again.granted()) < NAMES // 2:
        again.hear()
    assert asker.granted() == told, "a grant at the old node"


# --- a slot moves


@pytest.mark.parametrize("move", [Cluster.move_by_keys, Cluster.move_at_a_stroke])
def test_who_waits_for_a_slot_that_moves_goes_on_at_the_target(
    cluster: Cluster, move: Callable[[Cluster, list[int], Server, Server], None]
) -> None:
    slot = Slot(cluster, move.__name__)
    source, target = slot.source, slot.target
    change = partial(move, cluster, [slot.number], source, target)
    _change_while_they_wait(source, target, move.__name__, change)


def test_a_release_while_the_slot_moves_grants_nothing_here(cluster: Cluster) -> None:
    """The source sends newcomers for a key that is gone to the target, where they may have it."""
    slot = Slot(cluster, "released")
    asker = Asker(slot.source, "released")
    for key in asker.keys:
        slot.at_source.ok("SLOCK.LOCK", key, HOLDER, HOUR)
    assert asker.ask() == [None] * REQUESTS
    slot.open()
    gone, *left = asker.keys
    assert slot.at_source.ok("SLOCK.UNLOCK", gone, HOLDER) == 1
    while len(asker.messages) < REQUESTS / NAMES:
        asker.hear()
    assert {int(tag[1:]) % NAMES for tag in asker.messages} == {0}
    assert {result[1:] for result in asker.messages.values()} <= RETRIABLE and not asker.lost
    taken = at_once(slot.target, ("ASKING",), ("SLOCK.LOCK", gone, "newcomer", HOUR))[1]
    assert isinstance(taken, int) and taken > 0
    # The others are served here as long as their keys are here.
    assert slot.at_source.ok("SLOCK.DOWNGRADE", left[0], HOLDER, HOUR) > 0
    assert slot.at_source.ok("SLOCK.INFO", left[0])[5] == REQUESTS // NAMES
    slot.move_keys(NAMES)
    cluster.end_move(slot.number, slot.source, slot.target)
    asker.wait_until_ended()
    assert asker.granted() == {}
    assert slot.at_target.ok("SLOCK.CHECK", gone, taken) == 1


def test_the_channel_must_be_in_the_slot_of_the_keys(cluster: Cluster) -> None:
    group = "crossed"
    node = cluster.node_of(group)
    asker = Asker(node, group)
    other = next(
        name
        for name in map(str, range(10_000))
        if cluster.node_of(name) is node and key_slot(node, name) != key_slot(node, group)
    )
    asker.connection.send("SSUBSCRIBE", other)
    asker.connection.read()
    key, free = asker.keys[:2]
    asker.call(("SLOCK.LOCK", key, HOLDER, HOUR))
    rest = (HOUR, "WAIT", 0, "NOTIFY", other, "tag")
    requests = [("SLOCK.LOCK", key, "me"), ("SLOCK.LOCK", free, "me"), many("MLOCK", [key, free], "me")]
    for request in requests:
        (reply,) = asker.call((*request, *rest))
        assert isinstance(reply, RespError) and reply.prefix == "CROSSSLOT", (request, reply)
    assert asker.call(("SLOCK.UNLOCK", key, HOLDER), ("EXISTS", key, free)) == [1, 0]
    wait_until(lambda: _waiting(node) == 0, what="nobody to wait")
    assert asker.messages == {}


# --- a primary becomes a replica


def test_a_failover_tells_everybody_or_ends_the_subscription(primary_and_replica: Pair) -> None:
    old, new = primary_and_replica
    _change_while_they_wait(old, new, "failover", lambda: fail_over(old, new))
