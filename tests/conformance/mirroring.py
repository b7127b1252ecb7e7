"""Workers that mirror a table, in processes of their own, and the check that each change was copied once."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, TypeAlias

import headrace
from headrace.model.tables.changes import DELETES
from headrace.ports import Store, Table, Tunnel
from headrace.support import failpoints
from headrace.testing import Place
from headrace.testing.reading import drain

COLUMNS = {"id": "string", "price": "long"}
TIMEOUT = 1.0
Log: TypeAlias = dict[str, list[tuple[bool, Any]]]
"""For each key its changes: whether it is a delete, and the new value."""


def target_of(place: Place, store: Store, directory: Path, *, create: bool = False) -> Store:
    """Return the store of the copy: that of the source, unless it cannot keep positions."""
    if store.capabilities.markers:
        return place.open()
    return headrace.open(directory / "copies", create=create, synchronous="off")


def create(store: Store, directory: Path) -> tuple[Table, Tunnel, Tunnel]:
    """Create the source, an empty copy with a log, and the mirror; return the source, and the logs of both."""
    orders = store.create_table("orders", COLUMNS, "id")
    orders.put([{"id": f"{number:02}", "price": number} for number in range(12)])
    target = store if store.capabilities.markers else headrace.open(directory / "copies", create=True)
    target.create_table("copy", COLUMNS, "id")
    logs = store.create_tunnel("orders", "oracle"), target.create_tunnel("copy", "log", "Stream")
    worker = headrace.mirror_worker(store, "orders", target, "copy")
    # It prepares both stores, and copies nothing.
    worker.stop()
    worker.run()
    return orders, *logs


def change(orders: Table, number: int) -> None:
    """Change some rows in several commits: more of some, and none of others."""
    orders.put([{"id": f"{(number + each) % 16:02}", "price": 100 * number + each} for each in range(4)])
    orders.delete([{"id": f"{number % 16:02}"}])
    orders.update({"id": f"{(number + 2) % 16:02}", "price": -number})


def work(place: Place, directory: Path, failpoint: str | None = None, batch_rows: int = 1) -> None:
    """Run a worker until all is copied, or until it is killed at a failpoint. A batch of one row is one change."""
    with place.open() as source, target_of(place, source, directory) as target:
        failpoints.arm(failpoint)
        worker = headrace.mirror_worker(
            source, "orders", target, "copy", idle="stop", batch_rows=batch_rows, timeout=TIMEOUT
        )
        worker.run()


def log_of(tunnel: Tunnel) -> Log:
    """Read all changes of a tunnel."""
    found: Log = defaultdict(list)
    for each in drain(tunnel):
        deleted = each.op in DELETES
        found[each.key[0]].append((deleted, None if deleted else each.row["price"]))
    return dict(found)
