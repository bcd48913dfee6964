"""Makes the synchronous half of the Python library from the asyncio half.

    python scripts/synchronous.py            writes the files
    python scripts/synchronous.py --check    fails when they are not what it would write

A coroutine becomes a function that blocks. What differs by nature is written by hand, under the same names:
tasks and threads, connections, and blocks under a hold (`HANDWRITTEN`).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "clients/python/src/slock_client"
RUFF = Path(sys.executable).parent / "ruff"

# The files of the asyncio half that have a counterpart in threads.
HANDWRITTEN = {"_tasks": "_threads", "_connection": "_thread_connection", "_guard": "_thread_guard"}
# Only asyncio has these.
LEFT_OUT = {"__init__", "_listener"}

WORDS = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\bAwaitable\[([^\]]+)\]", r"\1"),
    (r"\bCoroutine\[Any, Any, ([^\]]+)\]", r"\1"),
    *((rf"slock_client\.asyncio\.{old}\b", f"slock_client.{new}") for old, new in HANDWRITTEN.items()),
    (r"slock_client\.asyncio import _tasks\b", "slock_client import _threads"),
    (r"slock_client\.asyncio\.drop_in\b", "slock_client.drop_in"),
    (r"\bslock_client\.asyncio\b", "slock_client._sync"),
    (r"\bredis\.asyncio\b", "redis"),
]

# Where the halves differ: what stands in a file, and what it becomes.
DIFFERENCES = {
    "_locks.py": [
        ("from slock_client.asyncio._listener import Listening\n", ""),
        ('Listening(servers) if waiting == "notify" else None', "None"),
    ],
    "drop_in.py": [
        (
            "self, blocking: bool | None = None",
            "self, sleep: float | None = None, blocking: bool | None = None",
        ),
    ],
}


def synchronous(source: Path) -> str:
    text = source.read_text()
    for old, new in DIFFERENCES.get(source.name, []):
        if old not in text:
            sys.exit(f"{source}: {old!r} is not there any more: change DIFFERENCES")
        text = text.replace(old, new)
    for old, new in WORDS:
        text = re.sub(old, new, text)
    note = f"# Made from {source.relative_to(PACKAGE)} by scripts/synchronous.py: change it there.\n"
    return formatted(note + text)


def formatted(text: str) -> str:
    for arguments in (["check", "--select", "I,F401", "--fix-only", "-q", "-"], ["format", "-q", "-"]):
        command = [str(RUFF), arguments[0], "--stdin-filename", "made.py", *arguments[1:]]
        text = subprocess.run(
            command, input=text, cwd=PACKAGE.parents[1], capture_output=True, text=True, check=True
        ).stdout
    return text


def main() -> int:
    made = {PACKAGE / "_sync/__init__.py": '"""The synchronous half, made by scripts/synchronous.py."""\n'}
    for source in sorted((PACKAGE / "asyncio").glob("*.py")):
        if source.stem not in {*HANDWRITTEN, *LEFT_OUT}:
            target = PACKAGE / ("drop_in.py" if source.stem == "drop_in" else f"_sync/{source.name}")
            made[target] = synchronous(source)
    if "--check" not in sys.argv:
        for target, text in made.items():
            target.write_text(text)
        return 0
    wrong = [target for target, text in made.items() if not target.exists() or target.read_text() != text]
    wrong += [file for file in (PACKAGE / "_sync").glob("*.py") if file not in made]
    for file in wrong:
        print(f"{file.relative_to(ROOT)} is not what scripts/synchronous.py makes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
