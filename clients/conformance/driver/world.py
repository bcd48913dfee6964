"""The servers of a scenario: one, one behind the proxy, one with a replica, five for a quorum."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

from driver.agent import Agent
from driver.proxy import Proxy, Running
from harness import RawConnection, RespError, Server, replica_of, wait_until

# A machine that stands still for some seconds is no outage.
RETRY_FOR_MS = 15_000
# Only what never happens takes so long.
TIMEOUT_SECONDS = 30.0


class World:
    """Servers by name, and how an agent opens them. A server that is alone is called `main`."""

    def __init__(self, servers: dict[str, Server]) -> None:
        self.servers = servers
        self._proxy: Running | None = None
        self._connections: dict[str, RawConnection] = {}

    @property
    def proxy(self) -> Running:
        """The proxy before `main`, which is started when it is first used."""
        if self._proxy is None:
            self._proxy = Running(Proxy, self.servers["main"].port)
        return self._proxy

    def open_fields(self, through_proxy: bool = False) -> tuple[str, dict[str, Any]]:
        """The operation that opens these servers, and its fields."""
        ports = [server.port for server in self.servers.values()]
        if len(ports) > 2:
            return "open_quorum", {"nodes": [f"127.0.0.1:{port}" for port in ports]}
        port = self.proxy.port() if through_proxy else ports[0]
        return "open", {"kind": "single", "nodes": [f"127.0.0.1:{port}"], "retry_for_ms": RETRY_FOR_MS}

    def call(self, name: str, *command: Any) -> Any:
        """The reply of a server to one command, with texts for bytes. An error reply is a text."""
        connection = self._connections.get(name)
        if connection is None:
            connection = self._connections[name] = RawConnection(self.servers[name].port)
        try:
            return as_text(connection.call(*command))
        except OSError:
            self.forget_connections(name)
            raise

    def forget_connections(self, name: str) -> None:
        connection = self._connections.pop(name, None)
        if connection is not None:
            connection.close()

    def use(self, agent: Agent) -> None:
        """Before a scenario with this agent."""

    def running(self) -> list[str]:
        return [name for name, server in self.servers.items() if server.is_running and not server.is_paused]

    def wait_until_nothing_is_left(self) -> None:
        """No hold, no waiter and no listening connection, on any server."""
        for name in self.running():
            try:
                wait_until(lambda name=name: not self._left(name), TIMEOUT_SECONDS)
            except AssertionError:
                raise AssertionError(self._what_is_left(name)) from None

    def _left(self, name: str) -> dict[str, Any]:
        lines = self.call(name, "INFO", "slock").splitlines()
        counts = dict(line.split(":", 1) for line in lines if ":" in line)
        counted = ("slock_locks", "slock_waiters")
        left = {what: counts[what] for what in counted if counts.get(what, "0") != "0"}
        listening = self.call(name, "CLIENT", "LIST", "TYPE", "PUBSUB")
        return {**left, "listening": listening} if listening else left

    def _what_is_left(self, name: str) -> str:
        locks = {key: self.call(name, "SLOCK.INFO", key, "FULL") for key in self.call(name, "KEYS", "*")}
        queues = self.call(name, "SLOCK.QUEUES", "COUNT", 0)
        return f"left on {name}: {self._left(name)}; locks: {locks}; queues: {queues}"

    def recover(self) -> None:
        """All servers run, without data, users and connections of the last scenario."""
        if self._proxy:
            self._proxy.reset()
        for name, server in self.servers.items():
            self.forget_connections(name)
            if not server.is_running:
                server.kill9()
                server.start()
            server.resume()
            for user in self.call(name, "ACL", "USERS"):
                if user != "default":
                    self.call(name, "ACL", "DELUSER", user)
            self.call(name, "FLUSHALL")
            server.check()

    def close(self) -> None:
        for name in list(self._connections):
            self.forget_connections(name)
        if self._proxy:
            self._proxy.close()
        problems = []
        for server in self.servers.values():
            try:
                server.stop()
            except AssertionError as problem:
                problems.append(str(problem))
            server.discard()
        assert not problems, "\n".join(problems)


def make_world(kind: str) -> World:
    """Starts the servers of one arrangement."""
    if kind == "bare":
        return World({"main": Server(name="bare", module=False).start()})
    if kind == "quorum":
        names = [f"n{number}" for number in range(1, 6)]
        return World({name: Server(name=name).start() for name in names})
    main = Server(name="main").start()
    if kind == "replica":
        replica = Server(name="replica").start()
        replica_of(replica, main)
        return World({"main": main, "replica": replica})
    return World({"main": main})


def as_text(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "replace")
    if isinstance(reply, RespError):
        return reply.text
    if isinstance(reply, list):
        return [as_text(one) for one in reply]
    return reply


class Worlds:
    """Servers by the name of their arrangement, used again. `own`, `bare` and what `is_new` are not."""

    def __init__(self) -> None:
        self._kept: dict[str, World] = {}
        self._used: list[World] = []
        self._own: list[World] = []

    def get(self, kind: str, is_new: bool = False) -> World:
        if kind == "memory":
            return MemoryWorld()
        if is_new or kind in ("own", "bare"):
            self._own.append(make_world(kind))
            return self._own[-1]
        if kind not in self._kept:
            self._kept[kind] = make_world(kind)
        self._used.append(self._kept[kind])
        return self._used[-1]

    def forget(self, world: World) -> None:
        """After a failure: its servers may have other settings than they should."""
        if world in self._kept.values():
            self._used.remove(world)
            self._kept = {kind: one for kind, one in self._kept.items() if one is not world}
            self._own.append(world)

    def recover(self) -> None:
        """After a test. An agent that failed has to have ended: it may hold locks or wait for some."""
        while self._used:
            self._used.pop().recover()
        while self._own:
            self._own.pop().close()

    def close(self) -> None:
        self.recover()
        while self._kept:
            self._kept.popitem()[1].close()


class MemoryWorld(World):
    """The memory transport of a library, which is asked by an agent."""

    names = itertools.count()

    def __init__(self) -> None:
        super().__init__({})
        self._nodes = [f"memory-{next(self.names)}"]
        self._keys: set[str] = set()

    def use(self, agent: Agent) -> None:
        self._agent, self._locks = agent, agent.new_name("memory")
        agent.ask("open", locks=self._locks, **self.open_fields()[1])

    def open_fields(self, through_proxy: bool = False) -> tuple[str, dict[str, Any]]:
        return "open", {"kind": "memory", "nodes": self._nodes}

    def call(self, name: str, *command: Any) -> Any:
        if command[0] == "SLOCK.INFO":
            self._keys.add(command[1])
        return self._agent.ask("raw", locks=self._locks, command=[*map(str, command)])["reply"]

    def running(self) -> list[str]:
        return ["main"]

    def wait_until_nothing_is_left(self) -> None:
        """Nobody holds or waits for what the scenario has looked at."""
        for key in self._keys:
            what = f"{key} to be free"
            wait_until(lambda key=key: self.call("main", "SLOCK.INFO", key) is None, TIMEOUT_SECONDS, what)
        self._agent.ask("close", locks=self._locks)


class RawWaiter:
    """A plain client that has sent one command, such as a LOCK that waits."""

    def __init__(self, server: Server, command: list[Any]) -> None:
        self._connection = RawConnection(server.port)
        self._connection.send(*command)

    def is_done(self) -> bool:
        return self._connection.has_reply()

    def reply(self) -> Any:
        return as_text(self._connection.read(TIMEOUT_SECONDS))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.close()
