"""Tablestore in memory, for tests of the client's side without a server: rows of tables, and channels of one tunnel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from headrace.errors import DataLossError, NotFoundError
from headrace_tablestore.store.connection import TablestoreConnection
from headrace_tablestore.store.tunnels.service import TunnelService
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire import tunnel_pb2
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.plainbuffer.rows import decode_row, encode_row, encode_rows
from headrace_tablestore.wire.plainbuffer.values import Cell, CellOp, Marker, Row, SequenceInfo
from headrace_tablestore.wire.tokens import FINISHED_TOKEN, BaseToken, StreamToken, decode_token, encode_token


class MemoryTables(TablestoreConnection):
    """The operations that the meta table needs, over dictionaries. ``calls`` are the names of the called operations.

    Args:
        page_rows: maximum number of rows in a response of GetRange.
    """

    def __init__(self, *, page_rows: int = 3) -> None:
        self.tables: dict[str, dict[tuple[Any, ...], Row]] = {}
        self.options: dict[str, pb.TableOptions] = {}
        self.refused: set[str] = set()
        """Values of a key's last column that BatchWriteRow refuses."""
        self.calls: list[str] = []
        self._page_rows = page_rows

    def call(self, operation: str, request: Message, response_type: Any, *, repeatable: bool | None = None) -> Any:
        self.calls.append(operation)
        return getattr(self, f"_{operation}")(request)

    def _rows(self, table: str) -> dict[tuple[Any, ...], Row]:
        if table not in self.tables:
            raise NotFoundError("Requested table does not exist")
        return self.tables[table]

    def _CreateTable(self, request: pb.CreateTableRequest) -> pb.CreateTableResponse:
        self.tables[request.table_meta.table_name] = {}
        self.options[request.table_meta.table_name] = request.table_options
        return pb.CreateTableResponse()

    def _DescribeTable(self, request: pb.DescribeTableRequest) -> pb.DescribeTableResponse:
        self._rows(request.table_name)
        return pb.DescribeTableResponse(table_options=self.options[request.table_name])

    def _PutRow(self, request: pb.PutRowRequest) -> pb.PutRowResponse:
        rows, row = self._rows(request.table_name), decode_row(request.row)
        if request.condition.row_existence == pb.EXPECT_NOT_EXIST and _values(row) in rows:
            raise ServiceError("OTSConditionCheckFail", "Condition check failed.")
        rows[_values(row)] = row
        return pb.PutRowResponse()

    def _BatchWriteRow(self, request: pb.BatchWriteRowRequest) -> pb.BatchWriteRowResponse:
        answer = pb.BatchWriteRowResponse()
        for table in request.tables:
            rows, results = self.tables.get(table.table_name), answer.tables.add(table_name=table.table_name)
            for change in table.rows:
                if rows is None:
                    results.rows.add(is_ok=False, error=pb.Error(code="OTSObjectNotExist", message="no table"))
                    continue
                row = decode_row(change.row_change)
                if _values(row)[-1] in self.refused:
                    results.rows.add(is_ok=False, error=pb.Error(code="OTSOutOfRowSizeLimit", message="too large"))
                    continue
                if change.type == pb.DELETE:
                    rows.pop(_values(row), None)
                else:
                    rows[_values(row)] = row
                results.rows.add(is_ok=True)
        return answer

    def _GetRow(self, request: pb.GetRowRequest) -> pb.GetRowResponse:
        row = self._rows(request.table_name).get(_values(decode_row(request.primary_key)))
        return pb.GetRowResponse(row=b"" if row is None else encode_row(_selected(row, request.columns_to_get)))

    def _GetRange(self, request: pb.GetRangeRequest) -> pb.GetRangeResponse:
        low, high = decode_row(request.inclusive_start_primary_key), decode_row(request.exclusive_end_primary_key)
        rows = self._rows(request.table_name)
        found = [rows[key] for key in sorted(rows) if _order(low) <= _order(rows[key]) < _order(high)]
        answer = pb.GetRangeResponse(
            rows=encode_rows(_selected(row, request.columns_to_get) for row in found[: self._page_rows])
        )
        if len(found) > self._page_rows:
            answer.next_start_primary_key = encode_row(Row(found[self._page_rows].key))
        return answer


def _values(row: Row) -> tuple[Any, ...]:
    return tuple(value for _, value in row.key)


def _order(row: Row) -> tuple[tuple[int, Any], ...]:
    ranks = {Marker.INF_MIN: -1, Marker.INF_MAX: 1}
    return tuple((ranks[v], "") if isinstance(v, Marker) else (0, v) for v in _values(row))


def _selected(row: Row, columns: Sequence[str]) -> Row:
    return Row(row.key, tuple(cell for cell in row.cells if not columns or cell.name in columns))


