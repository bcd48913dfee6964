"""A command leaves its connection as it was: database, name, protocol and flags.

After every test the harness checks that for all connections. Here is that it finds what is otherwise.
"""

from __future__ import annotations

import pytest

from harness import Server, encode_command
from harness.connection_state import check_connections


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
