"""The application of Tablestore's endpoint: authentication, error codes, and headers of responses.

The application is called as a server would call it, without sockets.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.http.logs import JsonFormatter
from headrace.testing.effort import thorough
from headrace_tablestore.endpoint.app import Bounds, TablestoreApp
from headrace_tablestore.endpoint.configuration import AccessKey, Configuration
from headrace_tablestore.endpoint.instances import Instance, Instances
from headrace_tablestore.endpoint.operations import OPERATIONS, Operation
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.limits import MAX_BODY_BYTES
from headrace_tablestore.wire.plainbuffer.rows import encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, Row
from headrace_tablestore.wire.signatures import (
    CONTENT_MD5,
    CONTENT_TYPE,
    DATE,
    REQUEST_ID,
    SIGN_DATE,
    SIGNATURE_V4,
    Credentials,
    content_md5,
    parse_date,
    request_headers,
    sign_request,
    verify_response,
)

KEY = Credentials("LTAItest", "secret of the test")
OTHER = Credentials("LTAIother", "another secret")
EMPTY = pb.ListTableRequest().SerializeToString()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return "OK" if self.status == 200 else pb.Error.FromString(self.body).code


class Client:
    """Sends requests to an application."""

    def __init__(self, app: TablestoreApp) -> None:
        self.app = app

    def send(
        self,
        path: str,
        body: bytes = EMPTY,
        *,
        headers: Mapping[str, str] | None = None,
        credentials: Credentials = KEY,
        instance: str = "shop",
        method: str = "POST",
        parts: int = 1,
        **signing: Any,
    ) -> Answer:
        if headers is None:
            headers = request_headers(path, body, credentials, instance, **signing)
        return asyncio.run(self.exchange(path, body, headers, method, parts))

    async def exchange(
        self, path: str, body: bytes, headers: Mapping[str, str], method: str = "POST", parts: int = 1
    ) -> Answer:
        size = max(1, -(-len(body) // parts))
        pieces = [body[start : start + size] for start in range(0, len(body), size)] or [b""]
        messages = [
            {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
            for number, piece in enumerate(pieces, start=1)
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": raw}
        await self.app(scope, receive, send)
        start, end = sent
        got = {name.decode(): value.decode() for name, value in start["headers"]}
        assert int(got["content-length"]) == len(end["body"])
        return Answer(start["status"], got, end["body"])


def configuration(root: Path) -> Configuration:
    keys = {KEY.access_key_id: AccessKey(KEY), OTHER.access_key_id: AccessKey(OTHER, frozenset({"other"}))}
    return Configuration(root, keys)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    app = TablestoreApp(configuration(tmp_path))
    yield Client(app)
    app.close()


def with_operation(client: Client, handle: Callable[[Instance, Any], Any]) -> Client:
    client.app._operations = {"/ListTable": Operation(pb.ListTableRequest, handle)}
    return client


# -- authentication ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signing", [{}, {"region": "cn-hangzhou"}, {"api_version": "2018-04-01"}])
def test_every_response_has_the_headers_that_clients_check(client: Client, signing: dict[str, Any]) -> None:
    for path, code in (("/ListTable", "OK"), ("/NoSuchThing", "OTSParameterInvalid")):
        answer = client.send(path, **signing)
        assert answer.code == code
        assert answer.headers[CONTENT_MD5] == content_md5(answer.body)
        assert answer.headers[CONTENT_TYPE] == "protocol buffer"
        assert answer.headers[REQUEST_ID]
        assert "." in answer.headers[DATE]
        assert parse_date(answer.headers[DATE]) is not None
        day = f"{datetime.datetime.now(datetime.UTC):%Y%m%d}"
        assert verify_response(path, answer.headers, KEY, region=signing.get("region"), signdate=day)


def refused(client: Client, **given: Any) -> str:
    answer = client.send("/ListTable", **given)
    assert answer.status == 403
    assert "authorization" not in answer.headers or given.get("instance")
    return f"{answer.code} {pb.Error.FromString(answer.body).message}"


def test_unauthenticated_requests_are_refused(client: Client, tmp_path: Path) -> None:
    assert "AccessKeyID" in refused(client, credentials=replace(KEY, access_key_id="nobody"))
    assert "Signature" in refused(client, credentials=replace(KEY, access_key_secret="guess"))
    headers = request_headers("/GetRow", EMPTY, KEY, "shop")
    assert "Signature" in refused(client, headers=headers)
    assert "MD5" in client_message(client.send("/ListTable", b"other", headers=signed(EMPTY)))
    assert list(tmp_path.iterdir()) == []


def signed(body: bytes, path: str = "/ListTable") -> dict[str, str]:
    return request_headers(path, body, KEY, "shop")


def client_message(answer: Answer) -> str:
    return f"{answer.code} {pb.Error.FromString(answer.body).message}"


@pytest.mark.parametrize(("minutes", "code"), [(-14, 200), (14, 200), (-16, 403), (16, 403)])
def test_a_date_is_valid_for_15_minutes(client: Client, minutes: int, code: int) -> None:
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=minutes)
    assert client.send("/ListTable", now=now).status == code


def test_a_signature_with_the_derived_key_of_another_day_is_refused(client: Client) -> None:
    headers = request_headers("/ListTable", EMPTY, KEY, "shop", region="cn-hangzhou")
    headers[SIGN_DATE] = "19990101"
    headers[SIGNATURE_V4] = sign_request("/ListTable", headers, KEY.access_key_secret, "cn-hangzhou")
    assert "OTSAuthFailed Signature" in refused(client, headers=headers)


def test_a_key_is_valid_only_for_its_instances(client: Client) -> None:
    assert client.send("/ListTable", credentials=OTHER, instance="other").status == 200
    assert "instance" in refused(client, credentials=OTHER, instance="shop")
    for name in ("..", "a/b", "ab", "1abc", "a" * 17):
        assert "instance" in refused(client, instance=name)


@pytest.mark.parametrize("missing", sorted(signed(EMPTY)))
def test_each_header_is_required(client: Client, missing: str) -> None:
    headers = signed(EMPTY)
    del headers[missing]
    assert client.send("/ListTable", headers=headers).code in ("OTSParameterInvalid", "OTSAuthFailed")


def test_only_post_requests_run_operations(client: Client) -> None:
    answer = client.send("/ListTable", method="GET")
    assert (answer.status, answer.code) == (405, "OTSMethodNotAllowed")
    answer = client.send("/health", method="GET")
    assert (answer.status, json.loads(answer.body)) == (200, {"status": "ok"})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=thorough(50))
@given(st.dictionaries(st.sampled_from(sorted(signed(EMPTY))), st.text(st.characters(max_codepoint=255), max_size=9)))
def test_no_header_causes_an_internal_error(client: Client, changed: dict[str, str]) -> None:
    answer = client.send("/ListTable", headers={**signed(EMPTY), **changed})
    assert answer.status in (200, 400, 403)


# -- bodies -------------------------------------------------------------------------------------------


def test_a_body_may_be_chunked_and_compressed(client: Client) -> None:
    create(client)
    body = pb.DescribeTableRequest(table_name="t").SerializeToString()
    assert client.send("/DescribeTable", body, parts=3).status == 200
    packed = zlib.compress(body)
    headers = {**signed(packed, "/DescribeTable"), "x-ots-request-compress-type": "deflate"}
    assert client.send("/DescribeTable", packed, headers=resigned(headers, "/DescribeTable")).status == 200
    headers = resigned({**signed(body), "x-ots-request-compress-type": "gzip"}, "/ListTable")
    assert client.send("/ListTable", body, headers=headers).code == "OTSParameterInvalid"
    bomb = zlib.compress(bytes(MAX_BODY_BYTES + 1))
    headers = resigned({**signed(bomb), "x-ots-request-compress-type": "deflate"}, "/ListTable")
    assert client.send("/ListTable", bomb, headers=headers).status == 413


def resigned(headers: dict[str, str], path: str) -> dict[str, str]:
    from headrace_tablestore.wire.signatures import SIGNATURE_V2, sign_request

    return {**headers, SIGNATURE_V2: sign_request(path, headers, KEY.access_key_secret)}


def test_a_body_that_is_too_large_is_refused_with_or_without_a_length(client: Client) -> None:
    body = bytes(MAX_BODY_BYTES + 1)
    headers = signed(body)
    assert client.send("/ListTable", body, headers=headers, parts=10).status == 413
    answer = client.send("/ListTable", body, headers={**headers, "content-length": str(len(body))}, parts=10)
    assert (answer.status, answer.code) == (413, "OTSRequestBodyTooLarge")
    assert verify_response("/ListTable", answer.headers, KEY)
    assert client.app._workload.body_bytes == client.app._workload.requests == 0


def create(client: Client) -> None:
    request = pb.CreateTableRequest()
    request.table_meta.table_name = "t"
    request.table_meta.primary_key.add(name="pk", type=pb.STRING)
    request.reserved_throughput.capacity_unit.read = 0
    assert client.send("/CreateTable", request.SerializeToString()).status == 200


def put(row: bytes) -> bytes:
    condition = pb.Condition(row_existence=pb.IGNORE)
    return pb.PutRowRequest(table_name="t", row=row, condition=condition).SerializeToString()


GOOD_ROW = encode_row(Row((("pk", "a"),), (Cell("c", "text"), Cell("n", 5), Cell("x", 1.5, None, None))))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=thorough(100))
@given(st.data())
def test_broken_rows_are_wrong_parameters(client: Client, data: st.DataObject) -> None:
    if client.send("/DescribeTable", pb.DescribeTableRequest(table_name="t").SerializeToString()).status != 200:
        create(client)
    row = bytearray(GOOD_ROW)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(row) - 1))
        row[at] = data.draw(st.integers(0, 255))
    del row[data.draw(st.integers(1, len(row))) :]
    answer = client.send("/PutRow", put(bytes(row)))
    assert answer.code in ("OK", "OTSParameterInvalid", "OTSInvalidPK")
    assert (answer.code == "OK") == (bytes(row) == GOOD_ROW) or answer.status == 200


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=thorough(100))
@given(st.sampled_from(sorted(OPERATIONS)), st.binary(max_size=40))
def test_no_body_causes_an_internal_error(client: Client, path: str, body: bytes) -> None:
    answer = client.send(path, body)
    assert answer.status in (200, 400, 404), client_message(answer)


# -- limits and failures ---------------------------------------------------------------------------


def test_above_its_limits_the_server_is_busy(tmp_path: Path) -> None:
    app = TablestoreApp(configuration(tmp_path), bounds=Bounds(workers=2, waiting=3))
    entered, leave = threading.Semaphore(0), threading.Event()
    running = []

    def handle(instance: Instance, request: Any) -> Any:
        running.append(instance.name)
        entered.release()
        assert leave.wait(60)
        return pb.ListTableResponse()

    client = with_operation(Client(app), handle)

    async def crowd() -> list[Answer]:
        tasks = [asyncio.create_task(client.exchange("/ListTable", EMPTY, signed(EMPTY))) for _ in range(5)]
        for _ in range(2):
            await asyncio.to_thread(entered.acquire)
        one_more = await client.exchange("/ListTable", EMPTY, signed(EMPTY))
        assert (one_more.status, one_more.code) == (503, "OTSServerBusy")
        assert len(running) == 2
        leave.set()
        return await asyncio.gather(*tasks)

    assert [answer.status for answer in asyncio.run(crowd())] == [200] * 5
    app.close()


def test_a_missing_body_ends_the_request(tmp_path: Path) -> None:
    app = TablestoreApp(configuration(tmp_path), bounds=Bounds(body_seconds=0.01))
    sent: list[Any] = []

    async def never() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in signed(EMPTY).items()]
    scope = {"type": "http", "method": "POST", "path": "/ListTable", "raw_path": b"/ListTable", "headers": raw}
    asyncio.run(app(scope, never, send))
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]
    app.close()


def test_a_request_that_is_cancelled_at_shutdown_gets_an_error(client: Client) -> None:
    entered, leave = threading.Event(), threading.Event()

    def handle(instance: Instance, request: Any) -> Any:
        entered.set()
        assert leave.wait(60)
        return pb.ListTableResponse()

    with_operation(client, handle)

    async def stopped() -> Answer:
        task = asyncio.create_task(client.exchange("/ListTable", EMPTY, signed(EMPTY)))
        await asyncio.to_thread(entered.wait)
        task.cancel()
        return await task

    answer = asyncio.run(stopped())
    leave.set()
    assert (answer.status, answer.code) == (503, "OTSServerUnavailable")


def test_a_disconnected_client_leaves_no_request(client: Client) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in signed(EMPTY).items()]
    asyncio.run(client.app({"type": "http", "method": "POST", "path": "/ListTable", "headers": raw}, receive, send))
    assert sent == []
    assert client.app._workload.requests == 0


def test_internal_errors_are_logged_and_not_sent(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    def handle(instance: Instance, request: Any) -> Any:
        raise RuntimeError("something inside")

    answer = with_operation(client, handle).send("/ListTable")
    assert (answer.status, answer.code) == (500, "OTSInternalServerError")
    assert b"inside" not in answer.body
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    logged = json.loads(JsonFormatter().format(record))
    assert logged["request_id"] == answer.headers[REQUEST_ID]
    assert "something inside" in logged["traceback"]
    assert logged["access_key_id"] == KEY.access_key_id
    assert KEY.access_key_secret not in json.dumps(logged)


# -- instances and configuration --------------------------------------------------------------------------------------


def test_instances_are_opened_once_and_the_oldest_is_closed(tmp_path: Path) -> None:
    instances = Instances(tmp_path, max_open=2)
    with instances.use("one") as one, instances.use("one") as again:
        assert one is again
        for name in ("two", "three", "four"):
            with instances.use(name):
                pass
        assert one.store.tables() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["four", "one", "three", "two"]
    with instances.use("four") as four:
        four.store.create_table("t", {"k": "long"}, "k")
    with instances.use("two"), instances.use("three"):
        pass
    with instances.use("four") as four_again:
        assert four_again is not four
        assert four_again.table("t").name == "t"
    instances.close()


def test_one_instance_serves_many_threads(tmp_path: Path) -> None:
    instances = Instances(tmp_path)

    def write(number: int) -> None:
        with instances.use("shop") as shop:
            shop.table("t").put({"k": number})

    with instances.use("shop") as shop:
        shop.store.create_table("t", {"k": "long"}, "k")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(50)))
        assert shop.table("t").describe().rows == 50
    instances.close()


CONFIGURATION = """
[[keys]]
access_key_id = "one"
access_key_secret = "very secret"

