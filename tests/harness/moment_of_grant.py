"""Hand-offs at about whose moment the first of the queue goes.

A round: `holder` holds a key of its own, `first` waits for it and goes at about the moment of the grant, and
`next` waits behind. A fence that `first` has read stays good. One that it has not read is a hold that stays,
or was never given, and then `next` is served. Never both at once.
"""

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable
from typing import Any

from harness.locks import as_dict
from harness.raw import RawConnection, RespError, encode_command
from harness.server import Server
from harness.wait import wait_until
from harness.waiting import HOUR, REPLY_TIMEOUT, Command, WaitingClient

HOLDER, FIRST, NEXT = "holder", "first", "next"


def slow_script(seconds: float = 0.006) -> Command:
    """A script that runs past `busy-reply-threshold` 1: then the server serves connections in its middle."""
    now = "local function now() local t = redis.call('TIME') return t[1] * 1e6 + t[2] end "
    body = f"{now} local t = now() while now() - t < {seconds * 1e6} do for i = 1, 20000 do end end return 1"
    return ("EVAL", body, 0)


def poll(condition: Callable[[], Any], what: str) -> Any:
    """Like `wait_until`, with a pause between two looks that is not longer than a round."""
    end = time.monotonic() + REPLY_TIMEOUT
    while not (value := condition()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.0002)
    return value


def in_one_turn(control: RawConnection, commands: list[Command], where: str) -> list[Any]:
    """The replies of commands that are sent in one write, as a "transaction" or one by one."""
    if where == "transaction":
        return control.pipeline([("MULTI",), *commands, ("EXEC",)])[-1]
    return control.pipeline(commands)


def is_busy(reply: Any) -> bool:
    return isinstance(reply, RespError) and reply.prefix == "BUSY"


def wait_gone(control: RawConnection, client_id: int) -> None:
    """Waits until the server has closed the connection, and done what follows from it."""
    poll(lambda: not control.ok("CLIENT", "LIST", "ID", client_id), f"the server to drop client {client_id}")
    for _ in range(2):
        control.ok("PING")


def holders(control: RawConnection, key: str) -> dict[str, int]:
    """The fence of each token that holds the key."""
    reply = control.ok("SLOCK.INFO", key, "FULL", "COUNT", 0)
    listed = [as_dict(each) for each in as_dict(reply)["holders"]] if reply else []
    return {each["token"].decode(): each["fence"] for each in listed}


def wait_queued(control: RawConnection, key: str, count: int) -> None:
    def is_queued() -> bool:
        reply = control.ok("SLOCK.INFO", key)
        return reply is not None and as_dict(reply)["waiters"] == count

    poll(is_queued, f"{count} requests to wait for {key}")


