"""Changes of the columns of a mirror's source, and what they change in the mirror's tables.

The record of a mirror has the columns of its source as of the last published batch, with their numbers, which a column
keeps under each name. So a batch knows which columns are new, dropped or renamed since then. It makes the same changes
of its tables in the transaction of its rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import pyarrow as pa

from headrace.derived.mirror.forms import MirrorForm, MirrorTable
from headrace.errors import OptionError, SchemaError, UnsupportedError
from headrace.model.tables.alterations import Alteration, widens
from headrace.model.tables.schema import Column, TableSchema
from headrace.model.types import can_hold, type_name
from headrace.ports import Store, Table, Tunnel

SchemaChange: TypeAlias = Literal["evolve", "lenient", "fail"]
EVOLVE: SchemaChange = "evolve"
LENIENT: SchemaChange = "lenient"
FAIL: SchemaChange = "fail"
_ANEW = "drop the target, and start the mirror again, in Spark with a new checkpoint location: it copies all rows again"


def schema_change(text: str) -> SchemaChange:
    """Return the value of option ``schemaChange``, or raise `OptionError`."""
    for known in get_args(SchemaChange):
        if text.strip().lower() == known:
            found: SchemaChange = known
            return found
    raise OptionError("unknown schemaChange", received=repr(text), valid=get_args(SchemaChange))


class SourceColumn(NamedTuple):
    """A column of the source, as the record of the mirror has it.

    Attributes:
        number: its number, see `headrace.ports.Table.column_numbers`; None if the store has none.
        type: the name of its type.
    """

    name: str
    number: int | None
    type: str
    nullable: bool


def source_columns(schema: TableSchema, numbers: Mapping[str, int]) -> tuple[SourceColumn, ...]:
    """Return the columns of a source from its schema and `headrace.ports.Table.column_numbers`."""
    return tuple(
        SourceColumn(each.name, numbers.get(each.name), type_name(each.type), each.nullable) for each in schema.columns
    )


def parse_columns(text: str) -> tuple[SourceColumn, ...]:
    """Return columns from the text in a record; the inverse of `json.dumps`."""
    return tuple(SourceColumn(*each) for each in json.loads(text))


@dataclass(frozen=True)
class Difference:
    """What has changed in the columns of a source.

    Attributes:
        dropped: the former names.
        renamed: former names → names.
        retyped: names → the former types.
        relaxed: the names of columns that may be null now.
    """

    added: Sequence[str]
    dropped: Sequence[str]
    renamed: Mapping[str, str]
    retyped: Mapping[str, str]
    relaxed: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.added or self.dropped or self.renamed or self.retyped or self.relaxed)

    def __str__(self) -> str:
        parts = [f"new column {name}" for name in self.added]
        parts += [f"dropped column {name}" for name in self.dropped]
        parts += [f"column {old} is now {new}" for old, new in self.renamed.items()]
        parts += [f"column {name} was {kind}" for name, kind in self.retyped.items()]
        parts += [f"column {name} may be null" for name in self.relaxed]
        return "; ".join(parts)


def difference(before: Sequence[SourceColumn], now: Sequence[SourceColumn]) -> Difference:
    """Return the changes between the columns of two times.

    Raises:
        SchemaError: columns have no numbers, and it is not certain which were renamed.
    """
    by_number = {_identity(each): each for each in before}
    pairs = {each.name: by_number.pop(_identity(each), None) for each in now}
    added = [name for name, former in pairs.items() if former is None]
    dropped = [each.name for each in by_number.values()]
    if added and dropped and any(each.number is None for each in (*before, *now)):
        raise SchemaError(
            "columns of the source were renamed: the values in the target would stay under the old names",
            received=f"{', '.join(added)} instead of {', '.join(dropped)}",
            valid=[each.name for each in before],
            remedy=f"{_ANEW}; or, if no row was written since, give the columns their names again",
        )
    same = [(each, former) for each in now if (former := pairs[each.name]) is not None]
    return Difference(
        added,
        dropped,
        {former.name: each.name for each, former in same if former.name != each.name},
        {each.name: former.type for each, former in same if former.type != each.type},
        [each.name for each, former in same if each.nullable and not former.nullable],
    )


def _identity(column: SourceColumn) -> int | str:
    return column.name if column.number is None else column.number


@dataclass(frozen=True)
class Evolution:
    """What a mirror does after changes of the columns of its source.

    Attributes:
        policy: option ``schemaChange``.
        keeps: the target keeps columns that the source has dropped.
    """

    policy: SchemaChange
    keeps: bool

    def check(self, change: Difference, source: str, target: Store) -> None:
        """Check that the mirror may follow a change.

        Raises:
            SchemaError: its option says that it must not.
            UnsupportedError: the store of the target cannot follow it.
        """
        if self.policy == FAIL:
            raise SchemaError(
                f"the columns of the source {source!r} have changed, and the mirror has schemaChange=fail",
                received=str(change),
                remedy="start the mirror with schemaChange=evolve or lenient, which follow the change; or undo it",
            )
        relaxed = () if target.capabilities.adds_in_batches else change.relaxed
        others = Difference((), () if self.keeps else change.dropped, change.renamed, change.retyped, relaxed)
        if others and not target.capabilities.alters:
            raise UnsupportedError(
                f"the columns of the source {source!r} have changed, and the target's store can only add columns",
                received=str(others),
                remedy=f"{_ANEW}; or undo the change",
            )

    def alterations(self, change: Difference, form: MirrorForm, target: Store, tunnel: Tunnel) -> dict[str, Alteration]:
        """Return the changes of the tables of a mirror.

        Args:
            form: what the mirror keeps, with the columns of the source now.
            tunnel: the tunnel of the source.

        Raises:
            SchemaError: a column cannot have the change, or rows that were read before have unknown values in it.
        """
        found = {}
        for wanted in form.tables:
            table = target.table(wanted.name, wanted.schema.arrow)
            each = self._alteration(change, table, wanted, tunnel)
            if each:
                each.applied(table.schema)
                found[wanted.name] = each
                if each.values and not target.capabilities.alters:
                    raise values_unknown(table.name, each.values)
        return found

    def _alteration(self, change: Difference, table: Table, wanted: MirrorTable, tunnel: Tunnel) -> Alteration:
        schema = table.schema
        renamed = {old: new for old, new in change.renamed.items() if old in schema}
        former = {new: old for old, new in renamed.items()}
        dropped = [name for name in change.dropped if name in schema]
        kept = dropped if self.keeps else []
        staying = set(schema.names) - set(renamed) - (set(dropped) - set(kept))
        widened, added = {}, []
        for column in wanted.schema.columns:
            name = former.get(column.name, column.name)
            is_other = column.name in former or (self.keeps and column.name in change.added)
            if is_other and column.name in staying:
                raise SchemaError(
                    f"table {table.name!r} has kept a column whose name another column of the source has now",
                    received=column.name,
                    remedy="rename or drop it in the target, and start the mirror again",
                )
            if name not in schema or (name in dropped and name not in kept):
                added.append(Column(column.name, column.type))
                continue
            now = schema.column(name).type
            if now == column.type or (column.name not in change.retyped and can_hold(now, column.type)):
                continue
            if widens(now, column.type) and name in schema.primary_key:
                raise SchemaError(
                    f"column {column.name!r} of the primary key of table {table.name!r} has a wider type in the "
                    "source, and a mirror does not change the types of keys",
                    received=type_name(column.type),
                    valid=type_name(now),
                    remedy="give the column this type in the target, in PostgreSQL by ALTER TABLE … ALTER COLUMN … "
                    f"TYPE …, and start the mirror again; or {_ANEW}",
                )
            if widens(now, column.type):
                widened[column.name] = column.type
            elif not _holds(now, column.type):
                raise SchemaError(
                    f"column {column.name!r} of table {table.name!r} cannot get the type that it has in the source",
                    received=type_name(column.type),
                    valid=f"{type_name(now)}, or a wider type",
                    remedy=_ANEW,
                )
        names = [column.name for column in added if column.name in change.added]
        relaxed = [
            name
            for name in (*kept, *(name for name in change.relaxed if name in wanted.schema))
            if former.get(name, name) in schema and not schema.column(former.get(name, name)).nullable
        ]
        return Alteration(
            [] if self.keeps else dropped,
            renamed,
            widened,
            [name for name in relaxed if name not in wanted.schema.primary_key],
            added,
            tunnel.values_of_new_columns(names) if names else {},
        )


def values_unknown(table: str, values: Mapping[str, Any]) -> SchemaError:
    """Return the error for new columns in which rows that a mirror has read have values, which it cannot set."""
    return SchemaError(
        f"rows of the mirror {table!r} that were read before have values in new columns of its source",
        received=", ".join(f"{name} {value}" for name, value in values.items()),
        remedy="add the columns to the target with these values in all its rows, and start the mirror again",
    )


def _holds(wanted: pa.DataType, given: pa.DataType) -> bool:
    """Return whether a column has each value of a type."""
    return bool(wanted == given) or widens(given, wanted)
