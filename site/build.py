#!/usr/bin/env python3
"""Makes the site in target/site/html: the pages of the repository, with a menu and a search.

The pages stay where they are and as GitHub shows them. MkDocs gets a copy of them, in which the few things
are changed that the two do differently.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "target/site"
# A link that is not to a page leads to the file in the repository.
REPOSITORY = "https://slock.example"
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)")

# Pages that answer a question, before those that only name its words.
FIRST_IN_SEARCH = ("docs/start.md", "cli/README.md", "docs/troubleshooting.md", "docs/operating.md")


def page(path: Path, pages: set[Path]) -> str:
    text = path.read_text()

    def link(found: re.Match[str]) -> str:
        target = (path.parent / found[1]).resolve()
        if target in pages or target.suffix == ".svg":
            return found[1]
        if target.is_dir() and target / "README.md" in pages:
            return f"{found[1].rstrip('/')}/README.md"
        kind = "tree" if target.is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/HEAD/{target.relative_to(ROOT)}"

    text = LINK.sub(link, text)
    # Python-Markdown wants one word after a fence, four spaces before what belongs to an item, and a blank
    # line before a list.
    text = re.sub(r"^```(\w+) .*$", r"```\1", text, flags=re.MULTILINE)
    text = text.replace("```syntax\n", "```{.text .syntax}\n")
    # O(K*log(N)) … O(P*log(N)) is no emphasis.
    text = re.sub(r"(?<=\w)\*(?=log)", r"\\*", text)
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    for number in range(0, len(parts), 2):
        lines: list[str] = []
        for line in parts[number].split("\n"):
            is_item = re.match(r"(- |\d\. )", line)
            if is_item and lines and lines[-1].strip() and not re.match(r"(- |\d\. |\s)", lines[-1]):
                lines.append("")
            line = re.sub(r"^   (?=\S)", "    ", line)
            lines.append(re.sub(r"^  (?=- )", "    ", line))
        parts[number] = "\n".join(lines)
    head = "---\nsearch:\n  boost: 3\n---\n\n" if str(path.relative_to(ROOT)) in FIRST_IN_SEARCH else ""
    return head + "".join(parts)


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "-zco", "--exclude-standard", "*.md", "docs/*.svg"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    pages = {path for path in paths if path.suffix == ".md"}
    source = OUT / "pages"
    shutil.rmtree(OUT, ignore_errors=True)
    for path in paths:
        target = source / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path in pages:
            target.write_text(page(path, pages))
        else:
            shutil.copy(path, target)
    shutil.copy(ROOT / "site/site.css", source)
    commands = sorted(path.name for path in (ROOT / "docs/commands").glob("*.md"))
    lines = [f"      - {name.removesuffix('.md').upper()}: docs/commands/{name}" for name in commands]
    config = (ROOT / "site/mkdocs.yml").read_text()
    config = config.replace("      - COMMANDS", "\n".join(lines)).replace("../target/site/", "")
    (OUT / "mkdocs.yml").write_text(config)
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-f", str(OUT / "mkdocs.yml")]
    return subprocess.run(words, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
