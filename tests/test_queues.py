"""SLOCK.QUEUES: where somebody waits, against a model of the queues; who sees it; where it is empty."""

from __future__ import annotations

import random
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness import MakeServer, RawConnection, Server, replica_of, rounds, wait_synced, wait_until
from harness.locks import as_dict
from harness.many import many
from harness.raw import encode_command
from harness.waiting import HOUR, Line, at_once

NAMES, WAITERS = rounds(50, 500), rounds(1000, 10_000)
DATABASES = (0, 0, 0, 1)
FIELDS = ["key", "waiters", "writers", "longest_wait_ms", "next", "mode", "readers", "held_ms"]

Moment = tuple[float, float]
Place = tuple[int, str]


def queues(raw: RawConnection, *words: object) -> list[dict[str, Any]]:
    """The first page."""
    entries = [as_dict(entry) for entry in raw.ok("SLOCK.QUEUES", *words)[1]]
    assert all(list(entry) == FIELDS for entry in entries)
    return entries


def names(raw: RawConnection, *words: object) -> list[str]:
    return [entry["key"].decode() for entry in queues(raw, *words)]


def walk(raw: RawConnection, count: int) -> list[bytes]:
    """The names on all pages of so many, each of which must be there once."""
    found, cursor = [], b"0"
    while True:
        cursor, page = raw.ok("SLOCK.QUEUES", "COUNT", count, "CURSOR", cursor)
        assert count == 0 or len(page) == count or cursor == b"0"
        found += [as_dict(entry)["key"] for entry in page]
        if cursor == b"0":
            assert len(set(found)) == len(found)
            return found


# --- against a model


@dataclass(eq=False)
class Request:
    token: str
    want: str
    places: list[Place]
    connection: RawConnection
    since: Moment = (0, 0)


@dataclass
class Lock:
    """Who holds and who waits, as the contract says it: no overtaking, an upgrade before all others."""

    writes: bool = False
    held: dict[str, Moment] = field(default_factory=dict)
    queue: list[Request] = field(default_factory=list)

    def admits(self, request: Request) -> bool:
        if self.queue[0] is not request:
            return False
        if request.want == "upgrade":
            return len(self.held) == 1
        return not self.held or (request.want == "read" and not self.writes)


