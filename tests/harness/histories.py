"""Decides whether a read-write lock that never fails allows what clients were told.

A history is a list of calls, each with the times between which it was carried out, and its reply. `judge`
looks for an order of them that the model of `lock_model` allows, and in which no call comes before another
that had been answered when it was sent (linearizability; the search is that of Wing and Gong, with the memory
of Lowe, as Knossos and porcupine do it). What bounds it: names that no call joins are judged apart, fences
tell the order of the grants, and a call without an answer may have been carried out or not.

Knows nothing of servers. What befell the server is told by `Times`, and by calls named CRASH.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from harness.lock_model import EARLY, GIVES, MS, WANTS, Call, Model, State, Times

# Nodes of the search of one component, after which it is given up.
MOST_NODES = 60_000
LOOKS = ("PTTL", "CHECK", "CANCEL")


class Undecided(Exception):
    """The search was given up."""


class _Search:
    """Depth first, in calls that are sorted by their start."""

    def __init__(self, calls: list[Call], times: Times) -> None:
        self.calls, self.model = calls, Model(calls, times)
        self.before = self._arrivals()

    def problem(self) -> str | None:
        start = (0, frozenset(), State())
        seen, deepest = {start}, (-1, start, 0)
        stack = [self._next(*start)]
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
                continue
            first, later, state = node
            if first == len(self.calls) and not any(self._must_end(number) for number in state.queue):
                return None
            if node in seen:
                continue
            seen.add(node)
            if len(seen) > MOST_NODES:
                raise Undecided
            if first + len(later) > deepest[0]:
                deepest = (first + len(later), node, len(stack))
            stack.append(self._next(*node))
        return self._story(*deepest)

    def _arrivals(self) -> list[list[int]]:
        """For each new hold the requests for a name of it that got a lesser fence: they arrived before."""
        known = set()  # tokens of which a later call may find a hold
        given: list[int] = []
        before: list[list[int]] = []
        for number, call in enumerate(self.calls):
            fence = self.model.fence(number) if call.name in ("LOCK", "RLOCK") else None
            before.append([])
            if fence and call.token not in known:
                before[-1] = [one for one in given if self._is_rival(one, number)]
                for one in given:
                    if self._is_rival(number, one):
                        before[one].append(number)
                given.append(number)
            if fence or call.is_unknown:
                known.add(call.token)
        return before

    def _is_rival(self, one: int, other: int) -> bool:
        """Whether it arrived before the other, and that is not plain from when they were sent."""
        calls, fence = (self.calls[one], self.calls[other]), self.model.fence
        is_open = calls[0].end >= calls[1].start and calls[1].end >= calls[0].start
        return is_open and fence(one) < fence(other) and not {*calls[0].keys}.isdisjoint(calls[1].keys)

    def _must_end(self, number: int) -> bool:
        return not self.calls[number].is_unknown

    def _next(self, first: int, later: frozenset[int], state: State) -> Iterator[tuple]:
        calls = self.calls
        until = min([calls[number].end for number in state.queue if self._must_end(number)], default=1 << 62)
        ready = []
        for number in range(first, len(calls)):
            call = calls[number]
            if call.start > until:
                break
            if number not in later:
                ready.append(number)
                if not call.is_unknown:
                    until = min(until, call.begins_by)
        if state.now > until:
            return
        # What only looks, and is right, may as well come now.
        for number in ready:
            call = calls[number]
            is_look = call.wait_ms is None and not call.is_unknown and not self.model.fence(number)
            if is_look and call.start <= state.now <= min(until, call.end):
                is_right = state in self.model.begin(state, number, min(until, call.end))
                if is_right:
                    yield *self._done(first, later | {number}), state
                    return
        for after in self.model.grants(state, until):
            yield first, later, after
        # Answered calls first, those that were answered first before others.
        for number in sorted(ready, key=lambda one: (calls[one].reply is None, calls[one].begins_by)):
            call = calls[number]
            latest = min(until, call.end)
            if call.start > until or state.now > latest:
                continue
            if any(other >= first and other not in later for other in self.before[number]):
                continue
            done = self._done(first, later | {number})
            for after in self.model.begin(state, number, latest):
                yield *done, after
        for after in self.model.without_a_call(state, until):
            yield first, later, after
        # What was never carried out.
        if ready and calls[ready[0]].is_unknown:
            yield *self._done(first, later | {ready[0]}), state

    def _done(self, first: int, later: frozenset[int]) -> tuple[int, frozenset[int]]:
        while first in later:
            later -= {first}
            first += 1
        return first, later

    def _story(self, _: int, node: tuple, __: int) -> str:
        """Where the search came farthest: what could not follow, and what it stood beside."""
        first, later, state = node
        origin = self.calls[0].start
        open_calls = [n for n in range(first, min(first + 12, len(self.calls))) if n not in later]
        lines = ["no order explains these calls:"]
        lines += [f"  {_shown(self.calls[number], origin)}" for number in open_calls]
        lines += ["after these:"] + [
            f"  {_shown(self.calls[number], origin)}" for number in range(max(0, first - 12), first)
        ]
        lines += [f"when these held, at {state.now - origin}, last fences {dict(state.fences)}:"]
        lines += [
            f"  {hold.key} {hold.token} {hold.mode} {hold.fence} until "
            f"{hold.ends_from - origin} … {hold.ends_by - origin}"
            for hold in state.holds
        ]
        lines += ["and these waited:"] + [f"  {_shown(self.calls[number], origin)}" for number in state.queue]
        return "\n".join(lines)


def _shown(call: Call, origin: int) -> str:
    options = {"ttl": call.ttl_ms, "wait": call.wait_ms, "limit": call.limit, "fence": call.fence}
    told = " ".join(f"{name}={value}" for name, value in options.items() if value)
    arrived = f" (in the queue by {call.arrived - origin})" if call.arrived else ""
    span = f"{call.start - origin} … {call.end - origin}{arrived}"
    return f"{span}: {call.name} {' '.join(call.keys)} {call.token} {told} -> {call.reply}"


def components(calls: list[Call]) -> list[list[Call]]:
    """The calls of names that no call joins with others, by their start; crashes are in each."""
    leader: dict[str, str] = {}

    def find(key: str) -> str:
        while leader.setdefault(key, key) != key:
            key = leader[key]
        return key

    for call in calls:
        for key in call.keys:
            leader[find(key)] = find(call.keys[0])
    parts: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.keys:
            parts[find(call.keys[0])].append(call)
    crashes = [call for call in calls if not call.keys]
    for part in parts.values():
        begins, ends = min(call.start for call in part), max(call.end for call in part)
        part += [crash for crash in crashes if begins < crash.start < ends]
        part.sort(key=lambda call: call.start)
    return list(parts.values())


def fence_problems(calls: list[Call]) -> list[str]:
    """Fences rise on the whole server: each is greater than all that were told before it was asked for."""
    # The hold that a call found may be that of an earlier copy, which was not answered.
    began: dict[str, int] = {}
    for call in calls:
        if call.is_unknown:
            began[call.token] = min(call.start, began.get(call.token, call.start))
    first: dict[int, Call] = {}
    problems = []
    asking = [call for call in calls if call.name in (*WANTS, "DOWNGRADE")]
    for call in sorted(asking, key=lambda one: one.start):
        if isinstance(call.reply, int) and call.reply > 0:
            known = first.setdefault(call.reply, call)
            if known.token != call.token:
                problems.append(f"one fence for two:\n  {_shown(known, 0)}\n  {_shown(call, 0)}")
    told = sorted(first.values(), key=lambda call: call.end)
    greatest, at = None, 0
    for call in first.values():  # by their start
        while at < len(told) and told[at].end < call.start:
            greatest = max(greatest or told[at], told[at], key=lambda one: one.reply)
            at += 1
        is_copy = began.get(call.token, call.start) < call.start
        if greatest and greatest.reply >= call.reply and not is_copy:
            problems.append(f"a fence went back:\n  {_shown(greatest, 0)}\n  {_shown(call, 0)}")
    return problems


def overlaps(calls: list[Call]) -> list[tuple[Call, Call]]:
    """Pairs of calls that gave two owners one lock at a time, one of them for write, by what these were told.

    An owner surely holds from the reply that says so until it sends anything that may change this, or until
    its ttl has passed since it asked. The first of a pair was told first.
    """
    own: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in sorted(calls, key=lambda one: one.start):
        for key in call.keys:
            if call.name not in LOOKS:
                own[key, call.token].append(call)
    spans: dict[str, list[tuple[int, int, str, Call]]] = defaultdict(list)
    for (key, _), asked in own.items():
        given, mode = None, ""
        for call, then in zip(asked, [*asked[1:], None], strict=True):
            is_extended = call.name == "EXTEND" and call.reply == 1
            if call.name in GIVES and isinstance(call.reply, int) and call.reply > 0:
                mode = GIVES[call.name]
                given = given if given and given.reply == call.reply else call
            elif not is_extended:
                given = None
            end = min(call.start + call.ttl_ms * MS - EARLY, then.start if then else 1 << 62)
            if given and call.end < end:
                spans[key].append((call.end, end, mode, given))
    found: dict[tuple[int, int], tuple[Call, Call]] = {}
    for key in spans:
        alive: list[tuple[int, int, str, Call]] = []
        for span in sorted(spans[key], key=lambda one: one[:2]):
            alive = [one for one in alive if one[1] > span[0]]
            for other in alive:
                first, second = sorted((other[3], span[3]), key=lambda one: one.end)
                if first.token != second.token and "write" in (other[2], span[2]):
                    found[id(first), id(second)] = first, second
            alive.append(span)
    return list(found.values())


@dataclass
class Verdict:
    """What is wrong with a history, how many parts it has, and of how many the search was given up."""

    problems: list[str]
    parts: int = 0
    undecided: int = 0


def judge(calls: list[Call], times: Times | None = None) -> Verdict:
    times = times or Times()
    verdict = Verdict(fence_problems(calls))
    for part in components(calls):
        verdict.parts += 1
        try:
            problem = _Search(part, times).problem()
        except Undecided:
            verdict.undecided += 1
        else:
            verdict.problems += [problem] if problem else []
    return verdict
