"""Clients of the tunnel service over HTTP with the rules of the official workers: leases, fencing, ends, refusals."""

from __future__ import annotations

import random
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3
from google.protobuf.message import Message

import headrace
from headrace.errors import ClientGoneError, DataLossError, SequenceNumberError
from headrace.model.tunnels.leases import Lease, LeaseStatus
from headrace.model.tunnels.values import TunnelKind
from headrace.ports import Store, Table
from headrace_tablestore.store.connection import TablestoreConnection
from headrace_tablestore.store.tunnels.service import TunnelService
from headrace_tablestore.wire import errors, signatures
from headrace_tablestore.wire import tunnel_pb2 as pb
from headrace_tablestore.wire.plainbuffer.rows import decode_row
from headrace_tablestore.wire.plainbuffer.values import Row, SequenceInfo
from headrace_tablestore.wire.signatures import Credentials
from headrace_tablestore.wire.tokens import FINISHED_TOKEN, BaseToken, StreamToken, encode_token
from tests.interop.programs import ACCESS_KEY_ID, ACCESS_KEY_SECRET
from tests.tablestore.interop.conftest import Endpoint

INSTANCE = "shop"
CREDENTIALS = Credentials(ACCESS_KEY_ID, ACCESS_KEY_SECRET)
PATIENCE = 60.0
NOBODY = "spark-client"


