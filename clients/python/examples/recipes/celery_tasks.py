"""Locks in tasks of Celery.

    REDIS_URL=redis://localhost:6379 celery --app celery_tasks worker

One `Locks` for the module serves all workers. A soft time limit, a retry or a warm shutdown ends the block, and so the
lock. A hard time limit kills the process: then the lock ends by its ttl.
"""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

import slock_client

URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
app = Celery("tasks", broker=URL, backend=URL)
locks = slock_client.Locks(redis.Redis.from_url(URL), prefix="tasks:", ttl=3)


@app.task(bind=True, max_retries=None)
def import_shop(self: Any, shop: str, duration: float) -> str:
    """Imports of one shop do not overlap: while one runs, another is tried again later and takes no worker."""
    hold = locks.write(f"import:{shop}").try_acquire()
    if hold is None:
        raise self.retry(countdown=0.2)
    with hold:
        time.sleep(duration)  # the work; for a long one, call hold.check() in between
        return f"imported {shop}"


@app.task
def report(day: str) -> str:
    """Runs once for a day, even if the clocks of several schedulers differ by a minute."""
    hold = locks.write(f"report:{day}", at_least=60).try_acquire()
    if hold is None:
        return "another worker has it"
    with hold:
        return "reported"


@app.task(soft_time_limit=1, time_limit=30)
def slow() -> str:
    """The soft limit is raised at any moment, also while it waits for the lock or releases it."""
    try:
        with locks.write("slow"):
            time.sleep(20)
    except SoftTimeLimitExceeded:
        return "stopped"
    return "done"


@app.task(time_limit=1, acks_late=False)
def stuck() -> None:
    """The hard limit kills the process. The lock ends by its ttl."""
    with locks.write("stuck"):
        time.sleep(20)
