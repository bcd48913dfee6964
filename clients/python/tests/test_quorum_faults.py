"""A quorum under faults: interrupts, distant servers, and servers that Sentinels name."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

import slock_client
import slock_client.asyncio
from harness import MakeServer, Server, wait_until
from harness.settings import free_port, server_binary
from late_proxy import LateProxy
from slock_client._sync._hold import Held

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


class Once:
    """A hook `waited` that ends as Ctrl-C does, the first time. It notes the outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def __call__(self, label: str, duration: timedelta, outcome: str) -> None:
        self.outcomes.append(outcome)
        if len(self.outcomes) == 1:
            signal.raise_signal(signal.SIGINT)


def is_free(server: Server) -> bool:
    return server.client().execute_command("SLOCK.INFO", "job") is None


# --- a server that takes long to connect to


def test_an_attempt_to_connect_outlives_who_waits_for_it(server: Server) -> None:
    """A thread: the node has less time for its answer than it takes to connect."""
    proxy = LateProxy(server.port, accepts=False)
    client = redis.Redis(port=proxy.port, socket_timeout=60)
    with slock_client.Quorum([client], ttl=MINUTE, node_timeout=SECOND) as quorum:
        with pytest.raises(slock_client.QuorumMissedError, match="no connection"):
            quorum.write("job").try_acquire()
        proxy.accept()
        with quorum.write("job", wait=MINUTE):
            assert proxy.accepted == 1
    proxy.close()


def test_an_attempt_to_connect_outlives_the_task_that_waits_for_it(server: Server) -> None:
    async def main() -> None:
        proxy = LateProxy(server.port, accepts=False)
        client = redis.asyncio.Redis(port=proxy.port, socket_timeout=60)
        async with slock_client.asyncio.Quorum([client], ttl=MINUTE, node_timeout=SECOND) as quorum:
            with pytest.raises(slock_client.QuorumMissedError):
                await quorum.write("job").try_acquire()
            proxy.accept()
            async with quorum.write("job", wait=MINUTE):
                assert proxy.accepted == 1
        await client.aclose()
        proxy.close()

    asyncio.run(main())


# --- interrupts


def test_ctrl_c_after_the_grant_releases_everywhere(make_server: MakeServer) -> None:
    servers = [make_server() for _ in range(3)]
    hook = Once()
    clients = [redis.Redis(port=server.port) for server in servers]
    with slock_client.Quorum(clients, ttl=MINUTE, hooks=slock_client.Hooks(waited=hook)) as quorum:
        with pytest.raises(KeyboardInterrupt):
            quorum.write("job").acquire()
        for server in servers:
            wait_until(lambda server=server: is_free(server))
        assert hook.outcomes == ["granted", "cancelled"]
        wait_until(lambda: not quorum._watchdog._entries)


