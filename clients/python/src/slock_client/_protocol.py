# SPDX-License-Identifier: MIT OR Apache-2.0

"""The words of the commands, and what the replies mean. Nothing is sent here."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace

from slock_client import errors
from slock_client._options import Mode, Options, own_name
from slock_client._transport import Call, NoReply, ServerError

REFUSE_FOR = 120.0  # seconds for which the server refuses an owner token after its end
SERVER_WAIT = 15.0  # seconds that a request waits on the server unless it is sent again


def draw() -> str:
    """128 random bits, as secret as an owner token and a tag have to be. With a hyphen it could look like an option."""
    return secrets.token_urlsafe(16).replace("-", ".")


def ms(duration: float) -> int:
    """Rounded up: a wait of 0 ms would be one without end, and a ttl of 0 an error."""
    return math.ceil(duration * 1000 - 1e-6)


def word(text: str) -> str | bytes:
    """The text in a command. The base libraries' parsers in C know only UTF-8, and no bytes that are none."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape")


class Owner:
    """An owner token, the keys that it wants or holds, and what an operator sees of it."""

    __slots__ = ("_words", "is_given", "keys", "metadata", "names", "token")

    def __init__(self, names: tuple[str, ...], options: Options) -> None:
        self.names = names  # the keys for the program
        self.keys = tuple(options.prefix + name for name in names) if options.prefix else names  # for the server
        self.is_given = options.token is not None  # by the program: other acquisitions may use it too
        self.token = draw() if options.token is None else options.token
        self.metadata = own_name() if options.metadata is None else options.metadata
        self._words = tuple(map(word, (*self.keys, self.token)))

    def _command(self, single: str, several: str, *rest: object) -> Call:
        if len(self.keys) == 1 and single:
            return Call(self.keys[0], (single, *self._words, *rest))
        return Call(self.keys[0], (several, len(self.keys), *self._words, *rest))

    def _lock(self, mode: Mode, ttl: int, *rest: object) -> Call:
        single, several = ("SLOCK.LOCK", "SLOCK.MLOCK") if mode == "write" else ("SLOCK.RLOCK", "SLOCK.MRLOCK")
        meta = ("META", self.metadata) if self.metadata else ()
        return self._command(single, several, ttl, *meta, *rest)

    def lock(self, mode: Mode, ttl: float, limit: int | None) -> Call:
        """Asks for the lock."""
        return self._lock(mode, ms(ttl), *(() if limit is None else ("LIMIT", limit)))

    def adopt(self, mode: Mode, ttl: float) -> Call:
        """Gives the fence of what the token holds in the mode, and never takes a lock."""
        return self._lock(mode, ms(ttl), "XX")

    def extend(self, ttl: float, fence: int, only_lengthens: bool = True) -> Call:
        """Has the hold with the fence, or whatever the token holds if it is 0, end a ttl from now."""
        gt = ("GT",) if only_lengthens else ()
        return self._command("SLOCK.EXTEND", "SLOCK.MEXTEND", ms(ttl), *gt, *_fenced(fence))

    def change(self, to: Mode, ttl: float, fence: int) -> Call:
        """Makes the hold of a single key one of this mode."""
        return self._command("SLOCK.UPGRADE" if to == "write" else "SLOCK.DOWNGRADE", "", ms(ttl), *_fenced(fence))

    def withdraw(self) -> Call:
        """Ends waiting requests and upgrades that want the first key."""
        return Call(self.keys[0], ("SLOCK.CANCEL", self._words[0], self._words[-1]))

    def questions(self) -> list[Call]:
        """Ask who holds each key."""
        return [Call(key, ("SLOCK.INFO", word(key), "FULL", "COUNT", 10)) for key in self.keys]

    def end(self, fence: int) -> Call:
        """Ends the acquisition: withdraws what waits, releases what is held, and refuses what arrives later.

        A token of the program's may be in use for another hold: it is not refused, and of it the hold with the fence
        ends, if that is known.
        """
        rest = _fenced(fence) if self.is_given else ("REFUSE", ms(REFUSE_FOR))
        return self._command("", "SLOCK.MUNLOCK", *rest)


