# SPDX-License-Identifier: MIT OR Apache-2.0

"""The rules of the lock in memory: who may hold it, who is next, and what the server tells of it."""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from slock_client._transport import ServerError

Tell = Callable[[str, str], None]  # sends a message to a channel


@dataclass
class _Holder:
    token: str
    fence: int
    since: float
    deadline: float = 0.0
    meta: str = ""


@dataclass
class _Lock:
    mode: str = "write"
    holders: list[_Holder] = field(default_factory=list)  # in the order of their holds


@dataclass
class _Asked:
    """What a command asks for."""

    keys: list[str]
    token: str = ""
    mode: str = "write"  # or read, or upgrade
    ttl: float = 0.0
    meta: str | None = None
    limit: int = 0
    fence: int = 0
    refuse: float = 0.0
    wait: float | None = None
    channel: str = ""
    tag: str = ""
    is_exact: bool = False  # XX
    only_lengthens: bool = False  # GT
    since: float = 0.0  # of a request that waits
    until: float = 0.0


_NUMBERS = {"LIMIT": "limit", "FENCE": "fence"}
_TIMES = {"WAIT": "wait", "REFUSE": "refuse"}
_FLAGS = {"XX": "is_exact", "GT": "only_lengthens"}


def _text(word: Any) -> str:
    return word.decode("utf-8", "surrogateescape") if isinstance(word, bytes) else str(word)


def _parse(name: str, words: list[Any]) -> _Asked:
    count = int(words.pop(0)) if name.startswith("M") else 1
    asked = _Asked(keys=[_text(word) for word in words[:count]])
    rest = words[count:]
    if len({*asked.keys}) < count:
        raise ServerError("ERR a key is named twice")
    if name == "INFO":
        return asked
    asked.token = _text(rest.pop(0))
    asked.mode = "upgrade" if name == "UPGRADE" else "read" if "RLOCK" in name else "write"
    if not name.endswith("UNLOCK") and name not in ("CANCEL", "PTTL"):
        asked.ttl = int(rest.pop(0)) / 1000
        if not 0 < asked.ttl <= 86400:
            raise ServerError("ERR the ttl must be 1 to 86400000 ms")
    while rest:
        option = _text(rest.pop(0)).upper()
        if option in _FLAGS:
            setattr(asked, _FLAGS[option], True)
        elif option in _NUMBERS:
            setattr(asked, _NUMBERS[option], int(rest.pop(0)))
        elif option in _TIMES:
            setattr(asked, _TIMES[option], int(rest.pop(0)) / 1000)
        elif option == "META":
            asked.meta = _text(rest.pop(0))
        elif option == "NOTIFY":
            asked.channel, asked.tag = _text(rest.pop(0)), _text(rest.pop(0))
        else:
            raise ServerError(f"ERR unknown option '{option}'")
    return asked


