"""The checkpoint server and the web page, which get random requests."""

from __future__ import annotations

import datetime
import decimal
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlencode

import headrace
from headrace.checkpoint_server.app import CheckpointApp
from headrace.checkpoint_server.locations import store_key
from headrace.checkpoint_server.served_directories import ServedDirectories
from headrace.checkpoint_server.tokens import Tokens
from headrace.model.tables.conditions import OPERATORS
from headrace.model.tunnels.lag import Lag
from headrace.ports import Store
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.stream_history import BatchRecord
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace
from headrace.ui.access import Access, cookie_name
from headrace.ui.application import UiApplication
from headrace.ui.site import Site
from tests.chaos.fuzz import mutations
from tests.chaos.fuzz.client import ADDRESS, Client, Request
from tests.chaos.fuzz.targets import Target
from tests.chaos.fuzz.web_requests import Sample, damaged
from tests.ui.conftest import BATCH, ERROR, REMEDY, SCRIPT

# Texts in random requests for values that differ in each process.
_STORE, _ACCESS, _SECRET = "_STORE_", "_ACCESS_", "_SECRET_"
_SESSION, _FORM, _TUNNEL, _PASSWORD = "_SESSION_", "_FORM_", "_TUNNEL_", "_PASSWORD_"


def _with_values(request: Request, values: Mapping[str, str]) -> Request:
    """Return a request with the values of this process."""
    headers = dict(request.headers)
    path, query, body = request.path, request.query, request.body
    for name, value in values.items():
        old, new = name.encode(), value.encode()
        path, query, body = path.replace(name, value), query.replace(old, new), body.replace(old, new)
        headers = {header: content.replace(old, new) for header, content in headers.items()}
    return request._replace(path=path, query=query, body=body, headers=tuple(headers.items()))


# -- the checkpoint server -------------------------------------------------------------------------------------

_ROOTS = (f"/{_STORE}/checkpoints/job", "/default")
_FILES = (
    *("", "/metadata", "/offsets", "/offsets/0", "/offsets/.0.tmp", "/commits/0", "/sources/0", "/nothing/at/all"),
    *("/state", "/state/0/0/1.zip", "/state/0/0/1.delta", "/state/0/0/_metadata/schema", "/state/0/0/.1.zip.tmp"),
)
_PATHS = [f"/webhdfs/v1{root}{file}" for root in _ROOTS for file in _FILES]
_BOOLEANS, _NUMBERS = ("true", "false"), ("0", "1", "3", "100", "null")
_PARAMETERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "PUT CREATE": {"overwrite": _BOOLEANS, "data": _BOOLEANS, "permission": ("644",), "blocksize": ("134217728",)},
    "GET OPEN": {"offset": _NUMBERS, "length": _NUMBERS, "data": _BOOLEANS},
    "PUT RENAME": {
        "destination": tuple(root + file for root in _ROOTS for file in _FILES),
        "renameoptions": ("NONE", "OVERWRITE", "OVERWRITE,TO_TRASH"),
    },
    "DELETE DELETE": {"recursive": ("false", "false", "false", "true")},
    "PUT MKDIRS": {"permission": ("755",)},
    "GET LISTSTATUS": {},
    "GET GETFILESTATUS": {"user.name": ("headrace",)},
    "GET GETFILELINKSTATUS": {},
    "GET GETSERVERDEFAULTS": {},
    "GET GETHOMEDIRECTORY": {},
    "PUT SETOWNER": {"owner": ("x",)},
}
_WITHOUT_PATH = ("GET GETSERVERDEFAULTS", "GET GETHOMEDIRECTORY", "PUT SETOWNER")
_CONTENTS = (b"", b"v1\n{}", b"v1\n" + b"x" * 300)
_TOKEN_FORM = {"client_id": ("headrace",), "grant_type": ("refresh_token",), "refresh_token": (_SECRET,)}


def _operation(operation: str, path: str, parameters: Mapping[str, tuple[str, ...]]) -> Sample:
    method, _, name = operation.partition(" ")
    return Sample(method, path, {"op": (name,), **parameters}, body=_CONTENTS if name == "CREATE" else (b"",))


