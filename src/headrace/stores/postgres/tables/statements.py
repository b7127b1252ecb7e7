"""Statements that write staged rows into a table.

The rows are in the temporary table `STAGE` (alias ``s``), with columns ``c0``, ``c1`` and so on; a few rows are
parameters of their statement instead (`Given`). The keys of rows to delete are in `GONE` (alias ``g``). Statements run
under the user's search path, so they name the schemas of operators and functions, see
`headrace.stores.postgres.session`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql

from headrace.model.tables.changes import RowChange
from headrace.stores.postgres.failures import FIXED
from headrace.stores.postgres.schemas import PgColumn, TableLayout

STAGE, GONE = "headrace_rows", "headrace_gone"
STAGED = sql.SQL("pg_temp.{} s").format(sql.Identifier(STAGE))
"""The staged rows in a FROM clause."""
# Rows that are parameters: a temporary table takes longer, and leaves dead rows in the catalog of the server.
_FEW_CELLS = 20_000
_FEW_BYTES = 1 << 20
_NOTHING = sql.SQL("")
# What one part of a statement returns to another is the only order between them.
_AFTER_REMOVAL = sql.SQL("(SELECT pg_catalog.count(*) FROM removed) OPERATOR(pg_catalog.>=) 0")
# Numbers that are equal in SQL and differ in a bit: 0.0 and -0.0.
_BYTES_OF = {"float4": "float4send", "float8": "float8send"}


@dataclass(frozen=True)
class Given:
    """A few rows that are parameters of a statement: an array of the values of each column.

    Attributes:
        rows: the rows, without lists, because the elements of an array of arrays are no arrays.
    """

    rows: pa.Table

    @classmethod
    def of(cls, rows: pa.Table) -> Given | None:
        """Return rows as parameters; None if there are too many, or if they have lists."""
        few = 0 < rows.num_rows * rows.num_columns <= _FEW_CELLS and rows.nbytes <= _FEW_BYTES
        return cls(rows) if few and not any(map(pa.types.is_list, rows.schema.types)) else None

    @property
    def source(self) -> sql.Composable:
        """The rows in a FROM clause, as `STAGED`."""
        places = range(self.rows.num_columns)
        columns = ", ".join(f"pg_catalog.unnest(${place + 1})" for place in places)
        names = ", ".join(f"c{place}" for place in places)
        # OFFSET keeps the planner from computing with the values what a CASE of the statement would not.
        return sql.SQL(f"(SELECT * FROM ROWS FROM ({columns}) v OFFSET 0) s ({names})")

    @property
    def parameters(self) -> pa.RecordBatch:
        """The columns as the cells of the one row of a batch."""
        (whole,) = self.rows.combine_chunks().to_batches()
        ends = pa.array([0, whole.num_rows], pa.int32())
        arrays = [pa.ListArray.from_arrays(ends, values) for values in whole.columns]
        return pa.RecordBatch.from_arrays(arrays, [f"${number + 1}" for number in range(len(arrays))])


def counted(statement: sql.Composable) -> sql.Composable:
    """Return a query that runs a statement without WITH, and has the count of its rows."""
    return sql.SQL("WITH written AS ({} RETURNING 1) SELECT pg_catalog.count(*) FROM written").format(statement)


def staged(columns: Sequence[PgColumn], alias: str = "s") -> list[sql.Composable]:
    """Return the staged value of each column, in the column's type."""
    return [column.written(sql.Identifier(alias, f"c{index}")) for index, column in enumerate(columns)]


def same_key(columns: Sequence[PgColumn], alias: str = "s") -> sql.Composable:
    """Return the condition that a row of alias ``t`` has the key of a staged row of another alias."""
    values = staged(columns, alias)
    return sql.SQL(" AND ").join(
        column.equals(value) for column, value in zip(columns, values, strict=True) if column.in_key
    )


