"""The pages, over HTTP."""

from __future__ import annotations

import html
import http.client
import json
import re
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pyarrow as pa
import pytest

import headrace
from headrace.errors import OptionError
from headrace.inspect.querying import engine
from headrace.model.tunnels.lag import Lag
from headrace.ports import Store
from headrace.streaming_sql.stream_history import BatchRecord
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.ui.server import UiThread
from tests.ui.conftest import BATCH, ERROR, REMEDY, SCRIPT, SECRET, Browser

PAGES = (
    "/", "/tables", "/table?name=orders", "/table/rows?name=orders", "/table/changes?name=orders", "/tunnels",
    "/queues", "/queue?name=clicks", "/queue/rows?name=clicks", "/consumers", "/producers", "/query",
    "/stream?name=running_one", "/stream?name=failed_one",
)  # fmt: skip


def test_every_page_is_complete_and_shows_no_secret(page: Browser, streams: StreamRegistry, shop: Store) -> None:
    tunnel = shop.tunnels()[0].id
    for path in (*PAGES, f"/tunnel?id={tunnel}"):
        answer = page.get(path)
        assert (answer.status, answer.text.rstrip()[-7:]) == (200, "</html>"), path
        assert SECRET not in answer.text
        assert not re.search(r"<script(?![^>]* src=)|\son[a-z]+=|\sstyle=", answer.text), path


def test_a_stream_shows_its_graph_its_batches_its_guarantee_and_its_error(
    page: Browser, streams: StreamRegistry
) -> None:
    running, failed = (html.unescape(page.get(f"/stream?name={name}").text) for name in ("running_one", "failed_one"))
    assert all(each in running for each in ("orders_now", "tunnel <b>statistics</b>", "1,234 rows/s", "lag 38"))
    assert "exactly once" in running
    assert "read, compute and write" in running
    assert ERROR in failed
    assert REMEDY in failed


def test_failed_streams_are_first_and_states_are_filters(page: Browser, streams: StreamRegistry) -> None:
    def shown(path: str) -> list[str]:
        return re.findall(r'<strong><a href="/stream\?name=(\w+)">', page.get(path).text)

    assert shown("/") == ["failed_one", "running_one"]
    assert shown("/?state=running") == ["running_one"]
    assert shown("/?state=lost") == []
    assert "No stream is lost" in page.get("/?state=lost").text
    assert 'href="/?state=failed&amp;q=one"' in page.get("/?q=one").text
    assert '<input type="hidden" name="state" value="lost">' in page.get("/?state=lost").text
    text = html.unescape(page.get("/").text)
    assert re.search(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC: {re.escape(ERROR)}", text)
    # A stream that does not run reports no lag.
    assert "lag unknown" in text.partition("running_one")[0]
    assert 'href="/table?name=orders">totals</a>' in text
    assert "<b>file://" in text


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/?state=bogus", "Unknown state in the address of the page; received: 'bogus'; valid: starting, running, "),
        ("/stream?name=failed_one&period=week", "Unknown period in the address of the page; received: 'week'; valid: "),
        ("/queue/rows?name=clicks&partition=9", "Unknown partition in the address of the page; received: '9'; valid: "),
    ],
)
def test_an_unknown_value_in_an_address_is_an_error(
    page: Browser, streams: StreamRegistry, path: str, problem: str
) -> None:
    answer = page.get(path)
    assert answer.status == 400
    assert problem in html.unescape(answer.text)


def test_an_error_of_an_earlier_run_is_no_alarm(page: Browser, streams: StreamRegistry) -> None:
    assert "The stream has failed" in page.get("/stream?name=failed_one").text
    script = SCRIPT.format(name="failed_one")
    streams.record_start("failed_one", script=script, fingerprint="failed_one", target="totals", checkpoint="/nowhere")
    streams.set_running("failed_one", "0f8f3a53-1111-4222-8333-944444444444")
    text = page.get("/stream?name=failed_one").text
    assert "The stream has failed" not in text
    assert "An earlier run failed" in text


def test_charts_show_their_period_and_no_line_over_an_idle_time(page: Browser, streams: StreamRegistry) -> None:
    def charts() -> list[dict[str, Any]]:
        text = page.get("/stream?name=running_one").text
        return [json.loads(html.unescape(each)) for each in re.findall(r'data-chart="([^"]*)"', text)]

    begin, end = charts()[0]["range"]
    assert end - begin == 3600
    assert begin < time.time() <= end
    idle = BatchRecord(time.time() - 1800, 100, 5, 5, BATCH, None, None)
    streams.set_progress("running_one", 100, 1.0, Lag(1), [idle])
    rows = charts()[0]
    assert rows["lines"][0]["y"] == [5, None, 100, 100, 100]
    assert len(rows["x"]) == 5
    assert rows["x"] == sorted(rows["x"])


