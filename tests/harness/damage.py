"""What must be true of locks that came from damaged payloads or random commands."""

from __future__ import annotations

import time

from harness.aof import debug_reload, rewrite_aof
from harness.locks import Info, digest
from harness.server import Server

MAX_TOKEN, MAX_META = 255, 1024


def assert_makes_sense(info: Info | None, payload: bytes) -> None:
    """One writer or some readers, each with a token of its own; or nobody who is alive."""
    if info is None:
        return
    holders, tokens = info.holders, {holder.token for holder in info.holders}
    why = f"{info} of {payload.hex()}"
    assert info.mode in ("write", "read"), why
    assert len(holders) == 1 if info.mode == "write" else len(holders) == info.readers >= 1, why
    assert len(tokens) == len(holders) and all(1 <= len(token) <= MAX_TOKEN for token in tokens), why
    assert info.fence == max(holder.fence for holder in holders) > 0, why
    assert info.pttl == max(holder.pttl for holder in holders) > 0, why
    assert all(
        holder.held_ms >= 0 and holder.fence > 0 and len(holder.meta) <= MAX_META for holder in holders
    ), why


def far_ms() -> float:
    """What does not pass while states are compared."""
    return time.time() * 1000 + 30_000


def lasting_states(server: Server, until_ms: float) -> dict[tuple[int, bytes], str]:
    """The digests of the locks whose deadlines are later, by database and key."""
    states = {}
    for number in (0, 1):
        with server.client(db=number) as client:
            for key in client.scan_iter(count=1000):
                if client.pexpiretime(key) > until_ms:
                    states[number, key] = digest(client, key)
    return states


def stored_states(server: Server, until_ms: float) -> dict[tuple[int, bytes], str]:
    """The same, after they have come back from a snapshot, from the log, and from the rewritten log."""
    states = lasting_states(server, until_ms)

    def are_as_before(where: str) -> None:
        now = lasting_states(server, until_ms)
        assert now == states, f"after {where}: {dict(now.items() ^ states.items())}"

    debug_reload(server)
    are_as_before("a snapshot")
    server.restart()
    are_as_before("the log")
    rewrite_aof(server)
    server.restart()
    are_as_before("the rewritten log")
    return states
