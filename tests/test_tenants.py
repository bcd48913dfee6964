"""Two users of a server, each with all rights on names of its own: none stalls, blinds or reads the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from harness import MakeServer, RawConnection, Server, wait_until
from harness.locks import as_dict
from harness.many import many
from harness.notify import Listener
from harness.payloads import plain_dump, with_number
from harness.waiting import HOUR

# What tenants of a shared server usually get.
RIGHTS = ("&*", "+@all", "-@dangerous")
HOUR_US = 3_600_000_000


@dataclass
class Tenants:
    """`ann` has the names that begin with `a:`, `bob` those with `b:`. He attacks."""

    server: Server
    client: redis.Redis

    def login(self, name: str, protocol: int = 2) -> RawConnection:
        raw = self.server.raw(protocol)
        raw.ok("AUTH", name, "any")
        return raw

    def listener(self, name: str) -> Listener:
        """Asks and listens as this user."""
        listener = Listener(self.server)
        listener.connection.ok("AUTH", name, "any")
        return listener


def _tenants(server: Server) -> Tenants:
    client = server.client()
    for name in ("ann", "bob"):
        client.execute_command("ACL", "SETUSER", name, "reset", "on", "nopass", f"~{name[0]}:*", *RIGHTS)
    return Tenants(server, client)


@pytest.fixture
def tenants(server: Server) -> Iterator[Tenants]:
    yield (tenants := _tenants(server))
    tenants.client.execute_command("ACL", "DELUSER", "ann", "bob")


def queues(raw: RawConnection, *words: object) -> list[dict[str, Any]]:
    """All pages."""
    found, cursor = [], b"0"
    while True:
        cursor, page = raw.ok("SLOCK.QUEUES", *words, "CURSOR", cursor)
        found += [as_dict(entry) for entry in page]
        if cursor == b"0":
            return found


# --- waiting


@pytest.mark.parametrize("names", [1, 7])
def test_nobody_takes_all_places_in_queues(make_server: MakeServer, names: int) -> None:
    """A request for several names has a place in the queue of each."""
    tenants = _tenants(make_server(slock_max_waiters=1000))
    bob, ann = tenants.listener("bob"), tenants.login("ann")
    assert bob.call("SLOCK.LOCK", "b:k", "holder", HOUR) > 0
    asked, refused = -1, None
    while refused is None:
        asked += 1
        others = [f"b:{asked}:{number}" for number in range(names - 1)]
        refused = bob.ask(*many("MLOCK", ["b:k", *others], f"t{asked}", HOUR))
    assert refused.prefix == "QUEUEFULL" and "slock.max-waiters-per-user, which is 900" in refused.text
    info = tenants.client.info("slock")
    assert (info["slock_waiters"], info["slock_waiting_places"]) == (900 // names, 900 // names * names)
    ann.ok("SLOCK.LOCK", "a:k", "holder", HOUR)
    ann.send("SLOCK.LOCK", "a:k", "next", HOUR, "WAIT", 0)
    wait_until(lambda: tenants.client.info("slock")["slock_waiters"] == asked + 1)
    assert tenants.login("ann").ok("SLOCK.UNLOCK", "a:k", "holder") == 1
    assert ann.read() > 0


ACQUIRING = ["LOCK", "RLOCK", "UPGRADE", "MLOCK", "MRLOCK"]


@pytest.mark.parametrize("command", ACQUIRING)
def test_a_lock_has_a_name_of_1_to_1024_bytes(server: Server, raw: RawConnection, command: str) -> None:
    def ask(name: str) -> tuple:
        keys = (2, "k", name) if command.startswith("M") else (name,)
        return (f"SLOCK.{command}", *keys, "me", HOUR)

    for name in ("", "n" * 1025, "n" * 100_000):
        assert raw.error(*ask(name)) == "ERR the key of a lock must be 1 to 1024 bytes long"
    assert raw.ok("DBSIZE") == 0
    if command == "UPGRADE":
        raw.ok("SLOCK.RLOCK", "n" * 1024, "me", HOUR)
    assert raw.ok(*ask("n" * 1024)) > 0


# --- what is shown


def test_older_queues_hide_nobody(tenants: Tenants) -> None:
    """1,500 names of bob's are waited for longer than ann's."""
    bob, ann = tenants.listener("bob"), tenants.listener("ann")
    bob.call("SLOCK.LOCK", "b:k", "holder", HOUR)
    for number in range(3):
        names = ["b:k", *(f"b:{number}:{name}" for name in range(500))]
        assert bob.ask(*many("MLOCK", names, f"t{number}", HOUR)) is None
    ann.call("SLOCK.LOCK", "a:k", "holder", HOUR)
    assert ann.ask("SLOCK.LOCK", "a:k", "next", HOUR) is None
    for words in ((), ("COUNT", 0), ("COUNT", 1000)):
        assert [entry["key"] for entry in queues(tenants.login("ann"), *words)] == [b"a:k"]
    for words in (("COUNT", 0), ("COUNT", 7)):
        everybodys = [entry["key"] for entry in queues(tenants.server.raw(), *words)]
        assert len(everybodys) == len(set(everybodys)) == 1502 and everybodys[-1] == b"a:k"
    cursor, first = tenants.server.raw().ok("SLOCK.QUEUES", "COUNT", 0)
    assert len(first) == 1000 and int(cursor) > 0, "so many are looked at in a call"
    cursor, first = tenants.login("ann").ok("SLOCK.QUEUES")
    assert first == [] and int(cursor) > 0, "also if none is shown"


def test_a_deadlock_tells_only_what_the_user_may_look_at(tenants: Tenants) -> None:
    """They share a lock; ann holds one of her own, and bob may ask for that, but not look at it."""
    for name, more in (("ann", ["~shared"]), ("bob", ["~shared", "(+slock.lock ~a:secret)"])):
        tenants.client.execute_command("ACL", "SETUSER", name, *more)
    ann, bob = tenants.login("ann"), tenants.login("bob")
    bob.ok("SLOCK.LOCK", "shared", "bob-token", HOUR)
    ann.ok("SLOCK.LOCK", "a:secret", "ann-token", HOUR)
    ann.send("SLOCK.LOCK", "shared", "ann-token", HOUR, "WAIT", 0)
    wait_until(lambda: tenants.client.info("slock")["slock_waiters"] == 1)
    assert bob.error("SLOCK.LOCK", "a:secret", "bob-token", HOUR, "WAIT", 0) == (
        'DEADLOCK Waiting would close a cycle: "bob-token" waits at ? for ?, '
        '"ann-token" waits at "shared" for "bob-token"'
    )


# --- channels


def test_nothing_is_granted_or_told_by_a_channel_that_the_user_may_not_use_any_more(tenants: Tenants) -> None:
    client = tenants.client
    bob, ann = tenants.listener("bob"), tenants.listener("ann")
    bob.call("SLOCK.LOCK", "b:k", "holder", HOUR)
    # He asks on her channel, which he may use as yet.
    asks = ("SLOCK.LOCK", "b:k", "bob-token", HOUR, "WAIT", 0, "NOTIFY", ann.channel, "forged")
    assert bob.call(*asks) is None
    assert bob.ask("SLOCK.RLOCK", "b:k", "behind", HOUR) is None
    client.execute_command("ACL", "SETUSER", "bob", "resetchannels", f"&{bob.channel.decode()}")
    assert bob.call("SLOCK.UNLOCK", "b:k", "holder") == 1
    assert bob.fence() > 0, "the next is served"
    assert ann.messages() == []
    assert client.execute_command("SLOCK.PTTL", "b:k", "bob-token") == -2
    # Nor is he told that a wait was cancelled.
    client.execute_command("ACL", "SETUSER", "bob", "allchannels")
    assert bob.call(*asks) is None
    client.execute_command("ACL", "SETUSER", "bob", "resetchannels")
    assert client.execute_command("SLOCK.CANCEL", "b:k", "bob-token") == 1
    assert ann.messages() == []
    client.execute_command("SLOCK.RUNLOCK", "b:k", "behind")


# --- payloads


def _takes(client: redis.Redis, payload: bytes) -> bool:
    try:
        return bool(client.restore("b:k", 0, payload, replace=True))
    except redis.ResponseError as refused:
        assert str(refused) == "Bad data format"
        return False


def test_a_payload_moves_no_fence_beyond_an_hour(make_server: MakeServer) -> None:
    """Neither by one step nor by many."""
    client = make_server().client()
    fence = client.execute_command("SLOCK.LOCK", "b:k", "bob", HOUR)
    payload = plain_dump(client, "b:k")
    fences = [fence + int(hours * HOUR_US) for hours in (0.5, 0.9, 1.4, 1.8, 9 * 365 * 24)]
    taken = [_takes(client, with_number(payload, fence, later)) for later in fences]
    assert taken == [True, True, False, False, False]
    assert client.info("slock")["slock_last_fence"] == fences[1]
    assert client.execute_command("SLOCK.LOCK", "b:next", "bob", HOUR) == fences[1] + 1
    assert _takes(client, with_number(payload, fence, fences[1] + 1)), "it has given that one"


def test_refused_payloads_do_not_fill_the_log(make_server: MakeServer) -> None:
    server = make_server()
    client = server.client()
    fence = client.execute_command("SLOCK.LOCK", "b:k", "bob", HOUR)
    payload = plain_dump(client, "b:k")
    bad = [with_number(payload, fence, fence + 9000 * HOUR_US), with_number(payload, fence, 0)]
    for number in range(200):
        with pytest.raises(redis.ResponseError, match="Bad data format"):
            client.restore(f"b:{number}", HOUR, bad[number % 2])
    assert server.log().count("a stored lock was refused") == 1