def test_headraces_own_tables_are_not_among_the_users_tables(page: Browser, shop: Store) -> None:
    shop.create_table("__headrace_state_x", {"id": "long"}, "id")
    assert "__headrace_state_x" not in page.get("/tables").text
    assert "__headrace_state_x" in page.get("/tables?q=__headrace_").text
    text = page.get("/query").text
    assert "__headrace_state_x" not in text
    assert "customer string, id long, price double, note string" in text


def test_rows_are_paged_by_key_without_gaps_and_repetitions(page: Browser) -> None:
    path, found = "/table/rows?name=orders", []
    while path:
        text = html.unescape(page.get(path).text)
        found += re.findall(r'<tr><td>(c\d)</td><td class="num">(\d+)</td>', text)
        following = re.search(r'rel="next" href="([^"]*)"', text)
        path = following[1] if following else ""
    assert [(customer, int(number)) for customer, number in found] == sorted((f"c{i % 7}", i) for i in range(300))


@pytest.mark.parametrize(
    ("column", "operator", "value", "count"),
    [("customer", "=", "c3", 43), ("price", ">=", "74", 4), ("id", "in", "1, 2", 2), ("note", "is not null", "", 1)],
)
def test_rows_are_filtered(page: Browser, column: str, operator: str, value: str, count: int) -> None:
    given = urlencode({"name": "orders", "column": column, "operator": operator, "value": value})
    text = page.get(f"/table/rows?{given}").text
    assert len(re.findall(r"<tr><td>c\d", text)) == count


