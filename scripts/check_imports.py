"""Fails when two files of a Rust crate, or two of its folders, import each other, directly or round about.

Reads `use` declarations and paths that begin with `crate::` or `super::`, as text. A `mod` declaration is no
import; a re-export is one. Tests are left out: they may import anything.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

CRATES = ("core/src", "src")
Module = tuple[str, ...]

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*mod \w+ \{.*", re.S)
USE = re.compile(r"\buse ([^;]+);")
PATH = re.compile(r"\b(?:crate|super)(?:::\w+)+")


def modules(root: Path) -> dict[Module, Path]:
    found: dict[Module, Path] = {}
    for file in sorted(root.rglob("*.rs")):
        parts = file.relative_to(root).with_suffix("").parts
        if "tests" in parts or file.name == "invariants.rs":
            continue
        found[parts[:-1] if parts[-1] in ("mod", "lib") else parts] = file
    return found


def expand(use: str) -> Iterator[str]:
    """The paths of a use declaration, its braces written out."""
    head, brace, rest = use.partition("{")
    if not brace:
        yield use.split(" as ")[0].strip()
        return
    depth, item = 0, ""
    for character in rest[: rest.rindex("}")] + ",":
        if character == "," and depth == 0:
            if item.strip():
                yield from (head.strip() + path for path in expand(item.strip()))
            item = ""
            continue
        depth += {"{": 1, "}": -1}.get(character, 0)
        item += character


def imports(module: Module, file: Path, known: dict[Module, Path]) -> set[Module]:
    code = TEST_MODULE.sub("", COMMENT.sub("", file.read_text()))
    paths = [path for use in USE.findall(code) for path in expand(re.sub(r"\s+", " ", use))]
    paths += PATH.findall(USE.sub("", code))
    targets = (resolve(module, path.split("::"), known) for path in paths)
    return {target for target in targets if target is not None and target != module}


def resolve(module: Module, path: list[str], known: dict[Module, Path]) -> Module | None:
    """The module that the path leads into, if it is one of this crate."""
    base: Module = module
    if path[0] == "crate":
        base, path = (), path[1:]
    elif path[0] in ("super", "self"):
        while path and path[0] in ("super", "self"):
            base = base[:-1] if path[0] == "super" else base
            path = path[1:]
    elif (*base, path[0]) not in known:
        return None
    target = base
    for name in path:
        if (*target, name) not in known:
            break
        target = (*target, name)
    return target


def of_folders(graph: dict[Module, set[Module]]) -> dict[Module, set[Module]]:
    """The same graph between what stands directly below the root. The root itself may import all."""
    folders: dict[Module, set[Module]] = {module[:1]: set() for module in graph if module}
    for module, targets in graph.items():
        if module:
            folders[module[:1]] |= {target[:1] for target in targets if target and target[0] != module[0]}
    return folders


def circles(graph: dict[Module, set[Module]]) -> list[list[Module]]:
    """The sets of modules that reach each other (R. Tarjan, 1972)."""
    index: dict[Module, int] = {}
    low: dict[Module, int] = {}
    stack: list[Module] = []
    found: list[list[Module]] = []

    def visit(module: Module) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            at = stack.index(module)
            circle, stack[at:] = stack[at:], []
            if len(circle) > 1:
                found.append(circle)

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found


def main() -> int:
    failed = False
    for root in map(Path, CRATES):
        known = modules(root)
        graph = {module: imports(module, file, known) for module, file in known.items()}
        found = circles(graph)
        for circle in found:
            failed = True
            print(f"{root}: these files import each other:")
            for module in circle:
                inside = ", ".join(str(known[target]) for target in sorted(graph[module]) if target in circle)
                print(f"  {known[module]} imports {inside}")
        folders = circles(of_folders(graph))
        for circle in folders:
            failed = True
            print(f"{root}: these folders import each other: {', '.join(folder[0] for folder in circle)}")
        print(f"{root}: {len(known)} files, {len(found) + len(folders)} circles of imports")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