class HandOffs:
    """Rounds on one server. Who stays keeps its connection; `first` gets a new one when it has gone."""

    def __init__(self, server: Server, waiter: type[WaitingClient] = WaitingClient) -> None:
        self.server, self.waiter = server, waiter
        self.control, self.other, self.witness, self.stall = (server.raw() for _ in range(4))
        # They give the I/O threads something to do, else the servers do without them.
        self.crowd = [server.raw() for _ in range(6)]
        self._asked: list[RawConnection] = []
        self.first, self.next = waiter(server, FIRST), waiter(server, NEXT)
        self.chance = random.Random(1)
        self.told = self.unread = self.passed_over = 0
        self.lost: list[str] = []

    # --- the beginning of a round

    def begin(self, key: str) -> None:
        self.key = key
        assert self.control.ok("SLOCK.LOCK", key, HOLDER, HOUR)
        for place, waiter in enumerate((self.first, self.next)):
            waiter.ask("SLOCK.LOCK", key, waiter.token, HOUR, "WAIT", 0)
            wait_queued(self.witness, key, place + 1)

    # --- its middle

    @property
    def release(self) -> Command:
        return ("SLOCK.UNLOCK", self.key, HOLDER)

    def send_release(self, *behind: Command) -> None:
        """And in the same write what is to come right behind it."""
        self._is_released = False
        self._ask(*self.crowd, command=("PING",))
        self.control.send_bytes(b"".join(encode_command(*each) for each in (self.release, *behind)))

    def released(self) -> None:
        """Waits for the reply to the release, once."""
        if not self._is_released:
            assert self.finish(self.control, self.release) == 1
            self._is_released = True

    def fence(self) -> int:
        """The fence of the first as soon as it is there; a release that met a slow script is sent again."""
        if not self._is_released:
            select.select([self.first.connection.socket, self.control.socket], [], [], REPLY_TIMEOUT)
            if not self.first.is_answered():
                self.released()
        return self.first.fence()

    def read_away(self, seconds: float = 0) -> int | None:
        """What the first is sent until some moment of the next `seconds`, if anything."""
        answered = self.first.is_answered(self.chance.uniform(0, seconds))
        return self.first.fence() if answered else None

    def turn(self) -> None:
        """What is sent next finds the server busy, and is taken in by one turn of the event loop."""
        self._ask(self.stall, command=("DEBUG", "SLEEP", "0.001"))

    def _ask(self, *connections: RawConnection, command: Command) -> None:
        for connection in connections:
            connection.send(*command)
            self._asked.append(connection)

    def spin(self, seconds: float) -> None:
        until = time.perf_counter() + self.chance.uniform(0, seconds)
        while time.perf_counter() < until:
            pass

    def finish(self, connection: RawConnection, command: Command) -> Any:
        """Reads the reply of what was sent, and sends it again while a script keeps the server busy."""
        reply = connection.read()
        while is_busy(reply):
            reply = connection.call(*command)
        assert not isinstance(reply, RespError), f"{command} answered {reply.text}"
        return reply

    # --- its end

    def end(self, told: int | None, *, has_gone: bool) -> bool:
        """Judges the round, and says whether the first holds. `told`: the fence that it has read."""
        while self._asked:
            self._asked.pop().read()
        before = [told] if told else []
        if has_gone:
            self.first.connection.close()
            wait_gone(self.witness, self.first.id)
            self.first = self.waiter(self.server, FIRST)
        self.told += bool(told)
        held = poll(lambda: holders(self.witness, self.key), f"somebody to hold {self.key}")
        assert len(held) == 1, f"{held} hold the key at once"
        if FIRST in held:
            self.unread += not told
            before.append(self._first_holds(held[FIRST], told))
        else:
            self.passed_over += 1
            if told:
                self.lost.append(f"{self.key}: fence {told}, and then {held}")
        fence = self.next.fence()
        assert fence > max(before, default=0), (before, fence)
        assert holders(self.witness, self.key) == {NEXT: fence}
        assert self.control.ok("SLOCK.UNLOCK", self.key, NEXT) == 1
        assert self.witness.ok("SLOCK.INFO", self.key) is None
        return FIRST in held

    def _first_holds(self, fence: int, told: int | None) -> int:
        """The hold is final: nobody else is admitted, and it ends by its release."""
        assert told in (None, fence), "the fence that was read is not the one of the hold"
        assert self.next.is_waiting(), "the next was granted while the first holds"
        assert self.witness.ok("SLOCK.CHECK", self.key, fence) == 1
        assert self.witness.ok("SLOCK.PTTL", self.key, FIRST) > HOUR // 2
        assert self.witness.ok("SLOCK.LOCK", self.key, "newcomer", HOUR) == 0
        assert self.control.ok("SLOCK.UNLOCK", self.key, FIRST) == 1, "a hold that was seen is gone"
        return fence

    def judge(self) -> None:
        """At the end of all rounds."""
        print(f"{self.told} read, {self.unread} held and not read, {self.passed_over} passed over")
        assert not self.lost, f"{len(self.lost)} of {self.told} fences that were read: {self.lost[:3]}"
        wait_until(lambda: b"blocked_clients:0" in self.witness.ok("INFO", "clients"), what="none to wait")
        self.server.check()
