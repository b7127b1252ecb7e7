"""The HTTP side of the Tablestore store, against a double of the service on loopback."""

from __future__ import annotations

import datetime
import logging
import multiprocessing
import os
import pickle
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import certifi
import pytest

from headrace.errors import (
    AlreadyExistsError,
    ClientGoneError,
    DataLossError,
    HeadraceError,
    NotFoundError,
    OptionError,
    SequenceNumberError,
    StoreBusyError,
    StoreError,
)
from headrace.testing.queue_reading import wait_until
from headrace_tablestore.store.connection import Patience, TablestoreConnection
from headrace_tablestore.wire import signatures, table_pb2, tunnel_pb2
from headrace_tablestore.wire.errors import STATUS, ServiceError
from headrace_tablestore.wire.signatures import Credentials
from tests.clocks import count_pauses
from tests.tablestore.unit.tablestore_double import CREDENTIALS, Double, Exchange, answers, hangs_up, refuses

QUICK = Patience(first_pause=0.001, first_busy_pause=0.001, longest_pause=0.01, total=20.0)
TABLES = table_pb2.ListTableResponse(table_names=["orders"])
CREATE = table_pb2.CreateTableRequest(
    table_meta=table_pb2.TableMeta(table_name="orders"),
    reserved_throughput=table_pb2.ReservedThroughput(capacity_unit=table_pb2.CapacityUnit()),
)
CREATED = table_pb2.CreateTableResponse()


@pytest.fixture
def double() -> Iterator[Double]:
    with Double().running() as double:
        yield double


def connect(double: Double, patience: Patience = QUICK, **settings: Any) -> TablestoreConnection:
    return TablestoreConnection(double.endpoint, "shop", CREDENTIALS, patience=patience, **settings)


def list_tables(connection: TablestoreConnection) -> list[str]:
    answer = connection.call("ListTable", table_pb2.ListTableRequest(), table_pb2.ListTableResponse)
    return list(answer.table_names)


def create_table(connection: TablestoreConnection, **options: Any) -> None:
    connection.call("CreateTable", CREATE, table_pb2.CreateTableResponse, **options)


def list_tunnels(connection: TablestoreConnection) -> None:
    connection.call("/tunnel/list", tunnel_pb2.ListTunnelRequest(), tunnel_pb2.ListTunnelResponse)


@pytest.mark.parametrize("region", [None, "cn-hangzhou"])
def test_a_request_is_signed_and_its_response_is_checked(double: Double, region: str | None) -> None:
    double.script = [answers(TABLES)]
    assert list_tables(connect(double, region=region)) == ["orders"]
    (seen,) = double.seen
    assert seen.path == "/ListTable"
    assert signatures.verify_request("/ListTable", seen.headers, "hush")
    assert ("x-ots-signaturev4" in seen.headers) == (region is not None)
    assert seen.headers["x-ots-instancename"] == "shop"


def test_consecutive_requests_share_a_connection(double: Double) -> None:
    double.script = [answers(TABLES)]
    with_pool = connect(double)
    for _ in range(5):
        list_tables(with_pool)
    assert len({seen.client_port for seen in double.seen}) == 1


def test_threads_share_connections_and_get_their_own_responses(double: Double) -> None:
    def echo(exchange: Exchange) -> None:
        name = table_pb2.DescribeTableRequest.FromString(exchange.body).table_name
        exchange.answer(200, table_pb2.ListTableResponse(table_names=[name]).SerializeToString())

    double.script = [echo]
    shared = connect(double, pool_size=3)

    def ask(name: str) -> list[str]:
        request = table_pb2.DescribeTableRequest(table_name=name)
        return list(shared.call("DescribeTable", request, table_pb2.ListTableResponse).table_names)

    names = [f"t{number}" for number in range(60)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, names)) == [[name] for name in names]
    assert len({seen.client_port for seen in double.seen}) <= 3


# -- retries ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["OTSServerBusy", "OTSTableNotReady", "OTSPartitionUnavailable"])
def test_a_request_that_a_busy_service_refused_is_sent_again(double: Double, code: str) -> None:
    double.script = [refuses(code), refuses(code), answers(CREATED)]
    create_table(connect(double))
    assert double.paths == ["/CreateTable"] * 3


