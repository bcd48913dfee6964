"""A power cut: of the log stays what was synced, as the policy says, and a grace makes up for the rest."""

from __future__ import annotations

import threading
import time
from itertools import count
from pathlib import Path

import pytest

from harness import Locks, MakeServer, Server, wait_until
from harness.disk import Disk
from harness.waiting import HOUR, Line

# `everysec` syncs when a second of the server's clock begins; the rest is for a machine that has much to do.
EVERYSEC_S = 2.5
LEASE_MS = 3000


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


class Owners:
    """One after the other waits for a lock of his own, and is told his fence, until the power is cut."""

    def __init__(self, server: Server, ttl_ms: int) -> None:
        self.told: dict[str, tuple[int, float]] = {}
        self._other, self._own, self._ttl_ms = server.raw(), server.raw(), ttl_ms
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for key in (f"k{number}" for number in count()):
                self._other.ok("SLOCK.LOCK", key, "other", HOUR)
                self._own.send("SLOCK.LOCK", key, "owner", self._ttl_ms, "WAIT", 0)
                self._other.ok("SLOCK.UNLOCK", key, "other")
                self.told[key] = self._own.read(), time.monotonic()
        except OSError:
            pass

    def end(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive(), "the owners hang"


def _cut(server: Server, disk: Disk, ttl_ms: int, seconds: float) -> tuple[Owners, list[str], float]:
    """The owners, which locks the server that has come back has lost, and when the power was cut."""
    owners, end = Owners(server, ttl_ms), time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end and disk.loses(server.directory), 30, "something to lose")
    server.kill9()
    cut_at = time.monotonic()
    owners.end()
    disk.lose(server.directory)
    server.start()
    locks = Locks(server.client())
    return owners, [key for key, (fence, _) in owners.told.items() if not locks.check(key, fence)], cut_at


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_what_a_power_cut_loses(make_server: MakeServer, disk: Disk, policy: str) -> None:
    server = make_server(appendonly=True, appendfsync=policy, environment=disk.environment)
    owners, lost, cut_at = _cut(server, disk, HOUR, seconds=0.5 if policy == "always" else EVERYSEC_S + 1)
    print(f"{len(lost)} of {len(owners.told)} holds were lost")
    if policy == "always":
        assert lost == []
    else:
        assert 0 < len(lost) < len(owners.told)
        oldest = cut_at - min(owners.told[key][1] for key in lost)
        assert oldest < EVERYSEC_S, f"a hold was lost that was {oldest:.1f} s old"


@pytest.mark.parametrize("grace_ms", [0, LEASE_MS])
def test_the_grace_prevents_a_double_hold(make_server: MakeServer, disk: Disk, grace_ms: int) -> None:
    # It may be that all was synced; and of a single one the log may have who held the lock before.
    for _ in range(5):
        server = make_server(appendonly=True, appendfsync="everysec", environment=disk.environment)
        server.configure(slock_restart_grace_ms=grace_ms)
        owners, lost, _ = _cut(server, disk, LEASE_MS, seconds=0.5)
        if len(lost) >= 2:
            break
        server.discard()
    key = lost[-1]
    fence, told_at = owners.told[key]
    assert Line(server, key).write("next").fence() > fence
    is_double = time.monotonic() < told_at + LEASE_MS / 1000
    assert is_double == (grace_ms == 0)
