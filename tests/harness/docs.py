"""The documentation as something that can be run: its fenced blocks, and sessions with a server among them.

CONTRIBUTING.md says how a session is written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.raw import RawConnection, RespError
from harness.server import Server
from harness.settings import REPOSITORY
from harness.wait import now_ms, wait_past, wait_until

DOCS = REPOSITORY / "docs"

PROMPT = re.compile(r"(?P<who>[\w.:-]+)> (?P<command>.+)")
LATER = re.compile(r"# (\d+) ms later")
RANGE = re.compile(r"(\d+)\.\.(\d+)")
PLACEHOLDER = re.compile(r"<([\w.-]+|\*)>")
ANYTHING = "*"

WAITS = ["(waits)"]
MORE = "..."


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, what follows its opening fence, and its text."""

    path: Path
    line: int
    heading: str
    language: str
    options: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(REPOSITORY)}:{self.line}"


def pages() -> list[Path]:
    return [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]


def linked_pages() -> list[Path]:
    """The pages of docs, and all others that readers meet."""
    others = [
        path
        for folder in ("bench", "cli", "clients", "tests")
        for path in (REPOSITORY / folder).rglob("*.md")
    ]
    foreign = {"node_modules", "target", ".venv"}
    return [
        *pages(),
        *(REPOSITORY / name for name in ("CONTRIBUTING.md", "CHANGELOG.md")),
        *sorted(path for path in others if not foreign & set(path.parts)),
    ]


def blocks(path: Path, language: str | None = None) -> list[Block]:
    found, heading, start, kind, lines = [], "", 0, "", []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```") and not start:
            start, kind, lines = number, line[3:].strip(), []
        elif line.startswith("```"):
            name, *options = kind.split() or [""]
            found.append(Block(path, start, heading, name, tuple(options), "\n".join(lines)))
            start = 0
        elif start:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("#").strip()
    assert not start, f"{path}: the block of line {start} does not end"
    return [block for block in found if language in (None, block.language)]


def sections(path: Path) -> dict[str, str]:
    """The text under each heading, without what stands in fenced blocks."""
    text: dict[str, str] = {}
    heading, fenced = "", False
    for line in path.read_text().splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            heading = line.lstrip("#").strip()
        text[heading] = text.get(heading, "") + line + "\n"
    return text


