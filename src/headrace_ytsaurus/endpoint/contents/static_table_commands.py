"""The commands that write static tables, and read static and dynamic ones."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import apsw

from headrace_ytsaurus.endpoint.contents import sort_order
from headrace_ytsaurus.endpoint.contents.key_ranges import KeyRanges
from headrace_ytsaurus.endpoint.contents.uploads import Upload, check_keys, upload_of
from headrace_ytsaurus.endpoint.context import Answer, Context
from headrace_ytsaurus.endpoint.cypress.node import Node
from headrace_ytsaurus.endpoint.cypress.node_commands import chain_of
from headrace_ytsaurus.endpoint.cypress.operations import make_node
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.formats import YSON, Format, read_json_values, read_rows, write_items, write_rows
from headrace_ytsaurus.endpoint.http.response_buffers import kept_on_disk
from headrace_ytsaurus.endpoint.parameters import Parameters, number_of
from headrace_ytsaurus.endpoint.storage import static_rows as static_tables
from headrace_ytsaurus.endpoint.storage.part_lists import ContentPart
from headrace_ytsaurus.endpoint.tables import state as table_state
from headrace_ytsaurus.endpoint.tables.layout import require_values
from headrace_ytsaurus.endpoint.tables.nodes import TABLE, set_schema
from headrace_ytsaurus.endpoint.tables.row_sources import source_of
from headrace_ytsaurus.endpoint.tables.state import Schema, Table, TableKind, find_table
from headrace_ytsaurus.endpoint.tables.tablets import plain_key
from headrace_ytsaurus.endpoint.values import names_of
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.paths import YPath
from headrace_ytsaurus.wire.yson import documents
from headrace_ytsaurus.wire.yson.rows_decoding import decode_rows
from headrace_ytsaurus.wire.yson.scalars import as_number

DEFAULT_ROW_BYTES = 16 << 20
"""The maximum weight of a row, unless the writer sets another."""
MAX_ROW_BYTES = 128 << 20
"""The maximum that a writer can set."""
_NO_SCHEMA = Schema((), strict=False).of_bytes
_PIECE_BYTES = 1 << 20
_STEP_ROWS = 1000
_NOT_READ = ("rename_columns", "transaction_id")
_END_OF_ROW = b"};"


def _transaction(parameters: Parameters) -> str | None:
    return parameters.text("transaction_id", None)  # type: ignore[no-any-return]


def write_table(context: Context, parameters: Parameters, body: bytes) -> None:
    """Replace the rows of a static table, or append to them (``append``). A missing table is created."""
    path: YPath = parameters.path()
    with context.database.read() as connection:
        node = _found(context, parameters, path)
        table = Table(Node("", TABLE.name, path.text), TableKind.STATIC, _NO_SCHEMA, ())
        if node is not None:
            table = static_table(connection, node)
        upload = upload_of(path, table.schema)
        if node is not None:
            context.cypress.locks.check(node.chain, node.id, node.path, upload.lock)
    expected, pieces = upload.schema, _pieces(context.input_format, body, table, upload.schema)
    check_row_weights(parameters, pieces)
    with context.database.write() as connection:
        table = static_table(connection, _found(context, parameters, path) or _made(context, parameters, path))
        upload = upload_of(path, table.schema)
        if upload.schema != expected:
            # The table has been altered since the first check.
            pieces = _pieces(context.input_format, body, table, upload.schema)
        context.cypress.locks.need(table.node.chain, table.node.id, table.node.path, upload.lock)
        _put(context, connection, table, upload, pieces)


def check_row_weights(parameters: Parameters, pieces: Sequence[tuple[int, bytes]]) -> None:
    """Raise an error if a row of a request is too long (``max_row_weight`` of ``table_writer``).

    Args:
        pieces: for each, the number of its rows, and the rows in YSON.
    """
    weight = parameters.mapping("table_writer", {}).get("max_row_weight", DEFAULT_ROW_BYTES)
    most = number_of(weight, "max_row_weight of /table_writer", least=1, most=MAX_ROW_BYTES)
    for _, data in pieces:
        if len(data) <= most:
            continue
        longest = max(sum(map(_weight, row.values())) for row in documents.load_fragment(data))
        if longest > most:
            raise YtError(
                Code.ROW_WEIGHT_LIMIT_EXCEEDED,
                "Row weight is too large",
                received=f"{longest} bytes",
                valid=f"at most {most}",
                remedy=f"set max_row_weight of table_writer, at most {MAX_ROW_BYTES}",
            )


def _weight(value: object) -> int:
    return len(value) if isinstance(value, bytes) else len(documents.dumps(value, text=False))


def _found(context: Context, parameters: Parameters, path: YPath) -> Node | None:
    """Return the node to write to, None if it can be created."""
    found = context.cypress.look(chain_of(context.transactions, parameters), path.node)
    if not found.rest:
        return found.node
    if len(found.rest) == 1 and found.node.has_children:
        return None
    raise context.cypress.not_found(path.node, found)


def _made(context: Context, parameters: Parameters, path: YPath) -> Node:
    found = context.cypress.look(chain_of(context.transactions, parameters), path.node)
    attributes = {} if "schema" not in path.attributes else {"schema": path.attributes["schema"]}
    return make_node(context, found.node, found.rest[0], TABLE, attributes)


def static_table(connection: apsw.Connection, node: Node) -> Table:
    """Return the static table of a node, or raise an error."""
    table = table_state.load(connection, node)
    if table.kind is not TableKind.STATIC:
        raise refused(f"{table.name} is dynamic", remedy="write it with insert_rows")
    return table


def _put(
    context: Context, connection: apsw.Connection, table: Table, upload: Upload, pieces: Sequence[tuple[int, bytes]]
) -> None:
    """Write pieces of rows to a table that the transaction has locked."""
    contents, node = context.cluster.contents, table.node
    parts = contents.parts(node.chain, node.id) if upload.append and upload.schema.key_names else []
    if parts:
        check_keys(upload, table.schema)
        if pieces:
            last = static_tables.piece(connection, parts[-1])
            _check_order(upload.schema, last, parts[-1].count - 1, pieces[0][1])
    if upload.schema != table.schema:
        set_schema(context.cypress, dataclasses.replace(table, schema=upload.schema))
    write = contents.append if upload.append else contents.replace
    write(node.chain, node.id, static_tables.store(connection, pieces))
    context.cypress.touch(context.now, node)


def check_following(context: Context, schema: Schema, tables: Sequence[Table]) -> None:
    """Raise an error unless the concatenated rows of sorted tables have the sort order of a schema."""
    contents = context.cluster.contents
    found = [contents.parts(table.node.chain, table.node.id) for table in tables]
    with context.database.read() as connection:
        for before, after in itertools.pairwise(parts for parts in found if parts):
            last, first = (static_tables.piece(connection, part) for part in (before[-1], after[0]))
            _check_order(schema, last, before[-1].count - 1, first)


def _check_order(schema: Schema, last: bytes, row: int, first: bytes) -> None:
    """Raise an error unless the first row of a piece can follow the last row of another one."""
    if schema.columns:
        pair = [decode_rows(last, schema.columns).slice(row, 1), decode_rows(first, schema.columns).slice(0, 1)]
        sort_order.check_batches(pair, schema.keys, unique=schema.unique_keys)
    else:
        rows = (_listed(last)[row], _listed(first)[0])
        sort_order.check_keys(sort_order.key_of(each, schema.key_names) for each in rows)


def _pieces(input_format: Format, body: bytes, table: Table, schema: Schema) -> list[tuple[int, bytes]]:
    """Return the rows of a body as pieces for a table.

    Raises:
        YtError: 301 or 306, the rows are not in the order of the key columns.
    """
    if schema.columns:
        return list(_with_schema(input_format, body, dataclasses.replace(table, schema=schema)))
    return list(_without_schema(input_format, body, schema.sorted_by))


def _with_schema(input_format: Format, body: bytes, table: Table) -> Iterator[tuple[int, bytes]]:
    """Return the rows of a body as pieces of the table."""
    columns = table.schema.columns
    rows = read_rows(body, input_format, columns, table.name).rows
    require_values(columns, rows)
    if table.schema.keys and rows.num_rows:
        sort_order.check_batches([rows], table.schema.keys, unique=table.schema.unique_keys)
    step = max(1, _PIECE_BYTES * rows.num_rows // max(1, rows.nbytes))
    for begin in range(0, rows.num_rows, step):
        piece = rows.slice(begin, step)
        yield piece.num_rows, write_rows([piece], columns, YSON)


def _without_schema(input_format: Format, body: bytes, sorted_by: Sequence[str]) -> Iterator[tuple[int, bytes]]:
    """Return rows with any columns as pieces of a table."""
    last: list[sort_order.Key] = []
    if input_format.name == "yson":
        steps = _listed_in_steps(body)
    else:
        values = read_json_values(body, input_format)
        steps = iter(lambda: list(itertools.islice(values, _STEP_ROWS)), [])
    for rows in steps:
        for row in rows:
            if not isinstance(row, Mapping):
                raise refused("A row is not a map", received=repr(row)[:100])
        if sorted_by and rows:
            key = sort_order.check_keys(itertools.chain(last, (sort_order.key_of(row, sorted_by) for row in rows)))
            last = [] if key is None else [key]
        if rows:
            yield len(rows), b"".join(documents.dumps(row, text=False) + b";" for row in rows)


def _listed_in_steps(fragment: bytes) -> Iterator[list[Any]]:
    """Return the values of a list fragment in groups, because they use much more memory than the fragment."""
    begin, size = 0, _PIECE_BYTES
    while begin < len(fragment):
        end = begin + size
        if end < len(fragment):
            # The bytes of a row's end may also be inside of a row. Then parsing fails, and is tried with more bytes.
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
    """Return the values of a list fragment; strings are texts."""
    found: list[Any] = documents.loads(b"[" + fragment + b"]")
    return found


def read_table(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the rows of a table, or of the ranges and columns in the path."""
    path: YPath = parameters.path()
    for name in _NOT_READ:
        if name in path.attributes:
            raise refused("This endpoint does not have the attribute of a path", received=name)
    table = find_table(context.cypress, path, _transaction(parameters))
    wanted = path.attributes.get("columns")
    names = None if wanted is None else set(names_of(_listed_in(path, "columns")))
    if table.kind is TableKind.STATIC:
        return _read_static(context, table, path, names, empty=parameters.flag("start_row_index_only"))
    if path.attributes.get("ranges"):
        raise refused("This endpoint reads ranges of static tables only", remedy="use select_rows")
    columns = [column for column in table.schema.columns if names is None or column.name in names]
    with context.database.read():
        source = source_of(context.database, table, context.cluster.name)
        count = 0

        def pages() -> Iterator[bytes]:
            nonlocal count
            for batch in source.scan([column.name for column in columns], []):
                count += batch.num_rows
                yield write_rows([batch], columns, context.output_format)

        pieces, size = kept_on_disk(pages())
    return Answer.streamed(pieces, size, on_disk=True, start_row_index=0, approximate_row_count=count)


