"""What grows with a crowd: each operation is done beside a crowd and beside one eight times as large.

Measured is the CPU time of the server's thread, turn by turn, by the module of tests/turn-meter: all of it
until the server is quiet again, and the longest turn. What grows to more than twice is a finding. The least
of several measurements counts; one that seems to grow is repeated until it does not, or has been measured
often enough. What is done in slices may grow in all while no turn does.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from growth_crowds import CROWDS, EIGHT, Crowd, Place, clear, occupy
from growth_operations import Operation
from harness.docs import DOCS, sections, table
from harness.server import Server
from harness.settings import REPOSITORY

GROWTH_LIMIT = 2.0
# A turn in which a slice of work is done: the module ends it after 1.5 ms, when the step under way is done.
SLICE_NS = 3_000_000
# Below it, a difference is one of chance, or of memory that is near or far.
NOISE_NS = 50_000
# What eight times as many may cost: eight times as much, and what memory that is farther away costs more.
FARTHER = 2.0
# A look at all names, owners or channels has a slice of 300 µs each 10 ms. Each second try begins after it.
LOOK_NS, LOOKS_EACH_S = 250_000, 0.015
LOOK_LIMIT_S = 1.5
MOST_TRIES = 15
QUIET_NS = 150_000
# What is not over then counts as that long, and ends with its server.
QUIET_LIMIT_S = 10.0

LIBRARY = Path(os.environ.get("SLOCK_TURN_METER") or REPOSITORY / "target/release/libturn_meter.so")
HEADING = "What each command and event costs"


@dataclass(frozen=True)
class Cost:
    all_ns: float
    longest_ns: float

    def least(self, other: Cost) -> Cost:
        return Cost(min(self.all_ns, other.all_ns), min(self.longest_ns, other.longest_ns))


@dataclass(frozen=True)
class Finding:
    """An operation that costs more where the crowd is larger."""

    crowd: str
    operation: Operation
    small: Cost
    large: Cost

    @property
    def growth(self) -> float:
        return ratio(self.small.all_ns, self.large.all_ns)

    @property
    def is_one_turn(self) -> bool:
        small_ns, large_ns = self.small.longest_ns, self.large.longest_ns
        return large_ns > SLICE_NS and ratio(small_ns, large_ns) > GROWTH_LIMIT

    def __str__(self) -> str:
        def figures(small_ns: float, large_ns: float) -> str:
            return f"{small_ns / 1e3:.0f} to {large_ns / 1e3:.0f} µs"

        kind = "one turn" if self.is_one_turn else "in all"
        in_all = figures(self.small.all_ns, self.large.all_ns)
        longest = figures(self.small.longest_ns, self.large.longest_ns)
        what = f"{self.operation} with “{self.crowd}”"
        return f"{kind} {self.growth:.1f} times: {what}: {in_all}, longest turn {longest}"


def ratio(small_ns: float, large_ns: float) -> float:
    return (large_ns + NOISE_NS) / (small_ns + NOISE_NS)


# --- measuring


class NotOver(Exception):
    """The server has been busy for too long."""

    def __init__(self, longest_ns: float) -> None:
        super().__init__(f"not quiet after {QUIET_LIMIT_S} s")
        self.longest_ns = longest_ns


class Ground:
    """A server for crowds of one kind and size."""

    def __init__(self, crowd: Crowd, size: int) -> None:
        self.crowd, self.size = crowd, size
        self.begin()

    def begin(self) -> None:
        self.server = Server(
            name="crowd",
            hz=1,
            databases=max(64, self.size + 16),
            maxclients=20_000,
            slock_max_waiters=1_000_000,
            slock_allow_apply=True,
            client_output_buffer_limit="pubsub 0 0 0",
        ).start()
        self.control = self.server.raw()
        self.control.socket.settimeout(QUIET_LIMIT_S)
        self.control.ok("MODULE", "LOAD", str(LIBRARY))
        self.control.ok("ACL", "SETUSER", "stranger", "on", "nopass", "+@all", "~nothing:*")
        self.place: Place | None = None
        self.idle_ns = 0.0
        self.idle_ns = min(self._measure(lambda: self.control.ok("PING")).longest_ns for _ in range(20))

    def end(self) -> None:
        self.server.kill9()
        self.server.discard()

    def cost(self, operation: Operation, pause_s: float = 0.0, after_look: bool = False) -> Cost:
        place = self._occupied()
        operation.prepare(place)
        time.sleep(pause_s)
        self._wait_for_quiet()
        if after_look:
            self._wait_for_look()
        try:
            cost = self._measure(lambda: operation.run(place))
        except (NotOver, TimeoutError) as problem:
            self.end()
            self.begin()
            all_ns = QUIET_LIMIT_S * 1e9
            return Cost(all_ns, problem.longest_ns if isinstance(problem, NotOver) else all_ns)
        if operation.undo:
            operation.undo(place)
            self._wait_for_quiet()
        else:
            place.leave()
            self.place = None
        return cost

    def _occupied(self) -> Place:
        if self.place is None:
            clear(Place(self.server, 0, self.control, *[self.control] * 4))
            self.place = occupy(self.server, self.control, self.crowd, self.size)
            self._wait_for_quiet()
        return self.place

    def _measure(self, run: Callable[[], object]) -> Cost:
        self.control.ok("TURNS.RESET")
        run()
        turns, all_ns, longest_ns = self._wait_for_quiet()
        # What the server spends on turns in which nothing happens is not the operation's.
        return Cost(max(0.0, all_ns - turns * self.idle_ns), max(0.0, longest_ns - self.idle_ns))

    def _wait_for_look(self) -> None:
        """Until a look at the crowd is over, because some operations last for several slices. If it goes on
        and on, until a slice is just over."""
        self.control.ok("TURNS.RESET")
        last = time.monotonic()
        end = last + LOOK_LIMIT_S
        while (at := time.monotonic()) < last + 2 * LOOKS_EACH_S:
            if self.control.ok("TURNS.READ")[2] >= LOOK_NS:
                if at > end:
                    return
                self.control.ok("TURNS.RESET")
                last = at

    def _wait_for_quiet(self) -> list[int]:
        """Until three looks, one after the other, have found next to nothing done. What the first saw: turns,
        nanoseconds in all, nanoseconds of the longest.
        """
        end = time.monotonic() + QUIET_LIMIT_S
        looks = [self.control.ok("TURNS.READ")]
        while time.monotonic() < end:
            time.sleep(0.002)
            looks = [*looks[-3:], self.control.ok("TURNS.READ")]
            if len(looks) == 4 and looks[3][1] - looks[0][1] < QUIET_NS:
                return looks[1]
        raise NotOver(looks[-1][2])


@contextmanager
def ground(crowd: Crowd, size: int) -> Iterator[Ground]:
    made = Ground(crowd, size)
    try:
        yield made
    finally:
        made.end()


def find(name: str, operations: Iterable[Operation], size: int, known: list[Row]) -> Iterator[Finding]:
    """What grows with this crowd. What the table explains is not measured again and again."""
    crowd = CROWDS[name]
    size = min(size, crowd.size or size)
    with ground(crowd, size) as small, ground(crowd, EIGHT * size) as large:
        for operation in operations:
            found = compare(name, operation, small, large, known)
            if found:
                yield found


def compare(
    name: str, operation: Operation, small: Ground, large: Ground, known: list[Row]
) -> Finding | None:
    few, many = small.cost(operation), large.cost(operation)
    for tries in range(1, MOST_TRIES + 1):
        found = Finding(name, operation, few, many)
        grows = found.growth > GROWTH_LIMIT or ratio(few.longest_ns, many.longest_ns) > GROWTH_LIMIT
        if not grows:
            return None
        # What has grown by far is no chance, and takes long to measure.
        is_clear = tries == MOST_TRIES or (tries >= 2 and many.all_ns > 1e8)
        if is_clear or not unexplained([found], known):
            break
        # Not always as long after the crowd has come, when a look at it or at its clients may be due.
        pause_s = random.uniform(0.1, 1.5)
        how = operation, pause_s, tries % 2 == 1
        few, many = few.least(small.cost(*how)), many.least(large.cost(*how))
    return found


# --- the table


@dataclass(frozen=True)
class Row:
    """A row of the table in docs/costs.md."""

    names: str
    cost: str
    where: str
    bound: str

    @property
    def operations(self) -> set[str]:
        """The commands and events that it is about, which commas part."""
        return {name.strip().strip("`") for name in self.names.split(",")}

    @property
    def crowds(self) -> set[str]:
        return set(re.findall(r"“([^”]+)”", self.where))

    def explains(self, finding: Finding) -> bool:
        """That it costs more by this crowd; and if one turn does, that it is not done in slices."""
        is_about = finding.operation.name in self.operations and finding.crowd in self.crowds
        return is_about and not (finding.is_one_turn and self.bound.startswith("slices"))


def rows() -> list[Row]:
    return [Row(*cells) for cells in table(sections(DOCS / "costs.md")[HEADING])]


def unexplained(findings: Iterable[Finding], known: list[Row]) -> list[Finding]:
    """What is not in the table, and what grows more than in proportion: that no row explains."""
    return [
        found
        for found in findings
        if found.growth > FARTHER * CROWDS[found.crowd].times or not any(row.explains(found) for row in known)
    ]
