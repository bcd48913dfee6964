"""A subscriber of another module that runs SLOCK commands in the middle of ours.

Opening a key can expire it, and the server tells subscribers at once: while our own operation is under way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Locks, Server, now_ms, wait_past
from harness.settings import REPOSITORY

HOUR = 3_600_000


@pytest.fixture
def server(make_server: Callable[..., Server]) -> Server:
    """With the module of tests/subscriber, and no expiry but of keys that somebody opens."""
    library = os.environ.get("SLOCK_SUBSCRIBER") or REPOSITORY / "target/release/libsubscriber.so"
    if not Path(library).exists():
        pytest.skip("tests/subscriber is not built: make test builds it")
    server = make_server()
    client = server.client()
    client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    client.execute_command("MODULE", "LOAD", str(library))
    return server


@pytest.mark.parametrize(
    ("command", "grants"),
    [("LOCK k b 60000", True), ("RLOCK k b 60000", True), ("UNLOCK k b", False), ("EXTEND k b 60000", False)],
)
def test_a_command_inside_a_notification_of_ours_is_refused(
    server: Server, command: str, grants: bool
) -> None:
    client = server.client()
    Locks(client).lock("k", "a", 20)
    wait_past(client, now_ms(client) + 25)
    name, *arguments = command.split()
    reply = client.execute_command(f"SLOCK.{name}", *arguments)
    assert (reply > 0) == grants
    (answer,) = client.lrange("answers", 0, -1)
    assert b"cannot run inside a notification" in answer
    assert not client.exists("taken-by-subscriber")
    assert Locks(client).lock("taken-by-subscriber", "b", HOUR) > 0


def test_a_command_inside_a_notification_of_somebody_elses_is_run(server: Server) -> None:
    client = server.client()
    client.set("k", "a string", px=20)
    wait_past(client, now_ms(client) + 25)
    assert client.get("k") is None
    assert client.lrange("answers", 0, -1) == [b"granted"]
    assert Locks(client).pttl("taken-by-subscriber", "subscriber") > 0