def at_least_call(names: tuple[str, ...], options: Options) -> Call:
    """Has the server check `at_least`, which is else sent at the release, when it is too late. Nobody has the token, so
    no hold changes."""
    return Owner(names, replace(options, token=None)).extend(options.at_least, 0)


@contextlib.contextmanager
def naming_at_least() -> Iterator[None]:
    """An error that lasts, and that is not one of this library, names the option."""
    try:
        yield
    except ServerError as error:
        known = explained(error)
        if passes(error) or isinstance(known, errors.SlockError):
            raise
        named = type(known)(f"at_least: {known}")
        raise ServerError(str(named)) from named


def _fenced(fence: int) -> tuple[object, ...]:
    return ("FENCE", fence) if fence else ()


def waiting(call: Call, wait: float, channel: str, tag: str) -> Call:
    """The command with a place in the queue, whose end is told on a channel."""
    return call._replace(words=(*call.words, "WAIT", ms(wait), "NOTIFY", channel, tag))


def message_of(payload: str) -> tuple[str, int | ServerError]:
    """The tag of a message, and its fence, 0, or error. Raises `ValueError`."""
    first, _, tag = payload.partition(" ")
    if first.startswith("-"):
        return tag, ServerError(f"{first[1:]} the server ended the wait")
    return tag, int(first)


# The codes after which the same command, with the same token, may succeed a little later.
_PASSING = {
    *("UNBLOCKED", "TRYAGAIN", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "GRACE", "NOREPLICAS"),
    *("MISCONF", "MOVED", "ASK", "NOSUBSCRIBER"),
}
_KINDS: dict[str, Callable[..., errors.SlockError]] = {
    "WRONGMODE": errors.WrongModeError,
    "NOTHELD": errors.NotHeldError,
    "DEADLOCK": errors.DeadlockError,
    "QUEUEFULL": errors.QueueFullError,
    "REFUSED": errors.RefusedError,
}


def passes(error: BaseException) -> bool:
    """Whether a command may succeed if it is sent again: the server said so, or there was no reply."""
    return isinstance(error, NoReply) or (isinstance(error, ServerError) and error.code in _PASSING)


def explained(error: Exception, keys: tuple[str, ...] = ()) -> BaseException:
    """The error for the program: one of this library, or that of the client library."""
    kind = _KINDS.get(error.code) if isinstance(error, ServerError) else None
    if kind is not None:
        known = kind(str(error), keys)
    elif isinstance(error, ServerError) and "unknown command" in str(error).lower():
        known = errors.ModuleNotLoadedError(
            "the server has not loaded the SLOCK module: start it with --loadmodule /path/to/libslock.so, or run "
            "MODULE LOAD /path/to/libslock.so"
        )
    else:
        return error.__cause__ or error
    known.__cause__ = error.__cause__
    return known


def more_telling(last: Exception | None, error: Exception) -> Exception:
    """The later of two errors, unless it only says that nothing came in time."""
    is_silence = isinstance(error, NoReply) and type(error.__cause__).__name__ in ("NoneType", "TimeoutError")
    return last if last is not None and is_silence else error


def no_answer(keys: tuple[str, ...], within: float, last: Exception | None) -> errors.NoAnswerError:
    """The error of a call that had no reply in time, or only replies after which it was sent again."""
    what = "only errors from the server" if isinstance(last, ServerError) else "no reply from the server"
    error = errors.NoAnswerError(f"{what} within {short(within)}", keys)
    if last is not None:
        error.__cause__ = last.__cause__ or (last if isinstance(last, ServerError) else None)
    return error


def not_held(keys: tuple[str, ...], mode: Mode) -> errors.NotHeldError:
    return errors.NotHeldError(f"the owner token does not hold the lock for {mode}", keys)


def short(duration: float) -> str:
    return f"{duration * 1000:.0f}ms" if duration < 1 else f"{duration:.3g}s"
