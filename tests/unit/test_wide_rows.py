"""The work for rows grows with their number of columns, not with the square of that."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import headrace
from headrace.model.tables.change_columns import ChangeShape
from headrace.model.tables.schema import TableSchema
from headrace.ports import Store
from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.rows.single_rows import get_row, put_row, update_row
from headrace_tablestore.endpoint.tables.table_operations import create_table
from headrace_tablestore.format.columns import TablestoreShape
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.plainbuffer.decoding import decode_records
from headrace_tablestore.wire.plainbuffer.encoding import encode_puts
from headrace_tablestore.wire.plainbuffer.rows import encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, Row
from headrace_ytsaurus.wire.types import yt_columns
from headrace_ytsaurus.wire.yson.rows_decoding import decode_rows
from headrace_ytsaurus.wire.yson.rows_encoding import encode_rows

NARROW, WIDE = 30, 120
KINDS = ("double", "string", "array<long>", "boolean")
CELLS = (1.5, "x", [1, 2], True)
# Four times the columns are four times the work, less what does not depend on them; sixteen times if it is squared.
MOST = 5.0


class Faces:
    """What is done with rows of a number of columns, each a function of no arguments that is called in this order."""

    def __init__(self, width: int, path: Path) -> None:
        names = [f"c{number}" for number in range(width - 1)]
        self.columns = {"id": "long"} | {name: KINDS[place % 4] for place, name in enumerate(names)}
        self.row = {"id": 1} | {name: CELLS[place % 4] for place, name in enumerate(names)}
        # Of types that Tablestore has, too.
        self.flat = TableSchema.of({name: kind for name, kind in self.columns.items() if kind[0] != "a"}, "id")
        batch = pa.RecordBatch.from_pylist([self.row, self.row | {"id": 2}], schema=self.flat.arrow)
        self.batch = batch
        self.store = headrace.open(path / f"shop{width}", create=True)
        self.instance = Instance("shop", path / f"instance{width}")

    def steps(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        yield from self._table(self.store)
        yield from self._queue(self.store)
        yield from self._wire()
        yield from self._endpoint()

    def close(self) -> None:
        self.store.close()
        self.instance.store.close()

    def _table(self, store: Store) -> Iterator[tuple[str, Callable[[], Any]]]:
        rows = [self.row, self.row | {"id": 2}]
        yield "create_table", lambda: store.create_table("t", self.columns, "id", pre_images=True)
        table = store.table("t")
        tunnel = store.create_tunnel("t", "changes", kind="Stream")
        yield "put", lambda: table.put(rows)
        yield "put one", lambda: table.put(rows[0])
        yield "get", lambda: table.get({"id": 1})
        yield "scan", lambda: table.scan(where={"c1": "x"}).read_all()
        yield "update", lambda: table.update(rows)
        yield "update a cell", lambda: table.update({"id": 1, "c1": "y"})
        yield "delete", lambda: table.delete({"id": 1})
        yield "describe", lambda: table.describe()
        ((channel, position),) = tunnel.start_positions(headrace.model.tunnels.values.Start.parse("earliest")).items()
        yield "read changes", lambda: tunnel.read(channel, position, 100)
        changes = tunnel.read(channel, position, 100).changes
        schema = table.schema
        wanted = [*schema.names, "_change_type"]
        yield "shape changes", lambda: ChangeShape(schema, wanted).rows(changes)
        yield "shape records", lambda: TablestoreShape(schema, schema.arrow).rows(changes)
        yield "add a column", lambda: table.add_columns({"more": "string"})

    def _queue(self, store: Store) -> Iterator[tuple[str, Callable[[], Any]]]:
        yield "create_queue", lambda: store.create_queue("q", {"$timestamp": "timestamp", **self.columns})
        queue = store.queue("q")
        yield "append", lambda: queue.append([self.row, self.row])
        yield "read", lambda: queue.read(0, 0)

    def _wire(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        yield "encode PlainBuffer", lambda: encode_puts(self.batch, self.flat)
        records = encode_puts(self.batch, self.flat)
        yield "decode PlainBuffer", lambda: decode_records(records, self.flat)
        # Rows that have no cell in common, by turns.
        ragged = pa.RecordBatch.from_pylist(
            [
                {name: value for place, (name, value) in enumerate(row.items()) if not place or place % 5 == part}
                for part, row in enumerate(self.batch.to_pylist() * 2)
            ],
            schema=self.flat.changes,
        )
        unlike = encode_puts(ragged, self.flat)
        yield "decode unlike PlainBuffer", lambda: decode_records(unlike, self.flat)
        columns = yt_columns(self.flat.columns, ["id"])
        for text in (True, False):
            yield f"encode YSON, text {text}", lambda text=text: encode_rows(self.batch, columns, text=text)  # type: ignore[misc]
            data = encode_rows(self.batch, columns, text=text)
            yield f"decode YSON, text {text}", lambda data=data: decode_rows(data, columns)  # type: ignore[misc]

    def _endpoint(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        request = pb.CreateTableRequest(table_options=pb.TableOptions())
        request.table_meta.table_name = "t"
        request.table_meta.primary_key.add(name="k", type=pb.INTEGER)
        request.reserved_throughput.capacity_unit.read = 0
        create_table(self.instance, request)
        key = (("k", 1),)
        cells = tuple(Cell(f"c{number}", number if number % 2 else "x") for number in range(len(self.columns)))
        condition = pb.Condition(row_existence=pb.IGNORE)
        put = pb.PutRowRequest(table_name="t", row=encode_row(Row(key, cells)), condition=condition)
        yield "PutRow of new columns", lambda: put_row(self.instance, put)
        yield "PutRow", lambda: put_row(self.instance, put)
        update = pb.UpdateRowRequest(table_name="t", row_change=put.row, condition=condition)
        yield "UpdateRow", lambda: update_row(self.instance, update)
        get = pb.GetRowRequest(table_name="t", primary_key=encode_row(Row(key)), max_versions=1)
        yield "GetRow", lambda: get_row(self.instance, get)


def work_of(step: Callable[[], Any]) -> int:
    """Return how many instructions of Python's a call takes, calls of functions in C among them."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(before)
    return count


def test_work_is_proportional_to_the_number_of_columns(tmp_path: Path) -> None:
    work: dict[int, dict[str, int]] = {}
    # Python 3.13 counts the instructions of a function from its second call on. Equal schemas are cached.
    for width in (NARROW // 2, NARROW, WIDE):
        faces = Faces(width, tmp_path)
        work[width] = {name: work_of(step) for name, step in faces.steps()}
        faces.close()
    ratios = {name: work[WIDE][name] / work[NARROW][name] for name in work[NARROW]}

    assert not {name: ratio for name, ratio in ratios.items() if ratio > MOST}
