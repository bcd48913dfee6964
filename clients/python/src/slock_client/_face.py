"""What a program sees of `Locks`, requests and holds, in both halves: all that sends nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Generic, TypeVar

from slock_client._clock import now
from slock_client._commands import Key
from slock_client._hold import HoldRules
from slock_client._locks import Defaults
from slock_client._options import Wanted
from slock_client._quorum import refuse

R = TypeVar("R", bound=HoldRules)


class HoldFace(Generic[R]):
    """What may be asked of a hold without asking the server."""

    def __init__(self, rules: R) -> None:
        self._rules = rules
        rules.face = self

    @property
    def token(self) -> str:
        """The owner's identity."""
        return self._rules.token

    @property
    def keys(self) -> tuple[Key, ...]:
        return self._rules.wanted.keys

    @property
    def mode(self) -> str:
        """`write` or `read`."""
        return self._rules.mode

    @property
    def metadata(self) -> str | None:
        return self._rules.metadata

    @property
    def label(self) -> str:
        """The name under which hooks report it."""
        return self._rules.label

    @property
    def ttl(self) -> timedelta:
        """How long a renewal keeps the hold."""
        return self._rules.ttl()

    @property
    def valid_until(self) -> float:
        """Until when the hold is certain, as `slock_client.now()` counts, in seconds. Renewals move it."""
        return self._rules.valid_until

    @property
    def time_left(self) -> timedelta:
        """How long the hold is certain from now on; zero when it is not."""
        if self._rules.ended:
            return timedelta(0)
        return timedelta(seconds=max(0.0, self.valid_until - now()))

    @property
    def lost(self) -> bool:
        """Whether the hold ended and nobody released it. Asks the clock, not the server."""
        return self._rules.lost

    @property
    def reason(self) -> str | None:
        """Why the hold is lost: `gone`, `expired` or `lease ended`; None when it is not."""
        return self._rules.reason_lost if self._rules.lost else None

    def check(self) -> None:
        """Raises `LostError` when the hold is lost, and `NotHeldError` when it has been released.

        Asks the clock, not the server: call it before each step.
        """
        self._rules.check()

    def hand_over(self) -> None:
        """Ends the hold here without releasing it: another process goes on with it, by `adopt`."""
        self._rules.hand_over()

    def __repr__(self) -> str:
        state = "released" if self._rules.released else self._rules.reason_lost or "held"
        return f"<{type(self).__name__} {self.label!r} {self.mode} {state}>"


class RequestFace:
    """Keys, a mode and options."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    def __repr__(self) -> str:
        return f"<Request {self._wanted}>"


class Requesting:
    """What makes requests, with the options of `Locks` or `Quorum` as defaults."""

    def __init__(self, options: Any, *, of_quorum: bool = False) -> None:
        self._of_quorum = of_quorum
        if of_quorum:
            refuse(options)
        self._defaults = Defaults.of(options)

    def _wanted(self, keys: tuple[Key, ...], mode: str, options: Any) -> Wanted:
        if self._of_quorum:
            refuse(options)
        return self._defaults.wanted(keys, mode, options)
