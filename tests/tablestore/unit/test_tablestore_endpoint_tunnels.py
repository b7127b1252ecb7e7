"""Tunnels of the Tablestore endpoint, and the clients that share their channels."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import NotFoundError
from headrace.model.tunnels.records import INITIAL_BATCH, BatchPlan
from headrace.stores.embedded.tunnels.tunnel import EmbeddedTunnel
from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.tables import table_operations
from headrace_tablestore.endpoint.tunnels import tunnel_operations as tunnels
from headrace_tablestore.endpoint.tunnels.stream_bounds import STREAM_BOUNDS_TABLE
from headrace_tablestore.wire import table_pb2
from headrace_tablestore.wire import tunnel_pb2 as pb
from tests.tablestore.unit.tablestore_endpoint import NOBODY, Service, read_all, refused, rows_of, values

SECOND = 1_000_000_000


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(Instance("shop", tmp_path / "shop"))


# -- tunnels -------------------------------------------------------------------------------------------------------


def test_a_tunnel_description_has_the_values_of_official_clients(service: Service) -> None:
    service.table().put([{"id": 1}])
    before = time.time_ns()
    tunnel = service.create()
    described = service.describe()
    info = described.tunnel
    assert (info.tunnel_id, info.tunnel_name, info.table_name) == (tunnel, "tunnel", "T")
    assert (info.instance_name, info.tunnel_type, info.stage) == ("shop", "BaseAndStream", "ProcessBaseData")
    assert info.stream_id
    assert info.HasField("stream_tunnel_config")
    assert not info.expired
    assert before - SECOND < info.create_time < time.time_ns()
    base, stream = described.channels
    assert (base.channel_id, base.channel_type, base.channel_status) == ("BaseData_1-0", "BaseData", "OPEN")
    assert (stream.channel_id, stream.channel_type, stream.channel_status) == ("stream-1", "Stream", "WAIT")


def test_channels_open_and_the_stage_advances_without_clients(service: Service) -> None:
    service.table().put([{"id": 1}])
    tunnel = service.create()
    service.save(tunnel, "BaseData_1-0", "finished")
    assert service.statuses() == {"BaseData_1-0": "TERMINATED", "stream-1": "OPEN"}
    assert service.describe().tunnel.stage == "ProcessStream"


def test_a_base_data_tunnel_ends_in_the_stream_stage(service: Service) -> None:
    service.table().put([{"id": 1}])
    tunnel = service.create("BaseData")
    assert service.describe().tunnel.stage == "ProcessBaseData"
    service.save(tunnel, "BaseData_1-0", "finished")
    assert service.describe().tunnel.stage == "ProcessStream"


def test_existing_and_missing_tunnels_have_the_error_codes_of_the_service(service: Service) -> None:
    service.table()
    tunnel = service.create()
    refused("OTSTunnelExist", service.create)
    assert "not exist" in refused("OTSParameterInvalid", service.create, table="other")
    assert "not exist" in refused("OTSParameterInvalid", service.describe, "other")
    assert "not exist" in refused("OTSParameterInvalid", service.describe, "tunnel", "other")
    assert "not exist" in refused("OTSParameterInvalid", service.describe, id="other")
    assert "not exist" in refused("OTSParameterInvalid", service.list, "other")
    assert "not exist" in refused("OTSParameterInvalid", service.checkpoint, tunnel, "stream-9")
    assert "not exist" in refused("OTSParameterInvalid", service.read, tunnel, "stream-9", "finished")
    for missing in ("", "tunnel", str(uuid.uuid4())):
        assert "not exist" in refused("OTSParameterInvalid", service.connect, missing)
    refused("OTSParameterInvalid", service.create, name="")
    refused("OTSParameterInvalid", service.create, name="n" * 256)


def test_a_tunnel_enables_the_stream_of_a_table_created_by_a_client(service: Service) -> None:
    meta = table_pb2.TableMeta(table_name="T", primary_key=[{"name": "id", "type": table_pb2.INTEGER}])
    request = table_pb2.CreateTableRequest(
        table_meta=meta, reserved_throughput={"capacity_unit": {}}, table_options={"max_versions": 1}
    )
    table_operations.create_table(service.instance, request)
    service.create()
    described = table_operations.describe_table(service.instance, table_pb2.DescribeTableRequest(table_name="T"))
    assert described.stream_details.enable_stream
    assert described.stream_details.stream_id == service.describe().tunnel.stream_id


def test_tunnels_are_listed_by_table_and_deleted_by_name(service: Service) -> None:
    service.table()
    service.table("U")
    tunnel = service.create()
    service.create(name="second", table="U")
    assert service.list() == ["tunnel", "second"]
    assert service.list("U") == ["second"]
    refused("OTSParameterInvalid", service.delete, id=str(uuid.uuid4()))
    service.delete(id=tunnel)
    assert service.list("T") == []
    refused("OTSParameterInvalid", service.delete)


def test_a_concurrently_dropped_tunnel_is_not_listed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.table()
    service.create(name="first")
    service.create(name="second")
    describe = EmbeddedTunnel.describe

    def dropped_before(tunnel: EmbeddedTunnel) -> Any:
        if tunnel.name == "first":
            service.store.drop_tunnel(tunnel.id)
        return describe(tunnel)

    monkeypatch.setattr(EmbeddedTunnel, "describe", dropped_before)
    assert service.list() == ["second"]


def test_the_endpoints_own_tables_have_no_tunnels(service: Service) -> None:
    service.table()
    service.create("Stream", flag=pb.EARLIEST)
    assert STREAM_BOUNDS_TABLE in service.store.tables()
    assert "not exist" in refused("OTSParameterInvalid", service.create, table=STREAM_BOUNDS_TABLE)
    assert "not exist" in refused("OTSParameterInvalid", service.list, STREAM_BOUNDS_TABLE)


# -- starts and ends of Stream tunnels ----------------------------------------------------------------------------


def test_a_stream_tunnel_begins_with_the_next_or_the_oldest_change(service: Service) -> None:
    table = service.table()
    table.put([{"id": 1}])
    latest, earliest = service.create("Stream"), service.create("Stream", "all", flag=pb.EARLIEST)
    table.put([{"id": 2}])
    assert [row.key for row in rows_of(service.read(latest, "stream-1"))] == [(("id", 2),)]
    assert [row.key for row in rows_of(service.read(earliest, "stream-1"))] == [(("id", 1),), (("id", 2),)]
    config = service.describe("all").tunnel.stream_tunnel_config
    assert (config.flag, config.start_offset, config.end_offset) == (pb.EARLIEST, 0, 0)


def test_a_stream_tunnel_has_the_changes_between_its_start_and_its_end(service: Service) -> None:
    table = service.table()
    instants = []
    for number in range(4):
        instants.append(time.time_ns())
        table.put([{"id": number}])
    instants.append(time.time_ns())
    early = service.create("Stream", start_offset=instants[1], end_offset=instants[3])
    page = service.read(early, "stream-1")
    assert [row.key for row in rows_of(page)] == [(("id", 1),), (("id", 2),)]
    assert (page.next_token, page.may_more_record) == ("finished", False)
    config = service.describe().tunnel.stream_tunnel_config
    assert (config.start_offset, config.end_offset) == (instants[1], instants[3])


def test_a_channel_ends_at_the_end_of_its_tunnel_without_later_changes(service: Service) -> None:
    table = service.table()
    start = time.time_ns()
    table.put([{"id": 1}])
    end = time.time_ns() + SECOND // 2
    tunnel = service.create("Stream", start_offset=start, end_offset=end)
    page = service.read(tunnel, "stream-1")
    assert (len(page.records), page.next_token != "finished") == (1, True)
    while (again := service.read(tunnel, "stream-1", page.next_token)).next_token != "finished":
        assert time.time_ns() < end + 10 * SECOND
    assert time.time_ns() >= end
    assert not again.records
    table.put([{"id": 2}])
    assert service.read(tunnel, "stream-1", page.next_token) == again


def test_a_start_in_the_future_or_an_end_before_it_is_refused(service: Service) -> None:
    service.table(retention_seconds=3600.0)
    now = time.time_ns()
    for config in (
        {"start_offset": now + 60 * SECOND},
        {"start_offset": (1 << 64) - 1},
        {"start_offset": now - 58 * 60 * SECOND},
        {"start_offset": now - SECOND, "end_offset": now - 2 * SECOND},
        {"end_offset": now - SECOND},
    ):
        refused("OTSParameterInvalid", service.create, "Stream", **config)
    refused("OTSParameterInvalid", service.create, "BaseData", start_offset=now - SECOND)
    assert service.list() == []


# -- splits, merges, ends ------------------------------------------------------------------------------------------


def test_the_children_of_a_split_channel_open_when_its_end_is_saved(service: Service) -> None:
    table = service.table()
    tunnel = service.create("Stream")
    table.put([{"id": number} for number in range(10)])
    left, right = table.split()
    table.put([{"id": 3, "text": "left"}, {"id": 8, "text": "right"}])
    assert set(service.statuses().values()) == {"OPEN", "WAIT"}
    rows, end = read_all(service, tunnel, "stream-1")
    assert (len(rows), end) == (10, "finished")
    service.save(tunnel, "stream-1", end)
    assert service.statuses() == {"stream-1": "TERMINATED", f"stream-{left}": "OPEN", f"stream-{right}": "OPEN"}
    assert [values(row) for row in rows_of(service.read(tunnel, f"stream-{left}"))] == [{"text": "left"}]
    merged = f"stream-{table.merge(left, right)}"
    service.save(tunnel, f"stream-{left}", "finished")
    assert service.statuses()[merged] == "WAIT"
    service.save(tunnel, f"stream-{right}", "finished")
    assert service.statuses()[merged] == "OPEN"
    nothing = service.read(tunnel, "stream-1", "finished")
    assert (len(nothing.records), nothing.next_token, nothing.may_more_record) == (0, "finished", False)
    assert service.checkpoint(tunnel, "stream-1").checkpoint == "finished"


def test_a_trimmed_log_is_an_error_and_a_tunnel_that_lost_changes_has_expired(service: Service) -> None:
    table = service.table(retention_ignores_tunnels=True)
    tunnel = service.create("Stream")
    first = service.checkpoint(tunnel, "stream-1").checkpoint
    for number in range(3):
        table.put([{"id": number}])
    service.save(tunnel, "stream-1", service.read(tunnel, "stream-1").next_token)
    client = service.connect(tunnel)
    service.heartbeat(tunnel, client)
    table.trim(before={1: 3}, cut_tunnels=True)
    assert "OTSTrimmedDataAccess" in refused("OTSTunnelServerUnavailable", service.read, tunnel, "stream-1", first)
    table.put([{"id": 3}])
    table.trim(before={1: 4}, cut_tunnels=True)
    assert service.describe().tunnel.expired
    refused("OTSTunnelExpired", service.read, tunnel, "stream-1")
    refused("OTSTunnelExpired", service.heartbeat, tunnel, client)
    refused("OTSTunnelExpired", service.connect, tunnel)


def make_table(service: Service, hours: int = 1) -> Any:
    """Create a table with a stream, as a client does."""
    meta = table_pb2.TableMeta(table_name="T", primary_key=[{"name": "id", "type": table_pb2.INTEGER}])
    request = table_pb2.CreateTableRequest(
        table_meta=meta,
        reserved_throughput={"capacity_unit": {}},
        table_options={"max_versions": 1},
        stream_spec={"enable_stream": True, "expiration_time": hours},
    )
    table_operations.create_table(service.instance, request)
    return service.instance.table("T")


def let_pass(service: Service, hours: float) -> None:
    """Make all existing changes older by a number of seconds."""
    with service.store._database.write() as connection:
        connection.execute("UPDATE chunk SET ts = ts - ?", (round(hours * 3600 * 1_000_000),))


def test_changes_of_a_stream_expire_even_if_a_tunnel_has_not_read_them(service: Service) -> None:
    table = make_table(service, hours=1)
    tunnel = service.create("Stream")
    client = service.connect(tunnel)
    service.heartbeat(tunnel, client)
    table.put([{"id": 1}])
    let_pass(service, 0.9)
    table.put([{"id": 2}])
    assert [row.key for row in rows_of(service.read(tunnel, "stream-1"))] == [(("id", 1),), (("id", 2),)]
    let_pass(service, 0.2)
    table.put([{"id": 3}])
    refused("OTSTunnelExpired", service.read, tunnel, "stream-1")
    refused("OTSTunnelExpired", service.heartbeat, tunnel, client)
    refused("OTSTunnelExpired", service.connect, tunnel)
    assert service.describe().tunnel.expired
    service.create("Stream", "new", flag=pb.EARLIEST)
    described = service.describe("new")
    assert not described.tunnel.expired
    kept = read_all(service, described.tunnel.tunnel_id, "stream-1")[0]
    assert [row.key for row in kept] == [(("id", 2),), (("id", 3),)]


def test_a_tunnel_expires_if_its_base_data_is_read_too_slowly(
    service: Service,
) -> None:
    table = make_table(service, hours=1)
    table.put([{"id": 1}])
    tunnel = service.create()
    table.put([{"id": 2}])
    let_pass(service, 2)
    table.put([{"id": 3}])
    client = service.connect(tunnel)
    assert list(service.heartbeat(tunnel, client)) == ["BaseData_1-0"]
    rows, token = read_all(service, tunnel, "BaseData_1-0")
    assert [row.key for row in rows] == [(("id", 1),)]
    service.save(tunnel, "BaseData_1-0", token)
    refused("OTSTunnelExpired", service.heartbeat, tunnel, client)


def test_a_table_of_headrace_keeps_changes_that_a_tunnel_has_not_read(service: Service) -> None:
    table = service.table(retention_seconds=3600.0)
    tunnel = service.create("Stream")
    table.put([{"id": 1}])
    let_pass(service, 2)
    table.put([{"id": 2}])
    assert len(service.read(tunnel, "stream-1").records) == 2


def test_released_base_data_is_an_error(service: Service) -> None:
    service.table().put([{"id": 1}])
    tunnel = service.create()
    token = service.checkpoint(tunnel, "BaseData_1-0").checkpoint
    service.save(tunnel, "BaseData_1-0", "finished")
    message = refused("OTSTunnelServerUnavailable", service.read, tunnel, "BaseData_1-0", token)
    assert message.startswith("OTSTrimmedDataAccess")


# -- clients -------------------------------------------------------------------------------------------------------


def test_clients_share_channels_by_their_heartbeats(service: Service) -> None:
    table = service.table()
    table.put([{"id": number} for number in range(100)])
    for _ in range(3):
        table.split()
    tunnel = service.create("Stream")
    one, two = service.connect(tunnel), service.connect(tunnel)
    mine = service.heartbeat(tunnel, one)
    assert {channel.status for channel in mine.values()} == {pb.OPEN}
    assert len(mine) == 4
    assert service.heartbeat(tunnel, two) == {}
    asked = service.heartbeat(tunnel, one, *mine.values())
    closing = [channel for channel in asked.values() if channel.status == pb.CLOSING]
    assert len(closing) == 2
    assert sorted(set(service.statuses().values())) == ["CLOSING", "OPEN"]
    given_back = [
        pb.Channel(channel_id=channel.channel_id, version=channel.version + 1, status=pb.CLOSE) for channel in closing
    ]
    service.heartbeat(tunnel, one, *given_back)
    assert set(service.heartbeat(tunnel, two)) == {channel.channel_id for channel in closing}
    holders = {channel.channel_id: channel.client_id for channel in service.describe().channels}
    assert sorted(holders.values()) == sorted([one, one, two, two])


def test_saves_of_a_client_are_fenced_by_their_number(service: Service) -> None:
    table = service.table()
    tunnel = service.create("Stream")
    client = service.connect(tunnel)
    service.heartbeat(tunnel, client)
    table.put([{"id": 1}])
    token = service.read(tunnel, "stream-1").next_token
    assert service.checkpoint(tunnel, "stream-1", client).sequence_number == 0
    refused("OTSSequenceNumberNotMatch", service.save, tunnel, "stream-1", token, 0, client)
    service.save(tunnel, "stream-1", token, 1, client)
    refused("OTSSequenceNumberNotMatch", service.save, tunnel, "stream-1", token, 1, client)
    saved = service.checkpoint(tunnel, "stream-1", client)
    assert (saved.checkpoint, saved.sequence_number) == (token, 1)
    refused("OTSParameterInvalid", service.save, tunnel, "stream-1", token, -1, client)


def test_an_ended_client_is_refused_and_an_unconnected_one_saves_with_number_0(service: Service) -> None:
    table = service.table()
    tunnel = service.create("Stream")
    table.put([{"id": 1}])
    token = service.read(tunnel, "stream-1").next_token
    client = service.connect(tunnel)
    service.shutdown(tunnel, client)
    service.shutdown(tunnel, client)
    refused("OTSResourceGone", service.heartbeat, tunnel, client)
    refused("OTSResourceGone", service.save, tunnel, "stream-1", token, 5, client)
    refused("OTSResourceGone", service.checkpoint, tunnel, "stream-1", client)
    refused("OTSResourceGone", service.save, tunnel, "stream-1", token, 5, NOBODY)
    service.save(tunnel, "stream-1", token, 0, NOBODY)
    assert service.checkpoint(tunnel, "stream-1").checkpoint == token


def test_clients_of_a_tunnel_that_a_query_reads_get_an_error(service: Service) -> None:
    service.table()
    tunnel = service.create("Stream")
    client = service.connect(tunnel)
    service.heartbeat(tunnel, client)
    service.store.tunnel(tunnel).batches.save_plan(BatchPlan(batch="first", previous=INITIAL_BATCH, channels=()))
    for call in (service.heartbeat, service.shutdown):
        assert "streaming query" in refused("OTSParameterInvalid", call, tunnel, client)
    assert "streaming query" in refused("OTSParameterInvalid", service.checkpoint, tunnel, "stream-1", client)
    assert "streaming query" in refused("OTSParameterInvalid", service.save, tunnel, "stream-1", "finished", 1, client)
    service.heartbeat(tunnel, service.connect(tunnel))


def test_a_concurrently_finished_channel_has_lost_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.table()
    tunnel = service.create("Stream")
    client = service.connect(tunnel)

    def forgotten(*_: Any) -> Any:
        raise NotFoundError("no such channel")

    monkeypatch.setattr(EmbeddedTunnel, "skip_lost", forgotten)
    assert list(service.heartbeat(tunnel, client)) == ["stream-1"]


def test_a_client_of_another_tunnel_is_refused(service: Service) -> None:
    service.table()
    tunnel, other = service.create(), service.create(name="other")
    refused("OTSResourceGone", service.heartbeat, tunnel, service.connect(other))


@pytest.mark.parametrize("timeout", [0, -1, -(1 << 63)])
def test_a_timeout_must_be_positive(service: Service, timeout: int) -> None:
    service.table()
    refused("OTSParameterInvalid", service.connect, service.create(), timeout)


def test_the_vendors_spark_connector_needs_no_client(service: Service) -> None:
    """The connector only lists, describes, reads checkpoints and records, and saves with number 0."""
    table = service.table()
    table.put([{"id": number} for number in range(20)])
    tunnel = service.create()
    table.put([{"id": 100}])
    seen = []
    for _ in range(3):
        for channel, status in service.statuses().items():
            if status == "OPEN":
                rows, token = read_all(service, tunnel, channel)
                seen += [row.key[0][1] for row in rows]
                service.save(tunnel, channel, token)
    assert seen == [*range(20), 100]


def test_a_suspended_channel_has_no_client_until_it_is_resumed(service: Service) -> None:
    service.table()
    tunnel = service.create("Stream")
    client = service.connect(tunnel)
    service.heartbeat(tunnel, client)
    service.schedule(tunnel, stream_1="CLOSING")
    (asked,) = service.heartbeat(tunnel, client).values()
    assert asked.status == pb.CLOSING
    given_back = pb.Channel(channel_id="stream-1", version=asked.version + 1, status=pb.CLOSE)
    assert service.heartbeat(tunnel, client, given_back) == {}
    assert service.heartbeat(tunnel, client) == {}
    assert service.statuses() == {"stream-1": "CLOSING"}
    service.schedule(tunnel, stream_1="OPEN")
    assert service.statuses() == {"stream-1": "OPEN"}
    assert list(service.heartbeat(tunnel, client)) == ["stream-1"]
    service.schedule(tunnel, stream_1="TERMINATED")
    assert service.statuses() == {"stream-1": "TERMINATED"}
    assert service.heartbeat(tunnel, client) == {}


def test_a_waiting_channel_cannot_be_opened_by_a_request(service: Service) -> None:
    service.table().put([{"id": 1}])
    tunnel = service.create()
    refused("OTSParameterInvalid", service.schedule, tunnel, stream_1="OPEN")
    refused("OTSParameterInvalid", service.schedule, tunnel, stream_1="CLOSE")
    refused("OTSParameterInvalid", service.schedule, tunnel, stream_9="CLOSING")
    assert service.statuses()["stream-1"] == "WAIT"


# -- recovery points ------------------------------------------------------------------------------


def test_the_rpo_is_the_age_of_the_oldest_unread_change(service: Service) -> None:
    table = service.table()
    tunnel = service.create("Stream")
    before = time.time_ns()
    table.put([{"id": 1}])
    after = time.time_ns()
    table.put([{"id": 2}])
    described = service.describe()
    assert before - SECOND // 100 <= described.tunnel_rpo <= after + SECOND // 100
    assert abs(described.channels[0].channel_rpo - described.tunnel_rpo) < SECOND // 100
    service.save(tunnel, "stream-1", service.read(tunnel, "stream-1").next_token)
    caught_up = time.time_ns()
    assert service.describe().tunnel_rpo >= caught_up
    answer = tunnels.get_rpo(service.instance, pb.GetRpoRequest(tunnel_id=tunnel))
    (by_client,) = json.loads(answer.rpo_infos).values()
    for info in (by_client[""], json.loads(answer.tunnel_rpo_infos)["Stream"]):
        assert info["RpoTime"] >= caught_up
        assert info["Status"] == "OPEN"
    refused("OTSParameterInvalid", tunnels.get_rpo, service.instance, pb.GetRpoRequest(tunnel_id=tunnel, limit=-1))
