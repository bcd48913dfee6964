"""Connections with the TLS options of the client. A certificate that is refused is an error soon."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
import redis
import redis.asyncio

import slock_client
import slock_client.asyncio
from harness import MakeServer
from harness.settings import free_port

SECOND = timedelta(seconds=1)


@pytest.fixture
def tls_port(make_server: MakeServer, tmp_path: Path) -> int:
    """The port of a server with a certificate for localhost, which is in `tmp_path` too."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate, port = tmp_path / "key.pem", tmp_path / "cert.pem", free_port()
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    try:
        make_server(
            tls_port=port, tls_cert_file=key.with_name("cert.pem"), tls_key_file=key, tls_auth_clients="no"
        )
    except AssertionError as error:
        pytest.skip(f"the server has no TLS: {str(error)[:200]}")
    return port


def test_both_halves(tls_port: int, tmp_path: Path) -> None:
    options = {"port": tls_port, "ssl": True, "ssl_ca_certs": str(tmp_path / "cert.pem")}
    with slock_client.Locks(redis.Redis(**options)) as locks, locks.write("job") as hold:
        assert locks.info("job").fence == hold.fence
        with pytest.raises(slock_client.TimedOutError):
            locks.write("job", wait=SECOND / 10).acquire()

    async def main() -> None:
        client = redis.asyncio.Redis(**options)
        async with slock_client.asyncio.Locks(client) as locks, locks.write("job"):
            with pytest.raises(slock_client.TimedOutError):
                await locks.write("job", wait=SECOND / 10).acquire()
        await client.aclose()

    asyncio.run(main())


def test_a_certificate_that_is_refused(tls_port: int) -> None:
    options = {"port": tls_port, "ssl": True}
    locks = slock_client.Locks(redis.Redis(**options))
    with locks, pytest.raises(slock_client.TimedOutError, match=r"(?i)certificate"):
        locks.write("job").acquire()

    async def main() -> None:
        client = redis.asyncio.Redis(**options)
        async with slock_client.asyncio.Locks(client) as locks:
            with pytest.raises(slock_client.TimedOutError, match=r"(?i)certificate"):
                await locks.write("job").acquire()
        await client.aclose()

    asyncio.run(main())
