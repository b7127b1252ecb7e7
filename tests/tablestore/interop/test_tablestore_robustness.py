"""Invalid, broken, slow and many clients: the endpoint responds with the right code and keeps working."""

from __future__ import annotations

import asyncio
import datetime
import random
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace_tablestore.endpoint.operations import OPERATIONS
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire import tunnel_pb2
from headrace_tablestore.wire.errors import STATUS
from headrace_tablestore.wire.limits import MAX_BODY_BYTES
from headrace_tablestore.wire.plainbuffer.rows import decode_row
from headrace_tablestore.wire.signatures import Credentials, content_md5, verify_response
from tests.interop.programs import ACCESS_KEY_ID
from tests.interop.rough_clients import (
    CREDENTIALS,
    INSTANCE,
    Answer,
    Server,
    batch_request,
    get_request,
    is_closed,
    packed,
    put_request,
    read_answer,
    read_answer_of,
    row,
    serving,
    table_request,
    until,
)
from tests.tablestore.unit.plainbuffer_samples import SAMPLES

LIST = pb.ListTableRequest()
REFUSED = (403, "OTSAuthFailed")
INVALID = (400, "OTSParameterInvalid")
TOO_LARGE = (413, "OTSRequestBodyTooLarge")
CLIENTS = 500


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a table `t`; its log must stay free of failures."""
    with serving(tmp_path_factory.mktemp("instances")) as server:
        assert server.send("/CreateTable", table_request("t")).status == 200
        yield server


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a table `t` and time limits of at most half a second."""
    with serving(tmp_path_factory.mktemp("instances"), impatient=True) as server:
        assert server.send("/CreateTable", table_request("t")).status == 200
        yield server


def is_well(server: Server) -> bool:
    return server.send("/ListTable", LIST).result == (200, "OK")


# -- authentication ----------------------------------------------------------------------------------------


def at(**ago: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) - datetime.timedelta(**ago)


WRONG: dict[str, tuple[dict[str, Any], tuple[int, str]]] = {
    "signature V2": ({"headers": {"x-ots-signature": "bm90IHJpZ2h0"}}, REFUSED),
    "signature V2 that is no text": ({"headers": {"x-ots-signature": "\xff\xfe"}}, REFUSED),
    "signature V4": ({"region": "cn-hangzhou", "headers": {"x-ots-signaturev4": "bm90IHJpZ2h0"}}, REFUSED),
    "region of V4": ({"region": "cn-hangzhou", "headers": {"x-ots-signregion": "cn-beijing"}}, REFUSED),
    "day of V4": ({"region": "cn-hangzhou", "headers": {"x-ots-signdate": "20200101"}}, REFUSED),
    "V4 without a region": ({"region": "cn-hangzhou", "headers": {"x-ots-signregion": None}}, REFUSED),
    "no signature": ({"headers": {"x-ots-signature": None}}, REFUSED),
    "secret": ({"credentials": Credentials(ACCESS_KEY_ID, "guessed")}, REFUSED),
    "key": ({"credentials": Credentials("LTAInobody", "guessed")}, REFUSED),
    "old": ({"now": at(hours=1)}, REFUSED),
    "from the future": ({"now": at(hours=-1)}, REFUSED),
    "date after signing": ({"headers": {"x-ots-date": "2026-01-01T00:00:00.000Z"}}, REFUSED),
    "no date": ({"headers": {"x-ots-date": None}}, INVALID),
    "instance": ({"instance": "../etc"}, REFUSED),
    "instance that is long": ({"instance": "a" * 5000}, REFUSED),
    "MD5": ({"headers": {"x-ots-contentmd5": content_md5(b"other")}}, REFUSED),
    "no MD5": ({"headers": {"x-ots-contentmd5": None}}, INVALID),
    "additional signed header": ({"headers": {"x-ots-more": "1"}}, REFUSED),
    "compression": ({"headers": {"x-ots-request-compress-type": "deflate"}}, REFUSED),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_credentials_are_refused(server: Server, wrong: str) -> None:
    changed, expected = WRONG[wrong]
    assert server.send("/ListTable", LIST, **changed).result == expected


@pytest.mark.parametrize("date", ["", "yesterday", "2026-13-01T00:00:00.000Z", "2026-01-01", "9" * 4000, "\xb2\xb0"])
def test_an_invalid_date_is_refused(server: Server, date: str) -> None:
    answer = server.send("/ListTable", LIST, headers={"x-ots-date": date})
    assert answer.result in (REFUSED, INVALID)


@pytest.mark.parametrize("path", ["/Nothing", "/", "/listtable", "/ListTable/", "/tunnel/", "/%00", "/../ListTable"])
def test_unknown_operations_are_refused_with_a_signed_response(server: Server, path: str) -> None:
    answer = server.send(path, LIST)
    assert answer.result == INVALID
    assert verify_response(path, answer.headers, CREDENTIALS)


def test_other_methods_are_not_allowed(server: Server) -> None:
    data = packed("/ListTable", LIST)
    for method in (b"GET", b"PUT", b"DELETE", b"PATCH"):
        assert server.ask(data.replace(b"POST", method, 1)).result == (405, "OTSMethodNotAllowed")


# -- bodies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [None, 1 << 16], ids=["with a length", "in chunks"])
@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 2 * MAX_BODY_BYTES])
def test_oversized_bodies_are_refused(server: Server, size: int, chunks: int | None) -> None:
    assert server.send("/PutRow", bytes(size), chunks=chunks).result == TOO_LARGE
    assert is_well(server)


