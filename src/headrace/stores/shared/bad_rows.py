"""Rows that a table refuses, apart from the others of their batch; see `headrace.model.tables.bad_rows`.

A batch without them costs one look at the table of bad rows. Otherwise its rows are halved until the refused ones are
alone: here rows whose values have no form in the columns, and in the stores rows that the server refuses.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError, SchemaError
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.bad_rows import KEY, SCHEMA, json_object, key_text, object_of, row_key, stored_keys
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import TableSchema
from headrace.ports import BadRows, RetriedRows
from headrace.rows import to_arrow
from headrace.rows.by_position import last_rows
from headrace.rows.json_objects import objects, row_of, sift, typed_keys

Canonical = Callable[[pa.Table], pa.Table]
"""Returns keys in the one form that equal keys have."""

_Text = TypeVar("_Text", str, str | None)

POSITION: Final = "headrace position"
_LONGEST_ERROR = 1000
_OUTDATED = "the table has another row of this key than when the row was refused: it was not written again"
_BROKEN_FORMER = (
    "column former is no JSON object: write the row that the table has of this key into it, or null if it has none, or "
    "delete this bad row"
)
_CHANGES = (RowChange.PUT, RowChange.DELETE)
_NONE = pa.nulls(0, pa.int64())


class Refused(NamedTuple):
    """A row that its table refuses.

    Attributes:
        position: its place among the changes of the batch.
        change: PUT or DELETE.
        row: the row, alone.
        error: the reason.
    """

    position: int
    change: RowChange
    row: pa.Table
    error: HeadraceError


def converted(
    parts: Iterable[pa.Table], change: RowChange, convert: Callable[[pa.Table], pa.Table], first: int = 0
) -> tuple[pa.Table, list[Refused]]:
    """Return rows in the types of their table, with their `POSITION`, and the rows that it cannot have.

    Args:
        parts: the staged rows, in order.
        convert: returns rows in the types of the table, or raises `SchemaError`.
        first: the position of the first row.

    Raises:
        SchemaError: the table does not have a column of the rows.
    """
    good: list[pa.Table] = []
    refused: list[Refused] = []
    for part in parts:
        # A wrong column is no property of a row.
        good.append(convert(part.slice(0, 0)).append_column(POSITION, _NONE))

        def typed(begin: int, end: int, part: pa.Table = part, first: int = first) -> pa.Table:
            positions = pa.array(np.arange(first + begin, first + end))
            return convert(part.slice(begin, end - begin)).append_column(POSITION, positions)

        done, bad = sift(part.num_rows, typed, (SchemaError,))
        good += done
        refused += [Refused(first + index, change, part.slice(index, 1), error) for index, error in bad]
        first += part.num_rows
    return pa.concat_tables(good, promote_options="permissive") if good else pa.table({POSITION: []}), refused


def last_of_keys(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key."""
    return rows.take(pa.array(last_rows(rows, key))) if rows.num_rows else rows


def not_superseded(
    refused: Sequence[Refused], good: Iterable[pa.Table], schema: TableSchema, canonical: Canonical
) -> list[Refused]:
    """Return the refused rows without a later good row of their key.

    Args:
        good: rows as from `converted`.
    """
    texts = [_key_of(each, schema) for each in refused]
    last: dict[int, int] = {}
    for rows in good:
        for index, row in matches(texts, rows, schema, canonical):
            position = rows.column(POSITION)[row].as_py()
            last[index] = max(position, last.get(index, position))
    return [each for index, each in enumerate(refused) if last.get(index, -1) < each.position]


def of_keys(stored: pa.Table, rows: Iterable[pa.Table], schema: TableSchema, canonical: Canonical) -> pa.Table:
    """Return the keys of the bad rows that have the keys of some rows, in a table with column `KEY`.

    Args:
        stored: the bad rows.
        rows: rows in the types of the table.
    """
    keys = stored_keys(stored.to_pylist(), schema)
    found = {index for each in rows for index, _ in matches(keys, each, schema, canonical)}
    return stored.select([KEY]).take(pa.array(sorted(found), pa.int64()))


