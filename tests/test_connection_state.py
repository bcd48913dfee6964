"""A wait leaves its connection as it was: database, name, protocol and flags.

After every test the harness checks that for all connections and commands.
"""

from __future__ import annotations

import pytest

from harness import RespError, Server, encode_command
from harness.connection_state import check_connections
from harness.waiting import HOUR, Line, blocked_clients

WAITS = {"LOCK": "held", "RLOCK": "held", "MLOCK": "2 also held", "MRLOCK": "2 also held", "UPGRADE": "read"}
ENDS = {"granted": "fence", "DEL": "fence", "wrong type": "WRONGTYPE", "UNBLOCK": 0, "ERROR": "UNBLOCKED"}


@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_wait_leaves_the_connection_as_it_was(server: Server, name: str, end: str) -> None:
    line, holders = Line(server, "read" if name == "UPGRADE" else "held", database=3), ["x"]
    if name == "UPGRADE":
        holders = ["r1", "r2"]
        assert all(line.locks.rlock("read", token, HOUR) for token in [*holders, "me"])
    else:
        assert line.locks.lock("held", "x", HOUR)
    # A holder that waits in the other database: the search for deadlocks looks there.
    other = Line(server, "far")
    assert other.locks.lock("far", "w", HOUR)
    other.write(holders[0])
    blocked = blocked_clients(line.client)
    waiting = line.ask("me", f"SLOCK.{name}", *WAITS[name].split(), "me", HOUR, "WAIT", 0)
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
    reply, expected = waiting.reply(), "NOTHELD" if (name, end) == ("UPGRADE", "DEL") else ENDS[end]
    got = reply.prefix if isinstance(reply, RespError) else reply
    assert got == expected or (expected == "fence" and got > 0)
    check_connections([server])


def test_the_check_finds_what_a_connection_did_not_do_itself(server: Server) -> None:
    connection = server.raw()
    for words in (("SELECT", 3), ("CLIENT", "SETNAME", "mine"), ("MULTI",)):
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