_OPERATIONS = [
    _operation(each, path, known)
    for each, known in _PARAMETERS.items()
    for path in (_PATHS if each not in _WITHOUT_PATH else _PATHS[:1])
]
# Each file can be created, so that others have something to read, rename and delete.
_OPERATIONS += [
    Sample("PUT", path, {"op": ("CREATE",), "data": ("true",), "overwrite": ("true", "true", "false")}, body=_CONTENTS)
    for path in _PATHS
    for _ in range(3)
]
_OPERATIONS += [Sample("POST", "/oauth2/token", form=_TOKEN_FORM)] * 10
_CHECKPOINT_HEADERS = {
    "authorization": (f"Bearer {_ACCESS}".encode(), b"bearer x", b"Basic eDp5"),
    "host": (b"127.0.0.1:8686", b"[::1]:1", b"headrace"),
}
# More than the server keeps in memory before it writes to the store.
_LARGE = b"large " * (1 << 18)


def _draw_checkpoint(chance: random.Random) -> Request:
    request = damaged(chance, _OPERATIONS, _CHECKPOINT_HEADERS)
    is_large = b"CREATE" in request.query and chance.random() < 0.002
    return request._replace(body=_LARGE) if is_large else request


@contextmanager
def _checkpoint_server() -> Iterator[Callable[[Request], bool]]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        stores = [
            stack.enter_context(headrace.open(Path(directory) / name, create=True, synchronous="off"))
            for name in ("one", "default")
        ]
        directories, tokens = ServedDirectories(), Tokens()
        directories.add(stores[0], "/checkpoints/job")
        directories.set_default(stores[1].url, lambda: stores[1])
        client = Client(CheckpointApp(directories, tokens))
        stack.callback(client.close)
        form = {"client_id": "headrace", "grant_type": "refresh_token", "refresh_token": tokens.refresh_token}
        access = json.loads(tokens.exchange(urlencode(form).encode()).body)["access_token"]
        values = {_STORE: store_key(stores[0].id), _SECRET: tokens.refresh_token, _ACCESS: access}

        def call(request: Request) -> bool:
            sent = _with_values(request, values)
            status, _, _ = client.send(sent, dict(sent.headers))
            return 0 < status < 400

        yield call


# -- the web page ----------------------------------------------------------------------------------------------

