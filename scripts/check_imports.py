"""Fails when two files of a Rust crate, a Python package or the Node library import each other, directly or
round about.

So do two folders of a Rust crate. Of Rust it reads `use` declarations and paths that begin with `crate::` or
`super::`, as text. A `mod` declaration is no import; a re-export is one, and what the root of a crate
re-exports is imported from where it is. Of Python it reads every import of the package itself, also those
within functions and for types alone; of TypeScript each import and re-export, also of types. Tests are left
out: they may import anything. Go is left out: its files do not import each other, and its compiler refuses
circles of packages.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

CRATES = ("core/src", "src", "cli/src", "clients/rust/src")
PACKAGES = "clients/python/src"
TYPESCRIPT = Path("clients/node/src")
Module = tuple[str, ...]

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*mod \w+ \{.*", re.S)
USE = re.compile(r"\buse ([^;]+);")
PATH = re.compile(r"\b(?:crate|super)(?:::\w+)+")


def modules(root: Path) -> dict[Module, Path]:
    found: dict[Module, Path] = {}
    for file in sorted(root.rglob("*.rs")):
        parts = file.relative_to(root).with_suffix("").parts
        if "tests" in parts:
            continue
        found[parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts] = file
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
    reexports = of_root(known) if module else {}
    targets = set()
    for path in paths:
        words = path.split("::")
        target = resolve(module, words, known)
        if target == () and words[-1] in reexports:
            target = reexports[words[-1]]
        targets.add(target)
    return targets - {None, module}


def of_root(known: dict[Module, Path]) -> dict[str, Module]:
    """Where the names are that the root of the crate re-exports."""
    uses = re.findall(r"\bpub(?:\(crate\))? use ([^;]+);", COMMENT.sub("", known[()].read_text()))
    paths = [path.split("::") for use in uses for path in expand(re.sub(r"\s+", " ", use))]
    found = {path[-1]: resolve((), path, known) for path in paths}
    return {name: target for name, target in found.items() if target}


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


def python_modules(root: Path) -> dict[Module, Path]:
    found: dict[Module, Path] = {}
    for file in sorted(root.rglob("*.py")):
        parts = (root.name, *file.relative_to(root).with_suffix("").parts)
        found[parts[:-1] if parts[-1] == "__init__" else parts] = file
    return found


def python_imports(module: Module, file: Path, known: dict[Module, Path]) -> set[Module]:
    package = module if file.name == "__init__.py" else module[:-1]
    targets: set[Module] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            targets |= {tuple(name.name.split(".")) for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            names = {name.name for name in node.names}
            submodules = {(*base, name) for name in names if (*base, name) in known}
            targets |= submodules if len(submodules) == len(names) else {base, *submodules}
    return {target for target in targets if target in known and target != module}


def typescript_imports(file: Path) -> set[Module]:
    return {(name,) for name in re.findall(r'\bfrom "\./(\w+)\.js"', file.read_text())}


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


def report(root: Path, known: dict[Module, Path], graph: dict[Module, set[Module]], folders: bool) -> bool:
    """Prints the circles; whether there are none."""
    found = circles(graph)
    for circle in found:
        print(f"{root}: these files import each other:")
        for module in circle:
            inside = ", ".join(str(known[target]) for target in sorted(graph[module]) if target in circle)
            print(f"  {known[module]} imports {inside}")
    between = circles(of_folders(graph)) if folders else []
    for circle in between:
        print(f"{root}: these folders import each other: {', '.join(folder[0] for folder in circle)}")
    print(f"{root}: {len(known)} files, {len(found) + len(between)} circles of imports")
    return not found and not between


def main() -> int:
    passed = []
    for root in map(Path, CRATES):
        known = modules(root)
        graph = {module: imports(module, file, known) for module, file in known.items()}
        passed.append(report(root, known, graph, folders=True))
    for init in sorted(Path(PACKAGES).glob("*/__init__.py")):
        known = python_modules(init.parent)
        graph = {module: python_imports(module, file, known) for module, file in known.items()}
        passed.append(report(init.parent, known, graph, folders=False))
    known = {(file.stem,): file for file in sorted(TYPESCRIPT.glob("*.ts"))}
    graph = {module: typescript_imports(file) for module, file in known.items()}
    passed.append(report(TYPESCRIPT, known, graph, folders=False))
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
