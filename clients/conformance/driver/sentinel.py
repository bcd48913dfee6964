"""A primary with a replica, and three Sentinels that fail over within a second or two."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from driver.agent import die_with_parent
from harness import RawConnection, Server, replica_of, wait_until
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
                f"sentinel down-after-milliseconds {SERVICE} 500\n"
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
        old, new = self.primary, self.replica
        old.kill9()
        wait_until(lambda: self._is_primary(new), 30, f"{new} to be promoted")
        wait_until(lambda: all(self._primary_port(port) == new.port for port in self.ports), 30)
        old.configure(replicaof=f"127.0.0.1 {new.port}")
        old.start()
        self.primary, self.replica = new, old

    def _is_primary(self, server: Server) -> bool:
        try:
            with RawConnection(server.port) as connection:  # Sentinel cuts those that there are
                return connection.ok("ROLE")[0] == b"master"
        except OSError:
            return False

    def _knows_all(self, port: int) -> bool:
        fields = self._ask(port, "SENTINEL", "MASTER", SERVICE)
        return fields.get(b"num-other-sentinels") == b"2" and fields.get(b"num-slaves") == b"1"

    def _primary_port(self, port: int) -> int:
        with RawConnection(port) as connection:
            return int(connection.ok("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def _ask(self, port: int, *command: str) -> dict[bytes, bytes]:
        try:
            with RawConnection(port) as connection:
                reply = connection.ok(*command)
        except OSError:
            return {}
        return dict(zip(reply[::2], reply[1::2], strict=True))

    def discard(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for server in (self.primary, self.replica):
            server.discard()
        self._directory.cleanup()
