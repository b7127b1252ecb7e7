"""Staged files that a table can have as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import TableSchema
from headrace.ports import Write
from headrace.rows.by_position import repeats
from headrace_lake import data_files
from headrace_lake.places import Place
from headrace_lake.staging import WHOLE_ROWS, Columns, Staging


@dataclass(frozen=True)
class ReadyFiles:
    """Whole rows in files as the table has them: sorted, and with different keys.

    Attributes:
        change: the row change of these rows.
        files: the files.
        keys: the keys whose old rows are removed: those of all files, and others; None if they are not read yet, and
            there are no others.
    """

    change: RowChange
    files: Sequence[Place]
    keys: pa.Table | None = None

    def all_keys(self, schema: TableSchema) -> pa.Table:
        """Return the keys whose old rows are removed."""
        return read_keys(self.files, schema) if self.keys is None else self.keys


def ready_files(staging: Staging, batch: int, writes: Sequence[Write], columns: Columns) -> ReadyFiles | None:
    """Return the staged files of the writes, if the table can have them as they are.

    These are whole rows of a single write, and deletes of other keys.
    """
    whole = [write for write in writes if write.change in WHOLE_ROWS]
    deletes = [write for write in writes if write.change is RowChange.DELETE]
    if len(whole) != 1 or len(whole) + len(deletes) < len(writes):
        return None
    schema = columns.schema
    files, keys = ([staging.path(batch, each) for w in group for each in w.staged] for group in (whole, deletes))
    for path in files:
        with data_files.opened(path) as opened:
            if not data_files.is_sorted(opened, columns.id, schema.primary_key) or not opened.schema_arrow.equals(
                schema.arrow
            ):
                return None
    if (len(files) < 2 and not keys) or not schema.primary_key:
        return ReadyFiles(whole[0].change, files)
    if not all(_has_keys(path, schema) for path in keys):
        return None
    # A file has different keys, and two files can have the same one.
    found = read_keys([*files, *keys], schema)
    return None if repeats(found, schema.primary_key) else ReadyFiles(whole[0].change, files, found)


def _has_keys(path: Place, schema: TableSchema) -> bool:
    """Return whether a file has the key columns of a table, in its types and without nulls."""
    with data_files.opened(path) as opened:
        fields = schema.nullable(schema.primary_key)
        types = dict(zip(opened.schema_arrow.names, opened.schema_arrow.types, strict=True))
        if any(types.get(field.name) != field.type for field in fields):
            return False
        return not any(column.null_count for column in data_files.read(opened, fields).columns)


def read_keys(files: Iterable[Place], schema: TableSchema) -> pa.Table:
    """Return the keys of files."""
    fields = schema.nullable(schema.primary_key)
    parts = [fields.empty_table()]
    for path in files:
        with data_files.opened(path) as opened:
            parts.append(data_files.read(opened, fields))
    return pa.concat_tables(parts)
