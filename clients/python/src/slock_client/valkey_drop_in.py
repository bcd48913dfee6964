# SPDX-License-Identifier: MIT OR Apache-2.0

"""`Lock` in place of valkey-py's, for `lock_class=slock_client.valkey_drop_in.Lock`. DROP_IN.md has the differences."""

from __future__ import annotations

from typing import Any

import valkey
import valkey.lock

from slock_client._drop_in import SyncDropIn

__all__ = ["Lock", "Valkey"]


class Lock(SyncDropIn, valkey.lock.Lock):
    """A lock of the SLOCK module with the interface of valkey-py's. It holds the lock for writing.

    Its arguments are those of valkey-py. Without a `timeout` it is renewed until it is released, or its owner ends.
    """

    _errors = valkey.exceptions


class Valkey(valkey.Valkey):
    """A client whose `lock` is of this module, for programs that cannot give a `lock_class`, such as django-redis."""

    def lock(self, *arguments: Any, lock_class: Any = None, **options: Any) -> Any:
        return super().lock(*arguments, **{"lock_class": lock_class or Lock, **options})
