"""The channels by which requests wait: one for a server, one for each slot in a cluster. Each copy of a request
has a ticket with a secret tag, so that its message reaches it and nobody else can send one."""

from __future__ import annotations

import logging
from binascii import crc_hqx
from collections.abc import Callable
from functools import cache
from itertools import count, product
from string import ascii_letters
from typing import Any

from slock_client._clock import now
from slock_client._protocol import draw, message_of
from slock_client._transport import Link, Runtime, ServerError

_log = logging.getLogger("slock_client")

# A message: a fence or 0, an error, or one of these.
AGAIN, CLOSED = "a message may have been missed", "the Locks was closed"

_TRIAL = 10.0  # seconds without a subscription on a server that replies; then requests poll for a while


class Ticket:
    """Receives the messages for one copy of a request."""

    __slots__ = ("mailbox", "slot", "tag")

    def __init__(self, slot: int, io: Runtime) -> None:
        self.tag, self.slot, self.mailbox = draw(), slot, io.mailbox()


class _Channel:
    def __init__(self, name: str) -> None:
        self.name = name
        self.since: float | None = now()  # without a subscription; None: it had one


class Listener:
    """What the waits of one process or event loop share."""

    def __init__(self, link: Link, io: Runtime, is_cluster: bool) -> None:
        self._link, self._io, self._is_cluster = link, io, is_cluster
        self.waits: Callable[[], None] = lambda: None  # called when a request begins to wait
        self._channels: dict[int, _Channel] = {}  # by the slot; without a cluster it is 0
        self.tickets: dict[str, Ticket] = {}  # by the tag
        self._denied = 0.0  # until when requests poll

    def ticket(self, key: str) -> Ticket:
        ticket = Ticket(self._slot(key), self._io)
        self.tickets[ticket.tag] = ticket
        self.waits()
        return ticket

    async def channel(self, key: str, may_open: bool) -> tuple[str, bool]:
        """The name of the channel for a key, or an empty one if there is none, and whether it is new."""
        slot = self._slot(key)
        known = self._channels.get(slot)
        if now() < self._denied or (known is None and not may_open):
            return "", False
        if known is not None:
            return known.name, False
        made = _Channel(self._name(slot, key))
        known = self._channels.setdefault(slot, made)
        if known is made:
            is_open = False
            try:
                await self._link.listen(made.name, self._deliver, lambda: self._heed(slot, made))
                is_open = True
            finally:
                if not is_open:
                    self._channels.pop(slot, None)
                    self._link.leave(made.name)
        return known.name, known is made

    def _heed(self, slot: int, channel: _Channel) -> None:
        """The server has confirmed the channel, or messages may have been missed."""
        channel.since = None
        for ticket in list(self.tickets.values()):
            if ticket.slot == slot:
                ticket.mailbox.put(AGAIN)

    def _deliver(self, payload: str) -> None:
        """Others may send to the channel: what has no known tag is ignored."""
        try:
            tag, message = message_of(payload)
        except ValueError:
            return
        ticket = self.tickets.get(tag)
        if ticket is not None:
            ticket.mailbox.put(message)

    def put_all(self, message: Any) -> None:
        for ticket in list(self.tickets.values()):
            ticket.mailbox.put(message)

    def has_failed(self, key: str, name: str, error: ServerError) -> bool:
        """Notes that a request was refused because of its channel. Tells whether the user may not use channels."""
        is_denied = error.code == "NOPERM" and "channel" in str(error)
        channel = self._channels.get(self._slot(key))
        if channel is None or channel.name != name or not (is_denied or error.code == "NOSUBSCRIBER"):
            return is_denied
        has_waited = channel.since is not None and now() - channel.since > _TRIAL
        if is_denied or has_waited:
            if not self._denied:
                _log.warning(
                    "slock: waits poll, and are not served in order, because the user may not use channels: %s", error
                )
            self._denied = now() + 3 * _TRIAL
        if is_denied or has_waited or channel.since is None:  # in the last case another server has the key
            self._channels.pop(self._slot(key), None)
            self._link.leave(name)
        return is_denied

    def close(self) -> None:
        """Ends all subscriptions. The next wait begins with a new one."""
        while self._channels:
            self._link.leave(self._channels.popitem()[1].name)

    def _slot(self, key: str) -> int:
        return slot_of(_hash_tag(key)) if self._is_cluster else 0

    def _name(self, slot: int, key: str) -> str:
        if not self._is_cluster:
            return f"waits:{draw()}"
        tag = _hash_tag(key)
        if "}" in tag:  # no name has this as its hash tag
            tag = tag_of(slot)
        return f"{{{tag}}}.waits:{draw()}"


def _hash_tag(key: str) -> str:
    """The part of a key that tells its slot."""
    _, brace, rest = key.partition("{")
    tag, end, _ = rest.partition("}")
    return tag if brace and end and tag else key


def slot_of(tag: str) -> int:
    """The slot of a hash tag: CRC16/XMODEM, by the Redis Cluster specification."""
    return crc_hqx(tag.encode("utf-8", "surrogateescape"), 0) % 16384


@cache
def _endings() -> dict[int, str]:
    """Pairs of letters by what they add to a CRC."""
    return {crc_hqx(pair.encode(), 0) % 16384: pair for pair in map("".join, product(ascii_letters, repeat=2))}


def tag_of(slot: int) -> str:
    """A hash tag of the slot. CRCs are linear: that of two letters after a text is that of two zeros, XOR theirs."""
    for number in count():
        added = (crc_hqx(b"%d\0\0" % number, 0) % 16384) ^ slot
        if added in _endings():
            return f"{number}{_endings()[added]}"
    raise AssertionError
