"""The operations of the endpoint: the message and the handler of each path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.rows import batches, ranges, single_rows
from headrace_tablestore.endpoint.tables import table_operations as tables
from headrace_tablestore.endpoint.tunnels import clients
from headrace_tablestore.endpoint.tunnels import tunnel_operations as tunnels
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire import tunnel_pb2


@dataclass(frozen=True)
class Operation:
    """An operation.

    Attributes:
        request: the type of the message in a request's body.
        handle: returns the response of an instance to a request. It runs in a thread.
            `headrace_tablestore.endpoint.errors.service_error` translates its errors.
    """

    request: type[Message]
    handle: Callable[[Instance, Any], Message]


_STREAMS = "the endpoint's streams are read through tunnels: create one (/tunnel/create) and read its channels"
REFUSED: Mapping[str, str] = dict.fromkeys(
    ("/ListStream", "/DescribeStream", "/GetShardIterator", "/GetStreamRecord"), _STREAMS
)
"""Operations that only the service has, and the remedy for each."""

OPERATIONS: Mapping[str, Operation] = {
    "/CreateTable": Operation(pb.CreateTableRequest, tables.create_table),
    "/ListTable": Operation(pb.ListTableRequest, tables.list_table),
    "/DescribeTable": Operation(pb.DescribeTableRequest, tables.describe_table),
    "/UpdateTable": Operation(pb.UpdateTableRequest, tables.update_table),
    "/DeleteTable": Operation(pb.DeleteTableRequest, tables.delete_table),
    "/AddDefinedColumn": Operation(pb.AddDefinedColumnRequest, tables.add_defined_columns),
    "/DeleteDefinedColumn": Operation(pb.DeleteDefinedColumnRequest, tables.delete_defined_columns),
    "/ListSearchIndex": Operation(pb.ListSearchIndexRequest, tables.list_search_index),
    "/ListTimeseriesTable": Operation(pb.ListTimeseriesTableRequest, tables.list_timeseries_table),
    "/ComputeSplitPointsBySize": Operation(pb.ComputeSplitPointsBySizeRequest, tables.compute_split_points_by_size),
    "/GetRow": Operation(pb.GetRowRequest, single_rows.get_row),
    "/PutRow": Operation(pb.PutRowRequest, single_rows.put_row),
    "/UpdateRow": Operation(pb.UpdateRowRequest, single_rows.update_row),
    "/DeleteRow": Operation(pb.DeleteRowRequest, single_rows.delete_row),
    "/BatchGetRow": Operation(pb.BatchGetRowRequest, batches.batch_get_row),
    "/BatchWriteRow": Operation(pb.BatchWriteRowRequest, batches.batch_write_row),
    "/BulkImport": Operation(pb.BulkImportRequest, batches.bulk_import),
    "/GetRange": Operation(pb.GetRangeRequest, ranges.get_range),
    "/tunnel/create": Operation(tunnel_pb2.CreateTunnelRequest, tunnels.create_tunnel),
    "/tunnel/delete": Operation(tunnel_pb2.DeleteTunnelRequest, tunnels.delete_tunnel),
    "/tunnel/list": Operation(tunnel_pb2.ListTunnelRequest, tunnels.list_tunnels),
    "/tunnel/describe": Operation(tunnel_pb2.DescribeTunnelRequest, tunnels.describe_tunnel),
    "/tunnel/getrpo": Operation(tunnel_pb2.GetRpoRequest, tunnels.get_rpo),
    "/tunnel/getrpobyoffset": Operation(tunnel_pb2.GetRpoRequest, tunnels.get_rpo),
    "/tunnel/schedule": Operation(tunnel_pb2.ScheduleRequest, tunnels.schedule),
    "/tunnel/connect": Operation(tunnel_pb2.ConnectRequest, clients.connect),
    "/tunnel/heartbeat": Operation(tunnel_pb2.HeartbeatRequest, clients.heartbeat),
    "/tunnel/shutdown": Operation(tunnel_pb2.ShutdownRequest, clients.shutdown),
    "/tunnel/getcheckpoint": Operation(tunnel_pb2.GetCheckpointRequest, clients.get_checkpoint),
    "/tunnel/readrecords": Operation(tunnel_pb2.ReadRecordsRequest, clients.read_records),
    "/tunnel/checkpoint": Operation(tunnel_pb2.CheckpointRequest, clients.checkpoint),
}
