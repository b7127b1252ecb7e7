"""Functions that `test_processes` runs in other processes. All of them can be pickled by name."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from headrace.model.tables.changes import RowChange
from headrace.ports import Write
from headrace.testing import Place
from headrace.testing.processes import DEADLINE, begin
from headrace.testing.reading import Change, drain

COMMITS = 40
ROWS = 5
BATCHES = 60
LAST_KEY = "zzz the end"


def put_rows(place: Place, writer: int) -> list[int]:
    """Put rows with keys of this process. Return the commit versions."""
    begin()
    with place.open() as store:
        table = store.table("orders")
        return [
            table.put([{"id": f"{writer}-{commit}-{row}", "price": writer} for row in range(ROWS)])
            for commit in range(place.commits(COMMITS))
        ]


def change_rows(place: Place, writer: int) -> list[int]:
    """Update and delete rows that other processes also update and delete. Return the commit versions."""
    begin()
    versions = []
    with place.open() as store:
        table = store.table("orders")
        for commit in range(place.commits(COMMITS)):
            keys = [{"id": f"shared {(commit + number) % 7}"} for number in range(3)]
            versions.append(table.update([{**key, "price": commit, "note": str(writer)} for key in keys]))
            if commit % 5 == 0:
                versions.append(table.delete(keys[0]))
    return versions


def publish_batches(place: Place) -> list[int]:
    """Stage and publish the batches of a job. Return the batches that this process published."""
    begin()
    with place.open() as store:
        publisher = store.publisher("job")
        batches = range(place.commits(BATCHES))
        return [batch for batch in batches if publisher.publish(batch, [_rows_of_batch(place, batch)])]


def _rows_of_batch(place: Place, batch: int) -> Write:
    rows = pa.RecordBatch.from_pylist([{"id": f"published {batch} {row}", "price": batch} for row in range(ROWS)])
    with place.open() as store:
        return Write("orders", RowChange.PUT, tuple(store.publisher("job").stage(batch, [rows])))


def follow(place: Place) -> list[Change]:
    """Read tunnel ``changes`` up to the last key."""
    begin()
    deadline = time.monotonic() + DEADLINE
    found: list[Change] = []
    with place.open() as store:
        tunnel = store.tunnel("changes")
        while time.monotonic() < deadline:
            changes = drain(tunnel, page_rows=50)
            found += changes
            if any(change.key == (LAST_KEY,) for change in changes):
                return found
            store.wait_for_change(1.0)
    raise TimeoutError(f"{LAST_KEY} did not come")


def write_until_killed(place: Place, life: int) -> None:
    """Write transactions until killed: puts of some rows, and publications into two tables."""
    with place.open() as store:
        table, publisher = store.table("orders"), store.publisher(f"job {life}")
        number = 0
        while True:
            table.put(_rows_of_life(life, number))
            staged = tuple(publisher.stage(number, [pa.RecordBatch.from_pylist(_rows_of_life(life, number))]))
            publisher.publish(number, [Write("left", RowChange.PUT, staged), Write("right", RowChange.PUT, staged)])
            number += 1


def _rows_of_life(life: int, number: int) -> list[dict[str, Any]]:
    return [{"id": f"{life}-{number}-{row}", "price": number, "note": f"{life}-{number}"} for row in range(ROWS)]
