"""What a private server is started with: which program, which module, which port, which settings."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

DEFAULT_SETTINGS = {
    "bind": "127.0.0.1",
    "save": "",
    "enable-debug-command": "yes",
    "enable-module-command": "yes",
    # Through a file, a replica gets its stream at once; otherwise only after its next report, a second later.
    "repl-diskless-sync": "no",
    "repl-diskless-sync-delay": "0",
    "shutdown-timeout": "0",
    # A replica or an AOF that does not understand what it is told must not go on quietly.
    "propagation-error-behavior": "panic",
    # What was answered is in the log when a test kills the server. `everysec` puts a write off for up to
    # two seconds while the disk is busy with the fsync before; who wants it calls `wait_until_logged`.
    "appendfsync": "no",
}

_kept_ports: dict[int, socket.socket] = {}


def rounds(short: int, full: int) -> int:
    """How much a test does: `full` where SLOCK_THOROUGH is set, as `make test-servers` does; else `short`."""
    return full if os.environ.get("SLOCK_THOROUGH") else short


def amount(short: int) -> int:
    """How many random inputs a test tries: SLOCK_FUZZ, as `make fuzz` sets it; else `short`."""
    return int(os.environ.get("SLOCK_FUZZ") or short)


def module_path() -> Path:
    """The module under test: SLOCK_MODULE, or the release build of this repository."""
    return Path(os.environ.get("SLOCK_MODULE") or REPOSITORY / "target/release/libslock.so").resolve()


def server_binary() -> str:
    """The server under test: SERVER, or `redis-server` of the PATH. It is started in another directory."""
    server = os.environ.get("SERVER") or "redis-server"
    return os.path.abspath(server) if os.sep in server else server


def free_port() -> int:
    """A port nobody listens on. It is this process's own until `release_port`, also while its server is down.

    It stays bound by a socket that does not listen: a server may listen beside that, and another process that
    looks for a free port finds it taken. Below the range that outgoing connections take.
    """
    for _ in range(1000):
        port = random.SystemRandom().randrange(20000, 32000)
        keeper = socket.socket()
        try:
            keeper.bind(("127.0.0.1", port))
        except OSError:
            keeper.close()
            continue
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _kept_ports[port] = keeper
        return port
    raise RuntimeError("no free port found")


def release_port(port: int) -> None:
    _kept_ports.pop(port).close()


def setting_name(keyword: str) -> str:
    """`slock_max_ttl_ms` is `slock.max-ttl-ms`, `aof_use_rdb_preamble` is `aof-use-rdb-preamble`."""
    name = keyword.replace("_", "-")
    return "slock." + name.removeprefix("slock-") if name.startswith("slock-") else name


def setting_value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return '""' if value == "" else str(value)
