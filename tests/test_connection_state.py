"""A command leaves its connection as it was: database, name, protocol and flags, whatever the reply."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import RawConnection, RespError, Server, encode_command
from harness.connection_state import check_connections
from harness.many import many
from harness.waiting import HOUR, Line, WaitingClient, blocked_clients

pytest_plugins = ["harness.cleanup"]

DATABASES = (0, 3)
NAME = "mine"


def _state(connection: RawConnection) -> dict[str, str]:
    """What CLIENT INFO says of the connection that asks."""
    reply = connection.ok("CLIENT", "INFO").decode()
    fields = dict(field.split("=", 1) for field in reply.split())
    return {field: fields[field] for field in ("db", "name", "resp", "flags")}


# --- a wait that would close a cycle through another database


def test_who_is_refused_goes_on_in_his_database(server: Server) -> None:
    here, there = Line(server, "x"), Line(server, "y", database=1)
    there.locks.lock("y", "z", HOUR)
    here.locks.lock("x", "b", HOUR)
    there.write("b")
    there.client.set("text", "kept")
    z, third = WaitingClient(server, "z"), WaitingClient(server, "third")
    z.ask("SLOCK.LOCK", "x", "z", HOUR, "WAIT", 0)
    assert z.error().startswith("DEADLOCK ")
    assert z.connection.ok("SET", "mine", 1) == b"OK"
    assert here.client.get("mine") == b"1" and there.client.exists("mine") == 0

    third.ask("SLOCK.LOCK", "x", "third", HOUR, "WAIT", 0)
    here.wait_until_waiting(third)
    assert here.queued() == ["third"] and here.release("b") == 1
    fence = third.fence()
    assert here.holders() == ["third"]
    assert third.connection.ok("SLOCK.CHECK", "x", fence) == 1
    assert third.connection.ok("SLOCK.UNLOCK", "x", "third") == 1
    third.connection.ok("SET", "mine", 2)
    assert here.client.get("mine") == b"2" and there.client.exists("mine") == 0

    for waiter in (z, third):
        waiter.connection.ok("FLUSHDB")
        assert here.client.dbsize() == 0 and there.client.get("text") == b"kept"


# --- every command, in every kind of reply


class Scene:
    """The same locks and queues in two databases, and waits that lead from each into the other.

    `held` belongs to `x`, and `first` waits for it; both wait for `far` in the other database as well. `mine`
    belongs to `me`; `y`, who holds `cycle`, waits for it in the other database.
    """

    def __init__(self, server: Server) -> None:
        self.lines = {database: Line(server, "held", database=database) for database in DATABASES}
        for line in self.lines.values():
            client, locks = line.client, line.locks
            for key, token in (("held", "x"), ("far", "w"), ("mine", "me"), ("cycle", "y")):
                assert locks.lock(key, token, HOUR)
            for token in ("r1", "r2", "me"):
                assert locks.rlock("read", token, HOUR)
            assert locks.rlock("alone", "me", HOUR)
            client.set("text", "a string")
        for database, line in self.lines.items():
            line.write("first")
            for token, key in (("x", "far"), ("first", "far"), ("y", "mine")):
                Line(server, key, database=database).write(token)


def _client(server: Server, database: int, protocol: int = 2) -> WaitingClient:
    client = WaitingClient(server, "me", database=database, protocol=protocol)
    client.connection.ok("CLIENT", "SETNAME", NAME)
    return client


def _fence(reply: object) -> bool:
    return isinstance(reply, int) and reply > 0


def _is(value: object) -> Callable[[object], bool]:
    return lambda reply: reply == value and not isinstance(reply, RespError)


def _error(prefix: str) -> Callable[[object], bool]:
    return lambda reply: isinstance(reply, RespError) and reply.prefix == prefix


def _anything(reply: object) -> bool:
    return bool(reply) and not isinstance(reply, RespError)


Case = tuple[tuple[object, ...], Callable[[object], bool]]

# In this order, on one connection: what is granted is given back further down.
CASES: list[Case] = [
    # granted, made longer, changed
    (("SLOCK.LOCK", "free", "me", HOUR), _fence),
    (("SLOCK.LOCK", "free", "me", HOUR), _fence),
    (("SLOCK.DOWNGRADE", "free", "me", HOUR), _fence),
    (("SLOCK.UPGRADE", "free", "me", HOUR, "WAIT", 0), _fence),
    (("SLOCK.UPGRADE", "alone", "me", HOUR), _fence),
    (("SLOCK.LOCK", "free2", "me", HOUR, "WAIT", 0), _fence),
    (("SLOCK.RLOCK", "free3", "me", HOUR, "META", "m"), _fence),
    (("SLOCK.RLOCK", "free4", "me", HOUR, "EPHEMERAL"), _fence),
    ((*many("MLOCK", "a b", "me", HOUR), "WAIT", 0), _fence),
    (many("MRLOCK", "c d", "me", HOUR), _fence),
    (("SLOCK.EXTEND", "free", "me", HOUR), _is(1)),
    (many("MEXTEND", "a c", "me", HOUR), _is(1)),
    # looked at
    (("SLOCK.PTTL", "free", "me"), _fence),
    (("SLOCK.PTTL", "held", "me"), _is(-2)),
    (many("MPTTL", "a c", "me"), _fence),
    (many("MPTTL", "a held", "me"), _is(-2)),
    (("SLOCK.CHECK", "held", 1), _is(0)),
    (("SLOCK.INFO", "held", "FULL"), _anything),
    (("SLOCK.INFO", "nothing"), _is(None)),
    # refused
    (("SLOCK.LOCK", "held", "me", HOUR), _is(0)),
    (("SLOCK.RLOCK", "held", "me", HOUR), _is(0)),
    (("SLOCK.UPGRADE", "read", "me", HOUR), _is(0)),
    (many("MLOCK", "a held", "me", HOUR), _is(0)),
    (many("MRLOCK", "held e", "me", HOUR), _is(0)),
    (("SLOCK.UNLOCK", "held", "me"), _is(0)),
    (("SLOCK.RUNLOCK", "held", "me"), _is(0)),
    (("SLOCK.EXTEND", "held", "me", HOUR), _is(0)),
    (many("MEXTEND", "a held", "me", HOUR), _is(0)),
    (many("MUNLOCK", "held nothing", "me"), _is(0)),
    # errors
    (("SLOCK.LOCK", "held", "me"), _error("ERR")),
    (("SLOCK.LOCK", "held", "me", 0), _error("ERR")),
    (("SLOCK.RLOCK", "text", "me", HOUR), _error("WRONGTYPE")),
    (("SLOCK.INFO", "text"), _error("WRONGTYPE")),
    (("SLOCK.RLOCK", "free", "me", HOUR), _error("WRONGMODE")),
    (("SLOCK.UPGRADE", "held", "me", HOUR), _error("NOTHELD")),
    (("SLOCK.DOWNGRADE", "held", "me", HOUR), _error("NOTHELD")),
    (many("MLOCK", "a a", "me", HOUR), _error("ERR")),
    # waits that would close a cycle through the other database
    (("SLOCK.LOCK", "cycle", "me", HOUR, "WAIT", 0), _error("DEADLOCK")),
    (("SLOCK.RLOCK", "cycle", "me", HOUR, "WAIT", 0), _error("DEADLOCK")),
    ((*many("MLOCK", "e cycle", "me", HOUR), "WAIT", 0), _error("DEADLOCK")),
    ((*many("MRLOCK", "e cycle", "me", HOUR), "WAIT", 0), _error("DEADLOCK")),
    # waits whose time runs out
    (("SLOCK.LOCK", "held", "me", HOUR, "WAIT", 1), _is(0)),
    (("SLOCK.RLOCK", "held", "me", HOUR, "WAIT", 1), _is(0)),
    (("SLOCK.UPGRADE", "read", "me", HOUR, "WAIT", 1), _is(0)),
    ((*many("MLOCK", "e held", "me", HOUR), "WAIT", 1), _is(0)),
    ((*many("MRLOCK", "e held", "me", HOUR), "WAIT", 1), _is(0)),
    # given back
    (("SLOCK.UNLOCK", "free", "me"), _is(1)),
    (("SLOCK.RUNLOCK", "free3", "me"), _is(1)),
    (many("MUNLOCK", "a b c d", "me"), _is(4)),
]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("database", DATABASES)
def test_every_reply_leaves_the_connection_as_it_was(server: Server, database: int, protocol: int) -> None:
    Scene(server)
    connection = _client(server, database, protocol).connection
    before = _state(connection)
    assert before == {"db": str(database), "name": NAME, "resp": str(protocol), "flags": "N"}
    for command, is_right in CASES:
        reply = connection.call(*command)
        assert is_right(reply), f"{command} answered {reply!r}"
        assert _state(connection) == before, command
    commands = {command[0].lower() for command, _ in CASES}
    with server.raw() as raw:
        listed = {name.decode() for name in raw.ok("COMMAND", "LIST", "FILTERBY", "MODULE", "slock")}
    assert listed - commands == {"slock.apply"}, "every command is among the cases"


WAITS = {
    "LOCK": ("SLOCK.LOCK", "held", "me", HOUR),
    "RLOCK": ("SLOCK.RLOCK", "held", "me", HOUR),
    "MLOCK": many("MLOCK", "also held", "me", HOUR),
    "MRLOCK": many("MRLOCK", "also held", "me", HOUR),
    "UPGRADE": ("SLOCK.UPGRADE", "read", "me", HOUR),
}


@pytest.mark.parametrize("end", ["granted", "DEL", "wrong type", "UNBLOCK", "UNBLOCK ERROR"])
@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize("database", DATABASES)
def test_the_end_of_a_wait_leaves_the_connection_as_it_was(
    server: Server, database: int, name: str, end: str
) -> None:
    line = Scene(server).lines[database]
    waiting = _client(server, database)
    before, blocked = _state(waiting.connection), blocked_clients(line.client)
    waiting.ask(*WAITS[name], "WAIT", 0)
    line.wait_until_waiting(waiting)
    assert blocked_clients(line.client) == blocked + 1
    check_connections([server])
    reply = _end(line, waiting, WAITS[name], end)
    prefix = {"wrong type": "WRONGTYPE", "UNBLOCK ERROR": "UNBLOCKED"}.get(end, "")
    if name == "UPGRADE" and end == "DEL":
        prefix = "NOTHELD"
    is_right = _error(prefix) if prefix else _is(0) if end == "UNBLOCK" else _fence
    assert is_right(reply), reply
    assert _state(waiting.connection) == before


def _end(line: Line, waiting: WaitingClient, command: tuple[object, ...], end: str) -> object:
    key = "read" if "read" in command else "held"
    match end:
        case "granted" if key == "read":
            assert line.locks.runlock(key, "r1") and line.locks.runlock(key, "r2")
        case "granted":
            assert line.locks.unlock(key, "x")
        case "DEL":
            line.client.delete(key)
        case "wrong type":
            line.client.set(key, "a string")
        case "UNBLOCK":
            assert line.client.client_unblock(waiting.id) == 1
        case "UNBLOCK ERROR":
            assert line.client.client_unblock(waiting.id, error=True) == 1
    if end in ("granted", "DEL") and key == "held":
        # The one before it in the queue is served first.
        first = next(
            waiter for waiter in WaitingClient.every if waiter.token == "first" and waiter.is_answered()
        )
        first.fence()
        assert line.release("first") == 1
    return waiting.reply()


# --- the check that follows each test


def test_the_check_finds_what_a_connection_did_not_do_itself(server: Server) -> None:
    connection = server.raw()
    connection.ok("SELECT", 3)
    connection.ok("CLIENT", "SETNAME", NAME)
    connection.ok("MULTI")
    check_connections([server])
    for field, value in (
        ("database", 0),
        ("name", ""),
        ("protocol", 3),
        ("flags", connection.state.flags - {"x"}),
    ):
        right = getattr(connection.state, field)
        setattr(connection.state, field, value)
        with pytest.raises(AssertionError, match=r"(db|name|resp|flags)="):
            check_connections([server])
        setattr(connection.state, field, right)


def test_the_check_knows_the_connections_of_client_libraries(server: Server) -> None:
    client = server.client(db=3)
    client.ping()
    check_connections([server])
    # As if a command had done it: redis-py did not send it.
    client.connection_pool.get_connection()._sock.sendall(encode_command("SELECT", 2))
    with pytest.raises(AssertionError, match="db=2, not 3"):
        check_connections([server])
    client.close()