def test_ctrl_c_before_the_acquisition_has_ended_releases_too(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    quorum = slock_client.Quorum([redis.Redis(port=server.port)], ttl=MINUTE)
    shared = quorum._shared
    end = shared.end

    def interrupted(one: object) -> None:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)
        end(one)

    monkeypatch.setattr(shared, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quorum.write("job").acquire()
    wait_until(lambda: is_free(server))
    quorum.close()


def test_ctrl_c_twice_while_the_server_is_silent(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second ends the withdrawal. `close` returns all the same."""
    server = make_server()
    server.client().execute_command("SLOCK.LOCK", "job", "other", 60_000)
    locks = slock_client.Locks(redis.Redis(port=server.port), ttl=MINUTE)
    withdraws = threading.Event()
    give_up = Held.give_up

    def noted(*arguments: Any) -> Any:
        withdraws.set()
        return give_up(*arguments)

    monkeypatch.setattr(Held, "give_up", noted)

    def interrupt() -> None:
        wait_until(lambda: server.client().execute_command("SLOCK.QUEUES"))
        server.pause()
        os.kill(os.getpid(), signal.SIGINT)
        assert withdraws.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        locks.write("job").acquire()
    interrupting.join()
    server.resume()
    closing = threading.Thread(target=locks.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()


# --- what is under way when the program ends


def test_a_cancelled_acquisition_is_withdrawn_before_the_program_ends(server: Server) -> None:
    """The request comes to the server when the program has ended: what withdraws it comes after it."""
    proxy = LateProxy(server.port)

    async def main() -> None:
        client = redis.asyncio.Redis(port=proxy.port)
        quorum = slock_client.asyncio.Quorum([client], ttl=MINUTE)
        assert await (await quorum.write("other").acquire()).release()  # it is connected
        server.client().config_resetstat()
        proxy.keep("SLOCK.LOCK")
        task = asyncio.create_task(quorum.write("job").acquire())
        while not proxy.has_kept():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.aclose()

    asyncio.run(main())
    proxy.deliver()
    wait_until(lambda: "cmdstat_slock.lock" in server.client().info("commandstats"))
    wait_until(lambda: is_free(server))
    proxy.close()


def test_an_asyncio_wait_without_limit_ends_when_no_server_answers() -> None:
    async def main() -> None:
        clients = [redis.asyncio.Redis(port=free_port()) for _ in range(3)]
        async with slock_client.asyncio.Quorum(clients) as quorum:
            with pytest.raises(slock_client.QuorumMissedError):
                await asyncio.wait_for(quorum.write("job").acquire(), 10)

    asyncio.run(main())


# --- distant servers


class Distance:
    """Passes on what clients send to a server, each piece after `seconds`."""

    def __init__(self, server: Server) -> None:
        self.seconds = 0.0
        self._server = server
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server.port))
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, target, pause in ((client, server, self._pause), (server, client, lambda: None)):
                threading.Thread(target=self._pass_on, args=(source, target, pause), daemon=True).start()

    def _pause(self) -> None:
        time.sleep(self.seconds)

    def _pass_on(self, source: socket.socket, target: socket.socket, pause: Callable[[], None]) -> None:
        try:
            while data := source.recv(65536):
                pause()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        finally:
            source.close()


def test_many_holds_at_a_distant_server_are_renewed(server: Server) -> None:
    """One after the other they would take longer than a node may take."""
    distance = Distance(server)
    client = redis.Redis(port=distance.port)
    with slock_client.Quorum([client], ttl=5 * SECOND, node_timeout=SECOND / 2) as quorum:
        holds = [quorum.write(f"job{number}").acquire() for number in range(200)]
        first = {hold.token: hold.valid_until for hold in holds}
        distance.seconds = 0.03

        def all_renewed() -> bool:
            assert not any(hold.lost for hold in holds)
            return all(hold.valid_until > first[hold.token] + 3 for hold in holds)

        wait_until(all_renewed, 30)
        distance.seconds = 0.0
    distance.close()


# --- Sentinels that all say the same name


@pytest.fixture
def sentinels(make_server: MakeServer, tmp_path: Path) -> Iterator[list[int]]:
    """The ports of three Sentinels. Each knows another primary as `mymaster`."""
    ports, processes = [], []
    for number in range(3):
        ports.append(free_port())
        directory = tmp_path / str(number)
        directory.mkdir()
        config = directory / "sentinel.conf"
        config.write_text(
            f"port {ports[-1]}\ndir {directory}\nsentinel monitor mymaster 127.0.0.1 {make_server().port} 1\n"
        )
        command = [server_binary(), str(config), "--sentinel"]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    for port in ports:
        wait_until(lambda port=port: _answers(port), 20)
    yield ports
    for process in processes:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with redis.Redis(port=port) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False


NAMES = ["mymaster (1)", "mymaster (2)", "mymaster (3)"]


def test_primaries_of_one_name(sentinels: list[int]) -> None:
    clients = [redis.sentinel.Sentinel([("127.0.0.1", port)]).master_for("mymaster") for port in sentinels]
    with slock_client.Quorum(clients, ttl=MINUTE, node_timeout=5 * SECOND) as quorum:
        hold = quorum.write("job", wait=10 * SECOND).acquire()
        hold.extend()
        wait_until(lambda: all(client.exists("job") for client in clients))
        assert set(hold.fences) <= set(NAMES) and len(hold.fences) >= 2
        assert quorum.release("job", hold.token) == 3


def test_primaries_of_one_name_with_asyncio(sentinels: list[int]) -> None:
    async def main() -> None:
        clients = [
            redis.asyncio.sentinel.Sentinel([("127.0.0.1", port)]).master_for("mymaster")
            for port in sentinels
        ]
        async with slock_client.asyncio.Quorum(clients, ttl=MINUTE, node_timeout=5 * SECOND) as quorum:
            hold = await quorum.write("job", wait=10 * SECOND).acquire()
            await hold.extend()
            assert set(hold.fences) <= set(NAMES) and len(hold.fences) >= 2
            while len(hold.fences) < 3:  # the third may grant after the majority
                await asyncio.wait_for(asyncio.sleep(0.01), 10)
            assert await quorum.release("job", hold.token) == 3
        for client in clients:
            await client.aclose()

    asyncio.run(main())


# --- hooks


def test_a_refusal_is_told_apart_from_a_wait_that_ran_out(server: Server, client: redis.Redis) -> None:
    client.execute_command("SLOCK.LOCK", "job", "other", 60_000)
    outcomes: list[str] = []
    hooks = slock_client.Hooks(waited=lambda label, duration, outcome: outcomes.append(outcome))
    base = redis.Redis(port=server.port)
    for locks in (slock_client.Locks(base, hooks=hooks), slock_client.Quorum([base], hooks=hooks)):
        with locks:
            assert locks.write("job").try_acquire() is None
            with pytest.raises(slock_client.TimedOutError):
                locks.write("job", wait=SECOND / 10).acquire()

    async def main() -> None:
        asyncio_base = redis.asyncio.Redis(port=server.port)
        for locks in (
            slock_client.asyncio.Locks(asyncio_base, hooks=hooks),
            slock_client.asyncio.Quorum([asyncio_base], hooks=hooks),
        ):
            async with locks:
                assert await locks.write("job").try_acquire() is None
                with pytest.raises(slock_client.TimedOutError):
                    await locks.write("job", wait=SECOND / 10).acquire()
        await asyncio_base.aclose()

    asyncio.run(main())
    assert outcomes == ["refused", "timed out"] * 4
