"""Reading an append-only file: what a server would be told when it loads it."""

from __future__ import annotations

import io
from pathlib import Path

from harness.server import Server
from harness.wait import wait_until

Command = list[bytes]


def _files_in_order(directory: Path) -> list[Path]:
    """The base and the increments of the manifest, in the order of loading; history files are left out."""
    (manifest,) = directory.glob("*.manifest")
    files = []
    for line in manifest.read_text().splitlines():
        words = line.split()
        entry = dict(zip(words[::2], words[1::2], strict=True))
        if entry["type"] in ("b", "i"):
            files.append(directory / entry["file"].strip('"'))
    return files


def _parse_commands(data: bytes) -> list[Command]:
    commands: list[Command] = []
    file = io.BytesIO(data)
    while head := file.readline():
        assert head.startswith(b"*"), f"not a command: {head!r}"
        command = []
        for _ in range(int(head[1:])):
            length = int(file.readline()[1:])
            command.append(file.read(length + 2)[:-2])
        commands.append(command)
    return commands


def rewrite_aof(server: Server) -> None:
    """BGREWRITEAOF, and waits until the new files are in use."""
    client = server.client()

    def is_idle() -> bool:
        now = client.info("persistence")
        return not now["aof_rewrite_in_progress"] and not now["aof_rewrite_scheduled"]

    wait_until(is_idle, 30, "an earlier rewrite to end")
    client.bgrewriteaof()
    wait_until(is_idle, 30, "the AOF rewrite to end")
    assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"


def debug_reload(server: Server) -> None:
    """DEBUG RELOAD, when no child writes a snapshot. As that ends, the server takes the changes in it
    from a count which a reload has set to 0. The next reload sets it to 0 again, and so looks like a change,
    which is logged.
    """
    client = server.client()
    wait_until(lambda: not client.info("persistence")["rdb_bgsave_in_progress"], 30, "the snapshot to end")
    client.execute_command("DEBUG", "RELOAD")


def wait_until_logged(server: Server) -> None:
    """Waits until all that was answered is in the files, where a SIGKILL leaves it.

    The server writes before it answers, except with `appendfsync everysec` while an fsync is still under way:
    then it may answer first and write up to two seconds later.
    """
    client = server.client()
    wait_until(lambda: client.info("persistence")["aof_buffer_length"] == 0, what="the log to be written")


def aof_commands(server: Server) -> list[Command]:
    """Every command of a running server's append-only files. A base in RDB format is skipped."""
    wait_until_logged(server)
    files = [path.read_bytes() for path in _files_in_order(server.directory / "appendonlydir")]
    logs = [data for data in files if not data.startswith((b"REDIS", b"VALKEY"))]
    return [command for data in logs for command in _parse_commands(data)]
