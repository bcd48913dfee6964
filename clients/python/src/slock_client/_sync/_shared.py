# Made from asyncio/_shared.py by scripts/synchronous.py: change it there.
"""What all acquisitions and holds of one `Locks` share: its servers, its limits of time, how it waits, what
renews, and whether it is open.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, NamedTuple

from slock_client import _answers, _commands
from slock_client import _threads as io
from slock_client._answers import Answer
from slock_client._clock import now
from slock_client._commands import Command, Key
from slock_client._fork import track
from slock_client._options import Wanted
from slock_client._sync._node import Look
from slock_client._sync._servers import Servers, ask
from slock_client._sync._watchdog import Watchdog
from slock_client.errors import ClosedError, TimedOutError
from slock_client.hooks import Hooks, log
from slock_client.polling import Exponential, Strategy

# The answer to what was sent before a limit may come so long after it, in seconds.
ANSWER_OVERDUE = 0.25

# `close` looks so often, in seconds, whether all that was under way has ended.
CLOSE_LOOKS = 0.005

# So long it waits then for what is being given up, in seconds.
CLOSE_WAITS = 2.0

retry_pauses = Exponential(timedelta(milliseconds=10), timedelta(seconds=1)).pauses
"""The seconds between attempts after an error."""


def timed_out(names: str, text: str, cause: BaseException | None, *, answered: bool = True) -> TimedOutError:
    """The error of a call about the keys `names` whose limit is over."""
    told = f" ({str(cause) or type(cause).__name__})" if cause is not None else ""
    error = TimedOutError(f"{names}: {text}{told}")
    error.__cause__ = cause
    error.answered = answered
    return error


class Answered(NamedTuple):
    """The answers to commands that may have been sent several times."""

    sent: float
    answers: list[Answer]
    after_unanswered: bool
    """Whether a copy before had no answer."""


class Shared:
    """Used by any thread of the synchronous half, and by one loop of asyncio."""

    strategy: Strategy | None = None
    """How it polls; None: the server tells."""
    listening: Any = None
    """The `Listening` of asyncio; None: each wait has a connection of its own."""

    def __init__(
        self, servers: Servers, hooks: Hooks, retry_for: timedelta, retry_wait_for: timedelta
    ) -> None:
        self.servers = servers
        self.hooks = hooks
        self.retry_for = retry_for.total_seconds()
        self.retry_wait_for = retry_wait_for.total_seconds()
        self.watchdog = Watchdog()
        self._permitted: set[str] = set()
        self.after_fork()
        track(self)

    def after_fork(self) -> None:
        """What is under way is the parent's."""
        self._closing = io.Event()
        self.changing = io.Mutex()
        """Taken for each change that a thread and the watchdog may make at once."""
        self.giving_up: set[io.Event] = set()
        self._under_way: dict[object, object] = {}  # with the thread or task of each

    # --- open or closed

    def check_open(self) -> None:
        """Raises `ClosedError` after `close`."""
        if self._closing.is_set():
            raise ClosedError

    def begin(self, acquisition: object) -> None:
        """One is under way until `end`. `ClosedError` after `close`."""
        with self.changing:
            self.check_open()
            self._under_way[acquisition] = io.current()

    def end(self, acquisition: object) -> None:
        """Nothing happens when it is not under way."""
        self._under_way.pop(acquisition, None)

    def pause(self, seconds: float) -> None:
        """Waits between two attempts. `ClosedError` as soon as `close` is called."""
        self._closing.wait(now() + seconds)
        self.check_open()

    def close(self) -> None:
        """What waits ends with `ClosedError`, and nothing new begins."""
        with self.changing:
            self._closing.set()
        for node in self.servers.nodes():
            node.interrupt()

    def wait_ended(self) -> None:
        """Returns when all that was under way has ended.

        What is under way in a thread that blocks here is not waited for: it is below on the stack of a signal
        handler.
        """
        end, own = now() + self.retry_for, io.current()
        while any(other != own for other in list(self._under_way.values())) and now() < end:
            io.sleep(CLOSE_LOOKS)
        end = now() + CLOSE_WAITS
        for done in list(self.giving_up):
            done.wait(end)

    # --- commands

    def insist(
        self, names: str, key: Key, *commands: Command, end: float, look: Look | None = None
    ) -> Answered:
        """The answers, as those of `repeat`. An error that lasts is raised."""
        answered = self.repeat(names, key, *commands, end=end, look=look)
        problem = _answers.problem_in(answered.answers)
        if problem is not None:
            raise _answers.error_of(problem, names)
        return answered

    def repeat(
        self,
        names: str,
        key: Key,
        *commands: Command,
        end: float,
        look: Look | None = None,
        attempt: float = math.inf,
    ) -> Answered:
        """The answers, errors that last among them. After an error that may pass all commands are sent again,
        until `end`: then `TimedOutError`. An attempt takes at most `attempt` seconds.

        With `look` they may block a connection: see `Node.ask`.
        """
        unanswered = False
        pauses = retry_pauses()
        while True:
            sent = now()
            try:
                attempt_end = min(end + ANSWER_OVERDUE, sent + attempt)
                answers = ask(self.servers, key, *commands, end=attempt_end, look=look)
            except Exception as error:
                answers = [error]
            problem = _answers.problem_in(answers, _answers.is_temporary)
            if problem is None:
                return Answered(sent, answers, unanswered)
            unanswered = unanswered or _answers.may_be_executed(problem)
            pause = next(pauses)
            if now() + pause >= end:
                text = "the server did not answer within the time"
                raise timed_out(names, text, problem, answered=not _answers.is_lost_connection(problem))
            io.sleep(pause)

    def refuse_channels(self, error: BaseException) -> None:
        """The user may not use the channels: from now on each wait has a connection of its own."""
        if self.listening is not None:
            log.warning("waits have a connection each from now on, for want of a permission: %s", error)
        self.listening = None

    def check_permission(self, wanted: Wanted, end: float) -> bool:
        """What cannot be released must not be taken: asked once for each kind of request, on its keys.

        False when it was not asked again. The commands name a token made for this and a fence that no hold
        has. `NOPERM` is raised.
        """
        kind = wanted.mode if len(wanted.keys) == 1 else "several keys"
        if kind in self._permitted:
            return False
        token = _commands.new_token()
        asked = [
            *_commands.cancel(wanted.keys, token, refuse=False),
            _commands.release(wanted.keys, wanted.mode, token, _commands.NO_FENCE),
            _commands.release_in_any_mode(wanted.keys, token, _commands.NO_FENCE),
        ]
        answers = ask(self.servers, wanted.keys[0], *asked, end=end)
        problem = _answers.problem_in(
            answers, lambda error: _answers.code_of(error) == "NOPERM" or _answers.is_temporary(error)
        )
        if problem is not None:
            raise _answers.error_of(problem, wanted.names)
        self._permitted.add(kind)
        return True