[[keys]]
access_key_id = "two"
access_key_secret = "also secret"
instances = ["shop", "shop-test"]
"""


def test_keys_come_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(CONFIGURATION)
    loaded = Configuration.load(tmp_path, file, environ={})
    assert loaded.keys["one"].may_use("anything")
    assert loaded.keys["two"].may_use("shop-test")
    assert not loaded.keys["two"].may_use("anything")
    assert "secret" not in repr(loaded).replace("access_key_secret", "")
    environ = {"HEADRACE_ACCESS_KEY_ID": "id", "HEADRACE_ACCESS_KEY_SECRET": "secret"}
    assert list(Configuration.load(tmp_path, environ=environ).keys) == ["id"]
    with pytest.raises(OptionError, match="HEADRACE_ACCESS_KEY_SECRET is not set"):
        Configuration.load(tmp_path, environ={"HEADRACE_ACCESS_KEY_ID": "id"})


@pytest.mark.parametrize(
    "text",
    [
        "access_key_secret = very secret",
        "",
        "keys = []",
        "keys = ['very secret']",
        "other = 1\n" + CONFIGURATION,
        CONFIGURATION + "secret = 1",
        CONFIGURATION.replace('"two"', '"one"'),
        CONFIGURATION.replace('"two"', "2"),
        CONFIGURATION.replace('"shop"', '"../shop"'),
    ],
)
def test_an_error_in_a_configuration_shows_no_secrets(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(OptionError) as caught:
        Configuration.load(tmp_path, file, environ={})
    assert "very secret" not in str(caught.value)


def test_an_error_names_the_position_in_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text("[[keys]]\naccess_key_secret = very secret\n")
    with pytest.raises(OptionError, match=r"keys\.toml, at line 2, column \d+$"):
        Configuration.load(tmp_path, file, environ={})


def test_a_missing_configuration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot read"):
        Configuration.load(tmp_path, tmp_path / "none.toml", environ=os.environ)
