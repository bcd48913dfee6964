"""What a scenario expects of an answer, and the values that it has noted.

In what is expected, an object need not name all fields of the answer. Of texts, some have a meaning:

- `$h.fence`: a value that was noted; as part of a longer text `{$h.fence}`
- `>0`, `>=$h.fence`, `<5000`, `!=$h.token`, `1..5000`: compared
- `~cycle`, `!~cycle`: contains, or not
- `*`: anything but null
- `{"any": [...]}`: one of these
- `{"has": [...]}`: a list with these among its elements, in any order
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any

from harness import rounds

Values = Mapping[str, Any]

_COMPARISONS = {">=": operator.ge, "<=": operator.le, "!=": operator.ne, ">": operator.gt, "<": operator.lt}
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_REFERENCE = re.compile(r"\$[\w.-]+")
_PART = re.compile(r"\{(\$[\w.-]+)\}")


def resolve(written: Any, values: Values) -> Any:
    """What a scenario has written, with its references replaced; `{"rounds": [short, full]}` is a number."""
    if isinstance(written, dict):
        if set(written) == {"rounds"}:
            return rounds(*written["rounds"])
        return {name: resolve(value, values) for name, value in written.items()}
    if isinstance(written, list):
        return [resolve(value, values) for value in written]
    if isinstance(written, str):
        if _REFERENCE.fullmatch(written):
            return _look_up(written, values)
        return _PART.sub(lambda part: str(_look_up(part[1], values)), written)
    return written


def mismatch(expected: Any, actual: Any, values: Values, where: str = "answer") -> str:
    """What is not as expected, or nothing."""
    if isinstance(expected, dict) and set(expected) == {"any"}:
        problems = [mismatch(one, actual, values, where) for one in expected["any"]]
        return "" if "" in problems else "; ".join(problems)
    if isinstance(expected, dict) and set(expected) == {"has"}:
        lacking = [e for e in expected["has"] if all(mismatch(e, one, values) for one in actual)]
        return f"{where} is {actual!r} and lacks {lacking}" if lacking else ""
    if isinstance(expected, dict) and set(expected) != {"rounds"}:
        if not isinstance(actual, dict):
            return f"{where} is {actual!r} and should have fields"
        problems = [
            mismatch(value, actual.get(name), values, f"{where}.{name}") for name, value in expected.items()
        ]
        return "; ".join(filter(None, problems))
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return f"{where} is {actual!r} and should have {len(expected)} elements"
        pairs = enumerate(zip(expected, actual, strict=True))
        return "; ".join(filter(None, (mismatch(e, a, values, f"{where}.{n}") for n, (e, a) in pairs)))
    if isinstance(expected, str) and not _REFERENCE.fullmatch(expected):
        return "" if _text_matches(expected, actual, values) else f"{where} is {actual!r}, not {expected}"
    wanted = resolve(expected, values)
    return "" if wanted == actual else f"{where} is {actual!r}, not {wanted!r}"


def _text_matches(expected: str, actual: Any, values: Values) -> bool:
    if expected.startswith("!~"):
        return not _text_matches(expected[1:], actual, values)
    for sign, holds in _COMPARISONS.items():
        if expected.startswith(sign):
            other = resolve(expected[len(sign) :], values)
            if isinstance(actual, (int, float)):
                return holds(actual, float(other) if isinstance(other, str) else other)
            return sign == "!=" and actual != other
    if found := _RANGE.fullmatch(expected):
        return isinstance(actual, (int, float)) and int(found[1]) <= actual <= int(found[2])
    if expected.startswith("~"):
        return isinstance(actual, str) and resolve(expected[1:], values).lower() in actual.lower()
    if expected == "*":
        return actual is not None
    return resolve(expected, values) == actual


def _look_up(reference: str, values: Values) -> Any:
    name, *path = reference[1:].split(".")
    value = values[name]
    for part in path:
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value
