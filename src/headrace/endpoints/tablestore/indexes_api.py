"""What clients ask of every instance: its search indexes and time series tables, of which there are none here."""

from __future__ import annotations

from headrace.endpoints.tablestore.instances import Instance
from headrace.wire.tablestore import table_pb2 as pb


def list_search_index(instance: Instance, request: pb.ListSearchIndexRequest) -> pb.ListSearchIndexResponse:
    return pb.ListSearchIndexResponse()


def list_timeseries_table(instance: Instance, request: pb.ListTimeseriesTableRequest) -> pb.ListTimeseriesTableResponse:
    return pb.ListTimeseriesTableResponse()
