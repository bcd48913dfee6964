"""Reading an append-only file: what a server would be told when it loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.server import Server
from harness.wait import wait_until

Command = list[bytes]


def aof_directory(server: Server) -> Path:
    """Where the server keeps its append-only files (several, with a manifest)."""
    return server.directory / "appendonlydir"


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


def parse_commands(data: bytes) -> list[Command]:
    """The commands of a file in AOF format. Timestamp annotations are skipped, a torn last command too."""
    commands: list[Command] = []
    at = 0
    while at < len(data):
        end = data.find(b"\r\n", at)
        if end < 0:
            break
        if data[at : at + 1] == b"#":
            at = end + 2
            continue
        assert data[at : at + 1] == b"*", f"not a command at byte {at}: {data[at : at + 40]!r}"
        count, at = int(data[at + 1 : end]), end + 2
        command = []
        for _ in range(count):
            end = data.find(b"\r\n", at)
            if end < 0:
                return commands
            length, at = int(data[at + 1 : end]), end + 2
            if at + length + 2 > len(data):
                return commands
            command.append(data[at : at + length])
            at += length + 2
        commands.append(command)
    return commands


def rewrite_aof(server: Server) -> None:
    """BGREWRITEAOF, and waits until the new files are in use."""
    client = server.client()

    def state() -> dict[str, Any]:
        return client.info("persistence")

    def is_idle() -> bool:
        now = state()
        return not now["aof_rewrite_in_progress"] and not now["aof_rewrite_scheduled"]

    wait_until(is_idle, 30, "an earlier rewrite to end")
    client.bgrewriteaof()
    wait_until(is_idle, 30, "the AOF rewrite to end")
    assert state()["aof_last_bgrewrite_status"] == "ok"


def wait_until_logged(server: Server) -> None:
    """Waits until all that was answered is in the files, where a SIGKILL leaves it.

    The server writes before it answers, except with `appendfsync everysec` while an fsync is still under way:
    then it may answer first and write up to two seconds later.
    """
    client = server.client()
    wait_until(lambda: client.info("persistence")["aof_buffer_length"] == 0, what="the log to be written")


def aof_commands(server: Server, *, with_base: bool = True) -> list[Command]:
    """Every command of a running server's append-only files. A base in RDB format is skipped."""
    wait_until_logged(server)
    commands: list[Command] = []
    for path in _files_in_order(aof_directory(server)):
        data = path.read_bytes()
        is_base = ".base." in path.name
        if data.startswith((b"REDIS", b"VALKEY")) or (is_base and not with_base):
            continue
        commands += parse_commands(data)
    return commands
