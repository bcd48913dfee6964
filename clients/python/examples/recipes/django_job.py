"""Locks in Django with django-redis: `cache.lock` is one of the module, and a job runs on one machine at a time.

REDIS_URL=redis://localhost:6379 python django_job.py
"""

from __future__ import annotations

import os

import django
from django.conf import settings
from django.core.cache import cache

import slock_client.drop_in

settings.configure(
    CACHES={
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": os.environ.get("REDIS_URL", "redis://localhost:6379"),
            "OPTIONS": {"REDIS_CLIENT_CLASS": "slock_client.drop_in.Redis"},
        }
    }
)
django.setup()


def nightly() -> str:
    """The body of a management command."""
    lock = cache.lock("nightly")  # without a timeout it is renewed
    if not lock.acquire(blocking=False):
        return "it runs elsewhere"
    with cache.lock("other", timeout=10, blocking_timeout=5):
        assert isinstance(lock, slock_client.drop_in.Lock)
    lock.release()
    return "done"


if __name__ == "__main__":
    print(nightly())
