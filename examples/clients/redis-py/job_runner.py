"""A job under a lock that is renewed, by commands alone: for those who have no client library of SLOCK.

A thread renews the lock after each third of the ttl. The job has to stop if the server replies 0, and also if
no reply comes before the lease must be over. That time counts from before the request that set the deadline.
After a WAIT the client does not know when the lock was granted, so it renews it once before the job begins.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

REFUSE_MS = 120_000

r = redis.Redis(decode_responses=True)
# For WAIT, and nothing else.
blocking = redis.Redis(decode_responses=True, socket_timeout=60, retry=Retry(NoBackoff(), 0))


class LockLost(Exception):
    """The lease has ended: stop, and do not write any more."""


def end(token: str, *keys: str) -> int:
    """Ends an acquisition of these keys, granted or not. If there is no reply, call it again."""
    return r.execute_command("SLOCK.MUNLOCK", len(keys), *keys, token, "REFUSE", REFUSE_MS)


class Hold:
    def __init__(self, key: str, ttl_ms: int) -> None:
        self.key, self.token, self.ttl_ms = key, str(uuid.uuid4()), ttl_ms
        self.fence = 0
        self.lost = threading.Event()
        self._done = threading.Event()
        self._until = 0.0

    def take(self, wait_ms: int) -> None:
        wait = ("WAIT", wait_ms, "META", socket.gethostname())
        self.fence = blocking.execute_command("SLOCK.LOCK", self.key, self.token, self.ttl_ms, *wait)
        if not self.fence:
            raise TimeoutError(f"{self.key} is held by another")
        if not self._extend():
            raise LockLost(self.key)
        threading.Thread(target=self._renew, daemon=True).start()

    def check(self) -> None:
        """Call it before every step that matters."""
        if self.lost.is_set() or time.monotonic() >= self._until:
            raise LockLost(self.key)

    def _extend(self) -> int:
        sent = time.monotonic()
        held = r.execute_command("SLOCK.EXTEND", self.key, self.token, self.ttl_ms, "GT", "FENCE", self.fence)
        if held:
            self._until = sent + self.ttl_ms / 1000
        return held

    def _renew(self) -> None:
        while not self._done.wait(self.ttl_ms / 3000):
            try:
                held = self._extend()
            except redis.RedisError:
                held = time.monotonic() < self._until  # retry while the lease may still be there
            if not held:
                self.lost.set()
                return

    def release(self) -> None:
        self._done.set()
        with contextlib.suppress(redis.RedisError):  # else the ttl ends it; the job's own error matters more
            end(self.token, self.key)


@contextlib.contextmanager
def held(key: str, ttl_ms: int = 30_000, wait_ms: int = 10_000) -> Iterator[Hold]:
    hold = Hold(key, ttl_ms)
    try:
        hold.take(wait_ms)
        yield hold
    finally:
        hold.release()  # also if it is not known whether the lock was granted


def run(job: object, steps: Iterable[Callable[[int], None]]) -> None:
    with held(f"job:{job}", ttl_ms=3000) as hold:
        for step in steps:
            hold.check()
            step(hold.fence)  # which writes with the fencing token
