"""A store with a little of everything, and the server of its page."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

import headrace
from headrace.model.tunnels.lag import Lag
from headrace.ports import Store
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.stream_history import BatchRecord
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace
from headrace.ui.server import UiThread

SECRET = "hunter2-hunter2"
ERROR, REMEDY = "NotFoundError: the tunnel does not exist", "headrace tunnel create orders statistics"
SCRIPT = """\
CREATE SCAN orders_now ON orders USING STREAM OPTIONS (tunnel = 'statistics', readAs = 'table');
CREATE STREAM {name} OPTIONS (checkpointLocation = '/nowhere', outputMode = 'update')
INSERT INTO totals SELECT customer, count(*) AS orders FROM orders_now GROUP BY customer"""
BATCH = {"latestOffset": 0.1, "addBatch": 0.5, "triggerExecution": 0.7}


@dataclass
class Answer:
    """The response to one request."""

    status: int
    text: str
    headers: dict[str, str]


@dataclass
class Browser:
    """A client that keeps cookies."""

    address: str
    cookies: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, form: dict[str, str] | None = None, **headers: str) -> Answer:
        """Send a request; underscores in the names of headers are hyphens."""
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=30)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if form is not None:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request(method, path, None if form is None else urlencode(form), sent)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        if "set-cookie" in found:
            name, _, value = found["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value
        answer = Answer(response.status, response.read().decode(), found)
        connection.close()
        return answer

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, **headers)

    def post(self, path: str, form: dict[str, str], **headers: str) -> Answer:
        return self.ask("POST", path, form, **headers)

    def form_token(self) -> str:
        """Return the token of the forms on a page."""
        return self.get("/query").text.partition('name="form_token" value="')[2].partition('"')[0]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "shop", create=True) as store:
        orders = store.create_table(
            "orders", {"customer": "string", "id": "long", "price": "double", "note": "string"}, ["customer", "id"]
        )
        store.create_tunnel("orders", "statistics")
        orders.put(
            [{"customer": f"c{i % 7}", "id": i, "price": i / 4, "note": "<b>&" if i == 0 else None} for i in range(300)]
        )
        clicks = store.create_queue("clicks", {"page": "string"}, partitions=2)
        clicks.append([{"page": f"/p{i}"} for i in range(120)], partition=0)
        store.create_consumer("dashboards")
        store.register_consumer("clicks", "dashboards", vital=True)
        store.consumer("dashboards").advance("clicks", {0: 90})
        store.create_producer("web").open_session("clicks", "server-1")
        yield store


@pytest.fixture
def registry(tmp_path: Path, shop: Store) -> Iterator[StreamRegistry]:
    """A workspace with a running and a failed stream."""
    workspace = Workspace(tmp_path)
    catalog = Catalog(workspace)
    catalog.add_table(TableDefinition("orders", "headrace", {"store": shop.url, "table": "orders", "password": SECRET}))
    catalog.add_table(TableDefinition("totals", "headrace", {"store": shop.url, "table": "orders"}))
    registry = StreamRegistry(workspace)
    for name in ("running_one", "failed_one"):
        registry.record_start(
            name, script=SCRIPT.format(name=name), fingerprint=name, target="totals", checkpoint="/nowhere"
        )
        registry.set_running(name, "0f8f3a53-1111-4222-8333-944444444444")
    yield registry
    workspace.close()


@pytest.fixture
def streams(registry: StreamRegistry) -> StreamRegistry:
    """The registry, after a batch of one stream and the failure of the other one."""
    now = time.time()
    batches = [
        BatchRecord(now - 10 + i, i, 100, 7, BATCH, Lag(40 - i), now - 20, state_rows=7, state_bytes=2048)
        for i in range(3)
    ]
    registry.set_progress("running_one", 2, 1234.0, Lag(38), batches)
    registry.set_ended("failed_one", "failed", ERROR, REMEDY)
    return registry


@pytest.fixture
def page(tmp_path: Path, shop: Store) -> Iterator[Browser]:
    """A client of the page without a password."""
    server = UiThread(shop, tmp_path, 0)
    yield Browser(server.address)
    server.stop()
