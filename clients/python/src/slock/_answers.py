"""What errors of the server mean."""

from __future__ import annotations

import redis.exceptions as base

from slock.errors import Deadlock, ModuleNotLoaded, NotHeld, QueueFull, WrongMode

# Answers that may be different when the same request is sent again.
_TEMPORARY = {
    "UNBLOCKED",
    "TRYAGAIN",
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "GRACE",
    "NOREPLICAS",
}

# redis-py takes the code from the text of these.
_CODES: list[tuple[type[Exception], str]] = [
    (base.TryAgainError, "TRYAGAIN"),
    (base.ReadOnlyError, "READONLY"),
    (base.BusyLoadingError, "LOADING"),
    (base.MasterDownError, "MASTERDOWN"),
    (base.ClusterDownError, "CLUSTERDOWN"),
    (base.NoPermissionError, "NOPERM"),
]

# An attribute of errors of redis-py.
_UNSENT = "slock_unsent"

_NAMED: dict[str, type[Exception]] = {
    "DEADLOCK": Deadlock,
    "QUEUEFULL": QueueFull,
    "WRONGMODE": WrongMode,
    "NOTHELD": NotHeld,
}


def code_of(error: BaseException) -> str:
    """The first word of the error, as the server sent it."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return str(error).partition(" ")[0]


def is_lost_connection(error: object) -> bool:
    """Whether the connection failed, so that the command may or may not have been executed."""
    if isinstance(error, (base.AuthenticationError, base.AuthorizationError)):
        return False  # redis-py counts them among the connection errors
    return isinstance(error, (base.ConnectionError, base.TimeoutError, OSError))


def note_unsent(error: BaseException) -> None:
    """Notes that there was no connection, so that nothing was sent."""
    error.__dict__[_UNSENT] = True


def may_be_executed(error: BaseException) -> bool:
    """Whether the command whose attempt ended with `error` may have been executed all the same."""
    return is_lost_connection(error) and _UNSENT not in error.__dict__


def is_wrong_server(error: object) -> bool:
    """Whether another server may serve by now."""
    return isinstance(error, BaseException) and (
        is_lost_connection(error) or code_of(error) in ("READONLY", "MASTERDOWN", "CLUSTERDOWN", "UNBLOCKED")
    )


def is_replica(answer: object) -> bool:
    """Whether the server says that it is no primary any more."""
    return isinstance(answer, BaseException) and code_of(answer) in ("READONLY", "MASTERDOWN")


def is_temporary(error: BaseException) -> bool:
    """Whether to ask again after a pause."""
    return is_lost_connection(error) or code_of(error) in _TEMPORARY


def is_channel_refused(error: BaseException) -> bool:
    """Whether the user may not use the channel of NOTIFY, or may not subscribe at all."""
    text = str(error).lower()
    return code_of(error) == "NOPERM" and ("channel" in text or "ssubscribe" in text)


def error_of(error: BaseException) -> BaseException:
    """The error that a program gets to see."""
    if str(error).lower().startswith(("unknown command", "err unknown command")):
        return ModuleNotLoaded()
    code = code_of(error)
    if code in _NAMED:
        return _NAMED[code](str(error).partition(" ")[2] or code)
    return error


def error_of_message(code: str) -> Exception:
    """The error in a message of NOTIFY, such as `DEADLOCK`."""
    for kind, known in _CODES:
        if code == known:
            return kind(f"{code} at the end of the wait")
    return base.ResponseError(f"{code} at the end of the wait")
