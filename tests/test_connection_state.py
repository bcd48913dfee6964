"""A command leaves its connection as it was: database, name, protocol and flags, whatever the reply."""

from __future__ import annotations

import pytest

from harness import Locks, RawConnection, RespError, Server, encode_command
from harness.commands import commands
from harness.connection_state import check_connections
from harness.waiting import HOUR, Line, WaitingClient, blocked_clients

DATABASES = (0, 3)
NAME = "mine"


def _state(connection: RawConnection) -> dict[str, str]:
    """What CLIENT INFO says of the connection that asks."""
    reply = connection.ok("CLIENT", "INFO").decode()
    fields = dict(field.split("=", 1) for field in reply.split())
    return {field: fields[field] for field in ("db", "name", "resp", "flags")}


def _is(reply: object, expected: object) -> bool:
    """An integer, None, a code of an error, or "fence" for any positive number."""
    if expected == "fence":
        return isinstance(reply, int) and reply > 0
    return (reply.prefix if isinstance(reply, RespError) else reply) == expected


# --- every command, in every kind of reply


def _fill(server: Server) -> None:
    """The same locks and queues in two databases, and waits that lead from each into the other.

    `held` belongs to `x`, and `first` waits for it; both wait for `far` in the other database as well. `mine`
    belongs to `me`; `y`, who holds `cycle`, waits for it in the other database.
    """
    for database in DATABASES:
        client = server.client(db=database)
        locks = Locks(client)
        for key, token in (("held", "x"), ("far", "w"), ("mine", "me"), ("cycle", "y")):
            assert locks.lock(key, token, HOUR)
        for token in ("r1", "r2", "me"):
            assert locks.rlock("read", token, HOUR)
        assert locks.rlock("alone", "me", HOUR)
        client.set("text", "a string")
    for database in DATABASES:
        for token, key in (("first", "held"), ("x", "far"), ("first", "far"), ("y", "mine")):
            Line(server, key, database=database).write(token)


def _client(server: Server, database: int, protocol: int = 2) -> WaitingClient:
    client = WaitingClient(server, "me", database=database, protocol=protocol)
    client.connection.ok("CLIENT", "SETNAME", NAME)
    return client


# In this order, on one connection: what is granted is given back further down.
CASES: list[tuple[object, str]] = [
    ("fence", "LOCK free me 9999 | LOCK free me 9999 | DOWNGRADE free me 9999 | UPGRADE alone me 9999"),
    ("fence", "UPGRADE free me 9999 WAIT 0 | LOCK free2 me 9999 WAIT 0 | RLOCK free3 me 9999 META m"),
    ("fence", "RLOCK free4 me 9999 EPHEMERAL | MLOCK 2 a b me 9999 WAIT 0 | MRLOCK 2 c d me 9999"),
    (1, "EXTEND free me 9999 | MEXTEND 2 a c me 9999"),
    ("fence", "PTTL free me | MPTTL 2 a c me"),
    (-2, "PTTL held me | MPTTL 2 a held me"),
    (None, "INFO nothing | INFO nothing FULL"),
    (0, "CHECK held 1 | LOCK held me 9999 | RLOCK held me 9999 | UPGRADE read me 9999 | UNLOCK held me"),
    (0, "RUNLOCK held me | EXTEND held me 9999 | MLOCK 2 a held me 9999 | MRLOCK 2 held e me 9999"),
    (0, "MEXTEND 2 a held me 9999 | MUNLOCK 2 held nothing me"),
    ("ERR", "LOCK held me | LOCK held me 0 | MLOCK 2 a a me 9999"),
    ("WRONGTYPE", "RLOCK text me 9999 | INFO text"),
    ("WRONGMODE", "RLOCK free me 9999"),
    ("NOTHELD", "UPGRADE held me 9999 | DOWNGRADE held me 9999"),
    ("DEADLOCK", "LOCK cycle me 9999 WAIT 0 | RLOCK cycle me 9999 WAIT 0"),
    ("DEADLOCK", "MLOCK 2 e cycle me 9999 WAIT 0 | MRLOCK 2 e cycle me 9999 WAIT 0"),
    (0, "LOCK held me 9999 WAIT 1 | RLOCK held me 9999 WAIT 1 | UPGRADE read me 9999 WAIT 1"),
    (0, "MLOCK 2 e held me 9999 WAIT 1 | MRLOCK 2 e held me 9999 WAIT 1"),
    (1, "UNLOCK free me | RUNLOCK free3 me"),
    (4, "MUNLOCK 4 a b c d me"),
    (1, "CANCEL held first"),
    (0, "CANCEL held me"),
]


