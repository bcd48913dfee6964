"""The code of README.md and the recipes in examples, run as they are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sqlite3
import subprocess
import sys
import types
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

import slock_client
from harness import Cluster, Server, wait_until
from harness.server import free_port

CLIENT = Path(__file__).parents[1]
RECIPES = CLIENT / "examples/recipes"
Run = Callable[..., subprocess.Popen[str]]


def test_the_page(server: Server, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    page = (CLIENT / "README.md").read_text()
    assert len(page.split()) <= 1000
    page = page.replace('host="node-1", port=6379', f'host="127.0.0.1", port={cluster.nodes[0].port}')
    page = page.replace("port=6379", f"port={server.port}").replace("wait=5", "wait=0.5")
    names: dict[str, Any] = {"write_report": lambda hold: (200, hold.keys[0])}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, names)
        if "def publish" in code:
            assert names["publish"]() == (200, "report")
            with names["locks"].write("report", metadata="web-1"):
                status, text = names["publish"]()
            assert status == 409 and "web-1" in text
        if "def save" in code:
            save_of_the_page(names)
        if "def campaign" in code:
            assert names["campaign"](lambda hold: hold.keys) == ("example:leader",)
    assert capsys.readouterr().out == "nobody else writes the report\n" * 2
    names["cluster"].close()


def save_of_the_page(names: dict[str, Any]) -> None:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE documents AS SELECT 'readme' AS id, '' AS body, 0 AS fence")
    with names["locks"].write("readme") as first:
        pass
    with names["locks"].write("readme") as second:
        names["save"](db, second, "second")
    with pytest.raises(RuntimeError, match="later owner"):
        names["save"](db, types.SimpleNamespace(fence=first.fence, check=lambda: None), "late")
    assert db.execute("SELECT body FROM documents").fetchone() == ("second",)


@pytest.fixture
def run(server: Server) -> Iterator[Run]:
    """Starts programs in the folder of the recipes, which end with the test."""
    of_test = {"REDIS_URL": f"redis://127.0.0.1:{server.port}/0", "PYTHONPATH": str(CLIENT / "src")}
    options: dict[str, Any] = {"cwd": RECIPES, "text": True, "stdout": subprocess.PIPE, "start_new_session": True}
    options["env"] = {**os.environ, **of_test, "PYTHONDONTWRITEBYTECODE": "1"}

    def end(process: subprocess.Popen[str]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.communicate()

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, *words], **options)
        ends.callback(end, process)
        return process

    with contextlib.ExitStack() as ends:
        yield start


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool_of_processes(run: Run, method: str) -> None:
    out, _ = run("pool.py", method).communicate(timeout=60)
    assert out == "the sum is 4950\nlost: expired\n"


def test_django(run: Run, server: Server, client: redis.Redis) -> None:
    pytest.importorskip("django_redis")
    assert run("django_job.py").communicate(timeout=60)[0] == "done\n"
    with slock_client.Locks(redis.Redis(port=server.port)).write(":1:nightly"):
        assert run("django_job.py").communicate(timeout=60)[0] == "it runs elsewhere\n"


@pytest.mark.parametrize(
    "options", ["--workers 2", "--preload --workers 2", "--worker-class gthread --threads 8", "--worker-class gevent"]
)
def test_gunicorn(run: Run, options: str) -> None:
    pytest.importorskip("gunicorn")
    if "gevent" in options:
        pytest.importorskip("gevent")
    address = f"127.0.0.1:{free_port()}"
    run("-m", "gunicorn", "--bind", address, "--log-level", "error", *options.split(), "wsgi:application")

    def get(_: int = 0) -> str:
        with urllib.request.urlopen(f"http://{address}/", timeout=20) as reply:
            return str(reply.read().decode())

    def is_up() -> bool:
        try:
            return get() == "1"
        except urllib.error.URLError:
            return False

    wait_until(is_up, 20, "gunicorn to reply")
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(get, range(64))) == {"1"}


def test_fastapi(server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    httpx = pytest.importorskip("httpx")
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{server.port}/0")
    monkeypatch.syspath_prepend(RECIPES)
    import fastapi_app

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(fastapi_app.app), base_url="http://test") as web:
            replies = await asyncio.gather(*(web.put("/documents/a") for _ in range(20)))
            fences = sorted(reply.json()["fence"] for reply in replies)
            assert len(set(fences)) == 20
            client.execute_command("SLOCK.LOCK", "documents:a", "t", 60_000, "META", "web-1")
            waiting = [asyncio.create_task(web.put("/documents/a")) for _ in range(60)]
            while not client.execute_command("SLOCK.QUEUES"):
                await asyncio.sleep(0.01)
            assert (await web.get("/health")).status_code == 200
            assert not any(save.done() for save in waiting)
            for reply in await asyncio.gather(*waiting):
                assert reply.status_code == 409 and "web-1" in reply.json()["detail"]
        await fastapi_app.locks.close()

    asyncio.run(main())


def test_celery(run: Run, server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("celery")
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{server.port}/0")
    monkeypatch.syspath_prepend(RECIPES)
    import celery_tasks as tasks
    from celery.exceptions import TimeLimitExceeded

    words = ["--app", "celery_tasks", "worker", "--concurrency", "3", "--loglevel", "error", "--without-mingle"]
    worker = run("-m", "celery", *words, "--without-gossip")
    days = [tasks.report.delay("monday") for _ in range(4)]
    assert sorted(day.get(timeout=60) for day in days) == [*["another worker has it"] * 3, "reported"]
    assert client.exists("tasks:report:monday") == 1, "it stays for at_least"
    shops = [tasks.import_shop.delay("north", 0.3) for _ in range(3)]
    assert [shop.get(timeout=60) for shop in shops] == ["imported north"] * 3
    assert tasks.slow.delay().get(timeout=60) == "stopped"
    assert client.exists("tasks:slow") == 0
    with pytest.raises(TimeLimitExceeded):
        tasks.stuck.delay().get(timeout=60)
    wait_until(lambda: client.exists("tasks:stuck") == 0, 10, "the lock of a process that was killed to end")
    last = tasks.import_shop.delay("south", 1.5)
    wait_until(lambda: client.exists("tasks:import:south") == 1, 20)
    worker.terminate()  # a warm shutdown
    worker.wait(30)
    assert last.get(timeout=10) == "imported south" and client.exists("tasks:import:south") == 0