def _read_static(context: Context, table: Table, path: YPath, names: set[str] | None, *, empty: bool) -> Answer:
    """Return the rows of a static table, or with ``empty`` only the response parameters."""
    ranges = None if path.attributes.get("ranges") is None else _listed_in(path, "ranges")
    with context.database.read() as connection:
        parts = context.cluster.contents.parts(table.node.chain, table.node.id)
        rows = sum(part.count for part in parts)

        @functools.lru_cache(maxsize=1)
        def piece(part: ContentPart) -> bytes:
            return static_tables.piece(connection, part)

        @functools.lru_cache(maxsize=1)
        def keys(part: ContentPart) -> Sequence[Sequence[Any]]:
            if table.schema.keys:
                return [column.to_pylist() for column in decode_rows(piece(part), table.schema.keys).columns]
            found = _listed(piece(part))
            return [[plain_key(row.get(name)) for row in found] for name in table.schema.key_names]

        def key_of(row: int) -> list[Any]:
            ((part, place, _),) = _parts(parts, [(row, row + 1)])
            return [column[place] for column in keys(part)]

        if ranges is not None:
            ranges = KeyRanges(len(table.schema.key_names), rows, key_of).by_number(ranges)
        spans = list(_spans(ranges, rows))
        pieces, size = kept_on_disk(
            _written(context.output_format, piece(part), first, end, table, names)
            for part, first, end in _parts(parts, [] if empty else spans)
        )
    count = sum(end - begin for begin, end in spans)
    # Without rows there is no first row.
    first = {"start_row_index": next(begin for begin, end in spans if end > begin)} if count else {}
    return Answer.streamed(pieces, size, on_disk=True, approximate_row_count=count, **first)


