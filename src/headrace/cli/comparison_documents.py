"""Comparisons of tables as the command line prints them: documents for programs, and tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.cli.output import to_json
from headrace.rows.json_rows import with_objects

if TYPE_CHECKING:
    from headrace.inspect.comparing.results import RowDifference, TableChecksum, TableDiff
    from headrace.model.tables.conditions import KeyRange
    from headrace.model.tables.schema import TableSchema


def diff_document(diff: TableDiff, names: tuple[str, str], schemas: tuple[TableSchema, TableSchema]) -> dict[str, Any]:
    """Return a comparison for programs."""
    rows = [
        {
            "kind": row.kind,
            "key": row.key,
            "columns": list(row.columns),
            "a": _with_objects(row.a, schemas[0]),
            "b": _with_objects(row.b, schemas[1]),
        }
        for row in diff.differences
    ]
    return {
        **_figures(diff, names),
        "columns": [vars(column) for column in diff.columns],
        "differences": rows,
        "ranges": _ranges(diff),
    }


def diff_tables_for_people(
    diff: TableDiff, names: tuple[str, str], schemas: tuple[TableSchema, TableSchema]
) -> dict[str, Any]:
    """Return a comparison for people: one line for each differing value, and no empty tables."""
    tables = {
        "columns": [
            {
                "column": column.column,
                "a": column.a or "missing",
                "b": column.b or "missing",
                "compared": column.compared,
            }
            for column in diff.columns
        ],
        "differences": [line for row in diff.differences for line in _lines(row, schemas)],
        "ranges": _ranges(diff),
    }
    return {**_figures(diff, names), **{title: lines for title, lines in tables.items() if lines}}


def checksum_document(found: TableChecksum, name: str) -> dict[str, Any]:
    """Return the checksum of a table, for programs and people."""
    return {
        "table": name,
        "rows": found.rows,
        "checksum": _shown(found.checksum),
        "columns": list(found.columns),
        "ranges": [
            {**_bounds(part.keys), "rows": part.rows, "checksum": _shown(part.checksum)} for part in found.ranges
        ],
    }


def _figures(diff: TableDiff, names: tuple[str, str]) -> dict[str, Any]:
    return {
        "a": names[0],
        "b": names[1],
        "equal": diff.equal,
        "rows_a": diff.rows_a,
        "rows_b": diff.rows_b,
        "only_in_a": diff.only_in_a,
        "only_in_b": diff.only_in_b,
        "changed": diff.changed,
        "compared": list(diff.compared),
    }


def _ranges(diff: TableDiff) -> list[dict[str, Any]]:
    return [
        {
            **_bounds(part.a.keys),
            "rows_a": part.a.rows,
            "rows_b": part.b.rows,
            "checksum_a": _shown(part.a.checksum),
            "checksum_b": _shown(part.b.checksum),
            "equal": part.equal,
        }
        for part in diff.ranges
    ]


def _bounds(keys: KeyRange) -> dict[str, Any]:
    return {"low": list(keys.low or ()), "high": list(keys.high or ())}


def _lines(row: RowDifference, schemas: tuple[TableSchema, TableSchema]) -> list[dict[str, Any]]:
    key = ", ".join(f"{name}={_text(value)}" for name, value in row.key.items())
    a, b = _with_objects(row.a, schemas[0]), _with_objects(row.b, schemas[1])
    if a is None or b is None:
        sides = {side: "" if values is None else _attributes(values, row.key) for side, values in (("a", a), ("b", b))}
        return [{"difference": row.kind, "key": key, "column": "", **sides}]
    return [{"difference": row.kind, "key": key, "column": name, "a": a[name], "b": b[name]} for name in row.columns]


def _attributes(row: Mapping[str, Any], key: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in key}


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()  # as in the other cells of a table
    return value if isinstance(value, str) else to_json(value)


def _with_objects(row: Mapping[str, Any] | None, schema: TableSchema) -> Mapping[str, Any] | None:
    if row is None:
        return None
    import pyarrow as pa

    return with_objects([row], pa.schema([schema.arrow.field(name) for name in row]))[0]


def _shown(checksum: int) -> str:
    """Return a checksum as text: programs may read JSON numbers as doubles, which have 53 bits."""
    return f"{checksum:016x}"