def matches(keys: Sequence[str], rows: pa.Table, schema: TableSchema, canonical: Canonical) -> list[tuple[int, int]]:
    """Return which of some keys are those of which rows, as indexes of both.

    Args:
        keys: the keys as JSON objects. One that has no form in the table is that of no row.
        rows: rows in the types of the table.
    """
    typed, indexes = typed_keys(keys, schema)
    if not typed.num_rows or not rows.num_rows:
        return []
    names = schema.primary_key
    wanted, given = canonical(typed), canonical(rows.select(names))
    near: Any = None
    for name in names:
        found = pc.is_in(given.column(name), wanted.column(name).combine_chunks())
        near = found if near is None else pc.and_(near, found)
    places = np.flatnonzero(near.to_numpy())
    known: dict[tuple[Any, ...], list[int]] = {}
    for index, key in zip(indexes, _tuples(wanted), strict=True):
        known.setdefault(key, []).append(index)
    found_keys = _tuples(given.take(pa.array(places)))
    return [(index, int(place)) for place, key in zip(places, found_keys, strict=True) for index in known.get(key, ())]


def _tuples(keys: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))


def former_rows(rows: pa.Table, schema: TableSchema, canonical: Canonical) -> dict[tuple[Any, ...], str]:
    """Return stored rows as JSON objects by their keys, in the one form of keys."""
    keys = _tuples(canonical(rows.select(schema.primary_key)))
    return dict(zip(keys, objects(rows), strict=True))


def records(
    refused: Sequence[Refused],
    former: Mapping[tuple[Any, ...], str],
    schema: TableSchema,
    canonical: Canonical,
    bad_rows: BadRows,
    job: str,
    batch: int,
) -> pa.Table:
    """Return the rows of the table of bad rows.

    Args:
        former: the rows that the table has, as from `former_rows`.
    """
    now = datetime.datetime.now(datetime.UTC)
    ordered = sorted(refused, key=lambda each: each.position)
    keys = [_key_of(each, schema) for each in ordered]
    typed, indexes = typed_keys(keys, schema)
    before = dict(zip(indexes, map(former.get, _tuples(canonical(typed))), strict=True))
    found = [
        {
            KEY: key_text(keys[index]),
            "change": str(each.change),
            "row": objects(each.row)[0] if each.change is RowChange.PUT else keys[index],
            "error": error_text(each.error),
            "former": before.get(index),
            "stream": bad_rows.stream,
            "query": job,
            "batch": batch,
            "refused": now,
        }
        for index, each in enumerate(ordered)
    ]
    return last_of_keys(to_arrow(found, SCHEMA, columns="all"), [KEY])


def error_text(error: HeadraceError) -> str:
    """Return the reason without the remedy, which is one for the whole batch."""
    text = error.problem if error.received is None else f"{error.problem}; {error.received}"
    return text.replace(" in row 0", "")[:_LONGEST_ERROR]


def keys_of(refused: Sequence[Refused], schema: TableSchema) -> pa.Table:
    """Return the keys of refused rows in the types of the table, as far as they have a form there."""
    return typed_keys([_key_of(each, schema) for each in refused], schema)[0]


def _key_of(refused: Refused, schema: TableSchema) -> str:
    return objects(refused.row.select(list(schema.primary_key)))[0]


def altered(
    stored: pa.Table, alteration: Alteration, before: TableSchema, after: TableSchema
) -> tuple[pa.Table, pa.Table]:
    """Return what bad rows become when their job changes the columns of their table.

    Args:
        stored: the bad rows.
        before: the columns of the table before the change; ``after`` are those after it.

    Returns:
        The keys, in a table with column `KEY`, of the rows that get another one; and the rows of now.
    """
    values = {name: pa.array([value], after.column(name).type) for name, value in alteration.values.items()}
    filled = json.loads(objects(pa.table(values))[0]) if values else {}
    bad = stored.to_pylist()
    now = [
        {
            **each,
            KEY: key_text(_altered(key, alteration, {})),
            "row": _altered(each["row"], alteration, filled if each["change"] == RowChange.PUT else {}),
            "former": _altered(each["former"], alteration, filled),
        }
        for each, key in zip(bad, stored_keys(bad, before), strict=True)
    ]
    moved = [index for index, each in enumerate(now) if each[KEY] != bad[index][KEY]]
    return stored.select([KEY]).take(pa.array(moved, pa.int64())), to_arrow(now, SCHEMA, columns="all")


