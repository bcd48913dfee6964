"""What is known of a hold at one server: its fence and mode, and until when it is certain. Pure: it does no
input and output, and reads no clock. Times are seconds.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

GONE = "gone"
EXPIRED = "expired"
LEASE_ENDED = "lease ended"

# An answer that took longer than this part of the ttl says too little about when the grant was made.
PROMPT_PART = 1 / 3

# A renewal is due after this part of the ttl, and after an error again after that part.
RENEW_AFTER = 1 / 3
TRY_AGAIN_AFTER = 1 / 10

NEVER = float("-inf")


class Drift(NamedTuple):
    """How much less than its ttl a hold counts."""

    part: float = 0.001
    """Of the ttl: a clock that is being slewed runs up to 500 ppm fast, and there are two clocks."""
    seconds: float = 0.001
    """The server counts deadlines in whole milliseconds."""

    def valid_until(self, sent: float, ttl_ms: int) -> float:
        """The end of a hold whose deadline was set by a request sent at `sent`."""
        return sent + ttl_ms / 1000 * (1 - self.part) - self.seconds


def majority(nodes: int) -> int:
    """How many nodes of so many are more than half."""
    return nodes // 2 + 1


def majority_until(ends: Sequence[float]) -> float:
    """Until when a majority holds, where each node holds until one of `ends`."""
    return sorted(ends, reverse=True)[majority(len(ends)) - 1]


def is_prompt(sent: float, received: float, ttl_ms: int) -> bool:
    """Whether a hold may be counted from the moment at which its request was sent."""
    return received - sent <= ttl_ms / 1000 * PROMPT_PART


class Told(enum.Enum):
    """What an answer to a renewal means."""

    HELD = enum.auto()
    GONE = enum.auto()
    NOTHING = enum.auto()
    """It is about an earlier fence, or may be: it is ignored."""


@dataclass
class Lease:
    """The knowledge of one hold, or of one that a quorum tries to get at a node."""

    mode: str
    drift: Drift
    in_doubt: bool = False
    """Whether a command that gives a hold, or changes its mode, had no answer: it may be carried out late."""
    fence: int | None = None
    """The last one. None: there was no hold yet."""
    is_held: bool = False
    """Whether the token holds it, as far as is known."""
    valid_until: float = NEVER
    changing: bool = False
    """Whether a change of mode is open, so that the fence may be another one by now."""

    def granted(self, fence: int, mode: str, sent: float, ttl_ms: int) -> None:
        """A command sent at `sent` gave the hold, or changed its mode."""
        self.fence, self.mode, self.is_held = fence, mode, True
        self.count_from(sent, ttl_ms)

    def count_from(self, sent: float, ttl_ms: int) -> None:
        """The deadline is at least that of a command sent at `sent`: nothing lowers a deadline."""
        self.valid_until = max(self.valid_until, self.drift.valid_until(sent, ttl_ms))

    def shortened(self, sent: float, ttl_ms: int) -> None:
        """A command that may lower the deadline is sent. Whether it is answered or not, the least counts."""
        self.valid_until = min(self.valid_until, self.drift.valid_until(sent, ttl_ms))

    def extended(self, fence: int, sent: float, ttl_ms: int, answer: int) -> Told:
        """The answer to an extension of the hold with this fence."""
        if fence != self.fence or not self.is_held:
            return Told.NOTHING
        if answer:
            self.count_from(sent, ttl_ms)
            return Told.HELD
        if self.changing:
            return Told.NOTHING
        self.is_held, self.valid_until = False, NEVER
        return Told.GONE
