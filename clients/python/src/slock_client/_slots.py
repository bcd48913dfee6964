"""Which node of a cluster serves which key."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from redis.crc import key_slot

from slock_client._commands import Key

Address = tuple[str, int]


def owners_of(reply: Any, asked: Address, remap: Callable[[str, int], Address]) -> dict[int, Address]:
    """The owner of each slot, in the answer of CLUSTER SLOTS by the node at `asked`.

    `remap` gives where a node is reached.
    """
    owners: dict[int, Address] = {}
    for first, last, primary, *_ in reply:
        host = primary[0].decode() if primary[0] else ""
        address = remap(host, int(primary[1])) if host not in ("", "?") else (asked[0], int(primary[1]))
        owners.update(dict.fromkeys(range(first, last + 1), address))
    return owners


def slot_of(key: Key) -> int:
    """The hash slot of a key."""
    return int(key_slot(key.encode() if isinstance(key, str) else key))


def hash_tag(key: Key) -> bytes:
    """What to put into braces so that a name hashes to the slot of `key`."""
    name = key.encode() if isinstance(key, str) else key
    found = re.match(rb"[^{]*\{([^}]+)\}", name)
    if found is not None:
        return found[1]
    if b"}" not in name and name:
        return name
    # Such a name is hashed as a whole but does not fit into braces. Some number has the same slot.
    slot, number = key_slot(name), 0
    while key_slot(b"%d" % number) != slot:
        number += 1
    return b"%d" % number
