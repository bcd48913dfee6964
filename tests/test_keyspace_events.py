"""Keyspace events: a listener's record of a history is exact, name by name and key by key.

That what is refused or only looks is not announced is in test_arguments.py.
"""

from __future__ import annotations

import pytest

from harness import Event, Events, Locks, MakeServer, RawConnection, Server, now_ms, wait_past
from harness.many import many
from harness.queues import Queues
from harness.waiting import HOUR

# Milliseconds. Long enough to take the other holds meanwhile, on a slow machine too.
BRIEF = 300


@pytest.fixture
def events(server: Server) -> Events:
    return Events(server)


def _names(events: Events) -> list[str]:
    """As words: "slock.lock k", "del k"."""
    return [f"{event.name} {event.key.decode()}" for event in events.so_far() if event.name != "new"]


def _told(events: Events) -> list[str]:
    """Without the server's own events: "lock k"."""
    return [name.removeprefix("slock.") for name in _names(events) if name.startswith("slock.")]


def _of(events: Events, raw: RawConnection, command: str) -> list[str]:
    """The events of one command, written without its prefix: "LOCK k a 1000"."""
    name, *words = command.split()
    raw.ok(f"SLOCK.{name}", *words)
    return _told(events)


HISTORY = {
    "LOCK k a 9999": ["lock k"],
    "LOCK k a 99999": ["extend k"],
    "LOCK k a 9998": [],
    "EXTEND k a 9998 GT": [],
    "EXTEND k a 9999": ["extend k"],
    "DOWNGRADE k a 9999": ["downgrade k"],
    "RLOCK k b 9999": ["rlock k"],
    "RUNLOCK k b": ["runlock k"],
    "UPGRADE k a 9999": ["upgrade k"],
    "UNLOCK k a": ["unlock k"],
    "MLOCK 2 k j a 9999": ["lock k", "lock j"],
    "MLOCK 2 k j a 99999": ["extend k", "extend j"],
    "MLOCK 2 k j a 9998": [],
    "MEXTEND 2 k j a 9998 GT": [],
    "MEXTEND 2 j k a 9999": ["extend j", "extend k"],
    "MUNLOCK 3 k l j a": ["unlock k", "unlock j"],
    "MRLOCK 2 k j a 9999": ["rlock k", "rlock j"],
    "LOCK l a 9999": ["lock l"],
    "MUNLOCK 3 j k l a ": ["runlock j", "runlock k", "unlock l"],
}


def test_an_effect_is_announced_for_what_it_is(events: Events, raw: RawConnection) -> None:
    assert {command: _of(events, raw, command) for command in HISTORY} == HISTORY


def test_an_event_of_a_transaction_has_its_database(events: Events, raw: RawConnection) -> None:
    raw.ok("SELECT", 4)
    refused = ("SLOCK.LOCK", "k", "b", HOUR)
    commands = [many("MLOCK", "k j", "a", HOUR), refused, many("MUNLOCK", "j k", "a")]
    raw.pipeline([("MULTI",), *commands, ("EXEC",)])
    assert [event for event in events.so_far() if event.name.startswith("slock.")] == [
        Event(4, "slock.lock", b"k"),
        Event(4, "slock.lock", b"j"),
        Event(4, "slock.unlock", b"j"),
        Event(4, "slock.unlock", b"k"),
    ]


# --- deadlines


def test_a_reader_that_expired_beside_others_is_told(
    events: Events, raw: RawConnection, locks: Locks
) -> None:
    for token, ttl in (("brief", BRIEF), ("also", BRIEF), ("stays", HOUR)):
        locks.rlock("k", token, ttl)
    events.so_far()
    wait_past(locks.client, now_ms(locks.client) + BRIEF + 5)
    assert _of(events, raw, "INFO k") == []
    assert _of(events, raw, "RLOCK k late 9999") == ["expire k", "expire k", "rlock k"]
    assert _of(events, raw, "MUNLOCK 2 j k stays") == ["runlock k"]


# --- keys that go


def test_a_key_that_is_left_empty_goes_as_any_key(raw: RawConnection, events: Events, queues: Queues) -> None:
    """As after LPOP of the last element: the event of the command, then `del`; on replicas `del` too."""

    def heard(*commands: tuple) -> list[str]:
        events.so_far()
        raw.pipeline(list(commands))
        return _names(events)

    raw.ok("SLOCK.RLOCK", "k", "a", HOUR)
    raw.ok("SLOCK.RLOCK", "k", "b", HOUR)
    assert heard(("SLOCK.RUNLOCK", "k", "a")) == ["slock.runlock k"]
    assert heard(("SLOCK.RUNLOCK", "k", "b")) == ["slock.runlock k", "del k"]
    queues.hold("x", "k j")
    waiting = queues.lock("next", "j")
    gone = ["slock.unlock k", "del k", "slock.unlock j", "del j"]
    assert heard(many("MUNLOCK", "k j", "x")) == [*gone, "slock.lock j"]
    waiting.fence()


# --- who waits


def test_grants_on_wake_up_follow_what_made_them(events: Events, queues: Queues) -> None:
    queues.hold("x", "a b")
    waiting = [queues.mlock("one", "a b"), queues.mrlock("two", "b c"), queues.mrlock("three", "a c")]
    events.so_far()
    queues.free("x", "a")
    assert _told(events) == ["unlock a"]
    queues.free("x", "b")
    waiting[0].fence()
    assert _told(events) == ["unlock b", "lock a", "lock b"]
    queues.free("one", "b a")
    assert all(waiter.fence() for waiter in waiting[1:])
    assert _told(events) == ["unlock b", "unlock a", "rlock b", "rlock c", "rlock a", "rlock c"]


# --- the class of modules


def test_events_belong_to_the_class_of_modules_and_use_both_channels(make_server: MakeServer) -> None:
    server = make_server(notify_keyspace_events="")
    client, raw, events = server.client(), server.raw(), Events(server)
    for flags, heard in {"": [], "Eg$x": [], "d": [], "Kd": [], "Ed": ["lock k"]}.items():
        client.config_set("notify-keyspace-events", flags)
        assert _of(events, raw, "LOCK k a 9999") == heard, flags
        raw.ok("SLOCK.UNLOCK", "k", "a")
    client.config_set("notify-keyspace-events", "KEd")
    link = server.raw()
    link.send("PSUBSCRIBE", "__key*@0__:*")
    assert link.read()[0] == b"psubscribe"
    raw.ok("SLOCK.LOCK", "k", "a", HOUR)
    heard = {tuple(link.read()[2:]) for _ in range(2)}
    assert heard == {(b"__keyspace@0__:k", b"slock.lock"), (b"__keyevent@0__:slock.lock", b"k")}