def table(text: str) -> list[list[str]]:
    """The cells of the tables in a text, row by row, without heads and rules."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    rules = {number for number, row in enumerate(rows) if set(row) <= set("|-: ")}
    wanted = [row for number, row in enumerate(rows) if number not in rules and number + 1 not in rules]
    return [
        [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", row.strip("|"))]
        for row in wanted
    ]


# --- sessions


@dataclass(frozen=True)
class Step:
    line: int
    who: str
    command: str
    expected: list[str]


def steps(block: Block) -> list[Step]:
    found: list[Step] = []
    has_reply = False
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        prompt = PROMPT.fullmatch(line)
        if prompt:
            found.append(Step(number, prompt["who"], prompt["command"], []))
        elif LATER.fullmatch(line):
            found.append(Step(number, "", line, []))
        elif line.strip() and not line.startswith("#"):
            assert has_reply, f"{block.path}:{number}: a reply without a command: {line}"
            found[-1].expected.append(line)
            continue
        has_reply = bool(prompt)
    return found


@dataclass
class Session:
    """Plays a block on a server: one connection for each name before a prompt."""

    server: Server
    block: Block
    connections: dict[str, RawConnection] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    values: dict[str, int] = field(default_factory=dict)

    def play(self) -> None:
        try:
            for step in steps(self.block):
                try:
                    self._play(step)
                except (AssertionError, OSError, ValueError) as problem:
                    where = f"{self.block.path}:{step.line}: {step.command}"
                    raise AssertionError(f"{where}\n{problem}") from problem
            assert not self.waiting, f"{self.block}: {self.waiting} still wait at the end"
        finally:
            for connection in self.connections.values():
                connection.close()

    def _play(self, step: Step) -> None:
        later = LATER.fullmatch(step.command)
        if later:
            client = self.server.client()
            wait_past(client, now_ms(client) + int(later[1]))
            return
        connection = self._connection(step.who)
        if step.command == MORE:
            self.waiting.discard(step.who)
        else:
            words = shlex.split(PLACEHOLDER.sub(lambda name: str(self.values[name[1]]), step.command))
            self.commands[step.who] = words
            connection.send(*words)
        if step.expected == WAITS:
            self.waiting.add(step.who)
            wait_until(lambda: connection.has_reply() or self._all_blocked(), 5, f"{step.who} to wait")
            assert not connection.has_reply(), f"it does not wait: {connection.read()!r}"
            return
        printed = as_printed(connection.read(), self.commands.get(step.who, [""]))
        self._compare(printed, step.expected)

    def _all_blocked(self) -> bool:
        return self.server.client().info("clients")["blocked_clients"] == len(self.waiting)

    def _connection(self, who: str) -> RawConnection:
        if who not in self.connections:
            self.connections[who] = self.server.raw(3 if "resp3" in self.block.options else 2)
        return self.connections[who]

    def _compare(self, printed: list[str], expected: list[str]) -> None:
        told = "the page says\n  {}\nand the server\n  {}".format("\n  ".join(expected), "\n  ".join(printed))
        rest = list(printed)
        for number, line in enumerate(expected):
            if line.strip() == MORE:
                following = expected[number + 1 : number + 2]
                while rest and not (following and re.fullmatch(_pattern(following[0]), rest[0])):
                    rest.pop(0)
                continue
            assert rest, told
            self._compare_line(rest.pop(0), line, told)
        assert not rest, told

    def _compare_line(self, printed: str, line: str, told: str) -> None:
        match = re.fullmatch(_pattern(line), printed)
        assert match, told
        for name, text in zip(PLACEHOLDER.findall(line), match.groups(), strict=True):
            if name != ANYTHING:
                self._meet(name, int(text), told)

    def _meet(self, name: str, value: int, told: str) -> None:
        bounds = RANGE.fullmatch(name)
        if bounds:
            assert int(bounds[1]) <= value <= int(bounds[2]), f"{value} is not {name}: {told}"
            return
        known = self.values.setdefault(name, value)
        assert value == known, f"<{name}> was {known}: {told}"
        fences = [fence for other, fence in self.values.items() if other.startswith("fence")]
        assert fences == sorted(set(fences)), f"<{name}> is no greater than those before: {told}"


def _pattern(line: str) -> str:
    """Every second part of a split line is the name of a placeholder."""
    kinds = {ANYTHING: "(.*)"}
    parts = enumerate(PLACEHOLDER.split(line))
    return "".join(kinds.get(part, r"(\d+)") if number % 2 else re.escape(part) for number, part in parts)


def as_printed(reply: Any, command: list[str]) -> list[str]:
    """The lines of a reply, in the manner of redis-cli."""
    if isinstance(reply, bytes) and " ".join(command[:2]).upper().startswith(("INFO", "CLIENT LIST")):
        return [line for line in reply.decode().splitlines() if line]
    match reply:
        case None:
            return ["(nil)"]
        case RespError():
            return [f"(error) {reply.text}"]
        case int():
            return [f"(integer) {reply}"]
        case b"OK" | b"QUEUED" | b"SLOCK-RWL":
            return [reply.decode()]
        case bytes():
            return [f'"{_escaped(reply)}"']
        case dict():
            fields = enumerate(reply.items(), 1)
            return _nested(
                (f"{number}# {as_printed(name, [''])[0]} => ", value) for number, (name, value) in fields
            )
        case list():
            width = len(str(len(reply)))
            return _nested((f"{number:>{width}}) ", value) for number, value in enumerate(reply, 1))
    raise AssertionError(f"what is {reply!r}?")


def _nested(items: Iterable[tuple[str, Any]]) -> list[str]:
    lines: list[str] = []
    for head, value in items:
        first, *rest = as_printed(value, [""])
        lines += [head + first, *(" " * len(head) + line for line in rest)]
    return lines or ["(empty array)"]


def _escaped(data: bytes) -> str:
    known = {ord('"'): r"\"", ord("\\"): r"\\", 10: r"\n", 13: r"\r", 9: r"\t", 7: r"\a", 8: r"\b"}
    plain = {byte: chr(byte) for byte in range(32, 127)}
    return "".join({**plain, **known}.get(byte, f"\\x{byte:02x}") for byte in data)


# --- the syntax of a command


def syntax(name: str, docs: dict) -> str:
    """The line that COMMAND DOCS (RESP3, keys as text) describes: `SLOCK.LOCK key token ttl-ms [WAIT ms]`."""
    return " ".join([name.upper(), *(_argument(arg) for arg in docs["arguments"])])


def _argument(arg: dict) -> str:
    text = arg["name"]
    if arg["type"] == "pure-token":
        text = ""
    elif arg["type"] == "block":
        text = " ".join(_argument(inner) for inner in arg["arguments"])
    text = f"{arg.get('token', '')} {text}".strip()
    flags = arg.get("flags", [])
    if "multiple" in flags:
        text = f"{text} [{text} ...]"
    return f"[{text}]" if "optional" in flags else text


def arity(line: str) -> int:
    """What COMMAND INFO should say of a command with this syntax."""
    depth, required, may_repeat = 0, 0, False
    for word in line.replace("[", " [ ").replace("]", " ] ").split():
        depth += (word == "[") - (word == "]")
        may_repeat |= word == "["
        required += word not in "[]" and depth == 0
    return -required if may_repeat else required
