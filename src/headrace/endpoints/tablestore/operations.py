"""Which operations the endpoint has: from the path of a request to what does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from headrace.endpoints.tablestore.instances import Instance
from headrace.endpoints.tablestore.rows import batches, ranges, single_rows
from headrace.endpoints.tablestore.tables import table_operations
from headrace.endpoints.tablestore.tunnels import clients, tunnel_operations
from headrace.wire.tablestore import table_pb2 as pb
from headrace.wire.tablestore import tunnel_pb2


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        request: the message that a request's body holds.
        handle: called in a thread with the instance and the request; returns the answer, or raises an error of which
            `headrace.endpoints.tablestore.errors.service_error` knows what the client is told.
    """

    request: type[Message]
    handle: Callable[[Instance, Any], Message]


_STREAMS = "streams are read through tunnels here: create one (/tunnel/create) and read its channels"
REFUSED: Mapping[str, str] = dict.fromkeys(
    ("/ListStream", "/DescribeStream", "/GetShardIterator", "/GetStreamRecord"), _STREAMS
)
"""Operations that the service has and the endpoint has not: what to do instead."""

OPERATIONS: Mapping[str, Operation] = {
    "/CreateTable": Operation(pb.CreateTableRequest, table_operations.create_table),
    "/ListTable": Operation(pb.ListTableRequest, table_operations.list_table),
    "/DescribeTable": Operation(pb.DescribeTableRequest, table_operations.describe_table),
    "/UpdateTable": Operation(pb.UpdateTableRequest, table_operations.update_table),
    "/DeleteTable": Operation(pb.DeleteTableRequest, table_operations.delete_table),
    "/AddDefinedColumn": Operation(pb.AddDefinedColumnRequest, table_operations.add_defined_columns),
    "/DeleteDefinedColumn": Operation(pb.DeleteDefinedColumnRequest, table_operations.delete_defined_columns),
    "/ListSearchIndex": Operation(pb.ListSearchIndexRequest, table_operations.list_search_index),
    "/ListTimeseriesTable": Operation(pb.ListTimeseriesTableRequest, table_operations.list_timeseries_table),
    "/ComputeSplitPointsBySize": Operation(
        pb.ComputeSplitPointsBySizeRequest, table_operations.compute_split_points_by_size
    ),
    "/GetRow": Operation(pb.GetRowRequest, single_rows.get_row),
    "/PutRow": Operation(pb.PutRowRequest, single_rows.put_row),
    "/UpdateRow": Operation(pb.UpdateRowRequest, single_rows.update_row),
    "/DeleteRow": Operation(pb.DeleteRowRequest, single_rows.delete_row),
    "/BatchGetRow": Operation(pb.BatchGetRowRequest, batches.batch_get_row),
    "/BatchWriteRow": Operation(pb.BatchWriteRowRequest, batches.batch_write_row),
    "/BulkImport": Operation(pb.BulkImportRequest, batches.bulk_import),
    "/GetRange": Operation(pb.GetRangeRequest, ranges.get_range),
    "/tunnel/create": Operation(tunnel_pb2.CreateTunnelRequest, tunnel_operations.create_tunnel),
    "/tunnel/delete": Operation(tunnel_pb2.DeleteTunnelRequest, tunnel_operations.delete_tunnel),
    "/tunnel/list": Operation(tunnel_pb2.ListTunnelRequest, tunnel_operations.list_tunnels),
    "/tunnel/describe": Operation(tunnel_pb2.DescribeTunnelRequest, tunnel_operations.describe_tunnel),
    "/tunnel/getrpo": Operation(tunnel_pb2.GetRpoRequest, tunnel_operations.get_rpo),
    "/tunnel/getrpobyoffset": Operation(tunnel_pb2.GetRpoRequest, tunnel_operations.get_rpo),
    "/tunnel/schedule": Operation(tunnel_pb2.ScheduleRequest, tunnel_operations.schedule),
    "/tunnel/connect": Operation(tunnel_pb2.ConnectRequest, clients.connect),
    "/tunnel/heartbeat": Operation(tunnel_pb2.HeartbeatRequest, clients.heartbeat),
    "/tunnel/shutdown": Operation(tunnel_pb2.ShutdownRequest, clients.shutdown),
    "/tunnel/getcheckpoint": Operation(tunnel_pb2.GetCheckpointRequest, clients.get_checkpoint),
    "/tunnel/readrecords": Operation(tunnel_pb2.ReadRecordsRequest, clients.read_records),
    "/tunnel/checkpoint": Operation(tunnel_pb2.CheckpointRequest, clients.checkpoint),
}
