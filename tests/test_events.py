"""Keyspace events: one for each effect, named after what happened, and none for what did not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from harness import Event, Events, Server

LONG = 60_000

# What is done first, what is done then, and the event of the second.
STORIES = {
    "a grant": ([], ("LOCK", "k", "a", LONG), "slock.lock"),
    "a grant to a reader": ([], ("RLOCK", "k", "a", LONG), "slock.rlock"),
    "a second reader": ([("RLOCK", "k", "a", LONG)], ("RLOCK", "k", "b", LONG), "slock.rlock"),
    "a release": ([("LOCK", "k", "a", LONG)], ("UNLOCK", "k", "a"), "slock.unlock"),
    "the last reader's release": ([("RLOCK", "k", "a", LONG)], ("RUNLOCK", "k", "a"), "slock.runlock"),
    "a reader's release": (
        [("RLOCK", "k", "a", LONG), ("RLOCK", "k", "b", LONG)],
        ("RUNLOCK", "k", "a"),
        "slock.runlock",
    ),
    "an extension": ([("LOCK", "k", "a", LONG)], ("EXTEND", "k", "a", LONG), "slock.extend"),
    "an upgrade": ([("RLOCK", "k", "a", LONG)], ("UPGRADE", "k", "a", LONG), "slock.upgrade"),
    "a downgrade": ([("LOCK", "k", "a", LONG)], ("DOWNGRADE", "k", "a", LONG), "slock.downgrade"),
}


@pytest.fixture
def events(server: Server) -> Iterator[Events]:
    events = Events(server)
    yield events
    events.close()


@pytest.mark.parametrize("name", STORIES)
def test_an_effect_is_announced_in_its_database(server: Server, events: Events, name: str) -> None:
    before, command, event = STORIES[name]
    client = server.client(db=2)
    for earlier, *args in before:
        client.execute_command(f"SLOCK.{earlier}", *args)
    events.so_far()
    client.execute_command(f"SLOCK.{command[0]}", *command[1:])
    assert Event(2, event, b"k") in events.so_far()


def test_inside_a_transaction_every_effect_is_announced(client: redis.Redis, events: Events) -> None:
    pipe = client.pipeline(transaction=True)
    pipe.execute_command("SLOCK.LOCK", "k", "a", LONG)
    pipe.execute_command("SLOCK.LOCK", "k", "b", LONG)
    pipe.execute_command("SLOCK.UNLOCK", "k", "a")
    pipe.execute()
    names = [event.name for event in events.so_far() if event.name.startswith("slock.")]
    assert names == ["slock.lock", "slock.unlock"]