_TABLES = ("orders", "odd name", "everything")
_STREAMS = ("running_one", "failed_one")
_COLUMNS = ("", "id", "t", "d", "n", "data", "list")
_SEARCH = {"q": ("", "o", "ORD"), "page": ("1", "2", "99")}
_VALUES = ("", "5", "c1", "1,2", "2026-01-01", "2026-01-01T00:00:00Z", "1.5", "0xff", "true")
_CONDITION = {"operator": ("", *OPERATORS), "value": _VALUES}
_ROWS = (
    {"name": ("orders",), "column": ("", "customer", "note"), **_CONDITION, "after": ("", '["c1", "5"]')},
    {"name": ("orders",), "column": ("id", "price"), "operator": OPERATORS, "value": ("5", "1.5", "7,8,9", "-1")},
    {"name": ("odd name",), "column": ("", "a b", "é\"'"), **_CONDITION, "after": ("", "[1]", '["1"]')},
    {"name": ("everything",), "column": _COLUMNS, **_CONDITION, "after": ("", "[3]", '["7"]', "[]")},
    {"name": ("everything",), "column": ("t", "d"), "operator": OPERATORS, "value": ("2026-01-03", "2026-01-04T00:00")},
)
_PAGES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "/": _SEARCH,
    "/stream": {"name": _STREAMS, "period": ("hour", "day")},
    "/tables": _SEARCH,
    "/table": {"name": _TABLES},
    "/table/rows": _ROWS[0],
    "/table/changes": {"name": _TABLES, "tunnel": ("", _TUNNEL)},
    "/tunnels": _SEARCH,
    "/tunnel": {"id": (_TUNNEL,), "page": ("1", "2")},
    "/queues": _SEARCH,
    "/queue": {"name": ("clicks",)},
    "/queue/rows": {"name": ("clicks",), "partition": ("0", "1", "2"), "from": ("0", "50", "1000")},
    "/consumers": _SEARCH,
    "/producers": _SEARCH,
    "/query": {"sql": ("", "SELECT 1")},
}
_STATEMENTS = (
    "SELECT customer, count(*) AS n, sum(price) FROM orders WHERE id BETWEEN 5 AND 90 GROUP BY ALL ORDER BY 2 DESC",
    'SELECT * FROM "odd name" WHERE "a b" IN (1, 2) LIMIT 5 OFFSET 1',
    'WITH c AS (SELECT * FROM clicks WHERE "$tablet_index" = 0) SELECT page, "$row_index" FROM c WHERE page > \'/p1\'',
    "FROM everything SELECT t, d, n, data, list, t + INTERVAL 1 DAY, d - DATE '2026-01-01', n * 2, list[1]",
    "SELECT o.id, e.id FROM orders o JOIN everything e ON o.id = e.id AND o.note IS NOT NULL",
    "DESCRIBE orders",
    "SUMMARIZE everything",
    "VALUES (1, 'a'), (2, NULL)",
    "SELECT TIMESTAMP '2026-01-01' + to_days(1), TIME '12:00', {'a': 1, 'b': [1.5]}, MAP {'k': 1}, 1::HUGEINT",
    "SELECT range, make_date(range::INT, 1, 1), uuid() FROM range(1, 10) UNION ALL SELECT 1, NULL, NULL",
    "SELECT rank() OVER (PARTITION BY customer ORDER BY id) FROM orders QUALIFY rank() OVER (ORDER BY id) < 9",
)
_SQL_WORDS = (
    "SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT OFFSET WITH AS UNION ALL JOIN ON IN LIKE BETWEEN AND OR NOT NULL IS "
    "orders everything clicks customer id price note t d n data list * ( ) , ; . = < >= + - / 'a' '%' 1 0 -1 1e308 "
    "99999999999999999999 DATE TIMESTAMP INTERVAL '1' DAY '2026-01-01' '290000-01-01' 'infinity' ::DATE ::TIMESTAMP "
    "::DOUBLE ::DECIMAL(38,10) ::BLOB ::VARCHAR ::HUGEINT ::UUID ::BIT ::JSON [1] MAP {} count(*) sum avg min max list "
    "struct_pack unnest range(9) DISTINCT EXISTS CASE WHEN THEN END COPY SET PRAGMA ATTACH INSTALL glob('*') SHOW "
    "read_csv('/etc/passwd') getenv('HOME') TABLES EXPLAIN PIVOT SAMPLE 5 $1 ? -- /* */"
)
_PAGE_SAMPLES = [Sample("GET", path, known) for path, known in _PAGES.items() for _ in range(2)]
_PAGE_SAMPLES += [Sample("GET", "/table/rows", known) for known in _ROWS for _ in range(2)]
_PAGE_SAMPLES += [Sample("GET", path) for path in ("/health", "/static/page.css", "/nothing")]
_PAGE_SAMPLES += [
    Sample("POST", f"/stream/{action}", form={"form_token": (_FORM,), "name": _STREAMS, "typed": _STREAMS})
    for action in ("start", "stop", "drop")
    for _ in range(2)
]
_PAGE_SAMPLES += [
    Sample("POST", "/login", form={"password": (_PASSWORD, "wrong-password"), "wanted": ("/", "/tables?q=o", "//x.y")}),
    Sample("POST", "/logout", form={"form_token": (_FORM,)}),
]
_LIVE = [Sample("GET", f"/live{path}", known) for path, known in _PAGES.items()]
_METRICS = [Sample("GET", "/metrics")]
_PAGE_HEADERS = {
    "host": (b"127.0.0.1:8686", b"localhost:8686", b"[::1]:8686", b"shop.example", b"localhost."),
    "cookie": (f"a=b; {cookie_name(ADDRESS[1])}={_SESSION}".encode(), b"x", b"=;=;"),
    "sec-fetch-site": (b"same-origin", b"none", b"cross-site"),
    "origin": (b"http://127.0.0.1:8686", b"null", b"http://shop.example"),
    "accept": (b"text/html", b"*/*"),
    "content-type": (b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x"),
}
_BEARER = (f"Bearer {_PASSWORD}".encode(), b"Bearer wrong-password", b"Basic eDp5")
_SQL_VALUES = (
    "NULL 0 1 -1 1.5 1e308 '' 'a' 'nan' 'infinity' '-infinity' '1' 'true' '2026-01-01' '290000-01-01' '9999-12-31' "
    "'0001-01-01' '-290000-01-01' '12:00' '24:00:00' '1day' [1,NULL] {'a':1} MAP{'k':1} 170141183460469231731687303 "
    "random() now() current_date range(3) repeat('x',300) chr(0) chr(55296) chr(1114111)"
)
_SQL_COLUMNS = {
    "": (),
    "range(4)": ("range",),
    "orders": ("customer", "id", "price"),
    "everything": ("t", "d", "n", "data", "list"),
}
_SQL_TYPES = (
    "DATE TIMESTAMP TIMESTAMPTZ TIMESTAMP_S TIMESTAMP_MS TIMESTAMP_NS TIME TIMETZ INTERVAL DOUBLE FLOAT DECIMAL(38,10) "
    "DECIMAL(4,1) BLOB VARCHAR HUGEINT UHUGEINT UBIGINT TINYINT UUID BIT JSON BOOLEAN INTEGER[] DATE[] INTEGER[2]"
)


def _draw_statement(chance: random.Random) -> str:
    """Return a query: a sample, changed or not, or one with values of random types, which the page must show."""
    chosen = chance.random()
    if chosen < 0.5:
        return mutations.text(chance, _STATEMENTS, _SQL_WORDS.split()).encode("utf-8", "replace").decode()
    if chosen < 0.6:
        return chance.choice(_STATEMENTS)
    table = chance.choice(list(_SQL_COLUMNS))
    columns = []
    for _ in range(chance.choice((1, 2))):
        column = chance.choice([*_SQL_VALUES.split(), *_SQL_COLUMNS[table]])
        for _ in range(chance.choice((0, 1, 1, 2))):
            column = f"TRY_CAST({column} AS {chance.choice(_SQL_TYPES.split())})"
        columns.append(column)
    return f"SELECT {', '.join(columns)}{table and f' FROM {table}'}"


def _draw_page(chance: random.Random) -> Request:
    headers: dict[str, Any] = dict(_PAGE_HEADERS)
    if chance.random() < 0.1:
        headers["authorization"] = _BEARER
    chosen = chance.random()
    if chosen < 0.12:
        form = {"sql": (_draw_statement(chance),), "form_token": (_FORM,)}
        return damaged(chance, [Sample("POST", "/query", form=form)], headers, intact=0.6)
    if chosen < 0.15:
        return damaged(chance, _METRICS, headers)
    if chosen < 0.22:
        return damaged(chance, _LIVE, headers, leaves=True)
    return damaged(chance, _PAGE_SAMPLES, headers)


def _shop(store: Store) -> None:
    """Fill a store with a little of everything."""
    orders = store.create_table(
        "orders", {"customer": "string", "id": "long", "price": "double", "note": "string"}, ["customer", "id"]
    )
    store.create_tunnel("orders", "statistics")
    orders.put(
        [{"customer": f"c{i % 7}", "id": i, "price": i / 4, "note": "<b>&" if i == 0 else None} for i in range(120)]
    )
    orders.delete([{"customer": "c1", "id": 1}])
    columns = {"id": "int", "t": "timestamp", "d": "date", "n": "decimal(10,2)", "data": "binary", "list": "array<int>"}
    days = [datetime.datetime(2026, 1, i, tzinfo=datetime.UTC) for i in range(1, 9)]
    store.create_table("everything", columns, ["id"]).put(
        [
            {"id": i, "t": day, "d": day.date(), "n": decimal.Decimal(i), "data": bytes([i]), "list": [i, None]}
            for i, day in enumerate(days)
        ]
    )
    store.create_table("odd name", {"a b": "long", "é\"'": "boolean"}, ["a b"]).put([{"a b": 1, "é\"'": True}])
    clicks = store.create_queue("clicks", {"page": "string"}, partitions=2)
    clicks.append([{"page": f"/p{i}"} for i in range(120)], partition=0)
    store.create_consumer("dashboards")
    store.register_consumer("clicks", "dashboards", vital=True)
    store.consumer("dashboards").advance("clicks", {0: 90})
    store.create_producer("web").open_session("clicks", "server-1")


def _record_streams(registry: StreamRegistry) -> None:
    """Record a running and a failed stream, if they are not there."""
    known = {status.name for status in registry.all() if status.is_live or status.name == _STREAMS[1]}
    for name in _STREAMS:
        if name in known:
            continue
        script = SCRIPT.format(name=name)
        registry.record_start(name, script=script, fingerprint=name, target="totals", checkpoint="/nowhere")
        registry.set_running(name, "0f8f3a53-1111-4222-8333-944444444444")
        now = time.time()
        batches = [
            BatchRecord(now - 10 + i, i, 100, 7, BATCH, Lag(40 - i), now - 20, state_rows=7, state_bytes=2048)
            for i in range(3)
        ]
        registry.set_progress(name, 2, 1234.0, Lag(38), batches)
        if name == _STREAMS[1]:
            registry.set_ended(name, "failed", ERROR, REMEDY)


class _StartedProcess:
    """The process of a stream that a page has started. It ends at once."""

    pid = 1

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def poll(self) -> int:
        return 0


@contextmanager
def _without_waiting() -> Iterator[None]:
    """Let pages start no processes, streams stop at once, and live parts come without a pause.

    Queries have two seconds, so that one that takes ten seconds has passed its limit.
    """

    def end(registry: StreamRegistry, name: str, timeout: float = 0) -> None:
        registry.set_ended(name, "stopped")

    with (
        mock.patch("headrace.ui.stream_pages.subprocess.Popen", _StartedProcess),
        mock.patch.object(StreamRegistry, "wait_until_ended", end),
        mock.patch.multiple("headrace.ui.application", _LIVE_SECONDS=0.0, _LIVE_REST=0.0, _SILENT_SECONDS=0.0),
        mock.patch("headrace.ui.query_page.MAX_SECONDS", 2.0),
    ):
        yield


@contextmanager
def _web_page() -> Iterator[Callable[[Request], bool]]:
    with tempfile.TemporaryDirectory() as text, _without_waiting(), ExitStack() as stack:
        directory, password = Path(text), "only for tests"
        store = stack.enter_context(headrace.open(directory / "shop", create=True, synchronous="off"))
        _shop(store)
        workspace = Workspace(directory)
        stack.callback(workspace.close)
        registry, catalog = StreamRegistry(workspace), Catalog(workspace)
        for name in ("orders", "totals"):
            catalog.add_table(TableDefinition(name, "headrace", {"store": store.url, "table": "orders"}))
        _record_streams(registry)
        accesses = [Access("127.0.0.1"), Access("127.0.0.1", password)]
        pages = [(access, Client(UiApplication(Site(store, directory), access))) for access in accesses]
        for _, client in pages:
            stack.callback(client.close)
        known = {_TUNNEL: store.tunnels()[0].id, _PASSWORD: password}

        def call(request: Request) -> bool:
            # One request in ten goes to the page with a password.
            needs_password = any(name == "authorization" for name, _ in request.headers)
            access, client = pages[needs_password]
            session = access.open_session()
            sent = _with_values(request, {**known, _SESSION: session, _FORM: access.form_token(session)})
            status, _, _ = client.send(sent, dict(sent.headers))
            if sent.path.startswith("/stream/"):
                _record_streams(registry)
            # After ten wrong passwords no password is right for a minute.
            access._failures.clear()
            return 0 < status < 400

        yield call


SERVERS: dict[str, Target] = {
    "checkpoint server": Target((), _draw_checkpoint, _checkpoint_server),
    "web page": Target((), _draw_page, _web_page),
}