@pytest.mark.parametrize("code", ["OTSTimeout", "OTSInternalServerError", "OTSServerUnavailable"])
def test_a_request_with_an_unknown_outcome_is_sent_again_only_if_it_is_idempotent(double: Double, code: str) -> None:
    double.script = [refuses(code), answers(TABLES)]
    assert list_tables(connect(double)) == ["orders"]
    double.script = [refuses(code), refuses(code), refuses(code), answers(CREATED)]
    with pytest.raises(ServiceError) as raised:
        create_table(connect(double))
    assert raised.value.code == code
    assert len(double.seen) == 3
    create_table(connect(double), repeatable=True)
    assert len(double.seen) == 4


def test_an_idempotent_request_is_repeated_on_a_new_connection(double: Double) -> None:
    double.script = [hangs_up, answers(TABLES)]
    assert list_tables(connect(double)) == ["orders"]


def test_a_write_whose_response_is_lost_is_not_sent_twice(double: Double) -> None:
    double.script = [hangs_up, answers(CREATED)]
    with pytest.raises(StoreError, match="unknown whether Tablestore executed /CreateTable") as raised:
        create_table(connect(double))
    assert not raised.value.retryable
    assert double.paths == ["/CreateTable"]


def test_a_connection_closed_by_the_service_is_not_used(double: Double) -> None:
    def answer_and_leave(exchange: Exchange) -> None:
        answers(CREATED)(exchange)
        exchange.hang_up()

    double.script = [answer_and_leave]
    connection = connect(double)
    for _ in range(3):
        # A write would fail on the closed connection, because it is not repeated.
        create_table(connection)
        assert double.closed.acquire(timeout=10)
    assert len({seen.client_port for seen in double.seen}) == 3


def test_a_request_with_an_incomplete_response_is_repeated(double: Double) -> None:
    def cut(exchange: Exchange) -> None:
        exchange.answer(200, TABLES.SerializeToString(), content_length="100")
        exchange.hang_up()

    double.script = [cut, answers(TABLES, x_ots_contentmd5="bm90IHRoZSBNRDU="), answers(TABLES)]
    assert list_tables(connect(double)) == ["orders"]
    assert len(double.seen) == 3


def test_a_silent_service_is_an_error_after_the_timeout(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    count_pauses(monkeypatch)
    over = threading.Event()
    double.script = [lambda _: over.wait(30)]
    patience = Patience(read=0.05, total=0.3, first_pause=0.001)
    try:
        with pytest.raises(StoreBusyError, match="no answer within"):
            list_tables(connect(double, patience))
        # The service can be late, too.
        wait_until(lambda: len(double.seen) > 1)
        # A request that must not be repeated has only one timeout.
        with pytest.raises(StoreError, match="unknown whether"):
            create_table(connect(double, patience))
    finally:
        over.set()


def test_a_permanently_busy_service_is_an_error_after_the_timeout(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_pauses(monkeypatch)
    double.script = [refuses("OTSServerBusy")]
    patience = Patience(total=0.05, first_busy_pause=0.001, longest_pause=0.01)
    with pytest.raises(StoreBusyError) as raised:
        list_tables(connect(double, patience))
    assert isinstance(raised.value, ServiceError)
    assert raised.value.retryable
    assert len(double.seen) > 1


def test_an_unreachable_address_is_named_in_the_error() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        patience = Patience(total=0.05, first_pause=0.001, longest_pause=0.01)
        with pytest.raises(StoreBusyError, match=f"no connection to {endpoint}"):
            # Nothing was sent, so a write is retried, too.
            create_table(TablestoreConnection(endpoint, "shop", CREDENTIALS, patience=patience))


# -- responses of other servers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"authorization": None}, "not signed"),
        ({"authorization": "OTS LTAItest:bm8="}, "not signed"),
        ({"x_ots_requestid": None}, "no x-ots-requestid"),
        ({"x_ots_contentmd5": None}, "no x-ots-contentmd5"),
    ],
)
def test_a_response_without_a_valid_signature_is_refused(
    double: Double, changed: dict[str, str | None], text: str
) -> None:
    # The double knows this header as `Authorization`.
    given = {"Authorization" if name == "authorization" else name: value for name, value in changed.items()}
    double.script = [answers(TABLES, **given)]
    with pytest.raises(StoreError, match=text):
        list_tables(connect(double))


