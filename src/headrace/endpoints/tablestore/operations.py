"""Which operations the endpoint has: from the path of a request to what does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from headrace.endpoints.tablestore import (
    batch_api,
    indexes_api,
    range_api,
    rows_api,
    tables_api,
    tunnel_clients_api,
    tunnels_api,
)
from headrace.endpoints.tablestore.instances import Instance
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
    "/CreateTable": Operation(pb.CreateTableRequest, tables_api.create_table),
    "/ListTable": Operation(pb.ListTableRequest, tables_api.list_table),
    "/DescribeTable": Operation(pb.DescribeTableRequest, tables_api.describe_table),
    "/UpdateTable": Operation(pb.UpdateTableRequest, tables_api.update_table),
    "/DeleteTable": Operation(pb.DeleteTableRequest, tables_api.delete_table),
    "/AddDefinedColumn": Operation(pb.AddDefinedColumnRequest, tables_api.add_defined_columns),
    "/DeleteDefinedColumn": Operation(pb.DeleteDefinedColumnRequest, tables_api.delete_defined_columns),
    "/ListSearchIndex": Operation(pb.ListSearchIndexRequest, indexes_api.list_search_index),
    "/ListTimeseriesTable": Operation(pb.ListTimeseriesTableRequest, indexes_api.list_timeseries_table),
    "/ComputeSplitPointsBySize": Operation(pb.ComputeSplitPointsBySizeRequest, tables_api.compute_split_points_by_size),
    "/GetRow": Operation(pb.GetRowRequest, rows_api.get_row),
    "/PutRow": Operation(pb.PutRowRequest, rows_api.put_row),
    "/UpdateRow": Operation(pb.UpdateRowRequest, rows_api.update_row),
    "/DeleteRow": Operation(pb.DeleteRowRequest, rows_api.delete_row),
    "/BatchGetRow": Operation(pb.BatchGetRowRequest, batch_api.batch_get_row),
    "/BatchWriteRow": Operation(pb.BatchWriteRowRequest, batch_api.batch_write_row),
    "/BulkImport": Operation(pb.BulkImportRequest, batch_api.bulk_import),
    "/GetRange": Operation(pb.GetRangeRequest, range_api.get_range),
    "/tunnel/create": Operation(tunnel_pb2.CreateTunnelRequest, tunnels_api.create_tunnel),
    "/tunnel/delete": Operation(tunnel_pb2.DeleteTunnelRequest, tunnels_api.delete_tunnel),
    "/tunnel/list": Operation(tunnel_pb2.ListTunnelRequest, tunnels_api.list_tunnels),
    "/tunnel/describe": Operation(tunnel_pb2.DescribeTunnelRequest, tunnels_api.describe_tunnel),
    "/tunnel/getrpo": Operation(tunnel_pb2.GetRpoRequest, tunnels_api.get_rpo),
    "/tunnel/getrpobyoffset": Operation(tunnel_pb2.GetRpoRequest, tunnels_api.get_rpo),
    "/tunnel/schedule": Operation(tunnel_pb2.ScheduleRequest, tunnels_api.schedule),
    "/tunnel/connect": Operation(tunnel_pb2.ConnectRequest, tunnel_clients_api.connect),
    "/tunnel/heartbeat": Operation(tunnel_pb2.HeartbeatRequest, tunnel_clients_api.heartbeat),
    "/tunnel/shutdown": Operation(tunnel_pb2.ShutdownRequest, tunnel_clients_api.shutdown),
    "/tunnel/getcheckpoint": Operation(tunnel_pb2.GetCheckpointRequest, tunnel_clients_api.get_checkpoint),
    "/tunnel/readrecords": Operation(tunnel_pb2.ReadRecordsRequest, tunnel_clients_api.read_records),
    "/tunnel/checkpoint": Operation(tunnel_pb2.CheckpointRequest, tunnel_clients_api.checkpoint),
}
