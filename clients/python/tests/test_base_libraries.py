"""Clients of all kinds: options that change replies, pools of one connection, Sentinel, Cluster, tracing."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from harness import Cluster, Server

HALVES = [("redis", ""), ("redis", ".asyncio"), ("valkey", ""), ("valkey", ".asyncio")]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"decode_responses": True},
    {"protocol": 3, "decode_responses": True},
    {"max_connections": 1},
    {"socket_timeout": 0.001},
    {"socket_timeout": None, "socket_connect_timeout": None},
    {"encoding": "latin-1"},
    {"single_connection_client": True},
    {"health_check_interval": 1, "db": 3},
]


@pytest.fixture(params=HALVES, ids="".join)
def package(request: pytest.FixtureRequest) -> Iterator[Any]:
    pytest.importorskip(request.param[0])
    yield importlib.import_module("".join(request.param))


def locks_of(client: Any, package: Any) -> Any:
    half = ".asyncio" if package.__name__.endswith("asyncio") else ""
    return importlib.import_module(f"slock_client{half}").Locks(client, ttl=10)


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def use(locks: Any, key: str = "job") -> None:
    """A hold, a wait, an extension, and what the server tells."""
    hold = await settled(locks.write(key, metadata="web-1").acquire())
    assert await settled(locks.read(key).try_acquire()) is None
    info = await settled(locks.info(key))
    assert (info.key, info.holders[0].token, info.holders[0].metadata) == (key, hold.token, "web-1")
    waits = locks.write(key, wait=10).acquire
    if inspect.iscoroutinefunction(waits):
        other: Any = asyncio.create_task(waits())
        while not await settled(locks.queues()):
            await asyncio.sleep(0.01)
    else:
        found: list[Any] = []
        other = threading.Thread(target=lambda: found.append(waits()))
        other.start()
        while not locks.queues():
            time.sleep(0.01)
    await settled(hold.extend(5))
    await settled(hold.release())
    if inspect.iscoroutinefunction(waits):
        second = await other
    else:
        other.join(10)
        [second] = found
    assert second.fence > hold.fence
    await settled(second.release())
    await settled(locks.close())


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "none")
def test_options_of_a_client(package: Any, server: Server, options: dict[str, Any]) -> None:
    async def main() -> None:
        client = package.Redis(port=server.port, **options)
        await use(locks_of(client, package), "caf\u00e9" if "encoding" in options else "job")
        await settled(getattr(client, "aclose", client.close)())

    asyncio.run(main())


def test_a_subclass_and_a_pool_by_url(package: Any, server: Server) -> None:
    """What counts the commands of the program's class sees those of locks."""

    async def main() -> None:
        seen: list[str] = []

        class Counting(package.Redis):  # type: ignore[misc, name-defined]
            def execute_command(self, *words: Any, **options: Any) -> Any:
                seen.append(words[0])
                return super().execute_command(*words, **options)

        pool = package.BlockingConnectionPool.from_url(f"redis://127.0.0.1:{server.port}/2", max_connections=1)
        client = Counting(connection_pool=pool)
        locks = locks_of(client, package)
        await settled((await settled(locks.write("job").acquire())).release())
        await settled(locks.close())
        await settled(pool.disconnect())
        assert seen == ["SLOCK.LOCK", "SLOCK.MUNLOCK"]

    asyncio.run(main())


def test_a_provider_renews_the_credentials_of_the_program(package: Any, server: Server) -> None:
    streaming = pytest.importorskip(f"{package.__name__.partition('.')[0]}.credentials")
    if not hasattr(streaming, "StreamingCredentialProvider"):
        pytest.skip("the library has no such providers")

    class Provider(streaming.StreamingCredentialProvider):  # type: ignore[misc, name-defined]
        registered: ClassVar[list[Any]] = []

        def get_credentials(self) -> tuple[str, str]:
            return "default", "any"

        async def get_credentials_async(self) -> tuple[str, str]:
            return self.get_credentials()

        on_next = on_error = registered.append
        is_streaming = on_next

    async def main() -> None:
        client = package.Redis(port=server.port, credential_provider=Provider())
        before = len(Provider.registered)
        await use(locks_of(client, package))
        assert len(Provider.registered) == before

    asyncio.run(main())


def test_a_cluster(package: Any, cluster: Cluster) -> None:
    async def main() -> None:
        name = "RedisCluster" if hasattr(package, "RedisCluster") else "ValkeyCluster"
        for key in ("{job}:a", "job", "}job{", "a}b"):
            client = getattr(package, name)(host="127.0.0.1", port=cluster.nodes[0].port)
            await use(locks_of(client, package), key)
            await settled(getattr(client, "aclose", client.close)())

    asyncio.run(main())


def test_a_socket_of_unix(package: Any, tmp_path: Any) -> None:
    async def main() -> None:
        await use(locks_of(package.Redis(unix_socket_path=str(tmp_path / "redis.sock")), package))

    server = Server(name="unix", unixsocket=str(tmp_path / "redis.sock")).start()
    try:
        asyncio.run(main())
    finally:
        server.discard()


def test_a_trace_has_the_commands(server: Server) -> None:
    """The instrumentation of OpenTelemetry for redis-py: LOCK and MUNLOCK are children of the program's span."""
    instrumentation = pytest.importorskip("opentelemetry.instrumentation.redis")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentation.RedisInstrumentor().instrument(tracer_provider=provider)
    try:
        import redis
        import redis.asyncio

        for package in (redis, redis.asyncio):
            exporter.clear()

            async def main(package: Any = package) -> int:
                locks = locks_of(package.Redis(port=server.port), package)
                with provider.get_tracer("program").start_as_current_span("job") as span:
                    await settled((await settled(locks.write("job").acquire())).release())
                await settled(locks.close())
                return int(span.context.span_id)

            parent = asyncio.run(main())
            spans = {span.name: span.parent for span in exporter.get_finished_spans()}
            for name in ("SLOCK.LOCK", "SLOCK.MUNLOCK"):
                assert spans[name].span_id == parent, (package, spans)
    finally:
        instrumentation.RedisInstrumentor().uninstrument()
