"""Every response of the endpoint has the fields that the messages of the official SDKs require.

The numbers are those of the fields marked ``required`` in the messages of the SDKs in Go (1.7.17 and its
repository), Java (5.17.10), Python (6.1.0, 6.4.8), Node.js, PHP, C# and C++. They agree on all of them but one: the
messages in Java and Python lack field 4 of DescribeTableResponse. A client cannot parse a response without one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.operations import OPERATIONS
from headrace_tablestore.wire import errors, tunnel_pb2
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.plainbuffer.rows import encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, Marker, Row

REQUIRED: dict[str, tuple[int, ...]] = {
    "AddDefinedColumnResponse": (),
    "BatchGetRowResponse": (),
    "BatchWriteRowResponse": (),
    "BulkImportResponse": (1,),
    "CapacityUnit": (),
    "Channel": (1, 2, 3),
    "ChannelInfo": (1,),
    "CheckpointResponse": (),
    "ComputeSplitPointsBySizeResponse": (1,),
    "ConnectResponse": (1,),
    "ConsumedCapacity": (1,),
    "CreateTableResponse": (),
    "CreateTunnelResponse": (1,),
    "DefinedColumnSchema": (1, 2),
    "DeleteDefinedColumnResponse": (),
    "DeleteRowResponse": (1,),
    "DeleteTableResponse": (),
    "DeleteTunnelResponse": (),
    "DescribeTableResponse": (1, 2, 3, 4),
    "DescribeTunnelResponse": (1,),
    "Error": (1,),
    "GetCheckpointResponse": (1, 2),
    "GetRangeResponse": (1, 2),
    "GetRowResponse": (1, 2),
    "GetRpoResponse": (),
    "HeartbeatResponse": (),
    "ListSearchIndexResponse": (),
    "ListTableResponse": (),
    "ListTimeseriesTableResponse": (),
    "ListTunnelResponse": (),
    "PrimaryKeySchema": (1, 2),
    "PutRowResponse": (1,),
    "ReadRecordsResponse": (2,),
    "Record": (1, 2),
    "ReservedThroughputDetails": (1, 2),
    "RowInBatchGetRowResponse": (1,),
    "RowInBatchWriteRowResponse": (1,),
    "RowInBulkImportResponse": (1,),
    "ScheduleResponse": (),
    "ShutdownResponse": (),
    "SplitLocation": (1, 2),
    "StreamDetails": (1,),
    "StreamTunnelConfig": (),
    "TableInBatchGetRowResponse": (1,),
    "TableInBatchWriteRowResponse": (1,),
    "TableMeta": (1,),
    "TableOptions": (),
    "TunnelInfo": (1, 2, 3, 4, 5, 6),
    "UpdateRowResponse": (1,),
    "UpdateTableResponse": (1, 2),
}
# Optional fields that the Go SDK reads without checking their presence (api.go of its packages).
READ_ANYWAY = {
    "CapacityUnit": (1, 2),
    "Error": (2,),
    "TableOptions": (1, 2, 5),
    "UpdateTableResponse": (3,),
}
IGNORED = pb.Condition(row_existence=pb.IGNORE)


def row(number: Any, *cells: Cell) -> bytes:
    return encode_row(Row((("k", number),), cells))


def check(message: Message, seen: set[str]) -> None:
    """Assert that a message and its nested messages have all required fields."""
    name = message.DESCRIPTOR.name
    seen.add(name)
    fields = message.ListFields()
    present = {field.number for field, _ in fields}
    for number in (*REQUIRED[name], *READ_ANYWAY.get(name, ())):
        assert number in present, f"{name} lacks field {number}"
    for field, value in fields:
        if field.message_type is not None:
            for each in [value] if isinstance(value, Message) else value:
                check(each, seen)


class Caller:
    """Calls operations and checks their responses."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.seen: set[str] = set()
        self.called: set[str] = set()

    def __call__(self, path: str, **fields: Any) -> Any:
        operation = OPERATIONS[f"/{path}"]
        self.called.add(f"/{path}")
        answer = operation.handle(self.instance, operation.request(**fields))
        if isinstance(answer, tunnel_pb2.ReadRecordsPage):
            # The bytes, parsed as clients parse them.
            answer = tunnel_pb2.ReadRecordsResponse.FromString(answer.SerializeToString())
        check(answer, self.seen)
        return answer


