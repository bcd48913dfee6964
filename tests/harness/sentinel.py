"""One Sentinel that watches a primary."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.raw import RawConnection
from harness.server import Server, die_with_parent
from harness.settings import free_port, server_binary, setting_name
from harness.wait import wait_until

SERVICE = "locks"


@contextmanager
def sentinel(primary: Server, *, replicas: int, **settings: int) -> Iterator[int]:
    """Its port, when it knows the primary and that many replicas. `settings` are of the service."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="slock-sentinel-") as directory:
        config = Path(directory) / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {directory}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} 1\n"
            + "".join(f"sentinel {setting_name(n)} {SERVICE} {value}\n" for n, value in settings.items())
        )
        process = subprocess.Popen(
            [server_binary(), str(config), "--sentinel"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        try:
            wait_until(lambda: _replicas(port) == replicas, 30, "the Sentinel to know the replicas")
            yield port
        finally:
            process.kill()
            process.wait()


def _replicas(port: int) -> int:
    try:
        with RawConnection(port) as connection:
            return len(connection.ok("SENTINEL", "REPLICAS", SERVICE))
    except OSError:
        return -1
