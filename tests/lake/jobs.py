"""A job that publishes batches into lake tables, in a process that a failpoint can kill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.model.own_names import PREFIX
from headrace.model.tables.changes import RowChange
from headrace.ports import Claim, Publisher, Store, Write
from headrace.rows import to_arrow
from headrace.support import failpoints
from tests.lake.lakes import opened

STATE, TARGETS = f"{PREFIX}state", f"{PREFIX}targets"


def write(
    store: Store, publisher: Publisher, batch: int, table: str, rows: Sequence[Mapping[str, Any]], change: RowChange
) -> Write:
    """Stage rows for a table."""
    columns = "keys" if change is RowChange.DELETE else "all"
    parts = to_arrow(list(rows), store.table(table).schema, columns=columns).to_batches()  # type: ignore[arg-type]
    return Write(table, change, tuple(publisher.stage(batch, parts, table=table, change=change)))


def create(directory: Path, old_rows: int = 0) -> None:
    """Create the tables of the jobs: two lake tables, and two of headrace's own.

    Args:
        old_rows: the rows of table ``t``, which then has deletion vectors.
    """
    with opened(directory, deletion_vectors=old_rows > 0) as store:
        if old_rows:
            store.table("t").put([{"id": number, "name": "old"} for number in range(old_rows)])
        add_tables(store)


def add_tables(store: Store) -> None:
    """Create the tables beside ``t``."""
    store.create_table("u", {"id": "long", "name": "string"}, "id")
    store.create_table(STATE, {"id": "long", "batches": "long"}, "id")
    store.create_table(TARGETS, {"target": "string", "job": "string"}, "target")


def publish(store: Store, batch: int, job: str = "job", *, several: bool) -> bool:
    """Publish a batch as a driver does after any crash.

    Each batch puts its row and removes the one before. With ``several`` it also changes table ``u`` and the state, and
    claims the target.
    """
    publisher = store.publisher(job, "sink")
    publisher.check_complete(batch)
    if publisher.resume(batch):
        return publisher.publish(batch, [], content=str(batch))
    row = {"id": batch, "name": f"{job} {batch}"}
    writes = [write(store, publisher, batch, "t", [row], RowChange.PUT)]
    claim = None
    if several:
        writes.append(write(store, publisher, batch, "u", [row], RowChange.PUT))
        if batch:
            writes.append(write(store, publisher, batch, "u", [{"id": batch - 1}], RowChange.DELETE))
        writes.append(write(store, publisher, batch, STATE, [{"id": 1, "batches": batch + 1}], RowChange.PUT))
        after = {"target": "t", "job": job}
        claim = Claim(TARGETS, store.table(TARGETS).get({"target": "t"}), after)
    return publisher.publish(batch, writes, content=str(batch), claim=claim)


def run(
    directory: Path,
    first: int,
    end: int,
    several: bool,
    point: str | None = None,
    open_store: Callable[[Path], Store] = opened,
) -> None:
    """Publish batches, and be killed at a failpoint."""
    failpoints.arm(point)
    with open_store(directory) as store:
        for batch in range(first, end):
            publish(store, batch, several=several)
