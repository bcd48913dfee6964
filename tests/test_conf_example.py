"""redis.conf.example: it starts from the root of the repository with nothing to edit, and does as it says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import Locks, Server, wait_until_logged
from harness.configured import configured
from harness.settings import REPOSITORY, module_path

EXAMPLE = (REPOSITORY / "redis.conf.example").read_text()
SETTINGS = dict(line.split(None, 1) for line in EXAMPLE.splitlines() if line and not line.startswith("#"))

# The settings that are shown in comments: a lone name and values, as in `# maxmemory 1gb`.
COMMENTED = [
    line
    for line in re.findall(
        r"^# ((?:slock\.|min-|replicaof|maxmemory|notify-|user )\S*.*)$", EXAMPLE, re.MULTILINE
    )
    if not line.endswith((".", ":", ","))
]

# Needs another server, and what a lone server refuses to do without one.
FOR_REPLICAS = ("replicaof", "min-replicas")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts the example with some lines more, in a directory with the built module in its place."""
    servers: list[Server] = []

    def run(*lines: str) -> Server:
        place = tmp_path / "target" / "release"
        place.mkdir(parents=True)
        (place / "libslock.so").symlink_to(module_path())
        server = Server(name="example", directory=tmp_path)
        servers.append(server)
        return configured(server, "\n".join([EXAMPLE, *lines, f"port {server.port}"]) + "\n").start()

    yield run
    for server in servers:
        server.stop()
        server.discard()


def test_the_example_is_in_force_and_a_lock_survives_a_kill(start: Callable[..., Server]) -> None:
    example = start()
    log = [line for line in example.log().splitlines() if "<slock>" in line]
    assert log and not [line for line in log if "maxmemory-policy" in line]
    client, locks = example.client(), Locks(example.client())
    for name, value in SETTINGS.items():
        if name in ("loadmodule", "port", "dir"):
            continue
        (is_so,) = client.config_get(name).values()
        assert str(is_so) == (str(int(value[:-2]) << 20) if value.endswith("mb") else value), name
    assert len(SETTINGS) > 15
    fence = locks.lock("key", "token", 3_600_000, meta="kept")
    assert fence > 0 and locks.lock("key", "other", 5000) == 0
    deadline = client.pexpiretime("key")
    wait_until_logged(example)
    example.restart(kill=True)
    locks = Locks(example.client())
    (holder,) = locks.full("key").holders
    assert (holder.token, holder.fence, holder.meta) == (b"token", fence, b"kept")
    assert locks.client.pexpiretime("key") == deadline
    assert locks.unlock("key", "token") == 1


def test_the_settings_shown_in_comments_work(start: Callable[..., Server]) -> None:
    assert len(COMMENTED) >= 7, COMMENTED
    server = start(*[line for line in COMMENTED if not line.startswith(FOR_REPLICAS)])
    app = server.raw()
    app.ok("AUTH", "app", "secret")
    fence = app.ok("SLOCK.LOCK", "lock:1", "token", 5000)
    assert app.ok("SLOCK.EXTEND", "lock:1", "token", 5000) == 1 == app.ok("SLOCK.CHECK", "lock:1", fence)
    assert app.ok("SLOCK.UNLOCK", "lock:1", "token") == 1
    assert app.error("SLOCK.LOCK", "other:1", "token", 5000).startswith("NOPERM ")
    assert app.error("DEL", "lock:1").startswith("NOPERM ")


def test_the_settings_shown_with_their_defaults_are_the_defaults(server: Server) -> None:
    shown = dict(line.split() for line in COMMENTED if line.startswith("slock."))
    assert shown == server.client().config_get("slock.*")