def test_a_filter_looks_at_a_limited_number_of_rows(page: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.ui.rows.LOOK_ROWS", 100)
    text = html.unescape(page.get("/table/rows?name=orders&column=price&operator=%3E&value=1000").text)
    assert "looked at 100 rows" in text
    assert "Look further" in text


def test_values_are_escaped(page: Browser) -> None:
    text = page.get("/table/rows?name=orders").text
    assert "&lt;b&gt;&amp;" in text
    assert "<b>&</" not in text


def test_a_wrong_filter_a_missing_table_and_a_missing_page_are_explained(page: Browser) -> None:
    wrong = page.get("/table/rows?name=orders&column=price&operator=%3D&value=many")
    assert wrong.status == 400
    assert "does not fit column" in wrong.text
    assert page.get("/table?name=absent").status == 404
    assert page.get("/table/rows?name=orders&after=nonsense").status == 400
    assert page.get("/absent").status == 404


def test_a_query_shows_its_result_and_errors(page: Browser) -> None:
    token = page.form_token()
    sql = "SELECT customer, count(*) AS orders FROM orders GROUP BY 1 ORDER BY 1"
    answer = page.post("/query", {"sql": sql, "form_token": token})
    assert answer.status == 200
    assert "c6" in answer.text
    assert "data-chart" in answer.text
    refused = page.post("/query", {"sql": "DROP TABLE orders", "form_token": token})
    assert refused.status == 400
    assert "one SELECT" in refused.text


def test_dates_that_python_does_not_have_are_shown(page: Browser, shop: Store) -> None:
    late = pa.table({"id": pa.array([1]), "due": pa.array([50_000_000], pa.int32()).cast(pa.date32())})
    shop.create_table("late", {"id": "long", "due": "date"}, ["id"])
    shop.create_tunnel("late", "all")
    shop.table("late").put(late)
    shop.create_queue("late_queue", {"id": "long", "due": "date"}).append(late)
    for path in ("/table/rows?name=late", "/table/changes?name=late", "/queue/rows?name=late_queue"):
        answer = page.get(path)
        assert (answer.status, "value out of range: 50000000" in answer.text) == (200, True), path
    sql = "SELECT due, id FROM late UNION ALL SELECT 'infinity'::date, 2"
    assert page.post("/query", {"sql": sql, "form_token": page.form_token()}).status == 200


def test_slow_queries_keep_no_page_waiting(page: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    running, released = threading.Semaphore(0), threading.Event()

    def wait(*_: object, **__: object) -> None:
        running.release()
        released.wait(30)
        raise OptionError("released")

    monkeypatch.setattr(engine, "run", wait)
    form = {"sql": "SELECT 1", "form_token": page.form_token()}
    queries = [threading.Thread(target=page.post, args=("/query", form)) for _ in range(8)]
    for each in queries:
        each.start()
    assert running.acquire(timeout=30)
    assert page.get("/tables").status == 200
    assert not released.is_set()
    released.set()
    for each in queries:
        each.join()


def test_consumers_are_drawn_between_the_first_and_the_next_row(page: Browser) -> None:
    assert 'class="done" width="75.0%"' in page.get("/queue?name=clicks").text


def test_the_page_of_changes_shows_the_newest_and_commits_nothing(page: Browser, shop: Store) -> None:
    orders = shop.table("orders")
    orders.split()
    # In a channel whose parent is not read.
    orders.put({"customer": "newest", "id": 1})
    tunnel = shop.tunnel("statistics")
    before = [each.committed for each in tunnel.channels()]
    assert "newest" in page.get("/table/changes?name=orders").text
    assert [each.committed for each in tunnel.channels()] == before


def test_changes_are_shown_after_base_data_was_read_and_old_changes_were_removed(page: Browser, shop: Store) -> None:
    orders, tunnel = shop.table("orders"), shop.create_tunnel("orders", "late")
    changes = f"/table/changes?name=orders&tunnel={tunnel.id}"
    with tunnel.consume(idle="stop") as worker:
        for _ in worker:
            pass
    orders.put({"customer": "first", "id": 1})
    assert "first" in page.get(changes).text
    orders.trim(before={each.id: each.next for each in orders.describe().partitions}, cut_tunnels=True)
    orders.put({"customer": "second", "id": 1})
    text = page.get(changes).text
    assert "<td>second</td>" in text
    assert "<td>first</td>" not in text


def test_a_page_follows_changes_by_events(page: Browser, shop: Store) -> None:
    connection = http.client.HTTPConnection(urlsplit(page.address).netloc, timeout=30)
    connection.request("GET", "/live/tables")
    response = connection.getresponse()
    assert response.getheader("content-type") == "text/event-stream"
    assert "appeared" not in _next_event(response)
    shop.create_table("appeared", {"id": "long"}, "id")
    assert "appeared" in _next_event(response)
    connection.close()


def test_the_server_stops_without_waiting_for_pages_that_follow(
    tmp_path: Path, shop: Store, caplog: pytest.LogCaptureFixture
) -> None:
    server = UiThread(shop, tmp_path, 0)
    connection = http.client.HTTPConnection(urlsplit(server.address).netloc, timeout=30)
    connection.request("GET", "/live/tables")
    response = connection.getresponse()
    assert "orders" in _next_event(response)
    server.stop()
    # Whole: the last chunk has arrived.
    response.read()
    connection.close()
    assert "Cancel" not in caplog.text


def _next_event(response: http.client.HTTPResponse) -> str:
    while True:
        line = response.readline().decode()
        assert line, "the stream of events has ended"
        if line.startswith("data: "):
            return str(json.loads(line.removeprefix("data: ")))


def test_a_stream_is_stopped_and_dropped_only_with_its_name(page: Browser, streams: StreamRegistry) -> None:
    token = page.form_token()
    assert page.post("/stream/stop", {"name": "running_one", "form_token": token}).status == 303
    assert streams.asked_to_stop() == {"running_one"}
    assert page.post("/stream/drop", {"name": "failed_one", "typed": "wrong", "form_token": token}).status == 404
    assert streams.find("failed_one") is not None
    assert page.post("/stream/drop", {"name": "failed_one", "typed": "failed_one", "form_token": token}).status == 303
    assert streams.find("failed_one") is None


def test_a_running_stream_is_not_started_again(page: Browser, streams: StreamRegistry) -> None:
    answer = page.post("/stream/start", {"name": "running_one", "form_token": page.form_token()})
    assert answer.status == 409
    assert "already running" in answer.text


def test_the_metrics_of_streams_and_tunnels_are_served(page: Browser, streams: StreamRegistry) -> None:
    text = page.get("/metrics").text
    assert "headrace_stream" in text
    assert "headrace_tunnel_lag" in text


def test_without_a_store_there_are_streams_only(tmp_path: Path, streams: StreamRegistry) -> None:
    server = UiThread(None, tmp_path, 0)
    try:
        browser = Browser(server.address)
        assert "running_one" in browser.get("/").text
        assert 'href="/tables"' not in browser.get("/").text
        assert browser.get("/tables").status == 404
    finally:
        server.stop()


def test_lists_of_a_thousand_tables_are_paged_and_quick(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "many", create=True) as store:
        for number in range(1000):
            store.create_table(f"table_{number:04d}", {"id": "long"}, "id", change_log=False)
        server = UiThread(store, tmp_path, 0)
        try:
            browser = Browser(server.address)
            browser.get("/tables")
            begin = time.process_time()
            text = browser.get("/tables").text
            used = time.process_time() - begin
        finally:
            server.stop()
    assert len(re.findall(r'href="/table\?name=', text)) == 50
    assert "1,000 tables" in text
    assert used < 0.3