def test_a_response_with_an_old_date_is_refused(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    old = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=20)
    written = signatures.format_date(old)

    def stale(exchange: Exchange) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(signatures, "format_date", lambda _: written)
            answers(TABLES)(exchange)

    double.script = [stale]
    with pytest.raises(StoreError, match=r"of another time.*clock"):
        list_tables(connect(double))


def test_responses_of_the_tunnel_service_need_no_signature(double: Double) -> None:
    unsigned: dict[str, str | None] = {"Authorization": None, "x_ots_contentmd5": None, "x_ots_date": None}
    double.script = [answers(tunnel_pb2.ListTunnelResponse(), **unsigned)]
    list_tunnels(connect(double))


def test_a_response_that_is_not_a_message_is_refused(double: Double) -> None:
    double.script = [lambda exchange: exchange.answer(200, b"<html>")]
    with pytest.raises(StoreError, match="cannot be read"):
        list_tables(connect(double))


def test_a_redirect_is_not_followed(double: Double) -> None:
    double.script = [lambda exchange: exchange.answer(302, b"", Location="http://127.0.0.1:1/")]
    with pytest.raises(ServiceError, match="HTTP status 302"):
        list_tables(connect(double))


# -- TLS ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key in the same file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate")
    directory = tmp_path_factory.mktemp("tls")
    key, made = directory / "key.pem", directory / "made.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=double", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([openssl, "req", *kind, *names, "-keyout", key, "-out", made], check=True, capture_output=True)
    both = directory / "both.pem"
    both.write_text(key.read_text() + made.read_text())
    return both


@pytest.fixture
def tls_double(certificate: Path) -> Iterator[Double]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    with Double(context).running() as double:
        yield double


def test_a_certificate_is_checked(tls_double: Double) -> None:
    tls_double.script = [answers(TABLES)]
    with pytest.raises(StoreError, match=r"certificate of https://127.0.0.1:[0-9]+ is not trusted") as raised:
        list_tables(connect(tls_double))
    assert not raised.value.retryable
    assert tls_double.seen == []


def test_an_endpoint_without_tls_is_an_error_without_retries(double: Double) -> None:
    plain = TablestoreConnection(double.endpoint.replace("http://", "https://"), "shop", CREDENTIALS)
    with pytest.raises(StoreError, match=r"does not speak TLS.*tablestore\+http://"):
        list_tables(plain)


def test_requests_are_sent_over_tls(tls_double: Double, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certifi, "where", lambda: str(certificate))
    tls_double.script = [answers(TABLES)]
    connection = connect(tls_double)
    assert list_tables(connection) == list_tables(connection) == ["orders"]
    assert len({seen.client_port for seen in tls_double.seen}) == 1
    elsewhere = TablestoreConnection(
        tls_double.endpoint.replace("127.0.0.1", "localhost"), "shop", CREDENTIALS, patience=QUICK
    )
    with pytest.raises(StoreError, match="is not trusted"):
        list_tables(elsewhere)


# -- errors of the service as headrace's ----------------------------------------------------------------

TRIMMED = "OTSTrimmedDataAccess Requested stream data is already trimmed or does not exist."


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("OTSAuthFailed", "Signature mismatch.", OptionError),
        ("OTSPermissionDenied", "", OptionError),
        ("OTSTunnelExpired", "", DataLossError),
        ("OTSTunnelServerUnavailable", TRIMMED, DataLossError),
        ("OTSResourceGone", "", ClientGoneError),
        ("OTSSequenceNumberNotMatch", "", SequenceNumberError),
        ("OTSTunnelExist", "", AlreadyExistsError),
        ("OTSParameterInvalid", "the tunnel does not exist", NotFoundError),
        ("OTSParameterInvalid", "bad token", ServiceError),
        ("OTSObjectNotExist", "", NotFoundError),
    ],
)
def test_errors_of_the_service_have_headraces_types_and_the_services_codes(
    double: Double, code: str, message: str, kind: type[HeadraceError]
) -> None:
    double.script = [refuses(code, message)]
    with pytest.raises(kind) as raised:
        list_tunnels(connect(double))
    error = raised.value
    assert isinstance(error, ServiceError)
    assert (error.code, error.status, error.request_id) == (code, STATUS[code], "request-1")
    assert len(double.seen) == 1
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), vars(copy), str(copy)) == (type(error), vars(error), str(error))


