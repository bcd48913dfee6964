"""examples/kubernetes: its server starts with its settings, and its cron job runs under a lock there."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from pathlib import Path

from harness import MakeServer
from harness.cli import LIMIT, Cli
from harness.settings import REPOSITORY, module_path

TEXT = (REPOSITORY / "examples/kubernetes/slock.yaml").read_text()


def _list(name: str) -> list[str]:
    """What it says as a list on one line, of the cron job."""
    return json.loads(re.findall(rf"^ +{name}: (\[.*\])$", TEXT.split("kind: CronJob")[1], re.MULTILINE)[0])


def test_the_cron_job_runs_once_on_the_server(make_server: MakeServer, tmp_path: Path) -> None:
    found = re.search(r"  redis\.conf: \|\n((?:    .*\n)+)", TEXT)
    assert found
    config = textwrap.dedent(found[1])
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    path = re.search(r"libslock\.so (\S+)", dockerfile)
    assert path and f"loadmodule {path[1]}\n" in config
    server = make_server(name="kubernetes", module=False)
    server.stop()
    config = config.replace(path[1], str(module_path())).replace("dir /data", f"dir {tmp_path}")
    # Without the password, and for this machine only.
    server.config_text = f"{config}port {server.port}\n".replace("bind * -::*\n", "bind 127.0.0.1\n")
    server.start()
    cli = Cli(server)
    words = [*_list("command"), *_list("args")]
    for expected in (r"the backup of fence \d{16}\n", ""):
        done = subprocess.run(words, env=cli.environment, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0 and re.fullmatch(expected, done.stdout), done
    assert cli("doctor").returncode == 0, cli("doctor").stdout


def test_only_its_own_names_are_used() -> None:
    assert set(re.findall(r"name: redis-slock|secretKeyRef: \{name: ([\w-]+)", TEXT)) == {"", "redis-slock"}
    assert TEXT.count("image: registry.example/redis-slock:0.1.0") == 2
