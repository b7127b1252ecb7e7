"""The pages in Chromium: live updates, keys, sizes, accessibility, and a stream through kill and restart."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest

import headrace
from headrace.ports import Store
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace
from headrace.ui.server import UiThread
from tests.postgres_server import USER, PostgresServer, create_database
from tests.ui.conftest import Browser

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(__file__).with_name("axe-4.10.3.min.js")
PAGES = (
    "/", "/stream?name=running_one", "/stream?name=failed_one", "/tables", "/table?name=orders",
    "/table/rows?name=orders", "/table/changes?name=orders", "/tunnels", "/queues", "/queue?name=clicks",
    "/queue/rows?name=clicks", "/consumers", "/producers", "/query", "/absent",
)  # fmt: skip
WIDTHS = (360, 1600)
SCHEMES: tuple[Any, ...] = ("light", "dark")
JOB = """\
CREATE TABLE source USING headrace OPTIONS (store = '{store}', table = 'orders');
CREATE TABLE sink USING headrace OPTIONS (store = '{store}', table = 'copies');
CREATE SCAN changes ON source USING STREAM OPTIONS (tunnel = 'statistics');
CREATE STREAM copying OPTIONS (checkpointLocation = '{checkpoint}', triggerIntervalMs = 500)
INSERT INTO sink SELECT id, price FROM changes"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Any) -> Iterator[Page]:
    """A tab of the browser. The test fails if a page reports an error or breaks its security policy."""
    context = chromium.new_context(viewport={"width": 1600, "height": 900})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if "Content Security" in message.text else None)
    yield page
    context.close()
    assert errors == []


def problems(tab: Page) -> dict[Any, list[Any]]:
    """Return what axe-core finds serious on the shown page, in light and in dark colours."""
    # By the debugger: the page's policy forbids scripts from elsewhere.
    debugger = tab.context.new_cdp_session(tab)
    debugger.send("Runtime.evaluate", {"expression": AXE.read_text()})
    run = "axe.run().then(r => r.violations.filter(v => ['serious', 'critical'].includes(v.impact))"
    shorter = ".map(v => [v.id, v.nodes.map(n => n.target.join(' ')).slice(0, 3)]))"
    found: dict[Any, list[Any]] = {}
    for scheme in SCHEMES:
        # Without motion, no colour is in transition.
        tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        arguments = {"expression": run + shorter, "awaitPromise": True, "returnByValue": True}
        found[scheme] = list(debugger.send("Runtime.evaluate", arguments)["result"]["value"])
    return {scheme: serious for scheme, serious in found.items() if serious}


def test_pages_are_accessible_and_fit_small_and_large_screens(
    tab: Page, page: Browser, shop: Store, streams: StreamRegistry
) -> None:
    found: dict[Any, Any] = {}
    for path in (*PAGES, f"/tunnel?id={shop.tunnel('statistics').id}"):
        tab.goto(page.address + path)
        for width in WIDTHS:
            tab.set_viewport_size({"width": width, "height": 800})
            if tab.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found[path, width] = ["the page scrolls sideways"]
        if serious := problems(tab):
            found[path] = serious
    assert found == {}


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresServer]:
    """A server of these tests alone: other tests would write to its log."""
    server = PostgresServer.start(max_wal_size="32MB", min_wal_size="32MB", max_slot_wal_keep_size="160MB")
    create_database(server.port, "shop")
    yield server
    server.remove()


def test_a_slot_is_a_picture_with_a_text_from_its_first_log_to_its_loss(
    tab: Page, cluster: PostgresServer, tmp_path: Path
) -> None:
    url = f"postgresql://{USER}@127.0.0.1:{cluster.port}/shop"
    with headrace.open(url) as store, psycopg.connect(url, autocommit=True) as connection:
        store.create_table("orders", {"id": "long"}, "id")
        tunnel = store.create_tunnel("orders", "paused", "Stream")
        store.table("orders").put({"id": 1})
        server = UiThread(store, tmp_path, 0)

        def write(rows: int) -> None:
            connection.execute("CREATE TABLE busy AS SELECT repeat('x', 1000) FROM generate_series(1, %s)", [rows])
            connection.execute("DROP TABLE busy")

        try:
            tab.goto(f"{server.address}/tunnel?id={tunnel.id}")
            tab.locator(".card.slot .badge.reserved").wait_for()
            write(70_000)
            tab.locator(".card.slot .badge.extended").wait_for()
            picture = tab.get_by_role("img", name=re.compile("Log of the server for slot headrace_"))
            text = picture.get_attribute("aria-label") or ""
            assert re.search(r"not read [67]\d MiB, free up to the limit \d+ MiB\. Positions: restart_lsn ", text)
            names = ["restart_lsn", "confirmed_flush_lsn", "current_lsn", "max_slot_wal_keep_size"]
            assert tab.locator(".marks dt").all_inner_texts() == names
            places = [float((each.get_attribute("x1") or "").rstrip("%")) for each in picture.locator(".mark").all()]
            assert places == sorted(places)
            assert 30 < places[2] < 60 < places[3]
            for width in WIDTHS:
                tab.set_viewport_size({"width": width, "height": 800})
                assert not tab.evaluate("document.documentElement.scrollWidth > innerWidth")
            assert problems(tab) == {}
            tab.goto(server.address)
            tab.locator(".held .badge.extended").wait_for()
            assert problems(tab) == {}
            for _ in range(2):
                write(70_000)
            connection.execute("CHECKPOINT")
            tab.locator(".held .badge.lost").wait_for()
            tab.goto(f"{server.address}/tunnels")
            tab.locator(".grid .badge.lost").wait_for()
            tab.goto(f"{server.address}/tunnel?id={tunnel.id}")
            tab.locator(".card.slot .badge.lost").wait_for()
            assert tab.locator("svg.log").count() == 0
        finally:
            server.stop()