class Clock:
    """Ends a loop that waits in vain."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + PATIENCE

    def ticks(self) -> bool:
        assert time.monotonic() < self._ends
        return True


class Worker:
    """A client with the rules of the official workers, step by step."""

    def __init__(self, service: TunnelService, tunnel: str, timeout: float = 300.0) -> None:
        self.service = service
        self.tunnel = tunnel
        self.id = service.connect(tunnel, tag="test", timeout=timeout)
        self.leases: dict[str, Lease] = {}
        self.saved: dict[str, tuple[str, int]] = {}
        self.rows: dict[str, list[Row]] = defaultdict(list)

    def heartbeat(self) -> set[str]:
        """Send a heartbeat, and apply its response; return the channels to read."""
        for channel, lease in list(self.leases.items()):
            ended = self.saved.get(channel, ("", 0))[0] == FINISHED_TOKEN
            if lease.status is LeaseStatus.OPEN and ended:
                self.leases[channel] = Lease(channel, lease.version + 1, LeaseStatus.TERMINATED)
            elif lease.status is LeaseStatus.CLOSING:
                status = LeaseStatus.TERMINATED if ended else LeaseStatus.CLOSE
                self.leases[channel] = Lease(channel, lease.version + 1, status)
        answer = self.service.heartbeat(self.tunnel, self.id, self.leases.values())
        held = self.leases
        self.leases = {new.channel: max(new, held.get(new.channel, new), key=_version) for new in answer}
        self.saved = {channel: at for channel, at in self.saved.items() if channel in self.leases}
        return {channel for channel, lease in self.leases.items() if lease.status is LeaseStatus.OPEN}

    def read(self, channel: str) -> int:
        """Read one page of a channel and save the position; return the number of rows."""
        if channel not in self.saved:
            self.saved[channel] = self.service.get_checkpoint(self.tunnel, self.id, channel)
        token, number = self.saved[channel]
        if token == FINISHED_TOKEN:
            return 0
        page = self.service.read_records(self.tunnel, self.id, channel, token)
        self.rows[channel] += [decode_row(pb.Record.FromString(record).record) for record in page.records]
        if page.next_token != token:
            self.service.checkpoint(self.tunnel, self.id, channel, page.next_token, number + 1)
            self.saved[channel] = page.next_token, number + 1
        return len(page.records)

    def work(self) -> int:
        """Send a heartbeat, and read a page of each channel; return the number of rows."""
        return sum(self.read(channel) for channel in sorted(self.heartbeat()))


def _version(lease: Lease) -> int:
    return lease.version


@pytest.fixture
def service(endpoint: Endpoint) -> Iterator[TunnelService]:
    connection = TablestoreConnection(endpoint.url, INSTANCE, CREDENTIALS)
    yield TunnelService(connection)
    connection.close()


@pytest.fixture
def store(endpoint: Endpoint) -> Iterator[Store]:
    """The embedded store of the instance, to split tables and to write rows."""
    with headrace.open(str(endpoint.root / INSTANCE), create=True) as opened:
        yield opened


@pytest.fixture
def table(store: Store) -> Table:
    return store.create_table(f"t{uuid.uuid4().hex[:8]}", {"id": "long", "n": "long"}, "id")


def put(table: Table, *ids: int, n: int = 0) -> None:
    table.put([{"id": number, "n": n} for number in ids])


def split_into(table: Table, count: int) -> None:
    put(table, *range(800))
    while sum(partition.open for partition in table.describe().partitions) < count:
        table.split()


def test_eight_channels_are_shared_and_reassigned_when_a_client_dies(service: TunnelService, table: Table) -> None:
    split_into(table, 8)
    tunnel = service.create(table.name, "shared", TunnelKind.STREAM)
    one, two = Worker(service, tunnel), Worker(service, tunnel, timeout=1.0)
    assert len(one.heartbeat()) == 8
    assert two.heartbeat() == set()
    assert len(one.heartbeat()) == 4
    one.heartbeat()
    assert len(two.heartbeat()) == 4
    channels = service.describe(table.name, "shared").channels
    assert sorted(channel.client_id for channel in channels) == sorted([one.id, two.id] * 4)
    assert {channel.channel_status for channel in channels} == {"OPEN"}
    versions = {channel: lease.version for channel, lease in two.leases.items()}
    clock = Clock()
    while len(one.heartbeat()) < 8 and clock.ticks():
        time.sleep(0.05)
    assert all(one.leases[channel].version > version for channel, version in versions.items())
    with pytest.raises(ClientGoneError):
        two.heartbeat()
    with pytest.raises(ClientGoneError):
        two.read(next(iter(versions)))


def test_the_channels_of_a_client_that_shuts_down_are_reassigned_at_once(service: TunnelService, table: Table) -> None:
    split_into(table, 2)
    tunnel = service.create(table.name, "shutdown", TunnelKind.STREAM)
    one, two = Worker(service, tunnel), Worker(service, tunnel)
    assert len(one.heartbeat()) == 2
    service.shutdown(tunnel, one.id)
    assert len(two.heartbeat()) == 2
    service.shutdown(tunnel, one.id)


def test_workers_that_start_and_die_lose_nothing_while_the_table_splits_and_merges(
    service: TunnelService, table: Table
) -> None:
    put(table, *range(400))
    tunnel = service.create(table.name, "storm", TunnelKind.BASE_AND_STREAM)
    chance = random.Random(7)
    workers = [Worker(service, tunnel), Worker(service, tunnel)]
    everyone = list(workers)
    written: dict[int, list[int]] = defaultdict(list)
    for n in range(1, 46):
        ids = chance.sample(range(400), 5)
        table.update([{"id": number, "n": n} for number in ids])
        for number in ids:
            written[number].append(n)
        partitions = sorted(
            (each for each in table.describe().partitions if each.open), key=lambda each: each.keys.low or ()
        )
        if n % 15 == 0:
            left = chance.randrange(len(partitions) - 1)
            table.merge(partitions[left].id, partitions[left + 1].id)
        elif n % 5 == 0:
            table.split()
        if n % 20 == 0:
            # The client keeps its channels until it times out. A shutdown request replaces the time-out.
            service.shutdown(tunnel, workers.pop(0).id)
            workers.append(Worker(service, tunnel))
            everyone.append(workers[-1])
        for worker in workers:
            worker.work()
    clock = Clock()
    while clock.ticks():
        for worker in workers:
            worker.work()
        channels = service.describe(table.name, "storm").channels
        if {channel.channel_status for channel in channels} <= {"OPEN", "TERMINATED"} and not any(
            service.read_records(tunnel, NOBODY, channel.channel_id, token).records
            for channel in channels
            if (token := service.get_checkpoint(tunnel, NOBODY, channel.channel_id)[0]) != FINISHED_TOKEN
        ):
            break
    base: list[int] = []
    stream: dict[int, list[tuple[SequenceInfo, Any]]] = defaultdict(list)
    for worker in everyone:
        for channel, rows in worker.rows.items():
            for row in rows:
                key = row.key[0][1]
                assert isinstance(key, int)
                if channel.startswith("BaseData_"):
                    base.append(key)
                else:
                    assert row.sequence is not None
                    stream[key].append((row.sequence, row.cells[0].value))
    assert sorted(base) == list(range(400))
    assert {number: [n for _, n in sorted(changes)] for number, changes in stream.items()} == dict(written)


def test_a_page_read_again_is_the_same_and_saves_are_fenced(service: TunnelService, table: Table) -> None:
    tunnel = service.create(table.name, "again", TunnelKind.STREAM)
    one, other = Worker(service, tunnel), Worker(service, tunnel)
    (channel,) = one.heartbeat()
    start, number = service.get_checkpoint(tunnel, one.id, channel)
    assert number == 0
    put(table, *range(10))
    first = service.read_records(tunnel, one.id, channel, start)
    service.checkpoint(tunnel, one.id, channel, first.next_token, 1)
    assert service.read_records(tunnel, one.id, channel, start) == first
    assert service.read_records(tunnel, NOBODY, channel, start) == first
    # A repeated save succeeds, because its response may have been lost. Another save with the same number fails.
    service.checkpoint(tunnel, one.id, channel, first.next_token, 1)
    with pytest.raises(SequenceNumberError):
        service.checkpoint(tunnel, other.id, channel, start, 1)
    service.checkpoint(tunnel, other.id, channel, first.next_token, 2)
    with pytest.raises(SequenceNumberError):
        service.checkpoint(tunnel, one.id, channel, start, 2)
    assert service.get_checkpoint(tunnel, one.id, channel) == (first.next_token, 2)


def test_a_split_channel_ends_for_its_client_and_its_children_follow(service: TunnelService, table: Table) -> None:
    put(table, *range(10))
    tunnel = service.create(table.name, "split", TunnelKind.STREAM)
    worker = Worker(service, tunnel)
    (parent,) = worker.heartbeat()
    put(table, 1, n=1)
    table.split()
    put(table, 1, n=2)
    assert worker.read(parent) == 1
    assert worker.saved[parent][0] == FINISHED_TOKEN
    children = worker.heartbeat()
    assert len(children) == 2
    assert parent not in children
    assert sum(worker.read(child) for child in children) == 1
    assert {each.channel_status for each in service.describe(table.name, "split").channels} == {"TERMINATED", "OPEN"}
    assert not service.read_records(tunnel, worker.id, parent, FINISHED_TOKEN).records


def test_a_tunnel_with_trimmed_changes_has_expired(service: TunnelService, store: Store) -> None:
    table = store.create_table("expiring", {"id": "long", "n": "long"}, "id", retention_ignores_tunnels=True)
    tunnel = service.create(table.name, "late", TunnelKind.STREAM)
    worker = Worker(service, tunnel)
    (channel,) = worker.heartbeat()
    put(table, 1)
    table.trim(before={1: 1, **{each.id: each.next for each in table.describe().partitions}}, cut_tunnels=True)
    with pytest.raises(DataLossError):
        worker.read(channel)
    with pytest.raises(DataLossError):
        worker.heartbeat()
    assert service.describe(table.name, "late").tunnel.expired


# -- refusals ------------------------------------------------------------------------------------------


class Wire:
    """Sends requests and returns responses."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool = urllib3.PoolManager()

    def post(self, path: str, body: bytes) -> tuple[int, str]:
        """Return the status and the error code of a response; ``OK`` without an error."""
        headers = signatures.request_headers(path, body, CREDENTIALS, INSTANCE)
        answer = self._pool.request("POST", self._url + path, body=body, headers=headers, retries=False)
        if answer.status == 200:
            return 200, "OK"
        error = errors.parse(answer.status, dict(answer.headers), answer.data)
        assert error.request_id
        return answer.status, error.code

    def send(self, operation: str, message: Message) -> tuple[int, str]:
        return self.post(f"/tunnel/{operation}", message.SerializePartialToString())

    def close(self) -> None:
        self._pool.clear()


