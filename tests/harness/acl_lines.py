"""The users of redis.conf.example and docs/operating.md: the words that follow `user name` in their lines."""

from __future__ import annotations

import re
from typing import Any

from harness.commands import as_text
from harness.docs import DOCS, blocks
from harness.raw import RawConnection, RespError
from harness.settings import REPOSITORY

_LINE = re.compile(r"^(?:# )?user (\w+) (.+)$", re.MULTILINE)

# These may be run by everybody.
_WITHOUT_PERMISSION = "no_auth"


def example_lines() -> dict[str, str]:
    return dict(_LINE.findall((REPOSITORY / "redis.conf.example").read_text()))


def page_lines() -> dict[str, str]:
    text = "\n".join(block.text for block in blocks(DOCS / "operating.md", "conf"))
    return dict(_LINE.findall(text))


def add_user(raw: RawConnection, name: str) -> None:
    raw.ok("ACL", "SETUSER", name, *example_lines()[name].split())


def given(name: str) -> set[str]:
    """The commands that its line gives to a user."""
    return {word[1:] for word in example_lines()[name].split() if word.startswith("+")}


def allowed(raw: RawConnection, name: str) -> set[str]:
    """The commands of the server, and subcommands as `client|list`, that a user may run."""
    every = [info for info in _infos(as_text(raw.ok("COMMAND"))) if _WITHOUT_PERMISSION not in info[2]]
    # A call of each, long enough. Its keys do not matter: the server looks at the command first.
    calls = [("ACL", "DRYRUN", name, *info[0].split("|"), *["1"] * _missing(info)) for info in every]
    replies = raw.pipeline(calls)
    assert not [reply for reply in replies if isinstance(reply, RespError)], replies
    return {
        info[0] for info, reply in zip(every, replies, strict=True) if b"no permissions to run" not in reply
    }


def _infos(commands: list[list[Any]]) -> list[list[Any]]:
    """Of those with subcommands, these instead."""
    return [one for info in commands for one in (_infos(info[9]) or [info])]


def _missing(info: list[Any]) -> int:
    return abs(info[1]) - len(info[0].split("|"))