def test_an_impossible_content_length_is_refused_at_once(server: Server) -> None:
    assert server.send("/PutRow", b"", length=1 << 50).result == TOO_LARGE


def test_the_largest_body_is_read(server: Server) -> None:
    """The error is about the content."""
    assert server.send("/PutRow", b"\xff" * MAX_BODY_BYTES).result == INVALID


def test_small_chunks_are_joined(server: Server) -> None:
    request = put_request("t", row("in chunks", text="long enough " * 100))
    assert server.send("/PutRow", request, chunks=1).result == (200, "OK")
    answer = server.send("/GetRow", get_request("t", "in chunks"), chunks=3)
    assert decode_row(pb.GetRowResponse.FromString(answer.body).row).cells[0].value == "long enough " * 100


def requests() -> list[tuple[str, bytes]]:
    """Return valid requests with every sample of a row, and the shortest request of each operation."""
    seeds = [(path, operation.request().SerializePartialToString()) for path, operation in OPERATIONS.items()]
    for _, data in SAMPLES.values():
        whole = [
            put_request("t", data),
            pb.UpdateRowRequest(table_name="t", row_change=data, condition=pb.Condition(row_existence=pb.IGNORE)),
            pb.DeleteRowRequest(table_name="t", primary_key=data, condition=pb.Condition(row_existence=pb.IGNORE)),
            pb.GetRowRequest(table_name="t", primary_key=data, max_versions=1),
            batch_request("t", [data, row("a", n=1), row("b", n=2)]),
        ]
        low = pb.GetRangeRequest(table_name="t", direction=pb.FORWARD, max_versions=1)
        low.inclusive_start_primary_key, low.exclusive_end_primary_key = data, SAMPLES["largest key"][1]
        whole.append(low)
        many = pb.BatchGetRowRequest()
        many.tables.add(table_name="t", primary_key=[data, row("a")], max_versions=1)
        whole.append(many)
        imported = pb.BulkImportRequest(table_name="t")
        imported.rows.add(type=pb.PUT, row_change=data)
        whole.append(imported)
        seeds += [(f"/{type(each).__name__.removesuffix('Request')}", each.SerializeToString()) for each in whole]
    read = tunnel_pb2.ReadRecordsRequest(tunnel_id="t", client_id="c", channel_id="x", token="CAE=")
    return [*seeds, ("/tunnel/readrecords", read.SerializeToString())]


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Change, cut, repeat or omit some of the bytes."""
    result = bytearray(data or b"\x0a\x02t\x00")
    for _ in range(chance.choice((1, 1, 2, 5))):
        place = chance.randrange(len(result) or 1)
        kind = chance.randrange(6)
        if kind == 0:
            result[place : place + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            result[place : place + 4] = struct.pack("<I", chance.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 20)))
        elif kind == 2:
            del result[place:]
        elif kind == 3:
            del result[place : place + chance.randrange(1, 5)]
        elif kind == 4:
            result[place:place] = result[place : place + chance.randrange(1, 20)]
        else:
            result[place:place] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9)))
    return bytes(result)


def test_broken_rows_and_messages_are_refused(server: Server) -> None:
    """Every response has a code of the service, and none is an internal error."""
    chance = random.Random(4)
    seeds = requests()
    results = set()
    assert server.send("/CreateTable", table_request("t"), instance="broken").status == 200
    with server.connect() as connection:
        for number in range(1000):
            path, seed = seeds[number % len(seeds)]
            connection.sendall(packed(path, damaged(seed, chance), instance="broken"))
            answer = read_answer(connection)
            assert answer.status < 500, (path, number, answer)
            assert answer.code == "OK" or STATUS[answer.code] == answer.status
            results.add(answer.code)
    assert is_well(server)
    assert {"OK", "OTSParameterInvalid"} <= results


# -- broken connections ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"\x00" * 1000,
        b"GET\r\n\r\n",
        b"POST /ListTable HTTP/9.9\r\n\r\n",
        b"POST /ListTable\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /ListTable HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
        b"POST /ListTable HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /ListTable HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /ListTable HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_invalid_http_closes_the_connection(server: Server, garbage: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while data := connection.recv(1 << 16):
            answer += data
        assert answer == b"" or answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 405 "))
    assert is_well(server)


def test_requests_may_be_pipelined(server: Server) -> None:
    requests = [("/PutRow", put_request("t", row("in line", n=1))), ("/Nothing", LIST), ("/ListTable", LIST)]
    with server.connect() as connection:
        connection.sendall(b"".join(packed(path, request) for path, request in requests))
        connection.shutdown(socket.SHUT_WR)
        data = b""
        while part := connection.recv(1 << 16):
            data += part
    assert [line.split(b" ")[0] for line in data.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400", b"200"]


def test_expect_100_continue_is_supported(server: Server) -> None:
    start, body = packed("/ListTable", b"", headers={"Expect": "100-continue"}, chunks=1).split(b"\r\n\r\n", 1)
    with server.connect() as connection:
        connection.sendall(start + b"\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert read_answer(connection).status == 200


def test_endless_headers_are_refused(server: Server) -> None:
    for endless in (b"x-ots-more: 1\r\n" * 5000, b"x-ots-more: " + b"1" * 70_000):
        with server.connect() as connection:
            connection.sendall(b"POST /ListTable HTTP/1.1\r\n" + endless)
            assert read_answer(connection).status == 400
            assert is_closed(connection)
    assert is_well(server)


def test_endless_trailers_are_refused(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(packed("/ListTable", b"", chunks=1)[:-2] + b"more: " + b"1" * 300_000)
        assert read_answer(connection).status == 400


def test_a_client_that_has_closed_its_side_gets_its_response(server: Server) -> None:
    for path, request in (("/ListTable", LIST), ("/Nothing", LIST), ("/PutRow", put_request("t", row("half", n=1)))):
        with server.connect() as connection:
            connection.sendall(packed(path, request))
            connection.shutdown(socket.SHUT_WR)
            assert read_answer(connection).status == (400 if path == "/Nothing" else 200)
            assert is_closed(connection)


def test_clients_that_stop_at_any_byte_leave_nothing_behind(server: Server) -> None:
    """In headers or body, by a normal close or a reset, with or without an earlier request."""
    data = packed("/PutRow", put_request("t", row("never", n=1)))
    before, _ = settled(server)
    for cut in range(1, len(data), 7):
        connection = server.connect()
        if cut % 2:
            connection.sendall(packed("/ListTable", LIST))
            assert read_answer(connection).status == 200
        connection.sendall(data[:cut])
        if cut % 3 == 0:
            connection.shutdown(socket.SHUT_WR)
            assert is_closed(connection)
        elif cut % 3 == 1:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    assert until(lambda: server.usage()[0] <= before)
    answer = server.send("/GetRow", get_request("t", "never"))
    assert not pb.GetRowResponse.FromString(answer.body).row


def test_a_client_that_disconnects_before_its_response_does_no_harm(server: Server) -> None:
    before, _ = settled(server)
    for number in range(50):
        with server.connect() as connection:
            connection.sendall(packed("/PutRow", put_request("t", row(f"gone {number}", n=number))))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert is_well(server)
    assert until(lambda: server.usage()[0] <= before)


def settled(server: Server) -> tuple[int, int]:
    """Return the resources of the server after it has used all threads, without connections."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: server.send("/PutRow", put_request("t", row("a"))), range(32)))
    return server.usage()