class Model:
    """Requests, each of which waits before the next is sent, and what becomes of them."""

    def __init__(self, server: Server) -> None:
        self.server, self.chance = server, random.Random(10)
        self.locks: dict[Place, Lock] = defaultdict(Lock)
        self.waiting: list[Request] = []
        self.controls = {database: server.raw() for database in set(DATABASES)}
        for database, control in self.controls.items():
            control.ok("SELECT", database)

    def run(self, database: int, *words: object) -> Moment:
        """Runs a command that must succeed, and says between which moments."""
        before = time.monotonic()
        assert self.controls[database].ok(*words)
        return before, time.monotonic()

    def hold(self, place: Place) -> None:
        lock, (database, name) = self.locks[place], place
        kind = self.chance.choice(["write", "read", "free"])
        lock.writes = kind == "write"
        for number in range({"write": 1, "read": self.chance.randrange(1, 4), "free": 0}[kind]):
            token, command = f"h{number}:{name}", "SLOCK.LOCK" if lock.writes else "SLOCK.RLOCK"
            lock.held[token] = self.run(database, command, name, token, HOUR)

    def ask(self, number: int) -> None:
        """One more request, which has to wait: for one name that is held, or for this one and others."""
        held = [place for place, lock in self.locks.items() if lock.held]
        first = self.chance.choice(held)
        database, lock = first[0], self.locks[first]
        token, want = f"t{number}", self.chance.choice(["write", "write", "read"])
        places = [first]
        if self.chance.random() < 0.1:
            others = [place for place in self.locks if place[0] == database and place != first]
            places += self.chance.sample(others, 2)
        readers = list(lock.held) if not lock.writes and len(lock.held) > 1 else []
        if want == "read" and not lock.writes and not lock.queue:
            want = "write"
        if len(places) > 1:
            words = many("MLOCK" if want == "write" else "MRLOCK", [name for _, name in places], token, HOUR)
        elif readers and not any(one.want == "upgrade" for one in lock.queue) and self.chance.random() < 0.3:
            token, want = readers[0], "upgrade"
            words = ("SLOCK.UPGRADE", first[1], token, HOUR)
        else:
            words = ("SLOCK.LOCK" if want == "write" else "SLOCK.RLOCK", first[1], token, HOUR)
        connection, before = RawConnection(self.server.port), time.monotonic()
        commands = ("SELECT", database), (*words, "WAIT", 0)
        connection.send_bytes(b"".join(encode_command(*command) for command in commands))
        assert connection.read() == b"OK"  # which leaves when both have been run
        request = Request(token, want, places, connection, (before, time.monotonic()))
        for place in places:
            queue = self.locks[place].queue
            queue.insert(0 if want == "upgrade" else len(queue), request)
        self.waiting.append(request)

    def leave(self, request: Request) -> None:
        """It closes its connection or is withdrawn; who stands behind may be served then."""
        before = time.monotonic()
        self.waiting.remove(request)
        for place in request.places:
            self.locks[place].queue.remove(request)
        database, name = self.chance.choice(request.places)
        if self.chance.random() < 0.7:
            request.connection.close()
        else:
            self.run(database, "SLOCK.CANCEL", name, request.token)
            assert request.connection.read() == 0
        self.serve(request.places, before)

    def release(self, place: Place) -> None:
        """Who holds it goes, but for a reader who waits to become the writer."""
        before, lock = time.monotonic(), self.locks[place]
        stays = {request.token for request in lock.queue}
        for token in [token for token in lock.held if token not in stays]:
            self.run(place[0], "SLOCK.UNLOCK" if lock.writes else "SLOCK.RUNLOCK", place[1], token)
            del lock.held[token]
        self.serve([place], before)

    def serve(self, places: list[Place], before: float) -> None:
        """Grants whatever can be granted now at these places, as the server must have done since then."""
        places = list(places)
        while places:
            queue = self.locks[places[-1]].queue
            request = queue[0] if queue else None
            if not request or not all(self.locks[place].admits(request) for place in request.places):
                places.pop()
                continue
            assert request.connection.read() > 0
            self.waiting.remove(request)
            for place in request.places:
                lock = self.locks[place]
                lock.queue.pop(0)
                lock.writes = request.want != "read"
                lock.held[request.token] = (lock.held.get(request.token, (before,))[0], time.monotonic())
            places += request.places
        count = b"slock_waiters:%d\r\n" % len(self.waiting)
        wait_until(lambda: count in self.controls[0].ok("INFO", "slock"), what=f"{count!r}")

    def check(self) -> None:
        for database, control in self.controls.items():
            locks = {name.encode(): lock for (at, name), lock in self.locks.items() if at == database}
            oldest = {
                name: min(one.since for one in lock.queue) for name, lock in locks.items() if lock.queue
            }
            assert walk(control, 3) == walk(control, 0)
            for words, count in {
                (): 10,
                ("COUNT", 0): None,
                ("count", 1): 1,
                ("COUNT", 2**63 - 1): None,
            }.items():
                before = time.monotonic()
                shown = queues(control, *words)
                now = before, time.monotonic()
                # Names of the same oldest request may come in any order.
                assert [oldest[entry["key"]] for entry in shown] == sorted(oldest.values())[:count]
                assert len({entry["key"] for entry in shown}) == len(shown)
                for entry in shown:
                    name = entry.pop("key")
                    lock = locks[name]
                    assert _took(entry.pop("longest_wait_ms"), oldest[name], now), name
                    assert _took(entry.pop("held_ms"), min(lock.held.values(), default=now), now), name
                    assert entry == {
                        "waiters": len(lock.queue),
                        "writers": sum(request.want != "read" for request in lock.queue),
                        "next": lock.queue[0].token.encode(),
                        "mode": (b"write" if lock.writes else b"read") if lock.held else b"free",
                        "readers": 0 if lock.writes else len(lock.held),
                    }


def _took(shown_ms: int, since: Moment, until: Moment) -> bool:
    """Whether something may have lasted so long, by the clock of this test."""
    return (until[0] - since[1]) * 1000 - 2 <= shown_ms <= (until[1] - since[0]) * 1000 + 2


