"""Types of columns: PostgreSQL's as headrace's, and headrace's as PostgreSQL's.

Nothing is rounded. A type without an equal in headrace is a string of PostgreSQL's text, such as ``numeric`` without a
precision, ``uuid``, ``jsonb``, enums, ranges, ``time`` and ``interval``. A domain has the type that it is based on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from psycopg import sql

from headrace.errors import SchemaError
from headrace.model.tables.schema import Column, KeylessSchema, TableSchema
from headrace.model.types import is_key_type, type_name
from headrace.stores.postgres.failures import ROUNDED, UNREADABLE, UNREADABLE_KEY
from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.unrepresentable import Choice, Choices, ShownAsNull
from headrace.support.cached import cached_property

CATALOG = "pg_catalog"
VIEW = "v"
RELATIONS = {VIEW: "a view", "m": "a materialized view", "f": "a foreign table"}
"""What is read like a table, by the catalog's letter, and never has a primary key."""
BYTE_DOMAIN = "byte"
"""The domain of headrace's type ``byte`` in the schema of headrace: PostgreSQL has no integer of one byte."""
_MAX_DIGITS = 38
_MICROSECONDS = 6
_VARHDRSZ = 4
ARROW_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "timestamp": pa.timestamp("us"),
}
"""The Arrow types of the catalog's types; other types are texts."""
# Types whose text is the value itself: text columns can be compared without a cast.
_TEXTS = ("text", "varchar")
# Types that are texts in headrace, and whose values PostgreSQL keeps in one form.
_CANONICAL = ("uuid", "bool", "date", "timestamp", "timestamptz", "time", "inet", "cidr", "macaddr", "name")
# Types that are texts in headrace, and whose values can lose digits, or spaces at their end, in a limited column.
_LIMITED = ("numeric", "time", "timetz", "interval", "timestamp", "timestamptz", "varchar")
# Texts of values of some types that are texts in headrace. The order of UUIDs is that of these texts.
_VALUES = {
    "text": re.compile(r"[^\0]*"),
    "varchar": re.compile(r"[^\0]*"),
    "uuid": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "numeric": re.compile(r"-?[0-9]{1,1000}(\.[0-9]{1,1000})?"),
}
# Arrow's 64 bits of microseconds end before PostgreSQL's years; see `headrace.wire.pgoutput.text_values.LAST_TIME`.
_AFTER_LAST_TIME = "294247-01-01"
_TIMES = {"date": "infinity", "timestamp": _AFTER_LAST_TIME, "timestamptz": _AFTER_LAST_TIME}
COLUMN_TYPES = (
    *("boolean", "byte", "short", "int", "long", "float", "double", "string", "binary"),
    *("date", "timestamp", "timestamp_ntz"),
    *(f"decimal({digits},{scale})" for digits in range(1, _MAX_DIGITS + 1) for scale in range(digits + 1)),
    *("array<string>", "array<long>", "array<int>", "array<double>"),
)
"""The names of types that columns can have; arrays of other simple types too."""


