"""The commands that write and read whole tables; static ones as far as small data needs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.endpoints.ytsaurus import static_tables, table_state
from headrace.endpoints.ytsaurus.commands import Answer, Context, Parameters, command
from headrace.endpoints.ytsaurus.cypress_commands import chain_of
from headrace.endpoints.ytsaurus.errors import refused
from headrace.endpoints.ytsaurus.formats import Format, read_value, write_rows, write_value
from headrace.endpoints.ytsaurus.row_bodies import read_body
from headrace.endpoints.ytsaurus.row_sources import source_of
from headrace.endpoints.ytsaurus.table_nodes import TABLE, find_table
from headrace.endpoints.ytsaurus.table_state import Kind, Schema, Table
from headrace.endpoints.ytsaurus.values import names_of
from headrace.wire.yson import documents
from headrace.wire.ytsaurus.paths import YPath

_BINARY = Format("yson", {"format": "binary"})


def _transaction(parameters: Parameters) -> str | None:
    return parameters.text("transaction_id", None)  # type: ignore[no-any-return]


@command("write_table", input="tabular", volatile=True, heavy=True)
def write_table(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Replace the rows of a static table, which is made if it is not there, or put more behind them (``append``)."""
    path: YPath = parameters.path()
    append = bool(path.attributes.get("append", False))
    table = _static(context, parameters, path)
    columns = table.schema.columns
    if columns:
        rows = read_body(context, body, columns, table).rows
        count, data = rows.num_rows, write_rows([rows], columns, _BINARY)
    else:
        values = _maps(context, body)
        count, data = len(values), b"".join(documents.dumps(value, text=False) + b";" for value in values)
    with context.cluster.database.write() as connection:
        context.cypress.locks.need(table.node.chain, table.node.id, table.node.path)
        if not append:
            static_tables.drop(connection, table.node.id)
        if count:
            static_tables.append(connection, table.node.id, count, data)
        context.cypress.touch(context, table.node)
    return Answer.structured({})


def _static(context: Context, parameters: Parameters, path: YPath) -> Table:
    chain = chain_of(context, parameters)
    with context.cluster.database.write() as connection:
        found = context.cypress.look(chain, path.node)
        node = found.node
        if len(found.rest) == 1 and node.kind.has_children:
            attributes = {} if "schema" not in path.attributes else {"schema": path.attributes["schema"]}
            node = context.cypress.make(context, node, found.rest[0], TABLE, attributes)
        elif found.rest:
            raise context.cypress.not_found(path.node, found)
        table = table_state.load(connection, node)
        if table.kind is not Kind.STATIC:
            raise refused(f"{table.name} is dynamic", remedy="write it with insert_rows")
        given = path.attributes.get("schema")
        if given is not None and not path.attributes.get("append"):
            table = dataclasses.replace(table, schema=Schema.parse(given))
            table_state.save(connection, table)
        return table


def _maps(context: Context, body: bytes) -> list[Any]:
    """Return rows of any columns."""
    if context.input_format.name == "yson":
        rows = _listed(body)
    else:
        rows = [read_value(line, context.input_format) for line in body.splitlines() if line.strip()]
    for row in rows:
        if not isinstance(row, Mapping):
            raise refused("A row is not a map", received=repr(row)[:100])
    return rows


def _listed(fragment: bytes) -> list[Any]:
    """Return the values of a list fragment, with strings as texts."""
    found: list[Any] = documents.loads(b"[" + fragment + b"]")
    return found


@command("read_table", output="tabular", heavy=True)
def read_table(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the rows of a table, or those in ranges of row numbers, and the columns that the path names."""
    path: YPath = parameters.path()
    table = find_table(context, path, _transaction(parameters))
    wanted = path.attributes.get("columns")
    names = None if wanted is None else set(names_of(_listed_in(path, "columns")))
    if table.kind is Kind.STATIC:
        return _read_static(context, table, path, names)
    table.require_mounted(reading=True)
    if path.attributes.get("ranges"):
        raise refused("This endpoint reads ranges of static tables only", remedy="use select_rows")
    with context.cluster.database.read() as connection:
        del connection
        source = source_of(context.cluster.database, table, context.cluster.name)
        columns = [column for column in table.schema.columns if names is None or column.name in names]
        batches = list(source.scan([column.name for column in columns], []))
    count = sum(batch.num_rows for batch in batches)
    return Answer.rows(batches, columns, start_row_index=0, approximate_row_count=count)


def _read_static(context: Context, table: Table, path: YPath, names: set[str] | None) -> Answer:
    with context.cluster.database.read() as connection:
        pieces = static_tables.pieces(connection, table.node.id)
    rows = [row for piece in pieces for row in _listed(piece)]
    ranges = None if path.attributes.get("ranges") is None else _listed_in(path, "ranges")
    spans = list(_spans(ranges, len(rows)))
    chosen = [row for first, end in spans for row in rows[first:end]]
    if names is not None:
        chosen = [{name: value for name, value in row.items() if name in names} for row in chosen]
    form = context.output_format
    end = b"\n" if form.name == "json" else b";\n" if form.text else b";"
    content = b"".join(write_value(row, form) + end for row in chosen)
    return Answer.raw(content, start_row_index=spans[0][0] if spans else 0, approximate_row_count=len(chosen))


def _listed_in(path: YPath, name: str) -> list[Any]:
    """Return a list that a path carries."""
    found = path.attributes[name]
    if not isinstance(found, list):
        raise refused(f"The attribute {name} of a path is no list", received=repr(found)[:200])
    return found


def _spans(ranges: Sequence[Any] | None, count: int) -> Iterator[tuple[int, int]]:
    """Return the row numbers, the end excluded, of the ranges of a path."""
    if ranges is None:
        yield 0, count
        return
    for each in ranges:
        if not isinstance(each, Mapping):
            raise refused("A range of a path is no map", received=repr(each)[:200])
        bounds = {"lower_limit": 0, "upper_limit": count}
        if "exact" in each:
            row = _row_index(each["exact"])
            yield min(row, count), min(row + 1, count)
            continue
        for side in bounds:
            if side in each:
                bounds[side] = _row_index(each[side])
        first = min(bounds["lower_limit"], count)
        yield first, max(first, min(bounds["upper_limit"], count))


def _row_index(limit: Mapping[str, Any]) -> int:
    index = limit.get("row_index")
    if not isinstance(index, int) or len(limit) != 1:
        raise refused(
            "This endpoint reads ranges of row numbers only", received=repr(dict(limit))[:200], valid="[#10:#20]"
        )
    return int(index)
