"""Locks in worker processes, forked or started new. One `Locks` for the module serves the parent and its children.

REDIS_URL=redis://localhost:6379 python pool.py spawn
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

import redis

import slock_client

client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379"))
locks = slock_client.Locks(client)


@locks.write("example:pool")
def add(number: int) -> int:
    """Reads and writes a number that all share."""
    value = int(client.get("example:sum") or 0)
    time.sleep(0.001)
    client.set("example:sum", value + number)
    return number


def lose() -> None:
    """A lost lock reaches the parent as what it is."""
    with locks.write("example:lost", ttl=0.1, renew=False):
        time.sleep(0.3)


def main(method: str) -> None:
    client.delete("example:sum")
    with locks.write("example:parent"), multiprocessing.get_context(method).Pool(4) as pool:
        pool.map(add, range(100))
        print("the sum is", int(client.get("example:sum") or 0))
        try:
            pool.apply(lose)
        except slock_client.LostError as lost:
            print("lost:", lost.reason)


if __name__ == "__main__":
    main(*sys.argv[1:])
