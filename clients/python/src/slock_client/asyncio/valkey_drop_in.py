# SPDX-License-Identifier: MIT OR Apache-2.0

"""`Lock` in place of that of `valkey.asyncio`, for `lock_class=slock_client.asyncio.valkey_drop_in.Lock`."""

from __future__ import annotations

import valkey.asyncio.lock

from slock_client._drop_in import AsyncDropIn

__all__ = ["Lock"]


class Lock(AsyncDropIn, valkey.asyncio.lock.Lock):
    """A lock of the SLOCK module with the interface of valkey-py's. It holds the lock for writing.

    Its arguments are those of valkey-py. Without a `timeout` it is renewed until it is released, or its owner ends.
    """

    _errors = valkey.exceptions
