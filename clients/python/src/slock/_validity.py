"""Until when a client may count on a hold. All times are seconds on the monotonic clock."""

from __future__ import annotations

# The server counts deadlines in whole milliseconds: a hold may end up to one before its ttl.
SERVER_ROUNDING = 0.001

# An answer that took longer than this part of the ttl says too little about when the grant was made.
PROMPT_PART = 1 / 3

GONE = "gone"
EXPIRED = "expired"
LEASE_ENDED = "lease ended"


def valid_until(sent: float, ttl_ms: float) -> float:
    """The end of a hold whose deadline was set by a request sent at `sent`."""
    return sent + ttl_ms / 1000 - SERVER_ROUNDING


def is_prompt(sent: float, received: float, ttl_ms: int) -> bool:
    """Whether a hold may be counted from the moment at which its request was sent."""
    return received - sent <= ttl_ms / 1000 * PROMPT_PART
