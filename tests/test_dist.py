"""The packages of `make dist` work without Rust, and the static program where there is nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import MakeServer, Server
from harness.cli import program
from harness.docs import blocks
from harness.settings import REPOSITORY, free_port, module_path
from harness.waiting import HOUR

README = REPOSITORY / "README.md"


# The program without a C library, if this run is about it: `scripts/test static` builds it.
STATIC = os.environ.get("SLOCK_STATIC")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what `scripts/dist` makes of the program and the module under test."""
    directory = tmp_path_factory.mktemp("dist")
    parts = {"SLOCK_CLI": program(), "SLOCK_STATIC": STATIC or program(), "SLOCK_MODULE": module_path()}
    # The program is that of a debug build, and large.
    parts |= {"DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
    environment = {**os.environ, "DIST": str(directory), **{name: str(path) for name, path in parts.items()}}
    # As somebody whose new files nobody else can read.
    subprocess.run([REPOSITORY / "scripts/dist"], env=environment, check=True, timeout=600, umask=0o077)
    return directory


@dataclass
class Installed:
    """What was installed, by the place of its parts, and a way to run it without Rust."""

    slock: Path
    module: Path
    example: Path
    man: Path
    completions: list[Path]
    path: str = ""

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        assert not shutil.which("cargo", path=self.path)
        command = [str(self.slock), *words]
        environment = {"PATH": self.path, **environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def _by_dpkg(packages: Path, root: Path) -> Installed:
    """As `dpkg -i` does it, into a system of its own that has the packages of this one."""
    if not shutil.which("dpkg") or os.geteuid() != 0:
        pytest.skip("only root can install with dpkg, where there is one")
    (package,) = packages.glob("*.deb")
    admin = root / "var/lib/dpkg"
    for directory in ("info", "updates", "triggers"):
        (admin / directory).mkdir(parents=True)
    shutil.copy("/var/lib/dpkg/status", admin)
    words = ["dpkg", f"--root={root}", "--force-script-chrootless", f"--log={root}/log", "-i", str(package)]
    # It needs programs of root's, who may have no path to them.
    path = f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin:/sbin"
    done = subprocess.run(words, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    share = root / "usr/share"
    completions = ["bash-completion/completions/slock", "zsh/vendor-completions/_slock"]
    completions += ["fish/vendor_completions.d/slock.fish"]
    return Installed(
        slock=root / "usr/bin/slock",
        module=root / "usr/lib/redis/modules/slock.so",
        example=share / "doc/redis-slock/examples/redis.conf.example",
        man=share / "man/man1",
        completions=[share / name for name in completions],
    )


def _by_tar(packages: Path, root: Path) -> Installed:
    (package,) = packages.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", package, "-C", root], check=True, timeout=60)
    (top,) = root.iterdir()
    return Installed(
        slock=top / "bin/slock",
        module=top / "lib/slock.so",
        example=top / "redis.conf.example",
        man=top / "man",
        completions=[top / f"completions/slock.{shell}" for shell in ("bash", "zsh", "fish")],
    )


@pytest.fixture(scope="module", params=[_by_dpkg, _by_tar], ids=["dpkg", "tar"])
def installed(
    request: pytest.FixtureRequest, packages: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    parts = request.param(packages, tmp_path_factory.mktemp("root"))
    tools = tmp_path_factory.mktemp("tools")
    for tool in ("sh", "bash", "cat"):  # all that is in the PATH beside what was installed
        (tools / tool).symlink_to(shutil.which(tool))
    parts.path = f"{parts.slock.parent}:{tools}"
    return parts


@pytest.fixture
def start(make_server: MakeServer) -> Callable[[str], Server]:
    def run(config: str) -> Server:
        server = make_server(name="packaged", module=False)
        server.stop()
        server.config_text = f"{config}\nport {server.port}\n"
        return server.start()

    return run


def test_the_program_and_the_module_work_together_without_rust(
    installed: Installed, start: Callable[[str], Server]
) -> None:
    server = start(f"loadmodule {installed.module}\nsave ''")
    url = f"redis://127.0.0.1:{server.port}"
    done = installed.run("run", "job:42", "--", "sh", "-c", "echo fence $SLOCK_FENCE", SLOCK_URL=url)
    assert done.returncode == 0 and re.fullmatch(r"fence \d{16}\n", done.stdout), done
    server.raw().ok("SLOCK.LOCK", "job:42", "another", HOUR, "META", "who it is")
    done = installed.run("run", "--no-wait", "job:42", "--", "cat", SLOCK_URL=url)
    assert done.returncode == 75 and "who it is" in done.stderr, done
    assert "another" in installed.run("info", "job:42", SLOCK_URL=url).stdout


def test_the_first_lines_of_the_first_page_work_with_the_wheel(
    packages: Path, installed: Installed, start: Callable[[str], Server], tmp_path: Path
) -> None:
    (wheel,) = packages.glob("slock_client-*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(tmp_path / "library")
    server = start(f"loadmodule {installed.module}\nsave ''")
    code = next(block.text for block in blocks(README) if block.language == "python")
    source = tmp_path / "program.py"
    source.write_text(code.replace("redis.Redis()", f"redis.Redis(port={server.port})"))
    environment = {"PATH": installed.path, "PYTHONPATH": str(tmp_path / "library")}
    done = subprocess.run(
        [sys.executable, source], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and re.search(r"\d{16}", done.stdout), done


def test_the_example_of_a_configuration_starts(installed: Installed, start: Callable[[str], Server]) -> None:
    """The module is where the example says, but for the folder into which the test has installed it."""
    text = installed.example.read_text()
    assert "\nloadmodule /usr/lib/redis/modules/slock.so\n" in text
    server = start(text.replace("/usr/lib/redis/modules/slock.so", str(installed.module)))
    # In a power cut it may lose locks, so it gives none until those have ended.
    assert server.raw().error("SLOCK.LOCK", "k", "a", HOUR).startswith("GRACE ")
    server.client().config_set("slock.restart-grace-ms", 0)
    assert server.raw().ok("SLOCK.LOCK", "k", "a", HOUR)


def test_each_command_has_a_page_and_each_shell_its_completions(installed: Installed) -> None:
    told = installed.run("--help").stdout.split("Commands:")[1].split("\n\n")[0]
    pages = {f"slock-{name}" for name in re.findall(r"^  (\w+) ", told, re.MULTILINE)} | {"slock"}
    assert {page.name.split(".")[0] for page in installed.man.iterdir()} == pages
    assert all("doctor" in path.read_text() for path in installed.completions)
    assert subprocess.run(["bash", "-n", installed.completions[0]]).returncode == 0


def test_everybody_may_read_what_was_packed(packages: Path) -> None:
    (tarball,) = packages.glob("*.tar.gz")
    with tarfile.open(tarball) as members:
        assert not [member.name for member in members if member.mode & 0o044 != 0o044]
    for package in packages.glob("*.deb"):
        listed = subprocess.check_output(["dpkg-deb", "-c", package], text=True)
        assert not [line for line in listed.splitlines() if line[1:10:3] != "rrr"]


def test_the_package_is_that_of_the_readme(packages: Path) -> None:
    """Its name, and where the module is."""
    (package,) = packages.glob("*.deb")
    shown = "\n".join(block.text for block in blocks(README, "sh"))
    assert f"sudo dpkg -i {re.sub('_[a-z0-9]+.deb', '_amd64.deb', package.name)}\n" in shown
    assert "redis-server --loadmodule /usr/lib/redis/modules/slock.so" in shown


# --- the static program of the tarball


@pytest.fixture(scope="module")
def packed(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root directory with the program of the tarball, and nothing else."""
    if STATIC is None:
        pytest.skip("SLOCK_STATIC is not set: scripts/test static builds the static program and tests it")
    root = tmp_path_factory.mktemp("root")
    if subprocess.run([*_within(Path("/")), shutil.which("true") or "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let its users change the root directory")
    (tarball,) = packages.glob("slock-*.tar.gz")
    with tarfile.open(tarball) as members:
        name = next(name for name in members.getnames() if name.endswith("/bin/slock"))
        (root / "slock").write_bytes(members.extractfile(name).read())
    (root / "slock").chmod(0o755)
    return root


def _within(root: Path) -> list[str]:
    command = ["chroot"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--root"]
    return [*command, str(root)]


def _run_within(root: Path, url: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [*_within(root), "/slock", *map(str, words)]
    environment = {"SLOCK_URL": url, "PATH": os.environ["PATH"]}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_it_runs_a_command_under_a_lock_and_checks_a_server(packed: Path, server: Server) -> None:
    url = f"redis://127.0.0.1:{server.port}"
    # The command is the only program there is.
    done = _run_within(packed, url, "run", "--meta", "alpine", "job", "--", "/slock", "info", "--json", "job")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["holders"][0]["meta"] == "alpine"
    assert server.client().dbsize() == 0
    done = _run_within(packed, url, "doctor")
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
    done = _run_within(packed, url, "--tls-ca", "/cert.pem", "run", "job", "--", "/slock", "--help")
    assert done.returncode == 0 and "doctor" in done.stdout, done
    # It trusts nobody else: there are no certificates in this root directory.
    assert _run_within(packed, url, "ls").returncode == 69
