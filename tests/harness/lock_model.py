"""A read-write lock with leases, a fair queue and fences, as what clients were told of it allows.

Times are microseconds of one monotonic clock. A request that waits has two places in the order: its arrival
and its end. It is granted in the model as soon as the model can. Nobody can tell that from a server that does
so a moment later, but for a wait that ends in this moment, and for who held before. In a stall it may be
granted at any time, and newcomers are refused or wait behind it until then. When a hold ends is known as an
interval only, since it depends on when it was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

MS = 1000

# A deadline is in whole milliseconds; commands see a clock that is a few milliseconds old at most.
EARLY, LATE = 2 * MS, 15 * MS
# Grants are made in slices, and up to 10 ms after clients were paused, on a machine that may have much to
# do: so long after the lock came free.
PUT_OFF = 500 * MS
# Who is told of his grant so long after it was due has been forgotten meanwhile.
FORGOTTEN = 10_000 * MS

WANTS = {"LOCK": "write", "RLOCK": "read", "UPGRADE": "write"}
GIVES = {**WANTS, "DOWNGRADE": "read"}


@dataclass(eq=False, slots=True)
class Call:
    """Commands for many keys have the names of those for one. `reply` is None where none was read."""

    name: str
    keys: tuple[str, ...]
    token: str
    start: int
    end: int
    reply: int | str | None = None
    ttl_ms: int = 0
    wait_ms: int | None = None  # None does not wait, 0 waits without limit
    limit: int = 0
    fence: int = 0  # as it was given with FENCE or to CHECK
    is_gt: bool = False
    arrived: int = 0  # when it was in the queue at the latest, where that is known

    @property
    def is_unknown(self) -> bool:
        """Whether its effect is: a server that steps down may have granted what it answers so."""
        return self.reply is None or self.reply == "UNBLOCKED"

    @property
    def begins_by(self) -> int:
        return self.arrived or self.end


@dataclass
class Times:
    """From when until when the server put off what it had to do."""

    stalls: list[tuple[int, int]] = field(default_factory=list)

    def calm(self, time: int) -> int:
        """The last time until then at which the server surely worked."""
        return min([start for start, end in self.stalls if start <= time <= end], default=time)

    def late(self, time: int) -> int:
        return max([end for start, end in self.stalls if start <= time <= end], default=time)

    def may_stall(self, start: int, end: int) -> bool:
        return any(first <= end and last >= start for first, last in self.stalls)


class Hold(NamedTuple):
    key: str
    token: str
    mode: str
    fence: int | None  # None when nobody was told
    ends_from: int
    ends_by: int


class State(NamedTuple):
    holds: tuple[Hold, ...] = ()
    queue: tuple[int, ...] = ()  # numbers of calls, in the order of their arrival
    fences: tuple[tuple[str, int], ...] = ()  # the last of each name that is known
    now: int = 0  # it is not earlier than this

    def hold(self, key: str, token: str) -> Hold | None:
        return next((one for one in self.holds if one.key == key and one.token == token), None)

    def without(self, gone: Iterable[Hold | None]) -> State:
        gone = set(gone)
        return self._replace(holds=tuple(one for one in self.holds if one not in gone))

    def leaves(self, *numbers: int) -> State:
        return self._replace(queue=tuple(one for one in self.queue if one not in numbers))


def _sorted(*holds: Hold) -> tuple[Hold, ...]:
    return tuple(sorted(holds, key=lambda one: one[:2]))


class Model:
    """One lock, or several that some call joins. A step gives all states that may follow, perhaps none."""

    def __init__(self, calls: list[Call], times: Times) -> None:
        self.calls, self.times = calls, times

    # --- steps

    def begin(self, state: State, number: int, until: int) -> Iterator[State]:
        """The call is carried out, or joins the queue, not later than `until`."""
        call = self.calls[number]
        carry_out = getattr(self, f"_{call.name.lower()}")
        for present in self._elapse(state._replace(now=max(state.now, call.start)), until):
            yield from carry_out(present, number, until)

    def without_a_call(self, state: State, until: int) -> Iterator[State]:
        """A wait or a hold ends by itself."""
        for number in state.queue:
            call = self.calls[number]
            is_over = bool(call.wait_ms) and self.times.late(until) >= call.start + call.wait_ms * MS - EARLY
            is_lost = call.reply == "NOTHELD" and self._is_lost(state, call)
            is_error = isinstance(call.reply, str) and call.reply != "NOTHELD"
            if call.is_unknown or is_error or is_lost or (call.reply == 0 and is_over):
                yield from self._serve(state.leaves(number), until)
        for hold in state.holds:
            if until >= hold.ends_from:
                now = max(state.now, hold.ends_from)
                yield from self._serve(state.without([hold])._replace(now=now), until)

    def _elapse(self, state: State, until: int) -> Iterator[State]:
        """What must have ended by now."""
        # A turn that a stall interrupts goes by the time at which it began.
        over = [hold for hold in state.holds if hold.ends_by < self.times.calm(state.now)]
        gone = [one for one in state.queue if self.calls[one].is_unknown and self.calls[one].end < state.now]
        if not over and not gone and not self.times.stalls:
            return iter([state])
        return self._serve(state.without(over).leaves(*gone), until)

    def grants(self, state: State, until: int) -> Iterator[State]:
        """In a stall the next who can be granted may be so now."""
        if state.queue and self.times.may_stall(state.now, until):
            yield from self._grant(state, self._next_ready(state, until), until)

    def _serve(self, state: State, until: int) -> Iterator[State]:
        """All who can be granted are, before anything else happens; in a stall by `grants`."""
        number = self._next_ready(state, until)
        if number is None or self.times.may_stall(state.now, until):
            yield state
            return
        for granted in self._grant(state, number, until):
            yield from self._serve(granted, until)

    def _next_ready(self, state: State, until: int) -> int | None:
        ready = [
            number
            for number in state.queue
            if not self._is_blocked(state, number) and not self._ends_first(number, until)
        ]
        return min(ready, key=lambda one: self.fence(one) or 0, default=None)

    def _grant(self, state: State, number: int | None, until: int) -> Iterator[State]:
        if number is None:
            return
        call, left = self.calls[number], state.leaves(number)
        if call.is_unknown:
            yield left  # its client had gone before
        if call.is_unknown or (self.fence(number) and call.end <= self.times.late(until) + FORGOTTEN):
            yield from self._give(left, number, until)

    def _ends_first(self, number: int, until: int) -> bool:
        """Whether its wait may have ended before the server came to grant it."""
        call = self.calls[number]
        return not self.fence(number) and not call.is_unknown and call.end <= self.times.late(until) + PUT_OFF

    def _give(self, state: State, number: int, until: int) -> Iterator[State]:
        """A new hold."""
        call, fence, fences = self.calls[number], self.fence(number), dict(state.fences)
        if not call.is_unknown and (not fence or any(fence <= fences.get(key, 0) for key in call.keys)):
            return
        mode = "read" if call.name in ("RLOCK", "DOWNGRADE") else "write"
        before = [state.hold(key, call.token) for key in call.keys]
        new = []
        for key, own in zip(call.keys, before, strict=True):
            ends = self._ends(state, call, until, own)
            new.append(Hold(key, call.token, mode, fence, *ends))
        state = state.without(before)
        fences |= dict.fromkeys(call.keys, fence) if fence else {}
        yield state._replace(holds=_sorted(*state.holds, *new), fences=tuple(sorted(fences.items())))

    def _ends(self, state: State, call: Call, until: int, own: Hold | None = None) -> tuple[int, int]:
        ttl = call.ttl_ms * MS
        ends = self.times.calm(state.now) + ttl - EARLY, until + ttl + LATE
        return (max(own.ends_from, ends[0]), max(own.ends_by, ends[1])) if own else ends

    def _change(
        self, state: State, holds: list[Hold], call: Call, until: int, **more: int
    ) -> Iterator[State]:
        """Holds go on with another deadline."""
        is_later = call.name != "EXTEND" or call.is_gt
        new = []
        for hold in holds:
            ends = self._ends(state, call, until, hold if is_later else None)
            new.append(hold._replace(ends_from=ends[0], ends_by=ends[1], **more))
        yield from self._elapse(state._replace(holds=_sorted(*state.without(holds).holds, *new)), until)

    # --- rules

    def fence(self, number: int) -> int | None:
        reply = self.calls[number].reply
        return reply if isinstance(reply, int) and reply > 0 else None

    def _is_blocked(self, state: State, number: int) -> bool:
        """By holds, or by a call that stands before it; a call that is not in the queue stands behind all."""
        call = self.calls[number]
        if call.name == "UPGRADE" and self._is_lost(state, call):
            return True  # it will be told so
        for key in call.keys:
            others = [one for one in state.holds if one.key == key and one.token != call.token]
            if any("write" in (one.mode, WANTS[call.name]) for one in others):
                return True
            if call.limit and len(others) >= call.limit:
                return True
            if call.name == "UPGRADE":
                continue
            for other in state.queue:
                is_ahead = other != number and key in self.calls[other].keys
                if is_ahead and (
                    self.calls[other].name == "UPGRADE" or self._is_before(state, other, number)
                ):
                    return True
        return False

    def _is_before(self, state: State, one: int, other: int) -> bool:
        return other not in state.queue or state.queue.index(one) < state.queue.index(other)

    def _is_lost(self, state: State, call: Call) -> bool:
        own = state.hold(call.keys[0], call.token)
        return own is None or (own.mode == "read" and bool(call.fence) and own.fence != call.fence)

    def _own(self, state: State, call: Call) -> list[Hold]:
        """What its token holds, and it means."""
        own = [state.hold(key, call.token) for key in call.keys]
        return [hold for hold in own if hold and call.fence in (0, hold.fence)]

    def _if(self, is_right: bool, state: State) -> Iterator[State]:
        if is_right:
            yield state

    # --- commands

    def _lock(self, state: State, number: int, until: int) -> Iterator[State]:
        call = self.calls[number]
        mode = WANTS[call.name]
        own = [hold for hold in (state.hold(key, call.token) for key in call.keys) if hold]
        if isinstance(call.reply, str) and not call.is_unknown:
            if call.reply != "NOTHELD" or self._is_lost(state, call):
                yield state
            if call.wait_ms is not None and self._is_blocked(state, number):
                yield state._replace(queue=(*state.queue, number))
        elif call.name == "UPGRADE" and self._is_lost(state, call):
            yield from self._if(call.is_unknown, state)
        elif len(own) == len(call.keys) and all(hold.mode == mode for hold in own):
            fence = self.fence(number)
            if call.is_unknown or (fence and all(hold.fence in (None, fence) for hold in own)):
                yield from self._change(
                    state, own, call, until, **({} if own[0].fence or not fence else {"fence": fence})
                )
            elif call.reply == 0 and call.wait_ms is None and all(hold.ends_from <= until for hold in own):
                # It may be just over, and who waits is not granted yet.
                now = max(state.now, *(hold.ends_from for hold in own))
                over = state.without(own)._replace(now=now)
                if self._is_blocked(over, number):
                    yield from self._serve(over, until)
        elif not self._is_blocked(state, number):
            for granted in self._give(state, number, until):
                yield from self._serve(granted, until)
        elif call.wait_ms is None:
            yield from self._if(call.is_unknown or call.reply == 0, state)
        else:
            yield state._replace(queue=(*state.queue, number))

    _rlock = _upgrade = _lock

    def _downgrade(self, state: State, number: int, until: int) -> Iterator[State]:
        call = self.calls[number]
        own = state.hold(call.keys[0], call.token)
        is_refused = isinstance(call.reply, str) and call.reply != "NOTHELD"
        if is_refused or own is None or (own.mode == "write" and call.fence not in (0, own.fence)):
            yield from self._if(call.is_unknown or isinstance(call.reply, str), state)
        elif own.mode == "read":
            yield from self._change(state, [own], call, until) if call.reply in (None, own.fence) else ()
        elif not isinstance(call.reply, str):
            for granted in self._give(state, number, until):
                yield from self._serve(granted, until)

    def _unlock(self, state: State, number: int, until: int, modes: str = "write") -> Iterator[State]:
        call = self.calls[number]
        own = [hold for hold in self._own(state, call) if hold.mode in modes]
        if isinstance(call.reply, str):
            yield state
        elif call.is_unknown or call.reply == len(own):
            yield from self._serve(state.without(own), until)

    def _runlock(self, state: State, number: int, until: int) -> Iterator[State]:
        return self._unlock(state, number, until, "read")

    def _munlock(self, state: State, number: int, until: int) -> Iterator[State]:
        return self._unlock(state, number, until, "read write")

    def _extend(self, state: State, number: int, until: int) -> Iterator[State]:
        call, own = self.calls[number], self._own(state, self.calls[number])
        has_all = len(own) == len(call.keys)
        if isinstance(call.reply, str) or not has_all:
            yield from self._if(call.reply != 1, state)
        elif call.reply != 0:
            yield from self._change(state, own, call, until)

    def _pttl(self, state: State, number: int, until: int) -> Iterator[State]:
        """What it says narrows the deadline."""
        call, own = self.calls[number], self._own(state, self.calls[number])
        if not isinstance(call.reply, int) or len(own) < len(call.keys):
            yield from self._if(call.reply in (None, -2) or isinstance(call.reply, str), state)
        elif call.reply >= 0:
            left = call.reply * MS
            earliest = max(min(one.ends_from for one in own), self.times.calm(state.now) + left - EARLY)
            latest = min(min(one.ends_by for one in own), until + left + LATE)
            if earliest <= latest and len(own) == 1:
                narrow = own[0]._replace(ends_from=earliest, ends_by=latest)
                yield state._replace(holds=_sorted(*state.without(own).holds, narrow))
            elif earliest <= latest:
                yield state

    def _check(self, state: State, number: int, until: int) -> Iterator[State]:
        call = self.calls[number]
        is_held = any(one.fence == call.fence and one.key == call.keys[0] for one in state.holds)
        return self._if(not isinstance(call.reply, int) or call.reply == is_held, state)

    def _cancel(self, state: State, number: int, until: int) -> Iterator[State]:
        call = self.calls[number]
        gone = [
            one
            for one in state.queue
            if self.calls[one].token == call.token and call.keys[0] in self.calls[one].keys
        ]
        if isinstance(call.reply, str):
            yield state
        elif call.reply in (None, len(gone)) and all(self.fence(one) is None for one in gone):
            queue = tuple(one for one in state.queue if one not in gone)
            yield from self._serve(state._replace(queue=queue), until)

    def _crash(self, state: State, number: int, until: int) -> Iterator[State]:
        """Nobody waits any more, and what was answered before is as it was."""
        has_answer = any(isinstance(self.calls[one].reply, int) for one in state.queue)
        return self._if(not has_answer, state._replace(queue=()))
