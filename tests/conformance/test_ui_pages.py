"""The web page over every store: each page that the store has is served, and shows its rows and changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from headrace.ports import Store, Table
from headrace.testing import Place
from headrace.ui.server import UiThread
from tests.ui.conftest import Browser

COUNT = 130


@pytest.fixture
def page(store: Store, orders: Table, tmp_path: Path) -> Iterator[Browser]:
    """A client of the page of a store with a table of some rows."""
    orders.put([{"id": f"k{number:03d}", "price": number, "note": "base"} for number in range(COUNT)])
    server = UiThread(store, tmp_path, 0)
    yield Browser(server.address)
    server.stop()


def test_every_page_of_the_menu_is_served(page: Browser, store: Store) -> None:
    menu = re.findall(r'<a href="(/[a-z]*)"', page.get("/").text)
    assert ("/tunnels" in menu) == store.capabilities.tunnels
    assert ("/queues" in menu) == store.capabilities.queues
    for path in {*menu, "/table?name=orders"}:
        answer = page.get(path)
        assert (answer.status, answer.text.rstrip()[-7:]) == (200, "</html>"), path
    assert "key 1" in page.get("/table?name=orders").text


def test_rows_are_paged_filtered_and_queried(page: Browser) -> None:
    path, found = "/table/rows?name=orders", []
    while path:
        text = unescape(page.get(path).text)
        found += re.findall(r"<td>(k\d+)</td>", text)
        following = re.search(r'rel="next" href="([^"]*)"', text)
        path = following[1] if following else ""
    assert found == [f"k{number:03d}" for number in range(COUNT)]
    filtered = page.get("/table/rows?name=orders&column=price&operator=%3E%3D&value=128").text
    assert re.findall(r"<td>(k\d+)</td>", filtered) == ["k128", "k129"]
    form = {"sql": "SELECT sum(price) AS total FROM orders", "form_token": page.form_token()}
    assert "8385" in page.post("/query", form).text


@pytest.mark.needs("tunnels")
def test_a_tunnel_shows_its_channels_its_lag_and_its_changes(
    page: Browser, store: Store, orders: Table, place: Place
) -> None:
    tunnel = store.create_tunnel("orders", "followed", kind="Stream")
    orders.put({"id": "new", "price": 1})
    place.split("orders")
    shown = page.get(f"/tunnel?id={tunnel.id}")
    assert shown.status == 200
    assert all(f"<code>{each.id}</code>" in unescape(shown.text) for each in tunnel.channels())
    assert "followed" in page.get("/tunnels").text
    assert "followed" in page.get("/table?name=orders").text
    assert "<td>new</td>" in page.get("/table/changes?name=orders").text


@pytest.mark.needs("queues")
def test_a_queue_shows_its_rows_and_its_consumers(page: Browser, store: Store) -> None:
    queue = store.create_queue("clicks", {"page": "string"}, partitions=2)
    queue.append([{"page": f"/p{number}"} for number in range(4)], partition=1)
    store.create_consumer("readers")
    store.register_consumer("clicks", "readers", vital=True)
    store.consumer("readers").advance("clicks", {1: 1})
    assert 'class="done" width="25.0%"' in page.get("/queue?name=clicks").text
    assert "readers" in page.get("/consumers").text
    assert "<td>/p3</td>" in page.get("/queue/rows?name=clicks&partition=1").text
