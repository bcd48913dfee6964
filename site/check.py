#!/usr/bin/env python3
"""Opens the site in headless Chromium, for `make site-check`.

Finds the commonest tasks by the site's own search, follows every link within the site, and takes pictures of
three pages, in target/site/pictures.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import threading
from pathlib import Path
from urllib.parse import urldefrag

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
SITE, PICTURES = ROOT / "target/site/html", ROOT / "target/site/pictures"
# What people look for, and the page that must be among the first results.
TASKS = {
    "cron job": "cli/index.html",
    "redis-py lock": "clients/python/DROP_IN.html",
    "Redisson": "clients/java/REDISSON.html",
    "fencing token": "docs/concepts.html",
    "which ttl": "docs/choosing.html",
    "install the module": "docs/operating.html",
    "alerts": "docs/monitoring.html",
    "failover": "docs/guarantees.html",
    "leader election": "docs/recipes.html",
    "timed out waiting": "docs/troubleshooting.html",
}
FIRST = 5
SHOWN = ("docs/start.html", "docs/operating.html", "docs/commands/slock.lock.html")
WIDTHS = (1280, 390)
LIMIT_MS = 30_000


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def find(page: Page, start: str) -> list[str]:
    """What goes wrong with the search."""
    wrong = []
    for words, wanted in TASKS.items():
        page.goto(start + "docs/start.html")
        # What is typed before the index has been loaded is lost, and so is text without a key.
        page.get_by_text("Type to start searching").wait_for(state="attached")
        box = page.locator("input[data-md-component=search-query]")
        box.fill(words)
        box.press("End")
        results = page.locator("li.md-search-result__item > a.md-search-result__link")
        try:
            results.first.wait_for(timeout=LIMIT_MS)
        except Exception:
            wrong.append(f"search {words!r}: nothing")
            continue
        found = [
            urldefrag(str(link.get_attribute("href")))[0].removeprefix(start).split("?")[0]
            for link in results.all()
        ]
        if wanted not in list(dict.fromkeys(found))[:FIRST]:
            wrong.append(f"search {words!r}: {wanted} is not among {list(dict.fromkeys(found))}")
    return wrong


def follow(page: Page, start: str) -> list[str]:
    """Opens all pages that links lead to, and returns the links and anchors that lead nowhere."""
    wrong: list[str] = []
    anchors: dict[str, set[str]] = {}
    links: list[tuple[str, str, str]] = []
    todo, seen = [start], {start}
    while todo:
        address = todo.pop()
        answer = page.goto(address, wait_until="domcontentloaded")
        if answer is None or not answer.ok:
            wrong.append(f"{address} cannot be opened")
            continue
        if not (answer.headers.get("content-type") or "").startswith("text/html"):
            continue
        anchors[address] = set(page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)"))
        sources = page.evaluate("[...document.images].filter(i => !i.naturalWidth).map(i => i.src)")
        wrong += [f"{address}: the picture {source} is missing" for source in sources]
        for link in page.evaluate("[...document.querySelectorAll('a[href]')].map(e => e.href)"):
            target, anchor = urldefrag(link)
            if target.startswith(start):
                links.append((address, target, anchor))
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
    for address, target, anchor in links:
        if anchor and anchor not in anchors.get(target, {anchor}):
            wrong.append(f"{address}: {target}#{anchor} does not exist")
    files = {start + path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html")}
    wrong += [f"no link leads to {address}" for address in sorted(files - seen) if "404" not in address]
    print(f"{len(seen)} pages, {len(links)} links")
    return wrong


def show(page: Page, start: str) -> list[str]:
    """Takes the pictures, and returns the pages that are wider than the screen."""
    wrong = []
    PICTURES.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for name in SHOWN:
            page.goto(start + name)
            page.screenshot(path=PICTURES / f"{Path(name).stem}-{width}.png")
            wide = page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                wrong.append(f"{name} is {wide} wide on a screen of {width}")
    return wrong


def main() -> int:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("site/check.py: there is no Chromium (Debian: chromium)", file=sys.stderr)
        return 1
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    start = f"http://127.0.0.1:{server.server_port}/"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(LIMIT_MS)
        wrong = [*find(page, start), *follow(page, start), *show(page, start)]
        browser.close()
    server.shutdown()
    for line in wrong:
        print(line)
    print(f"pictures: {PICTURES.relative_to(ROOT)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
