"""How hooks name the end of an acquisition."""

from __future__ import annotations

from slock.errors import TimedOut


def outcome_of(hold: object | None, problem: BaseException | None) -> str:
    """`granted`, `refused`, `timed out`, `cancelled`, or the name of the error."""
    if hold is not None:
        return "granted"
    if problem is None:
        return "refused"
    if isinstance(problem, TimedOut):
        return "timed out"
    if not isinstance(problem, Exception):
        return "cancelled"
    return type(problem).__name__
