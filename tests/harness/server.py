"""A private server: its own directory, its own port, and nothing left of it afterwards.

Whatever a test does to it, it is gone when the test process is gone, and a crash that no assertion noticed
still fails the test (`check`).
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from harness.connection_state import NotedConnection
from harness.raw import RawConnection
from harness.settings import (
    DEFAULT_SETTINGS,
    free_port,
    module_path,
    release_port,
    server_binary,
    setting_name,
    setting_value,
)
from harness.wait import wait_until

# What a healthy server's log never holds, whatever the test did to it.
FATAL_LOG = re.compile(r"ASSERTION FAILED|BUG REPORT|panicked|Guru Meditation|== CRITICAL ==")

START_TIMEOUT = 20.0

# How much of a log a failure shows.
EXCERPT_LINES = 80


_CLIENT_OPTIONS = inspect.signature(redis.Redis).parameters


class ServerError(AssertionError):
    """The server did not start, died, or logged a crash."""


# As it was at the start: servers are started by several threads, and pytest changes its own meanwhile.
ENVIRONMENT = dict(os.environ)


def die_with_parent() -> None:
    """In the child, before exec: the kernel kills it when the thread that started it ends in whatever way."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """One server process with the module loaded, which ends with the thread that starts it.

    Settings are keywords; `module_args` follow the path in `loadmodule`; `module=False` starts a bare server.
    """

    # How long a start may take, with all data that is loaded.
    start_limit_s = START_TIMEOUT

    every: list[Server] = []  # noqa: RUF012 -- the registry that the report hook and atexit walk

    def __init__(
        self,
        *,
        name: str = "server",
        module: bool = True,
        module_args: Sequence[object] = (),
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        self.name = name
        self.port = free_port()
        self.directory = directory or Path(tempfile.mkdtemp(prefix="slock-test-"))
        self.process: subprocess.Popen[bytes] | None = None
        self._owns_directory = directory is None
        self._module = module
        self._module_args = list(module_args)
        self._environment = dict(environment or {})
        self._settings: dict[str, object] = dict(DEFAULT_SETTINGS)
        self.configure(**settings)
        self.config_text = ""
        self._clients: list[redis.Redis] = []
        self._raw: list[RawConnection] = []
        self.is_paused = False
        self._checked_log = 0
        self._test_log = 0
        Server.every.append(self)

    def __repr__(self) -> str:
        return f"<{self.name} on port {self.port}>"

    # --- life

    def configure(self, **settings: object) -> None:
        """Changes settings of the next start."""
        for keyword, value in settings.items():
            self._settings[setting_name(keyword)] = value

    def start(self) -> Server:
        """Starts the process and returns when it answers and has loaded its data."""
        seen = len(self.log())
        self._spawn()
        wait_until(lambda: not self.is_running or self._answers(), self.start_limit_s, f"{self} to start")
        if not self.is_running:
            self._forget_process()
            raise ServerError(f"{self} did not start:\n{self.log()[seen:][-3000:]}")
        return self

    def stop(self, *, save: bool = False) -> None:
        """Shuts down in order and asks for a clean exit. Nothing to do when the test ended it already."""
        if self.process is None:
            return
        self.check()
        self.resume()
        wait_until(lambda: self._accepts_shutdown(save), START_TIMEOUT, f"{self} to accept SHUTDOWN")
        process = self.process
        try:
            status = process.wait(START_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise ServerError(f"{self} did not shut down:\n{self.log()[-2000:]}") from None
        finally:
            self._forget_process()
        if status != 0:
            raise ServerError(f"{self} ended with status {status} at its shutdown:\n{self.log()[-3000:]}")
        self.check()

    def _accepts_shutdown(self, save: bool) -> bool:
        """False while the server has a reason to wait, as a new replica has that writes its first log."""
        try:
            self.client().execute_command("SHUTDOWN", "SAVE" if save else "NOSAVE")
        except redis.ResponseError:
            return False
        except (redis.ConnectionError, redis.TimeoutError):
            pass
        return True

    def kill9(self) -> None:
        """The power cut: SIGKILL, with nothing flushed that the server had not flushed."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._forget_process()

    def restart(self, *, kill: bool = False, save: bool = False, **settings: object) -> Server:
        """Ends the server and starts it on the same port and directory, with `settings` changed."""
        if kill:
            self.kill9()
        else:
            self.stop(save=save)
        self.configure(**settings)
        return self.start()

    def pause(self) -> None:
        """SIGSTOP: the server lags behind without knowing it."""
        self.is_paused = True
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        self.is_paused = False
        if self.is_running:
            os.kill(self.pid, signal.SIGCONT)

    def discard(self) -> None:
        """Ends the process whatever state it is in, and removes the directory."""
        self.kill9()
        if self._owns_directory:
            shutil.rmtree(self.directory, ignore_errors=True)
        if self in Server.every:
            Server.every.remove(self)
            release_port(self.port)

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self} does not run"
        return self.process.pid

    @property
    def bus_port(self) -> object:
        return self._settings["cluster-port"]

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _spawn(self) -> None:
        assert self.process is None, f"{self} runs already"
        config = self.directory / "server.conf"
        config.write_text(self.config_text or self._settings_text())
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [server_binary(), str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**ENVIRONMENT, **self._environment},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def _settings_text(self) -> str:
        lines = [f"port {self.port}", f"dir {self.directory}"]
        own = {name: value for name, value in self._settings.items() if name.startswith("slock.")}
        lines += [f"{n} {setting_value(v)}" for n, v in self._settings.items() if n not in own]
        if self._module:
            lines.append(" ".join(["loadmodule", str(module_path()), *map(str, self._module_args)]))
        lines += [f"{n} {setting_value(v)}" for n, v in own.items()]
        return "\n".join(lines) + "\n"

    def _answers(self) -> bool:
        try:
            with RawConnection(self.port, timeout=5) as probe:
                is_ready = probe.call("PING") == b"PONG"
                return is_ready and b"process_id:%d\r\n" % self.pid in probe.call("INFO", "server")
        except (OSError, AttributeError):
            return False

    def _forget_process(self) -> None:
        for client in self._clients:
            client.close()
        for raw in self._raw:
            raw.close()
        self._clients.clear()
        self._raw.clear()
        self.is_paused = False
        self.process = None

    # --- talking to it

    def client(self, **options: Any) -> redis.Redis:
        """A redis-py client that never repeats a command by itself and gives bytes."""
        options = {"protocol": 2, "socket_timeout": 30, "retry": Retry(NoBackoff(), 0), **options}
        # The name of the library would be part of what a connection is. Older redis-py says it otherwise.
        told = ["driver_info"] if "driver_info" in _CLIENT_OPTIONS else ["lib_name", "lib_version"]
        client = redis.Redis(host="127.0.0.1", port=self.port, **dict.fromkeys(told), **options)
        client.connection_pool.connection_class = NotedConnection
        self._clients.append(client)
        return client

    def raw(self, protocol: int = 2) -> RawConnection:
        """A raw connection, closed with the server at the latest."""
        connection = RawConnection(self.port)
        self._raw.append(connection)
        if protocol != 2:
            connection.hello(protocol)
        return connection

    def connections(self) -> dict[int, dict[str, str]]:
        """What CLIENT LIST shows, by the clients' ports; nothing when the server does not answer it."""
        try:
            with RawConnection(self.port, timeout=5) as connection:
                reply = connection.call("CLIENT", "LIST")
        except OSError:
            return {}
        lines = reply.decode("utf-8", "replace").splitlines() if isinstance(reply, bytes) else []
        listed = [dict(field.split("=", 1) for field in line.split(" ")) for line in lines]
        return {int(fields["addr"].rpartition(":")[2]): fields for fields in listed}

    # --- looking after it

    @property
    def _log_path(self) -> Path:
        return self.directory / "server.log"

    def log(self) -> str:
        """What all processes of this server wrote: log, standard output and standard error in one."""
        try:
            return self._log_path.read_text(errors="replace")
        except FileNotFoundError:  # not started yet, or another thread has just discarded it
            return ""

    def log_excerpt(self) -> str:
        """The part of the test's log that a failure should show: from a crash on, else the end."""
        log = self.log()[self._test_log :]
        crash = FATAL_LOG.search(log)
        if crash:
            before = log[: crash.start()].splitlines()[-10:]
            return "\n".join([*before, *log[crash.start() :].splitlines()[:EXCERPT_LINES]])
        return "\n".join(log.splitlines()[-EXCERPT_LINES:])

    def begin_test(self) -> None:
        self._test_log = len(self.log())

    def check(self) -> None:
        """Fails when the server died by itself or logged a crash."""
        log, checked = self.log(), self._checked_log
        self._checked_log = len(log)
        if self.process is not None and self.process.poll() is not None:
            status = self.process.returncode
            self._forget_process()
            raise ServerError(f"{self} died with status {status}:\n{self.log_excerpt()}")
        found = FATAL_LOG.search(log, checked)
        if found:
            raise ServerError(f"{self} logged {found.group()!r}:\n{self.log_excerpt()}")


MakeServer = Callable[..., Server]


@atexit.register
def _discard_all() -> None:
    for server in list(Server.every):
        server.discard()
