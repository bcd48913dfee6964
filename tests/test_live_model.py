"""A server beside a naive model: hypothesis draws the steps, and shrinks a story that goes wrong.

Requests of all kinds, from connections that block and on a channel, time that passes, deleted keys, restarts
from the log and from a snapshot, and replicas. After each step every lock is on the server as in the model.
Holds end minutes apart, by a clock that the test steps, so that the model always knows which have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, reject, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from harness import Clock, Locks, MakeServer, RawConnection, RespError, lock_state
from harness.aof import debug_reload, rewrite_aof, wait_until_logged
from harness.late_server import NEW_FENCE, Command, NaiveServer, Request, overwritten
from harness.notify import Listener
from harness.replication import wait_synced
from harness.settings import amount

STEPS = 30
MINUTE = 60_000
# No sum of steps is near one of these.
STEP_MINUTES = 15
ALL_MINUTES = (10, 50, 200)
MINUTES = st.sampled_from(ALL_MINUTES)
# By how much a deadline may seem to differ: the test hears of a grant after it was made.
SLACK_MS = 5_000

# How long an answer may take, in seconds. A story that goes wrong waits so long in each try to shorten it.
ANSWER_LIMIT_S = 5
# How many steps of a story may take a second.
SLOW_STEPS = 3
# So far the clock goes back at a restart: further than the last fence is ago, and no deadline is so near.
RESTART_BACK_S = 20

KEYS = ("x", "y")
Keys = tuple[str, ...]
KEY = st.sampled_from([("x",), ("x",), ("y",)])
SOME_KEYS = KEY | st.just(KEYS)
ALL_TOKENS = ("a", "b", "c")
TOKENS = st.sampled_from(ALL_TOKENS)
# Whoever holds the lock, where somebody does: else few steps would mean something.
OWNERS = TOKENS | st.just("holder")
RELEASES = st.sampled_from(["UNLOCK", "RUNLOCK", "MUNLOCK"])
MODES = st.sampled_from(["LOCK", "RLOCK"])
LIMITS = st.sampled_from([None, None, 1, 2])
WAITS = st.sampled_from(["", "blocked", "notify"])
# Which fence a command names: none, that of the token's hold, or another one.
FENCES = st.sampled_from(["none", "none", "own", "other"])


class World:
    """The servers, which all stories share, and how many steps of each kind were taken."""

    def __init__(self, make_server: MakeServer, clock: Clock) -> None:
        self.clock, self.ahead_s, self.stories = clock, 0, 0
        common = {"environment": clock.environment, "hz": 100}
        self.primary = make_server(name="primary", appendonly=True, **common)
        self.replica = make_server(name="replica", **common)
        self.seen: dict[str, int] = {}

    def now(self) -> float:
        return (time.time() + self.ahead_s) * 1000

    def step(self, seconds: int) -> None:
        self.ahead_s += seconds
        self.clock.step(self.ahead_s)


class Story(RuleBasedStateMachine):
    """One history on keys of its own."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.world.stories += 1
        self.drawn = 0
        self.at_replica = self.world.replica.client()
        self.model = NaiveServer()
        self.slow_steps, self.has_replica = 0, False
        self.blocked: dict[str, RawConnection] = {}
        self.told: dict[str, int | str] = {}
        self._connect()

    def _connect(self) -> None:
        primary = self.world.primary
        if not primary.is_running:  # after a story that went wrong
            primary.kill9()
            primary.start()
        self.locks, self.connection = Locks(primary.client()), primary.raw()
        self.listener = Listener(primary, protocol=2)
        self.overwritten = overwritten(self.locks.client)

    def teardown(self) -> None:
        """Nothing of the story is left on the server."""
        for token in {one.token for one in self.model.queue}:
            for key in KEYS:
                self.connection.call("SLOCK.CANCEL", self._name(key), token)
        for connection in self.blocked.values():
            connection.close()
        self.at_replica.close()
        self.connection.call("FLUSHALL")

    # --- what can happen

    @initialize(readers=st.integers(0, len(ALL_TOKENS)))
    def begin(self, readers: int) -> None:
        """Otherwise few upgrades would wait for anybody."""
        for token in ALL_TOKENS[:readers]:
            self._run("RLOCK", KEYS[:1], token, max(ALL_MINUTES))

    @rule(keys=KEY, token=TOKENS, minutes=MINUTES, wait=WAITS)
    def write(self, keys: Keys, token: str, minutes: int, wait: str) -> None:
        self._run("LOCK", keys, token, minutes, wait=wait)

    @rule(keys=KEY, token=TOKENS, minutes=MINUTES, wait=WAITS, limit=LIMITS)
    def read(self, keys: Keys, token: str, minutes: int, wait: str, limit: int | None) -> None:
        self._run("RLOCK", keys, token, minutes, wait=wait, limit=limit)

    @rule(mode=MODES, token=TOKENS, minutes=MINUTES, wait=WAITS)
    def many(self, mode: str, token: str, minutes: int, wait: str) -> None:
        self._run(f"M{mode}", KEYS, token, minutes, wait=wait)

    @precondition(lambda self: self._on_channel())
    @rule(which=st.integers(0, 3), minutes=MINUTES, limit=LIMITS)
    def ask_again(self, which: int, minutes: int, limit: int | None) -> None:
        """For what waits on the channel, perhaps with another limit."""
        waiting = self._on_channel()
        one = waiting[which % len(waiting)]
        keys = tuple(key for key in KEYS if self._name(key) in one.keys)
        name = {"write": "LOCK", "read": "RLOCK", "upgrade": "UPGRADE"}[one.want]
        limit = limit if one.want == "read" else None
        self._run(self._many(name, keys), keys, one.token, minutes, wait="notify", limit=limit)

    @rule(keys=SOME_KEYS, mode=MODES, token=OWNERS, minutes=MINUTES)
    def refresh(self, keys: Keys, mode: str, token: str, minutes: int) -> None:
        self._run(self._many(mode, keys), keys, token, minutes, is_refresh=True)

    @rule(keys=KEY, token=OWNERS, minutes=MINUTES, wait=WAITS, fence=FENCES)
    def upgrade(self, keys: Keys, token: str, minutes: int, wait: str, fence: str) -> None:
        self._run("UPGRADE", keys, token, minutes, wait=wait, fence=fence)

    @rule(keys=KEY, token=OWNERS, minutes=MINUTES, fence=FENCES)
    def downgrade(self, keys: Keys, token: str, minutes: int, fence: str) -> None:
        self._run("DOWNGRADE", keys, token, minutes, fence=fence)

    @rule(keys=SOME_KEYS, token=OWNERS, minutes=MINUTES, fence=FENCES, may_shorten=st.booleans())
    def extend(self, keys: Keys, token: str, minutes: int, fence: str, may_shorten: bool) -> None:
        self._run(self._many("EXTEND", keys), keys, token, minutes, fence=fence, may_shorten=may_shorten)

    @rule(keys=SOME_KEYS, token=OWNERS, name=RELEASES, fence=FENCES)
    def release(self, keys: Keys, token: str, name: str, fence: str) -> None:
        self._run("MUNLOCK" if len(keys) > 1 else name, keys, token, fence=fence)

    @rule(keys=KEY, token=TOKENS)
    def cancel(self, keys: Keys, token: str) -> None:
        self._run("CANCEL", keys, token)

    @rule(keys=SOME_KEYS, token=OWNERS)
    def end(self, keys: Keys, token: str) -> None:
        self._run("MUNLOCK", keys, token, refuses=True)

    @precondition(lambda self: self.blocked)
    @rule(which=st.integers(0, 3))
    def unblock(self, which: int) -> None:
        tag = sorted(self.blocked)[which % len(self.blocked)]
        ids = {client["name"]: client["id"] for client in self.locks.client.client_list()}
        assert self.connection.ok("CLIENT", "UNBLOCK", ids[tag], "TIMEOUT") == 1
        self.model.withdrawn += [one for one in self.model.queue if one.tag == tag]
        self.model.leaves(tag)
        self._settle("unblocked")

    @precondition(lambda self: any(self.model.holds.values()))
    @rule(deleted=st.sampled_from([*KEYS, None]))
    def time_passes_or_a_key_goes(self, deleted: str | None) -> None:
        """One rule: with two, little would be held."""
        if deleted:
            self.connection.ok("DEL", self._name(deleted))
            self.model.holds.pop(self._name(deleted), None)
        else:
            self.world.step(STEP_MINUTES * 60)
            self.model.expire((self.world.now(), self.world.now()))
        self._settle("deleted" if deleted else "time")

    @precondition(lambda self: self.slow_steps < SLOW_STEPS)
    @rule()
    def reload(self) -> None:
        self.slow_steps += 1
        debug_reload(self.world.primary)
        self._settle("reloaded")

    @precondition(lambda self: self.slow_steps < SLOW_STEPS)
    @rule(source=st.sampled_from(["log", "rewritten log", "snapshot"]))
    def restart(self, source: str) -> None:
        """The queue and the revoked tokens are gone; holds and fences are not.

        The clock is set back a little, so that fences rise only where the last one is known.
        """
        self.slow_steps += 1
        primary = self.world.primary
        if source == "snapshot":
            self.world.step(-RESTART_BACK_S)
            primary.restart(save=True, appendonly=False)
            primary.client().config_set("appendonly", "yes")
            primary.configure(appendonly=True)
            rewrite_aof(primary)  # which waits for the first
        else:
            if source == "rewritten log":
                rewrite_aof(primary)
            wait_until_logged(primary)
            self.world.step(-RESTART_BACK_S)
            primary.restart(kill=True)
        self.model.queue, self.model.revoked = [], {}
        self.blocked, self.has_replica = {}, False
        self._connect()
        self._settle(source)

    @precondition(lambda self: self.slow_steps < SLOW_STEPS)
    @rule(is_new=st.booleans())
    def replica_syncs(self, is_new: bool) -> None:
        """From then on it is compared after each step, until the primary restarts."""
        self.slow_steps += is_new
        if is_new:
            self.at_replica.execute_command("REPLICAOF", "NO", "ONE")
        self.at_replica.execute_command("REPLICAOF", "127.0.0.1", self.world.primary.port)
        self.has_replica = True
        self._settle("replica")

    # --- how it is done

    def _name(self, key: str) -> str:
        return f"{self.world.stories}:{key}"

    def _many(self, name: str, keys: Keys) -> str:
        return f"M{name}" if len(keys) > 1 else name

    def _on_channel(self) -> list[Request]:
        return [one for one in self.model.queue if one.is_notified]

    def _seen(self, what: str) -> None:
        self.world.seen[what] = self.world.seen.get(what, 0) + 1

    def _run(self, name: str, keys: Keys, token: str, minutes: int = 0, **more: Any) -> None:
        names = tuple(map(self._name, keys))
        if token == "holder":
            token = min(self.model.holds.get(names[0], {}), default="a")
        own = self.model.hold(names[0], token)
        fence = {"own": own.fence if own else 7, "other": 7}.get(more.pop("fence", ""))
        self.drawn += 1
        tag = f"{self.world.stories}:{self.drawn}"
        command = Command(name, names, token, minutes * MINUTE, fence, tag=tag, **more)
        began, words = self.world.now(), command.words(self.listener.channel.decode())
        reply = None
        if command.wait == "blocked" and self.model.waits(command):
            self.blocked[tag] = blocked = self.world.primary.raw()
            blocked.ok("CLIENT", "SETNAME", tag)
            blocked.send(*words)
            for _ in range(2):
                self.connection.ok("PING")  # the server has read it by then
        else:
            reply = self.connection.call(*words)
        said = reply.prefix if isinstance(reply, RespError) else reply
        expected = self.model.run(command, (began, self.world.now()), reply if isinstance(reply, int) else 0)
        if expected == NEW_FENCE:
            assert isinstance(said, int) and said > 0, f"{command} answered {said}"
        elif said == "DEADLOCK" and expected is None:
            self.model.leaves(tag)
        else:
            if said != expected and overwritten(self.locks.client) > self.overwritten:
                reject()
            assert said == expected, f"{command} answered {said}, not {expected}"
        self._settle(str(said) if isinstance(reply, RespError) else name)

    def _settle(self, what: str) -> None:
        """Exactly those are answered that the model says, and every lock is as in the model."""
        self._seen(what)
        self._hear()
        for tag in [tag for tag, told in self.told.items() if told == "DEADLOCK"]:
            self.model.leaves(tag)
            del self.told[tag]
        now = self.world.now()
        self.model.serve(self._end_of_wait, (now, self.world.now()))
        self._hear()
        assert not self.told, f"{self.told} were told and had not to be"
        for key in map(self._name, KEYS):
            self._compare(key)
        if self.has_replica:
            wait_synced(self.world.primary, self.world.replica)
            for key in map(self._name, KEYS):
                assert lock_state(self.at_replica, key) == lock_state(self.locks.client, key), key

    def _hear(self) -> None:
        self._note(self.listener.messages())
        for tag, connection in list(self.blocked.items()):
            if connection.has_reply():
                self._read(tag)

    def _note(self, messages: list[tuple[int | str, bytes]]) -> None:
        for told, tag in messages:
            assert tag.decode() not in self.told, f"{tag!r} was told twice"
            self.told[tag.decode()] = told.removeprefix("-") if isinstance(told, str) else told

    def _read(self, tag: str) -> None:
        reply = self.blocked.pop(tag).read()
        self.told[tag] = reply.prefix if isinstance(reply, RespError) else reply

    def _end_of_wait(self, request: Request) -> int | str:
        self._seen("waited")
        if request.tag in self.blocked:
            assert self.blocked[request.tag].has_reply(ANSWER_LIMIT_S), f"{request} was never answered"
            self._read(request.tag)
        while request.tag not in self.told:
            assert self.listener.connection.has_reply(ANSWER_LIMIT_S), f"{request} was never answered"
            self._note([self.listener.message()])
        return self.told.pop(request.tag)

    def _compare(self, key: str) -> None:
        began = self.world.now()
        info = self.locks.full(key)
        ended = self.world.now()
        holds = self.model.holds.get(key, {})
        shown = {one.token.decode(): one for one in info.holders or ()} if info else {}
        fences = {token: one.fence for token, one in shown.items()}
        assert fences == {token: hold.fence for token, hold in holds.items()}, key
        assert not holds or info.mode == next(iter(holds.values())).mode, key
        for token, hold in holds.items():
            earliest, latest = hold.ends[0] - ended - SLACK_MS, hold.ends[1] - began + SLACK_MS
            assert earliest <= shown[token].pttl <= latest, f"{token} at {key}: {shown[token]}, {hold}"
        queue = sorted(
            (one for one in self.model.queue if key in one.keys), key=lambda one: one.want != "upgrade"
        )
        waiting = [(one.token.decode(), one.limit) for one in info.queue or ()] if info else []
        assert waiting == [(one.token, one.limit) for one in queue], key


def test_a_server_does_what_the_model_does(make_server: MakeServer, make_clock: Callable[..., Clock]) -> None:
    """`make fuzz` plays 2,000 stories."""
    world = World(make_server, make_clock())
    story = type("Story", (Story,), {"world": world})
    stories = min(amount(30 * STEPS) // STEPS, 2_000)
    how = settings(
        max_examples=stories,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(story, settings=how)
    print(f"{world.stories} stories: {world.seen}")
    for what in ("MLOCK", "UPGRADE", "CANCEL", "waited", "time", "replica"):
        assert stories < 200 or world.seen.get(what), f"none of {what}: {world.seen}"
