"""Owners whose commands arrive late, or twice, on a real server, beside a naive model of it.

Each owner has a token for each acquisition, and FENCE and GT on what it does with its hold. Most do what a
client library does and end every acquisition by MUNLOCK with REFUSE. The others release by FENCE, and end
only an acquisition that is in doubt so. The network between delivers each command when it likes, also after
the connection was closed, but in the order of its connection; and what was answered or given up it may
deliver once more. Every answer must be the model's, and no owner may lose what it counts on. After
everything has been delivered nothing is held or waits but what a doubled request of an owner that released
by FENCE has left.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any

from harness import MakeServer, RawConnection, RespError, Server, rounds
from harness.late_server import NEW_FENCE, Command, NaiveServer, Request, overwritten
from harness.locks import Locks
from harness.notify import Listener, Message

MINUTE = 60_000
TTLS = [10 * MINUTE, 20 * MINUTE, 60 * MINUTE]
ACQUIRING = {"LOCK", "RLOCK", "MLOCK", "MRLOCK"}
CHANGING = {"UPGRADE", "DOWNGRADE"}


def now_ms() -> float:
    return time.monotonic() * 1000


@dataclass(eq=False)
class Wire:
    """A connection of an owner: what is on its way there, in order, and the request that it waits for."""

    on_its_way: deque[Sent] = field(default_factory=deque)
    waiting: Sent | None = None
    blocked: RawConnection | None = None
    is_closed: bool = False


@dataclass(eq=False)
class Sent:
    """One copy of a command. Its owner hears the answer unless it has given it up."""

    owner: Owner
    command: Command
    wire: Wire
    is_answered: bool = False
    is_given_up: bool = False
    is_doubled: bool = False

    @property
    def may_give(self) -> bool:
        """Whether it can give a hold, or another mode of one."""
        return self.command.name in ACQUIRING | CHANGING and not self.command.is_refresh


class Network:
    """Carries commands to the server, and compares every answer with the model's."""

    def __init__(self, server: Server, seen: Counter[str]) -> None:
        self.server, self.client, self.seen = server, server.client(), seen
        self.locks, self.connection = Locks(self.client), server.raw()
        self.listener = Listener(server, protocol=2)
        self.spare: list[RawConnection] = []

    def begin(self, seed: int) -> None:
        self.chance, self.seed, self.drawn = random.Random(seed), seed, 0
        self.model = NaiveServer()
        self.wires: list[Wire] = []
        self.sent: list[Sent] = []
        self.told: dict[str, int | str] = {}
        self.keys = tuple(f"{seed}:{key}" for key in range(self.chance.choice([1, 2, 3])))
        self.owners = [Owner(self, f"{seed}-{number}") for number in range(self.chance.choice([2, 3, 4]))]
        self.is_ending = False

    def number(self) -> int:
        self.drawn += 1
        return self.drawn

    # --- delivering

    def deliverable(self) -> list[Wire]:
        return [wire for wire in self.wires if wire.on_its_way and not wire.blocked]

    def deliver(self, wire: Wire) -> None:
        sent = wire.on_its_way.popleft()
        command = sent.command
        self.seen["late"] += sent.is_given_up
        began = now_ms()
        words = command.words(self.listener.channel.decode())
        if command.wait == "blocked" and self.model.waits(command):
            wire.blocked, wire.waiting = self.spare.pop() if self.spare else self.server.raw(), sent
            wire.blocked.send(*words)
            for _ in range(2):
                self.connection.ok("PING")  # the server has read it by then
            reply = None
        else:
            reply = self.connection.call(*words)
        now = began, now_ms()
        said = reply.prefix if isinstance(reply, RespError) else reply
        expected = self.model.run(command, now, reply if isinstance(reply, int) else 0)
        if expected == NEW_FENCE:
            assert isinstance(said, int) and said > 0, f"{command} answered {said}"
        elif said == "DEADLOCK" and expected is None:
            self.model.leaves(command.tag)
        else:
            assert said == expected, f"{command} answered {said}, not {expected}"
        self.seen[str(said) if isinstance(reply, RespError) else command.name] += 1
        if wire.blocked is None:
            self._answered(sent, said)
        self._settle(now)

    def _settle(self, now: tuple[float, float]) -> None:
        """Waits have ended by this command: exactly those of the model."""
        if self.model.queue or self.model.withdrawn:
            for message in self.listener.messages():
                self._note(message)
            for wire in self.wires:
                if wire.blocked and wire.blocked.has_reply():
                    self._read(wire)
            for tag in [tag for tag, told in self.told.items() if told == "DEADLOCK"]:
                self.model.leaves(tag)
                self._pass_on(tag)
            self.model.serve(self._end_of_wait, now)
            assert not self.told, f"{self.told} were told and had not to be"
        self._check_owners()

    def _read(self, wire: Wire) -> None:
        reply = wire.blocked.read()
        self.told[wire.waiting.command.tag] = reply.prefix if isinstance(reply, RespError) else reply
        self.spare.append(wire.blocked)
        wire.blocked = None

    def _end_of_wait(self, request: Request) -> int | str:
        if request.tag not in self.told and not request.is_notified:
            self._read(next(w for w in self.wires if w.blocked and w.waiting.command.tag == request.tag))
        while request.tag not in self.told:
            self._note(self.listener.message())
        return self._pass_on(request.tag)

    def _note(self, message: Message) -> None:
        told, tag = message
        self.told[tag.decode()] = told.removeprefix("-") if isinstance(told, str) else told

    def _pass_on(self, tag: str) -> int | str:
        told = self.told.pop(tag)
        for wire in self.wires:
            if wire.waiting and wire.waiting.command.tag == tag:
                sent, wire.waiting = wire.waiting, None
                self._answered(sent, told)
                return told
        self.seen["messages"] += 1
        for owner in self.owners:
            if tag in owner.tags:
                owner.heard.append((None, told))
        return told

    def _answered(self, sent: Sent, said: Any) -> None:
        sent.is_answered = True
        if not sent.is_given_up:
            sent.owner.heard.append((sent, said))

    def double(self) -> None:
        """A command that was answered or given up comes once more, on a connection of its own."""
        over = [one for one in self.sent if (one.is_answered or one.is_given_up) and not one.is_doubled]
        if not over:
            return
        sent = self.chance.choice(over)
        sent.is_doubled = True
        sent.owner.is_doubled |= sent.may_give
        wire = Wire(is_closed=True)
        tag = sent.command.tag if sent.command.wait == "notify" else f"{self.seed}:{self.number()}"
        copy = Sent(sent.owner, replace(sent.command, tag=tag), wire, is_given_up=True, is_doubled=True)
        wire.on_its_way.append(copy)
        self.wires.append(wire)
        self.seen["doubled"] += 1

    # --- looking

    def _check_owners(self) -> None:
        for owner in self.owners:
            if not owner.is_valid:
                continue
            for key in owner.keys:
                hold = self.model.hold(key, owner.token)
                assert hold, f"{owner.token} counts on {key}"
                if owner.state == "holding" and not owner.is_doubled:
                    assert (hold.mode, hold.fence) == (owner.mode, owner.fence), (
                        f"{owner.token} at {key}: {hold}"
                    )

    def compare(self) -> None:
        """What is held, until when, and who waits, is on the server as in the model."""
        assert self.listener.messages() == []
        for key in self.keys:
            began = now_ms()
            info = self.locks.full(key)
            ended = now_ms()
            holds, queue = self.model.holds.get(key, {}), [one for one in self.model.queue if key in one.keys]
            queue.sort(key=lambda one: one.want != "upgrade")
            shown = {one.token.decode(): one for one in info.holders or ()} if info else {}
            assert {token: one.fence for token, one in shown.items()} == {
                t: h.fence for t, h in holds.items()
            }
            assert not holds or info.mode == next(iter(holds.values())).mode
            for token, hold in holds.items():
                earliest, latest = hold.ends[0] - ended - 2, hold.ends[1] - began + 2
                assert earliest <= shown[token].pttl <= latest, f"{token} at {key}: {shown[token]}, {hold}"
            waiting = [one.token.decode() for one in info.queue or ()] if info else []
            assert waiting == [one.token for one in queue]

    def what_is_left(self) -> set[str]:
        held = {token for holds in self.model.holds.values() for token in holds}
        return held | {request.token for request in self.model.queue}

    def clean_up(self) -> None:
        for token in self.what_is_left():
            for key in self.keys:
                self.connection.ok("SLOCK.CANCEL", key, token)
            self.connection.ok("SLOCK.MUNLOCK", len(self.keys), *self.keys, token)
        for wire in self.wires:
            if wire.blocked:
                wire.blocked.read()
                self.spare.append(wire.blocked)
        self.listener.messages()


