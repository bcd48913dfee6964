"""The module says at load which of the server's calls are missing. So it has to know all that it makes."""

from __future__ import annotations

import re

from harness.settings import REPOSITORY

SERVER = REPOSITORY / "src/server"


def test_the_required_calls_are_those_that_are_made() -> None:
    code = "".join(file.read_text() for file in sorted(SERVER.rglob("*.rs")))
    made = set(re.findall(r"\bapi!\(\s*RedisModule_(\w+)", code))
    listing = (SERVER / "compat.rs").read_text().split('const REQUIRED: &str = "')[1].split('"')[0]
    assert set(listing.split()) == made - {"GetApi"}
    assert len(made) > 50
