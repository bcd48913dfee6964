"""Replicas, and the stream that a primary sends them.

`ReplicationStream` is a replica that believes nothing: it takes part in the handshake, throws the snapshot
away, and keeps the commands, so that a test can say what was replicated and what was not.
"""

from __future__ import annotations

import redis

from harness.server import Server
from harness.wait import wait_until

Command = list[bytes]


def replica_of(replica: Server, primary: Server) -> None:
    """Makes one server the replica of another and waits until it has everything."""
    replica.client().execute_command("REPLICAOF", "127.0.0.1", primary.port)
    wait_synced(primary, replica)


def role(server: Server) -> str:
    with server.client() as client:
        return client.info("replication")["role"]


def fail_over(old: Server, new: Server) -> None:
    """Makes the replica the primary."""
    with old.client() as client:
        client.execute_command("FAILOVER", "TO", "127.0.0.1", new.port)
    wait_until(lambda: role(new) == "master" and role(old) == "slave", 30, "the failover")
    wait_synced(new, old)


def wait_synced(primary: Server, replica: Server) -> None:
    """Waits until the link is up and the replica has applied all that the primary has sent."""
    at_primary, at_replica = primary.client(), replica.client()

    def is_level() -> bool:
        try:
            state = at_replica.info("replication")
        except redis.BusyLoadingError:
            return False
        if state.get("master_link_status") != "up" or state.get("master_sync_in_progress"):
            return False
        return state["slave_repl_offset"] == at_primary.info("replication")["master_repl_offset"]

    wait_until(is_level, 30, f"{replica} to be level with {primary}")
    at_primary.close()
    at_replica.close()


def promote(replica: Server) -> None:
    """Makes a replica a primary, as a failover would."""
    client = replica.client()
    client.execute_command("REPLICAOF", "NO", "ONE")
    wait_until(lambda: client.info("replication")["role"] == "master", 10, f"{replica} to be a primary")


class ReplicationStream:
    """What a primary replicates from now on."""

    def __init__(self, primary: Server) -> None:
        self._primary = primary.client()
        self._primary.config_set("repl-timeout", 3600)  # it acknowledges nothing
        self._link = primary.raw()
        # Without the capability "eof" the snapshot comes with its length, and the stream right behind it.
        self._link.ok("REPLCONF", "capa", "psync2")
        kind, _, offset = self._link.ok("PSYNC", "?", "-1").split(b" ")
        assert kind == b"FULLRESYNC", kind
        header = b""
        while not header:  # a primary that is still writing its snapshot sends empty lines
            header = self._link.read_line()
        assert header.startswith(b"$"), header
        self._link.read_bytes(int(header[1:]))
        self._offset = int(offset)
        self._origin = self._link.bytes_read
        self.database = -1

    def commands(self, *, keep_select: bool = False) -> list[Command]:
        """What was replicated since the last call (or the start), up to this moment on the primary."""
        goal = self._primary.info("replication")["master_repl_offset"]
        commands = []
        while self._offset + self._link.bytes_read - self._origin < goal:
            command = self._link.read()
            name = command[0].upper()
            if name == b"SELECT":
                self.database = int(command[1])
                if not keep_select:
                    continue
            if name not in (b"PING", b"REPLCONF"):  # by which a primary keeps the link alive
                commands.append(command)
        return commands

    def names(self) -> list[str]:
        """The upper-case names of `commands()`."""
        return [command[0].decode().upper() for command in self.commands()]

    def units(self) -> list[list[Command]]:
        """`commands()`, grouped: a list for each MULTI … EXEC, and a list of one for each command outside."""
        units: list[list[Command]] = []
        inside = False
        for command in self.commands():
            name = command[0].upper()
            if name == b"MULTI" or (not inside and name != b"EXEC"):
                units.append([])
            if name in (b"MULTI", b"EXEC"):
                inside = name == b"MULTI"
            else:
                units[-1].append(command)
        return units

    @staticmethod
    def replay(commands: list[Command], target: Server) -> None:
        """Feeds commands to another server as an append-only file would, and fails on an error reply."""
        with target.raw() as link:
            replies = link.pipeline([tuple(command) for command in commands])
        for command, reply in zip(commands, replies, strict=True):
            assert not isinstance(reply, Exception), f"{command!r} answered {reply!r}"

    def close(self) -> None:
        self._link.close()
        self._primary.close()