@pytest.fixture
def many_connections() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_is_shown_is_what_a_model_of_the_queues_has(
    many_connections: None, make_server: MakeServer
) -> None:
    """Each database shows its own; a request for several names stands at each."""
    model = Model(make_server(maxclients=WAITERS + 1000))
    for number in range(NAMES):
        # Bytes that are not text are names, too.
        model.hold((model.chance.choice(DATABASES), f"n{number}" if number else "\0\xff"))
    for number in range(WAITERS):
        model.ask(number)
    model.check()
    for request in model.chance.sample(model.waiting, WAITERS // 5):
        if request in model.waiting:
            model.leave(request)
    model.check()
    for place in model.chance.sample(list(model.locks), NAMES // 3):
        model.release(place)
    model.check()
    for request in model.waiting[:]:
        request.connection.close()
    wait_until(lambda: queues(model.controls[0], "COUNT", 0) == [], what="nobody to wait")


# --- who sees it, and where


def _crowd(line: Line) -> list[str]:
    """Names at which somebody waits, in the order of arrival."""
    crowd = ["b:1", "a:1", "c:1", "a:2", "b:2", *(f"b:{number}" for number in range(3, 15)), "a:3"]
    for name in crowd:
        line.locks.lock(name, "holder", HOUR)
        line.ask(f"w:{name}", "SLOCK.LOCK", name, f"w:{name}", HOUR, "WAIT", 0)
    return crowd


RULES = {"~a:*": "a:", "%R~a:*": "a:", "%R~a:* %W~*": "a:", "(+slock.info ~a:*)": "a:", "~*": "", "": None}
RULES |= {"%W~a:*": None, "%R~none:*": None, "(+get ~a:*)": None, "-slock.info ~a:*": None}


def test_a_user_sees_the_names_on_which_he_may_run_info(server: Server) -> None:
    """COUNT counts what is shown, and an error names nothing that is not."""
    line, control = Line(server), server.raw()
    crowd = _crowd(line)
    try:
        for rules, prefix in RULES.items():
            may = [name for name in crowd if prefix is not None and name.startswith(prefix)]
            control.ok(
                "ACL",
                "SETUSER",
                "app",
                "reset",
                "on",
                "nopass",
                "+slock.queues",
                "+multi",
                "+exec",
                "+slock.info",
            )
            control.ok("ACL", "SETUSER", "app", *([rules] if rules[:1] == "(" else rules.split()))
            with server.raw() as app:
                app.ok("AUTH", "app", "any")
                assert names(app, "COUNT", 0) == may and names(app) == may[:10], rules
                assert names(app, "COUNT", 2) == may[:2]
                ((_, reply),) = app.pipeline([("MULTI",), ("SLOCK.QUEUES",), ("EXEC",)])[-1]
                assert [as_dict(entry)["key"].decode() for entry in reply] == may[:10]
                for bad in (
                    "COUNT",
                    "COUNT -1",
                    "COUNT x",
                    "a:1",
                    "FULL",
                    "COUNT 1 COUNT 1",
                    "CURSOR",
                    "CURSOR x",
                    "CURSOR -1",
                ):
                    text = app.error("SLOCK.QUEUES", *bad.split())
                    assert text.startswith("ERR ") and not any(name in text for name in {*crowd} - {bad}), (
                        text
                    )
                control.ok("ACL", "SETUSER", "app", "-slock.queues", "clearselectors")
                assert app.error("SLOCK.QUEUES").startswith("NOPERM ")
    finally:
        control.ok("ACL", "DELUSER", "app")


def test_it_is_a_flat_array_in_resp2_and_a_map_in_resp3(server: Server) -> None:
    line, old, new = Line(server), server.raw(), server.raw(protocol=3)
    assert old.ok("SLOCK.QUEUES") == [b"0", []] == new.ok("SLOCK.QUEUES", "COUNT", 0)
    line.locks.rlock("k", "holder", HOUR)
    line.write("w")
    (_, (array,)), (_, (mapping,)) = old.ok("SLOCK.QUEUES"), new.ok("SLOCK.QUEUES")
    assert isinstance(array, list) and isinstance(mapping, dict) and array[::2] == list(mapping)
    assert [type(value) for value in mapping.values()] == [bytes, int, int, int, bytes, bytes, int, int]


def test_in_a_transaction_but_not_in_a_script(server: Server) -> None:
    line, raw = Line(server), server.raw()
    line.locks.lock("k", "holder", HOUR)
    line.write("w")
    # The request of a transaction is not in the queue, and what it frees is served at its end.
    inside = [("SLOCK.QUEUES",), ("SLOCK.UNLOCK", "k", "holder"), ("SLOCK.QUEUES",)]
    (_, first), released, (_, second) = at_once(server, ("MULTI",), *inside, ("EXEC",))[-1]
    assert released == 1
    assert [as_dict(*reply)["mode"] for reply in (first, second)] == [b"write", b"free"]
    wait_until(lambda: names(raw) == [], what="the grant")
    for call in ("redis.call", "redis.pcall"):
        text = raw.error("EVAL", f"return {call}('SLOCK.QUEUES')", 0)
        assert "not allowed from script" in text


def test_a_replica_shows_nothing(make_server: MakeServer) -> None:
    primary, replica = make_server(name="primary"), make_server(name="replica")
    replica_of(replica, primary)
    line, there = Line(primary), replica.raw()
    crowd = _crowd(line)
    wait_synced(primary, replica)
    assert names(line.server.raw(), "COUNT", 0) == crowd
    assert there.ok("SLOCK.INFO", "c:1") and there.ok("SLOCK.QUEUES", "COUNT", 0) == [b"0", []]
    here = primary.raw()
    here.ok("REPLICAOF", "127.0.0.1", replica.port)
    assert here.ok("SLOCK.QUEUES", "COUNT", 0) == [b"0", []]
