"""Pure values: columns, keys, conditions, changes. No I/O here."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.cached import cached_property
from headrace.errors import OptionError, SchemaError, shown
from headrace.types import KEY_TYPES, parse_type, type_name

KeyValue: TypeAlias = str | int | bytes
Key: TypeAlias = tuple[KeyValue, ...]
"""The values of a row's key columns, in key order; a bound may be a prefix of a key."""

MAX_KEY_COLUMNS = 4
_NOT_NULL = re.compile(r"(.*\S)\s+not\s+null\s*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Column:
    """A column: its name (any text), its Arrow type, and whether it may hold null; key columns never may."""

    name: str
    type: pa.DataType
    nullable: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SchemaError("a column name must be a text that is not empty", received=shown(self.name))
        try:
            self.name.encode()
        except UnicodeEncodeError:
            raise SchemaError("a column name must be valid Unicode", received=ascii(self.name)) from None


@dataclass(frozen=True)
class RowSchema:
    """The columns of rows, in order. What tables and queues share."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        repeated = sorted(name for name, count in Counter(column.name for column in self.columns).items() if count > 1)
        if repeated:
            raise SchemaError("a column name stands twice", received=", ".join(repeated))

    def column(self, name: str) -> Column:
        """Return the column of that name, or raise `SchemaError`."""
        found = self._by_name.get(name)
        if found is None:
            raise SchemaError("no such column", received=repr(name), valid=self.names)
        return found

    def __contains__(self, name: object) -> bool:
        """Tell whether a column has that name."""
        return name in self._by_name

    # Computed once: code asks for them column by column, and a wide table would pay for the square of its width.

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return pa.schema([pa.field(column.name, column.type, nullable=column.nullable) for column in self.columns])

    @cached_property
    def _by_name(self) -> Mapping[str, Column]:
        return {column.name: column for column in self.columns}


def parse_columns(columns: Mapping[str, str | pa.DataType] | pa.Schema) -> tuple[Column, ...]:
    """Return the columns of ``{name: type name}`` or of an Arrow schema; a type name may end in ``not null``.

    Raises:
        SchemaError: the columns are given in another form, or a type is not known.
    """
    if isinstance(columns, pa.Schema):
        return tuple(Column(field.name, parse_type(field.type), field.nullable) for field in columns)
    if not isinstance(columns, Mapping):
        valid = 'a mapping of names to types, {"user": "string", "ms": "long not null"}, or an Arrow schema'
        raise SchemaError("columns are given in another form", received=f"a {type(columns).__name__}", valid=valid)
    return tuple(_parse_column(name, kind) for name, kind in columns.items())


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns of an Arrow schema whose types are headrace's own already."""
    return tuple(Column(field.name, field.type, field.nullable) for field in schema)


def _parse_column(name: str, kind: str | pa.DataType) -> Column:
    if isinstance(kind, str) and (found := _NOT_NULL.fullmatch(kind)):
        return Column(name, parse_type(found[1]), nullable=False)
    return Column(name, parse_type(kind))


@dataclass(frozen=True)
class TableSchema(RowSchema):
    """The columns of a table, in order, and which of them are the primary key, in key order."""

    primary_key: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.primary_key) <= MAX_KEY_COLUMNS or len(set(self.primary_key)) != len(self.primary_key):
            raise SchemaError(
                "a table needs a primary key of 1 to 4 different columns", received=list(self.primary_key)
            )
        types = {column.name: column.type for column in self.columns}
        for name in self.primary_key:
            if name not in types:
                raise SchemaError("the primary key names a column that is not there", received=name, valid=types)
            if types[name] not in KEY_TYPES:
                raise SchemaError(
                    f"primary key column {name!r} has a type that a key cannot have",
                    received=type_name(types[name]),
                    valid=[type_name(key_type) for key_type in KEY_TYPES],
                )
        # A key column is never null, whether its definition says so or not: equal schemas have equal columns.
        columns = tuple(
            Column(column.name, column.type, nullable=False) if column.name in self.primary_key else column
            for column in self.columns
        )
        object.__setattr__(self, "columns", columns)

    @classmethod
    def of(cls, columns: Mapping[str, str | pa.DataType] | pa.Schema, primary_key: str | Sequence[str]) -> TableSchema:
        """Build a schema from ``{name: type name}`` or an Arrow schema."""
        key = (primary_key,) if isinstance(primary_key, str) else tuple(primary_key)
        return cls(parse_columns(columns), key)

    @cached_property
    def attributes(self) -> tuple[Column, ...]:
        """The columns outside the primary key, in order."""
        return tuple(column for column in self.columns if column.name not in self.primary_key)

    @cached_property
    def changes(self) -> pa.Schema:
        """The Arrow schema of `Changes.rows`: every attribute is nullable, for a delete may have none."""
        return pa.schema([pa.field(c.name, c.type, nullable=c.name not in self.primary_key) for c in self.columns])

    def with_columns(self, added: Mapping[str, str | pa.DataType]) -> TableSchema:
        """Return the schema with attribute columns added at the end; they are null in rows that are there."""
        new = parse_columns(added)
        for column in new:
            if not column.nullable:
                raise SchemaError(
                    f"column {column.name!r} cannot be added as NOT NULL: it is null in the rows that are there"
                )
        return TableSchema(self.columns + new, self.primary_key)


@dataclass(frozen=True)
class KeyRange:
    """The keys from ``low`` (included) to ``high`` (excluded); None is open.

    A bound shorter than the key compares only its own columns: ``low=("u1",)`` starts with the first
    key of ``u1``, ``high=("u2",)`` ends before the first key of ``u2``.
    """

    low: Key | None = None
    high: Key | None = None


OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in", "is null", "is not null", "starts with")


@dataclass(frozen=True)
class Predicate:
    """A condition on one column: ``operator`` is one of `OPERATORS`; null never satisfies a comparison."""

    column: str
    operator: str
    value: Any = None

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS:
            raise OptionError("unknown operator in a condition", received=repr(self.operator), valid=OPERATORS)


Where: TypeAlias = Mapping[str, Any] | Sequence[Predicate | tuple[str, str, Any]]


def parse_where(where: Where | None) -> tuple[Predicate, ...]:
    """Return the conditions, all of which must hold.

    Accepted are ``{"UserId": "u1"}`` for equality (a list or set of values means any of them, None
    means null) and ``[("price", ">", 10), …]``.
    """
    if where is None:
        return ()
    if isinstance(where, Mapping):
        return tuple(_equality(column, value) for column, value in where.items())
    if isinstance(where, str | bytes) or not isinstance(where, Iterable):
        raise OptionError("where takes a mapping or a list of conditions", received=shown(where))
    conditions: list[Predicate] = []
    for item in where:
        if isinstance(item, Predicate):
            conditions.append(item)
        elif isinstance(item, tuple) and len(item) in (2, 3) and all(isinstance(part, str) for part in item[:2]):
            operator = {"==": "=", "<>": "!="}.get(item[1], item[1].lower())
            conditions.append(Predicate(item[0], operator, item[2] if len(item) == 3 else None))
        else:
            raise OptionError(
                "a condition is (column, operator, value)", received=shown(item), valid=f"operators {OPERATORS}"
            )
    return tuple(conditions)


def _equality(column: str, value: Any) -> Predicate:
    if value is None:
        return Predicate(column, "is null")
    if isinstance(value, list | set | frozenset | tuple):
        return Predicate(column, "in", tuple(value))
    return Predicate(column, "=", value)


class ChangeOp(enum.IntEnum):
    """What one change did to its row."""

    BASE = 0
    """No change: the row was there when the tunnel was made, and is given as base data."""
    INSERT = 1
    """A put of a row that was not there."""
    REPLACE = 2
    """A put over a row that was there."""
    UPDATE = 3
    """Cells of a row that was there were set; `Changes.written` says which."""
    UPSERT = 4
    """Cells were set and there was no row, which made one."""
    DELETE = 5
    PREIMAGE = 6
    """The row as it was before the change that follows it; only on tables that keep pre-images."""


@dataclass(frozen=True)
class Changes:
    """A run of changes of one channel, in commit order; all arrays have ``rows.num_rows`` entries.

    Attributes:
        rows: the table's columns. A delete has its key, and the old attributes only where pre-images are
            kept; every other change has the whole row as it became, where the store can tell
            (`Capabilities.whole_rows`).
        ops: int8 `ChangeOp` codes, not null.
        versions: int64 commit versions, rising and equal within one commit; not null.
        timestamps: timestamp[us, UTC] of the commits; not null.
        written: for UPDATE and UPSERT, which attribute cells were set: attribute name → boolean array.
            An absent name, a null entry, or None for the whole mapping means written.
    """

    rows: pa.RecordBatch
    ops: pa.Int8Array
    versions: pa.Int64Array
    timestamps: pa.TimestampArray
    written: Mapping[str, pa.BooleanArray] | None = None

    @property
    def num_rows(self) -> int:
        return int(self.rows.num_rows)

    def slice(self, offset: int, length: int | None = None) -> Changes:
        """Return a part of the run without copying."""
        return Changes(
            self.rows.slice(offset, length),
            self.ops.slice(offset, length),
            self.versions.slice(offset, length),
            self.timestamps.slice(offset, length),
            None if self.written is None else {k: v.slice(offset, length) for k, v in self.written.items()},
        )

    def filter(self, mask: pa.BooleanArray) -> Changes:
        """Return the changes where the mask is true."""
        return Changes(
            self.rows.filter(mask),
            self.ops.filter(mask),
            self.versions.filter(mask),
            self.timestamps.filter(mask),
            None if self.written is None else {k: v.filter(mask) for k, v in self.written.items()},
        )

    def whole_pairs(self, rows: int) -> int:
        """Return where to cut the run near ``rows``: a pre-image stays with the change that follows it."""
        if self.ops[rows - 1].as_py() != ChangeOp.PREIMAGE:
            return rows
        return rows - 1 if rows > 1 else rows + 1

    def without_preimages(self) -> Changes:
        """Return the run without its PREIMAGE entries."""
        keep = pc.not_equal(self.ops, pa.scalar(int(ChangeOp.PREIMAGE), pa.int8()))
        return self if pc.all(keep, min_count=0).as_py() else self.filter(keep)


class RowChange(enum.StrEnum):
    """How a sink applies rows to a table."""

    PUT = "put"
    """Replace the row."""
    UPDATE = "update"
    """Set the cells that are not null, keep the others."""
    DELETE = "delete"
    """Remove the row; only the key is looked at."""
    REPLACE_ALL = "replace_all"
    """Make the table hold exactly these rows. Complete mode does that; users cannot name it."""

    @classmethod
    def parse(cls, text: object) -> RowChange:
        for kind in (cls.PUT, cls.UPDATE, cls.DELETE):
            if isinstance(text, str) and kind == text.lower():
                return kind
        raise OptionError("unknown kind of row change", received=repr(text)[:200], valid="put, update, delete")