def _parts(parts: Sequence[ContentPart], spans: Sequence[tuple[int, int]]) -> Iterator[tuple[ContentPart, int, int]]:
    """Return the pieces with the rows of spans, each with its first row and the end."""
    begins = [0, *itertools.accumulate(part.count for part in parts)]
    for begin, end in spans:
        for place in range(bisect.bisect_right(begins, begin) - 1, len(parts)):
            if begins[place] >= end:
                break
            part = parts[place]
            yield part, max(0, begin - begins[place]), min(part.count, end - begins[place])


def _written(form: Format, piece: bytes, first: int, end: int, table: Table, names: set[str] | None) -> bytes:
    """Return rows of a piece in a format, with the selected columns."""
    columns = [column for column in table.schema.columns if names is None or column.name in names]
    if columns:
        batch = decode_rows(piece, columns)
        return write_rows([batch.slice(first, end - first)], columns, form)
    rows = _listed(piece)[first:end]
    if names is not None:
        rows = [{name: value for name, value in row.items() if name in names} for row in rows]
    return write_items(rows, form)


def _listed_in(path: YPath, name: str) -> list[Any]:
    """Return a list from the attributes of a path."""
    found = path.attributes[name]
    if not isinstance(found, list):
        raise refused(f"The attribute {name} of a path is not a list", received=repr(found)[:200])
    return found


def _spans(ranges: Sequence[Any] | None, count: int) -> Iterator[tuple[int, int]]:
    """Return first row and end of each range of a path."""
    if ranges is None:
        yield 0, count
        return
    for each in ranges:
        if not isinstance(each, Mapping):
            raise refused("A range of a path is not a map", received=repr(each)[:200])
        bounds = {"lower_limit": 0, "upper_limit": count}
        if "exact" in each:
            row = _row_index(each["exact"])
            yield min(row, count), min(row + 1, count)
            continue
        for side in bounds:
            # Go's client writes an absent limit as an empty map.
            if side in each and each[side] != {}:
                bounds[side] = _row_index(each[side])
        first = min(bounds["lower_limit"], count)
        yield first, max(first, min(bounds["upper_limit"], count))


def _row_index(limit: Any) -> int:
    index = limit.get("row_index") if isinstance(limit, Mapping) else None
    found = as_number(index)
    if found is None or len(limit) != 1:
        raise refused(
            "A limit of a range must be a row number, or a key",
            received=repr(limit)[:200],
            valid='[#10:#20], ["a":"b"]',
        )
    return found
