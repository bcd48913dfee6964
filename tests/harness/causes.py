"""Every way in which a lock that somebody waits for becomes free, or becomes something else.

The lock is `k` in database 0, held for an hour by `holder`, so that nothing but the cause can end the hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.raw import Argument
from harness.waiting import HOUR

Commands = list[tuple[Argument, ...]]

KEY = "k"
HOLDER = "holder"

# How long a hold or a key lives that is made to end by its own deadline.
BRIEF = 40


def _writer(client: Any) -> None:
    assert client.execute_command("SLOCK.LOCK", KEY, HOLDER, HOUR)


def _readers(client: Any) -> None:
    for token in (HOLDER, "other"):
        assert client.execute_command("SLOCK.RLOCK", KEY, token, HOUR)


@dataclass(frozen=True)
class Cause:
    name: str
    # What one connection sends in one write.
    commands: Callable[[Any], Commands]
    # What the stream shows of it. Empty when the module has done it by a command of its own.
    replicated_as: frozenset[str] = frozenset()
    hold: Callable[[Any], None] = _writer
    # The key is to be free only when a deadline has passed, and not with the last command.
    by_deadline: bool = False
    # What is left of the old holders, as readers beside whom only readers are admitted.
    readers_left: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def _sent(*commands: tuple[Argument, ...]) -> Callable[[Any], Commands]:
    return lambda client: list(commands)


def _evict(policy: str) -> Callable[[Any], Commands]:
    """The limit is back before anybody can be granted: else the grant would be evicted, too."""
    return _sent(
        ("CONFIG", "SET", "maxmemory-policy", policy, "maxmemory", 1),
        ("PING",),
        ("CONFIG", "SET", "maxmemory", 0, "maxmemory-policy", "noeviction"),
    )


def _with_dump(key: str, ttl: int = 0, *options: str) -> Callable[[Any], Commands]:
    return lambda client: [("RESTORE", KEY, ttl, client.dump(key), "REPLACE", *options)]


def _with_text(commands: Callable[[Any], Commands]) -> Callable[[Any], Commands]:
    return lambda client: client.set("text", "a string") and commands(client)


def _with_reader(commands: Callable[[Any], Commands]) -> Callable[[Any], Commands]:
    return lambda client: client.execute_command("SLOCK.RLOCK", "shared", *_SHARER, HOUR) and commands(client)


_SHARER = ("sharer",)
_DELETES = frozenset({"DEL", "UNLINK"})

FREEING = [
    Cause("UNLOCK", _sent(("SLOCK.UNLOCK", KEY, HOLDER))),
    Cause(
        "RUNLOCK of the last reader",
        _sent(("SLOCK.RUNLOCK", KEY, "other"), ("SLOCK.RUNLOCK", KEY, HOLDER)),
        hold=_readers,
    ),
    Cause("UNLOCK in a script", _sent(("EVAL", f"return redis.call('SLOCK.UNLOCK','{KEY}','{HOLDER}')", 0))),
    Cause("UNLOCK in MULTI", _sent(("MULTI",), ("SLOCK.UNLOCK", KEY, HOLDER), ("EXEC",))),
    Cause("a writer's deadline", _sent(("SLOCK.EXTEND", KEY, HOLDER, BRIEF)), by_deadline=True),
    Cause(
        "the last reader's deadline",
        _sent(("SLOCK.EXTEND", KEY, HOLDER, BRIEF), ("SLOCK.EXTEND", KEY, "other", BRIEF // 2)),
        hold=_readers,
        by_deadline=True,
    ),
    Cause("DEL", _sent(("DEL", KEY)), _DELETES),
    Cause("UNLINK", _sent(("UNLINK", KEY)), _DELETES),
    Cause("DEL in MULTI", _sent(("MULTI",), ("DEL", KEY), ("EXEC",)), _DELETES),
    Cause("DEL in a script", _sent(("EVAL", f"return redis.call('DEL','{KEY}')", 0)), _DELETES),
    Cause("RENAME away", _sent(("RENAME", KEY, "elsewhere")), frozenset({"RENAME"})),
    Cause("MOVE", _sent(("MOVE", KEY, 1)), frozenset({"MOVE"})),
    Cause("EXPIRE 0", _sent(("EXPIRE", KEY, 0)), _DELETES),
    Cause("PEXPIRE by a user", _sent(("PEXPIRE", KEY, BRIEF)), _DELETES, by_deadline=True),
    Cause("eviction by allkeys-random", _evict("allkeys-random"), _DELETES),
    Cause("eviction by volatile-ttl", _evict("volatile-ttl"), _DELETES),
    Cause("FLUSHDB", _sent(("FLUSHDB", "SYNC")), frozenset({"FLUSHDB"})),
    Cause("FLUSHDB ASYNC", _sent(("FLUSHDB", "ASYNC")), frozenset({"FLUSHDB"})),
    Cause("FLUSHALL", _sent(("FLUSHALL", "SYNC")), frozenset({"FLUSHALL"})),
    Cause("FLUSHALL ASYNC", _sent(("FLUSHALL", "ASYNC")), frozenset({"FLUSHALL"})),
    Cause("SWAPDB", _sent(("SWAPDB", 0, 1)), frozenset({"SWAPDB"})),
    Cause("SWAPDB named the other way", _sent(("SWAPDB", 1, 0)), frozenset({"SWAPDB"})),
    Cause("RESTORE REPLACE of something expired", _with_dump(KEY, 1, "ABSTTL"), _DELETES | {"RESTORE"}),
]


# The name now holds another type, which is an error for whoever waits.
REPLACING = [
    Cause("SET", _sent(("SET", KEY, "a string"))),
    Cause("DEL and LPUSH", _sent(("DEL", KEY), ("LPUSH", KEY, "a"))),
    Cause("RENAME over it", _with_text(_sent(("RENAME", "text", KEY)))),
    Cause("COPY REPLACE", _with_text(_sent(("COPY", "text", KEY, "REPLACE")))),
    Cause("RESTORE REPLACE", _with_text(_with_dump("text"))),
]


# A read lock is where a writer was: the readers at the head may join it, a writer may not.
SHARING = [
    Cause("DOWNGRADE", _sent(("SLOCK.DOWNGRADE", KEY, HOLDER, HOUR)), readers_left=(HOLDER,)),
    *(
        Cause(f"{name} over a lock", _with_reader(commands), frozenset({name}), readers_left=_SHARER)
        for name, commands in (
            ("RENAME", _sent(("RENAME", "shared", KEY))),
            ("COPY", _sent(("COPY", "shared", KEY, "REPLACE"))),
            ("RESTORE", _with_dump("shared")),
        )
    ),
]
