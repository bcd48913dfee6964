"""A primary with a replica, and three Sentinels that fail over within a second or two."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from harness import RawConnection, Server, replica_of, wait_until
from harness.server import die_with_parent
from harness.settings import free_port, server_binary

SERVICE = "locks"


class Sentinels:
    """`primary` and `replica` name what they are now."""

    def __init__(self) -> None:
        self.primary, self.replica = Server(name="first"), Server(name="second")
        self._directory = tempfile.TemporaryDirectory(prefix="slock-sentinels-")
        self.ports = [free_port() for _ in range(3)]
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> Sentinels:
        replica_of(self.replica.start(), self.primary.start())
        for port in self.ports:
            config = Path(self._directory.name) / f"{port}.conf"
            config.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {self._directory.name}\n"
                f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary.port} 2\n"
                # A machine that stands still for a second must not look as if the new primary had died, too.
                f"sentinel down-after-milliseconds {SERVICE} 2000\n"
                f"sentinel failover-timeout {SERVICE} 3000\n"
            )
            self._processes.append(
                subprocess.Popen(
                    [server_binary(), str(config), "--sentinel"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            )
        for port in self.ports:
            wait_until(lambda port=port: self._knows_all(port), 20, f"Sentinel {port} to know the others")
        return self

    def fail_over(self) -> None:
        """Kills the primary; returns when the replica has taken its place, and the primary the replica's."""
        old = self.primary
        old.kill9()
        self.wait_until_switched()
        old.configure(replicaof=f"127.0.0.1 {self.primary.port}")
        old.start()

    def switch(self) -> None:
        """A planned failover; returns when all Sentinels name the new primary. The former one goes on."""
        self.ask_for_failover()
        self.wait_until_switched()

    def ask_for_failover(self) -> None:
        wait_until(lambda: self._ask(self.ports[0], "SENTINEL", "FAILOVER", SERVICE) == b"OK", 30)

    def wait_until_switched(self) -> None:
        wait_until(lambda: self._is_primary(self.replica), 30, f"{self.replica} to be promoted")
        port = self.replica.port
        wait_until(lambda: all(self._primary_port(sentinel) == port for sentinel in self.ports), 30)
        self.primary, self.replica = self.replica, self.primary

    def wait_until_replicated(self) -> None:
        """Waits until the former primary is a replica of the new one, and all Sentinels know it."""
        wait_until(lambda: self._role(self.replica)[3:4] == [b"connected"], 40, f"{self.replica} to follow")
        for port in self.ports:
            wait_until(lambda port=port: self._knows_all(port), 40, f"Sentinel {port} to know the replica")

    def _is_primary(self, server: Server) -> bool:
        return self._role(server)[:1] == [b"master"]

    def _role(self, server: Server) -> list[object]:
        return self._ask(server.port, "ROLE") or []

    def _knows_all(self, port: int) -> bool:
        reply = self._ask(port, "SENTINEL", "MASTER", SERVICE) or []
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        is_known = fields.get(b"num-other-sentinels") == b"2" and fields.get(b"num-slaves") == b"1"
        return is_known and fields.get(b"flags") == b"master"

    def _primary_port(self, port: int) -> int:
        reply = self._ask(port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(reply[1]) if reply else 0

    def _ask(self, port: int, *command: str) -> Any:
        """The reply; None without one, or if it is an error. Sentinel cuts connections at a failover."""
        try:
            with RawConnection(port) as connection:
                return connection.ok(*command)
        except (OSError, AssertionError):
            return None

    def discard(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for server in (self.primary, self.replica):
            server.discard()
        self._directory.cleanup()
