"""What most tests know about servers; what only some need is imported from the modules."""

from harness.aof import aof_commands, aof_directory, parse_commands, rewrite_aof, wait_until_logged
from harness.clock import Clock
from harness.cluster import Cluster, key_slot
from harness.effort import rounds
from harness.events import Event, Events
from harness.locks import Holder, Info, Locks, LockState, Waiter, digest, lock_state
from harness.raw import Push, RawConnection, RespError, encode_command
from harness.replication import ReplicationStream, promote, replica_of, wait_synced
from harness.server import Server, ServerError
from harness.wait import now_ms, stays, wait_past, wait_until

__all__ = [
    "Clock",
    "Cluster",
    "Event",
    "Events",
    "Holder",
    "Info",
    "LockState",
    "Locks",
    "Push",
    "RawConnection",
    "ReplicationStream",
    "RespError",
    "Server",
    "ServerError",
    "Waiter",
    "aof_commands",
    "aof_directory",
    "digest",
    "encode_command",
    "key_slot",
    "lock_state",
    "now_ms",
    "parse_commands",
    "promote",
    "replica_of",
    "rewrite_aof",
    "rounds",
    "stays",
    "wait_past",
    "wait_synced",
    "wait_until",
    "wait_until_logged",
]