@pytest.fixture
def call(tmp_path: Path) -> Caller:
    return Caller(Instance("shop", tmp_path / "shop"))


def use_tables(call: Caller) -> None:
    meta = {
        "table_name": "t",
        "primary_key": [{"name": "k", "type": pb.INTEGER}],
        "defined_column": [{"name": "d", "type": pb.DCT_STRING}],
    }
    stream = {"enable_stream": True, "expiration_time": 24}
    call("CreateTable", table_meta=meta, reserved_throughput={"capacity_unit": {}}, stream_spec=stream)
    call("AddDefinedColumn", table_name="t", columns=[{"name": "e", "type": pb.DCT_INTEGER}])
    call("DeleteDefinedColumn", table_name="t", columns=["e"])
    assert call("DescribeTable", table_name="t").table_status == pb.ACTIVE
    call("UpdateTable", table_name="t", table_options={"time_to_live": 86400})
    call("UpdateTable", table_name="t", stream_spec={"enable_stream": False})
    call("ListTable")
    call("ListSearchIndex", table_name="t")
    call("ListTimeseriesTable")
    call("ComputeSplitPointsBySize", table_name="t", split_size=1)


def use_rows(call: Caller) -> None:
    call("PutRow", table_name="t", row=row(1, Cell("d", "x")), condition=IGNORED)
    content = {"return_type": pb.RT_AFTER_MODIFY, "return_column_names": ["d"]}
    changed = row(1, Cell("d", "y"))
    call("UpdateRow", table_name="t", row_change=changed, condition=IGNORED, return_content=content)
    for key in (row(1), row(2)):
        call("GetRow", table_name="t", primary_key=key, max_versions=1)
    bounds = {"inclusive_start_primary_key": row(Marker.INF_MIN), "exclusive_end_primary_key": row(Marker.INF_MAX)}
    call("GetRange", table_name="t", direction=pb.FORWARD, max_versions=1, **bounds)
    call("GetRange", table_name="t", direction=pb.FORWARD, max_versions=1, limit=1, columns_to_get=["none"], **bounds)
    wrong = row("text")
    change = {"type": pb.PUT, "condition": IGNORED}
    changes = [{**change, "row_change": each} for each in (row(3), wrong)]
    call("BatchWriteRow", tables=[{"table_name": name, "rows": changes} for name in ("t", "absent")])
    keys = [row(1), row(2), wrong]
    call("BatchGetRow", tables=[{"table_name": n, "primary_key": keys, "max_versions": 1} for n in ("t", "absent")])
    rows = [{"type": pb.PUT, "row_change": each} for each in (row(4), wrong)]
    call("BulkImport", table_name="t", rows=rows)
    call("DeleteRow", table_name="t", primary_key=row(4), condition=IGNORED)


def use_tunnels(call: Caller) -> None:
    tunnel = {"table_name": "t", "tunnel_name": "tunnel", "tunnel_type": tunnel_pb2.BaseAndStream}
    id = call("tunnel/create", tunnel=tunnel).tunnel_id
    call("tunnel/list")
    client = call("tunnel/connect", tunnel_id=id).client_id
    channel = call("tunnel/heartbeat", tunnel_id=id, client_id=client).channels[0].channel_id
    place = {"tunnel_id": id, "client_id": client, "channel_id": channel}
    token = call("tunnel/getcheckpoint", **place).checkpoint
    page = call("tunnel/readrecords", token=token, **place)
    assert page.records
    call("tunnel/checkpoint", checkpoint=page.next_token, sequence_number=1, **place)
    assert call("tunnel/describe", table_name="t", tunnel_name="tunnel").channels
    for operation in ("getrpo", "getrpobyoffset"):
        call(f"tunnel/{operation}", tunnel_id=id)
    suspended = {"channel_id": channel, "version": 0, "status": tunnel_pb2.CLOSING}
    call("tunnel/schedule", tunnel_id=id, channels=[suspended])
    call("tunnel/shutdown", tunnel_id=id, client_id=client)
    call("tunnel/delete", table_name="t", tunnel_name="tunnel")


def test_every_response_has_the_fields_that_official_clients_require(call: Caller) -> None:
    use_tables(call)
    use_rows(call)
    use_tunnels(call)
    call("DeleteTable", table_name="t")
    check(pb.Error.FromString(errors.body("OTSServerBusy", "text")), call.seen)
    call.instance.store.close()
    assert call.called == set(OPERATIONS)
    assert call.seen == set(REQUIRED)
