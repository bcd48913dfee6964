"""The libraries under test: how the agent of each is built and started."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from driver import known
from driver.agent import Agent

CLIENTS = Path(__file__).resolve().parents[2]


class Unavailable(Exception):
    """The agent cannot be built or started here; the text says why."""


@dataclass(frozen=True)
class Language:
    """One library, or one of the two interfaces of one."""

    name: str
    command: Callable[[bool], list[str]]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # Whether its memory transport is that of one before it.
    shares_memory: bool = False

    def build(self, optimized: bool = False) -> list[str]:
        """The command that starts the agent, which is built once; `optimized` is for measurements."""
        outcome = _outcome(self.command, optimized)
        if isinstance(outcome, Unavailable):
            raise outcome
        return outcome

    def is_available(self) -> bool:
        try:
            self.build()
        except Unavailable:
            return False
        return True

    def agent(self, optimized: bool = False) -> Agent:
        """A new agent. Raises `Unavailable`."""
        return Agent(self.name, self.build(optimized), self.defaults)


@functools.cache
def _outcome(command: Callable[[bool], list[str]], optimized: bool) -> list[str] | Unavailable:
    try:
        return command(optimized)
    except Unavailable as reason:
        return reason


def _python(_: bool) -> list[str]:
    agent = CLIENTS / "python/conformance_agent.py"
    if not agent.exists():
        raise Unavailable("clients/python has no agent")
    return [sys.executable, str(agent)]


def _rust(optimized: bool) -> list[str]:
    if not list(CLIENTS.glob("rust/examples/conformance_agent*")):
        raise Unavailable("clients/rust has no agent")
    if not shutil.which("cargo"):
        raise Unavailable("cargo is not installed")
    build = ["cargo", "build", "--example", "conformance_agent", "--message-format=json"]
    build += ["--release"] if optimized else []
    messages = _run(build, CLIENTS.parent).splitlines()
    built = [json.loads(line).get("executable") for line in messages if line.startswith("{")]
    return [next(path for path in reversed(built) if path)]


def _go(_: bool) -> list[str]:
    return [_go_agent("go", "./internal/agent/goredis")]


def _rueidis(base: str, optimized: bool) -> list[str]:
    _is_asked_for(optimized)
    return [_go_agent("go/rueidis", "./agent"), base]


@functools.cache
def _go_agent(module: str, package: str) -> str:
    if not (CLIENTS / module / package).exists():
        raise Unavailable(f"clients/{module} has no agent")
    if not shutil.which("go"):
        raise Unavailable("go is not installed")
    binary = Path(_builds().name) / module.replace("/", "-")
    _run(["go", "build", "-o", str(binary), package], CLIENTS / module)
    return str(binary)


def _is_asked_for(optimized: bool) -> None:
    if not optimized and "SLOCK_ALL_LIBRARIES" not in os.environ:
        raise Unavailable(
            "Node, Java, rueidis and valkey-go are tested if SLOCK_ALL_LIBRARIES is set: "
            "scripts/test-clients others"
        )


def _node(base: str, optimized: bool) -> list[str]:
    _is_asked_for(optimized)
    _run([str(CLIENTS.parent / "scripts/node-library")], CLIENTS.parent)
    return ["node", str(CLIENTS / "node/conformance_agent.mjs"), base]


def _java(base: str, optimized: bool) -> list[str]:
    if not (CLIENTS / "java/agent").exists():
        raise Unavailable("clients/java has no agent")
    _is_asked_for(optimized)
    if not shutil.which("javac") or not shutil.which("mvn"):
        raise Unavailable("javac and mvn are not installed")
    # It starts soon, and what is measured is compiled well.
    soon = [] if optimized else ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k"]
    return ["java", *soon, "-Xmx256m", "-cp", _java_classes(), "example.slock.agent.Agent", base]


@functools.cache
def _java_classes() -> str:
    """The class path of the agent. Maven runs without a network where it has all that it needs."""
    return _run([str(CLIENTS / "java/build-agent")], CLIENTS / "java").strip()


@functools.cache
def _builds() -> tempfile.TemporaryDirectory[str]:
    """A folder that is removed when the tests end."""
    return tempfile.TemporaryDirectory(prefix="slock-agents-")


def _run(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{' '.join(command[:2])} failed: {done.stdout[-500:]}{done.stderr[-2000:]}")
    return done.stdout


LANGUAGES = {
    language.name: language
    for language in (
        Language("python-asyncio", _python, {"api": "asyncio"}),
        Language("python-sync", _python, {"api": "sync"}),
        # Commands can go over a connection of the program's: multiplexed, or manager.
        Language("rust", _rust, {"api": os.environ.get("SLOCK_RUST_API", "client")}),
        Language("go", _go),
        Language("rueidis", partial(_rueidis, "rueidis"), shares_memory=True),
        Language("valkey-go", partial(_rueidis, "valkey-go"), shares_memory=True),
        Language("node-redis", partial(_node, "node-redis")),
        Language("ioredis", partial(_node, "ioredis"), shares_memory=True),
        Language("lettuce", partial(_java, "lettuce")),
        Language("jedis", partial(_java, "jedis"), shares_memory=True),
    )
}


def each_language(test: str) -> list[Any]:
    """The names of all languages, for a test that some may be known to fail."""
    return [pytest.param(name, id=name, marks=known.marks(name, test)) for name in LANGUAGES]


def require(name: str) -> Language:
    """A language whose agent is to be had here; else the test is skipped with the reason."""
    try:
        LANGUAGES[name].build()
    except Unavailable as reason:
        pytest.skip(str(reason))
    return LANGUAGES[name]