@pytest.fixture
def wire(endpoint: Endpoint) -> Iterator[Wire]:
    opened = Wire(endpoint.url)
    yield opened
    opened.close()


def test_errors_have_the_statuses_that_official_clients_expect(
    wire: Wire, service: TunnelService, table: Table
) -> None:
    tunnel = service.create(table.name, "statuses", TunnelKind.STREAM)
    again = pb.CreateTunnelRequest(
        tunnel=pb.Tunnel(table_name=table.name, tunnel_name="statuses", tunnel_type=pb.Stream)
    )
    assert wire.send("create", again) == (409, "OTSTunnelExist")
    missing = pb.DescribeTunnelRequest(table_name=table.name, tunnel_name="other")
    assert wire.send("describe", missing) == (400, "OTSParameterInvalid")
    gone = pb.HeartbeatRequest(tunnel_id=tunnel, client_id=str(uuid.uuid4()))
    assert wire.send("heartbeat", gone) == (410, "OTSResourceGone")
    client = service.connect(tunnel, tag="", timeout=60)
    (channel,) = service.describe(table.name, "statuses").channels
    unnumbered = pb.CheckpointRequest(
        tunnel_id=tunnel,
        client_id=client,
        channel_id=channel.channel_id,
        checkpoint=FINISHED_TOKEN,
        sequence_number=0,
    )
    assert wire.send("checkpoint", unnumbered) == (400, "OTSSequenceNumberNotMatch")


