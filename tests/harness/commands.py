"""The commands as the server describes them (COMMAND INFO and DOCS), and a call of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from harness.raw import Argument
from harness.server import Server
from harness.settings import REPOSITORY

# What has a page: that these are the commands of the server is tests/test_docs.py's to show.
NAMES = sorted(page.stem for page in (REPOSITORY / "docs/commands").glob("*.md"))

INTERNAL = "slock.apply"

VALUES = {"token": "me", "ttl-ms": 3_600_000, "fence": 7, "change": "RELEASE 0 me"}


class Command(NamedTuple):
    name: str
    info: list[Any]
    docs: dict[str, Any]

    @property
    def arity(self) -> int:
        return self.info[1]

    @property
    def flags(self) -> set[str]:
        return set(self.info[2])

    @property
    def categories(self) -> set[str]:
        return set(self.info[6])

    @property
    def required(self) -> list[str]:
        """The names of the arguments that each call has."""
        return [arg["name"] for arg in self.docs["arguments"] if "optional" not in arg.get("flags", ())]

    @property
    def options(self) -> set[str]:
        return set(_words(self.docs["arguments"]))

    @property
    def takes_many(self) -> bool:
        return "numkeys" in self.required

    def call(self, *keys: Argument, **values: Argument) -> tuple[Argument, ...]:
        """The shortest call for these keys; `token="me"`, `ttl_ms=5` and so on where the command has them."""
        given = {"numkeys": len(keys), **VALUES} | {name.replace("_", "-"): values[name] for name in values}
        words = [keys if name == "key" else (given[name],) for name in self.required]
        return (self.name.upper(), *(word for some in words for word in some))


def _words(arguments: list[dict[str, Any]]) -> Iterator[str]:
    """The words of options, and of options within them."""
    for argument in arguments:
        yield from [argument["token"]] if "token" in argument else []
        yield from _words(argument.get("arguments", []))


def commands(server: Server) -> dict[str, Command]:
    """Every command of the module but the internal one."""
    with server.raw(protocol=3) as raw:
        names = [name for name in as_text(raw.ok("COMMAND", "LIST", "FILTERBY", "MODULE", "slock"))]
        docs, infos = as_text(raw.ok("COMMAND", "DOCS", *names)), as_text(raw.ok("COMMAND", "INFO", *names))
    assert names and {*names} == {*docs}
    found = {info[0]: Command(info[0], info, docs[info[0]]) for info in infos}
    del found[INTERNAL]
    return found


def as_text(value: Any) -> Any:
    """A reply with text in the place of bytes."""
    match value:
        case bytes():
            return value.decode()
        case dict():
            return {as_text(key): as_text(item) for key, item in value.items()}
        case list():
            return [as_text(item) for item in value]
    return value
