"""Every way in which a lock that somebody waits for becomes free, or becomes something else.

The lock is `k` in database 0, held for an hour by `holder`, so that nothing but the cause can end the hold.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from harness.raw import Argument
from harness.waiting import HOUR, Command

KEY = "k"
HOLDER = "holder"

# How long a hold or a key lives that is made to end by its own deadline.
BRIEF = 40

WRITER = f"SLOCK.LOCK k holder {HOUR}"
READERS = f"SLOCK.RLOCK k holder {HOUR} | SLOCK.RLOCK k other {HOUR}"
BESIDE_A_READER = f"{WRITER} | SLOCK.RLOCK shared sharer {HOUR}"
BESIDE_A_STRING = f"{WRITER} | SET text string"


def commands_of(text: str) -> list[tuple[str, ...]]:
    """The commands of a line in which " | " stands between them."""
    return [tuple(shlex.split(command)) for command in text.split(" | ")]


@dataclass(frozen=True)
class Cause:
    name: str
    # What one connection sends in one write. "DUMP:key" stands for what DUMP says of the key.
    sent: str
    # What the stream shows of it. Empty when the module has done it by a command of its own.
    replicated_as: str = ""
    before: str = WRITER
    # The key is to be free only when a deadline has passed, and not with the last command.
    by_deadline: bool = False
    # What is left of the old holders, as readers beside whom only readers are admitted.
    readers_left: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def hold(self, client: Any) -> None:
        for command in commands_of(self.before):
            assert client.execute_command(*command)

    def commands(self, client: Any) -> list[Command]:
        def word(text: str) -> Argument:
            return client.dump(text.removeprefix("DUMP:")) if text.startswith("DUMP:") else text

        return [tuple(map(word, command)) for command in commands_of(self.sent)]


def _evict(policy: str) -> str:
    """The limit is back before anybody can be granted: else the grant would be evicted, too."""
    return (
        f"CONFIG SET maxmemory-policy {policy} maxmemory 1 | PING | "
        "CONFIG SET maxmemory 0 maxmemory-policy noeviction"
    )


def _script(*commands: str) -> str:
    calls = (f"redis.call({', '.join(repr(word) for word in command.split())})" for command in commands)
    return f'EVAL "return {{{", ".join(calls)}}}" 0'


_DELETES = "DEL UNLINK"
_UNLOCK, _NEWCOMER = "SLOCK.UNLOCK k holder", f"SLOCK.LOCK k newcomer {HOUR} WAIT 0"

FREEING = [
    Cause("UNLOCK", _UNLOCK),
    Cause("RUNLOCK of the last reader", "SLOCK.RUNLOCK k other | SLOCK.RUNLOCK k holder", before=READERS),
    # A newcomer of the same script or transaction does not get it.
    Cause("UNLOCK in a script", _script(_UNLOCK, _NEWCOMER)),
    Cause("UNLOCK in MULTI", f"MULTI | {_UNLOCK} | {_NEWCOMER} | EXEC"),
    Cause("a writer's deadline", f"SLOCK.EXTEND k holder {BRIEF}", by_deadline=True),
    Cause(
        "the last reader's deadline",
        f"SLOCK.EXTEND k holder {BRIEF} | SLOCK.EXTEND k other {BRIEF // 2}",
        before=READERS,
        by_deadline=True,
    ),
    Cause("DEL", "DEL k", _DELETES),
    Cause("UNLINK", "UNLINK k", _DELETES),
    Cause("DEL in MULTI", f"MULTI | DEL k | {_NEWCOMER} | EXEC", _DELETES),
    Cause("DEL in a script", _script("DEL k", _NEWCOMER), _DELETES),
    Cause("RENAME away", "RENAME k elsewhere", "RENAME"),
    Cause("MOVE", "MOVE k 1", "MOVE"),
    Cause("EXPIRE 0", "EXPIRE k 0", _DELETES),
    Cause("PEXPIRE by a user", f"PEXPIRE k {BRIEF}", _DELETES, by_deadline=True),
    Cause("eviction by allkeys-random", _evict("allkeys-random"), _DELETES),
    Cause("eviction by volatile-ttl", _evict("volatile-ttl"), _DELETES),
    Cause("FLUSHDB", "FLUSHDB SYNC", "FLUSHDB"),
    Cause("FLUSHDB ASYNC", "FLUSHDB ASYNC", "FLUSHDB"),
    Cause("FLUSHALL", "FLUSHALL SYNC", "FLUSHALL"),
    Cause("FLUSHALL ASYNC", "FLUSHALL ASYNC", "FLUSHALL"),
    Cause("SWAPDB", "SWAPDB 0 1", "SWAPDB"),
    Cause("SWAPDB named the other way", "SWAPDB 1 0", "SWAPDB"),
    Cause("RESTORE REPLACE of something expired", "RESTORE k 1 DUMP:k REPLACE ABSTTL", f"{_DELETES} RESTORE"),
]


# The name now holds another type, which is an error for whoever waits.
REPLACING = [
    Cause("SET", "SET k string"),
    Cause("DEL and LPUSH", "DEL k | LPUSH k a"),
    Cause("RENAME over it", "RENAME text k", before=BESIDE_A_STRING),
    Cause("COPY REPLACE", "COPY text k REPLACE", before=BESIDE_A_STRING),
    Cause("RESTORE REPLACE", "RESTORE k 0 DUMP:text REPLACE", before=BESIDE_A_STRING),
]


# A read lock is where a writer was: the readers at the head may join it, a writer may not.
SHARING = [
    Cause("DOWNGRADE", f"SLOCK.DOWNGRADE k holder {HOUR}", readers_left=(HOLDER,)),
    *(
        Cause(f"{name} over a lock", sent, name, BESIDE_A_READER, readers_left=("sharer",))
        for name, sent in (
            ("RENAME", "RENAME shared k"),
            ("COPY", "COPY shared k REPLACE"),
            ("RESTORE", "RESTORE k 0 DUMP:shared REPLACE"),
        )
    ),
]
