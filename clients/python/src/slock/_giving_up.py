"""What is sent when an acquisition ends without a hold, so that nothing is left of it on the server."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence

import redis.exceptions as base

from slock import _commands
from slock._answers import is_temporary
from slock._commands import Key
from slock._connection import Connection
from slock._pauses import retry_pauses
from slock._route import Route

_log = logging.getLogger("slock")

# A request that waits on its connection gets its answer within this time, in seconds, after SLOCK.CANCEL.
ANSWER_TIME = 2.0
CANCEL_AGAIN_AFTER = 0.1

# How long the release of a lost hold may take, in seconds. Its ttl ends it otherwise.
LATE_TIME = 0.5


def give_up(
    route: Route,
    keys: Sequence[Key],
    token: str,
    retry_for: float,
    pending: Connection | None = None,
    *,
    release: bool = True,
) -> None:
    """Withdraws a request and releases what it may have been given. Errors are logged.

    `pending`: the connection on which the request waits for its answer.
    """
    cancel = _commands.cancel(keys[0], token)
    if pending is not None:
        _until_answered(route, keys[0], cancel, pending)
    commands = [cancel]
    if release:
        commands.append(_commands.release(keys, token))
    end = time.monotonic() + retry_for
    for pause in retry_pauses():
        try:
            answers = route.ask(keys[0], *commands)
        except Exception as error:
            problem: BaseException | None = error
            route.suspect()
        else:
            problem = next((one for one in answers if isinstance(one, BaseException)), None)
        if problem is None:
            return
        if not is_temporary(problem) or time.monotonic() + pause > end:
            _log.warning("a request for %r could not be withdrawn: %s", keys[0], problem)
            return
        time.sleep(pause)


def release_late(route: Route, keys: Sequence[Key], token: str) -> None:
    """Releases a hold that is lost, in case the server still has it. It does not wait long for the answer."""
    try:
        recipe = route.pool_of(keys[0]).recipe
        connection = Connection(recipe._replace(timeout=LATE_TIME, connect_timeout=LATE_TIME))
        try:
            connection.ask(_commands.release(keys, token))
        finally:
            connection.close()
    except (base.RedisError, OSError) as problem:
        _log.info("a lost hold of %r could not be released: %s", keys[0], problem)


def _until_answered(route: Route, key: Key, cancel: _commands.Command, pending: Connection) -> None:
    # A request that is still on its way is not withdrawn. So its answer is waited for.
    end = time.monotonic() + ANSWER_TIME
    with contextlib.suppress(base.ConnectionError, OSError):
        while pending.unanswered and time.monotonic() < end:
            with contextlib.suppress(base.RedisError, OSError):
                route.ask(key, cancel)
            with contextlib.suppress(base.TimeoutError):
                pending.receive(time.monotonic() + CANCEL_AGAIN_AFTER)
    pending.close()
