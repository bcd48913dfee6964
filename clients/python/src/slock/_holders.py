"""The holders in an answer of SLOCK.INFO."""

from __future__ import annotations

from typing import Any, NamedTuple


class Holder(NamedTuple):
    """One holder of a lock."""

    mode: str
    fence: int
    metadata: str | None


def find_holder(info: Any, token: str) -> Holder | None:
    """The holder with this token; None when it holds nothing."""
    if not info:
        return None
    fields = _map(info)
    for entry in fields.get(b"holders", []):
        holder = _map(entry)
        if holder[b"token"] == token.encode():
            meta = holder.get(b"meta")
            return Holder(
                fields[b"mode"].decode(),
                int(holder[b"fence"]),
                meta.decode(errors="backslashreplace") if meta else None,
            )
    return None


def _map(flat: Any) -> dict[bytes, Any]:
    return dict(flat) if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
