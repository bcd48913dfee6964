"""The documentation as something that can be run: its fenced blocks, and sessions with a server among them.

docs/README.md says how a session is written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
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
ANSWERED_NOW = "..."
MORE_LINES = "..."


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


class SessionError(AssertionError):
    """A reply is not what the page says."""


@dataclass(frozen=True)
class Step:
    line: int
    who: str
    command: str
    expected: list[str]


def steps(block: Block) -> Iterator[Step]:
    who = command = None
    expected: list[str] = []
    at = 0
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        prompt = PROMPT.fullmatch(line)
        if prompt or line.startswith("#") or not line.strip():
            if who is not None:
                yield Step(at, who, command, expected)
            who, expected = None, []
            if LATER.fullmatch(line):
                yield Step(number, "", line, [])
            if prompt:
                who, command, at = prompt["who"], prompt["command"], number
        elif who is None:
            raise SessionError(f"{block.path}:{number}: a reply without a command: {line}")
        else:
            expected.append(line)
    if who is not None:
        yield Step(at, who, command, expected)


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
        for step in steps(self.block):
            try:
                self._play(step)
            except (AssertionError, OSError, ValueError) as problem:
                raise SessionError(f"{self.block.path}:{step.line}: {step.command}\n{problem}") from problem
        if self.waiting:
            raise SessionError(f"{self.block}: {self.waiting} still wait at the end")

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()

    def _play(self, step: Step) -> None:
        later = LATER.fullmatch(step.command)
        if later:
            client = self.server.client()
            return wait_past(client, now_ms(client) + int(later[1]))
        connection = self._connection(step.who)
        if step.command == ANSWERED_NOW:
            self.waiting.discard(step.who)
        else:
            words = [self._filled(word) for word in shlex.split(step.command)]
            self.commands[step.who] = words
            connection.send(*words)
        if step.expected == WAITS:
            self.waiting.add(step.who)
            return wait_until(self._all_blocked, 5, f"{step.who} to wait")
        printed = as_printed(connection.read(), self.commands.get(step.who, [""]))
        self._compare(printed, step.expected)

    def _connection(self, who: str) -> RawConnection:
        if who not in self.connections:
            self.connections[who] = self.server.raw(3 if "resp3" in self.block.options else 2)
        return self.connections[who]

    def _all_blocked(self) -> bool:
        return self.server.client().info("clients")["blocked_clients"] == len(self.waiting)

    def _filled(self, word: str) -> str:
        return PLACEHOLDER.sub(lambda name: str(self.values[name[1]]), word)

    def _compare(self, printed: list[str], expected: list[str]) -> None:
        told = "the page says\n  {}\nand the server\n  {}".format("\n  ".join(expected), "\n  ".join(printed))
        rest = list(printed)
        for number, line in enumerate(expected):
            if line.strip() == MORE_LINES:
                following = expected[number + 1 : number + 2]
                while rest and not (following and re.fullmatch(_pattern(following[0]), rest[0])):
                    rest.pop(0)
                continue
            assert rest, told
            self._compare_line(rest.pop(0), line, told)
        assert not rest, told

    def _compare_line(self, printed: str, line: str, told: str) -> None:
        names = PLACEHOLDER.findall(line)
        match = re.fullmatch(_pattern(line), printed)
        assert match, told
        for name, text in zip(names, match.groups(), strict=True):
            if name != ANYTHING:
                self._meet(name, int(text), told)

    def _meet(self, name: str, value: int, told: str) -> None:
        bounds = RANGE.fullmatch(name)
        if bounds:
            low, high = map(int, bounds.groups())
            assert low <= value <= high, f"{value} is not from {low} to {high}: {told}"
        elif name in self.values:
            assert value == self.values[name], f"<{name}> was {self.values[name]}: {told}"
        else:
            fences = [known for other, known in self.values.items() if other.startswith("fence")]
            if name.startswith("fence"):
                assert value > max(fences, default=0), f"<{name}> is no greater than those before: {told}"
            self.values[name] = value


def _pattern(line: str) -> str:
    """Every second part of a split line is the name of a placeholder."""
    kinds = {ANYTHING: "(.*)"}
    parts = enumerate(PLACEHOLDER.split(line))
    return "".join(kinds.get(part, r"(\d+)") if number % 2 else re.escape(part) for number, part in parts)


def as_printed(reply: Any, command: list[str]) -> list[str]:
    """The lines of a reply, in the manner of redis-cli."""
    if isinstance(reply, bytes) and command[0].upper() == "INFO":
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
    plain: Callable[[int], str] = lambda byte: chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}"  # noqa: E731
    return "".join(known.get(byte) or plain(byte) for byte in data)


# --- the syntax of a command


def syntax(name: str, docs: dict) -> str:
    """The line that COMMAND DOCS (RESP3, keys as text) describes: `SLOCK.LOCK key token ttl-ms [WAIT ms]`."""
    return " ".join([name.upper(), *(_argument(arg) for arg in docs["arguments"])])


def _argument(arg: dict) -> str:
    text = arg["name"]
    if arg["type"] == "pure-token":
        text = arg["token"]
    elif arg["type"] == "block":
        text = " ".join(_argument(inner) for inner in arg["arguments"])
    elif "token" in arg:
        text = f"{arg['token']} {text}"
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
