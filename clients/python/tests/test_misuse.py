"""What is refused at once, and what messages say."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio

import slock_client
import slock_client.asyncio
import slock_client.asyncio.drop_in
import slock_client.drop_in
from harness import MakeServer, Server, wait_until

MS = timedelta(milliseconds=1)


def test_a_ttl_that_leaves_no_validity_is_refused(server: Server) -> None:
    with slock_client.Locks(redis.Redis(port=server.port), renew=False) as locks:
        with pytest.raises(ValueError, match="ttl must be at least 2 ms"):
            locks.write("job", ttl=MS)
        with pytest.raises(ValueError, match="ttl must be at least 2 ms"):
            slock_client.Locks(redis.Redis(port=server.port), ttl=MS)
        hold = locks.write("job").acquire()
        with pytest.raises(ValueError, match="ttl must be at least 2 ms"):
            hold.extend(MS)
        hold.check()
        assert hold.release()
        locks.write("job", ttl=2 * MS)


def test_a_hold_that_was_released_is_no_hold(server: Server) -> None:
    with slock_client.Locks(redis.Redis(port=server.port)) as locks:
        hold = locks.write("job").acquire()
        assert hold.release()
        with pytest.raises(slock_client.NotHeldError, match="job has been released"):
            hold.check()
        with pytest.raises(slock_client.NotHeldError), hold:
            pytest.fail("the block was entered")

    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        async with slock_client.asyncio.Locks(client) as locks:
            hold = await locks.write("job").acquire()
            assert await hold.release()
            with pytest.raises(slock_client.NotHeldError, match="job has been released"):
                hold.check()
            with pytest.raises(slock_client.NotHeldError):
                async with hold:
                    pytest.fail("the block was entered")
        await client.aclose()

    asyncio.run(main())


def test_generators_are_not_decorated(server: Server) -> None:
    """Their work is done after the call."""
    with slock_client.Locks(redis.Redis(port=server.port)) as locks:
        with pytest.raises(TypeError, match="generator"):

            @locks.write("job")
            def rows() -> Iterator[int]:
                yield 1

        with pytest.raises(TypeError, match="generator"):

            @locks.write("job")
            async def others() -> AsyncIterator[int]:
                yield 1


def test_a_release_by_token_without_keys_is_refused(server: Server) -> None:
    locks = slock_client.Locks(redis.Redis(port=server.port))
    with locks, pytest.raises(ValueError, match="needs a key"):
        locks.release([], "token")


def test_changes_of_a_lost_hold_raise_lost(server: Server, client: redis.Redis) -> None:
    with slock_client.Locks(redis.Redis(port=server.port), renew=False) as locks:
        for change in ("extend", "upgrade"):
            hold = locks.read("job").acquire()
            client.delete("job")
            with pytest.raises(slock_client.LostError, match="gone"):
                getattr(hold, change)()
            with pytest.raises(slock_client.LostError, match="gone"):
                getattr(hold, change)()

    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        async with slock_client.asyncio.Locks(own, renew=False) as locks:
            for change in ("extend", "upgrade"):
                hold = await locks.read("job").acquire()
                client.delete("job")
                with pytest.raises(slock_client.LostError, match="gone"):
                    await getattr(hold, change)()
        await own.aclose()

    asyncio.run(main())


def test_a_second_change_of_mode_is_refused_while_one_goes_on(server: Server, client: redis.Redis) -> None:
    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        async with slock_client.asyncio.Locks(own) as locks:
            hold, other = await locks.read("job").acquire(), await locks.read("job").acquire()
            first = asyncio.create_task(hold.upgrade())
            while not client.info("slock")["slock_waiters"]:
                await asyncio.sleep(0.01)
            with pytest.raises(slock_client.RefusedError, match="another change"):
                await hold.upgrade()
            await other.release()
            await first
            assert hold.mode == "write"
        await own.aclose()

    asyncio.run(main())


def refuse_renewals(server: Server) -> None:
    server.client().execute_command("ACL", "SETUSER", "worker", "-slock.extend")


def make_worker(server: Server) -> dict[str, Any]:
    """The credentials of a user who may be refused the renewals."""
    server.client().execute_command("ACL", "SETUSER", "worker", "on", "nopass", "~*", "&*", "+@all")
    return {"port": server.port, "username": "worker", "password": "x"}


def test_a_renewal_that_is_refused_is_told(make_server: MakeServer, caplog: pytest.LogCaptureFixture) -> None:
    server = make_server()
    worker = make_worker(server)
    ttl = timedelta(seconds=1)
    with slock_client.Locks(redis.Redis(**worker), ttl=ttl) as locks:
        hold = locks.write("job").acquire()
        refuse_renewals(server)
        assert hold.wait_lost(timedelta(seconds=30))
        with pytest.raises(slock_client.LostError, match="expired") as caught:
            hold.check()
        assert isinstance(caught.value.__cause__, redis.exceptions.NoPermissionError)
    assert caplog.text.count("job: a renewal failed") == 1
    caplog.clear()

    async def main() -> None:
        client = redis.asyncio.Redis(**worker)
        async with slock_client.asyncio.Locks(client, ttl=ttl) as locks:
            with pytest.raises(slock_client.LostError, match="expired") as lost:
                async with locks.write("other"):
                    refuse_renewals(server)
                    await asyncio.Event().wait()
            assert isinstance(lost.value.__cause__, redis.exceptions.NoPermissionError)
        await client.aclose()

    make_worker(server)
    asyncio.run(main())
    assert caplog.text.count("other: a renewal failed") == 1


def test_a_refused_renewal_of_a_quorum_and_of_the_drop_in(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    class ShortLock(slock_client.drop_in.Lock):
        watchdog_ttl = timedelta(seconds=1)

    server = make_server()
    client = redis.Redis(**make_worker(server))
    # A twentieth of the ttl is too little for a connection on a busy machine.
    node_timeout = timedelta(milliseconds=800)
    with slock_client.Quorum([client], ttl=timedelta(seconds=1), node_timeout=node_timeout) as quorum:
        hold = quorum.write("job").acquire()
        lock = client.lock("other", lock_class=ShortLock)
        assert lock.acquire()
        refuse_renewals(server)
        assert hold.wait_lost(timedelta(seconds=30))
        with pytest.raises(slock_client.LostError) as caught:
            hold.check()
        assert isinstance(caught.value.__cause__, redis.exceptions.NoPermissionError)
        wait_until(lambda: not lock.owned())
    assert caplog.text.count("job: a renewal failed") == 1
    assert caplog.text.count("other: a renewal failed") == 1


def test_a_quorum_counts_all_nodes_that_released(make_server: MakeServer) -> None:
    servers = [make_server() for _ in range(3)]
    with slock_client.Quorum([redis.Redis(port=one.port) for one in servers]) as quorum:
        for _ in range(20):
            hold = quorum.write("job", renew=False).acquire()
            wait_until(lambda: all(one.client().exists("job") for one in servers))
            assert quorum.release("job", hold.token) == 3
        assert quorum.release("job", "nobody") == 0

    async def main() -> None:
        clients = [redis.asyncio.Redis(port=one.port) for one in servers]
        async with slock_client.asyncio.Quorum(clients) as quorum:
            for _ in range(20):
                hold = await quorum.write("job", renew=False).acquire()
                # Off the event loop: a slow node follows there.
                await asyncio.to_thread(
                    wait_until, lambda: all(one.client().exists("job") for one in servers)
                )
                assert await quorum.release("job", hold.token) == 3
        for client in clients:
            await client.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (slock_client.HoldOptions, set()),
        (slock_client.RequestOptions, {"wait"}),
        (slock_client.ReadOptions, {"limit"}),
    ],
)
def test_each_option_is_documented(options: Any, more: set[str]) -> None:
    text = inspect.getdoc(options) or ""
    own = {"limit"} if options is slock_client.ReadOptions else set(options.__annotations__)
    for name in own | more:
        assert f"- `{name}`" in text


async def coroutine(*_: object) -> None:
    pass


class Callable:
    async def __call__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("package", [slock_client, slock_client.asyncio])
@pytest.mark.parametrize("on_lost", [coroutine, Callable(), "text"])
def test_on_lost_is_an_ordinary_function(package: Any, on_lost: Any) -> None:
    client = redis.Redis() if package is slock_client else redis.asyncio.Redis()
    with pytest.raises(TypeError, match="on_lost must be"):
        package.Locks(client).write("job", on_lost=on_lost)


def test_the_decorator_is_for_functions_of_its_kind() -> None:
    with pytest.raises(TypeError, match="async def"):
        slock_client.asyncio.Locks(redis.asyncio.Redis()).write("job")(lambda: None)
    with pytest.raises(TypeError, match="ordinary functions"):
        slock_client.Locks(redis.Redis()).write("job")(coroutine)


def test_keys_are_arguments_of_their_own() -> None:
    locks = slock_client.Locks(redis.Redis())
    with pytest.raises(TypeError, match="give each key as an argument of its own"):
        locks.write(["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not int"):
        locks.write(1)  # type: ignore[arg-type]


def test_a_request_shows_its_mode_and_keys_and_no_token() -> None:
    options: dict[str, Any] = {"ttl": timedelta(seconds=2.5), "limit": 3, "token": "secret"}
    for locks in (slock_client.Locks(redis.Redis()), slock_client.asyncio.Locks(redis.asyncio.Redis())):
        assert repr(locks.write("a", b"b")) == "<Request write a, b>"
        assert repr(locks.read("a", **options)) == "<Request read a>"


@pytest.mark.parametrize("package", [slock_client, slock_client.asyncio])
def test_options_that_a_quorum_does_not_have(package: Any) -> None:
    clients = [redis.Redis() if package is slock_client else redis.asyncio.Redis()]
    with pytest.raises(TypeError, match="no option `waiting`: it polls, as `poll` says"):
        package.Quorum(clients, waiting="block")
    with pytest.raises(TypeError, match="no option `min_replicas`"):
        package.Quorum(clients).write("job", min_replicas=1)
    with pytest.raises(TypeError, match="no option `replica_timeout`"):
        package.Quorum(clients).read("job", replica_timeout=timedelta(seconds=1))
