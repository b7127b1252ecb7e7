"""What a tunnel leaves out of its table: columns, rows and, by masks, values.

The publication has the list of columns and the filter of rows, so the server sends nothing else. Columns are numbers of
the catalog, which they keep under each name. Base data obeys the same choice: its condition is that of the publication
when it is read, so it has the present names.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import LiteralString, NamedTuple

import pyarrow as pa

from headrace.errors import DataLossError, OptionError, SchemaError, UnsupportedError
from headrace.model.tables.schema import Column, TableSchema
from headrace.model.tunnels.masks import Mask, Masked
from headrace.model.tunnels.values import TunnelKind
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tunnels.definitions import Definition
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements, TunnelDatabase
from headrace.stores.postgres.tunnels.tunnel_options import TunnelOptions

_LISTS_VERSION = 150_000
_KEY_BYTES = 32
_COLUMNS = """
SELECT attname::text, attnum::int FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
# From PostgreSQL 15 on.
_PUBLISHED: LiteralString = """
SELECT r.prattrs::int2[]::int[], pg_get_expr(r.prqual, r.prrelid)
FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
WHERE p.pubname = %s AND r.prrelid = %s
"""
_FILTERING: LiteralString = """
SELECT ARRAY(
    SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = r.prrelid
        AND a.attnum IN (SELECT m[1]::int FROM regexp_matches(r.prqual::text, ':varattno (\\d+)', 'g') m)
), (
    SELECT bool_and(l.relreplident = 'f') FROM pg_class l
    WHERE l.relkind <> 'p' AND (l.oid = r.prrelid OR l.oid IN (SELECT relid FROM pg_partition_tree(r.prrelid)))
)
FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
WHERE p.pubname = %s AND r.prrelid = %s
"""
_FULL = """
SELECT bool_or(l.relreplident = 'f') FROM pg_class l
WHERE l.oid = %(oid)s OR l.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s))
"""
_KEYS = "SELECT content FROM headrace.selection"