# -- slow clients -------------------------------------------------------------------------------------------


def test_slow_headers_close_the_connection(impatient: Server) -> None:
    """Even if bytes keep coming, before the first request and after it."""
    for first in (b"", packed("/ListTable", LIST)):
        with impatient.connect() as connection:
            connection.sendall(first)
            assert not first or read_answer(connection).status == 200
            connection.sendall(b"POST /ListTable HTTP/1.1\r\n")
            assert until(lambda: is_refused(connection, b"X-Drop: by drop\r\n"))
    with impatient.connect() as silent:
        assert is_closed(silent)
    assert is_well(impatient)


def is_refused(connection: socket.socket, data: bytes) -> bool:
    """Send more bytes; return whether the other side has closed."""
    try:
        connection.sendall(data)
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("chunks", [None, 10])
def test_a_body_that_takes_too_long_is_an_error(impatient: Server, chunks: int | None) -> None:
    data = packed("/PutRow", put_request("t", row("slow", n=1)), chunks=chunks)
    answer = impatient.ask(data[:-5])
    assert answer.result == (408, "OTSRequestTimeout")
    assert answer.headers["connection"] == "close"
    assert is_well(impatient)


def test_slow_clients_do_not_block_others(impatient: Server) -> None:
    """At the limit, another client gets an error. It is served when the slow clients have timed out."""
    slow = [impatient.connect() for _ in range(4)]
    for connection in slow:
        connection.sendall(packed("/ListTable", b"12345")[:-5])
    assert until(lambda: impatient.send("/ListTable", LIST).result == (503, "OTSServerBusy"))
    assert until(lambda: is_well(impatient))
    for connection in slow:
        assert read_answer(connection).status == 408
        connection.close()


