"""What is sent when an acquisition ends without a hold, so that nothing is left of it on the server."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import redis.exceptions as base

from slock import _commands
from slock._answers import is_temporary
from slock._commands import Key
from slock._connection import Connection
from slock._fork import track
from slock._pauses import retry_pauses
from slock._route import Route

_log = logging.getLogger("slock")

# How long the caller waits for it, in seconds. Then it goes on in a thread.
CALLER_WAITS = 0.3

# How long it goes on, in seconds, while the server does not answer.
GOES_ON_FOR = 30.0

# One attempt in the thread takes at most so long, in seconds.
ATTEMPT_TIME = 1.0

# A request that waits on its connection gets its answer after SLOCK.CANCEL. After so long, in seconds, it is
# sent again: the request may have come to the server behind it.
CANCEL_AGAIN_AFTER = 0.1

# A request has no answer any more when the server answers SLOCK.CANCEL for so long, in seconds.
ANSWER_TIME = 1.0

# So many wait for the thread at most. Those that come then are left to their ttl.
MOST_WAITING = 1000

# How long `close` waits for the thread, in seconds.
CLOSE_WAITS = 2.0

# How long the release of a lost hold may take, in seconds. Its ttl ends it otherwise.
LATE_TIME = 0.5


@dataclass(eq=False)
class Withdrawal:
    """A request to withdraw, with the hold that it may have been given."""

    route: Route
    keys: Sequence[Key]
    token: str
    pending: Connection | None
    """The connection on which the request waits for its answer."""
    release: bool
    end: float
    """When it is given up."""
    answer_end: float = math.inf
    """Until when the request may still get its answer. It is set when the server answers SLOCK.CANCEL."""

    def is_done(self, end: float) -> bool:
        """Tries until about `end`. Whether there is nothing left to do."""
        problem = self._try(end)
        if problem is not None and is_temporary(problem) and time.monotonic() < self.end:
            return False
        if self.pending is not None:
            self.pending.close()
        if problem is not None:
            _log.warning("a request for %r could not be withdrawn: %s", self.keys[0], problem)
        return True

    def _try(self, end: float) -> BaseException | None:
        cancel = _commands.cancel(self.keys[0], self.token)
        try:
            if self.pending is not None and not self._is_answered(self.pending, cancel, end):
                return base.TimeoutError("no answer within the time")
            commands = [cancel]
            if self.release:
                commands.append(_commands.release(self.keys, self.token))
            answers = self.route.ask(self.keys[0], *commands, end=end)
        except Exception as error:
            self.route.suspect()
            return error
        return next((one for one in answers if isinstance(one, BaseException)), None)

    def _is_answered(self, pending: Connection, cancel: _commands.Command, end: float) -> bool:
        # A request that is still on its way is not withdrawn. So its answer is waited for.
        with contextlib.suppress(base.ConnectionError, OSError):
            while pending.unanswered and time.monotonic() < end:
                with contextlib.suppress(base.RedisError, OSError):
                    self.route.ask(self.keys[0], cancel, end=end)
                    self.answer_end = min(self.answer_end, time.monotonic() + ANSWER_TIME)
                with contextlib.suppress(base.TimeoutError):
                    pending.receive(time.monotonic() + CANCEL_AGAIN_AFTER)
                if time.monotonic() >= self.answer_end:
                    pending.close()
        return not pending.unanswered


class GivingUp:
    """Withdraws requests: at once, or in a thread when the server does not answer.

    The thread ends when there is nothing left to do.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Withdrawal] = deque()
        self._running: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._closed = False
        track(self)

    def withdraw(
        self,
        route: Route,
        keys: Sequence[Key],
        token: str,
        pending: Connection | None = None,
        *,
        release: bool = True,
        seconds: float = CALLER_WAITS,
    ) -> None:
        """Withdraws a request and releases what it may have been given. Errors are logged.

        It returns after so many seconds. The thread goes on then.
        """
        now = time.monotonic()
        end = now + seconds
        one = Withdrawal(route, keys, token, pending, release, now + GOES_ON_FOR)
        done = False
        self._begin(token)
        try:
            for pause in retry_pauses():
                done = one.is_done(end)
                if done or time.monotonic() + pause >= end:
                    break
                time.sleep(pause)
        finally:
            if done or not self._goes_on(one):
                self._end(token)

    @contextlib.contextmanager
    def releasing(self, token: str) -> Iterator[None]:
        """A release with the token runs in the block."""
        self._begin(token)
        try:
            yield
        finally:
            self._end(token)

    def wait_ended(self, token: str, seconds: float) -> bool:
        """Waits until no release and no withdrawal with the token runs. False: one does after so long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running[token], seconds)

    def after_fork(self) -> None:
        """What is withdrawn is the parent's."""
        self._changed, self._waiting, self._thread = threading.Condition(), deque(), None
        self._running = Counter()

    def close(self) -> None:
        """Waits some time for the thread. What it has not done then is left to the ttl."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None, CLOSE_WAITS)
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(CLOSE_WAITS)

    def _begin(self, token: str) -> None:
        with self._changed:
            self._running[token] += 1

    def _end(self, token: str) -> None:
        with self._changed:
            self._running[token] -= 1
            if self._running[token] <= 0:
                del self._running[token]
            self._changed.notify_all()

    def _goes_on(self, one: Withdrawal) -> bool:
        """Whether the thread has it from now on. If not, it is left to the ttl."""
        with self._changed:
            if not self._closed and len(self._waiting) < MOST_WAITING:
                self._waiting.append(one)
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="slock giving up", daemon=True)
                    thread.start()
                    self._thread = thread
                return True
        if one.pending is not None:
            one.pending.close()
        _log.warning("a request for %r could not be withdrawn: the server does not answer", one.keys[0])
        return False

    def _next(self) -> Withdrawal | None:
        with self._changed:
            if self._waiting:
                one = self._waiting.popleft()
                if self._closed:
                    one.end = time.monotonic()
                return one
            self._thread = None
            self._changed.notify_all()
            return None

    def _run(self) -> None:
        pauses = retry_pauses()
        while (one := self._next()) is not None:
            if one.is_done(min(one.end, time.monotonic() + ATTEMPT_TIME)):
                pauses = retry_pauses()
                self._end(one.token)
                continue
            with self._changed:
                self._waiting.append(one)
                self._changed.wait_for(lambda: self._closed, next(pauses))


def release_late(route: Route, keys: Sequence[Key], token: str) -> None:
    """Releases a hold that is lost, in case the server still has it. It does not wait long for the answer."""
    end = time.monotonic() + LATE_TIME
    try:
        connection = Connection(route.pool_of(keys[0], end).recipe)
        try:
            connection.ask(_commands.release(keys, token), end=end)
        finally:
            connection.close()
    except (base.RedisError, OSError) as problem:
        _log.info("a lost hold of %r could not be released: %s", keys[0], problem)
