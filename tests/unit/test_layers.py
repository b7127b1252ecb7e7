"""The rules for imports: they go down, without circles; only the opener imports stores by name."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import headrace

SOURCE = Path(headrace.__file__).parent
# The layers that each layer may import besides itself. A layer is a folder, or a module next to the folders.
VALUES = {
    "errors",
    "cached",
    "counters",
    "diagnosis",
    "option_names",
    "failpoints",
    "notebooks",
    "plots",
    "time_limits",
    "types",
    "tables",
    "tunnels",
    "queues",
}
BELOW_STORES = VALUES | {"ports", "retries", "rows", "sqlite", "wire"}
ALLOWED = {
    "errors": set(),
    "cached": set(),
    "capacity": {"errors"},
    "counters": set(),
    "diagnosis": set(),
    "failpoints": set(),
    "notebooks": {"time_limits"},
    "option_names": {"errors"},
    "plots": {"errors", "tunnels"},
    "retries": set(),
    "start_up": set(),
    "time_limits": set(),
    "types": {"errors"},
    "uses": {"errors", "ports"},
    "tables": {"errors", "cached", "types"},
    "tunnels": {"errors", "types", "tables"},
    "queues": {"errors", "option_names", "types", "tables"},
    "workers": VALUES,
    # `Tunnel.consume` creates a worker.
    "ports": VALUES | {"workers"},
    "rows": {"errors", "types", "tables", "ports"},
    "sqlite": {"errors", "retries"},
    "wire": {"errors", "types", "tables"},
    "stores": BELOW_STORES,
    "feeds": BELOW_STORES,
    "comparing": {"errors", "types", "tables", "ports"},
    "querying": {"errors", "start_up", "types", "tables", "queues", "ports"},
    # The base of all servers.
    "http": {"errors", "counters"},
    "monitoring": VALUES | {"ports", "http", "streaming_sql"},
    "checkpoint_server": BELOW_STORES | {"http"},
    "sinks": {"errors", "types", "tables", "queues", "ports", "rows"},
    "following": {"errors", "types", "tables", "tunnels", "ports", "rows", "sinks"},
    "formats": BELOW_STORES | {"feeds", "registry"},
    "spark": BELOW_STORES | {"feeds", "sinks", "following", "formats", "checkpoint_server", "registry"},
    "streaming_sql": BELOW_STORES | {"feeds", "formats", "sinks", "following", "spark", "registry", "uses"},
    # They serve an embedded store.
    "endpoints": BELOW_STORES | {"registry", "stores", "http"},
    # `headrace.querying` runs the statements of its query box.
    "ui": BELOW_STORES | {"feeds", "http", "monitoring", "querying", "streaming_sql"},
    "demo": BELOW_STORES | {"feeds", "following", "formats", "spark", "registry", "streaming_sql", "cli", "ui"},
    "cli": BELOW_STORES
    | {"capacity", "start_up"}
    | {
        "comparing",
        "feeds",
        "following",
        "formats",
        "spark",
        "registry",
        "streaming_sql",
        "endpoints",
        "demo",
        "http",
        "monitoring",
        "querying",
        "ui",
        "uses",
    },
}
# They import all stores, or all public names, on first use.
DIRECTORIES = {"__init__", "registry"}
REGISTRY = SOURCE / "stores" / "registry.py"
# They read the files of an embedded store: `headrace doctor`, and the proof of the demo.
INSPECTORS = {"cli/store_checks.py", "demo/story.py"}
# Layers whose modules may still import each other in a circle. No layer may be added.
CIRCLES: set[str] = set()
# `headrace demo` runs the demo, which prints through the output of the command line.
ROOM_CIRCLES = {"cli", "demo"}
MODULES = sorted(SOURCE.rglob("*.py"))


@cache
def imported(path: Path) -> set[str]:
    """Return the imports of a file from headrace, as dotted names; also those in functions and for type checks."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path} has a relative import"
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name.startswith("headrace.")}


def layer_of(path: Path) -> str:
    """Return the layer of a file; the registry of stores is a layer."""
    if path == REGISTRY:
        return "registry"
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def forbidden(path: Path) -> list[str]:
    """Return the imports of a file that its layer must not import."""
    file, layer = str(path.relative_to(SOURCE)), layer_of(path)
    own_store = ".".join(("headrace", *path.relative_to(SOURCE).parts[:2]))
    if layer in DIRECTORIES:
        return []
    found = []
    for name in imported(path):
        target = "registry" if name.startswith("headrace.stores.registry") else name.split(".")[1]
        if target != "registry" and not (SOURCE / target).is_dir() and not (SOURCE / f"{target}.py").exists():
            continue
        if file in INSPECTORS and target == "stores":
            continue
        if layer == "stores" and target == "stores":
            allowed = name == "headrace.stores" or name.startswith(("headrace.stores.opening", own_store))
        else:
            allowed = target == layer or target in ALLOWED[layer]
        if not allowed:
            found.append(f"{file} imports {name}")
    return found


def test_imports_go_down() -> None:
    assert [each for path in MODULES for each in forbidden(path)] == []


def name_of(path: Path) -> str:
    """Return the dotted name of a module."""
    return ".".join(["headrace", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")


def in_circles(imports: Mapping[str, set[str]]) -> set[str]:
    """Return the nodes of a graph that are in circles, or between two circles."""
    left = set(imports)
    while True:
        targets = {target for name in left for target in imports[name] & left}
        ends = {name for name in left if name not in targets or not imports[name] & left}
        if not ends:
            return left
        left -= ends


def test_rooms_do_not_import_each_other_in_a_circle() -> None:
    assert in_circles(ALLOWED) == ROOM_CIRCLES
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {"b", "c"}


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    modules = {name_of(path): imported(path) for path in MODULES if layer_of(path) not in DIRECTORIES | CIRCLES}
    # `from package import name` imports a module of the package, or the package itself.
    graph = {
        name: {
            target
            for target in found & modules.keys() - {name}
            if not any(other.startswith(f"{target}.") for other in found & modules.keys())
        }
        for name, found in modules.items()
    }
    assert in_circles(graph) == set()


def test_every_layer_declares_its_imports() -> None:
    assert {layer_of(path) for path in MODULES} == set(ALLOWED) | DIRECTORIES


def test_files_have_one_subject() -> None:
    lines = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in MODULES}
    assert {file: count for file, count in lines.items() if count > 500} == {}
