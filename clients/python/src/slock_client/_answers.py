"""What each answer of the server means. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import redis.exceptions as base

from slock_client import errors

E = TypeVar("E", bound=BaseException)

Answer: TypeAlias = Any
"""What the server answered, or the error: of the server, or of the connection."""

# redis-py takes the code from the text of these.
_CODES: list[tuple[type[Exception], str]] = [
    (base.TryAgainError, "TRYAGAIN"),
    (base.ReadOnlyError, "READONLY"),
    (base.BusyLoadingError, "LOADING"),
    (base.MasterDownError, "MASTERDOWN"),
    (base.ClusterDownError, "CLUSTERDOWN"),
    (base.NoPermissionError, "NOPERM"),
]

# Answers that may be different when the same request is sent again.
_TEMPORARY = {"UNBLOCKED", "GRACE", "NOREPLICAS", *(code for _, code in _CODES)} - {"NOPERM"}

# An attribute of errors of redis-py.
_UNSENT = "slock_unsent"

_NAMED: dict[str, type[Exception]] = {
    "DEADLOCK": errors.DeadlockError,
    "QUEUEFULL": errors.QueueFullError,
    "WRONGMODE": errors.WrongModeError,
    "NOTHELD": errors.NotHeldError,
    "REFUSED": errors.RefusedError,
}


def code_of(error: BaseException) -> str:
    """The first word of the error, as the server sent it."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return str(error).partition(" ")[0]


def is_lost_connection(error: object) -> bool:
    """Whether the connection failed, so that the command may or may not have been executed."""
    # redis-py counts some answers of the server among the connection errors.
    answers = (base.ResponseError, base.AuthenticationError, base.AuthorizationError, base.BusyLoadingError)
    lost = (base.ConnectionError, base.TimeoutError, OSError)
    return isinstance(error, lost) and not isinstance(error, answers)


def unsent(error: E) -> E:
    """Notes that there was no connection, so that nothing was sent."""
    error.__dict__[_UNSENT] = True
    return error


def is_unsent(error: BaseException) -> bool:
    """Whether nothing was sent before `error`, because there was no connection."""
    return _UNSENT in error.__dict__


def may_be_executed(error: BaseException) -> bool:
    """Whether the command whose attempt ended with `error` may have been executed all the same."""
    return is_lost_connection(error) and not is_unsent(error)


def is_wrong_server(error: BaseException) -> bool:
    """Whether another server may serve by now."""
    codes = ("READONLY", "MASTERDOWN", "CLUSTERDOWN", "UNBLOCKED")
    return is_lost_connection(error) or code_of(error) in codes


def is_temporary(error: BaseException) -> bool:
    """Whether to ask again after a pause."""
    return is_lost_connection(error) or code_of(error) in _TEMPORARY


def is_channel_refused(error: BaseException) -> bool:
    """Whether the user may not use the channel of NOTIFY, or may not subscribe at all."""
    text = str(error).lower()
    return code_of(error) == "NOPERM" and ("channel" in text or "ssubscribe" in text)


def error_of(error: BaseException, names: str) -> BaseException:
    """The error that a program gets to see for a command about the keys `names`."""
    if str(error).lower().startswith(("unknown command", "err unknown command")):
        return errors.ModuleNotLoadedError()
    code = code_of(error)
    if code in _NAMED:
        return _NAMED[code](f"{names}: {str(error).partition(' ')[2] or code}")
    if code == "WRONGTYPE":
        return base.ResponseError(
            f"{error} ({names}: the key holds something else than a lock of SLOCK, perhaps a lock of "
            "redis-py or of another library that uses the same name)"
        )
    return error


def outcome_of(granted: bool, problem: BaseException | None) -> str:
    """How hooks name the end of an acquisition."""
    if granted:
        return "granted"
    if problem is None:
        return "refused"
    if isinstance(problem, errors.TimedOutError):
        return "timed out"
    return type(problem).__name__ if isinstance(problem, Exception) else "cancelled"


def problem_in(
    answers: Iterable[Answer], counts: Callable[[BaseException], bool] = lambda _: True
) -> BaseException | None:
    """The first error among answers, of those that count."""
    for answer in answers:
        if isinstance(answer, BaseException) and counts(answer):
            return answer
    return None
