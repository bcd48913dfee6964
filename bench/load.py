"""The load generator (`bench/load`, in Rust) as the benchmarks use it: what is played, and who plays it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from common import Server, require, wait_until
from harness.settings import REPOSITORY
from scripts import SCRIPTS

PROGRAM = Path(os.environ.get("SLOCK_LOAD") or REPOSITORY / "target/release/slock-load")
NOTHING = Path(os.environ.get("SLOCK_SUBSCRIBER") or REPOSITORY / "target/release/libsubscriber.so")
LIMIT_S = 600


# What a case is played beside, if that matters.
WITHOUT_MODULE, NOBODY, SOMEBODY, FORMERLY = (
    "without the module",
    "nobody waits",
    "somebody waits",
    "somebody has waited",
)
# A key that is there, of another type.
OTHER_KEY = "stranger"


@dataclass(frozen=True)
class Case:
    """Commands that are played in a way of the load generator; `@name` is the digest of a script."""

    name: str
    commands: str
    way: str = "pairs"
    options: tuple[object, ...] = ()
    # A command of newer servers only, without which there is nothing to play.
    needs: str = ""
    beside: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the module has to do with it, which a competitor has not."""
        return "SLOCK." in self.commands or self.beside in (NOBODY, SOMEBODY, FORMERLY)

    @property
    def settings(self) -> dict[str, object]:
        return {"module": self.beside != WITHOUT_MODULE}

    def with_options(self, *options: object) -> Case:
        return replace(self, options=(*self.options, *options))

    def is_known_to(self, server: Server) -> bool:
        return not self.needs or server.raw().ok("COMMAND", "INFO", self.needs)[0] is not None


class Player:
    """A case that is ready to be played on a server, again and again."""

    def __init__(self, server: Server, case: Case) -> None:
        with server.raw() as control:
            words = case.commands.split(" ")
            digests = {w: control.ok("SCRIPT", "LOAD", SCRIPTS[w[1:]]).decode() for w in words if w[0] == "@"}
            if "subscriber." in case.commands:
                require(NOTHING, "cargo build --release --package slock-test-subscriber")
                control.call("MODULE", "LOAD", str(NOTHING))
        prepare(server, case.beside)
        commands = " ".join(digests.get(word, word) for word in words)
        require(PROGRAM, "cargo build --release --package slock-bench-load")
        call = [PROGRAM, server.port, case.way, commands, *case.options]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([str(word) for word in call], stdin=pipe, stdout=pipe, text=True)
        if self._answer() != "ready":
            raise SystemExit(f"{case.name}: not ready")

    def _answer(self) -> str:
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"the load generator ended with status {self._process.wait(LIMIT_S)}")
        return line

    def play(self, count: int) -> dict[str, float]:
        """So many operations: how long they took in `seconds`, and `p50_us` and `p99_us` of a step."""
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return json.loads(self._answer())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._process.stdout.close()


def prepare(server: Server, beside: str) -> None:
    """Who waits goes on waiting as long as the server runs."""
    if beside:
        server.raw().ok("SET", OTHER_KEY, "value")
    if beside in (SOMEBODY, FORMERLY):
        holder, waiter = server.raw(), server.raw()
        holder.ok("SLOCK.LOCK", "waited-for", "holder", 3_600_000)
        waiter.send("SLOCK.LOCK", "waited-for", "waiter", 3_600_000, "WAIT", 0)
        wait_until(lambda: server.client().info("slock")["slock_waiters"] == 1, what="somebody to wait")
        if beside == FORMERLY:
            holder.ok("SLOCK.UNLOCK", "waited-for", "holder")
            assert waiter.read() > 0 and waiter.ok("SLOCK.UNLOCK", "waited-for", "waiter") == 1


def play_once(server: Server, case: Case, count: int) -> dict[str, float]:
    player = Player(server, case)
    figures = player.play(count)
    player.close()
    return figures
