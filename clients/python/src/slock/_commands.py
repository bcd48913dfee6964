"""The commands of the module, as the arguments to send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

Key: TypeAlias = str | bytes
Command: TypeAlias = tuple[str | bytes | int, ...]

WRITE = "write"
READ = "read"


def text_of(key: Key) -> str:
    """A key for people to read."""
    return key if isinstance(key, str) else bytes(key).decode(errors="backslashreplace")


class Channel(NamedTuple):
    """Where the end of a wait is told, and how it is marked there."""

    name: bytes
    tag: bytes


def acquire(
    keys: Sequence[Key],
    mode: str,
    token: str,
    ttl_ms: int,
    *,
    metadata: str | None = None,
    limit: int | None = None,
    wait_ms: int | None = None,
    channel: Channel | None = None,
) -> Command:
    """Asks for a new hold. Without `wait_ms` it is refused at once; 0 waits without limit."""
    command: Command
    if len(keys) == 1:
        command = ("SLOCK.LOCK" if mode == WRITE else "SLOCK.RLOCK", keys[0], token, ttl_ms)
    else:
        command = ("SLOCK.MLOCK" if mode == WRITE else "SLOCK.MRLOCK", len(keys), *keys, token, ttl_ms)
    if metadata is not None:
        command += ("META", metadata)
    if limit is not None:
        command += ("LIMIT", limit)
    return command + _wait(wait_ms, channel)


def upgrade(
    key: Key, token: str, ttl_ms: int, *, wait_ms: int | None = None, channel: Channel | None = None
) -> Command:
    """Makes the reader the writer."""
    return ("SLOCK.UPGRADE", key, token, ttl_ms, *_wait(wait_ms, channel))


def downgrade(key: Key, token: str, ttl_ms: int) -> Command:
    """Makes the writer a reader."""
    return ("SLOCK.DOWNGRADE", key, token, ttl_ms)


def extend(keys: Sequence[Key], token: str, ttl_ms: int) -> Command:
    """Sets a new deadline in either mode: 1, or 0 when the token does not hold all keys."""
    if len(keys) == 1:
        return ("SLOCK.EXTEND", keys[0], token, ttl_ms)
    return ("SLOCK.MEXTEND", len(keys), *keys, token, ttl_ms)


def release(keys: Sequence[Key], token: str) -> Command:
    """Releases in whichever mode: how many keys were held.

    Always the command for several keys: an upgrade whose reply was lost leaves the mode in doubt.
    """
    return ("SLOCK.MUNLOCK", len(keys), *keys, token)


def cancel(key: Key, token: str) -> Command:
    """Withdraws the requests of the token that wait for the key."""
    return ("SLOCK.CANCEL", key, token)


def holders(key: Key) -> Command:
    """Who holds the key, with tokens, fences and metadata."""
    return ("SLOCK.INFO", key, "FULL", "COUNT", 0)


def wait_for_replicas(replicas: int, timeout_ms: int) -> Command:
    """How many replicas have all that this connection wrote before."""
    return ("WAIT", replicas, timeout_ms)


def _wait(wait_ms: int | None, channel: Channel | None) -> Command:
    if wait_ms is None:
        return ()
    if channel is None:
        return ("WAIT", wait_ms)
    return ("WAIT", wait_ms, "NOTIFY", channel.name, channel.tag)
