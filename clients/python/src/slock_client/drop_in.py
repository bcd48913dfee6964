# SPDX-License-Identifier: MIT OR Apache-2.0

"""`Lock` in place of redis-py's, for `lock_class=slock_client.drop_in.Lock`. DROP_IN.md has the differences."""

from __future__ import annotations

from typing import Any

import redis
import redis.lock

from slock_client._drop_in import SyncDropIn

__all__ = ["Lock", "Redis"]


class Lock(SyncDropIn, redis.lock.Lock):
    """A lock of the SLOCK module with the interface of redis-py's. It holds the lock for writing.

    Its arguments are those of redis-py. Without a `timeout` it is renewed until it is released, or its owner ends.
    """

    _errors = redis.exceptions


class Redis(redis.Redis):
    """A client whose `lock` is of this module, for programs that cannot give a `lock_class`, such as django-redis."""

    def lock(self, *arguments: Any, lock_class: Any = None, **options: Any) -> Any:
        return super().lock(*arguments, **{"lock_class": lock_class or Lock, **options})