class State:
    """All locks of a server. The caller has one command carried out at a time."""

    def __init__(self, tell: Tell, subscribed: Callable[[str], bool]) -> None:
        self._tell, self._subscribed = tell, subscribed
        self._locks: dict[str, _Lock] = {}
        self._queue: list[_Asked] = []  # in the order of arrival; an upgrade comes before the others
        self._ended: dict[tuple[str, str], tuple[float, bool]] = {}  # until when, and what the end found
        self._fence = 0

    def execute(self, words: Iterable[Any]) -> Any:
        name, *rest = words
        name = str(name).upper().removeprefix("SLOCK.")
        self.expire()
        if name == "WAIT":  # for replicas: there are none
            return 0
        if name == "DEL":
            found = sum(self._locks.pop(str(key), None) is not None for key in rest)
            self.serve()
            return found
        if name == "QUEUES":
            return self._queues()
        asked = _parse(name, rest)
        handlers: dict[str, Callable[[_Asked], Any]] = {
            **dict.fromkeys(("LOCK", "RLOCK", "MLOCK", "MRLOCK", "UPGRADE"), self._acquire),
            **{"UNLOCK": lambda asked: self._end(asked, "write"), "RUNLOCK": lambda asked: self._end(asked, "read")},
            **{"MUNLOCK": lambda asked: self._end(asked, ""), "EXTEND": self._extend, "MEXTEND": self._extend},
            **{"DOWNGRADE": self._downgrade, "CANCEL": self._withdraw, "INFO": self._info, "PTTL": self._pttl},
        }
        if name not in handlers:
            raise ServerError(f"ERR unknown command '{name}'")
        reply = handlers[name](asked)
        self.serve()
        return reply

    def take(self, key: str, token: str) -> None:
        """Gives the lock to this owner, and ends all other holds."""
        self._locks.pop(key, None)
        self._grant(_Asked([key], token, ttl=3600))

    def lose(self, key: str) -> None:
        self._locks.pop(key, None)
        self.serve()

    def holders(self, key: str) -> list[str]:
        self.expire()
        return [one.token for one in self._holders(key)]

    def due(self) -> float | None:
        """When time alone ends a wait or a hold, if somebody waits."""
        deadlines = [h.deadline for w in self._queue for key in w.keys for h in self._holders(key)]
        return min([*deadlines, *(waiter.until for waiter in self._queue)], default=None)

    def _holders(self, key: str) -> list[_Holder]:
        return self._locks[key].holders if key in self._locks else []

    def _find(self, key: str, token: str, fence: int = 0) -> _Holder | None:
        found = (one for one in self._holders(key) if one.token == token and fence in (0, one.fence))
        return next(found, None)

    def _next(self) -> int:
        self._fence = max(self._fence + 1, time.time_ns() // 1000)
        return self._fence

    def _admits(self, key: str, asked: _Asked) -> bool:
        """Whether the holders of the lock let a request in."""
        holders = self._holders(key)
        if not holders or self._find(key, asked.token):
            return asked.mode != "upgrade" or len(holders) == 1
        is_shared = asked.mode == self._locks[key].mode == "read"
        return is_shared and (not asked.limit or len(holders) < asked.limit)

    def _acquire(self, asked: _Asked) -> int | None:
        wanted = "write" if asked.mode == "upgrade" else asked.mode
        held = [self._find(key, asked.token) for key in asked.keys]
        modes = [self._locks[key].mode if hold else "" for key, hold in zip(asked.keys, held, strict=True)]
        has_all = all(mode == wanted for mode in modes)
        if asked.mode == "upgrade" and (held[0] is None or (not has_all and asked.fence not in (0, held[0].fence))):
            raise ServerError("NOTHELD the token does not hold the lock")
        if asked.mode != "upgrade" and not asked.is_exact and any(mode not in ("", wanted) for mode in modes):
            raise ServerError(f"WRONGMODE the token does not hold the lock for {wanted}")
        if not has_all and any(self._ended.get((key, asked.token), (0, 0))[0] > time.time() for key in asked.keys):
            raise ServerError("REFUSED the acquisition of this token was ended")
        if has_all or not (asked.is_exact or self._is_blocked(asked)):
            return self._grant(asked)
        if asked.is_exact or asked.wait is None:
            return 0
        if not self._subscribed(asked.channel):
            raise ServerError("NOSUBSCRIBER nobody subscribes to the channel")
        self._wait(asked)
        return None

    def _is_blocked(self, asked: _Asked) -> bool:
        """Whether a request that does not wait yet has to."""
        queued = {key for waiter in self._queue for key in waiter.keys if waiter.token != asked.token}
        new = {key for key in asked.keys if not self._find(key, asked.token)}
        return bool(queued & new) or not all(self._admits(key, asked) for key in asked.keys)

    def _wait(self, asked: _Asked) -> None:
        asked.since = time.time()
        asked.until = asked.since + (asked.wait or 1e9)
        for at, other in enumerate(self._queue):
            if (other.token, other.mode, other.keys) == (asked.token, asked.mode, asked.keys):
                asked.since, self._queue[at] = other.since, asked
                return
        if asked.mode == "upgrade" and any(one.mode == "upgrade" and one.keys == asked.keys for one in self._queue):
            raise ServerError("DEADLOCK another reader of the lock waits to upgrade it")
        cycle = self._cycle(asked, [asked.token])
        if cycle:
            raise ServerError(f"DEADLOCK {' waits for '.join(cycle)}")
        self._queue.insert(0 if asked.mode == "upgrade" else len(self._queue), asked)

    def _cycle(self, asked: _Asked, path: list[str]) -> list[str]:
        """The tokens that wait for each other, if the request would close a cycle."""
        for key in asked.keys:
            for holder in self._holders(key) if not self._admits(key, asked) else []:
                if holder.token == path[0] != asked.token:
                    return [*path, holder.token]
                if holder.token not in path:
                    for other in self._queue:
                        if other.token == holder.token and (found := self._cycle(other, [*path, other.token])):
                            return found
        return []

    def _grant(self, asked: _Asked) -> int:
        """Gives the hold on all keys, or refreshes it."""
        wanted, at = "write" if asked.mode == "upgrade" else asked.mode, time.time()
        held = [self._find(key, asked.token) for key in asked.keys]
        fences = {one.fence if one and self._locks[key].mode == wanted else 0 for key, one in zip(asked.keys, held)}  # noqa: B905
        fence = fences.pop() if len(fences) == 1 else 0
        fence = fence or self._next()
        for key in asked.keys:
            lock, hold = self._locks.setdefault(key, _Lock()), self._find(key, asked.token)
            lock.mode = wanted
            if hold is None:
                hold = _Holder(asked.token, fence, at)
                lock.holders.append(hold)
            if hold.fence != fence:
                hold.fence, hold.since = fence, at
            hold.deadline = max(hold.deadline, at + asked.ttl)
            hold.meta = hold.meta if asked.meta is None else asked.meta
        return fence

    def serve(self) -> None:
        """Grants what the queue lets in, in its order."""
        blocked: set[str] = set()
        for waiter in list(self._queue):
            if blocked.isdisjoint(waiter.keys) and all(self._admits(key, waiter) for key in waiter.keys):
                self._queue.remove(waiter)
                self._tell(waiter.channel, f"{self._grant(waiter)} {waiter.tag}")
            else:
                blocked.update(waiter.keys)

    def _withdraw(self, asked: _Asked) -> int:
        ended = [one for one in self._queue if one.token == asked.token and not set(one.keys).isdisjoint(asked.keys)]
        for waiter in ended:
            self._queue.remove(waiter)
            self._tell(waiter.channel, f"0 {waiter.tag}")
        return len(ended)

    def _end(self, asked: _Asked, mode: str) -> int:
        """Releases the token's holds of the keys, in a mode or in any."""
        count = 0
        if asked.refuse:
            self._withdraw(asked)
        for key in asked.keys:
            hold = self._find(key, asked.token, asked.fence)
            is_released = hold is not None and mode in ("", self._locks[key].mode)
            if is_released:
                self._remove(key, partial(operator.is_, hold))
            if asked.refuse:
                is_released = is_released or self._ended.get((key, asked.token), (0, False))[1]
                self._ended[key, asked.token] = (time.time() + asked.refuse, is_released)
            count += is_released
        return count

    def _extend(self, asked: _Asked) -> int:
        holds = [self._find(key, asked.token, asked.fence) for key in asked.keys]
        deadline = time.time() + asked.ttl
        for hold in holds if all(holds) else []:
            assert hold is not None
            hold.deadline = max(deadline, hold.deadline) if asked.only_lengthens else deadline
        return int(all(holds))

    def _downgrade(self, asked: _Asked) -> int:
        [key] = asked.keys
        hold = self._find(key, asked.token, asked.fence if self._locks.get(key, _Lock()).mode == "write" else 0)
        if hold is None:
            raise ServerError("NOTHELD the token does not hold the lock")
        if self._locks[key].mode == "write":
            self._locks[key].mode, hold.fence, hold.since = "read", self._next(), time.time()
        hold.deadline = max(hold.deadline, time.time() + asked.ttl)
        return hold.fence

    def _pttl(self, asked: _Asked) -> int:
        hold = self._find(asked.keys[0], asked.token)
        return -2 if hold is None else _ms(hold.deadline - time.time())

    def _remove(self, key: str, is_meant: Callable[[_Holder], bool]) -> None:
        left = [one for one in self._holders(key) if not is_meant(one)]
        if left:
            self._locks[key].holders = left
        else:
            self._locks.pop(key, None)

    def expire(self) -> None:
        """Ends what has passed its deadline."""
        at = time.time()
        for key in list(self._locks):
            self._remove(key, lambda hold: hold.deadline <= at)
        self._ended = {name: end for name, end in self._ended.items() if end[0] > at}
        for waiter in [one for one in self._queue if one.until <= at]:
            self._queue.remove(waiter)
            self._tell(waiter.channel, f"0 {waiter.tag}")

    def _info(self, asked: _Asked) -> Any:
        [key] = asked.keys
        at, holds = time.time(), self._holders(key)
        holders = [
            [
                *("token", one.token, "fence", one.fence, "pttl", _ms(one.deadline - at)),
                *("held-ms", _ms(at - one.since), "meta", one.meta),
            ]
            for one in holds
        ]
        queue = [
            [
                *("token", one.token, "mode", one.mode, "waiting-ms", _ms(at - one.since)),
                *("timeout-ms", _ms(one.until - one.since), "meta", one.meta or "", "limit", one.limit),
                *("channel", one.channel),
            ]
            for one in self._queue
            if key in one.keys
        ]
        if not holds and not queue:
            return None
        mode = self._locks[key].mode if holds else "free"
        readers, fence = len(holds) if mode == "read" else 0, max((one.fence for one in holds), default=0)
        pttl = max((_ms(one.deadline - at) for one in holds), default=0)
        return list(
            itertools.chain(
                *(("mode", mode), ("readers", readers), ("waiters", len(queue)), ("fence", fence), ("pttl", pttl)),
                *(("holders", holders), ("queue", queue)),
            )
        )

    def _queues(self) -> list[Any]:
        at, longest = time.time(), dict[str, float]()
        for waiter in self._queue:
            for key in waiter.keys:
                longest[key] = min(longest.get(key, at), waiter.since)
        return ["0", [["key", key, "longest-wait-ms", _ms(at - since)] for key, since in longest.items()]]


def _ms(duration: float) -> int:
    return int(duration * 1000)
