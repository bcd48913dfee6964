"""An agent: a child process that calls one of the libraries, and its operations."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import wait_until
from harness.server import die_with_parent

# Only an agent that hangs needs so long for an answer that is due.
ANSWER_SECONDS = 60.0

Answer = dict[str, Any]


class AgentError(Exception):
    """The library ended the operation with an error. `name` is one of the page's, `Cancelled` or `Other`."""

    def __init__(self, op: str, name: str, text: str) -> None:
        super().__init__(f"{op} ended with {name}: {text}")
        self.op, self.name, self.text = op, name, text


class AgentGone(AssertionError):
    """The agent ended, or said what is no answer."""


class Call:
    """One operation that the agent has been asked for."""

    def __init__(self, agent: Agent, number: int, op: str) -> None:
        self.agent, self.id, self.op = agent, number, op
        self._done = threading.Event()
        self._line: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<{self.op} {self.id} of {self.agent}>"

    def is_done(self) -> bool:
        return self._done.is_set()

    def outcome(self, seconds: float = ANSWER_SECONDS) -> Answer | AgentError:
        """The answer or the error, for which it waits."""
        if not self._done.wait(seconds):
            raise AssertionError(f"{self} was not answered within {seconds:g} s")
        if self._line is None:
            raise AgentGone(f"{self.agent} ended before it answered {self.op}:\n{self.agent.stderr()}")
        if "error" in self._line:
            return AgentError(self.op, self._line["error"], self._line.get("text", ""))
        return self._line["ok"]

    def result(self, seconds: float = ANSWER_SECONDS) -> Answer:
        """The answer, for which it waits. An error is raised."""
        outcome = self.outcome(seconds)
        if isinstance(outcome, AgentError):
            raise outcome
        return outcome

    def cancel(self) -> None:
        self.agent.ask("cancel", target=self.id)

    def _end(self, line: dict[str, Any] | None) -> None:
        self._line = line
        self._done.set()


class Agent:
    """A running agent. `defaults` are fields that each `open` of this agent gets, such as `api`.

    The kernel kills it when the thread that started it ends.
    """

    every: list[Agent] = []  # noqa: RUF012 -- what a failed test shows

    def __init__(self, name: str, command: Sequence[str], defaults: Mapping[str, Any]) -> None:
        self.name, self.defaults = name, dict(defaults)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by `stop`
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._numbers = itertools.count(1)
        self._names = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._sending = threading.Lock()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        Agent.every.append(self)

    def __repr__(self) -> str:
        return f"<agent {self.name}, process {self.pid}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    # --- operations

    def start(self, op: str, **fields: Any) -> Call:
        """Asks for an operation and does not wait for its answer."""
        if op in ("open", "open_quorum"):
            fields = {**self.defaults, **fields}
        with self._sending:
            call = Call(self, next(self._numbers), op)
            self._calls[call.id] = call
            if self._ended:
                call._end(None)
                return call
            line = json.dumps({"id": call.id, "op": op, **fields})
            with contextlib.suppress(BrokenPipeError):  # then the reader ends all calls
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
        return call

    def ask(self, op: str, **fields: Any) -> Answer:
        """Asks for an operation and returns its answer. An error is raised."""
        return self.start(op, **fields).result()

    def new_name(self, what: str) -> str:
        """A name that this agent has not heard yet, for a `locks` or a hold."""
        return f"{what}-{next(self._names)}"

    def _read(self) -> None:
        for line in self._process.stdout:
            answer = json.loads(line)
            call = self._calls.pop(answer["id"], None)
            if call is not None:
                call._end(answer)
        with self._sending:
            self._ended = True
            left, self._calls = list(self._calls.values()), {}
        for call in left:
            call._end(None)

    # --- the process

    def kill(self) -> None:
        """SIGKILL: the agent does nothing any more, and its connections are closed by the kernel."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP; returns when all threads of the agent have stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        threads = Path(f"/proc/{self.pid}/task")
        if threads.exists():
            wait_until(lambda: all(_is_stopped(one) for one in threads.iterdir()), 10, f"{self} to stop")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Closes its input, upon which it ends; kills it when it does not."""
        if self.is_running:
            self.resume()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join(10)
        self._process.stdout.close()
        self._stderr.close()
        Agent.every.remove(self)

    def stderr(self) -> str:
        """The end of what it has said on stderr."""
        size = os.fstat(self._stderr.fileno()).st_size
        text = os.pread(self._stderr.fileno(), 6000, max(0, size - 6000))
        return text.decode(errors="replace")


def _is_stopped(thread: Path) -> bool:
    state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"
