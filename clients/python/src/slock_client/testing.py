# SPDX-License-Identifier: MIT OR Apache-2.0

"""For the tests of programs that use locks: a server in memory, and a fixture of pytest that starts a real one.

    server = slock_client.testing.MemoryServer()
    locks = slock_client.Locks(server)  # or slock_client.asyncio.Locks(server)
    release = server.hold("report")  # somebody else has it
    server.lose("report")  # the hold of the program is gone
    server.fail(ConnectionError("…"))  # nobody replies

The fixture `slock_server` gives the port of a server with the module. To use it, write in `conftest.py`:

    pytest_plugins = ["slock_client.testing"]

It starts `redis-server`, or the program in the variable `SERVER`, with the module in the variable `SLOCK_MODULE`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from slock_client._memory import State
from slock_client._transport import Command, NoReply, Runtime, ServerError, Transport
from slock_client.errors import SlockError

__all__ = ["MemoryServer", "running_server", "slock_server"]


class MemoryServer:
    """Answers as a server with the module does, so what is tested is the library that the program uses. Several `Locks`
    may share one. Other errors than those of this library are a `ResponseError` of redis-py or valkey-py, if it is
    imported, or else a `SlockError`."""

    def __init__(self) -> None:
        self._changing = threading.RLock()
        self._channels: dict[str, Callable[[str], None]] = {}
        self._switched: list[Callable[[], None]] = []
        self._state = State(self._tell, self._channels.__contains__)
        self._failure: BaseException | None = None
        self._timer: threading.Timer | None = None

    def hold(self, key: str) -> Callable[[], None]:
        """Has somebody else hold the lock for writing until the function that is returned is called."""
        with self._changing:
            self._state.take(key, "somebody else")
        return lambda: self.lose(key)

    def lose(self, key: str) -> None:
        """Ends all holds of the key, as if it had been deleted. Their owners are told at once."""
        with self._changing:
            self._state.lose(key)
            for switched in list(self._switched):
                switched()

    def fail(self, error: BaseException | None) -> None:
        """From now on nobody replies, as if no connection could be made, and the error is the cause. After `None` there
        are replies again."""
        self._failure = error

    def holders(self, key: str) -> list[str]:
        """The owner tokens that hold the lock."""
        with self._changing:
            return self._state.holders(key)

    def execute(self, *command: Any) -> Any:
        """Carries out a command of the module, or `DEL`."""
        with self._changing:
            try:
                return self._state.execute(command)
            finally:
                self._schedule()

    def slock_transport(self, is_async: bool) -> Transport:
        return partial(_Link, self)

    def _tell(self, channel: str, payload: str) -> None:
        heard = self._channels.get(channel)
        if heard is not None:
            heard(payload)

    def _schedule(self) -> None:
        """Has the queue served when time alone lets somebody in, or ends a wait."""
        if self._timer is not None:
            self._timer.cancel()
        due = self._state.due()
        if due is not None:
            self._timer = threading.Timer(max(0.0, due - time.time()), self._serve)
            self._timer.daemon = True
            self._timer.start()

    def _serve(self) -> None:
        with self._changing:
            self._state.expire()
            self._state.serve()
            self._schedule()


class _Link:
    name, is_cluster, has_failover, limit = "memory", False, False, 1.0

    def __init__(self, server: MemoryServer, io: Runtime, switched: Callable[[], None]) -> None:
        self._server = server
        server._switched.append(switched)

    async def send(self, key: str | None, commands: list[Command]) -> list[Any]:
        if self._server._failure is not None:
            raise NoReply(str(self._server._failure)) from self._server._failure
        replies: list[Any] = []
        for command in commands:
            try:
                reply = self._server.execute(*command)
            except ServerError as error:
                library = sys.modules.get("redis") or sys.modules.get("valkey")
                error.__cause__ = getattr(library, "ResponseError", SlockError)(str(error).removeprefix("ERR "))
                reply = error
            replies.append(reply)
        return replies

    async def listen(self, channel: str, heard: Callable[[str], None], changed: Callable[[bool], None]) -> None:
        self._server._channels[channel] = heard
        changed(True)

    def leave(self, channel: str) -> None:
        self._server._channels.pop(channel, None)

    def follow(self, is_wanted: bool) -> None: ...

    async def close(self) -> None: ...


def running_server(module: str | None = None, program: str | None = None) -> Iterator[int]:
    """Starts a server with the module on a free port of the loopback, gives the port, and stops the server."""
    module, program = module or os.environ.get("SLOCK_MODULE"), program or os.environ.get("SERVER", "redis-server")
    if not module or not shutil.which(program):
        raise RuntimeError(f"SLOCK_MODULE must be the path of libslock.so, and {program} must be installed")
    with socket.socket() as probe, tempfile.TemporaryDirectory(prefix="slock-") as directory:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", directory, "--save", ""]
        process = subprocess.Popen([*command, "--loadmodule", module], stdout=subprocess.DEVNULL)
        try:
            while True:
                with socket.socket() as connection:
                    if connection.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if process.poll() is not None:
                    raise RuntimeError(f"{program} ended at once: is {module} a module for it?")
                time.sleep(0.01)
            yield port
        finally:
            process.kill()
            process.wait()


try:
    import pytest
except ImportError:
    pass
else:

    @pytest.fixture(scope="session")
    def slock_server() -> Iterator[int]:
        """The port of a server with the module."""
        yield from running_server()
