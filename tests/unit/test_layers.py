"""The rules of the house: imports go down, and nobody but the opener knows a store's name."""

from __future__ import annotations

import ast
from pathlib import Path

import headrace

SOURCE = Path(headrace.__file__).parent
GROUND = {
    "errors",
    "cached",
    "option_names",
    "failpoints",
    "types",
    "model",
    "column_limits",
    "tunnels",
    "ports",
    "queues",
    "rows",
    "sqlite",
} | {
    "wire",
    "shapes",
    "workers",
}
ALLOWED = {
    "stores": GROUND,
    "feeds": GROUND | {"feeds"},
    # The base of servers knows errors only.
    "http": {"errors", "http"},
    "checkpoints": GROUND | {"checkpoints", "http"},
    "spark": GROUND | {"feeds", "checkpoints", "spark", "opening"},
    "streaming_sql": GROUND | {"checkpoints", "feeds", "spark", "opening", "streaming_sql"},
    # The embedded store behind another's protocol.
    "endpoints": GROUND | {"opening", "endpoints", "stores", "http"},
    "demo": GROUND | {"feeds", "spark", "opening", "streaming_sql", "demo", "cli"},
    "cli": GROUND | {"feeds", "spark", "opening", "streaming_sql", "endpoints", "demo", "cli", "http"},
}
# They look into the files of an embedded store on purpose: a check of its health, and a proof from outside.
INSPECTORS = {"cli/store_checks.py", "demo/story.py"}
MODULES = sorted(SOURCE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Return the headrace modules that a file imports anywhere, as dotted names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name.startswith("headrace.")}


def forbidden(path: Path) -> list[str]:
    """Return the imports of a file that its room does not allow."""
    file = str(path.relative_to(SOURCE))
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    own_store = "headrace.stores." + path.relative_to(SOURCE).parts[1] if room == "stores" else None
    found = []
    for name in imported(path):
        target = name.split(".")[1]
        if not (SOURCE / target).is_dir() and not (SOURCE / f"{target}.py").exists():
            continue
        if file in INSPECTORS and target == "stores":
            continue
        if room in ALLOWED:
            inside_own_store = own_store is not None and name.startswith(own_store)
            allowed = target in ALLOWED[room] or inside_own_store or name == "headrace.stores"
        else:
            allowed = room not in GROUND or target in GROUND
        if not allowed:
            found.append(f"{file} imports {name}")
    return found


def test_imports_go_down() -> None:
    assert [each for path in MODULES for each in forbidden(path)] == []


def test_files_have_one_subject() -> None:
    lines = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in MODULES}
    assert {file: count for file, count in lines.items() if count > 500} == {}
