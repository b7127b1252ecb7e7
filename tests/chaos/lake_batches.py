"""A job without Spark that publishes batches into lake tables until it is killed. A batch follows from its number."""

from __future__ import annotations

import random
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import Column
from headrace.model.types import parse_type
from headrace.ports import Claim, Store, Write
from headrace.rows import to_arrow
from tests.chaos.lake_actors import opened
from tests.lake.jobs import STATE, TARGETS

TABLES = ("copy", "merged")
_KEYS, _PARTS, _BATCHES_OF_A_COLUMN, _MOST_COLUMNS = 40, 4, 3, 5
Rows = dict[int, dict[str, Any]]


def columns_of(batch: int) -> list[str]:
    """Return the columns that were added until a batch."""
    return [f"c{number}" for number in range(min(batch // _BATCHES_OF_A_COLUMN, _MOST_COLUMNS))]


def changes_of(batch: int, rows: Rows) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the keys that a batch deletes, and the rows that it then puts; some move between keys."""
    chance = random.Random(batch)
    keys = chance.sample(range(_KEYS), chance.choice([1, 4, 20]))
    deleted = [key for key in keys if chance.random() < 0.4]
    moved = [rows[key] for key in keys if key in rows and chance.random() < 0.5]
    put = [row | {"id": chance.choice(keys)} for row in moved] + [
        {"id": key, "part": chance.randrange(_PARTS), "value": batch}
        | {name: str(batch) for name in columns_of(batch) if chance.random() < 0.7}
        for key in keys
        if chance.random() < 0.5
    ]
    return deleted, put


def rows_after(batch: int | None) -> Rows:
    """Return the rows after a batch, by key; None is before the first."""
    rows: Rows = {}
    for number in range(0 if batch is None else batch + 1):
        deleted, put = changes_of(number, rows)
        for key in deleted:
            rows.pop(key, None)
        rows |= {row["id"]: row for row in put}
    return rows


def publish(store: Store, batch: int, names: tuple[str, ...]) -> None:
    """Publish a batch as a driver does after any crash: with two tables, it also changes the state and has a claim."""
    publisher = store.publisher("job", "sink")
    publisher.check_complete(batch)
    if publisher.resume(batch):
        assert not publisher.publish(batch, [], content=str(batch))
        return
    deleted, put = changes_of(batch, rows_after(batch - 1))
    writes = []
    for name in names:
        table = store.table(name)
        added = [Column(each, parse_type("string")) for each in columns_of(batch) if each not in table.schema]
        alteration = None
        if store.capabilities.evolves:
            alteration = Alteration(added=added) or None
        elif added:
            table.add_columns({column.name: "string" for column in added})
        schema = table.schema if alteration is None else alteration.applied(table.schema)
        for change, rows in ((RowChange.DELETE, [{"id": key} for key in deleted]), (RowChange.PUT, put)):
            parts = to_arrow(rows, schema, columns="keys" if change is RowChange.DELETE else "all").to_batches()
            staged = publisher.stage(batch, parts, table=name, change=change)
            writes.append(Write(name, change, tuple(staged), alteration))
    claim = None
    if len(names) > 1:
        state = to_arrow([{"id": 1, "batches": batch + 1}], store.table(STATE).schema, columns="all").to_batches()
        staged = publisher.stage(batch, state, table=STATE, change=RowChange.PUT)
        writes.append(Write(STATE, RowChange.PUT, tuple(staged)))
        target = {"target": "copy"}
        claim = Claim(TARGETS, store.table(TARGETS).get(target), target | {"job": "job"})
    publisher.publish(batch, writes, content=str(batch), claim=claim)


def run(directory: Path, names: tuple[str, ...], again: bool, running: Event) -> None:
    """Publish batches; ``again`` begins with the last one, as a driver does that has not noted its publication."""
    with opened(directory) as store:
        last = store.publisher("job", "sink").last_batch()
        batch = 0 if last is None else last if again else last + 1
        running.set()
        while True:
            publish(store, batch, names)
            batch += 1
