"""Publication: one transaction writes the marker of a batch, applies its staged rows and removes them.

The marker comes first. Its row lock lets a second publisher of the same sink wait for the outcome of the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa
from psycopg import sql

from headrace.errors import HeadraceError, NotFoundError, RowsNotWrittenError, SchemaError, UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.ports import Advance, Append, Claim, Marker, Publisher, Staged, Write
from headrace.ports.publication import alterations_of, bad_rows_of
from headrace.rows import to_arrow
from headrace.rows.staged_parts import in_pieces, joined
from headrace.stores.postgres.connection import Bulk, PostgresConnection
from headrace.stores.postgres.failures import RefusedValueError
from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.own_tables import OwnTables
from headrace.stores.postgres.publication import staging
from headrace.stores.postgres.publication.bad_rows import alter, apply_apart, forget
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.session import CATALOG_PATH
from headrace.stores.postgres.tables.attempts import Care, attempts
from headrace.stores.postgres.tables.copying import can_copy, copy
from headrace.stores.postgres.tables.refused_values import refusal
from headrace.stores.postgres.tables.table import PostgresTable
from headrace.stores.postgres.tables.writing import apply, check_values, delete, replace_all, set_path
from headrace.stores.shared.staging import BatchKey, HeldRows
from headrace.stores.shared.streams import streams
from headrace.support import failpoints


class _ClaimLost(Exception):
    """The row of a claim is not as expected."""


class PostgresPublisher(Publisher):
    """Publishes the batches of one sink of a job in a PostgreSQL database, each exactly once.

    Args:
        connection: the connections to the database.
        schema: the schema of headrace's own tables.
    """

    def __init__(self, connection: PostgresConnection, schema: str, job: str, sink: str) -> None:
        self.job = job
        self.sink = sink
        self._connection = connection
        self._schema = schema
        self._tables = OwnTables(connection, schema, staging.TABLES)
        self._held = HeldRows()

    def __repr__(self) -> str:
        return f"PostgresPublisher(job={self.job!r}, sink={self.sink!r})"

    def published(self, batch: int) -> bool:
        marker = self.marker()
        return marker is not None and marker.batch >= batch

    def marker(self) -> Marker | None:
        return self._tables.ask(self._marker)

    def last_batch(self) -> int | None:
        def read(session: psycopg.Connection) -> int | None:
            query = f"SELECT max(batch) FROM {self._tables.schema}.marker WHERE job = %s"
            row = session.execute(query.encode(), (self.job,)).fetchone()
            return None if row is None else row[0]

        return self._tables.ask(read)

    # -- staging ------------------------------------------------------------------------------------------

    def stage(
        self,
        batch: int,
        rows: Iterable[pa.RecordBatch],
        *,
        table: str | None = None,
        change: RowChange | None = None,
    ) -> list[Staged]:
        if self.in_process:
            return self._held.hold(rows)
        key = self._key(batch)
        staged: list[Staged] = []
        try:
            # Each receipt is known at once, for a failure of a later part.
            for count, data in streams(rows, staging.STAGE_BYTES):
                staged += [self._insert(key, count, data)]
        except BaseException:
            if staged:
                self.discard(batch, staged)
            raise
        failpoints.reach("rows-staged")
        return staged

    def _insert(self, key: BatchKey, rows: int, data: pa.Buffer) -> Staged:
        # A receipt that is not used is swept with the next publication.
        return self._tables.run(
            lambda session: staging.insert(session, self._tables.schema, key, rows, data), repeatable=True
        )

    def discard(self, batch: int, staged: Sequence[Staged] | None = None) -> None:
        if self.in_process:
            self._held.clear()
            return
        key = self._key(batch)
        self._tables.run(lambda session: staging.delete(session, self._tables.schema, key, staged), repeatable=True)

    def staged_rows(self, bulk: Bulk, batch: int, receipts: Iterable[Staged]) -> Iterator[pa.Table]:
        """Yield the staged rows of receipts, as they were staged.

        Raises:
            PublicationError: they do not exist.
        """
        with bulk.cursor() as cursor:
            for each in receipts:
                yield staging.load(cursor, self._tables.schema, self._key(batch), each)

    # -- publishing ---------------------------------------------------------------------------------------

    def publish(
        self,
        batch: int,
        writes: Sequence[Write | Append],
        *,
        advances: Sequence[Advance] = (),
        content: str = "",
        last: bool = False,
        claim: Claim | None = None,
        also: Callable[[Bulk], None] | None = None,
    ) -> bool:
        """Publish a batch; see `headrace.ports.Publisher.publish`.

        Args:
            also: makes further changes of the database in the transaction, before the staged rows are removed. It runs
                again if the transaction is repeated, and leaves the search path as it is.

        Raises:
            RowsNotWrittenError: rows violate a constraint of their table; nothing is changed.
        """
        if advances:
            raise UnsupportedError("this store has no consumers", received=repr(advances[0].consumer))

        def work(bulk: Bulk, care: Care, *, apart: bool = False) -> bool:
            self.refused = 0
            with bulk.cursor() as cursor:
                if not self._mark(cursor, batch, content, last=last):
                    return False
                failpoints.reach("marker-written")
                if claim is not None and not self._take(cursor, claim):
                    raise _ClaimLost
                now = layouts | {name: each.alter(cursor, choices) for name, each in altered.items()}
                for name in altered.keys() & of_tables.keys():
                    bad = self._layout(of_tables[name].table, layouts)
                    alter(bulk, altered[name], now[name], bad, self._connection.server.writing_path)
                for number, (write, deletes) in enumerate(_paired(writes)):
                    if number:
                        set_path(bulk, CATALOG_PATH)
                    if apart and isinstance(write, Write) and write.bad_rows is not None:
                        self.refused += self._apply_apart(bulk, cursor, batch, write, deletes, now)
                    else:
                        self._apply(bulk, cursor, batch, write, deletes, now, care)
                if writes and (also is not None or not self.in_process):
                    set_path(bulk, CATALOG_PATH)
                if also is not None:
                    also(bulk)
                failpoints.reach("rows-written")
                if not self.in_process:
                    staging.sweep(cursor, self._tables.schema, self._key(batch))
            if writes or claim is not None:
                # Deferred triggers run at the commit.
                set_path(bulk, self._connection.server.writing_path)
            return True

        def publish(care: Care, *, apart: bool = False) -> bool:
            # The marker shows the outcome of a commit whose answer is lost. The only batch of a job has none.
            return self._tables.run_bulk(lambda bulk: work(bulk, care, apart=apart), repeatable=not last)

        # Before the transaction: one connection after the other, because a pooler may have no second one.
        layouts = self._layouts(writes)
        choices, of_tables = self._connection.address.unrepresentable, bad_rows_of(writes)
        altered = {
            name: PostgresTable(self._connection, name, self._schema).altered(each)
            for name, each in alterations_of(writes).items()
        }
        try:
            try:
                published = attempts(publish, sum(staged.rows for write in writes for staged in write.staged))
            except (SchemaError, RowsNotWrittenError):
                if not any(isinstance(write, Write) and write.bad_rows for write in writes):
                    raise
                published = publish(Care.ROW_BY_ROW, apart=True)
        except RefusedValueError as error:
            raise self._refusal(batch, writes, layouts) or error from None
        except _ClaimLost:
            assert claim is not None
            table = PostgresTable(self._connection, claim.table, self._schema)
            raise claim.lost(table.get({name: claim.after[name] for name in table.schema.primary_key})) from None
        if not published:
            marker = self.marker() or Marker(batch, content)
            self._check_same(batch, content, marker.batch, marker.content)
            return False
        failpoints.reach("published")
        return True

    def _mark(self, cursor: adbc.Cursor, batch: int, content: str, *, last: bool) -> bool:
        """Write the marker of a batch, except if it is the only batch; return whether the batch is not published."""
        markers = f"{self._tables.schema}.marker"
        if last:
            cursor.execute(
                f"SELECT batch FROM {markers} WHERE job = $1 AND sink = $2 AND batch >= $3", self._key(batch)
            )
            return cursor.fetchone() is None
        cursor.execute(
            f"INSERT INTO {markers} AS m (job, sink, batch, content) VALUES ($1, $2, $3, $4)"
            " ON CONFLICT (job, sink) DO UPDATE SET batch = EXCLUDED.batch, content = EXCLUDED.content,"
            " published = EXCLUDED.published WHERE m.batch < EXCLUDED.batch RETURNING batch",
            (*self._key(batch), content),
        )
        return cursor.fetchone() is not None

    def _layouts(self, writes: Sequence[Write | Append]) -> dict[str, TableLayout]:
        """Return the tables of writes that exist: a published batch needs none."""
        layouts = {}
        of_tables = [write for write in writes if isinstance(write, Write)]
        bad_rows = {write.bad_rows.table for write in of_tables if write.bad_rows is not None}
        for name in bad_rows.union(write.table for write in of_tables):
            with suppress(NotFoundError):
                layouts[name] = PostgresTable(self._connection, name, self._schema).layout()
        return layouts

    def _take(self, cursor: adbc.Cursor, claim: Claim) -> bool:
        """Put the row of a claim, and return whether it was as expected.

        A transaction that takes the same row at the same time waits here.
        """
        name = TableName.parse(claim.table).sql
        columns = sql.SQL(", ").join(map(sql.Identifier, claim.after))
        values = sql.SQL(", ").join(sql.SQL(f"${number + 1}") for number in range(len(claim.after)))
        parameters = list(claim.after.values())
        if claim.before == claim.after:
            # Several workers of one job publish at a time.
            same = sql.SQL(" AND ").join(
                sql.SQL("{} = {}").format(sql.Identifier(column), sql.SQL(f"${number + 1}"))
                for number, column in enumerate(claim.after)
            )
            query = sql.SQL("SELECT 1 FROM {} WHERE {} FOR SHARE").format(name, same)
        elif claim.before is None:
            statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT DO NOTHING RETURNING 1")
            query = statement.format(name, columns, values)
        else:
            unchanged = sql.SQL(" AND ").join(
                sql.SQL("{} = {}").format(sql.Identifier(column), sql.SQL(f"${len(claim.after) + number + 1}"))
                for number, column in enumerate(claim.before)
            )
            query = sql.SQL("UPDATE {} SET ({}) = ROW({}) WHERE {} RETURNING 1").format(
                name, columns, values, unchanged
            )
            parameters += claim.before.values()
        cursor.execute(query.as_string(), parameters)
        return cursor.fetchone() is not None

    def _apply(
        self,
        bulk: Bulk,
        cursor: adbc.Cursor,
        batch: int,
        write: Write | Append,
        deletes: Write | None,
        layouts: Mapping[str, TableLayout],
        care: Care,
    ) -> None:
        """Apply a write; of one that puts rows, also the deletes of the same table."""
        if isinstance(write, Append):
            raise UnsupportedError("this store has no queues", received=repr(write.queue))
        table, path = self._layout(write.table, layouts), self._connection.server.writing_path
        if write.bad_rows is not None:

            def keys() -> list[pa.Table]:
                loaded = (self._load(cursor, batch, each, table, at_once=False) for each in (write, deletes) if each)
                return [rows.select(table.primary_key) for pieces in loaded for rows in pieces]

            forget(bulk, table, self._layout(write.bad_rows.table, layouts), keys, path)
        at_once = bool(care) or write.change is RowChange.REPLACE_ALL
        pieces = self._load(cursor, batch, write, table, at_once=at_once)
        if write.new and not care:
            # If a key exists, the transaction is attempted again with more care.
            pieces = _without_copied(bulk, table, pieces, path)
        if write.change is RowChange.REPLACE_ALL:
            replace_all(bulk, table, next(pieces, _none(table)), path, care)
            return
        gone = None if deletes is None else next(self._load(cursor, batch, deletes, table, at_once=True), None)
        first, second = (next(pieces, None), None if gone is None else next(pieces, None))
        if first is not None and second is None and gone is not None:
            apply(bulk, table, write.change, first, path, gone=gone, care=care)
            return
        put_keys = [_none(table).select(table.primary_key)]
        for number, rows in enumerate(itertools.chain((each for each in (first, second) if each is not None), pieces)):
            if number:
                set_path(bulk, CATALOG_PATH)
            apply(bulk, table, write.change, rows, path, keep_nulls=False, care=care)
            put_keys.append(rows.select(table.primary_key))
        if gone is not None:
            set_path(bulk, CATALOG_PATH)
            delete(bulk, table, gone, pa.concat_tables(put_keys), path, care)

    def _apply_apart(
        self,
        bulk: Bulk,
        cursor: adbc.Cursor,
        batch: int,
        write: Write,
        deletes: Write | None,
        layouts: Mapping[str, TableLayout],
    ) -> int:
        """Apply a write whose table refuses rows, see `headrace.stores.postgres.publication.bad_rows`."""
        assert write.bad_rows is not None
        table, key = self._layout(write.table, layouts), self._key(batch)
        changes = [
            (each.change, list(self._staged(cursor, batch, each))) for each in (write, deletes) if each is not None
        ]
        bad = self._layout(write.bad_rows.table, layouts)
        return apply_apart(
            bulk,
            self._connection,
            table,
            bad,
            changes,
            lambda rows, change: _typed(rows, table, change),
            write.bad_rows,
            key,
        )

    def _layout(self, name: str, layouts: Mapping[str, TableLayout]) -> TableLayout:
        return layouts.get(name) or PostgresTable(self._connection, name, self._schema).layout()

    def _refusal(
        self, batch: int, writes: Sequence[Write | Append], layouts: Mapping[str, TableLayout]
    ) -> SchemaError | None:
        """Return the error that names a value which the table of a write refuses; None if it is not found."""

        def load(bulk: Bulk, write: Write) -> list[pa.Table]:
            with bulk.cursor() as cursor:
                return list(self._load(cursor, batch, write, layouts[write.table], at_once=False))

        for write in writes:
            if isinstance(write, Write) and write.table in layouts:
                try:
                    loaded = self._connection.run_bulk(lambda bulk, write=write: load(bulk, write))  # type: ignore[misc]
                except HeadraceError:
                    # The error of the publication itself is more important.
                    return None
                for rows in loaded:
                    error = refusal(self._connection, layouts[write.table], rows)
                    if error is not None:
                        return error
        return None

    def _load(
        self, cursor: adbc.Cursor, batch: int, write: Write, table: TableLayout, *, at_once: bool
    ) -> Iterator[pa.Table]:
        """Yield staged rows in the types of their table, in pieces that are large enough for a statement, or in one."""
        loaded = self._staged(cursor, batch, write)
        if write.bad_rows is not None:
            # Rows that their table cannot have are staged as they are, in other types.
            loaded = (_typed(rows, table, write.change) for rows in loaded)
        parts = list(loaded) if at_once else []
        for rows in [joined(parts)] if parts else in_pieces(loaded):
            yield _typed(rows, table, write.change)

    def _staged(self, cursor: adbc.Cursor, batch: int, write: Write) -> Iterator[pa.Table]:
        """Yield the staged rows of a write."""
        for receipt in write.staged:
            if self.in_process:
                yield self._held.load(receipt)
            else:
                yield staging.load(cursor, self._tables.schema, self._key(batch), receipt)

    def _marker(self, connection: psycopg.Connection) -> Marker | None:
        row = connection.execute(
            f"SELECT batch, content FROM {self._tables.schema}.marker WHERE job = %s AND sink = %s".encode(),
            (self.job, self.sink),
        ).fetchone()
        return None if row is None else Marker(*row)

    def _key(self, batch: int) -> BatchKey:
        return BatchKey(self.job, self.sink, batch)


def _paired(writes: Sequence[Write | Append]) -> Iterator[tuple[Write | Append, Write | None]]:
    """Yield writes; those that put rows, with the deletes of the same table that follow at once."""
    waiting = list(writes)
    while waiting:
        write = waiting.pop(0)
        follows = waiting[0] if waiting else None
        deletes = (
            follows
            if isinstance(write, Write)
            and isinstance(follows, Write)
            and (write.change, follows.change, follows.table) == (RowChange.PUT, RowChange.DELETE, write.table)
            else None
        )
        if deletes is not None:
            waiting.pop(0)
        yield write, deletes


def _without_copied(bulk: Bulk, table: TableLayout, pieces: Iterable[pa.Table], path: str) -> Iterator[pa.Table]:
    """Copy rows into their table, and yield the rows that need an upsert."""
    for rows in pieces:
        if can_copy(bulk, table, rows):
            copy(bulk, table, rows, path)
        else:
            yield rows


def _none(table: TableLayout) -> pa.Table:
    return table.written.arrow.empty_table()


def _typed(rows: pa.Table, table: TableLayout, change: RowChange) -> pa.Table:
    """Return staged rows in the types of their table, without its generated columns.

    Raises:
        SchemaError: a column is unknown, or the table cannot keep a value.
    """
    generated = {column.name for column in table.columns if column.generated}
    stored = rows.select([name for name in rows.column_names if name not in generated])
    if change is RowChange.DELETE:
        typed = to_arrow(stored, table.written, columns="keys")
    else:
        typed = to_arrow(stored, table.written, columns="given" if change is RowChange.UPDATE else "all")
    check_values(typed, table)
    return typed
