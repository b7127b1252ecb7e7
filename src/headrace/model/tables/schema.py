"""Schemas: columns, keys, and the schema of a table. No I/O."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from headrace.errors import SchemaError, shown
from headrace.model.types import KEY_TYPE_NAMES, is_key_type, parse_type, type_name
from headrace.support.cached import cached_property

KeyValue: TypeAlias = str | int | bytes | datetime.date | decimal.Decimal
Key: TypeAlias = tuple[KeyValue, ...]
"""The values of the key columns of a row, in key order; a bound may be a prefix of a key."""

MAX_KEY_COLUMNS = 4
"""The maximum number of key columns of a table in most stores; PostgreSQL has more."""
_NOT_NULL = re.compile(r"(.*\S)\s+not\s+null\s*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        name: any text.
        type: the Arrow type.
        nullable: whether it may be null. Key columns are never null.
        filled: whether the store has a value for rows that are written without the column, such as a default value.
    """

    name: str
    type: pa.DataType
    nullable: bool = True
    filled: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SchemaError("a column name must be a text that is not empty", received=shown(self.name))
        try:
            self.name.encode()
        except UnicodeEncodeError:
            raise SchemaError("a column name must be valid Unicode", received=ascii(self.name)) from None


@dataclass(frozen=True)
class RowSchema:
    """The columns of the rows of a table or queue, in order."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        repeated = sorted(name for name, count in Counter(column.name for column in self.columns).items() if count > 1)
        if repeated:
            raise SchemaError("two columns have the same name", received=", ".join(repeated))

    def column(self, name: str) -> Column:
        """Return the column with a name, or raise `SchemaError`."""
        found = self._by_name.get(name)
        if found is None:
            raise SchemaError("no such column", received=repr(name), valid=self.names)
        return found

    def __contains__(self, name: object) -> bool:
        """Return whether a column has a name."""
        return name in self._by_name

    # Cached: code reads them once per column, which would cost quadratic time in wide tables.

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
        SchemaError: the columns have another form, or a type is unknown.
    """
    if isinstance(columns, pa.Schema):
        return tuple(Column(field.name, parse_type(field.type), field.nullable) for field in columns)
    if not isinstance(columns, Mapping):
        valid = 'a mapping of names to types, {"user": "string", "ms": "long not null"}, or an Arrow schema'
        raise SchemaError("columns have another form", received=f"a {type(columns).__name__}", valid=valid)
    return tuple(_parse_column(name, kind) for name, kind in columns.items())


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns of an Arrow schema that has only the types of headrace."""
    return tuple(Column(field.name, field.type, field.nullable) for field in schema)


def _parse_column(name: str, kind: str | pa.DataType) -> Column:
    if isinstance(kind, str) and (found := _NOT_NULL.fullmatch(kind)):
        return Column(name, parse_type(found[1]), nullable=False)
    return Column(name, parse_type(kind))


@dataclass(frozen=True)
class TableSchema(RowSchema):
    """The columns of a table, in order, and the names of the key columns, in key order."""

    primary_key: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_key()
        # Key columns are never null, also without NOT NULL, so that equal schemas have equal columns.
        columns = tuple(
            Column(column.name, column.type, nullable=False) if column.name in self.primary_key else column
            for column in self.columns
        )
        object.__setattr__(self, "columns", columns)

    def _check_key(self) -> None:
        if not self.primary_key or len(set(self.primary_key)) != len(self.primary_key):
            raise SchemaError("a table needs a primary key of different columns", received=list(self.primary_key))
        types = {column.name: column.type for column in self.columns}
        for name in self.primary_key:
            if name not in types:
                raise SchemaError("a column of the primary key does not exist", received=name, valid=types)
            if not is_key_type(types[name]):
                raise SchemaError(
                    f"primary key column {name!r} has a type that a key cannot have",
                    received=type_name(types[name]),
                    valid=KEY_TYPE_NAMES,
                    remedy="cast it to decimal(p,s) or a string: stores differ in the equality of NaN and of -0.0"
                    if pa.types.is_floating(types[name])
                    else None,
                )

    @property
    def appends(self) -> bool:
        """Whether the rows have no primary key, and rows can be added all the same."""
        return False

    def check_keyed(self) -> None:
        """Raise `SchemaError` if the rows have no primary key."""

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
        """The Arrow schema of `Changes.rows`: all attributes are nullable, because a delete may have none."""
        return pa.schema([pa.field(c.name, c.type, nullable=c.name not in self.primary_key) for c in self.columns])

    def nullable(self, names: Sequence[str] | None = None) -> pa.Schema:
        """The Arrow schema of some columns (all by default), where rows may be missing: every column may be null."""
        return pa.schema([pa.field(n, self.column(n).type) for n in (self.names if names is None else names)])

    def with_columns(self, added: Mapping[str, str | pa.DataType]) -> TableSchema:
        """Return the schema with new attribute columns at the end, which are null in existing rows."""
        new = parse_columns(added)
        for column in new:
            if not column.nullable:
                raise SchemaError(f"column {column.name!r} cannot be added as NOT NULL: it is null in existing rows")
        return dataclasses.replace(self, columns=self.columns + new)


@dataclass(frozen=True)
class KeylessSchema(TableSchema):
    """The columns of a table or view whose rows have no key: they are read, and neither written by key nor followed.

    Attributes:
        problem: what has no primary key, and why, for messages.
        remedy: how its rows get one.
        appends: rows can be added.
    """

    primary_key: tuple[str, ...] = ()
    problem: str = "the table has no primary key"
    remedy: str = ""
    appends: bool = False

    def _check_key(self) -> None:
        """Accept that there is no key."""

    def check_keyed(self) -> None:
        raise SchemaError(
            f"{self.problem}: its rows can be read{' and added' if self.appends else ''}, and not be "
            f"{'replaced' if self.appends else 'written'} or followed",
            received="no primary key",
            remedy=self.remedy,
        )