class Selection(NamedTuple):
    """The columns of a tunnel's rows.

    Attributes:
        columns: the numbers of the columns; None for all.
        filtered: whether the publication has a filter of rows.
        masks: the numbers of masked columns → their masks.
        key: the key of hashes, as hexadecimal digits.
    """

    columns: Collection[int] | None = None
    filtered: bool = False
    masks: Mapping[int, Mask] = {}
    key: str = ""

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Return the selection of a JSON text; the inverse of `text`."""
        columns, filtered, masks, key = json.loads(text)
        return cls(columns, filtered, {int(number): Mask(*mask) for number, mask in masks.items()}, key)

    @property
    def text(self) -> str:
        return json.dumps(self)

    def over(self, versions: Sequence[Definition]) -> Selection:
        """Return the selection with a mask for each column that has ever had the name of a masked one.

        A column that takes the place of another one, as in a migration of its values, has the values to be masked.

        Args:
            versions: the definitions that the tunnel has seen, in order.
        """
        masks, named = dict(self.masks), dict[str, Mask]()
        for version in versions:
            named |= {column.name: masks[column.number] for column in version.columns if column.number in masks}
            masks |= {
                column.number: named[column.name]
                for column in version.columns
                if column.name in named and column.number not in masks
            }
        return self._replace(masks=masks)

    def definition(self, whole: Definition, before: Sequence[Definition]) -> Definition:
        """Return the part of a definition that rows depend on: no other change of the table matters, or is recorded.

        A default value for older rows is a value of its column, so a mask hides it.

        Args:
            before: the definitions that the tunnel has seen before.
        """
        masks = self.over([*before, whole]).masks
        columns = [
            column._replace(missing=None, mixed=column.missing is not None and masks[column.number].reads)
            if column.number in masks
            else column
            for column in whole.columns
            if self.columns is None or column.number in self.columns
        ]
        attributes = whole.attributes if self.columns is None else max(self.columns)
        return whole._replace(columns=columns, attributes=attributes)

    def masked(self, layout: TableLayout, now: Definition) -> dict[str, Masked]:
        """Return the masked columns by their present names."""
        return {
            column.name: Masked(self.masks[column.number], layout.column(column.name).type)
            for column in now.columns
            if column.number in self.masks
        }


def only(table: TableLayout, names: Collection[str]) -> TableLayout:
    """Return a table with some of its columns."""
    return dataclasses.replace(table, columns=tuple(column for column in table.columns if column.name in names))


def masked_schema(schema: TableSchema, masked: Mapping[str, Masked]) -> TableSchema:
    """Return the columns of rows with masked values.

    Raises:
        UnsupportedError: a column has got a type that its mask does not fit, or a key the name of a masked column.
    """
    if keys := [name for name in schema.primary_key if name in masked]:
        raise UnsupportedError(
            "a column of the primary key has the name of a masked column",
            received=", ".join(keys),
            remedy="give it another name, or create a new tunnel",
        )
    columns = [
        Column(
            column.name,
            _type_of(column.name, masked[column.name]),
            column.nullable or masked[column.name].mask.kind == "null",
            column.filled,
        )
        if column.name in masked
        else column
        for column in schema.columns
    ]
    return TableSchema(tuple(columns), schema.primary_key)


def _type_of(column: str, masked: Masked) -> pa.DataType:
    try:
        return masked.mask.type_of(column, masked.type)
    except OptionError as error:
        # Not of the call, which only reads.
        raise UnsupportedError(
            f"{error.problem} any more, whose type was changed",
            received=error.received,
            valid=error.valid,
            remedy="give the column its former type, or create a new tunnel",
        ) from error


def resolve(
    database: TunnelDatabase, table: TableLayout, options: TunnelOptions, kind: TunnelKind
) -> tuple[Selection | None, TableLayout]:
    """Return the selection of a new tunnel, and its table with the columns that it has; None for all of the table.

    Raises:
        OptionError: the options do not fit the table.
        UnsupportedError: the server cannot have it, or updates of the table would fail.
    """
    numbers = dict(database.query(_COLUMNS, (table.oid,)))
    if options.publication is None:
        columns, filtered = _chosen(table, options, numbers), options.where is not None
        if filtered and kind is TunnelKind.BASE_DATA:
            raise UnsupportedError(
                "option where is part of a publication, which a tunnel of kind BaseData does not have",
                received=f"where {options.where}",
                valid="kind BaseAndStream or Stream",
                remedy="filter the rows in the query",
            )
        if kind is not TunnelKind.BASE_DATA and (columns is not None or filtered):
            _check_version(database)
    else:
        name = options.publication
        columns, filter_of_rows = database.ask(lambda statements: _published(statements, name, table.oid))
        filtered = filter_of_rows is not None
        if filtered:
            database.ask(lambda statements: check_condition(statements, name, table))
    if columns is not None:
        _check_key(table, options, [name for name in table.primary_key if numbers[name] not in columns])
        if kind is not TunnelKind.BASE_DATA:
            _check_identity(database, table)
    masks = _masks(table, options, numbers, columns)
    if columns is None and not filtered and not masks:
        return None, table
    key = ""
    if any(mask.kind == "hash" for mask in masks.values()):
        key = options.mask_key.hex() if options.mask_key else _key(database)
    names = [name for name, number in numbers.items() if columns is None or number in columns]
    return Selection(columns, filtered, masks, key), only(table, names)


def save(statements: PostgresStatements, tunnel: str, selection: Selection | None) -> None:
    """Record the selection of a new tunnel."""
    if selection is not None:
        statements.execute(
            "INSERT INTO headrace.selection (tunnel, content) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            (tunnel, selection.text),
        )


def condition(statements: PostgresStatements, publication: str, relation: int) -> str:
    """Return the filter of a publication for the rows of a table, with the present names of its columns.

    Raises:
        DataLossError: it has none any more.
    """
    text = _published(statements, publication, relation)[1]
    if text is None:
        raise DataLossError(
            "the publication of a tunnel has no filter of rows any more",
            received=f"publication {publication}",
            remedy="create a new tunnel",
        )
    return text


def described(
    statements: PostgresStatements, selection: Selection, publication: str | None, relation: int
) -> dict[str, str]:
    """Return a selection for people."""
    names = {number: name for name, number in statements.execute(_COLUMNS, (relation,)).fetchall()}
    facts = {}
    if selection.columns is not None:
        facts["columns"] = ", ".join(names[number] for number in selection.columns if number in names)
    if selection.filtered and publication is not None:
        facts["where"] = _published(statements, publication, relation)[1] or "the publication has no filter any more"
    if selection.masks:
        facts["masks"] = ", ".join(
            f"{names[number]}: {mask.kind}{f'({mask.argument})' if mask.argument else ''}"
            for number, mask in selection.masks.items()
            if number in names
        )
    return facts


def _chosen(table: TableLayout, options: TunnelOptions, numbers: Mapping[str, int]) -> list[int] | None:
    """Return the numbers of the columns that the options choose; None for all."""
    for option, names in (("columns", options.columns), ("exclude", options.exclude)):
        _check_names(table, option, names or ())
    if options.columns is not None:
        chosen = [name for name in numbers if name in options.columns]
    elif options.exclude is not None:
        chosen = [name for name in numbers if name not in options.exclude]
    else:
        return None
    return [numbers[name] for name in chosen]


def _check_key(table: TableLayout, options: TunnelOptions, lacking: Sequence[str]) -> None:
    """Raise `OptionError` if columns of the primary key are left out."""
    if lacking:
        names = ", ".join(lacking)
        remedy = f"add {names} to the publication"
        if options.columns is not None:
            remedy = f"add {names} to option columns"
        elif options.exclude is not None:
            remedy = f"remove {names} from option exclude"
        raise OptionError(
            f"a tunnel of table {table.name.text!r} needs the columns of the primary key, by which rows are found",
            received=f"without {names}",
            remedy=remedy,
        )


def _check_names(table: TableLayout, option: str, names: Collection[str]) -> None:
    if unknown := [name for name in names if name not in table.schema.names]:
        raise SchemaError(
            f"option {option} names columns that table {table.name.text!r} does not have",
            received=", ".join(map(repr, unknown)),
            valid=table.schema.names,
        )


def _check_version(database: TunnelDatabase) -> None:
    version = database.run(lambda statements: statements.connection.info.server_version)
    if version < _LISTS_VERSION:
        raise UnsupportedError(
            "this server cannot publish some columns or rows of a table",
            received=f"PostgreSQL {version // 10_000}",
            valid="PostgreSQL 15 and later",
            remedy="choose columns and rows in the query; option mask works with this server",
        )


def _check_identity(database: TunnelDatabase, table: TableLayout) -> None:
    ((full,),) = database.query(_FULL, {"oid": table.oid})
    if full:
        raise UnsupportedError(
            f"the log of table {table.name.text!r} has the rows before changes, so its publication needs all columns: "
            "the server would refuse each update and delete",
            received="columns that are left out, and REPLICA IDENTITY FULL",
            remedy=f"run `headrace table set {shlex.quote(table.name.text)} pre_images=false`, or use option mask in "
            "place of columns and exclude",
        )


def _published(statements: PostgresStatements, publication: str, relation: int) -> tuple[list[int] | None, str | None]:
    """Return the list of columns of a publication for a table, and its filter of rows; None for all."""
    if statements.connection.info.server_version < _LISTS_VERSION:
        return None, None
    row = statements.first(_PUBLISHED, (publication, relation))
    return (None, None) if row is None else (row[0], row[1])


def _masks(
    table: TableLayout, options: TunnelOptions, numbers: Mapping[str, int], columns: Collection[int] | None
) -> dict[int, Mask]:
    _check_names(table, "mask", options.mask)
    for name, mask in options.mask.items():
        if name in table.primary_key:
            raise OptionError(
                f"column {name!r} is in the primary key, by which rows are found",
                received=f"a mask of {name!r}",
                remedy="leave out the mask, or mask a column beside the key",
            )
        if columns is not None and numbers[name] not in columns:
            raise OptionError(
                f"a mask of column {name!r} has no effect: the tunnel leaves it out",
                received=f"a mask of {name!r}",
                remedy="leave out the mask",
            )
        mask.type_of(name, table.column(name).type)
    return {numbers[name]: mask for name, mask in options.mask.items()}


def _key(database: TunnelDatabase) -> str:
    """Return the key of the other tunnels, so that their hashes of a value are the same; or a new key."""
    keys: list[str] = [key for (content,) in database.query(_KEYS) if (key := Selection.parse(content).key)]
    return keys[0] if keys else secrets.token_hex(_KEY_BYTES)


def check_condition(statements: PostgresStatements, publication: str, table: TableLayout) -> None:
    """Check that updates and deletes have the columns of a filter of rows; the server would refuse them otherwise.

    Raises:
        UnsupportedError: the log does not identify rows by them.
    """
    row = statements.first(_FILTERING, (publication, table.oid))
    assert row is not None
    names, full = row
    if not full and (others := [name for name in names if name not in table.primary_key]):
        raise UnsupportedError(
            f"the server would refuse updates and deletes of table {table.name.text!r}: its log does not have the "
            "columns of the filter before a change",
            received=f"a filter with {', '.join(others)}",
            valid=f"columns of the primary key: {', '.join(table.primary_key)}",
            remedy=f"run `headrace table set {shlex.quote(table.name.text)} pre_images=true`, or filter the rows in "
            "the query",
        )
