"""The rules of the house: imports go down, and nobody but the opener knows a store's name."""

from __future__ import annotations

import ast
from pathlib import Path

import headrace

SOURCE = Path(headrace.__file__).parent
# What each room imports besides itself. A room is a folder of one subject, or a module beside the folders.
VALUES = {"errors", "cached", "option_names", "failpoints", "types", "tables", "tunnels", "queues"}
BELOW_STORES = VALUES | {"ports", "rows", "sqlite", "wire"}
GROUND = BELOW_STORES | {"workers"}
ALLOWED = {
    "errors": set(),
    "cached": set(),
    "failpoints": set(),
    "option_names": {"errors"},
    "types": {"errors"},
    "tables": {"errors", "cached", "types"},
    "tunnels": {"errors", "types", "tables"},
    "queues": {"errors", "option_names", "types", "tables"},
    "ports": VALUES,
    "rows": {"errors", "types", "tables", "ports"},
    "sqlite": {"errors"},
    "wire": {"errors", "types", "tables"},
    "workers": VALUES | {"ports"},
    "stores": BELOW_STORES,
    "feeds": GROUND,
    # The base of servers knows errors only.
    "http": {"errors"},
    "checkpoint_server": GROUND | {"http"},
    "sinks": {"errors", "types", "tables", "queues", "ports", "rows"},
    "formats": GROUND | {"feeds", "opening"},
    "spark": GROUND | {"feeds", "sinks", "formats", "checkpoint_server", "opening"},
    "streaming_sql": GROUND | {"checkpoint_server", "feeds", "formats", "spark", "opening"},
    # The embedded store behind another's protocol.
    "endpoints": GROUND | {"opening", "stores", "http"},
    "demo": GROUND | {"feeds", "formats", "spark", "opening", "streaming_sql", "cli"},
    "cli": GROUND | {"feeds", "formats", "spark", "opening", "streaming_sql", "endpoints", "demo", "http"},
}
# They know every store, or every public name: each is loaded when it is used.
DIRECTORIES = {"__init__", "opening"}
# `Tunnel.consume` makes a worker, which reads tunnels through the port.
UPWARDS = {("ports/tunnels.py", "workers")}
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


def room_of(path: Path) -> str:
    """Return the folder or module beside the folders that a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def forbidden(path: Path) -> list[str]:
    """Return the imports of a file that its room does not allow."""
    file, room = str(path.relative_to(SOURCE)), room_of(path)
    own_store = "headrace.stores." + path.relative_to(SOURCE).parts[1] if room == "stores" else None
    if room in DIRECTORIES:
        return []
    found = []
    for name in imported(path):
        target = name.split(".")[1]
        if not (SOURCE / target).is_dir() and not (SOURCE / f"{target}.py").exists():
            continue
        if (file in INSPECTORS and target == "stores") or (file, target) in UPWARDS:
            continue
        if room == "stores" and target == "stores":
            allowed = name == "headrace.stores" or (own_store is not None and name.startswith(own_store))
        else:
            allowed = target == room or target in ALLOWED[room]
        if not allowed:
            found.append(f"{file} imports {name}")
    return found


def test_imports_go_down() -> None:
    assert [each for path in MODULES for each in forbidden(path)] == []


def test_every_room_says_what_it_imports() -> None:
    assert {room_of(path) for path in MODULES} == set(ALLOWED) | DIRECTORIES


def test_files_have_one_subject() -> None:
    lines = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in MODULES}
    assert {file: count for file, count in lines.items() if count > 500} == {}
