"""The rules for imports: they go down, without circles; no part of the core knows a vendor, no vendor another one."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import headrace

ROOT = Path(headrace.__file__).parents[1]
SOURCE = ROOT / "headrace"
ANNEXES = ("headrace_lake", "headrace_tablestore", "headrace_ytsaurus")
# The layers that each layer may import besides itself. A layer is a folder of the core, or a module beside them.
VALUES = {"errors", "support", "options", "model"}
BELOW_STORES = VALUES | {"ports", "rows", "wire"}
SERVERS = {"http", "monitoring"}
ALLOWED = {
    "errors": set(),
    "support": {"errors"},
    "model": {"errors", "support", "options"},
    "options": {"errors"},
    # `Tunnel.consume` creates a worker.
    "ports": VALUES | {"workers"},
    "workers": VALUES,
    "rows": {"errors", "support", "model", "ports"},
    "wire": {"errors", "model"},
    "stores": BELOW_STORES | {"shared"},
    "shared": {"errors", "support", "model", "ports", "rows"},
    "batches": BELOW_STORES,
    "inspect": {"errors", "support", "model", "ports", "rows"},
    # The base of all servers.
    "http": {"errors", "support"},
    "monitoring": VALUES | {"ports", "http", "streaming_sql"},
    "checkpoint_server": BELOW_STORES | {"http"},
    "sql_text": {"errors", "options"},
    "formats": BELOW_STORES | {"batches", "registry"},
    "spark": BELOW_STORES | {"batches", "formats", "checkpoint_server", "registry", "sql_text"},
    "derived": BELOW_STORES | {"workers", "batches", "formats", "spark", "registry", "sql_text"},
    "streaming_sql": BELOW_STORES | {"batches", "formats", "derived", "inspect", "spark", "registry", "sql_text"},
    "ui": BELOW_STORES | SERVERS | {"batches", "inspect", "streaming_sql", "sql_text"},
    "demo": BELOW_STORES | {"batches", "formats", "spark", "registry", "streaming_sql", "cli", "ui"},
    # Tests, which no other layer imports.
    "testing": VALUES | {"ports", "batches", "inspect", "registry", "workers"},
    "cli": BELOW_STORES
    | SERVERS
    | {"batches", "formats", "spark", "registry", "sql_text", "streaming_sql", "demo", "inspect", "ui"},
}
# It imports all public names on first use.
DIRECTORIES = {"__init__"}
# What stores and formats of packages use: whole layers, and of others these modules.
PUBLIC = {"errors", "support", "options", "model", "ports", "rows", "http"}
PUBLIC_MODULES = {
    "headrace.batches.feeds.queue_columns",
    "headrace.cli.app",
    "headrace.formats.common_options",
    "headrace.formats.format",
    "headrace.formats.location",
    "headrace.formats.source",
    "headrace.stores.embedded.for_servers",
    "headrace.stores.opening",
    "headrace.stores.postgres.for_lakes",
    "headrace.stores.registry",
    "headrace.wire.texts",
}
# The functions and values of the modules in the embedded store's contract with servers.
CONTRACT = {
    "catalog": {"create", "drop", "find", "find_to_drop", "is_taken", "set_options"},
    "chunks": {"decode_message", "page", "replace"},
    "stored_queues": {
        "Prepared", "add_partitions", "append", "auto_trim", "create", "drop", "load", "partitions", "trim_consumed",
    },
    "stored_tables": {"create", "drop"},
    "stored_tunnels": {"drop_all"},
}  # fmt: skip
# They can be imported without a kind of store, and are below all of them.
REGISTRY = {SOURCE / "stores" / "registry.py", SOURCE / "stores" / "opening.py"}
# Stores with tables of the same form share it.
SHARED = SOURCE / "stores" / "shared"
# It reads the files of an embedded store: the proof of the demo.
INSPECTORS = {"demo/story.py"}
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
    return {name for name in names if name.startswith(tuple(f"{package}." for package in ("headrace", *ANNEXES)))}


def layer_of(path: Path) -> str:
    """Return the layer of a file of the core; the registry of stores and what they share are layers."""
    if path in REGISTRY:
        return "registry"
    if path.parent == SHARED:
        return "shared"
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def target_of(name: str) -> str | None:
    """Return the layer of an imported name; None for a name of the package itself."""
    if name.startswith(("headrace.stores.registry", "headrace.stores.opening")):
        return "registry"
    if name.startswith("headrace.stores.shared"):
        return "shared"
    layer = name.split(".")[1] if "." in name else ""
    return layer if (SOURCE / layer).is_dir() or (SOURCE / f"{layer}.py").exists() else None


def forbidden(path: Path) -> list[str]:
    """Return the imports of a file that its layer must not import."""
    file, layer = str(path.relative_to(SOURCE)), layer_of(path)
    own_store = ".".join(("headrace", *path.relative_to(SOURCE).parts[:2]))
    if layer in DIRECTORIES:
        return []
    found = []
    for name in imported(path):
        target = target_of(name)
        if target is None or (file in INSPECTORS and target == "stores"):
            continue
        if layer == "registry":
            allowed = target == "registry" or name == "headrace.stores" or target in BELOW_STORES
        elif layer == "stores" and target in ("stores", "registry"):
            allowed = name == "headrace.stores" or name.startswith(("headrace.stores.opening", own_store))
        else:
            allowed = target == layer or target in ALLOWED[layer] or name == "headrace.stores"
        if not allowed:
            found.append(f"{file} imports {name}")
    return found


def test_imports_go_down() -> None:
    assert [each for path in MODULES for each in forbidden(path)] == []


def test_the_core_knows_no_annex() -> None:
    known = {path: [name for name in imported(path) if name.startswith(ANNEXES)] for path in MODULES}
    assert {path: names for path, names in known.items() if names} == {}


def test_annexes_use_only_what_the_core_gives_to_all_packages() -> None:
    wrong = []
    for annex in ANNEXES:
        for path in sorted((ROOT / annex).rglob("*.py")):
            for name in imported(path):
                layer = name.split(".")[1] if "." in name else ""
                public = name in PUBLIC_MODULES or any(name.startswith(f"{each}.") for each in PUBLIC_MODULES)
                holds_public = any(each.startswith(f"{name}.") for each in PUBLIC_MODULES)
                if not name.startswith(annex) and layer not in PUBLIC and not public and not holds_public:
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_endpoints_use_only_the_contract_of_the_embedded_store() -> None:
    used: dict[str, set[str]] = {name: set() for name in CONTRACT}
    for annex in ANNEXES:
        for path in sorted((ROOT / annex).rglob("*.py")):
            modules = {name.rpartition(".")[2] for name in imported(path) if ".for_servers." in name} & used.keys()
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                    used[node.value.id].add(node.attr)
    assert used == CONTRACT


def name_of(path: Path) -> str:
    """Return the dotted name of a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


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
    paths = [path for path in MODULES if layer_of(path) not in DIRECTORIES]
    paths += [path for annex in ANNEXES for path in sorted((ROOT / annex).rglob("*.py"))]
    modules = {name_of(path): imported(path) for path in paths}
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
    assert {layer_of(path) for path in MODULES} == set(ALLOWED) | DIRECTORIES | {"registry"}
