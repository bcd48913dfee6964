"""What most tests know about servers; what only some need is imported from the modules."""
# ruff: noqa: F401

from harness.aof import aof_commands, rewrite_aof, wait_until_logged
from harness.clock import Clock
from harness.cluster import Cluster, key_slot
from harness.events import Event, Events
from harness.locks import Locks, LockState, digest, lock_state
from harness.raw import RawConnection, RespError, encode_command
from harness.replication import ReplicationStream, promote, replica_of, wait_synced
from harness.server import MakeServer, Server, ServerError
from harness.settings import rounds
from harness.wait import now_ms, stays, wait_past, wait_until
