"""Keyspace events: a listener's record of a history is exact, name by name and key by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from conftest import Pair
from harness import Event, Events, Locks, Server, now_ms, wait_past, wait_synced, wait_until
from harness.bound import hang_up, take_bound
from harness.many import many
from harness.queues import Queues
from harness.waiting import HOUR

# Milliseconds. Long enough to take the other holds meanwhile, on a slow machine too.
BRIEF = 300

pytest_plugins = ["harness.cleanup"]


class Record:
    """What a listener hears, as words: "lock k" for slock.lock of k; the server's own events are left out."""

    def __init__(self, server: Server) -> None:
        self.events = Events(server)
        self.raw = server.raw()

    def so_far(self) -> list[str]:
        return [
            f"{event.name.removeprefix('slock.')} {event.key.decode()}"
            for event in self.events.so_far()
            if event.name.startswith("slock.")
        ]

    def of(self, command: str) -> list[str]:
        """The events of one command, written without its prefix: "LOCK k a 1000"."""
        name, *words = command.split()
        reply = self.raw.call(f"SLOCK.{name}", *words)
        assert reply is not None
        return self.so_far()


@pytest.fixture
def record(server: Server) -> Iterator[Record]:
    record = Record(server)
    yield record
    record.events.close()


@pytest.fixture
def queues(server: Server) -> Queues:
    return Queues(server)


def test_a_history_is_told_exactly(record: Record) -> None:
    told = {
        "LOCK k a 9999": ["lock k"],
        "LOCK k a 9998": ["extend k"],
        "EXTEND k a 9999": ["extend k"],
        "DOWNGRADE k a 9999": ["downgrade k"],
        "DOWNGRADE k a 9998": ["extend k"],
        "RLOCK k b 9999": ["rlock k"],
        "RLOCK k b 9998 META m": ["extend k"],
        "EXTEND k b 9999": ["extend k"],
        "RUNLOCK k b": ["runlock k"],
        "UPGRADE k a 9999": ["upgrade k"],
        "UPGRADE k a 9998": ["extend k"],
        "UNLOCK k a": ["unlock k"],
        "MLOCK 2 k j a 9999": ["lock k", "lock j"],
        "MLOCK 2 k j a 9998": ["extend k", "extend j"],
        "MEXTEND 2 j k a 9999": ["extend j", "extend k"],
        "MUNLOCK 3 k l j a": ["unlock k", "unlock j"],
        "MRLOCK 2 k j a 9999": ["rlock k", "rlock j"],
        "LOCK l a 9999": ["lock l"],
        "MUNLOCK 3 j k l a ": ["runlock j", "runlock k", "unlock l"],
    }
    assert {command: record.of(command) for command in told} == told


def test_what_is_refused_or_only_looks_is_not_told(record: Record) -> None:
    record.of("LOCK w a 9999")
    record.of("RLOCK r a 9999")
    record.of("RLOCK r b 9999")
    for command in [
        "LOCK w b 9999",
        "RLOCK w b 9999",
        "LOCK w b 9999 WAIT 1",
        "RLOCK w a 9999",
        "LOCK r a 9999",
        "UPGRADE r a 9999",
        "UPGRADE w b 9999",
        "DOWNGRADE w b 9999",
        "EXTEND w b 9999",
        "UNLOCK w b",
        "UNLOCK r a",
        "RUNLOCK w a",
        "UNLOCK free a",
        "LOCK w a 0",
        "MLOCK 2 new w b 9999",
        "MRLOCK 2 new w b 9999",
        "MEXTEND 2 w new a 9999",
        "MUNLOCK 2 w new b",
        "MPTTL 2 w r a",
        "PTTL w a",
        "CHECK w 1",
        "INFO w FULL",
        "LOCK w b 9999 WAIT 0 EXTRA",
    ]:
        assert record.of(command) == [], command


