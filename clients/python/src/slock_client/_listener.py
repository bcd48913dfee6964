# SPDX-License-Identifier: MIT OR Apache-2.0

"""The channels by which requests wait: one for a server, one for each slot in a cluster. Each copy of a request
has a ticket with a secret tag, so that its message reaches it and nobody else can send one."""

from __future__ import annotations

import logging
from binascii import crc_hqx
from collections.abc import Callable
from functools import cache, partial
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

    __slots__ = ("channel", "mailbox", "tag", "was_confirmed")

    def __init__(self, io: Runtime) -> None:
        self.tag, self.channel, self.mailbox = draw(), "", io.mailbox()
        self.was_confirmed = False  # the channel, when the request was sent


class Listener:
    """What the waits of one process or event loop share."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.waits: Callable[[], None] = lambda: None  # called when a request begins to wait
        self._channels: dict[int, str] = {}  # by the slot; without a cluster it is 0
        self._confirmed: set[str] = set()  # channels
        self._refused: dict[int, float] = {}  # by the slot: since when a server that replies knows no subscription
        self.tickets: dict[str, Ticket] = {}  # by the tag
        self._denied = 0.0  # until when requests poll

    def can_wait(self, key: str, may_open: bool) -> bool:
        return now() >= self._denied and (may_open or self._slot(key) in self._channels)

    async def join(self, ticket: Ticket, key: str) -> bool:
        """Gives the ticket the channel of a key, perhaps a new one. Tells whether the server has confirmed it."""
        self.tickets[ticket.tag] = ticket
        self.waits()
        slot = self._slot(key)
        ticket.channel = self._channels.get(slot, "")
        if not ticket.channel:
            made = self._name(slot, key)
            ticket.channel = self._channels.setdefault(slot, made)
            if ticket.channel is made:
                await self._open(slot, made)
        return self.is_confirmed(ticket)

    def is_confirmed(self, ticket: Ticket) -> bool:
        return ticket.channel in self._confirmed

    async def _open(self, slot: int, name: str) -> None:
        try:
            await self._link.listen(name, self._deliver, partial(self._changed, slot, name))
        except BaseException:
            self._drop(slot, name)
            raise

    def _changed(self, slot: int, name: str, is_open: bool) -> None:
        if is_open:
            self._confirmed.add(name)
            self._refused.pop(slot, None)
        else:
            self._drop(slot, name)
        self.put_all(AGAIN, name)

    def _drop(self, slot: int, name: str) -> None:
        if self._channels.get(slot) == name:
            self._channels.pop(slot, None)
        self._confirmed.discard(name)
        self._link.leave(name)

    def _deliver(self, payload: str) -> None:
        """Others may send to the channel: what has no known tag is ignored."""
        try:
            tag, message = message_of(payload)
        except ValueError:
            return
        ticket = self.tickets.get(tag)
        if ticket is not None:
            ticket.mailbox.put(message)

    def put_all(self, message: Any, channel: str | None = None) -> None:
        """Gives a message to all that wait, or wait by a channel."""
        for ticket in list(self.tickets.values()):
            if channel in (None, ticket.channel):
                ticket.mailbox.put(message)

    def has_failed(self, key: str, ticket: Ticket, error: ServerError) -> bool:
        """Whether a request was refused because of its channel: the server has not confirmed it yet, or it is over, or
        the user may not use channels."""
        slot, is_denied = self._slot(key), error.code == "NOPERM" and "channel" in str(error)
        if not (is_denied or error.code == "NOSUBSCRIBER"):
            return False
        is_over = is_denied or now() - self._refused.setdefault(slot, now()) > _TRIAL
        if is_over:
            if not self._denied:
                _log.warning(
                    "slock: waits poll, and are not served in order, because the user may not use channels: %s", error
                )
            self._denied = now() + 3 * _TRIAL
            self._refused.pop(slot, None)
        if is_over or ticket.was_confirmed:  # in the last case another server has the key
            self._drop(slot, ticket.channel)
            self.put_all(AGAIN, ticket.channel)
        return True

    def close(self) -> None:
        """Ends all subscriptions. The next wait begins with a new one."""
        self._refused.clear()
        for slot, name in list(self._channels.items()):
            self._drop(slot, name)

    def _slot(self, key: str) -> int:
        return key_slot(key) if self._link.is_cluster else 0

    def _name(self, slot: int, key: str) -> str:
        if not self._link.is_cluster:
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


def key_slot(key: str) -> int:
    """The slot of a key, or of a channel: CRC16/XMODEM of its hash tag, by the Redis Cluster specification."""
    return crc_hqx(_hash_tag(key).encode("utf-8", "surrogateescape"), 0) % 16384


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
