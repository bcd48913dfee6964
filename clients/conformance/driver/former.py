"""The protocol of libraries that have not moved to the one of today. It goes with the last of them."""

from __future__ import annotations

from typing import Any

_OPS = {"detach": "hand_over"}
_FIELDS = {"max_hold_ms": "longest_lease_ms"}
_ANSWERS = {"valid_ms": "remaining_ms"}


def request(op: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"op": _OPS.get(op, op), **{_FIELDS.get(name, name): value for name, value in fields.items()}}


def answer(op: str, line: dict[str, Any]) -> dict[str, Any]:
    if line.get("error") == "Other" and "REFUSED" in line["text"]:
        return {**line, "error": "Refused"}
    if op == "release" and line.get("ok") == {"released": True}:
        return {"ok": {}}
    if "ok" in line:
        return {"ok": {_ANSWERS.get(name, name): value for name, value in line["ok"].items()}}
    return line