def test_a_client_that_does_not_read_is_disconnected(impatient: Server) -> None:
    rows = [row(f"large {number}", text="x" * 200_000) for number in range(15)]
    assert impatient.send("/BatchWriteRow", batch_request("t", rows)).status == 200
    many = pb.BatchGetRowRequest()
    many.tables.add(table_name="t", primary_key=[row(f"large {number}") for number in range(15)] * 6, max_versions=1)
    with impatient.connect(SO_RCVBUF=4096) as connection:
        connection.sendall(packed("/BatchGetRow", many))
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert until(lambda: not impatient.knows(connection))
    assert is_well(impatient)


# -- many clients, and shutdown ------------------------------------------------------------------------------


async def _one_of_many(server: Server, number: int, start: asyncio.Barrier) -> list[Answer]:
    """Write rows and read them over one connection."""
    reader, writer = await asyncio.open_connection(*server.address)
    answers = []

    async def ask(path: str, request: Any) -> Answer:
        writer.write(packed(path, request))
        answers.append(await read_answer_of(reader))
        return answers[-1]

    await start.wait()
    rows = [row(f"{number}-{each}", n=number, text=f"row {each}") for each in range(4)]
    await ask("/BatchWriteRow", batch_request("t", [*rows, row("everybody's", n=number, text="")]))
    got = await ask("/GetRow", get_request("t", f"{number}-3"))
    cells = decode_row(pb.GetRowResponse.FromString(got.body).row).cells
    assert {cell.name: cell.value for cell in cells} == {"n": number, "text": "row 3"}
    writer.close()
    await writer.wait_closed()
    return answers


async def _many(server: Server, count: int) -> list[Answer]:
    start = asyncio.Barrier(count)
    clients = [_one_of_many(server, number, start) for number in range(count)]
    return [answer for answers in await asyncio.gather(*clients) for answer in answers]


def test_500_clients_at_once_are_served_and_leave_nothing_behind(server: Server) -> None:
    asyncio.run(_many(server, CLIENTS // 10))
    # Threads, database connections and the allocator's arenas exist now. Their number must not grow.
    files, size = settled(server)
    answers = asyncio.run(_many(server, CLIENTS))
    assert {answer.result for answer in answers} == {(200, "OK")}
    assert len(answers) == 2 * CLIENTS
    assert until(lambda: server.usage()[0] <= files)
    assert server.usage()[1] < size + (32 << 20)


def test_a_signal_stops_the_server_and_frees_the_port(tmp_path: Path) -> None:
    """Running requests get their responses, whatever other connections do."""
    with serving(tmp_path) as server, ThreadPoolExecutor() as pool:
        assert server.send("/CreateTable", table_request("t")).status == 200
        idle, half = server.connect(), server.connect()
        half.sendall(b"POST /ListTable HTTP/1.1\r\nHost:")
        late = server.connect()
        data = packed("/PutRow", put_request("t", row("late", n=1)))
        late.sendall(data[:-5])
        assert is_well(server)
        stopped = pool.submit(server.stop)
        assert is_closed(idle)
        assert is_closed(half)
        late.sendall(data[-5:])
        assert read_answer(late).status == 200
        assert stopped.result() == 0
        for connection in (idle, half, late):
            connection.close()
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(server.address)
    with serving(tmp_path) as server:
        answer = server.send("/GetRow", get_request("t", "late"))
        assert pb.GetRowResponse.FromString(answer.body).row


def test_a_missing_body_does_not_delay_the_shutdown(tmp_path: Path) -> None:
    with serving(tmp_path, impatient=True) as server, server.connect() as connection:
        connection.sendall(packed("/ListTable", b"12345", instance=INSTANCE)[:-5])
        assert is_well(server)
        assert server.stop() == 0
