"""`slock_client.testing`: tests of a program without a server, and a fixture that starts one."""

from __future__ import annotations

import pytest
import redis

import slock_client
from slock_client.testing import MemoryServer, slock_server

__all__ = ["slock_server"]


def report(locks: slock_client.Locks) -> str:
    """What is tested: a program."""
    try:
        with locks.write("report", wait=0.05) as hold:
            hold.check()
            return "written"
    except slock_client.TimedOutError:
        return "busy"
    except slock_client.NoAnswerError:
        return "down"


def test_a_program_without_a_server() -> None:
    server = MemoryServer()
    locks = slock_client.Locks(server, retry_for=0.1)
    assert report(locks) == "written"
    release = server.hold("report")
    assert report(locks) == "busy"
    release()
    for request, told in ((locks.write("a", "a"), "named twice"), (locks.write("a", ttl=1e6), "the ttl must")):
        with pytest.raises(redis.ResponseError, match=told):
            request.acquire()
    server.fail(ConnectionError("no route"))
    assert report(locks) == "down"
    server.fail(None)
    with pytest.raises(slock_client.LostError), locks.write("report") as hold:
        assert server.holders("report") == [hold.token]
        server.lose("report")
        assert hold.wait_lost(10)
    locks.close()


def test_the_fixture(slock_server: int) -> None:
    with slock_client.Locks(redis.Redis(port=slock_server)) as locks:
        assert report(locks) == "written"
