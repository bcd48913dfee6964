"""Tasks that take a lock for write and write under it, again and again, and a judge of what they wrote."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import redis

from driver.agent import Agent, AgentError
from harness import Server, wait_until

# KEYS: the data, a hash. ARGV: the fence, or the name of the section where there is no fence; what it does.
_WRITE = """
local seen = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
local inside = redis.call('HGET', KEYS[1], 'inside')
if tonumber(ARGV[1]) < seen then
  redis.call('HINCRBY', KEYS[1], 'refused', 1)
  return 'refused'
end
redis.call('HSET', KEYS[1], 'fence', ARGV[1])
redis.call('HINCRBY', KEYS[1], 'writes', 1)
if inside and inside ~= ARGV[1] then redis.call('HINCRBY', KEYS[1], 'overlaps', 1) end
if ARGV[2] == 'enter' then
  redis.call('HSET', KEYS[1], 'inside', ARGV[1])
else
  redis.call('HDEL', KEYS[1], 'inside')
end
return 'written'
"""


class Judge:
    """The data that the locks protect, on a server that nothing happens to.

    It takes a write only from the greatest fence that has written so far, and counts the sections that were
    entered before the last one was left.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._local = threading.local()

    def write(self, key: str, number: int, what: str) -> bool:
        """Whether the write was taken."""
        return self._client().eval(_WRITE, 1, f"data:{key}", number, what) == b"written"

    def count(self, what: str) -> int:
        """How many `writes`, `refused` writes or `overlaps` there were, over all keys."""
        client = self._client()
        return sum(int(client.hget(key, what) or 0) for key in client.scan_iter("data:*"))

    def _client(self) -> redis.Redis:
        if not hasattr(self._local, "client"):
            self._local.client = redis.Redis(port=self._server.port, socket_timeout=20)
        return self._local.client


# Who polls may wait until the others stop.
GRANT_SECONDS = 240.0


@dataclass(frozen=True)
class Place:
    """Where tasks find their locks: an agent, and what it has opened."""

    agent: Agent
    locks: str
    options: dict[str, Any]


class Sections:
    """So many tasks at each place, which all want the same few locks, until the block ends."""

    def __init__(self, places: Iterable[Place], judge: Judge, keys: list[str], tasks: int) -> None:
        self.errors: Counter[str] = Counter()
        self._judge, self._keys = judge, keys
        self.places = list(places)
        self._workers = [place for place in self.places for _ in range(tasks)]
        self.turns = [0] * len(self._workers)
        self.unreported: list[str] = []
        self._problems: list[BaseException] = []
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(len(self._workers))
        ]

    def __enter__(self) -> Sections:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
        if kind is None:
            assert not any(thread.is_alive() for thread in self._threads), "a task hangs"
            if self._problems:
                raise self._problems[0]

    def each_language_goes_on(self, turns: int) -> None:
        """Waits until the tasks of each place have had so many more turns together: who polls may starve."""
        had = self._turns_by_place()
        wait_until(
            lambda: (
                self._problems
                or all(now >= before + turns for now, before in zip(self._turns_by_place(), had, strict=True))
            ),
            120,
            f"each language to go on; {self.errors}, {self.turns}",
        )
        if self._problems:
            raise self._problems[0]

    def _turns_by_place(self) -> list[int]:
        size = len(self.turns) // len(self.places)
        return [sum(self.turns[start : start + size]) for start in range(0, len(self.turns), size)]

    def all_go_on(self, turns: int = 3) -> None:
        """Waits until each task has had so many more turns."""
        goals = [had + turns for had in self.turns]

        def is_done() -> bool:
            done = all(had >= goal for had, goal in zip(self.turns, goals, strict=True))
            return done or bool(self._problems)

        wait_until(is_done, 60, f"all tasks to go on; {self.errors}, {self.turns}")
        if self._problems:
            raise self._problems[0]

    def _run(self, number: int) -> None:
        place = self._workers[number]
        agent, turn = place.agent.name, number
        try:
            while not self._stopping.is_set():
                try:
                    self._turn(place, self._keys[turn % len(self._keys)])
                    self.turns[number] += 1
                except AgentError as error:
                    print(f"{agent}: {error}")
                    other = error.name == "Other"
                    self.errors[f"{agent}: {error}" if other else f"{error.op}: {error.name}"] += 1
                    time.sleep(0.01)
                turn += 1
        except BaseException as problem:
            self._problems.append(problem)

    def _turn(self, place: Place, key: str) -> None:
        agent, hold = place.agent, place.agent.new_name("section")
        options = {"keys": [key], "mode": "write", **place.options}
        answer = agent.start("acquire", locks=place.locks, hold=hold, **options).result(GRANT_SECONDS)
        number = answer.get("fence") or _next_number()
        was_taken = self._judge.write(key, number, "enter") and self._judge.write(key, number, "leave")
        reason = None if was_taken else agent.ask("await_lost", hold=hold)["reason"]
        with contextlib.suppress(AgentError) if reason else contextlib.nullcontext():
            released = agent.ask("release", hold=hold)["released"]
            if was_taken and not released:
                self.unreported.append(f"{agent} lost {key} under fence {number} and its writes were taken")


_numbers = iter(range(1, 1 << 53))
_numbering = threading.Lock()


def _next_number() -> int:
    """For a quorum, which has no fence: later sections have greater numbers."""
    with _numbering:
        return next(_numbers)
