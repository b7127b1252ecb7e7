"""The rules of the house: imports go down, and nobody but the opener knows a store's name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import headrace

SOURCE = Path(headrace.__file__).parent
GROUND = {
    "errors",
    "cached",
    "option_names",
    "types",
    "model",
    "channels",
    "column_limits",
    "leases",
    "plans",
    "tunnel_requests",
    "queue_requests",
    "sharing",
    "ports",
    "queues",
    "rows",
    "sqlite",
} | {
    "wire",
    "shapes",
    "tunnel",
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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for name in imported(path):
        target = name.split(".")[1]
        if not (SOURCE / target).is_dir() and not (SOURCE / f"{target}.py").exists():
            continue
        if str(path.relative_to(SOURCE)) in INSPECTORS and target == "stores":
            continue
        if room in ALLOWED:
            inside_own_store = room == "stores" and name.startswith(
                "headrace.stores." + path.relative_to(SOURCE / "stores").parts[0]
            )
            assert target in ALLOWED[room] or inside_own_store or name == "headrace.stores", f"{room} imports {name}"
        elif room in GROUND:
            assert target in GROUND, f"{room} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_have_one_subject(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500
