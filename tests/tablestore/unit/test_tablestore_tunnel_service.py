"""The requests to the tunnel service: paths and messages, with a test double on the loopback address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf.message import Message

from headrace.errors import SequenceNumberError
from headrace.model.tunnels.leases import Lease, LeaseStatus
from headrace.model.tunnels.values import TunnelKind
from headrace_tablestore.store.connection import Patience, TablestoreConnection
from headrace_tablestore.store.tunnels.service import TunnelService
from headrace_tablestore.wire import tunnel_pb2 as pb
from tests.tablestore.unit.tablestore_double import CREDENTIALS, Double, answers, hangs_up, refuses


@pytest.fixture
def double() -> Iterator[Double]:
    with Double().running() as double:
        yield double


@pytest.fixture
def service(double: Double) -> TunnelService:
    patience = Patience(first_pause=0.001, first_busy_pause=0.001, total=20.0)
    return TunnelService(TablestoreConnection(double.endpoint, "shop", CREDENTIALS, patience=patience))


INFO = pb.TunnelInfo(
    tunnel_id="t", tunnel_type="Stream", table_name="orders", instance_name="shop", stream_id="s", stage="ProcessStream"
)
START = pb.StreamTunnelConfig(flag=pb.EARLIEST)
RECORDS = pb.ReadRecordsResponse(records=[pb.Record(action_type=pb.PUT_ROW, record=b"r")], next_token="n")
CHANNEL = pb.Channel(channel_id="c", version=2, status=pb.CLOSING)
CALLS: list[tuple[str, Callable[[TunnelService], Any], Message, Message, Any]] = [
    (
        "/tunnel/create",
        lambda service: service.create("orders", "stats", TunnelKind.STREAM, start=START),
        pb.CreateTunnelRequest(
            tunnel=pb.Tunnel(
                table_name="orders", tunnel_name="stats", tunnel_type=pb.Stream, stream_tunnel_config=START
            )
        ),
        pb.CreateTunnelResponse(tunnel_id="t"),
        "t",
    ),
    (
        "/tunnel/delete",
        lambda service: service.delete("orders", "stats"),
        pb.DeleteTunnelRequest(table_name="orders", tunnel_name="stats"),
        pb.DeleteTunnelResponse(),
        None,
    ),
    (
        "/tunnel/list",
        lambda service: list(service.tunnels("orders")),
        pb.ListTunnelRequest(table_name="orders"),
        pb.ListTunnelResponse(tunnels=[INFO]),
        [INFO],
    ),
    (
        "/tunnel/list",
        lambda service: list(service.tunnels()),
        pb.ListTunnelRequest(),
        pb.ListTunnelResponse(),
        [],
    ),
    (
        "/tunnel/describe",
        lambda service: service.describe("orders", "stats"),
        pb.DescribeTunnelRequest(table_name="orders", tunnel_name="stats"),
        pb.DescribeTunnelResponse(tunnel=INFO),
        pb.DescribeTunnelResponse(tunnel=INFO),
    ),
    (
        "/tunnel/schedule",
        lambda service: service.schedule("t", [("c", LeaseStatus.CLOSING)]),
        pb.ScheduleRequest(tunnel_id="t", channels=[pb.Channel(channel_id="c", version=0, status=pb.CLOSING)]),
        pb.ScheduleResponse(),
        None,
    ),
    (
        "/tunnel/connect",
        lambda service: service.connect("t", tag="me", timeout=299.6),
        pb.ConnectRequest(tunnel_id="t", client_config=pb.ClientConfig(timeout=300, client_tag="me")),
        pb.ConnectResponse(client_id="k"),
        "k",
    ),
    (
        "/tunnel/heartbeat",
        lambda service: service.heartbeat("t", "k", [Lease("c", 2, LeaseStatus.CLOSING)]),
        pb.HeartbeatRequest(tunnel_id="t", client_id="k", channels=[CHANNEL]),
        pb.HeartbeatResponse(channels=[pb.Channel(channel_id="d", version=1, status=pb.OPEN)]),
        [Lease("d", 1, LeaseStatus.OPEN)],
    ),
    (
        "/tunnel/shutdown",
        lambda service: service.shutdown("t", "k"),
        pb.ShutdownRequest(tunnel_id="t", client_id="k"),
        pb.ShutdownResponse(),
        None,
    ),
    (
        "/tunnel/getcheckpoint",
        lambda service: service.get_checkpoint("t", "k", "c"),
        pb.GetCheckpointRequest(tunnel_id="t", client_id="k", channel_id="c"),
        pb.GetCheckpointResponse(checkpoint="here", sequence_number=7),
        ("here", 7),
    ),
    (
        "/tunnel/readrecords",
        lambda service: service.read_records("t", "k", "c", "here"),
        pb.ReadRecordsRequest(tunnel_id="t", client_id="k", channel_id="c", token="here"),
        RECORDS,
        pb.ReadRecordsPage.FromString(RECORDS.SerializeToString()),
    ),
    (
        "/tunnel/checkpoint",
        lambda service: service.checkpoint("t", "k", "c", "here", 8),
        pb.CheckpointRequest(tunnel_id="t", client_id="k", channel_id="c", checkpoint="here", sequence_number=8),
        pb.CheckpointResponse(),
        None,
    ),
]


@pytest.mark.parametrize(("path", "call", "request_", "answer", "result"), CALLS, ids=[call[0] for call in CALLS])
def test_each_operation_has_its_path(
    double: Double,
    service: TunnelService,
    path: str,
    call: Callable[[TunnelService], Any],
    request_: Message,
    answer: Message,
    result: Any,
) -> None:
    double.script = [answers(answer)]
    assert call(service) == result
    (seen,) = double.seen
    assert seen.path == path
    assert type(request_).FromString(seen.body) == request_


def test_a_save_whose_response_was_lost_has_succeeded(double: Double, service: TunnelService) -> None:
    saved = answers(pb.GetCheckpointResponse(checkpoint="here", sequence_number=8))
    double.script = [hangs_up, refuses("OTSSequenceNumberNotMatch"), saved]
    service.checkpoint("t", "k", "c", "here", 8)
    assert double.paths == ["/tunnel/checkpoint", "/tunnel/checkpoint", "/tunnel/getcheckpoint"]


@pytest.mark.parametrize(("token", "sequence"), [("elsewhere", 8), ("here", 9)])
def test_a_save_overtaken_by_another_client_fails(
    double: Double, service: TunnelService, token: str, sequence: int
) -> None:
    saved = answers(pb.GetCheckpointResponse(checkpoint=token, sequence_number=sequence))
    double.script = [refuses("OTSSequenceNumberNotMatch"), saved]
    with pytest.raises(SequenceNumberError):
        service.checkpoint("t", "k", "c", "here", 8)
