"""The words of each command, as the arguments to send. Pure."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

Key: TypeAlias = str | bytes
Token: TypeAlias = str | bytes
Command: TypeAlias = tuple[str | bytes | int, ...]

WRITE = "write"
READ = "read"

# How long the server refuses the token of an acquisition that was given up, in ms: what was sent before
# cannot come later than that.
REFUSE_MS = 120_000

# No hold has it.
NO_FENCE = 1


def text_of(key: Key) -> str:
    """A key for people to read."""
    return key if isinstance(key, str) else bytes(key).decode(errors="backslashreplace")


def names_of(keys: Sequence[Key]) -> str:
    """Keys for people to read."""
    return ", ".join(map(text_of, keys))


def new_token() -> str:
    """128 random bits in 22 characters, which the server keeps without memory of their own."""
    return base64.b64encode(secrets.token_bytes(16))[:22].decode()


class Channel(NamedTuple):
    """Where the end of a wait is told, and how it is marked there."""

    name: bytes
    tag: bytes


def acquire(wanted: Any, token: Token) -> Command:
    """Asks for what a `Wanted` says. Without `waiting` it is refused at once."""
    options = wanted.options
    command = _lock(wanted.keys, wanted.mode, token, options.ttl_ms)
    if options.metadata is not None:
        command += ("META", options.metadata)
    if options.limit is not None:
        command += ("LIMIT", options.limit)
    return command


def refresh(keys: Sequence[Key], mode: str, token: Token, ttl_ms: int) -> Command:
    """The fence when the token holds all keys in this mode already, else 0. Never a new hold."""
    return (*_lock(keys, mode, token, ttl_ms), "XX")


def look_at_modes(keys: Sequence[Key], token: Token, ttl_ms: int = 1) -> list[Command]:
    """The fence of what the token holds to write, and to read."""
    return [refresh(keys, mode, token, ttl_ms) for mode in (WRITE, READ)]


def waiting(command: Command, wait_ms: int, channel: Channel | None) -> Command:
    """The command with a wait of at most so long, without limit for 0, whose end is told on the channel."""
    return (*command, "WAIT", wait_ms, *(() if channel is None else ("NOTIFY", *channel)))


def change(mode: str, key: Key, token: Token, ttl_ms: int, fence: int) -> Command:
    """Makes the reader the writer, or the writer a reader."""
    return ("SLOCK.UPGRADE" if mode == WRITE else "SLOCK.DOWNGRADE", key, token, ttl_ms, "FENCE", fence)


def extend(keys: Sequence[Key], token: Token, ttl_ms: int, fence: int) -> Command:
    """Moves the deadline to now + ttl unless it is later: 1, or 0 when the token has lost this hold."""
    return (*_of(keys, "SLOCK.EXTEND", "SLOCK.MEXTEND"), token, ttl_ms, "GT", "FENCE", fence)


def release(keys: Sequence[Key], mode: str, token: Token, fence: int) -> Command:
    """Releases the hold with this fence: how many keys were held."""
    one = "SLOCK.UNLOCK" if mode == WRITE else "SLOCK.RUNLOCK"
    return (*_of(keys, one, "SLOCK.MUNLOCK"), token, "FENCE", fence)


def release_in_any_mode(keys: Sequence[Key], token: Token, fence: int | None = None) -> Command:
    """Releases whatever the token holds, or the hold with this fence: how many keys were held."""
    named: Command = () if fence is None else ("FENCE", fence)
    return ("SLOCK.MUNLOCK", len(keys), *keys, token, *named)


def cancel(keys: Sequence[Key], token: Token, *, refuse: bool) -> list[Command]:
    """Withdraws what waits. With `refuse` later requests of the token for these keys are refused."""
    more: Command = ("REFUSE", REFUSE_MS) if refuse else ()
    return [("SLOCK.CANCEL", key, token, *more) for key in keys]


def info(key: Key) -> Command:
    """Who holds the key and who waits for it."""
    return ("SLOCK.INFO", key, "FULL", "COUNT", 0)


def queues() -> Command:
    """The names where somebody waits."""
    return ("SLOCK.QUEUES", "COUNT", 0)


def wait_for_replicas(replicas: int, timeout_ms: int) -> Command:
    """How many replicas have all that this connection wrote before."""
    return ("WAIT", replicas, timeout_ms)


def _lock(keys: Sequence[Key], mode: str, token: Token, ttl_ms: int) -> Command:
    read = "R" if mode == READ else ""
    return (*_of(keys, f"SLOCK.{read}LOCK", f"SLOCK.M{read}LOCK"), token, ttl_ms)


def _of(keys: Sequence[Key], one: str, several: str) -> Command:
    """The begin of a command of one key, or of one for several."""
    return (one, keys[0]) if len(keys) == 1 else (several, len(keys), *keys)