@pytest.mark.parametrize(("database", "protocol"), [(0, 2), (3, 2), (3, 3)])
def test_every_reply_leaves_the_connection_as_it_was(server: Server, database: int, protocol: int) -> None:
    _fill(server)
    connection = _client(server, database, protocol).connection
    before = _state(connection)
    assert before == {"db": str(database), "name": NAME, "resp": str(protocol), "flags": "N"}
    seen = {"slock.info", "slock.queues"}
    assert connection.ok("SLOCK.INFO", "held", "FULL") and connection.ok("SLOCK.QUEUES")[1]
    assert _state(connection) == before
    for expected, lines in CASES:
        for line in lines.replace("9999", str(HOUR)).split("|"):
            name, *words = line.split()
            reply = connection.call(f"SLOCK.{name}", *words)
            assert _is(reply, expected), f"{line} answered {reply!r}"
            assert _state(connection) == before, line
            seen.add(f"slock.{name.lower()}")
    assert seen == set(commands(server)), "every command is among the cases"


WAITS = {
    "LOCK": "SLOCK.LOCK held me",
    "RLOCK": "SLOCK.RLOCK held me",
    "MLOCK": "SLOCK.MLOCK 2 also held me",
    "MRLOCK": "SLOCK.MRLOCK 2 also held me",
    "UPGRADE": "SLOCK.UPGRADE read me",
}
ENDS = {"granted": "fence", "DEL": "fence", "wrong type": "WRONGTYPE", "UNBLOCK": 0, "ERROR": "UNBLOCKED"}


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_wait_leaves_the_connection_as_it_was(
    server: Server, database: int, name: str, end: str
) -> None:
    line = Line(server, "read" if name == "UPGRADE" else "held", database=database)
    if name == "UPGRADE":
        holders = ["r1", "r2"]
        assert all(line.locks.rlock("read", token, HOUR) for token in [*holders, "me"])
    else:
        holders = ["x"]
        assert line.locks.lock("held", "x", HOUR)
    # A holder that waits in the other database: the search for deadlocks looks there.
    other = Line(server, "far", database=DATABASES[0] + DATABASES[1] - database)
    assert other.locks.lock("far", "w", HOUR)
    other.write(holders[0])
    waiting = _client(server, database)
    before, blocked = _state(waiting.connection), blocked_clients(line.client)
    waiting.ask(*WAITS[name].split(), HOUR, "WAIT", 0)
    line.wait_until_waiting(waiting)
    assert blocked_clients(line.client) == blocked + 1
    check_connections([server])
    match end:
        case "granted":
            assert [line.release(token) for token in holders] == [1] * len(holders)
        case "DEL":
            line.client.delete(line.key)
        case "wrong type":
            line.client.set(line.key, "a string")
        case _:
            assert line.client.client_unblock(waiting.id, error=end == "ERROR") == 1
    reply = waiting.reply()
    assert _is(reply, "NOTHELD" if (name, end) == ("UPGRADE", "DEL") else ENDS[end]), reply
    assert _state(waiting.connection) == before


# --- the check that follows each test


def test_the_check_finds_what_a_connection_did_not_do_itself(server: Server) -> None:
    connection = server.raw()
    for words in (("SELECT", 3), ("CLIENT", "SETNAME", NAME), ("MULTI",)):
        connection.ok(*words)
    check_connections([server])
    wrong = {"database": 0, "name": "", "protocol": 3, "flags": connection.state.flags - {"x"}}
    for field, value in wrong.items():
        right = getattr(connection.state, field)
        setattr(connection.state, field, value)
        with pytest.raises(AssertionError, match=r"(db|name|resp|flags)="):
            check_connections([server], timeout=0.1)
        setattr(connection.state, field, right)
    client = server.client(db=3)
    client.ping()
    check_connections([server])
    # As if a command had done it: redis-py did not send it.
    client.connection_pool.get_connection()._sock.sendall(encode_command("SELECT", 2))
    with pytest.raises(AssertionError, match="db=2, not 3"):
        check_connections([server], timeout=0.1)
    client.close()