def removal(table: TableLayout, columns: Sequence[PgColumn], *, spared: bool) -> sql.Composable:
    """Return the statement that deletes the rows whose keys are staged as `GONE`.

    Args:
        columns: the columns of the rows that are staged as `STAGE`.
        spared: whether rows that have the key of one of these rows stay.
    """
    statement = sql.SQL("DELETE FROM {} t USING pg_temp.{} g WHERE {}").format(
        table.name.sql, sql.Identifier(GONE), same_key([table.column(name) for name in table.primary_key], "g")
    )
    if not spared:
        return statement
    # Compared with the column itself, so that its collation counts.
    return sql.SQL("{} AND NOT EXISTS (SELECT FROM pg_temp.{} s WHERE {})").format(
        statement, sql.Identifier(STAGE), same_key(columns)
    )


def deletion(table: TableLayout, columns: Sequence[PgColumn], source: sql.Composable = STAGED) -> sql.Composable:
    """Return the statement that deletes the rows whose keys are staged."""
    return sql.SQL("DELETE FROM {} t USING {} WHERE {}").format(table.name.sql, source, same_key(columns))


def changed_identities(table: TableLayout, columns: Sequence[PgColumn]) -> sql.Composable | None:
    """Return the query that fails with the name of a column ``GENERATED ALWAYS`` whose value the rows would change."""
    changed = [
        sql.SQL("WHEN NOT t.{name} OPERATOR(pg_catalog.=) {value} THEN {text}").format(
            name=sql.Identifier(column.name), value=value, text=sql.Literal(column.name)
        )
        for column, value in zip(columns, staged(columns), strict=True)
        if column.always_identity and not column.in_key
    ]
    if not changed:
        return None
    return sql.SQL(
        "SELECT ({problem}::text OPERATOR(pg_catalog.||) f.name)::int FROM (SELECT CASE {changed} END AS name"
        " FROM {table} t, pg_temp.{stage} s WHERE {same}) f WHERE f.name IS NOT NULL"
    ).format(
        problem=sql.Literal(FIXED),
        changed=sql.SQL(" ").join(changed),
        table=table.name.sql,
        stage=sql.Identifier(STAGE),
        same=same_key(columns),
    )


def replacement(table: TableLayout, columns: Sequence[PgColumn], *, keep_nulls: bool) -> sql.Composable:
    """Return the statement that updates rows by deleting and inserting them, so that they can swap unique values.

    Args:
        columns: the columns of the staged rows, whose keys are different.
        keep_nulls: whether the update sets cells to null.
    """
    places = {column.name: place for place, column in enumerate(columns)}
    new = staged(columns)
    written = [column for column in table.columns if not column.generated]
    cells: list[sql.Composable] = []
    for number, column in enumerate(written):
        old, place = sql.Identifier("s", f"o{number}"), places.get(column.name)
        if place is None or column.in_key:
            cells.append(old)
        else:
            cells.append(new[place] if keep_nulls else sql.SQL("COALESCE({}, {})").format(new[place], old))
    return sql.SQL(
        "WITH removed AS (DELETE FROM {table} t USING pg_temp.{stage} s WHERE {same} RETURNING {returned}),"
        " replaced AS (INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE"
        " SELECT {cells} FROM removed s WHERE {removed} RETURNING 1)"
        " INSERT INTO {table} ({given}) OVERRIDING SYSTEM VALUE SELECT {new} FROM pg_temp.{stage} s"
        " WHERE (SELECT pg_catalog.count(*) FROM replaced) OPERATOR(pg_catalog.>=) 0"
        " AND NOT EXISTS (SELECT FROM {table} t WHERE {same})"
    ).format(
        table=table.name.sql,
        stage=sql.Identifier(STAGE),
        same=same_key(columns),
        removed=_AFTER_REMOVAL,
        returned=sql.SQL(", ").join(
            [
                *(sql.Identifier("s", f"c{place}") for place in range(len(columns))),
                *(
                    sql.SQL("t.{} AS {}").format(sql.Identifier(column.name), sql.Identifier(f"o{number}"))
                    for number, column in enumerate(written)
                ),
            ]
        ),
        names=sql.SQL(", ").join(sql.Identifier(column.name) for column in written),
        cells=sql.SQL(", ").join(cells),
        given=sql.SQL(", ").join(sql.Identifier(column.name) for column in columns),
        new=sql.SQL(", ").join(new),
    )


