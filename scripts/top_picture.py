"""Takes docs/pictures/top.svg: `slock top` in a terminal, beside clients that want the same locks.

Run it after `make build`: .venv/bin/python scripts/top_picture.py
"""

from __future__ import annotations

import html
import os
import re
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness import RawConnection, Server
from harness.cli import Cli, Terminal

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/pictures/top.svg"
WIDTH, HEIGHT, SECONDS = 100, 13, 45
# Lock: clients, how long each holds it in ms, and what they say of themselves.
CROWDS = {
    "report:daily": (14, 400, "worker"),
    "import:orders": (9, 900, "loader"),
    "cache:prices": (6, 150, "api"),
    "deploy:web": (3, 2500, "ci"),
    "mail:outbox": (5, 60, "mailer"),
}
# A terminal's colours by their number, for a dark ground.
COLOURS = ["#2e3436", "#ef5350", "#8bc34a", "#ffca28", "#64b5f6", "#ba68c8", "#4dd0e1", "#eeeeee"]
GROUND, TEXT, DIM = "#1b1f24", "#d8dee4", "#8b949e"
CELL, LINE, MARGIN = 8.4, 18, 14


def want(connection: RawConnection, key: str, hold_ms: int, name: str, end: threading.Event) -> None:
    while not end.is_set():
        connection.ok("SLOCK.LOCK", key, name, 30_000, "WAIT", 0, "META", name)
        end.wait(hold_ms / 1000)
        connection.ok("SLOCK.UNLOCK", key, name)


def capture() -> str:
    """The screen, with the codes of its colours."""
    server, end, threads = Server(name="top"), threading.Event(), []
    try:
        server.start()
        for key, (count, hold_ms, who) in CROWDS.items():
            for number in range(count):
                words = (server.raw(), key, hold_ms, f"{who}-{number + 1}", end)
                threads.append(threading.Thread(target=want, args=words))
        for thread in threads:
            thread.start()
        cli = Cli(server)
        with Terminal(cli, "slock top", width=WIDTH, height=HEIGHT) as terminal:
            terminal.shows("report:daily")
            time.sleep(SECONDS)  # the line of hand-offs has a step for each second
            screen = terminal.screen(with_colors=True)
        return screen.replace(cli.url, "redis://127.0.0.1:6379")
    finally:
        end.set()
        for thread in threads:
            thread.join()
        server.discard()


def spans(line: str) -> list[tuple[str, str]]:
    """Parts of a line, each with its style: a colour, bold, dim, or reversed."""
    parts, style = [], {"fill": TEXT}
    for codes, text in re.findall(r"(?:\x1b\[([\d;]*)m)?([^\x1b]*)", line):
        for code in map(int, filter(None, codes.split(";"))):
            if code in (0, 39):
                style = {"fill": TEXT} if code == 0 else {**style, "fill": TEXT}
            elif code == 1:
                style = {**style, "font-weight": "bold"}
            elif code == 2:
                style = {**style, "fill": DIM}
            elif code == 7:
                style = {**style, "fill": COLOURS[6]}
            elif 30 <= code <= 37 or 90 <= code <= 97:
                style = {**style, "fill": DIM if code == 90 else COLOURS[code % 10]}
        if text:
            parts.append((" ".join(f'{name}="{value}"' for name, value in style.items()), text))
    return parts


def picture(screen: str) -> str:
    lines = screen.rstrip("\n").split("\n")
    width, height = WIDTH * CELL + 2 * MARGIN, HEIGHT * LINE + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14">',
        f"<title>slock top beside {sum(count for count, *_ in CROWDS.values())} clients</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{GROUND}"/>',
    ]
    for number, line in enumerate(lines):
        y, column = MARGIN + (number + 0.75) * LINE, 0
        for style, text in spans(line):
            # Each word at its place, whatever the width of the font.
            for word in re.finditer(r"\S+(?: \S+)*", text):
                x, size = MARGIN + (column + word.start()) * CELL, len(word[0]) * CELL
                shown = html.escape(word[0])
                out.append(
                    f'<text x="{x:.1f}" y="{y:.1f}" textLength="{size:.1f}" '
                    f'lengthAdjust="spacingAndGlyphs" {style}>{shown}</text>'
                )
            column += len(text)
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    os.environ.setdefault("SLOCK_CLI", str(ROOT / "target/release/slock"))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(capture()))
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