class Owner:
    """One acquisition, from its first command to its end."""

    def __init__(self, network: Network, token: str) -> None:
        self.network, self.token, self.chance = network, token, network.chance
        is_many = len(network.keys) > 1 and self.chance.random() < 0.3
        self.keys = tuple(self.chance.sample(network.keys, 2 if is_many else 1))
        self.mode = self.chance.choice(["write", "read"])
        self.always_refuses = self.chance.random() < 0.7
        self.wait = self.chance.choice(["", "blocked", "notify", "notify"])
        self.state, self.fence, self.is_valid, self.is_in_doubt, self.is_doubled = (
            "new",
            0,
            False,
            False,
            False,
        )
        self.copies, self.has_ended = 0, False
        self.wire: Wire | None = None
        self.current: list[Sent] = []
        self.heard: list[tuple[Sent | None, Any]] = []
        self.tags: set[str] = set()

    def _send(self, *commands: Command) -> None:
        """All on one connection, in order."""
        if self.wire is None or self.wire.is_closed or self.chance.random() < 0.3:
            self.wire = Wire()
            self.network.wires.append(self.wire)
        self.current = [Sent(self, command, self.wire) for command in commands]
        self.wire.on_its_way += self.current
        self.network.sent += self.current
        self.copies += 1

    def _close(self) -> None:
        """Gives up what it has heard no answer to. What is on its way stays so."""
        for sent in self._unheard():
            sent.is_given_up = True
            self.is_in_doubt |= sent.may_give
        self.heard = [heard for heard in self.heard if heard[0] is None]
        if self.wire:
            self.wire.is_closed = True

    def _unheard(self) -> list[Sent]:
        waits_to_be_heard = [sent for sent, _ in self.heard]
        own = [one for one in self.network.sent if one.owner is self and not one.is_given_up]
        return [one for one in own if not one.is_answered or one in waits_to_be_heard]

    def _command(self, name: str, **more: Any) -> Command:
        tag = f"{self.network.seed}:{self.network.number()}"
        if more.get("wait") == "notify":
            self.tags.add(tag)
        return Command(name, self.keys, self.token, tag=tag, **more)

    def _acquire(self, **more: Any) -> Command:
        name = ("M" if len(self.keys) > 1 else "") + ("LOCK" if self.mode == "write" else "RLOCK")
        return self._command(name, ttl=self.chance.choice(TTLS), **more)

    def _change(self) -> Command:
        ttl = self.chance.choice(TTLS)
        if self.mode == "write":
            return self._command("DOWNGRADE", ttl=ttl, fence=self.fence)
        return self._command("UPGRADE", ttl=ttl, fence=self.fence, wait=self.wait)

    def act(self) -> None:
        if self.heard and self.chance.random() < 0.8:
            return self._hear(*self.heard.pop(0))
        luck, ends = self.chance.random(), self.network.is_ending
        if self.state == "new":
            self.state = "asking"
            self._send(self._acquire(wait=self.wait))
        elif self.state in ("asking", "changing"):
            if luck < 0.15 or (ends and luck < 0.5):
                self._close()
                self._end()
            elif luck < 0.35 and self.copies < 3:
                self._close()
                self._send(self._acquire(wait=self.wait) if self.state == "asking" else self._change())
        elif self.state == "holding":
            if luck < 0.35 or ends:
                self._release()
            elif luck < 0.55:
                name = "MEXTEND" if len(self.keys) > 1 else "EXTEND"
                self._send(self._command(name, ttl=self.chance.choice(TTLS), fence=self.fence))
            elif luck < 0.65:
                self._send(self._acquire(is_refresh=True))
            elif len(self.keys) == 1 and luck < 0.9:
                self.state, self.copies = "changing", 0
                self._send(self._change())
        elif self.state in ("releasing", "ending") and luck < 0.3 and self.copies < 4:
            self._close()
            self._send(*[replace(sent.command) for sent in self.current])

    def _release(self) -> None:
        if any(sent.may_give for sent in self._unheard()):
            self._close()
        if self.is_in_doubt or self.always_refuses:
            return self._end()
        self.state, self.is_valid, self.copies = "releasing", False, 0
        name = "MUNLOCK" if len(self.keys) > 1 else "UNLOCK" if self.mode == "write" else "RUNLOCK"
        self._send(self._command(name, fence=self.fence))

    def _end(self) -> None:
        """The end of the acquisition, whatever has become of it: nothing else is sent after it."""
        self.state, self.is_valid, self.copies = "ending", False, 0
        self.has_ended = True
        self._send(Command("MUNLOCK", self.keys, self.token, refuses=True))

    def _hear(self, sent: Sent | None, said: Any) -> None:
        """An answer, or a message."""
        name = sent.command.name if sent else ""
        if self.state in ("asking", "changing") and (sent is None or sent.may_give) and said is not None:
            if any(one.may_give for one in self._unheard()):
                self._close()  # a later copy, which the answer says nothing of
            if isinstance(said, int) and said > 0:
                if self.state == "changing":
                    self.mode = "read" if self.mode == "write" else "write"
                self.state, self.fence, self.is_valid = "holding", said, True
            elif self.state == "changing" and not self.is_in_doubt:
                self.state = "holding"
            elif self.is_in_doubt or self.always_refuses:
                self._end()
            else:
                self.state = "done"
        elif self.state == "holding" and "EXTEND" in name and sent.command.fence == self.fence:
            assert said == 1 or self.is_in_doubt or self.is_doubled, f"{self.token} has lost its hold"
        elif self.state in ("releasing", "ending") and all(one.is_answered for one in self.current):
            self.state = "done"