def writes(
    table: TableLayout,
    change: RowChange,
    columns: Sequence[PgColumn],
    removed: sql.Composable | None = None,
    *,
    source: sql.Composable = STAGED,
    keep_nulls: bool = True,
    only_differing: bool = False,
) -> list[sql.Composable]:
    """Return the statements that put staged rows, or update rows with them.

    Args:
        change: PUT or UPDATE.
        removed: a statement that deletes other rows. It runs within the first statement and before it; constraints are
            in effect at the end of a statement, so a row that refers to a deleted one can be among the rows to write.
        source: the staged rows.
        keep_nulls: whether an update sets cells to null.
        only_differing: leave rows alone that do not differ.
    """
    whole, kept = change is RowChange.PUT, change is RowChange.UPDATE and not keep_nulls
    names = {column.name for column in columns}
    required = {column.name for column in table.columns if column.not_null and not column.in_key and not column.filled}
    set_columns = columns_to_set(columns, change)
    # An INSERT checks NOT NULL before it looks for a conflict.
    late = not whole and bool(required) and (kept or not names >= required)
    if table.arbiter and not late:
        return [_insert(table, columns, set_columns, removed, source, kept=kept, only_differing=only_differing)]
    update = _update(table, columns, set_columns, removed, source, kept=kept, only_differing=only_differing)
    left = None if update else removed
    return [
        *update,
        _insert(table, columns, set_columns, left, source, kept=kept, only_differing=only_differing, only_new=True),
    ]


def columns_to_set(columns: Sequence[PgColumn], change: RowChange) -> list[PgColumn]:
    """Return the columns that a write sets in existing rows; of a whole row, also the new form of an equal key."""
    return [
        column
        for column in columns
        if not column.always_identity and (not column.in_key or (change is RowChange.PUT and not column.is_canonical))
    ]


def _update(
    table: TableLayout,
    columns: Sequence[PgColumn],
    set_columns: Sequence[PgColumn],
    removed: sql.Composable | None,
    source: sql.Composable,
    *,
    kept: bool,
    only_differing: bool,
) -> list[sql.Composable]:
    """Return the statement that updates rows that exist, if it sets a column."""
    if not set_columns:
        return []
    values = dict(zip((column.name for column in columns), staged(columns), strict=True))
    conditions = [same_key(columns)]
    if removed is not None:
        conditions.insert(0, _AFTER_REMOVAL)
    if only_differing:
        conditions.append(differing(columns, set_columns))
    return [
        sql.SQL("{}UPDATE {} t SET {} FROM {} WHERE {}").format(
            _removing(removed),
            table.name.sql,
            _cells(set_columns, [values[column.name] for column in set_columns], kept=kept),
            source,
            sql.SQL(" AND ").join(conditions),
        )
    ]


