"""redis.conf.example: it starts from the root of the repository with nothing to edit, and does as it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Locks, Server, wait_until_logged
from harness.configured import configured
from harness.settings import REPOSITORY, module_path

HOUR = 3_600_000
EXAMPLE = (REPOSITORY / "redis.conf.example").read_text()

# Needs another server, and what a lone server refuses to do without one.
FOR_REPLICAS = ("replicaof", "min-replicas")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What the root of the repository is to the example: a directory with the built module in its place."""
    place = tmp_path / "target" / "release"
    place.mkdir(parents=True)
    (place / "libslock.so").symlink_to(module_path())
    return tmp_path


@pytest.fixture
def example(root: Path) -> Iterator[Server]:
    server = Server(name="example", directory=root)
    configured(server, f"{EXAMPLE}\nport {server.port}\n").start()
    yield server
    server.stop()
    server.discard()


def _settings(text: str) -> dict[str, str]:
    lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    return {name: value for name, value in lines}


def _commented(text: str) -> list[str]:
    """The settings that are shown in comments: a lone name and values, as in `# maxmemory 1gb`."""
    found = re.findall(r"^# ((?:slock\.|min-|replicaof|maxmemory|notify-|user )\S*.*)$", text, re.M)
    return [line for line in found if not line.endswith((".", ":", ","))]


def test_the_example_starts_and_locks(example: Server) -> None:
    raw = example.raw()
    fence = raw.ok("SLOCK.LOCK", "key", "token", 5000)
    assert fence > 0 and raw.ok("SLOCK.CHECK", "key", fence) == 1
    assert raw.ok("SLOCK.LOCK", "key", "other", 5000) == 0
    assert raw.ok("SLOCK.UNLOCK", "key", "token") == 1
    assert not [
        line for line in example.log().splitlines() if "<slock>" in line and "maxmemory-policy" in line
    ]


def test_each_line_of_the_example_is_in_force(example: Server) -> None:
    client = example.client()
    told = _settings(EXAMPLE)
    for name, value in told.items():
        if name in ("loadmodule", "port", "dir"):
            continue
        (is_so,) = client.config_get(name).values()
        if value.endswith("mb"):
            value = str(int(value[:-2]) << 20)
        assert str(is_so) == value, name
    assert len(told) > 15


def test_a_lock_survives_a_kill_as_the_example_says(example: Server) -> None:
    locks = Locks(example.client())
    fence = locks.lock("key", "token", HOUR, meta="kept")
    deadline = locks.client.pexpiretime("key")
    wait_until_logged(example)
    example.restart(kill=True)
    locks = Locks(example.client())
    (holder,) = locks.full("key").holders
    assert (holder.token, holder.fence, holder.meta) == (b"token", fence, b"kept")
    assert locks.client.pexpiretime("key") == deadline
    assert locks.unlock("key", "token") == 1


def test_the_settings_shown_in_comments_work(root: Path) -> None:
    shown = _commented(EXAMPLE)
    assert len(shown) >= 7, shown
    chosen = [line for line in shown if not line.startswith(FOR_REPLICAS)]
    server = Server(name="commented", directory=root)
    configured(server, "\n".join([EXAMPLE, *chosen, f"port {server.port}"]) + "\n").start()
    app = server.raw()
    app.ok("AUTH", "app", "secret")
    fence = app.ok("SLOCK.LOCK", "lock:1", "token", 5000)
    assert app.ok("SLOCK.EXTEND", "lock:1", "token", 5000) == 1 == app.ok("SLOCK.CHECK", "lock:1", fence)
    assert app.ok("SLOCK.UNLOCK", "lock:1", "token") == 1
    assert app.error("SLOCK.LOCK", "other:1", "token", 5000).startswith("NOPERM ")
    assert app.error("DEL", "lock:1").startswith("NOPERM ")
    server.stop()
    server.discard()


def test_the_settings_shown_with_their_defaults_are_the_defaults(example: Server) -> None:
    client = example.client()
    shown = dict(line.split() for line in _commented(EXAMPLE) if line.startswith("slock."))
    assert set(shown) == set(client.config_get("slock.*"))
    for name, value in shown.items():
        assert client.config_get(name) == {name: value}
