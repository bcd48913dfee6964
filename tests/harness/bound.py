"""Holds that are bound to their connection (EPHEMERAL), and connections that end."""

from __future__ import annotations

from harness.raw import RawConnection
from harness.server import Server
from harness.wait import wait_until
from harness.waiting import HOUR


def take_bound(server: Server, command: str = "LOCK", key: str = "k", token: str = "owner") -> RawConnection:
    """A new connection that holds the key for as long as it is open."""
    connection = server.raw()
    assert connection.ok(f"SLOCK.{command}", key, token, HOUR, "EPHEMERAL") > 0
    return connection


def hang_up(server: Server, connection: RawConnection) -> None:
    """Closes the connection and waits until the server has seen it."""
    client_id = connection.client_id()
    connection.close()
    control = server.client()
    wait_until(lambda: not control.client_list(client_id=[client_id]), what="the server to see the end")
    control.close()