def _insert(
    table: TableLayout,
    columns: Sequence[PgColumn],
    set_columns: Sequence[PgColumn],
    removed: sql.Composable | None,
    source: sql.Composable,
    *,
    kept: bool,
    only_differing: bool,
    only_new: bool = False,
) -> sql.Composable:
    """Return the statement that inserts rows, in the order of their keys, and updates rows that exist.

    Args:
        only_new: leave out rows that exist.
    """
    values = staged(columns)
    conditions: list[sql.Composable] = [] if removed is None else [_AFTER_REMOVAL]
    if only_new:
        conditions.append(sql.SQL("NOT EXISTS (SELECT FROM {} t WHERE {})").format(table.name.sql, same_key(columns)))
    return sql.SQL(
        "{removing}INSERT INTO {table} AS t ({names}) OVERRIDING SYSTEM VALUE SELECT {values} FROM {source} "
        "{where}ORDER BY {order} {conflict}"
    ).format(
        removing=_removing(removed),
        table=table.name.sql,
        names=sql.SQL(", ").join(sql.Identifier(column.name) for column in columns),
        values=sql.SQL(", ").join(values),
        source=source,
        where=sql.SQL("WHERE {} ").format(sql.SQL(" AND ").join(conditions)) if conditions else _NOTHING,
        order=sql.SQL(", ").join(value for column, value in zip(columns, values, strict=True) if column.in_key),
        conflict=_conflict(table, set_columns, kept=kept, only_differing=only_differing) if table.arbiter else _NOTHING,
    )


def _conflict(
    table: TableLayout, set_columns: Sequence[PgColumn], *, kept: bool, only_differing: bool
) -> sql.Composable:
    key = sql.SQL(", ").join(map(sql.Identifier, table.primary_key))
    if not set_columns:
        return sql.SQL("ON CONFLICT ({}) DO NOTHING").format(key)
    new = [sql.Identifier("excluded", column.name) for column in set_columns]
    action = sql.SQL("ON CONFLICT ({}) DO UPDATE SET {}").format(key, _cells(set_columns, new, kept=kept))
    return sql.SQL("{} WHERE {}").format(action, _differ(set_columns, new)) if only_differing else action


def _cells(columns: Sequence[PgColumn], values: Sequence[sql.Composable], *, kept: bool) -> sql.Composable:
    """Return the list of assignments; if ``kept``, a null keeps the cell."""
    assignment = "{name} = COALESCE({value}, t.{name})" if kept else "{name} = {value}"
    return sql.SQL(", ").join(
        sql.SQL(assignment).format(name=sql.Identifier(column.name), value=value)
        for column, value in zip(columns, values, strict=True)
    )


def _removing(removed: sql.Composable | None) -> sql.Composable:
    return _NOTHING if removed is None else sql.SQL("WITH removed AS ({} RETURNING 1) ").format(removed)


def differing(columns: Sequence[PgColumn], set_columns: Sequence[PgColumn], *, kept: bool = False) -> sql.Composable:
    """Return the condition that a row has another value than the staged row in a column to set.

    Args:
        columns: the columns of the staged rows.
        kept: whether a null keeps the cell.
    """
    values = dict(zip((column.name for column in columns), staged(columns), strict=True))
    new = [values[column.name] for column in set_columns]
    if kept:
        new = [
            sql.SQL("COALESCE({}, {})").format(value, sql.Identifier("t", column.name))
            for column, value in zip(set_columns, new, strict=True)
        ]
    return _differ(set_columns, new)


def _differ(columns: Sequence[PgColumn], values: Sequence[sql.Composable]) -> sql.Composable:
    """Return the condition that some cell of a row differs from the new cell."""
    if not columns:
        return sql.SQL("false")
    old = [_comparable(column, sql.Identifier("t", column.name)) for column in columns]
    new = [_comparable(column, value) for column, value in zip(columns, values, strict=True)]
    return sql.SQL("({}) IS DISTINCT FROM ({})").format(sql.SQL(", ").join(old), sql.SQL(", ").join(new))


def _comparable(column: PgColumn, value: sql.Composable) -> sql.Composable:
    """Return a cell in a form that can be compared: types such as ``json`` have no equality.

    The server finds the equality by the types, so a domain, which anybody may give an operator, is its base type.
    """
    cell = sql.SQL("{}::{}").format(value, sql.SQL(column.cast))
    if column.is_array or not column.is_native:
        return sql.SQL('{}::text COLLATE pg_catalog."C"').format(cell)
    if column.base in _BYTES_OF:
        return sql.SQL("pg_catalog.{}({})").format(sql.SQL(_BYTES_OF[column.base]), cell)
    return cell
