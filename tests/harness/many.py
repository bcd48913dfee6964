"""Commands that name several keys."""

from __future__ import annotations

from harness.raw import Argument

Command = tuple[Argument, ...]


def many(name: str, keys: str | list[str] | tuple[str, ...], *rest: Argument) -> Command:
    """`many("MLOCK", "a b", "token", 1000)` is SLOCK.MLOCK 2 a b token 1000."""
    names = keys.split() if isinstance(keys, str) else list(keys)
    return (f"SLOCK.{name}", len(names), *names, *rest)
