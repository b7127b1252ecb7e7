"""Reading the rows of a version in key order: see `headrace_lake.scanning`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from headrace.model.tables.conditions import KeyRange
from headrace_lake import scanning
from headrace_lake.delta.log import DataFile
from headrace_lake.delta.snapshot import Snapshot
from headrace_lake.scanning import Selection


def scan(snapshot: Snapshot, selection: Selection, files: Sequence[DataFile] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a version, or of some of its files, in key order; of a table without a key in no order."""
    sources = [
        scanning.Source(file.bounds, partial(_rows, snapshot, selection, file)) for file in files or snapshot.files
    ]
    return scanning.scan(sources, snapshot.schema, selection)


def _rows(snapshot: Snapshot, selection: Selection, file: DataFile) -> Iterator[pa.RecordBatch]:
    path, constants = snapshot.directory / file.path, snapshot.constants(file)
    yield from scanning.file_rows(path, snapshot.schema, selection, snapshot.id, constants, snapshot.deleted(file))


def ranges(snapshot: Snapshot, count: int) -> list[KeyRange]:
    """Return at most ``count`` ranges of keys of about equal size, by the bounds of row groups."""
    files = [(snapshot.directory / file.path, file.bounds) for file in snapshot.files]
    return scanning.ranges(files, snapshot.schema, count)