REQUESTS: dict[str, type[Message]] = {
    "create": pb.CreateTunnelRequest,
    "delete": pb.DeleteTunnelRequest,
    "list": pb.ListTunnelRequest,
    "describe": pb.DescribeTunnelRequest,
    "connect": pb.ConnectRequest,
    "heartbeat": pb.HeartbeatRequest,
    "shutdown": pb.ShutdownRequest,
    "getcheckpoint": pb.GetCheckpointRequest,
    "readrecords": pb.ReadRecordsRequest,
    "checkpoint": pb.CheckpointRequest,
    "getrpo": pb.GetRpoRequest,
    "getrpobyoffset": pb.GetRpoRequest,
    "schedule": pb.ScheduleRequest,
}
EXPECTED = {
    (200, "OK"),
    (400, "OTSParameterInvalid"),
    (400, "OTSSequenceNumberNotMatch"),
    (409, "OTSTunnelExist"),
    (410, "OTSResourceGone"),
    (503, "OTSTunnelServerUnavailable"),
}


def filled(message: Message, texts: list[str], chance: random.Random) -> Message:
    """Return a message with arbitrary fields, some of which may be missing."""
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.1:
            continue
        if not field.has_presence:
            for _ in range(chance.randrange(4)):
                filled(getattr(message, field.name).add(), texts, chance)
        elif field.message_type is not None:
            filled(getattr(message, field.name), texts, chance)
            getattr(message, field.name).SetInParent()
        else:
            setattr(message, field.name, anything(field, texts, chance))
    return message


def anything(field: Any, texts: list[str], chance: random.Random) -> Any:
    if field.enum_type is not None:
        return chance.choice(field.enum_type.values).number
    if field.type == field.TYPE_STRING:
        return chance.choice(texts)
    if field.type == field.TYPE_BYTES:
        return chance.randbytes(chance.randrange(20))
    if field.type == field.TYPE_BOOL:
        return chance.random() < 0.5
    lowest, highest = (0, (1 << 64) - 1) if field.type == field.TYPE_UINT64 else (-(1 << 63), (1 << 63) - 1)
    if field.type == field.TYPE_INT32:
        lowest, highest = -(1 << 31), (1 << 31) - 1
    return chance.choice([0, 1, lowest, highest, chance.randrange(lowest, highest)])


@pytest.mark.parametrize("seed", range(4))
def test_every_invalid_request_has_the_right_code_and_no_traceback(
    wire: Wire, service: TunnelService, table: Table, seed: int
) -> None:
    chance = random.Random(seed)
    put(table, *range(20))
    tunnel = service.create(table.name, "fuzzed", TunnelKind.BASE_AND_STREAM)
    client = service.connect(tunnel, tag="", timeout=60)
    base, stream = (channel.channel_id for channel in service.describe(table.name, "fuzzed").channels)
    tokens = [service.get_checkpoint(tunnel, NOBODY, channel)[0] for channel in (base, stream)]
    bad = ["", "finished", "x" * 3000, encode_token(StreamToken("a:-1")), encode_token(BaseToken(b"\x75\0\0\0\x01"))]
    texts = [table.name, "fuzzed", tunnel, client, base, stream, NOBODY, ":tunnels", "\0", "é" * 300, *tokens, *bad]
    for _ in range(20):
        for operation, kind in REQUESTS.items():
            message = filled(kind(), texts, chance)
            assert wire.send(operation, message) in EXPECTED, (operation, message)
            broken = bytearray(message.SerializePartialToString())
            for _ in range(chance.randrange(1, 4)):
                if broken:
                    broken[chance.randrange(len(broken))] = chance.randrange(256)
            assert wire.post(f"/tunnel/{operation}", bytes(broken[: chance.randrange(len(broken) + 1)])) in EXPECTED