@dataclass(frozen=True)
class PgColumn:
    """A column of a table in the catalog of PostgreSQL.

    Attributes:
        name: the name.
        type: its type in headrace.
        base: the catalog's name of its type, without domains: ``int4``; of an array, the name of its elements' type.
            A type outside of the catalog has the name of its schema, too.
        cast: its type without domains and length, as a cast in SQL.
        limited: its type with its length, precision or digits, as a cast in SQL; None unless an assignment of a text
            may round or shorten it.
        is_array: whether the type is an array.
        sorted_by_bytes: whether its collation sorts texts by their bytes.
        not_null: whether it is NOT NULL.
        has_default: whether it has a default value or is an identity column.
        generated: whether its value is computed from other columns.
        always_identity: whether it is ``GENERATED ALWAYS AS IDENTITY``.
        time_digits: the digits of fractional seconds that it keeps; None if the type has none, or 6.
        in_key: whether it belongs to the primary key.
        shown_as_null: makes a value null that its type does not have in headrace; None if such a value is an error.
        equality: the schema and the name of the operator that finds equal values in the index of the primary key.
        collation: the schema and the name of its collation, if texts that differ can be equal by it; otherwise None.
    """

    name: str
    type: pa.DataType
    base: str
    cast: str
    limited: str | None
    is_array: bool
    sorted_by_bytes: bool
    not_null: bool
    has_default: bool
    generated: bool
    always_identity: bool
    time_digits: int | None
    in_key: bool
    shown_as_null: ShownAsNull | None = None
    equality: tuple[str, str] = (CATALOG, "=")
    collation: tuple[str, str] | None = None

    @property
    def is_exact(self) -> bool:
        """Whether values that are equal in the column's type are equal in headrace, as 1.0 and 1.00 are not."""
        if self.is_array:
            return False
        return self.type != pa.string() or self._is_exact_text

    @property
    def is_canonical(self) -> bool:
        """Whether the server keeps values that are equal in one form: 1.0 and 1.00 stay as they were written."""
        return self.is_exact or (not self.is_array and self.base in _CANONICAL)

    @property
    def _is_exact_text(self) -> bool:
        return self.base in _TEXTS and self.collation is None

    @property
    def filled(self) -> bool:
        """Whether the server has a value for a row that is written without this column.

        A column with a default value that may be null becomes null, as in other stores.
        """
        return self.generated or (self.not_null and self.has_default and not self.in_key)

    @property
    def is_native(self) -> bool:
        """Whether Arrow receives the column in its own form, and not as a text."""
        return pa.types.is_decimal(self.type) or self.base in ARROW_TYPES

    def read(self, table: str = "t") -> sql.Composable:
        """Return the expression that reads the column as Arrow, see `headrace.stores.postgres.tables.reading`."""
        column = sql.Identifier(table, self.name)
        if self.type == pa.string():
            return column if self.base in _TEXTS and not self.is_array else self.as_text(table)
        fits = self._fits(column)
        if fits is None:
            return sql.SQL("{}::bigint").format(column) if self.base == "oid" else column
        value: sql.Composable = column
        kind: sql.Composable = sql.SQL(self.base)
        if self.is_array:
            value, kind = self._array(column)
        elif pa.types.is_decimal(self.type):
            value, kind = self.as_text(table), sql.SQL("int::text")
        if self.shown_as_null is not None:
            return sql.SQL("CASE WHEN {} THEN {} END").format(fits, value)
        # ADBC would return infinity as another time. The invalid text depends on the row: a constant would fail when
        # the statement is planned.
        problem = f"{UNREADABLE_KEY if self.in_key else UNREADABLE}{self.name}: "
        return sql.SQL(
            "CASE WHEN {column} IS NULL THEN NULL WHEN {fits} THEN {value} "
            "ELSE ({problem}::text || pg_catalog.format('%s', {column}))::{kind} END"
        ).format(column=column, fits=fits, value=value, problem=sql.Literal(problem), kind=kind)

    def shown(self, table: str = "t") -> sql.Composable:
        """Return the column with null for values that are shown as null."""
        column = sql.Identifier(table, self.name)
        fits = None if self.shown_as_null is None else self._fits(column)
        return column if fits is None else sql.SQL("CASE WHEN {} THEN {} END").format(fits, column)

    def is_nulled(self) -> sql.Composable | None:
        """Return the condition that a value is shown as null; None if the column has no such values."""
        column = sql.Identifier("t", self.name)
        fits = None if self.shown_as_null is None else self._fits(column)
        return None if fits is None else sql.SQL("{} IS NOT NULL AND NOT ({})").format(column, fits)

    def _fits(self, column: sql.Composable) -> sql.Composable | None:
        """Return the condition that the column's type in headrace has a value; None if it has all of them.

        Arrow has neither infinite times nor NaN as a decimal, nor arrays of arrays of one type.
        """
        if not self.is_array:
            return self._finite(column)
        fits = sql.SQL("coalesce(pg_catalog.array_ndims({}), 1) = 1").format(column)
        finite = self._finite(sql.Identifier("e"))
        if finite is None:
            return fits
        return sql.SQL("{} AND NOT EXISTS (SELECT FROM pg_catalog.unnest({}) e WHERE NOT ({}))").format(
            fits, column, finite
        )

    def _finite(self, value: sql.Composable) -> sql.Composable | None:
        if self.base in _TIMES:
            last = sql.Literal(_TIMES[self.base])
            return sql.SQL(
                "{value} OPERATOR(pg_catalog.>) '-infinity' AND {value} OPERATOR(pg_catalog.<) {last}"
            ).format(value=value, last=last)
        is_decimal = pa.types.is_decimal(self.type.value_type if self.is_array else self.type)
        return sql.SQL("{} OPERATOR(pg_catalog.<>) 'NaN'").format(value) if is_decimal else None

    def as_text(self, table: str) -> sql.Composable:
        """Return the expression for the text of a value.

        The owner of a type can define its cast to ``text``, which would run with the rights of headrace's user. So the
        text of a type outside of the catalog comes from its output function. ``IS NULL`` is also true for a composite
        value of nulls. The cast of xml gives the text as it was written, which the log does not have.
        """
        column = sql.Identifier(table, self.name)
        return sql.SQL("{}::text").format(column) if _has_cast(self.cast) else _output(column)

    def _array(self, column: sql.Composable) -> tuple[sql.Composable, sql.Composable]:
        """Return an array as ADBC reads it, and its type.

        Arrow's lists have no bounds, and ADBC fails at an array whose first index is not 0 or 1. It has no texts for
        elements of other types, its numbers are texts, and its oids have a sign. It does not know arrays of domains.
        """
        kind = sql.SQL("int8[]" if self.base == "oid" else f"{self.base if self.base in ARROW_TYPES else 'text'}[]")
        elements = sql.SQL("{}::{}").format(column, kind)
        if not _has_cast(self.base):
            output = _output(sql.Identifier("e"))
            elements = sql.SQL("ARRAY(SELECT {} FROM pg_catalog.unnest({}) e)").format(output, column)
        array = sql.SQL(
            "CASE WHEN pg_catalog.array_lower({column}, 1) <> 1"
            " THEN ARRAY(SELECT e FROM pg_catalog.unnest({elements}) e) WHEN {column} IS NOT NULL THEN {elements} END"
        ).format(column=column, elements=elements)
        return array, kind

    def written(self, value: sql.Composable) -> sql.Composable:
        """Return a staged value in the type of the column, or fail with its name: nothing is rounded."""
        cast = sql.SQL(self.cast)
        if self.limited is None:
            return sql.SQL("{}::{}").format(value, cast)
        return sql.SQL(
            "CASE WHEN {value} IS NULL OR {value}::{cast} OPERATOR(pg_catalog.=) {value}::{limited} "
            "THEN {value}::{cast} "
            "ELSE ({problem}::text OPERATOR(pg_catalog.||) {value}::text)::int::text::{cast} END"
        ).format(value=value, cast=cast, limited=sql.SQL(self.limited), problem=sql.Literal(f"{ROUNDED}{self.name}: "))

    def equals(self, value: sql.Composable) -> sql.Composable:
        """Return the condition that the column has a value of its type, as the index of the primary key compares.

        The operator has a schema, so that no other schema of the search path can have a better match for the types.
        """
        schema, name = self.equality
        column: sql.Composable = sql.Identifier("t", self.name)
        if schema != CATALOG:
            # Nor can the schema of an extension have a better match for a domain.
            column = sql.SQL("{}::{}").format(column, sql.SQL(self.cast))
        return sql.SQL("{} OPERATOR({}.{}) {}").format(column, sql.Identifier(schema), sql.SQL(name), value)

    def compared(self, value: sql.Composable) -> sql.Composable:
        """Return a staged value in an expression whose equality and order are those of the column."""
        typed = self.written(value)
        return (
            typed
            if self.collation is None
            else sql.SQL("({}) COLLATE {}").format(typed, sql.Identifier(*self.collation))
        )

    def is_value(self, text: str) -> bool:
        """Whether a text surely is a value of the column's own type, so that indexes of the column find it."""
        valid = _VALUES.get(self.base)
        return valid is not None and not self.is_array and valid.fullmatch(text) is not None

    def sorted(self, table: str = "t") -> sql.Composable:
        """Return the expression to sort by: an index has the order of the column itself."""
        return sql.Identifier(table, self.name) if self.base == "uuid" and not self.is_array else self.ordered(table)

    def ordered(self, table: str = "t") -> sql.Composable:
        """Return the expression that compares and sorts like the column's values in headrace."""
        column = sql.Identifier(table, self.name)
        if self.type == pa.string():
            if self.base not in _TEXTS or self.is_array:
                return sql.SQL('({}) COLLATE "C"').format(self.as_text(table))
            # A needless COLLATE would be one more column of the rows that are sorted.
            return column if self.sorted_by_bytes else sql.SQL('{} COLLATE "C"').format(column)
        return self.shown(table)