def test_a_page_updates_without_a_jump(tab: Page, page: Browser, shop: Store) -> None:
    tab.goto(f"{page.address}/table?name=orders")
    tab.locator("[aria-label=Partitions]").focus()
    tab.evaluate("new PerformanceObserver(list => window.shifts = list.getEntries()).observe({type: 'layout-shift'})")
    shop.table("orders").put([{"customer": "new", "id": number} for number in range(700)])
    tab.locator(".fact dd", has_text="1,000").wait_for()
    # Cells of a column may move by the width of a digit. A shift of 0.1 is what people notice.
    assert tab.evaluate("(window.shifts ?? []).reduce((sum, shift) => sum + shift.value, 0)") < 0.001
    assert tab.evaluate("document.activeElement.ariaLabel") == "Partitions"


def test_a_query_runs_by_keys_only(tab: Page, page: Browser) -> None:
    tab.goto(f"{page.address}/query")
    tab.locator("#sql").focus()
    tab.keyboard.type("SELECT id, price FROM orders ORDER BY id LIMIT 20")
    tab.keyboard.press("Control+Enter")
    tab.wait_for_selector("#result .uplot")
    assert tab.locator("#result .grid tbody tr").count() == 20


def test_the_chosen_colours_stay(tab: Page, page: Browser) -> None:
    tab.goto(page.address)
    button = tab.locator("#theme")
    button.press("Enter")
    button.press("Enter")
    tab.goto(f"{page.address}/tables")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_stream_is_followed_through_kill_and_restart(tab: Page, tmp_path: Path) -> None:
    with headrace.open(tmp_path / "shop", create=True) as store:
        orders = store.create_table("orders", {"id": "long", "price": "double"}, "id")
        store.create_table("copies", {"id": "long", "price": "double"}, "id")
        store.create_tunnel("orders", "statistics")
        orders.put([{"id": number, "price": 1.0} for number in range(100)])
        script = tmp_path / "job.sql"
        script.write_text(JOB.format(store=store.url, checkpoint=tmp_path / "checkpoint"))
        arguments = [sys.executable, "-m", "headrace.cli.main", "run", str(script), "--workspace", str(tmp_path)]
        server, registry = UiThread(store, tmp_path, 0), StreamRegistry(Workspace(tmp_path))
        log = (tmp_path / "driver.log").open("wb")
        driver = subprocess.Popen(arguments, start_new_session=True, stdout=log, stderr=log)
        try:
            tab.goto(server.address)
            tab.wait_for_selector("text=copying >> visible=true", timeout=120_000)
            tab.goto(f"{server.address}/stream?name=copying")
            tab.wait_for_selector(".badge.running", timeout=120_000)
            _wait(lambda: store.table("copies").describe().rows == 100)
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            tab.wait_for_selector(".badge.lost", timeout=60_000)
            orders.put([{"id": number, "price": 1.0} for number in range(100, 150)])
            tab.locator("summary", has_text="Start…").press("Enter")
            tab.get_by_role("button", name="Start copying").press("Enter")
            tab.wait_for_selector(".badge.running", timeout=120_000)
            _wait(lambda: store.table("copies").describe().rows == 150)
            tab.locator("summary", has_text="Stop…").press("Enter")
            tab.get_by_role("button", name="Stop copying").press("Enter")
            tab.wait_for_selector(".badge.stopped", timeout=60_000)
            # The page collects the process that it has started.
            _wait(lambda: not psutil.pid_exists(registry.get("copying").pid))
        finally:
            if (found := registry.find("copying")) is not None and found.is_live:
                os.killpg(found.pid, signal.SIGKILL)
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
            log.close()
            server.stop()


def _wait(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not hold in time"
        time.sleep(0.1)
