"""Clients in processes of their own that use locks at random, and write down what they are told.

`Crowd` starts and ends the processes, and reads what they wrote as calls of `harness.histories`. Each line is
written at once, so that a process that is killed leaves what it had sent. Names change every few seconds, so
that the history of each is short; all holds end by themselves soon.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from harness.lock_model import MS, Call, Times
from harness.raw import RawConnection, RespError

THREADS = 6
GROUPS = 4
NAMES_CHANGE_S = 2
LONG_MS = 3000

# No wait and no fault lasts so long: who has heard nothing was forgotten.
NEVER_S = 60.0
# How long what was sent on a lost connection may still be carried out by a server that works.
STILL_ARRIVES = 2_000 * MS

SEVERAL = {"LOCK": "MLOCK", "RLOCK": "MRLOCK", "EXTEND": "MEXTEND", "PTTL": "MPTTL"}


class Gone(Exception):
    """The connection was lost before the reply."""


def now() -> int:
    return time.monotonic_ns() // 1000


class Log:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._numbers = count()

    def called(self, **call: object) -> int:
        number = next(self._numbers)
        self.note("called", number, call)
        return number

    def note(self, what: str, number: int, value: object = None) -> None:
        os.write(self._file, json.dumps([what, number, now(), value]).encode() + b"\n")


class Client(threading.Thread):
    """Some wait by NOTIFY, some as a blocked client."""

    def __init__(self, name: str, log: Log, ports: Sequence[int], end: threading.Event, seed: int) -> None:
        super().__init__(daemon=True)
        self.label, self.log, self.ports, self.end = name, log, list(ports), end
        self.chance = random.Random(f"{seed} {name}")
        self.is_notified = self.chance.random() < 0.5
        self.connection: RawConnection | None = None

    def run(self) -> None:
        for turn in count():
            if self.end.is_set():
                break
            try:
                self._turn(f"{self.label}.{turn}")
            except Gone:
                continue
            self.end.wait(self.chance.choice([0, 0, 0.002, 0.01]))

    def _turn(self, token: str) -> None:
        chance = self.chance
        group = f"{int(time.monotonic() / NAMES_CHANGE_S)}:{chance.randrange(GROUPS)}"
        both = [f"{group}:0", f"{group}:1"]
        keys = both if chance.random() < 0.15 else [chance.choice(both)]
        mode = chance.choice(["LOCK", "RLOCK"])
        ttl = chance.choice([2, 10, 50, LONG_MS, LONG_MS, LONG_MS])
        wait = chance.choice([None, None, 0, 5, 50, 1500])
        limit = chance.choice([0, 0, 1, 3]) if mode == "RLOCK" else 0
        try:
            fence = self._ask(mode, keys, token, ttl_ms=ttl, wait_ms=wait, limit=limit)
            if not isinstance(fence, int) or not fence:
                self.end.wait(0 if fence == 0 else 0.02)  # an error comes back at once for a while
                return
            for _ in range(chance.randrange(4)):
                if len(keys) == 1 and chance.random() < 0.3:
                    mode, fence = self._other_mode(mode, keys, token, fence)
                else:
                    self._look_or_extend(mode, keys, token, fence)
            if ttl < LONG_MS and chance.random() < 0.5:
                return
            meant = chance.choice([0, fence])
            release = "MUNLOCK" if len(keys) > 1 else "UNLOCK" if mode == "LOCK" else "RUNLOCK"
            self._ask(release, keys, token, fence=meant)
        except Gone:
            if chance.random() < 0.5:
                self._ask(mode, keys, token, ttl_ms=ttl)
            self._ask("MUNLOCK", keys, token)

    def _other_mode(self, mode: str, keys: list[str], token: str, fence: int) -> tuple[str, int]:
        ttl, meant = self.chance.choice([10, LONG_MS]), self.chance.choice([0, fence])
        if mode == "LOCK":
            reply, other = self._ask("DOWNGRADE", keys, token, ttl_ms=ttl, fence=meant), "RLOCK"
        else:
            wait = self.chance.choice([None, 5, 200])
            reply, other = self._ask("UPGRADE", keys, token, ttl_ms=ttl, wait_ms=wait, fence=meant), "LOCK"
        return (other, reply) if isinstance(reply, int) and reply else (mode, fence)

    def _look_or_extend(self, mode: str, keys: list[str], token: str, fence: int) -> None:
        what, ttl = self.chance.randrange(5), self.chance.choice([5, 60, LONG_MS])
        if what == 0:
            self._ask("PTTL", keys, token)
        elif what == 1:
            self._ask("CHECK", keys[:1], token, fence=fence)
        elif what == 2:
            self._ask(mode, keys, token, ttl_ms=ttl)
        else:
            is_gt, meant = self.chance.random() < 0.5, self.chance.choice([0, fence])
            self._ask("EXTEND", keys, token, ttl_ms=ttl, is_gt=is_gt, fence=meant)

    # --- the connection

    def _connect(self) -> RawConnection:
        while not self.end.is_set():
            try:
                connection = RawConnection(self.ports[0], timeout=NEVER_S)
                connection.hello(3)
                if connection.call("ROLE")[0] != b"master":
                    raise ConnectionError("a replica")
                self.channel = f"{self.label}-{now()}"
                if self.is_notified:
                    connection.ok("SSUBSCRIBE", self.channel)
                return connection
            except (OSError, AssertionError, TypeError):  # it may be loading, too
                self.end.wait(0.02)
                self.ports.reverse()
        raise Gone

    def _ask(self, name: str, keys: list[str], token: str, **options: Any) -> int | str:
        """The integer, or the code of the error; for a request with NOTIFY what its message says."""
        if self.connection is None:
            self.connection = self._connect()
        number = self.log.called(name=name, keys=keys, token=token, **options)
        self.unanswered = [number]
        try:
            self.connection.send(*self._words(name, keys, token, number, **options))
            reply = self._read()
            if reply is None:
                self.log.note("waits", number)
                reply = self._message(keys, token, number)
        except (OSError, AssertionError) as problem:
            for one in self.unanswered:
                self.log.note("forgotten" if isinstance(problem, TimeoutError) else "lost", one)
            self._leave()
            raise Gone from None
        self.log.note("told", number, reply)
        if reply in ("READONLY", "LOADING", "MASTERDOWN", "NOSUBSCRIBER"):
            self._leave()
        return reply

    def _words(self, name: str, keys: list[str], token: str, number: int, **options: Any) -> list[Any]:
        is_many = len(keys) > 1 or name == "MUNLOCK"
        words = [f"SLOCK.{SEVERAL.get(name, name) if is_many else name}"]
        words += [len(keys), *keys] if is_many else keys
        if name == "CHECK":
            return [*words, options["fence"]]
        words += [token, *([options["ttl_ms"]] if "ttl_ms" in options else [])]
        if options.get("wait_ms") is not None:
            words += ["WAIT", options["wait_ms"]]
            words += ["NOTIFY", self.channel, number] if self.is_notified else []
        words += ["LIMIT", options["limit"]] if options.get("limit") else []
        words += ["GT"] if options.get("is_gt") else []
        return words + (["FENCE", options["fence"]] if options.get("fence") else [])

    def _read(self) -> Any:
        reply = self.connection.read()
        return reply.prefix if isinstance(reply, RespError) else reply

    def _message(self, keys: list[str], token: str, number: int) -> int | str:
        """Sometimes the request is cancelled; then the message comes before the reply to that."""
        cancel = None
        if self.chance.random() < 0.15:
            cancel = self.log.called(name="CANCEL", keys=keys[:1], token=token)
            self.unanswered.append(cancel)
            self.connection.send("SLOCK.CANCEL", keys[0], token)
        told = None
        while told is None or cancel is not None:
            value = self._read()
            if isinstance(value, list):
                assert value[0] == b"smessage", value
                said, tag = value[2].decode().split(" ")
                told = said.removeprefix("-") if said.startswith("-") else int(said)
                if int(tag) != number:
                    self.log.note("forgotten", number)
            else:
                self.log.note("told", cancel, value)
                self.unanswered.remove(cancel)
                cancel = None
        return told

    def _leave(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None


def main() -> None:
    """Goes on until its standard input is closed."""
    path, name, seed, *ports = sys.argv[1:]
    log, end = Log(path), threading.Event()
    clients = [Client(f"{name}.{n}", log, [int(p) for p in ports], end, int(seed)) for n in range(THREADS)]
    for client in clients:
        client.start()
    sys.stdin.read()
    end.set()
    for client in clients:
        client.join(NEVER_S)
        assert not client.is_alive(), client.label


class Crowd:
    """The processes. `calls` is their history, when all have ended."""

    def __init__(self, ports: Sequence[int], processes: int, seed: int) -> None:
        self._ports, self._seed = [str(port) for port in ports], seed
        self._directory = tempfile.TemporaryDirectory(prefix="slock-crowd-")
        self._running: list[tuple[Path, subprocess.Popen[bytes]]] = []
        self._logs: dict[Path, int] = {}  # when the process had ended
        self._names = count()
        for _ in range(processes):
            self._start()

    def _start(self) -> None:
        name = f"{self._seed}.{next(self._names)}"
        path = Path(self._directory.name) / name
        path.touch()  # it may be killed before it writes
        words = [sys.executable, "-m", "harness.recorded", str(path), name, str(self._seed), *self._ports]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, cwd=Path(__file__).parents[1])
        self._running.append((path, process))

    def replace_one(self) -> None:
        """A process is killed with all its clients, and another takes its place."""
        path, process = self._running.pop(0)
        process.kill()
        process.wait()
        self._logs[path] = now()
        self._start()

    def size(self) -> int:
        """How many bytes have been written down."""
        return sum(path.stat().st_size for path in Path(self._directory.name).iterdir())

    def stop(self) -> None:
        for _, process in self._running:
            process.stdin.close()
        for path, process in self._running:
            assert process.wait(2 * NEVER_S) == 0, f"{path.name} failed"
            self._logs[path] = now()
        self._running.clear()

    def discard(self) -> None:
        for _, process in self._running:
            process.kill()
            process.wait()
        self._directory.cleanup()

    def calls(self, times: Times, crashes: Sequence[tuple[int, int]] = ()) -> tuple[list[Call], Counter[str]]:
        """The history and what was in it; `crashes` are when the server died."""
        calls = [Call("CRASH", (), "", start, end, 1) for start, end in crashes]
        seen: Counter[str] = Counter()
        for path, ended in self._logs.items():
            own: dict[int, Call] = {}
            for line in path.read_text().splitlines(keepends=True):
                if not line.endswith("\n"):
                    break  # it was killed while it wrote
                what, number, at, value = json.loads(line)
                if what == "called":
                    keys = tuple(value.pop("keys"))
                    own[number] = Call(keys=keys, start=at, end=ended, **value)
                    continue
                call = own[number]
                if what == "waits":
                    call.arrived = at
                    continue
                call.end = at
                assert what != "forgotten", f"never answered: {call}"
                call.reply = value
            for call in own.values():
                if call.reply is None:
                    self._bound(call, times, crashes)
                seen[call.name] += 1
                seen[call.reply if isinstance(call.reply, str) else "unanswered"] += not isinstance(
                    call.reply, int
                )
            calls += own.values()
        return calls, seen

    def _bound(self, call: Call, times: Times, crashes: Sequence[tuple[int, int]]) -> None:
        call.end = times.late(call.end + STILL_ARRIVES)
        call.end = min([call.end, *(end for _, end in crashes if end >= call.start)])


if __name__ == "__main__":
    main()
