"""Locks in a WSGI program: Flask, Django or, as here, none.

    gunicorn --workers 2 wsgi:application                          processes
    gunicorn --preload --workers 2 wsgi:application                forked after the import
    gunicorn --worker-class gthread --threads 8 wsgi:application   threads
    gunicorn --worker-class gevent wsgi:application                greenlets

One `Locks` for the module serves them all. A request that waits takes a worker or a thread, so give waits a limit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import redis

import slock_client

client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379"))
locks = slock_client.Locks(client, prefix="shop:")


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Replies how many are inside, which is 1, or why it cannot be done now."""
    try:
        with locks.write("stock", wait=5) as hold:
            inside = int(client.incr("inside"))
            time.sleep(0.02)
            client.decr("inside")
            hold.check()
            status, text = "200 OK", str(inside)
    except slock_client.TimedOutError as busy:
        status, text = "409 Conflict", str(busy)
    except slock_client.NoAnswerError as down:
        status, text = "503 Service Unavailable", str(down)
    start_response(status, [("Content-Type", "text/plain")])
    return [text.encode()]
