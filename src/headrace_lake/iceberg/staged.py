"""The staged rows of batches for Iceberg tables, and the commits that they become."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from headrace.errors import UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.ports import Staged, Write
from headrace.ports.publication import alterations_of
from headrace.rows import to_arrow
from headrace_lake import data_files
from headrace_lake.iceberg.catalog import Tables
from headrace_lake.iceberg.commits import NewFiles, Planner
from headrace_lake.iceberg.version import Version
from headrace_lake.ready_files import ready_files
from headrace_lake.staging import WHOLE_ROWS, Staging


def stage(
    staging: Staging,
    tables: Tables,
    batch: int,
    rows: Iterable[pa.RecordBatch],
    table: str | None,
    change: RowChange | None,
) -> list[Staged]:
    """Stage rows: whole rows of a known table as its data files have them."""
    if table is None or change not in WHOLE_ROWS:
        return staging.put(batch, rows, None)
    version = tables.load(table)
    typed = (part for each in rows for part in to_arrow(each, version.schema, columns="all").to_batches())
    # The driver writes the files of partitions.
    return staging.put(batch, typed, version.columns if version.spec.is_unpartitioned() else None)


def check_writes(staging: Staging, batch: int, writes: Sequence[Write]) -> None:
    """Raise an error unless the writes of a batch are staged, and change rows only."""
    if any(alterations_of(writes).values()):
        raise UnsupportedError("a batch does not change the columns of Iceberg tables")
    for write in writes:
        staging.check(batch, write.staged)


def planner_of(
    staging: Staging, batch: int, writes: Sequence[Write], version: Version, *, decided: bool = False
) -> Planner:
    """Return the plan of the staged writes to one table.

    Args:
        version: the newest version of the table.
        decided: see `TableWrite.of`.
    """
    columns = version.columns
    writes = [write for write in writes if write.staged or write.change is RowChange.REPLACE_ALL]
    ready = ready_files(staging, batch, writes, columns) if version.spec.is_unpartitioned() else None
    return Planner(
        ready or [staging.write(batch, write, columns.schema, decided=decided) for write in writes],
        NewFiles(f"{data_files.PREFIX}{staging.digest}-{batch}-"),
        columns,
        version.spec,
    )


def information(staging: Staging, batch: int) -> dict[str, str]:
    """Return the texts about a batch for the history of a table."""
    return {"headrace.job": staging.job, "headrace.sink": staging.sink, "headrace.batch": str(batch)}