def _has_cast(name: str) -> bool:
    """Whether a cast to text gives the text of a type; the catalog names the schemas of users' types."""
    return "." not in name and name != "xml"


def _output(value: sql.Composable) -> sql.Composable:
    """Return the text of a value by the output function of its type; null for null, and not for a row of nulls."""
    return sql.SQL("CASE pg_catalog.num_nulls({value}) WHEN 0 THEN pg_catalog.format('%s', {value}) END").format(
        value=value
    )


@dataclass(frozen=True)
class TableLayout:
    """A table and its columns, in order, as the catalog has them.

    Attributes:
        name: the table.
        oid: its number in the catalog.
        columns: its columns.
        primary_key: the names of the key columns, in key order.
        pre_images: whether its changes contain the whole row before each change (REPLICA IDENTITY FULL).
        kind: the catalog's letter for the kind of relation: ``r`` or ``p`` (partitioned) for a table, ``v`` for a view,
            ``m`` for a materialized view, ``f`` for a foreign table.
        logged: whether its changes are in the write-ahead log.
        arbiter: whether INSERT … ON CONFLICT can use the primary key, which is not deferrable and has no ranges
            WITHOUT OVERLAPS.
        rules: whether it has rules, which can replace a statement.
        child: a table that inherits from it, in SQL; None if there is none.
        numbers: the numbers of its columns in the catalog, which do not change with a name.
    """

    name: TableName
    oid: int
    columns: tuple[PgColumn, ...]
    primary_key: tuple[str, ...]
    pre_images: bool
    kind: str
    logged: bool
    arbiter: bool
    rules: bool
    child: str | None
    numbers: Mapping[str, int] = field(hash=False)

    @property
    def partitioned(self) -> bool:
        """Whether its rows are in other tables."""
        return self.kind == "p"

    @cached_property
    def schema(self) -> TableSchema:
        """The columns in headrace's types."""
        return self._schema_of(
            tuple(
                Column(column.name, column.type, not column.not_null or column.shown_as_null is not None, column.filled)
                for column in self.columns
            )
        )

    def _schema_of(self, columns: tuple[Column, ...]) -> TableSchema:
        if self.primary_key:
            return TableSchema(columns, self.primary_key)
        name = self.name.text
        if self.kind in RELATIONS:
            return KeylessSchema(
                columns, (), f"{name!r} is {RELATIONS[self.kind]}", "name a table with a primary key in its place"
            )
        return KeylessSchema(
            columns,
            (),
            f"table {name!r} has no primary key",
            f"ALTER TABLE {self.name.sql.as_string(None)} ADD PRIMARY KEY (…)",
        )

    @cached_property
    def written(self) -> TableSchema:
        """The columns that writes set."""
        columns = tuple(
            column for column, stored in zip(self.schema.columns, self.columns, strict=True) if not stored.generated
        )
        return self._schema_of(columns)

    def column(self, name: str) -> PgColumn:
        """Return a column, or raise `SchemaError`."""
        self.schema.column(name)
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, PgColumn]:
        return {column.name: column for column in self.columns}


