"""The documentation is true: its sessions give the replies it shows, its tables are those of the server."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness import MakeServer, RespError, Server
from harness.commands import INTERNAL, NAMES, as_text
from harness.docs import DOCS, Block, Session, arity, blocks, linked_pages, pages, sections, syntax, table
from harness.settings import REPOSITORY

COMMAND_PAGES = sorted((DOCS / "commands").glob("*.md"))
PAGES_WITH_SESSIONS = [page for page in pages() if blocks(page, "redis")]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def _name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def _first_cells(page: str, heading: str) -> set[str]:
    return {row[0].strip("`") for row in table(sections(DOCS / page)[heading])}


@pytest.fixture
def own_server(make_server: MakeServer) -> Server:
    """A server that the sessions of one page may reconfigure."""
    return make_server(notify_keyspace_events="Ed")


# --- what is shown is what happens


@pytest.mark.parametrize("page", PAGES_WITH_SESSIONS, ids=_name)
def test_the_sessions_of_a_page_go_as_it_says(own_server: Server, page: Path) -> None:
    for block in blocks(page, "redis"):
        own_server.client().flushall()
        Session(own_server, block).play()


@pytest.mark.parametrize(
    "text",
    [
        "redis> SLOCK.LOCK k a 1000\n(integer) 0",
        "redis> SLOCK.PTTL k a\n(integer) <0..9>",
        "redis> SLOCK.LOCK k b 1000\n(waits)",
        'redis> SLOCK.INFO k\n1) "mode"',
        "redis> SLOCK.CHECK k 1\n(integer) <fence>\nredis> SLOCK.CHECK k 2\n(integer) <fence-2>",
    ],
)
def test_a_session_that_goes_otherwise_is_noticed(server: Server, text: str) -> None:
    with pytest.raises(AssertionError):
        Session(server, Block(DOCS / "README.md", 1, "", "redis", (), text)).play()


# --- commands


@pytest.fixture(scope="module")
def commands(_shared_server: Server) -> dict[str, dict]:
    """COMMAND DOCS of every command of the module, the internal one too."""
    with _shared_server.raw(protocol=3) as raw:
        names = raw.ok("COMMAND", "LIST", "FILTERBY", "MODULE", "slock")
        return as_text(raw.ok("COMMAND", "DOCS", *names))


def test_every_command_has_a_page_and_a_line_in_the_table(commands: dict[str, dict]) -> None:
    assert set(NAMES) == set(commands)
    rows = [row for row in table(sections(DOCS / "README.md")["Commands"]) if row[0].startswith("`")]
    shown = {LINK.sub(lambda link: link[0][1:].split("]")[0], row[0]).strip("`") for row in rows}
    assert shown == {syntax(name, docs) for name, docs in commands.items() if name != INTERNAL}


@pytest.mark.parametrize("page", COMMAND_PAGES, ids=_name)
def test_a_page_describes_the_command_as_the_server_does(
    server: Server, commands: dict[str, dict], page: Path
) -> None:
    docs, parts = commands[page.stem], sections(page)
    info = as_text(server.raw().ok("COMMAND", "INFO", page.stem))[0]
    assert page.read_text().startswith(f"# {page.stem.upper()}\n\n{docs['summary']}\n")
    (shown,) = blocks(page, "syntax")
    assert shown.text == syntax(page.stem, docs)
    assert arity(shown.text) == info[1]
    facts = {row[0]: row[1] for row in table(parts[page.stem.upper()])}
    assert facts["Available since"] == f"SLOCK {docs['since']}"
    assert facts["Time complexity"] == docs["complexity"]
    # Without the flags that all commands of modules have or that follow.
    assert set(re.findall(r"`([a-z-]+)`", facts["Flags"])) == set(info[2]) - {"module", "movablekeys"}
    if info[6]:  # Redis 7.0 has no categories for the commands of modules
        assert set(re.findall(r"@[a-z]+", facts["ACL categories"])) == set(info[6])
    # What a reader looks for.
    expected = ["Arguments", "Reply", "Errors", "Examples", "See also"]
    assert [part for part in parts if part in expected] == expected
    assert blocks(page, "redis"), "no example"
    arguments = " ".join(row[0] for row in table(parts["Arguments"]))
    word = re.compile(r"[a-z][a-z-]*|\b[A-Z]{4,}\b")
    assert set(word.findall(shown.text.split(" ", 1)[1])) == set(word.findall(arguments))


# --- settings, metrics, events, errors


def test_the_settings_have_the_defaults_and_bounds_that_are_told(own_server: Server) -> None:
    raw = own_server.raw()
    told = {row[0].strip("`"): row[1:3] for row in table(sections(DOCS / "operating.md")["Settings"])}
    defaults = {name: default for name, (default, _) in told.items()}
    assert own_server.client(decode_responses=True).config_get("slock.*") == defaults
    for name, (default, allowed) in told.items():
        if allowed.replace("`", "") == "yes or no":
            good, bad = ["yes", "no"], ["maybe"]
        else:
            low, high = map(int, re.findall(r"\d+", allowed))
            good, bad = [low, high], [low - 1, high + 1]
        for value in (*good, default):
            raw.ok("CONFIG", "SET", name, value)
        for value in bad:
            assert isinstance(raw.call("CONFIG", "SET", name, value), RespError), f"{name} {value}"


def test_every_metric_and_event_is_described(server: Server) -> None:
    fields = set(re.findall(r"^slock_(\w+):", server.raw().ok("INFO", "slock").decode(), re.MULTILINE))
    described = _first_cells("monitoring.md", "Metrics")
    assert fields == {field.removeprefix("slock_") for field in described}
    source = (REPOSITORY / "src/keyspace.rs").read_text()
    events = set(re.findall(r'c"(slock\.[a-z]+)"', source))
    assert _first_cells("monitoring.md", "Keyspace events") == events


def _sources(*folders: str) -> str:
    """The text of the sources, with what is a string over several lines in one piece."""
    endings = (".rs", ".py", ".go", ".ts", ".java")
    files = [
        path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.suffix in endings
    ]
    files = [path for path in files if not {"node_modules", "tests"} & set(path.parts)]
    text = "\n".join(path.read_text().split("#[cfg(test)]")[0] for path in files)
    return re.sub(r'"\s*\+?\n?\s*\+?\s*f?"', "", re.sub(r"\\\n\s*", "", text))


def test_every_error_code_is_listed() -> None:
    """A code stands before the sentence of each error in the source; the log begins with the name."""
    codes = set(re.findall(r'^[^/\n]*"([A-Z]{4,})(?: [^" ]+){3}', _sources("src", "core/src"), re.MULTILINE))
    assert {"DEADLOCK", "TRYAGAIN", "READONLY"} <= codes
    listed = " ".join(_first_cells("errors.md", "Errors"))
    assert codes - {"SLOCK"} <= set(re.findall(r"[A-Z]+", listed))


# What only the server or the system says, and no source of this repository: the first words.
OF_THE_SERVER = {
    "Operation against a key",
    "no permissions",
    "failed to load: It",
    "Skip register defrag callbacks",
    "Truncating the AOF",
    "Unknown btype",
}


def test_the_texts_of_troubleshooting_are_those_that_users_see() -> None:
    """Their first words, in the module, in the program `slock`, or in each of the client libraries."""
    parts = sections(DOCS / "troubleshooting.md").items()
    rows = [row for name, text in parts if not name.startswith("Symptoms") for row in table(text)]
    cells = [cell for row in rows for cell in re.findall(r"`([^`]+)`", row[0])]
    texts = [part.strip(" ,.") for cell in cells for part in cell.split("…")]
    shown = {" ".join(text.split()[:4]) for text in texts if len(text) > 8 and " " in text}
    assert len(shown) > 20 and shown > OF_THE_SERVER
    server = _sources("src", "core/src", "cli/src")
    folders = ("python/src", "go", "rust/src", "node/src", "java/core")
    libraries = [_sources(f"clients/{folder}") for folder in folders]
    for text in {text.removesuffix(",") for text in shown - OF_THE_SERVER}:
        assert text in server or all(text in library for library in libraries), text


def test_the_dashboard_and_the_alerts_name_what_the_script_for_the_exporter_gives(server: Server) -> None:
    reply = as_text(server.raw().ok("EVAL", (DOCS / "redis_exporter.lua").read_text(), 0, 0))
    given = {name for name, value in zip(reply[::2], reply[1::2], strict=True) if float(value) >= 0}
    info = server.raw().ok("INFO", "slock").decode()
    assert set(re.findall(r"slock_\w+", info)) <= {re.sub(r"_p[\d.]+$", "", name) for name in given}
    text = (DOCS / "grafana.json").read_text()
    dashboard = json.loads(text)
    assert dashboard["schemaVersion"] >= 38  # Grafana 10
    (source,) = (one["name"] for one in dashboard["templating"]["list"] if one["type"] == "datasource")
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == f"${{{source}}}" and panel["targets"], panel["title"]
        assert all("redis_script_values{" in target["expr"] for target in panel["targets"]), panel["title"]
    for page in (text.replace('\\"', '"'), (DOCS / "monitoring.md").read_text()):
        keys = re.findall(r'redis_script_values\{key=~?"([^"]+)"', page)
        assert len(keys) == page.count("redis_script_values{")
        assert {name for names in keys for name in names.split("|")} <= given


# --- the pages among themselves


def test_the_pages_are_no_longer_than_contributing_allows() -> None:
    parts = sections(REPOSITORY / "CONTRIBUTING.md")["Pages, and how they are tested"]
    limits = [(re.findall(r"`([^`]+\.md)`", cells[0]), cells[0], cells[1]) for cells in table(parts)]
    limits = [row for row in limits if row[0] and row[2].isdigit()]
    assert len(limits) >= 13
    for names, text, most in limits:
        words = [len((REPOSITORY / name).read_text().split()) for name in names]
        assert (sum(words) if " with " in text else max(words)) <= int(most), (text, words)


@pytest.mark.parametrize("page", linked_pages(), ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in [target for target in LINK.findall(page.read_text()) if "://" not in target]:
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target} leads nowhere"
        assert not anchor or anchor in map(_anchor, sections(file)), f"{target}: no such heading"


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


def test_the_index_has_every_page() -> None:
    linked = set(LINK.findall((DOCS / "README.md").read_text()))
    assert {path.name for path in DOCS.glob("*.md")} - {"README.md"} <= linked
    assert {f"commands/{path.name}" for path in COMMAND_PAGES} <= linked


LANGUAGES = {
    *["redis", "syntax", "python", "lua", "sql", "go", "rust", "java", "js", "sh", "text", "conf", "yaml"]
}


@pytest.mark.parametrize("page", pages(), ids=_name)
def test_what_a_page_names_exists(page: Path) -> None:
    """Its commands, and the languages of its blocks."""
    named = {name.lower() for name in re.findall(r"SLOCK\.[A-Z]+", page.read_text())}
    assert named - {"slock.m"} <= set(NAMES)
    assert {block.language for block in blocks(page)} <= LANGUAGES
