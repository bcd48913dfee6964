"""Every way in which a lock that somebody waits for becomes free, or becomes something else.

A cause is a list of commands that one connection can send in one write. The lock is `k` in database 0, held
for an hour by the token `holder`, so that nothing but the cause can end the hold.
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


def _last_reader(client: Any) -> None:
    _readers(client)
    assert client.execute_command("SLOCK.RUNLOCK", KEY, "other") == 1


@dataclass(frozen=True)
class Cause:
    name: str
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


def _restore_expired(client: Any) -> Commands:
    return [("RESTORE", KEY, 1, client.dump(KEY), "REPLACE", "ABSTTL")]


_DELETES = frozenset({"DEL", "UNLINK"})

FREEING = [
    Cause("UNLOCK", _sent(("SLOCK.UNLOCK", KEY, HOLDER))),
    Cause("RUNLOCK of the last reader", _sent(("SLOCK.RUNLOCK", KEY, HOLDER)), hold=_last_reader),
    Cause(
        "RUNLOCK of all readers at once",
        _sent(("SLOCK.RUNLOCK", KEY, HOLDER), ("SLOCK.RUNLOCK", KEY, "other")),
        hold=_readers,
    ),
    Cause("UNLOCK in a script", _sent(("EVAL", f"return redis.call('SLOCK.UNLOCK','{KEY}','{HOLDER}')", 0))),
    Cause("UNLOCK in MULTI", _sent(("MULTI",), ("SLOCK.UNLOCK", KEY, HOLDER), ("EXEC",))),
    Cause("a writer's deadline", _sent(("SLOCK.EXTEND", KEY, HOLDER, BRIEF)), by_deadline=True),
    Cause("a writer's deadline after a refresh", _sent(("SLOCK.LOCK", KEY, HOLDER, BRIEF)), by_deadline=True),
    Cause(
        "the last reader's deadline",
        _sent(("SLOCK.EXTEND", KEY, HOLDER, BRIEF), ("SLOCK.EXTEND", KEY, "other", BRIEF // 2)),
        hold=_readers,
        by_deadline=True,
    ),
    Cause("DEL", _sent(("DEL", KEY)), _DELETES),
    Cause("UNLINK", _sent(("UNLINK", KEY)), _DELETES),
    Cause("DEL of a read lock", _sent(("DEL", KEY)), _DELETES, hold=_readers),
    Cause("DEL in MULTI", _sent(("MULTI",), ("DEL", KEY), ("EXEC",)), _DELETES),
    Cause("DEL in a script", _sent(("EVAL", f"return redis.call('DEL','{KEY}')", 0)), _DELETES),
    Cause("RENAME away", _sent(("RENAME", KEY, "elsewhere")), frozenset({"RENAME"})),
    Cause("RENAMENX away", _sent(("RENAMENX", KEY, "elsewhere")), frozenset({"RENAMENX"})),
    Cause("MOVE", _sent(("MOVE", KEY, 1)), frozenset({"MOVE"})),
    Cause("EXPIRE 0", _sent(("EXPIRE", KEY, 0)), _DELETES),
    Cause("PEXPIREAT in the past", _sent(("PEXPIREAT", KEY, 1)), _DELETES),
    Cause("PEXPIRE by a user", _sent(("PEXPIRE", KEY, BRIEF)), _DELETES, by_deadline=True),
    Cause("eviction by allkeys-random", _evict("allkeys-random"), _DELETES),
    Cause("eviction by allkeys-lru", _evict("allkeys-lru"), _DELETES),
    Cause("eviction by volatile-ttl", _evict("volatile-ttl"), _DELETES),
    Cause("FLUSHDB", _sent(("FLUSHDB", "SYNC")), frozenset({"FLUSHDB"})),
    Cause("FLUSHDB ASYNC", _sent(("FLUSHDB", "ASYNC")), frozenset({"FLUSHDB"})),
    Cause("FLUSHALL", _sent(("FLUSHALL", "SYNC")), frozenset({"FLUSHALL"})),
    Cause("FLUSHALL ASYNC", _sent(("FLUSHALL", "ASYNC")), frozenset({"FLUSHALL"})),
    Cause("SWAPDB", _sent(("SWAPDB", 0, 1)), frozenset({"SWAPDB"})),
    Cause("SWAPDB named the other way", _sent(("SWAPDB", 1, 0)), frozenset({"SWAPDB"})),
    Cause("RESTORE REPLACE of something expired", _restore_expired, _DELETES | {"RESTORE"}),
]


def _over(*command: Argument) -> Callable[[Any], Commands]:
    def commands(client: Any) -> Commands:
        client.set("text", "a string")
        return [command]

    return commands


def _restore_text(client: Any) -> Commands:
    client.set("text", "a string")
    return [("RESTORE", KEY, 0, client.dump("text"), "REPLACE")]


# The name now holds another type, which is an error for whoever waits.
REPLACING = [
    Cause("SET", _sent(("SET", KEY, "a string"))),
    Cause("SET in MULTI", _sent(("MULTI",), ("SET", KEY, "a string"), ("EXEC",))),
    Cause("DEL and LPUSH", _sent(("DEL", KEY), ("LPUSH", KEY, "a"))),
    Cause("RENAME over it", _over("RENAME", "text", KEY)),
    Cause("COPY REPLACE", _over("COPY", "text", KEY, "REPLACE")),
    Cause("RESTORE REPLACE", _restore_text),
]


def _shared(*command: Argument) -> Callable[[Any], Commands]:
    def commands(client: Any) -> Commands:
        client.execute_command("SLOCK.RLOCK", "shared", "sharer", HOUR)
        return [command]

    return commands


def _restore_shared(client: Any) -> Commands:
    client.execute_command("SLOCK.RLOCK", "shared", "sharer", HOUR)
    return [("RESTORE", KEY, 0, client.dump("shared"), "REPLACE")]


_SHARER = ("sharer",)

# A read lock is where a writer was: the readers at the head may join it, a writer may not.
SHARING = [
    Cause("DOWNGRADE", _sent(("SLOCK.DOWNGRADE", KEY, HOLDER, HOUR)), readers_left=(HOLDER,)),
    Cause("RENAME over it", _shared("RENAME", "shared", KEY), frozenset({"RENAME"}), readers_left=_SHARER),
    Cause(
        "COPY over it",
        _shared("COPY", "shared", KEY, "REPLACE"),
        frozenset({"COPY"}),
        readers_left=_SHARER,
    ),
    Cause("RESTORE over it", _restore_shared, frozenset({"RESTORE"}), readers_left=_SHARER),
]