def arrow_type(base: str, modifier: int, *, is_array: bool = False, in_key: bool = False) -> pa.DataType:
    """Return headrace's type of a type of PostgreSQL.

    Args:
        base: the catalog's name of the type, or of the elements' type.
        modifier: the type modifier of the column; -1 if it has none.
        is_array: whether the column is an array.
        in_key: whether the column is in the primary key, where arrays and floating-point numbers are texts.
    """
    simple = _simple_type(base, modifier)
    if is_array:
        return pa.string() if in_key else pa.list_(pa.field("element", simple))
    return pa.string() if in_key and not is_key_type(simple) else simple


def _simple_type(base: str, modifier: int) -> pa.DataType:
    if base == "numeric" and modifier >= 0:
        packed = modifier - _VARHDRSZ
        digits, scale = packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024
        if digits <= _MAX_DIGITS and 0 <= scale <= digits:
            return pa.decimal128(digits, scale)
    return ARROW_TYPES.get(base, pa.string())


def time_digits(base: str, modifier: int) -> int | None:
    """Return the digits of fractional seconds of a time type with fewer than 6, or None."""
    return modifier if base in ("timestamp", "timestamptz") and 0 <= modifier < _MICROSECONDS else None


def from_text(values: pa.ChunkedArray, column: PgColumn) -> pa.ChunkedArray:
    """Return numbers that a query returned as texts in the type of their column.

    Raises:
        SchemaError: a number is NaN.
    """
    try:
        return values.cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(
            f"column {column.name!r} has a value that its type does not have in headrace",
            received=str(error)[:200],
            valid=type_name(column.type),
        ) from None