def _altered(text: _Text, alteration: Alteration, values: Mapping[str, Any]) -> str | _Text:
    """Return a row or key, a JSON object, with the columns of now. A text of the user that is none stays."""
    try:
        row = object_of(text)
    except ValueError:
        return text
    now = {alteration.renamed.get(name, name): value for name, value in row.items() if name not in alteration.dropped}
    for name, kind in alteration.widened.items():
        # The shortest text of a float is that of another double.
        if kind == pa.float64() and isinstance(value := now.get(name), float):
            now[name] = float(np.float32(value))
    return json_object({**now, **values})


class Retry(NamedTuple):
    """What writing bad rows again has done, and what their table has to become.

    Attributes:
        outcome: the counts.
        done: the keys, in a table with column `KEY`, of the bad rows that are no longer bad.
        left: the other bad rows, with their new errors.
    """

    outcome: RetriedRows
    done: pa.Table
    left: pa.Table


def retry(
    stored: pa.Table,
    schema: TableSchema,
    canonical: Canonical,
    convert: Callable[[Sequence[dict[str, Any]], RowChange], pa.Table],
    current: Callable[[pa.Table], pa.Table],
    write: Callable[[pa.Table, pa.Table], list[Refused]],
) -> Retry:
    """Write bad rows again.

    Args:
        stored: the bad rows.
        schema: the columns of their table.
        convert: returns the rows of a row change in the types of the table, or raises `SchemaError`.
        current: returns the rows of the table with some keys.
        write: writes rows to put and keys to delete, each with its `POSITION`, and returns the refused ones.
    """
    bad = stored.to_pylist()
    # Who has corrected a row can have given it another key, which the table may have.
    typed, indexes = typed_keys([row_key(each["row"], schema) for each in bad], schema)
    tuples = dict(zip(indexes, _tuples(canonical(typed)), strict=True))
    firsts = {key: index for index, key in reversed(tuples.items())}
    now = former_rows(current(typed), schema, canonical)
    errors: dict[int, str] = {}
    for index, key in tuples.items():
        try:
            if firsts[key] != index or not _is_same(bad[index]["former"], now.get(key), schema):
                errors[index] = _OUTDATED
        except ValueError as error:
            errors[index] = f"{_BROKEN_FORMER}; received: {error}"
    outdated = list(errors.values()).count(_OUTDATED)
    errors |= {
        index: f"unknown change; received {each['change']!r}; valid: {', '.join(_CHANGES)}"
        for index, each in enumerate(bad)
        if each["change"] not in _CHANGES and index not in errors
    }
    parts = []
    for change in _CHANGES:
        wanted = [index for index, each in enumerate(bad) if each["change"] == change and index not in errors]

        def values(begin: int, end: int, wanted: list[int] = wanted, change: RowChange = change) -> pa.Table:
            rows = convert([row_of(bad[index]["row"], schema) for index in wanted[begin:end]], change)
            return rows.append_column(POSITION, pa.array(wanted[begin:end], pa.int64()))

        tables, refused = sift(len(wanted), values, (SchemaError,), most=len(bad))
        errors |= {wanted[index]: error_text(error) for index, error in refused}
        parts.append(pa.concat_tables(tables) if tables else convert([], change).append_column(POSITION, _NONE))
    errors |= {each.position: error_text(each.error) for each in write(*parts)}
    left = [{**each, "error": errors[index]} for index, each in enumerate(bad) if index in errors]
    done = [index for index in range(len(bad)) if index not in errors]
    return Retry(
        RetriedRows(len(done), len(errors) - outdated, outdated),
        stored.select([KEY]).take(pa.array(done, pa.int64())),
        to_arrow(left, SCHEMA, columns="all"),
    )


def _is_same(before: str | None, after: str | None, schema: TableSchema) -> bool:
    """Return whether a row has the values that it had; columns that came or went since do not count.

    Raises:
        ValueError: ``before``, which a person can have written, is no JSON object.
    """
    was = None if before is None else object_of(before)
    if was is None or after is None:
        return was is None and after is None
    now = json.loads(after)
    return all(now.get(name) == value for name, value in was.items() if name in schema)