def test_a_reader_that_expired_beside_others_is_told_with_the_next_change(
    record: Record, locks: Locks
) -> None:
    for token, ttl in (("brief", BRIEF), ("also", BRIEF), ("stays", HOUR)):
        locks.rlock("k", token, ttl)
    record.so_far()
    wait_past(locks.client, now_ms(locks.client) + BRIEF + 5)
    assert record.of("INFO k") == []
    assert record.of("RLOCK k late 9999") == ["expire k", "expire k", "rlock k"]
    assert record.of("RLOCK k later 9999") == ["rlock k"]


@pytest.mark.parametrize(
    "change", ["EXTEND k stays 9999", "RUNLOCK k other", "UPGRADE k stays 9999", "MUNLOCK 2 j k other"]
)
def test_whatever_changes_the_lock_tells_of_the_expired_first(
    record: Record, locks: Locks, change: str
) -> None:
    locks.rlock("k", "brief", BRIEF)
    if not change.startswith("UPGRADE"):
        locks.rlock("k", "other", HOUR)
    locks.rlock("k", "stays", HOUR)
    wait_past(locks.client, now_ms(locks.client) + BRIEF + 5)
    record.so_far()
    events = record.of(change)
    assert events[0] == "expire k" and len(events) == 2, events


def test_a_key_that_a_release_leaves_empty_goes_as_any_key(server: Server, queues: Queues) -> None:
    """As after LPOP of the last element: the event of the command, then `del`; on replicas `del` too."""
    events, raw = Events(server), server.raw()

    def heard(*commands: tuple) -> list[str]:
        events.so_far()
        raw.pipeline(list(commands))
        return [f"{event.name} {event.key.decode()}" for event in events.so_far() if event.name != "new"]

    gone = ["slock.unlock k", "del k"]
    assert heard(("SLOCK.LOCK", "k", "a", HOUR), ("SLOCK.UNLOCK", "k", "a")) == ["slock.lock k", *gone]
    raw.ok("SLOCK.RLOCK", "k", "a", HOUR)
    raw.ok("SLOCK.RLOCK", "k", "b", HOUR)
    assert heard(("SLOCK.RUNLOCK", "k", "a")) == ["slock.runlock k"]
    assert heard(("SLOCK.RUNLOCK", "k", "b")) == ["slock.runlock k", "del k"]
    both = [*gone, "slock.unlock j", "del j"]
    assert heard(many("MLOCK", "k j", "a", HOUR), many("MUNLOCK", "k j", "a"))[2:] == both
    queues.hold("x", "k j")
    waiting = queues.lock("next", "j")
    assert heard(many("MUNLOCK", "k j", "x")) == [*both, "slock.lock j"]
    waiting.fence()
    events.close()


def test_a_replica_tells_of_the_key_that_has_gone(primary_and_replica: Pair) -> None:
    primary, replica = primary_and_replica
    replica.client().config_set("notify-keyspace-events", "EAn")
    events, locks = Events(replica), Locks(primary.client())
    locks.lock("k", "a", HOUR)
    locks.unlock("k", "a")
    wait_synced(primary, replica)
    assert [event.name for event in events.so_far()] == ["new", "del"]
    events.close()


@pytest.mark.parametrize("waiting", [True, False], ids=["to a waiter", "to a newcomer"])
def test_a_lock_that_is_handed_on_after_its_end_has_expired(
    server: Server, queues: Queues, waiting: bool
) -> None:
    """Once each time, whether the server collected the key first or the lock was handed on in place."""
    events = Events(server)
    for _ in range(20):
        queues.client.execute_command("SLOCK.LOCK", "k", "old", 15)
        if waiting:
            queues.lock("new", "k").fence()
        else:
            wait_until(lambda: queues.client.execute_command("SLOCK.LOCK", "k", "new", HOUR), what="the end")
        seen = [event.name for event in events.so_far() if event.key == b"k" and event.name != "new"]
        assert seen == ["slock.lock", "expired", "slock.lock"]
        queues.free("new", "k")
        events.so_far()
    events.close()


