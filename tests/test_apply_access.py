"""SLOCK.APPLY is for replicas and the log; from ordinary connections only with slock.allow-apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from harness import (
    Cluster,
    Locks,
    RawConnection,
    ReplicationStream,
    RespError,
    Server,
    digest,
    key_slot,
    lock_state,
    replica_of,
    rewrite_aof,
    wait_synced,
    wait_until,
)
from harness.samples import release_samples, sample_states, take_samples
from harness.waiting import HOUR, Line

pytest_plugins = ["harness.cleanup"]

MakeServer = Callable[..., Server]

APPLY = "SLOCK.APPLY"
FENCE = 4_000_000_000_000_000

CHANGES = {
    "HOLD": ("free", f"HOLD 0 write {FENCE} 1 4000000000000 thief"),
    "EXTEND": ("k", "EXTEND 0 4000000000000 owner"),
    "RELEASE": ("k", "RELEASE 0 owner"),
    "FENCE": ("k", f"FENCE {FENCE}"),
    "nonsense": ("k", "GIVE 0 thief"),
}


def _plain(raw: RawConnection, *command: str) -> object:
    return raw.call(*command)


def _in_transaction(raw: RawConnection, *command: str) -> object:
    return raw.pipeline([("MULTI",), command, ("EXEC",)])[-1][0]


def _in_script(raw: RawConnection, *command: str) -> object:
    _, key, *words = command
    script = "return redis.call('SLOCK.APPLY', KEYS[1], unpack(ARGV))"
    return raw.call("EVAL", script, 1, key, *words)


each_way = pytest.mark.parametrize("send", [_plain, _in_transaction, _in_script])


def _assert_refused(reply: object) -> None:
    assert isinstance(reply, RespError), reply
    assert reply.text.startswith("ERR ") and "slock.allow-apply" in reply.text


def _last_fence(client: redis.Redis) -> int:
    return client.info("slock")["slock_last_fence"]


@each_way
@pytest.mark.parametrize("name", CHANGES)
def test_it_is_refused_on_a_primary(server: Server, name: str, send: Callable[..., object]) -> None:
    client = server.client()
    Locks(client).lock("k", "owner", HOUR)
    before, last, stream = digest(client, "k"), _last_fence(client), ReplicationStream(server)
    _assert_refused(send(server.raw(), APPLY, *CHANGES[name]))
    assert stream.commands() == []
    assert digest(client, "k") == before and client.dbsize() == 1 and _last_fence(client) == last
    stream.close()


@each_way
@pytest.mark.parametrize("name", CHANGES)
def test_it_is_refused_from_a_client_of_a_writable_replica(
    writable: Server, name: str, send: Callable[..., object]
) -> None:
    client = writable.client()
    before = digest(client, "k")
    _assert_refused(send(writable.raw(), APPLY, *CHANGES[name]))
    assert digest(client, "k") == before and client.dbsize() == 1


@pytest.fixture(scope="module")
def writable() -> Iterator[Server]:
    """A replica that takes writes from clients, with one lock from its primary."""
    primary, replica = Server(name="primary").start(), Server(name="replica", replica_read_only=False).start()
    replica_of(replica, primary)
    Locks(primary.client()).lock("k", "owner", HOUR)
    wait_synced(primary, replica)
    yield replica
    for server in (replica, primary):
        server.stop()
        server.discard()


# --- the setting


def _accepts(server: Server) -> bool:
    """Whether a change is applied; if not, it is refused for the right reason."""
    client = server.client()
    Locks(client).lock("k", "owner", HOUR)
    with server.raw() as raw:
        reply = raw.call(APPLY, "k", "RELEASE 0 owner")
    if reply != 1:
        _assert_refused(reply)
    assert client.exists("k") == (reply != 1)
    return reply == 1


def _shown(server: Server) -> str:
    (value,) = server.client().config_get("slock.allow-apply").values()
    return value


def test_it_is_off_by_default_and_can_be_changed_at_run_time(make_server: MakeServer) -> None:
    server = make_server()
    assert _shown(server) == "no" and not _accepts(server)
    for value in ("yes", "no", "yes"):
        server.client().config_set("slock.allow-apply", value)
        assert _shown(server) == value and _accepts(server) == (value == "yes")


@pytest.mark.parametrize("value", ["yes", "no"])
@pytest.mark.parametrize("place", ["loadmodule", "loadmodule, short name", "configuration file"])
def test_it_is_set_at_the_start(make_server: MakeServer, place: str, value: str) -> None:
    if place == "configuration file":
        server = make_server(slock_allow_apply=value)
    else:
        name = "allow-apply" if "short" in place else "slock.allow-apply"
        server = make_server(module_args=[name, value])
    assert _shown(server) == value and _accepts(server) == (value == "yes")


BAD = ["maybe", "1", "2", "yes please"]


@pytest.mark.parametrize("value", BAD)
def test_a_bad_value_is_refused_at_run_time(make_server: MakeServer, value: str) -> None:
    server = make_server()
    assert "allow-apply" in server.raw().error("CONFIG", "SET", "slock.allow-apply", value)
    assert _shown(server) == "no"


@pytest.mark.parametrize(
    "settings", [{"module_args": ["allow-apply", BAD[0]]}, {"slock_allow_apply": BAD[0]}]
)
def test_a_bad_value_is_refused_at_the_start(settings: dict[str, object]) -> None:
    server = Server(name="refused", **settings)
    try:
        assert not server.starts()
        assert "allow-apply" in server.log()
    finally:
        server.discard()


def test_where_it_is_allowed_a_stream_can_be_fed_into_a_server(make_server: MakeServer) -> None:
    source, target = make_server(name="source"), make_server(name="target", slock_allow_apply=True)
    stream = ReplicationStream(source)
    samples = take_samples(source)
    recorded = stream.commands(keep_select=True)
    assert {command[0] for command in recorded} >= {APPLY.encode()}
    fed = ReplicationStream(target)
    ReplicationStream.replay(recorded, target)
    assert APPLY in fed.names(), "it goes on to the replicas"
    assert sample_states(target) == samples
    release_samples(target)


def test_where_it_is_allowed_it_serves_those_who_wait(make_server: MakeServer) -> None:
    server = make_server(slock_allow_apply=True)
    line = Line(server)
    line.locks.lock("k", "owner", HOUR)
    waiting = line.write("waiting")
    assert server.raw().ok(APPLY, "k", "RELEASE 0 owner") == 1
    waiting.fence()


# --- those for whom it is made


def test_a_replica_takes_it_from_its_primary(primary_and_replica: tuple[Server, Server]) -> None:
    primary, replica = primary_and_replica
    samples = take_samples(primary)
    wait_synced(primary, replica)
    assert sample_states(replica) == samples
    release_samples(primary)
    wait_synced(primary, replica)
    assert replica.client().dbsize() == 0


@pytest.mark.parametrize("preamble", [True, False], ids=["preamble", "no preamble"])
@pytest.mark.parametrize("rewritten", [True, False], ids=["rewritten", "as logged"])
def test_the_log_is_loaded(make_server: MakeServer, preamble: bool, rewritten: bool) -> None:
    server = make_server(appendonly=True, aof_use_rdb_preamble=preamble)
    before = take_samples(server)
    if rewritten:
        rewrite_aof(server)
    server.client().execute_command("DEBUG", "LOADAOF")
    assert sample_states(server) == before
    server.restart(kill=True)
    assert sample_states(server) == before
    release_samples(server)


def test_a_slot_is_imported(cluster: Cluster) -> None:
    """Where slots are replicated, changes that are made meanwhile arrive as commands."""
    key = "imported"
    source = cluster.node_of(key)
    target, slot = cluster.other_than(source), key_slot(source, key)
    client = source.client()
    if b"MIGRATESLOTS" not in b" ".join(client.execute_command("CLUSTER HELP")):
        pytest.skip("this server moves slots key by key")
    locks = Locks(client)
    fence = locks.lock(key, "owner", HOUR, meta=b"m")
    client.execute_command("CLUSTER MIGRATESLOTS SLOTSRANGE", slot, slot, "NODE", cluster.node_id(target))
    state = lock_state(client, key)

    def has_moved() -> bool:
        """Each try is a change, until the slot is the target's."""
        nonlocal state
        try:
            assert locks.extend(key, "owner", HOUR) == 1
            state = lock_state(client, key)
        except redis.ResponseError:
            return cluster.node_of(key) is target
        return False

    wait_until(has_moved, 30, "the slot to have moved")
    assert Locks(target.client()).check(key, fence) == 1
    assert lock_state(target.client(), key) == state
    _assert_refused(target.raw().call(APPLY, key, "RELEASE 0 owner"))
    assert Locks(target.client()).unlock(key, "owner") == 1
