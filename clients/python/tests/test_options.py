"""Options and their checks before the lock is asked for, and what a hold tells."""

from __future__ import annotations

from typing import Any

import pytest
import redis

import slock_client
from harness import Server
from slock_client.testing import MemoryServer


def test_wrong_options() -> None:
    locks = slock_client.Locks(redis.Redis())
    for name, value in [
        *(("ttl", None), ("at_least", None), ("replica_timeout", None), ("metadata", 7), ("metadata", b"x")),
        *(("token", b"x"), ("label", 7), ("min_replicas", None), ("min_replicas", "1"), ("limit", "1")),
        *(("renew", 0), ("renew", None)),
    ]:
        with pytest.raises(TypeError, match=rf"^{name} must be .*, not {value!r}$"):
            locks.read("job", **{name: value})
    for most in (0, -1, 0.0):
        with pytest.raises(ValueError, match=r"^max_hold must be"):
            locks.write("job", max_hold=most)


def test_a_short_wait_and_no_time_for_retries(server: Server) -> None:
    none: Any = {"retry_for": 0, "retry_wait_for": 0}
    for locks in (
        slock_client.Locks(redis.Redis(port=server.port), **none),
        slock_client.Quorum([MemoryServer()], **none),
    ):
        for wait in (1e-6, 0.3):
            request = locks.write("job", wait=wait)
            with request, pytest.raises(slock_client.TimedOutError):
                request.acquire()
        locks.close()
