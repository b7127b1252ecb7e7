"""The endpoints of Tablestore and YTsaurus that get random requests."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import headrace
from headrace_tablestore.endpoint.app import TablestoreApp
from headrace_tablestore.store.connection import TablestoreConnection
from headrace_tablestore.wire.signatures import request_headers
from headrace_ytsaurus.endpoint.app import YtsaurusApp
from headrace_ytsaurus.endpoint.commands import COMMANDS
from headrace_ytsaurus.endpoint.configuration import Configuration
from headrace_ytsaurus.endpoint.http.responses import method_of
from headrace_ytsaurus.wire.yson.documents import YsonError, dumps
from tests.chaos.fuzz import mutations
from tests.chaos.fuzz.client import Client, Request
from tests.chaos.fuzz.targets import Target
from tests.tablestore.unit.test_tablestore_endpoint_app import KEY, configuration
from tests.ytsaurus.unit.test_ytsaurus_rough_parameters import BODIES, NAMES, ODD, OTHERS, TRIED, create_objects

_INSTANCE, _TOKEN = "shop", "only-for-tests"


# -- Tablestore ------------------------------------------------------------------------------------------------


def _signed(request: Request) -> dict[str, bytes]:
    headers = request_headers(request.path, request.body, KEY, _INSTANCE)
    return {name: value.encode("latin-1") for name, value in headers.items()}


@contextmanager
def _tablestore() -> Iterator[Callable[[Request], bool]]:
    with tempfile.TemporaryDirectory() as directory:
        client = Client(TablestoreApp(configuration(Path(directory))))

        def call(request: Request) -> bool:
            return client.send(request, _signed(request))[0] == 200

        try:
            yield call
        finally:
            client.close()


@cache
def _tablestore_requests() -> tuple[Request, ...]:
    """Return the requests that a store sends for tables, rows and tunnels, as the samples of random ones."""
    found: list[Request] = []
    with tempfile.TemporaryDirectory() as directory:
        client = Client(TablestoreApp(configuration(Path(directory))))

        def exchange(self: TablestoreConnection, path: str, headers: Mapping[str, str], body: bytes) -> Any:
            found.append(Request(path, body))
            raw = {name: value.encode("latin-1") for name, value in headers.items()}
            return client.send(found[-1], raw)

        with mock.patch.object(TablestoreConnection, "_exchange", exchange):
            _use_tablestore()
        client.close()
    return tuple(found)


def _use_tablestore() -> None:
    url = f"tablestore+http://127.0.0.1:1/{_INSTANCE}"
    with headrace.open(url, access_key_id=KEY.access_key_id, access_key_secret=KEY.access_key_secret) as store:
        columns = {"user": "string", "n": "long", "price": "double", "fine": "boolean", "data": "binary"}
        table = store.create_table("t", columns, ["user", "n"])
        rows = [{"user": f"u{n}", "n": n, "price": n / 4, "fine": True, "data": b"\xff"} for n in range(5)]
        tunnel = store.create_tunnel("t", "all")
        table.put(rows)
        table.update([{"user": "u1", "n": 1, "price": 9.0}])
        table.delete([{"user": "u2", "n": 2}])
        table.get({"user": "u1", "n": 1})
        table.scan(["price"], [("price", ">", 0.5), ("user", "=", "u3")]).read_all()
        store.tables()
        tunnel.describe()
        for channel in tunnel.channels():
            with suppress(headrace.HeadraceError):
                tunnel.read(channel.id, channel.committed, 10)
        lease = tunnel.connect(timeout=60)
        lease.heartbeat([])
        store.drop_tunnel("all")
        store.drop_table("t")


def _draw_tablestore(chance: random.Random) -> Request:
    samples = _tablestore_requests()
    chosen = chance.choice(samples)
    body = mutations.changed(chance, [each.body for each in samples if each.path == chosen.path])
    if chance.random() < 0.1:
        chosen = chance.choice(samples)
    return chosen if chance.random() < 0.2 else chosen._replace(body=body)


# -- YTsaurus --------------------------------------------------------------------------------------------------


@contextmanager
def _ytsaurus() -> Iterator[Callable[[Request], bool]]:
    with tempfile.TemporaryDirectory() as directory:
        environ = {"HEADRACE_YT_TOKEN": _TOKEN}
        app = YtsaurusApp(Configuration.load(directory, cluster_name="primary", environ=environ))
        client = Client(app)
        create_objects(app.cluster)

        def call(request: Request) -> bool:
            headers = {"authorization": f"OAuth {_TOKEN}".encode(), **dict(request.headers)}
            status, told, _ = client.send(request, headers)
            return status < 400 and told.get("x-yt-response-code", "0") == "0"

        try:
            yield call
        finally:
            client.close()


def _draw_ytsaurus(chance: random.Random) -> Request:
    name = chance.choice(TRIED)
    given: dict[str, Any] = {
        each: chance.choice([*values, *ODD]) for each, values in NAMES.items() if chance.random() < 0.6
    }
    given |= {chance.choice(OTHERS): chance.choice(ODD) for _ in range(chance.choice((0, 1, 3)))}
    try:
        written, form = dumps(given), b"<format=text>yson"
    except YsonError:
        # Numbers that YSON cannot hold.
        written, form = json.dumps(given, default=repr).encode(), b"json"
    if chance.random() < 0.4:
        written = mutations.changed(chance, [written])
    body = chance.choice(BODIES)
    if chance.random() < 0.5:
        body = mutations.changed(chance, BODIES)
    headers = [("x-yt-header-format", form), ("x-yt-parameters", written.replace(b"\n", b" "))]
    if chance.random() < 0.5:
        headers.append(("x-yt-input-format", chance.choice((b"json", b"yson", b"<format=text>yson"))))
    return Request(f"/api/v4/{name}", body, tuple(headers), method_of(COMMANDS[name]))


ENDPOINTS: dict[str, Target] = {
    "Tablestore endpoint": Target((), _draw_tablestore, _tablestore),
    "YTsaurus endpoint": Target((), _draw_ytsaurus, _ytsaurus),
}