def test_an_existing_table_and_an_invalid_parameter_have_their_own_errors(double: Double) -> None:
    double.script = [refuses("OTSObjectAlreadyExist"), refuses("OTSParameterInvalid", "table does not exist")]
    with pytest.raises(AlreadyExistsError):
        create_table(connect(double))
    with pytest.raises(ServiceError) as raised:
        create_table(connect(double))
    assert type(raised.value) is ServiceError


# -- settings, secrets, processes ----------------------------------------------------------------------


def test_no_text_shows_a_secret(double: Double, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    credentials = Credentials("LTAItest", "hush", "whisper")
    double.script = [refuses("OTSServerBusy"), refuses("OTSAuthFailed", "Signature mismatch.")]
    connection = TablestoreConnection(double.endpoint, "shop", credentials, patience=QUICK)
    with pytest.raises(OptionError) as raised:
        list_tables(connection)
    assert double.seen[0].headers["x-ots-ststoken"] == "whisper"
    shown = "\n".join([str(raised.value), repr(raised.value), repr(connection), caplog.text])
    assert "retry in" in shown
    assert "hush" not in shown
    assert "whisper" not in shown


@pytest.mark.parametrize(
    "endpoint",
    [
        "127.0.0.1:80",
        "ftp://host",
        "http://",
        "http://host/path",
        "http://host?a=b",
        "http://host:port",
        "http://ho st",
        "http://key:hush@host",
        "https://hush@host",
        "key:hush@host",
        "http://host?secret=hush",
    ],
)
def test_invalid_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(OptionError, match="endpoint") as raised:
        TablestoreConnection(endpoint, "shop", CREDENTIALS)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("endpoint", ["https://shop.cn-hangzhou.ots.aliyuncs.com/", "http://[::1]:8080", "http://a_b"])
def test_endpoints_have_the_forms_that_official_clients_accept(endpoint: str) -> None:
    assert TablestoreConnection(endpoint, "shop", CREDENTIALS).endpoint == endpoint.rstrip("/")


@pytest.mark.parametrize(
    "credentials",
    [
        Credentials("", "hush"),
        Credentials("id", ""),
        Credentials("id\nx-ots-instancename: other", "hush"),
        Credentials("id", "hush", "whisper\r\nheader: x"),
    ],
)
def test_credentials_that_cannot_be_sent_are_refused(credentials: Credentials) -> None:
    with pytest.raises(OptionError) as raised:
        TablestoreConnection("http://host", "shop", credentials)
    assert "hush" not in str(raised.value)
    assert "whisper" not in str(raised.value)


def test_a_connection_is_pickled_as_its_settings(double: Double) -> None:
    double.script = [answers(TABLES)]
    connection = connect(double, region="cn-hangzhou")
    list_tables(connection)
    assert list_tables(pickle.loads(pickle.dumps(connection))) == ["orders"]
    assert len({seen.client_port for seen in double.seen}) == 2


# Newer versions of Python warn about a fork in a process with threads. Spark's workers are forked so, too.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_opens_its_own_connections(double: Double) -> None:
    double.script = [answers(TABLES)]
    connection = connect(double)
    list_tables(connection)
    child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(list_tables(connection) != ["orders"]))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert list_tables(connection) == ["orders"]
    first, second, third = (seen.client_port for seen in double.seen)
    assert first == third != second


def test_a_closed_connection_can_be_used_again(double: Double) -> None:
    double.script = [answers(TABLES)]
    connection = connect(double)
    connection.close()
    list_tables(connection)
    connection.close()
    assert double.closed.acquire(timeout=10)
    assert list_tables(connection) == ["orders"]