def test_the_last_holders_end_is_the_servers_own_event(server: Server, locks: Locks) -> None:
    events = Events(server)
    locks.lock("k", "a", 20)
    seen: list[str] = []

    def is_gone() -> bool:
        seen.extend(event.name for event in events.so_far() if event.key == b"k")
        return "expired" in seen

    wait_until(is_gone, what="the key's own expiry")
    assert seen[-1] == "expired" and "slock.lock" in seen and "slock.expire" not in seen
    events.close()


def test_grants_on_wake_up_follow_what_made_them(record: Record, queues: Queues) -> None:
    queues.hold("x", "a b")
    waiting = [queues.mlock("one", "a b"), queues.mrlock("two", "b c"), queues.mrlock("three", "a c")]
    late = queues.lock("four", "c")
    record.so_far()
    queues.free("x", "a")
    assert record.so_far() == ["unlock a"]
    queues.free("x", "b")
    waiting[0].fence()
    assert record.so_far() == ["unlock b", "lock a", "lock b"]
    queues.free("one", "b a")
    assert all(waiter.fence() for waiter in waiting[1:])
    assert record.so_far() == ["unlock b", "unlock a", "rlock b", "rlock c", "rlock a", "rlock c"]
    queues.free("two", "b c")
    queues.free("three", "c a")
    late.fence()
    assert record.so_far() == ["runlock b", "runlock c", "runlock c", "runlock a", "lock c"]


def test_who_waits_and_gives_up_is_not_told(record: Record, queues: Queues) -> None:
    queues.hold("x", "a")
    record.so_far()
    assert queues.mlock("me", "a b", wait=20).reply() == 0
    killed = queues.mlock("me", "a b")
    queues.client.client_kill_filter(_id=killed.id)
    wait_until(lambda: queues.queued("a") == [], what="nobody to wait")
    assert record.so_far() == []


def test_a_bound_hold_that_ends_is_a_release(server: Server, record: Record, queues: Queues) -> None:
    writer, reader = take_bound(server, key="w"), take_bound(server, "RLOCK", key="r")
    waiting = queues.lock("next", "w")
    record.so_far()
    hang_up(server, reader)
    wait_until(lambda: not queues.client.exists("r"), what="the reader to leave")
    hang_up(server, writer)
    waiting.fence()
    assert record.so_far() == ["runlock r", "unlock w", "lock w"]


def test_events_belong_to_the_class_of_modules(make_server: Callable[..., Server]) -> None:
    server = make_server(notify_keyspace_events="")
    client, record = server.client(), Record(server)

    def heard(flags: str) -> list[str]:
        client.config_set("notify-keyspace-events", flags)
        record.of("LOCK k a 9999")
        return record.of("UNLOCK k a")

    for flags in ("", "Eg$x", "d", "Kd"):
        assert heard(flags) == [], flags
    client.config_set("notify-keyspace-events", "Ed")
    assert record.of("LOCK k a 9999") == ["lock k"]
    assert record.of("UNLOCK k a") == ["unlock k"]


def test_both_channels_are_used(make_server: Callable[..., Server]) -> None:
    server = make_server(notify_keyspace_events="KEd")
    link = server.raw()
    link.send("PSUBSCRIBE", "__key*@0__:*")
    assert link.read()[0] == b"psubscribe"
    server.raw().ok(*many("MLOCK", "k", "a", HOUR))
    heard = {tuple(link.read()[2:]) for _ in range(2)}
    assert heard == {(b"__keyspace@0__:k", b"slock.lock"), (b"__keyevent@0__:slock.lock", b"k")}


def test_an_event_of_a_transaction_is_heard_with_its_database(server: Server) -> None:
    events, raw = Events(server), server.raw()
    raw.ok("SELECT", 4)
    raw.pipeline([("MULTI",), many("MLOCK", "k j", "a", HOUR), many("MUNLOCK", "j k", "a"), ("EXEC",)])
    assert [event for event in events.so_far() if event.name.startswith("slock.")] == [
        Event(4, "slock.lock", b"k"),
        Event(4, "slock.lock", b"j"),
        Event(4, "slock.unlock", b"j"),
        Event(4, "slock.unlock", b"k"),
    ]
    events.close()
