"""Tasks that take a lock for write and work under it, again and again, and when each of them held it.

A section begins when the driver learns of the grant. It ends at the last moment at which the driver began to
ask for its state and the library then said that the hold was valid. All is timed by the driver's clock.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from driver.agent import Agent, AgentError
from harness import wait_until

# A contender for a quorum may wait until the others stop.
GRANT_SECONDS = 240.0
# Between two questions for the state of a hold.
PAUSE_SECONDS = 0.005


@dataclass(frozen=True)
class Place:
    """Where tasks find their locks: an agent, what it has opened, and options of each request."""

    agent: Agent
    options: dict[str, Any]
    locks: str = "l"


@dataclass(frozen=True)
class Section:
    key: str
    owner: str
    fence: int
    start: float
    end: float


def overlaps(sections: Iterable[Section]) -> list[tuple[Section, Section]]:
    """Sections that began while another one of the same key was valid, after that one."""
    found, latest = [], {}
    for section in sorted(sections, key=lambda one: one.start):
        before = latest.get(section.key)
        if before and section.start < before.end:
            found.append((before, section))
        if not before or section.end > before.end:
            latest[section.key] = section
    return found


def longest_gap(sections: Iterable[Section]) -> float:
    """The longest time without a grant, in seconds."""
    starts = sorted(section.start for section in sections)
    return max(after - before for before, after in pairwise(starts))


class Sections:
    """`tasks` tasks at each place, which take the same few locks and work for `work_s` under each."""

    def __init__(self, places: Iterable[Place], keys: list[str], tasks: int, work_s: float = 0.0) -> None:
        self.all: list[Section] = []
        self.errors: Counter[str] = Counter()
        self.places, self._keys, self._work_s = list(places), keys, work_s
        self._workers = [place for place in self.places for _ in range(tasks)]
        self._turns = [0] * len(self._workers)
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

    def go_on(self, turns: int = 3, by_place: bool = False, most: int | None = None) -> None:
        """Waits until each task has had `turns` more turns, and nobody more than `most`.

        `by_place`: the tasks of each place together.
        """
        size = len(self._workers) // len(self.places) if by_place else 1
        groups = range(0, len(self._turns), size)
        had = [sum(self._turns[at : at + size]) for at in groups]

        def is_done() -> bool:
            now = [sum(self._turns[at : at + size]) for at in groups]
            return bool(self._problems) or all(n >= h + turns for n, h in zip(now, had, strict=True))

        wait_until(is_done, 120, f"all to go on; {self.errors}, {self._turns}")
        if self._problems:
            raise self._problems[0]
        ahead = max(sum(self._turns[at : at + size]) - h for at, h in zip(groups, had, strict=True))
        assert most is None or ahead <= most, f"{ahead} turns while another waited; {self._turns}"

    def judge(self, *errors: str) -> None:
        """No two sections overlap, fences grow, and there were no other errors than these."""
        print(f"{len(self.all)} sections, errors: {dict(self.errors)}")
        assert {*self.errors} <= {*errors}, self.errors
        assert not overlaps(self.all), overlaps(self.all)[:3]
        for key in self._keys:
            fences = [one.fence for one in sorted(self.all, key=lambda one: one.start) if one.key == key]
            assert fences == sorted(fences), f"fences of {key} do not grow"

    def _run(self, number: int) -> None:
        place, turn = self._workers[number], number
        try:
            while not self._stopping.is_set():
                try:
                    self._turn(place, self._keys[turn % len(self._keys)])
                except AgentError as error:
                    print(f"{place.agent.name}: {error}")
                    self.errors[str(error) if error.name == "Other" else f"{error.op}: {error.name}"] += 1
                    time.sleep(0.01)
                else:
                    self._turns[number] += 1
                turn += 1
        except BaseException as problem:
            self._problems.append(problem)

    def _turn(self, place: Place, key: str) -> None:
        agent, hold = place.agent, place.agent.new_name("section")
        options = {"keys": [key], "mode": "write", **place.options}
        answer = agent.start("acquire", locks=place.locks, hold=hold, **options).result(GRANT_SECONDS)
        start = end = time.monotonic()
        while not self._stopping.is_set():
            now = time.monotonic()
            if agent.ask("state", hold=hold)["lost"]:
                break
            end = now
            if now >= start + self._work_s:
                break
            time.sleep(PAUSE_SECONDS)
        self.all.append(Section(key, answer["token"], answer.get("fence", 0), start, end))
        agent.ask("release", hold=hold)
