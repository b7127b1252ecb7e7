"""The commands that write and read whole tables; static ones as far as small data needs it."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.endpoints.ytsaurus import static_tables, table_state
from headrace.endpoints.ytsaurus.commands import Answer, Context, Parameters, command
from headrace.endpoints.ytsaurus.cypress_commands import chain_of
from headrace.endpoints.ytsaurus.errors import refused
from headrace.endpoints.ytsaurus.formats import Format, read_json_values, write_rows, write_value
from headrace.endpoints.ytsaurus.key_ranges import KeyRanges
from headrace.endpoints.ytsaurus.outgoing import kept_on_disk
from headrace.endpoints.ytsaurus.row_bodies import read_body
from headrace.endpoints.ytsaurus.row_sources import source_of
from headrace.endpoints.ytsaurus.row_weights import check_row_weights
from headrace.endpoints.ytsaurus.table_nodes import TABLE, find_table
from headrace.endpoints.ytsaurus.table_state import Kind, Schema, Table
from headrace.endpoints.ytsaurus.values import names_of
from headrace.wire.yson import documents
from headrace.wire.yson.rows_decoding import decode_rows
from headrace.wire.ytsaurus.paths import YPath

_BINARY = Format("yson", {"format": "binary"})
_PIECE_BYTES = 1 << 20
_STEP_ROWS = 1000
_END_OF_ROW = b"};"


def _transaction(parameters: Parameters) -> str | None:
    return parameters.text("transaction_id", None)  # type: ignore[no-any-return]


@command("write_table", input="tabular", volatile=True, heavy=True)
def write_table(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Replace the rows of a static table, which is made if it is not there, or put more behind them (``append``)."""
    path: YPath = parameters.path()
    append = bool(path.attributes.get("append", False))
    table = _static(context, parameters, path)
    pieces = list(_with_schema(context, body, table) if table.schema.columns else _without_schema(context, body))
    check_row_weights(parameters, pieces)
    with context.cluster.database.write() as connection:
        context.cypress.locks.need(table.node.chain, table.node.id, table.node.path)
        if not append:
            static_tables.drop(connection, table.node.id)
        static_tables.append(connection, table.node.id, pieces)
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
            table = dataclasses.replace(table, schema=Schema.parse(given).of_bytes)
            table_state.save(connection, table)
        return table


def _with_schema(context: Context, body: bytes, table: Table) -> Iterator[tuple[int, bytes]]:
    """Return the rows of a body as pieces of the table."""
    columns = table.schema.columns
    rows = read_body(context, body, columns, table).rows
    step = max(1, _PIECE_BYTES * rows.num_rows // max(1, rows.nbytes))
    for begin in range(0, rows.num_rows, step):
        piece = rows.slice(begin, step)
        yield piece.num_rows, write_rows([piece], columns, _BINARY)


def _without_schema(context: Context, body: bytes) -> Iterator[tuple[int, bytes]]:
    """Return rows of any columns as pieces of a table."""
    if context.input_format.name == "yson":
        steps = _listed_in_steps(body)
    else:
        values = read_json_values(body, context.input_format)
        steps = iter(lambda: list(itertools.islice(values, _STEP_ROWS)), [])
    for rows in steps:
        for row in rows:
            if not isinstance(row, Mapping):
                raise refused("A row is not a map", received=repr(row)[:100])
        if rows:
            yield len(rows), b"".join(documents.dumps(row, text=False) + b";" for row in rows)


def _listed_in_steps(fragment: bytes) -> Iterator[list[Any]]:
    """Return the values of a list fragment, some of them at a time, for they take much more memory than it does."""
    begin, size = 0, _PIECE_BYTES
    while begin < len(fragment):
        end = begin + size
        if end < len(fragment):
            # What looks like the end of a row may be inside of one: then this is no list fragment, and takes in more.
            found = fragment.rfind(_END_OF_ROW, begin, end)
            end = begin if found < 0 else found + len(_END_OF_ROW)
        try:
            yield _listed(fragment[begin:end])
        except documents.YsonError:
            if end >= len(fragment):
                raise
            size *= 2
            continue
        size = _PIECE_BYTES if end > begin else 2 * size
        begin = end


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
    if path.attributes.get("ranges"):
        raise refused("This endpoint reads ranges of static tables only", remedy="use select_rows")
    columns = [column for column in table.schema.columns if names is None or column.name in names]
    with context.cluster.database.read():
        source = source_of(context.cluster.database, table, context.cluster.name)
        count = 0

        def pages() -> Iterator[bytes]:
            nonlocal count
            for batch in source.scan([column.name for column in columns], []):
                count += batch.num_rows
                yield write_rows([batch], columns, context.output_format)

        pieces, size = kept_on_disk(pages())
    return Answer.streamed(pieces, size, on_disk=True, start_row_index=0, approximate_row_count=count)


def _read_static(context: Context, table: Table, path: YPath, names: set[str] | None) -> Answer:
    ranges = None if path.attributes.get("ranges") is None else _listed_in(path, "ranges")
    with context.cluster.database.read() as connection:
        sizes = static_tables.sizes(connection, table.node.id)
        rows = sum(count for _, count in sizes)

        @functools.lru_cache(maxsize=1)
        def piece(number: int) -> bytes:
            return static_tables.piece(connection, table.node.id, number)

        @functools.lru_cache(maxsize=1)
        def keys(number: int) -> pa.RecordBatch:
            return decode_rows(piece(number), table.schema.keys)

        def key_of(row: int) -> list[Any]:
            ((number, place, _),) = _parts(sizes, [(row, row + 1)])
            return [column[place].as_py() for column in keys(number).columns]

        if ranges is not None:
            ranges = KeyRanges(len(table.schema.keys), rows, key_of).by_number(ranges)
        spans = list(_spans(ranges, rows))
        pieces, size = kept_on_disk(
            _written(context.output_format, piece(number), first, end, table, names)
            for number, first, end in _parts(sizes, spans)
        )
    count = sum(end - begin for begin, end in spans)
    # Rows that are not there have no first one.
    first = {"start_row_index": next(begin for begin, end in spans if end > begin)} if count else {}
    return Answer.streamed(pieces, size, on_disk=True, approximate_row_count=count, **first)


def _parts(sizes: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Return which pieces, from which row of them on, and up to which, have the rows of spans."""
    begins = [0, *itertools.accumulate(rows for _, rows in sizes)]
    for begin, end in spans:
        for place in range(bisect.bisect_right(begins, begin) - 1, len(sizes)):
            if begins[place] >= end:
                break
            number, rows = sizes[place]
            yield number, max(0, begin - begins[place]), min(rows, end - begins[place])


def _written(form: Format, piece: bytes, first: int, end: int, table: Table, names: set[str] | None) -> bytes:
    """Return some rows of a piece as a client wants them, perhaps without some columns."""
    columns = [column for column in table.schema.columns if names is None or column.name in names]
    if columns:
        batch = decode_rows(piece, columns)
        return write_rows([batch.slice(first, end - first)], columns, form)
    rows = _listed(piece)[first:end]
    if names is not None:
        rows = [{name: value for name, value in row.items() if name in names} for row in rows]
    ending = b"\n" if form.name == "json" else b";\n" if form.text else b";"
    return b"".join(write_value(row, form) + ending for row in rows)


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
            "A limit of a range is a row number, or a key",
            received=repr(dict(limit))[:200],
            valid='[#10:#20], ["a":"b"]',
        )
    return int(index)
