"""The query box: one read-only SELECT, its result as a table and as a chart."""

from __future__ import annotations

import datetime
import decimal
import itertools
import json
from typing import Any

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.inspect.querying import engine
from headrace.model.types import type_name
from headrace.rows.shown_values import shown_values
from headrace.ui.requests import Page, Request
from headrace.ui.site import Site

MAX_ROWS = 200
MAX_SECONDS = 10.0
MAX_RESULT_BYTES = 8 << 20
_MAX_LINES = 4
_SUGGESTED = 12


def query_page(site: Site, request: Request) -> Page:
    """The form, and for POST the result of its statement."""
    sql = request.form.get("sql", request.query.get("sql", "")).strip()
    names = site.tables()
    result, problem, chart = None, None, None
    # The statement of the form finds a process ready.
    site.queries.prepare()
    if request.method == "POST" and sql:
        try:
            result = engine.run(
                site.store,
                sql,
                max_rows=MAX_ROWS,
                timeout_seconds=MAX_SECONDS,
                max_result_bytes=MAX_RESULT_BYTES,
                processes=site.queries,
            )
            chart = chart_of(result.rows)
        except HeadraceError as error:
            problem = str(error)
    return Page(
        "query.html",
        {
            "sql": sql,
            "example": names[0] if names else "orders",
            "tables": [(name, _columns(site, name)) for name in names[:_SUGGESTED]],
            "more_tables": max(0, len(names) - _SUGGESTED),
            "problem": problem,
            "result": result,
            "columns": [] if result is None else [(each.name, type_name_or_text(each.type)) for each in result.schema],
            "rows": [] if result is None else list(zip(*map(shown_values, result.rows.columns), strict=True)),
            "chart": None if chart is None else json.dumps(chart),
            "max_rows": MAX_ROWS,
            "max_seconds": MAX_SECONDS,
        },
        200 if problem is None else 400,
    )


def _columns(site: Site, table: str) -> str:
    """Return the columns of a table and their types as a text."""
    try:
        columns = site.store.table(table).schema.columns
    except HeadraceError as error:
        return error.problem
    return ", ".join(f"{column.name} {type_name(column.type)}" for column in columns)


def type_name_or_text(kind: pa.DataType) -> str:
    """Return headrace's name of a type, or Arrow's name of a type that columns cannot have."""
    try:
        return type_name(kind)
    except (HeadraceError, KeyError, ValueError):
        return str(kind)


def chart_of(rows: pa.Table) -> dict[str, Any] | None:
    """Return the numeric columns of a result as the lines of a chart; None if there is nothing to draw.

    The x axis is the first column if it is a time or increasing numbers, otherwise the number of the row.
    """
    if rows.num_rows < 2:
        return None
    numeric = [name for name in rows.schema.names if _is_number(rows.schema.field(name).type)]
    first = rows.schema.names[0]
    times = pa.types.is_timestamp(rows.schema.field(first).type) or pa.types.is_date(rows.schema.field(first).type)
    x = [_number(value) for value in shown_values(rows.column(0))] if times or first in numeric else []
    known = [value for value in x if value is not None]
    ordered = bool(x) and len(known) == len(x) and all(a < b for a, b in itertools.pairwise(known))
    lines = [name for name in numeric if not (ordered and name == first)][:_MAX_LINES]
    if not lines:
        return None
    return {
        "x": x if ordered else list(range(1, rows.num_rows + 1)),
        "time": ordered and times,
        "labels": None if ordered else [str(value)[:16] for value in shown_values(rows.column(0))],
        "lines": [{"name": name, "y": [_number(value) for value in shown_values(rows.column(name))]} for name in lines],
    }


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _number(value: Any) -> float | None:
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=value.tzinfo or datetime.UTC).timestamp()
    if isinstance(value, datetime.date):
        return datetime.datetime(value.year, value.month, value.day, tzinfo=datetime.UTC).timestamp()
    if isinstance(value, int | float | decimal.Decimal):
        found = float(value)
        return found if found == found and abs(found) != float("inf") else None
    return None
