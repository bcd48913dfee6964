"""Random histories through each library, over a proxy that delivers commands late or twice.

No owner that the library calls valid overlaps another or lacks the lock on the server. A few seconds after
everything has been delivered nothing is held or queued. Only a token that the program gave may leave a hold
or a request for its ttl, because the server does not refuse what it sends late. An UPGRADE that was given up
may be granted late. Then the library may still call the owner a reader, and the hold stays its own.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from driver.agent import Agent, AgentError, Call
from driver.fixtures import StartAgent
from driver.languages import each_language, require
from driver.late import LateProxy
from driver.play import info_of
from driver.proxy import Running
from driver.world import as_text

from harness import RawConnection, Server, rounds, wait_until

# Each is a thread that mostly waits; more keep the interpreter busy.
AT_ONCE = 10
HOLDS = 4
# The long one is longer than any wait of the test, so that what a library forgets does not end by itself.
LONG_TTL_MS, SHORT_TTL_MS = 120_000, 900
# What a history may end an operation with. `Other` is none of them.
EXPECTED = {"TimedOut", "Cancelled", "Lost", "NotHeld", "NoAnswer", "Deadlock", "Refused", "WrongMode"}
# A call, or what a library does in the background, takes so long only when it hangs.
CALL_SECONDS = 60.0
PAUSE_SECONDS = 0.03


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(name="late", maxclients=4000).start()
    yield server
    server.stop()
    server.discard()


@pytest.mark.parametrize("name", each_language("test_late_histories"))
def test_late_histories(name: str, server: Server, start_agent: StartAgent) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    require(name)
    agent, proxy = start_agent(name), Running(LateProxy, server.port, seed)
    agent.ask("open", locks="l", kind="single", nodes=[f"127.0.0.1:{proxy.port()}"])
    count = rounds(60, 2000)
    histories, problems = [], []

    def play(number: int) -> None:
        history = History(agent, server, proxy, random.Random(f"{seed} {number}"), f"h{number}")
        try:
            if not problems:
                history.play()
        except BaseException as problem:
            problems.append(problem)
        finally:
            histories.append(history)
            history.close()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(play, range(count)))
    assert not problems, f"{len(problems)} of {count} histories failed, first: {problems[0]}"

    proxy.calm()
    wait_until(proxy.is_idle, CALL_SECONDS, "everything to be delivered")
    given = {token for history in histories for token in history.given}
    # A request that was doubled on its way is ended only if the library has a reason to: not after a refusal.
    given |= proxy.doubled()
    with contextlib.suppress(AssertionError):  # a few seconds, and more for a loaded machine
        wait_until(lambda: tokens_left(server) <= given, 20)
    left = tokens_left(server)
    outcomes = sum((history.outcomes for history in histories), Counter())
    print(f"{name}: {count} histories, {dict(outcomes)}")
    print(f"{proxy.counts()}; {len(left & given)} given tokens and {len(left - given)} others are left")
    assert left <= given, "\n".join(["left behind:", *proxy.seen(min(left - given))])
    agent.ask("close", locks="l")
    proxy.close()


def tokens_left(server: Server) -> set[str]:
    """The tokens that hold or wait."""
    connection, left = server.raw(), set()
    cursor, queues = as_text(connection.call("SLOCK.QUEUES", "COUNT", 0))
    assert cursor == "0", "more wait than are looked at"
    waited_for = [dict(zip(one[::2], one[1::2], strict=True))["key"] for one in queues]
    for key in as_text(connection.call("KEYS", "*")) + waited_for:
        info = info_of(as_text(connection.call("SLOCK.INFO", key, "FULL", "COUNT", 0)))
        left.update(one["token"] for one in info["holders"] + info["queue"])
    return left


class Owner:
    """A hold of the agent, as far as the history knows it."""

    def __init__(self, name: str, keys: list[str], answer: dict, ttl_ms: int, mode: str) -> None:
        self.name, self.keys, self.token, self.ttl_ms = name, keys, answer["token"], ttl_ms
        self.mode = mode
        # Whether a change of mode failed: the server may have another mode and fence than the library knows.
        self.is_unsure = False

    def shares(self, other: Owner) -> bool:
        return other is not self and not set(self.keys).isdisjoint(other.keys)


class History:
    """Some owners that want the same one or two keys, and what they do in random order."""

    def __init__(self, agent: Agent, server: Server, proxy: Running, dice: random.Random, name: str) -> None:
        self._agent, self._proxy, self._dice = agent, proxy, dice
        self._keys = [f"{name}:a", f"{name}:b"]
        self._direct = RawConnection(server.port)
        self._asked: list[tuple[Call, str, list[str], int, str]] = []
        self._owners: list[Owner] = []
        self.outcomes: Counter[str] = Counter()
        # Tokens that the program gave.
        self.given: list[str] = []
        self._done: list[str] = []

    def play(self) -> None:
        actions = {self._ask: 4, self._extend: 2, self._change: 2, self._release: 2, self._cancel: 1}
        try:
            for _ in range(self._dice.randint(8, 20)):
                self._step(*self._dice.choices(list(actions), list(actions.values())))
            end = time.monotonic() + CALL_SECONDS
            while self._asked or self._owners:
                assert time.monotonic() < end, f"not answered: {[one[0] for one in self._asked]}"
                self._step(self._cancel if self._dice.random() < 0.1 else self._release)
        except AssertionError as problem:
            raise AssertionError(f"{problem}, after {self._done}") from problem

    def close(self) -> None:
        self._direct.close()

    def _step(self, action: Callable[[], None]) -> None:
        action()
        time.sleep(self._dice.random() * PAUSE_SECONDS)
        self._collect()
        self._judge()

    # --- what owners do

    def _ask(self) -> None:
        if len(self._asked) + len(self._owners) == HOLDS:
            return
        keys = self._dice.choice([self._keys[:1], self._keys[1:], self._keys])
        mode = self._dice.choice(["write", "write", "read"])
        ttl_ms, renew = self._dice.choice([(LONG_TTL_MS, False), (SHORT_TTL_MS, True)])
        op = self._dice.choice(["acquire", "acquire", "try_acquire"])
        name = self._agent.new_name("h")
        fields = {"keys": keys, "mode": mode, "ttl_ms": ttl_ms, "renew": renew}
        if op == "acquire":
            fields["wait_ms"] = self._dice.choice([0, 200, 2000])
        if self._dice.random() < 0.3:
            fields["token"] = f"given {name}"
            self.given.append(fields["token"])
        self._done.append(f"{op} {name} {fields}")
        call = self._agent.start(op, locks="l", hold=name, **fields)
        self._asked.append((call, name, keys, ttl_ms, mode))

    def _collect(self) -> None:
        for asked in [one for one in self._asked if one[0].is_done()]:
            self._asked.remove(asked)
            call, name, keys, ttl_ms, mode = asked
            answer = self._outcome(call)
            if answer and "fence" in answer:
                self._owners.append(Owner(name, keys, answer, ttl_ms, mode))

    def _cancel(self) -> None:
        if self._asked:
            call = self._dice.choice(self._asked)[0]
            self._done.append(f"cancel {call}")
            call.cancel()

    def _extend(self) -> None:
        if self._owners:
            owner, ttl_ms = self._dice.choice(self._owners), self._dice.choice([500, 5000, 25_000])
            self._done.append(f"extend {owner.name} {ttl_ms}")
            self._outcome(self._agent.start("extend", hold=owner.name, ttl_ms=ttl_ms))

    def _change(self) -> None:
        owners = [one for one in self._owners if len(one.keys) == 1]
        if owners:
            owner = self._dice.choice(owners)
            op = "upgrade" if owner.mode == "read" else "downgrade"
            self._done.append(f"{op} {owner.name}")
            call = self._agent.start(op, hold=owner.name, wait_ms=self._dice.choice([0, 100]))
            if self._dice.random() < 0.2:
                call.cancel()
            # A change that was cancelled may still be open: then the next one is refused at once.
            owner.is_unsure |= self._outcome(call, ["Other"] if owner.is_unsure else ()) is None
            owner.mode = self._state(owner)["mode"]

    def _release(self, owner: Owner | None = None) -> None:
        owner = owner or (self._dice.choice(self._owners) if self._owners else None)
        if owner:
            self._owners.remove(owner)
            self._done.append(f"release {owner.name}")
            self._outcome(self._agent.start("release", hold=owner.name))

    def _outcome(self, call: Call, expected: Collection[str] = ()) -> dict | None:
        outcome = call.outcome(CALL_SECONDS)
        if isinstance(outcome, AgentError):
            assert outcome.name in {*EXPECTED, *expected}, outcome
            self.outcomes[f"{call.op}: {outcome.name}"] += 1
            return None
        self.outcomes[call.op] += 1
        return outcome

    # --- what must be true

    def _state(self, owner: Owner) -> dict:
        return self._agent.ask("state", hold=owner.name)

    def _judge(self) -> None:
        for owner in list(self._owners):
            before = self._state(owner)
            infos = {} if before["lost"] else {key: self._info(key) for key in owner.keys}
            others = {other.name: self._state(other) for other in self._owners if other.shares(owner)}
            after = self._state(owner)
            if after["lost"]:
                is_explained = owner.ttl_ms != LONG_TTL_MS or after["reason"] == "expired"
                assert is_explained, "\n".join([f"{owner.name}: {after}", *self._proxy.seen(owner.token)])
                self.outcomes[f"lost: {after['reason']}"] += 1
                self._release(owner)
                continue
            for name, other in others.items():
                is_shared = after["mode"] == other["mode"] == "read"
                assert other["lost"] or is_shared, f"{owner.name}, {after}, is valid beside {name}, {other}"
            if (before["fence"], before["mode"]) != (after["fence"], after["mode"]):
                continue  # it learned of a change while the server was asked
            for key, info in infos.items():
                fences = [one["fence"] for one in info["holders"] if one["token"] == owner.token]
                is_held = fences == [after["fence"]] or (fences and owner.is_unsure)
                assert is_held and (info["mode"] == "write" or after["mode"] == "read"), (
                    f"{owner.name} counts as valid ({after}) and the server says {info} of {key}\n"
                    + "\n".join(self._proxy.seen(owner.token))
                )

    def _info(self, key: str) -> dict:
        return info_of(as_text(self._direct.call("SLOCK.INFO", key, "FULL")))
