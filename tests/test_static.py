"""The static program, as `make dist` packs it: it runs in a root directory where there is nothing else."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from harness import MakeServer, Server
from harness.settings import REPOSITORY, free_port, module_path

STATIC = REPOSITORY / f"target/{platform.machine()}-unknown-linux-musl/debug/slock"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root directory with the program of the tarball, and nothing else."""
    if not STATIC.exists():
        pytest.skip(f"there is no {STATIC.relative_to(REPOSITORY)}: scripts/test says why")
    out, root = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("root")
    if subprocess.run([*_within(Path("/")), shutil.which("true") or "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let its users change the root directory")
    environment = {**os.environ, "DIST": str(out), "SLOCK_MODULE": str(module_path())}
    environment |= {"SLOCK_STATIC": str(STATIC), "SLOCK_CLI": str(STATIC)}
    subprocess.run([REPOSITORY / "scripts/dist"], env=environment, check=True, timeout=600)
    (tarball,) = out.glob("slock-*.tar.gz")
    with tarfile.open(tarball) as members:
        name = next(name for name in members.getnames() if name.endswith("/bin/slock"))
        (root / "slock").write_bytes(members.extractfile(name).read())
    (root / "slock").chmod(0o755)
    return root


def _within(root: Path) -> list[str]:
    command = ["chroot"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--root"]
    return [*command, str(root)]


def _run(root: Path, url: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [*_within(root), "/slock", *map(str, words)]
    environment = {"SLOCK_URL": url, "PATH": os.environ["PATH"]}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_it_runs_a_command_under_a_lock_and_checks_a_server(packed: Path, server: Server) -> None:
    url = f"redis://127.0.0.1:{server.port}"
    # The command is the only program there is.
    done = _run(packed, url, "run", "--meta", "alpine", "job", "--", "/slock", "info", "--json", "job")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["holders"][0]["meta"] == "alpine"
    assert server.client().dbsize() == 0
    done = _run(packed, url, "doctor")
    assert done.returncode in (0, 1), done
    assert f"127.0.0.1:{server.port}" in done.stdout


def test_it_has_tls(packed: Path, make_server: MakeServer, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate, port = tmp_path / "key.pem", tmp_path / "cert.pem", free_port()
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=slock -addext subjectAltName=IP:127.0.0.1"
    words += f" -addext basicConstraints=critical,CA:FALSE -keyout {key} -out {certificate}"
    subprocess.run(["openssl", *words.split()], check=True, capture_output=True, timeout=60)
    try:
        make_server(
            tls_port=port,
            tls_cert_file=certificate,
            tls_key_file=key,
            tls_ca_cert_file=certificate,
            tls_auth_clients="no",
        )
    except AssertionError as error:
        pytest.skip(f"the server has no TLS: {str(error)[:200]}")
    shutil.copy(certificate, packed / "cert.pem")
    url = f"rediss://127.0.0.1:{port}"
    done = _run(packed, url, "--tls-ca", "/cert.pem", "run", "job", "--", "/slock", "--help")
    assert done.returncode == 0 and "doctor" in done.stdout, done
    # It trusts nobody else: there are no certificates in this root directory.
    assert _run(packed, url, "ls").returncode == 69
