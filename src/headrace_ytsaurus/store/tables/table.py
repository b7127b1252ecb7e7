"""Sorted dynamic tables as tables of headrace."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import KeyRange, Where, parse_where
from headrace.model.tables.options import TableOptions, check_option_names
from headrace.model.tables.schema import Key, KeyValue, TableSchema
from headrace.ports import Rows, Table, TableDescription, TrimReport
from headrace.rows import check_sets, to_arrow
from headrace.rows.by_position import aligned
from headrace.rows.conditions import check_scan_sizes, operands, typed_key, typed_range, whole_key
from headrace.rows.satisfied import satisfied
from headrace_ytsaurus.store import catalog
from headrace_ytsaurus.store.catalog import Names
from headrace_ytsaurus.store.connection import YtConnection
from headrace_ytsaurus.store.schemas import TableLayout
from headrace_ytsaurus.store.tables import conditions
from headrace_ytsaurus.store.tables.writing import write, write_whole

FIXED_OPTIONS = TableOptions(retention_seconds=None, change_log=False)
"""The options of all tables: they have no change log."""
_PAGE_ROWS = 65_536
_NO_LIMIT = 1 << 62
_LOOKUP_ROWS = 20_000
# The size of rows is not known before the first page.
_FIRST_PAGE_ROWS = 256
_PAGE_BYTES = 32 << 20
_COLUMNS_OF: dict[RowChange, Any] = {RowChange.PUT: "all", RowChange.UPDATE: "given", RowChange.DELETE: "keys"}


class YtTable(Table):
    """A sorted dynamic table, with its columns at the creation of the handle.

    Raises:
        NotFoundError: the table does not exist.
        UnsupportedError: headrace does not support its key.
    """

    def __init__(self, connection: YtConnection, names: Names, name: str) -> None:
        node = catalog.find(connection, names, name, catalog.TABLE)
        self.name = name
        self.path = node.path
        self._id = node.id
        self.layout = TableLayout.of(node.columns, name)
        self._connection = connection

    def __repr__(self) -> str:
        return f"YtTable({self.name!r})"

    @property
    def schema(self) -> TableSchema:
        return self.layout.schema

    def identity(self) -> str:
        return self._id

    # -- writing ----------------------------------------------------------------------------------------

    def put(self, rows: Rows) -> int:
        """Write whole rows; see `headrace.ports.Table.put`.

        They become visible at once if a transaction can contain them. The service does not return commit versions: the
        result is this machine's time in µs since 1970.
        """
        return self._write(RowChange.PUT, rows)

    def update(self, rows: Rows, *, keep_nulls: bool = True) -> int:
        return self._write(RowChange.UPDATE, rows, keep_nulls=keep_nulls)

    def delete(self, keys: Rows) -> int:
        return self._write(RowChange.DELETE, keys)

    def _write(self, change: RowChange, rows: Rows, *, keep_nulls: bool = False) -> int:
        typed = to_arrow(rows, self.schema, columns=_COLUMNS_OF[change])
        if change is RowChange.UPDATE:
            check_sets(typed, self.schema)
        write_whole(self._connection, self.path, self.layout, change, typed, keep_nulls=keep_nulls)
        return time.time_ns() // 1000

    def apply(self, client: Any, change: RowChange, rows: pa.Table) -> None:
        """Write typed rows, in the transaction of a client if it is not None."""
        write(self._connection, self.path, self.layout, change, rows, client=client)

    # -- reading ----------------------------------------------------------------------------------------

    def get(
        self, key: Mapping[str, KeyValue], columns: Sequence[str] | None = None, *, client: Any = None
    ) -> dict[str, Any] | None:
        """Return a row; see `headrace.ports.Table.get`. With ``client``, it is read in the client's transaction."""
        schema = self.schema
        values = whole_key(schema, key)
        names = [schema.column(name).name for name in (schema.names if columns is None else columns)]
        given = pa.table(
            {
                name: pa.array([value], schema.column(name).type)
                for name, value in zip(schema.primary_key, values, strict=True)
            }
        )
        keys, key_columns = self.layout.written(given)
        wanted = [self.layout.columns[name] for name in dict.fromkeys((*schema.primary_key, *names))]
        found = self._connection.lookup(self.path, keys, key_columns, wanted, client=client)
        if not found.num_rows:
            return None
        row: dict[str, Any] = self.layout.read(found, names).to_pylist()[0]
        return row

    def get_many(self, keys: Rows, columns: Sequence[str] | None = None) -> pa.Table:
        schema = self.schema
        fields = schema.nullable(columns)
        typed = to_arrow(keys, schema, columns="keys")
        needed = list(dict.fromkeys((*schema.primary_key, *fields.names)))
        wanted = [self.layout.columns[name] for name in needed]
        found = [schema.nullable(needed).empty_table()]
        for start in range(0, typed.num_rows, _LOOKUP_ROWS):
            given, key_columns = self.layout.written(typed.slice(start, _LOOKUP_ROWS))
            rows = self._connection.lookup(self.path, given, key_columns, wanted)
            found.append(pa.Table.from_batches([self.layout.read(rows, needed)]).cast(found[0].schema))
        return aligned(typed, pa.concat_tables(found).combine_chunks(), schema.primary_key, fields)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        keys: KeyRange | None = None,
        limit: int | None = None,
        batch_rows: int = _PAGE_ROWS,
        read_ahead: bool = True,
    ) -> pa.RecordBatchReader:
        """Read rows in the service's key order; see `headrace.ports.Table.scan`."""
        schema = self.schema
        names = [schema.column(name).name for name in (schema.names if columns is None else columns)]
        predicates = parse_where(where)
        for predicate in predicates:
            # Invalid columns and values fail now, not at the first read.
            column = schema.column(predicate.column)
            if predicate.value is not None:
                operands(column, predicate)
        bounds = typed_range(schema, keys or KeyRange())
        check_scan_sizes(limit, batch_rows)
        fields = pa.schema([schema.arrow.field(name) for name in names])
        never = any(p.value is None and p.operator not in ("is null", "is not null") for p in predicates)
        pages = iter(()) if never else self._pages(names, bounds, predicates, min(batch_rows, _PAGE_ROWS), limit)
        return pa.RecordBatchReader.from_batches(fields, pages)

    def _pages(
        self, names: Sequence[str], keys: KeyRange, predicates: Sequence[Any], page_rows: int, limit: int | None
    ) -> Iterator[pa.RecordBatch]:
        layout = self.layout
        needed = dict.fromkeys((*names, *(predicate.column for predicate in predicates)))
        sorted_by = [column.name for column in layout.key]
        read = [*layout.key, *(layout.columns[name] for name in needed if name not in sorted_by)]
        selected = ", ".join(conditions.quoted(column.name) for column in read)
        order = ", ".join(conditions.quoted(name) for name in sorted_by)
        after: Key | None = None
        missing = _NO_LIMIT if limit is None else limit
        most, page_rows = page_rows, min(page_rows, _FIRST_PAGE_ROWS)
        with self._connection.snapshot() as select:
            while missing:
                page_rows = min(page_rows, missing)
                condition = conditions.where(layout, keys, predicates, after)
                query = (
                    f"{selected} from {catalog.check_path_in_queries(self.path)}"
                    f"{' where ' + condition if condition else ''} order by {order} limit {page_rows}"
                )
                page = select(query, read)
                if page.num_rows:
                    layout.check_keys(page)
                    last = page.slice(page.num_rows - 1)
                    after = tuple(last.column(name)[0].as_py() for name in sorted_by)
                    typed = layout.read(page, list(needed)) if needed else page
                    rows = satisfied(typed, layout.schema.columns, predicates)
                    missing -= rows.num_rows
                    if rows.num_rows:
                        yield layout.read(rows, names)
                if page.num_rows < page_rows:
                    return
                page_rows = min(most, max(1, _PAGE_BYTES * page.num_rows // max(1, page.nbytes)))

    def splits(self, count: int, *, size: int | None = None) -> list[KeyRange]:
        """Return at most ``count`` ranges that begin at tablets; the service chooses the tablets."""
        if self.layout.computed:
            return [KeyRange()]
        pivots = self._connection.attribute(self.path, "pivot_keys", [])
        bounds = [typed_key(self.schema, _plain_key(pivot)) for pivot in pivots if len(pivot)]
        step = -(-(len(bounds) + 1) // max(1, count))
        cuts = [None, *bounds[step - 1 :: step], None]
        return [KeyRange(low, high) for low, high in itertools.pairwise(cuts)]

    # -- description, and operations that the service does not have --------------------------------------

    def describe(self) -> TableDescription:
        """Describe the table. The service reports no exact number of rows."""
        return TableDescription(name=self.name, schema=self.schema, options=FIXED_OPTIONS, rows=None, partitions=())

    def split(self, partition: int | None = None, at: Mapping[str, KeyValue] | None = None) -> tuple[int, int]:
        raise UnsupportedError("YTsaurus splits the tablets of a table", remedy="yt reshard-table <path> <pivot keys>")

    def merge(self, left: int, right: int) -> int:
        raise UnsupportedError("YTsaurus merges the tablets of a table", remedy="yt reshard-table <path>")

    def add_columns(self, columns: Mapping[str, str | pa.DataType]) -> None:
        raise UnsupportedError("headrace does not alter tables of YTsaurus", remedy="yt alter-table <path> --schema …")

    def set_options(self, **changes: Any) -> TableOptions:
        check_options(changes)
        return FIXED_OPTIONS

    def trim(self, *, before: Mapping[int, int] | None = None, cut_tunnels: bool = False) -> TrimReport:
        raise UnsupportedError("tables of YTsaurus keep no changes, so there are none to remove")


def check_options(options: Mapping[str, Any]) -> None:
    """Check options of `TableOptions`: only the values of `FIXED_OPTIONS` are allowed.

    Raises:
        OptionError: an option is unknown.
        UnsupportedError: an option has another value.
    """
    check_option_names(options)
    for name, value in options.items():
        if value not in (getattr(FIXED_OPTIONS, name), getattr(TableOptions(), name)):
            raise UnsupportedError(
                f"tables of YTsaurus cannot have option {name}: they keep no changes",
                received=repr(value),
                valid=repr(getattr(FIXED_OPTIONS, name)),
            )


def _plain_key(pivot: Sequence[Any]) -> list[Any]:
    """Return a pivot key without the client's classes, cut before its first null."""
    values: list[Any] = []
    for value in pivot:
        if isinstance(value, int) and not isinstance(value, bool):
            values.append(int(value))
        elif isinstance(value, str):
            values.append(str(value))
        elif hasattr(value, "_bytes"):
            values.append(bytes(value._bytes))
        else:
            break
    return values