def column_of(
    row: tuple[Any, ...], primary_key: tuple[str, ...], schema: str, table: TableName, choices: Choices
) -> PgColumn:
    """Return a column from a row of the catalog, see `headrace.stores.postgres.tables.stored_tables`.

    Args:
        schema: the schema of headrace's own objects.
        table: the name of the table.
        choices: the option ``unrepresentable``.
    """
    (
        name,
        not_null,
        generated,
        identity,
        has_default,
        named,
        base,
        is_array,
        modifier,
        cast,
        limited,
        by_bytes,
        equality,
        collation,
    ) = row
    in_key = name in primary_key
    kind = arrow_type(base, modifier, is_array=is_array, in_key=in_key)
    if list(named) == [schema, BYTE_DOMAIN] and not (in_key and is_array):
        kind = pa.list_(pa.field("element", pa.int8())) if is_array else pa.int8()
    choice = choices.of(table, name)
    if in_key and choice is Choice.NULL:
        # A key is never null.
        choice = Choice.ERROR
    if choice is Choice.TEXT:
        kind = pa.string()
    is_text = (kind.value_type if pa.types.is_list(kind) else kind) == pa.string()
    return PgColumn(
        name=name,
        type=kind,
        base=base,
        cast=cast,
        limited=limited if is_text and modifier >= 0 and base in _LIMITED else None,
        is_array=is_array,
        sorted_by_bytes=by_bytes,
        not_null=not_null,
        has_default=has_default or bool(identity),
        generated=bool(generated),
        always_identity=identity == "a",
        time_digits=time_digits(base, modifier),
        in_key=in_key,
        shown_as_null=ShownAsNull(table.text, name) if choice is Choice.NULL else None,
        equality=(CATALOG, "=") if equality is None else (equality[0], equality[1]),
        collation=None if collation is None else (collation[0], collation[1]),
    )
