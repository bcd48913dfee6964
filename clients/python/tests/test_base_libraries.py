"""Clients of all kinds: options that change replies, pools of one connection, Sentinel, Cluster, tracing."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

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
    {"unix_socket_path": "redis.sock"},
]


@pytest.fixture(params=HALVES, ids="".join)
def package(request: pytest.FixtureRequest) -> Iterator[Any]:
    pytest.importorskip(request.param[0])
    yield importlib.import_module("".join(request.param))


def locks_of(client: Any, package: Any) -> Any:
    half = ".asyncio" if package.__name__.endswith("asyncio") else ""
    return importlib.import_module(f"slock_client{half}").Locks(client, ttl=10, retry_for=10)


async def done(function: Any, *arguments: Any) -> Any:
    """What a function gives, or a coroutine function."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    return await asyncio.to_thread(function, *arguments)


async def close(client: Any) -> None:
    await done(getattr(client, "aclose", client.close))


async def use(locks: Any, key: str = "job") -> None:
    """A hold, a wait, an extension, and what the server tells."""
    hold = await done(locks.write(key, metadata="web-1").acquire)
    assert await done(locks.read(key).try_acquire) is None
    info = await done(locks.info, key)
    assert (info.key, info.holders[0].token, info.holders[0].metadata) == (key, hold.token, "web-1")
    waiting = asyncio.create_task(done(locks.write(key, wait=10).acquire))
    while not await done(locks.queues):
        await asyncio.sleep(0.01)
    await done(hold.extend, 5)
    await done(hold.release)
    second = await waiting
    assert second.fence > hold.fence
    await done(second.release)
    await done(locks.close)


async def acquire_and_release(locks: Any) -> None:
    hold = await done(locks.write("job").acquire)
    await done(hold.release)
    await done(locks.close)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "none")
def test_options_of_a_client(package: Any, server: Server, options: dict[str, Any]) -> None:
    async def main() -> None:
        of_socket = {"unix_socket_path": str(server.directory / "redis.sock")} if "unix_socket_path" in options else {}
        client = package.Redis(port=server.port, **{**options, **of_socket})
        await use(locks_of(client, package), "caf\u00e9" if "encoding" in options else "job")
        await close(client)

    asyncio.run(main())


def test_a_subclass_and_a_pool_by_url(package: Any, server: Server) -> None:
    """What counts the commands of the program's class sees those of locks, if it has the constructor of the library."""

    async def main() -> None:
        for accepts in ("", ", **_"):
            own = {"package": package, "port": server.port}
            exec(f"class Own(package.Redis):\n def __init__(self{accepts}): super().__init__(port=port)", own)
            await acquire_and_release(locks_of(own["Own"](), package))
        seen: list[str] = []

        class Counting(package.Redis):  # type: ignore[misc, name-defined]
            def execute_command(self, *words: Any, **options: Any) -> Any:
                seen.append(words[0])
                return super().execute_command(*words, **options)

        pool = package.BlockingConnectionPool.from_url(f"redis://127.0.0.1:{server.port}/2", max_connections=1)
        client = Counting(connection_pool=pool)
        await acquire_and_release(locks_of(client, package))
        await done(pool.disconnect)
        assert seen == ["SLOCK.LOCK", "SLOCK.MUNLOCK"]

    asyncio.run(main())


def test_a_provider_renews_the_credentials_of_the_program(package: Any, server: Server) -> None:
    streaming = pytest.importorskip(f"{package.__name__.partition('.')[0]}.credentials")
    if not hasattr(streaming, "StreamingCredentialProvider"):
        pytest.skip("the library has no such providers")

    registered: list[Any] = []

    class Provider(streaming.StreamingCredentialProvider):  # type: ignore[misc, name-defined]
        def get_credentials(self) -> tuple[str, str]:
            return "default", "any"

        async def get_credentials_async(self) -> tuple[str, str]:
            return self.get_credentials()

        on_next = on_error = is_streaming = registered.append

    async def main() -> None:
        client = package.Redis(port=server.port, credential_provider=Provider())
        before = len(registered)
        await use(locks_of(client, package))
        assert len(registered) == before

    asyncio.run(main())


def test_a_cluster(package: Any, cluster: Cluster) -> None:
    async def main() -> None:
        for key in ("{job}:a", "job", "}job{", "a}b"):
            client = package.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port)
            await use(locks_of(client, package), key)
            await close(client)

    asyncio.run(main())


def test_a_trace_has_the_commands(package: Any, server: Server) -> None:
    """The instrumentation of OpenTelemetry for redis-py: LOCK and MUNLOCK are children of the program's span."""
    if package.__name__.startswith("valkey"):
        pytest.skip("it is for redis-py")
    instrumentation = pytest.importorskip("opentelemetry.instrumentation.redis")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = importlib.import_module("opentelemetry.sdk.trace.export")
    memory = importlib.import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))

    async def main() -> int:
        with provider.get_tracer("program").start_as_current_span("job") as span:
            await acquire_and_release(locks_of(package.Redis(port=server.port), package))
        return int(span.context.span_id)

    instrumentation.RedisInstrumentor().instrument(tracer_provider=provider)
    try:
        parent = asyncio.run(main())
    finally:
        instrumentation.RedisInstrumentor().uninstrument()
    spans = {span.name: span.parent for span in exporter.get_finished_spans()}
    for name in ("SLOCK.LOCK", "SLOCK.MUNLOCK"):
        assert spans[name].span_id == parent, (package, spans)
