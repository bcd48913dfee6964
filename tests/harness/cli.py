"""The command line program under test, and terminals in which it runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socketserver
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from harness.locks import Locks
from harness.raw import RawConnection
from harness.server import Server
from harness.settings import REPOSITORY
from harness.wait import wait_until

# Longer than anything takes that a test waits for.
LIMIT = 60.0


def program() -> Path:
    """SLOCK_CLI, or the build of this repository for tests."""
    path = Path(os.environ.get("SLOCK_CLI") or REPOSITORY / "target/debug/slock").resolve()
    assert path.exists(), f"there is no {path}: cargo build --bin slock --example conformance_agent"
    return path


def _hear_signals() -> None:
    """A shell that runs the tests in the background has them ignore these, and slock would do so too."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Cli:
    """`slock` with the URL of a server, or another."""

    def __init__(self, url: str | Server) -> None:
        self.url = url if isinstance(url, str) else f"redis://127.0.0.1:{url.port}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLOCK_")},
            "SLOCK_URL": self.url,
            "PATH": f"{program().parent}:{os.environ['PATH']}",
            "RUST_BACKTRACE": "0",
        }

    def __call__(self, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs it to its end."""
        options = {"capture_output": True, "text": True, "timeout": LIMIT, **options}
        options["preexec_fn"] = _hear_signals
        return subprocess.run([program(), *map(str, words)], env=self.environment, **options)

    def json(self, *words: object) -> Any:
        """What it prints for programs. It prints nothing else."""
        done = self(*words, "--json")
        assert done.stderr == ""
        return json.loads(done.stdout)

    def start(self, *words: object, **options: Any) -> subprocess.Popen[str]:
        """Starts it in a session of its own, without a terminal; `ending` sees to its end."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        options |= {"start_new_session": True, "preexec_fn": _hear_signals}
        return subprocess.Popen([program(), *map(str, words)], env=self.environment, **options)


@contextmanager
def ending(*processes: subprocess.Popen[str]) -> Iterator[None]:
    """Leaves nothing behind of what `start` started, whatever happens."""
    try:
        yield
    finally:
        for process in processes:
            for pid in _session(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()


def _session(leader: int) -> list[int]:
    """All processes of this session."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):
            if os.getsid(int(directory.name)) == leader:
                found.append(int(directory.name))
    return found


def ends(process: subprocess.Popen[str]) -> int:
    """The status of a process that ends by itself."""
    process.communicate(timeout=LIMIT)
    return process.returncode


def hold(
    client: redis.Redis, key: bytes | str, token: bytes | str, meta: str = "", command: str = "SLOCK.LOCK"
) -> int:
    """Holds the key for ten minutes, and gives the fencing token."""
    return client.execute_command(command, key, token, 600_000, "META", meta)


def holders(client: redis.Redis, key: str) -> int:
    info = Locks(client).full(key)
    return len(info.holders) if info else 0


def until_held(client: redis.Redis, key: str) -> None:
    wait_until(lambda: holders(client, key) == 1, LIMIT, f"{key} to be held")


def until_free(client: redis.Redis, key: str) -> None:
    wait_until(lambda: holders(client, key) == 0, LIMIT, f"{key} to be free")


def until_waiters(client: redis.Redis, key: str, number: int) -> None:
    def is_so() -> bool:
        info = Locks(client).info(key)
        return (info.waiters if info else 0) == number

    wait_until(is_so, LIMIT, f"{number} requests to wait for {key}")


def wait_for(server: Server, key: str, token: str, number: int = 1) -> RawConnection:
    """A connection whose request waits, as the one of this number in the queue."""
    raw = server.raw()
    raw.send("SLOCK.LOCK", key, token, 600_000, "WAIT", 600_000, "META", f"waiter {token}")
    until_waiters(server.client(), key, number)
    return raw


def is_running(pid: int) -> bool:
    try:
        # Not by its command line, which is empty in the middle of an exec, too.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def number_in(path: Path) -> int:
    return int(
        wait_until(lambda: path.exists() and path.read_text().strip(), LIMIT, f"a number in {path.name}")
    )


@contextmanager
def listening(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    """The port of a server that serves each client by this."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


class Terminal:
    """A terminal of this size, with a program in it. tmux keeps its screen."""

    def __init__(self, cli: Cli, command: str, *, width: int = 100, height: int = 24) -> None:
        if shutil.which("tmux") is None:
            pytest.skip("tmux is not installed")
        # The path of a socket must be short.
        self._directory = tempfile.TemporaryDirectory(prefix="slock-tmux-", dir="/tmp")
        self._socket = f"{self._directory.name}/{uuid.uuid4().hex[:8]}"
        self._environment = {**cli.environment, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        self._environment.pop("TMUX", None)
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height), command)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def screen(self, *, with_colors: bool = False) -> str:
        return self._tmux("capture-pane", "-p", *(["-e"] if with_colors else []))

    def press(self, *keys: str) -> None:
        """Keys by their names in tmux: `C-c`, `Enter`, `Escape`, or letters."""
        self._tmux("send-keys", *keys)

    def shows(self, text: str, timeout: float = LIMIT) -> str:
        """Waits until the screen has this text, and gives the screen."""

        def screen() -> str:
            now = self.screen()
            return now if text in now else ""

        try:
            return wait_until(screen, timeout, f"{text!r} on the screen")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.screen()}") from None

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], capture_output=True)
        self._directory.cleanup()