Change = tuple["tunnel_pb2.ActionType", str, dict[str, Any] | None, int]
"""ActionType, key, cells (a None deletes the cell), and time in µs."""


class MemoryTunnel(TunnelService):
    """The calls of one tunnel over lists of changes.

    Args:
        page_rows: maximum number of records in a page.
        says_more: whether pages report that more records follow.
    """

    id = "tunnel-1"

    def __init__(self, *, page_rows: int = 3, says_more: bool = True) -> None:
        self.channels: dict[str, list[Change]] = {}
        self.status: dict[str, str] = {}
        self.closed: set[str] = set()
        self.checkpoints: dict[str, str] = {}
        self.trimmed: dict[str, int] = {}
        self.calls: list[tuple[str, ...]] = []
        self.page_rows = page_rows
        self.says_more = says_more
        self.dropped = False

    def add(self, channel: str, *, status: str = "OPEN") -> str:
        """Add a channel; its id says whether it is base data."""
        self.channels[channel] = []
        self.status[channel] = status
        self.checkpoints[channel] = self.token(channel, 0)
        return channel

    def append(self, channel: str, *changes: Change) -> None:
        self.channels[channel] += changes

    def token(self, channel: str, row: int) -> str:
        if channel.startswith("BaseData"):
            return encode_token(BaseToken(encode_row(Row((("row", row),)))))
        return encode_token(StreamToken(f"{channel}:{row}"))

    def counted(self, call: str) -> int:
        """Return the number of calls of an operation."""
        return sum(made[0] == call for made in self.calls)

    @property
    def info(self) -> tunnel_pb2.TunnelInfo:
        return tunnel_pb2.TunnelInfo(
            tunnel_id=self.id,
            tunnel_type="BaseAndStream",
            table_name="orders",
            instance_name="shop",
            stream_id="stream",
            stage="ProcessStream",
            tunnel_name="changes",
            create_time=1_700_000_000_000_000_000,
        )

    def describe(self, table: str, name: str) -> tunnel_pb2.DescribeTunnelResponse:
        self.calls.append(("describe",))
        if self.dropped:
            raise NotFoundError("the tunnel does not exist")
        return tunnel_pb2.DescribeTunnelResponse(
            tunnel=self.info,
            channels=[
                tunnel_pb2.ChannelInfo(
                    channel_id=channel,
                    channel_type="BaseData" if channel.startswith("BaseData") else "Stream",
                    channel_status=self.status[channel],
                )
                for channel in self.channels
            ],
        )

    def get_checkpoint(self, tunnel: str, client: str, channel: str) -> tuple[str, int]:
        self.calls.append(("get_checkpoint", client, channel))
        return self.checkpoints[channel], 0

    def checkpoint(self, tunnel: str, client: str, channel: str, token: str, sequence: int) -> None:
        self.calls.append(("checkpoint", client, channel, token, str(sequence)))
        if channel not in self.channels:
            raise ServiceError("OTSParameterInvalid", "no such channel")
        self.checkpoints[channel] = token
        if token == FINISHED_TOKEN:
            self.status[channel] = "TERMINATED"

    def read_records(self, tunnel: str, client: str, channel: str, token: str) -> tunnel_pb2.ReadRecordsPage:
        self.calls.append(("read_records", client, channel, token))
        if channel not in self.channels:
            raise ServiceError("OTSParameterInvalid", "no such channel")
        first = self._row(token)
        if first < self.trimmed.get(channel, 0):
            raise DataLossError("Requested stream data is already trimmed or does not exist")
        changes, base = self.channels[channel], channel.startswith("BaseData")
        end = min(first + self.page_rows, len(changes))
        finished = end == len(changes) and (base or channel in self.closed)
        answer = tunnel_pb2.ReadRecordsPage(
            records=[
                tunnel_pb2.Record(action_type=change[0], record=_record(change, number, base=base)).SerializeToString()
                for number, change in enumerate(changes[first:end], first)
            ],
            next_token=FINISHED_TOKEN if finished else self.token(channel, end),
        )
        if self.says_more:
            answer.may_more_record = end < len(changes)
        return answer

    def _row(self, token: str) -> int:
        decoded = decode_token(token)
        if isinstance(decoded, BaseToken):
            ((_, row),) = decode_row(decoded.primary_key).key
            assert isinstance(row, int)
            return row
        return int(decoded.iterator.rpartition(":")[2])


def _record(change: Change, number: int, *, base: bool) -> bytes:
    _, key, cells, time = change
    ms = time // 1000
    return encode_row(
        Row(
            (("id", key),),
            tuple(
                Cell(name, op=CellOp.DELETE_ALL) if value is None else Cell(name, value, timestamp=ms)
                for name, value in (cells or {}).items()
            ),
            sequence=None if base else SequenceInfo(0, time, number),
        )
    )