def play(network: Network, seed: int) -> None:
    network.begin(seed)
    chance = network.chance
    for step in range(5000):
        network.is_ending = step > 40
        wires = network.deliverable()
        acting = [owner for owner in network.owners if owner.state != "done"]
        if network.is_ending and not wires and not acting:
            break
        luck = chance.random()
        if luck < 0.1 and len(network.sent) < 200 and not (network.is_ending and luck > 0.02):
            network.double()
        elif wires and (luck < 0.5 or not acting):
            network.deliver(chance.choice(wires))
        elif acting:
            chance.choice(acting).act()
    else:
        raise AssertionError("it does not come to an end")
    network.compare()
    owners = {owner.token: owner for owner in network.owners}
    for token in network.what_is_left():
        assert owners[token].is_doubled and not owners[token].has_ended, f"{token} is left"
        network.seen["left by doubled requests"] += 1
    network.seen["in doubt"] += sum(owner.is_in_doubt for owner in network.owners)
    network.seen["ended"] += sum(owner.has_ended for owner in network.owners)
    network.clean_up()


def test_late_commands_do_no_harm(make_server: MakeServer) -> None:
    server, seen = make_server(), Counter[str]()
    network = Network(server, seen)
    histories = rounds(300, 20_000)
    for seed in range(histories):
        before = overwritten(network.client)
        try:
            play(network, seed)
        except Exception as problem:
            if overwritten(network.client) == before:
                raise AssertionError(f"in the history {seed}: {problem}") from problem
            seen["histories left out"] += 1
        # So that few revoked tokens are there that others could take the places of.
        if seed % 200 == 199 or overwritten(network.client) > before:
            server.restart(kill=True)
            network = Network(server, seen)
    assert seen["histories left out"] <= histories // 100
    for what, least in {
        "late": 0.5,
        "doubled": 1,
        "in doubt": 0.5,
        "ended": 1.5,
        "REFUSED": 0.3,
        "NOTHELD": 0.05,
        "messages": 0.2,
        "UPGRADE": 0.1,
        "DOWNGRADE": 0.1,
    }.items():
        assert seen[what] > least * histories, f"too little of {what}: {seen}"
    print(dict(seen))
