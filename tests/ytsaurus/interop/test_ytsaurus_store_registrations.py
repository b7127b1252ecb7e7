"""Registrations on clusters: delayed, in partial lists, and of consumers on other clusters."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from yt.wrapper import YtClient
from yt.wrapper.errors import YtResponseError

import headrace
from headrace.ports import Store
from headrace.testing.queue_reading import consumer_of, edges, values
from headrace_ytsaurus.store.connection import YtConnection
from headrace_ytsaurus.wire.errors import YtError
from tests.ytsaurus.interop.ytsaurus_server import TOKEN, YtServer

LIST = "list_queue_consumer_registrations"


@pytest.fixture
def store(yt_server: YtServer, home: str) -> Store:
    store = headrace.open(f"yt+{yt_server.url}{home}", token=TOKEN, retry_seconds=10)
    store.create_queue("q", {"data": "string"}).append(values("a", "b", "c"))
    return store


def test_a_consumer_is_usable_after_registration(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    listing, asked = getattr(YtClient, LIST), []

    def late(client: YtClient, **filters: Any) -> Any:
        asked.append(filters)
        return [] if len(asked) < 3 else listing(client, **filters)

    monkeypatch.setattr(YtClient, LIST, late)
    consumer = consumer_of(store, "reader", "q", vital=True)
    consumer.advance("q", {0: 2}, {0: 0})
    assert consumer.offsets("q") == {0: 2}


def test_registrations_are_found_on_clusters_with_partial_lists(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = getattr(YtClient, LIST)

    def refusing(client: YtClient, **filters: Any) -> Any:
        if not any(filters.values()):
            raise YtResponseError({"code": 1, "message": "Listing all registrations is disabled"})
        return listing(client, **filters)

    consumer_of(store, "reader", "q")
    other = f"//registrations/{uuid.uuid4().hex}/elsewhere"
    store.create_queue(other, {"data": "string"})
    store.register_consumer(other, "reader")
    monkeypatch.setattr(YtClient, LIST, refusing)
    assert [(one.queue, one.consumer) for one in store.registrations()] == [(other, "reader"), ("q", "reader")]


def test_a_consumer_has_a_status_before_the_queue_agents_pass(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = YtConnection.attribute

    def attribute(self: YtConnection, path: str, name: str, default: Any = None) -> Any:
        if name == "queue_consumer_partitions":
            raise YtError(3105, "Object is not mapped to any queue agent")
        return asking(self, path, name, default)

    monkeypatch.setattr(YtConnection, "attribute", attribute)
    (partition,) = consumer_of(store, "reader", "q").status("q")
    assert (partition.unread_rows, partition.last_consumed) == (3, None)


def test_rows_are_kept_for_a_vital_consumer_on_another_cluster(store: Store, yt_server: YtServer, home: str) -> None:
    client = YtClient(proxy=yt_server.url, token=TOKEN)
    consumer_of(store, "reader", "q", vital=True).advance("q", {0: 3})
    client.register_queue_consumer(f"{home}/q", "faraway://tmp/consumer", vital=True)
    assert store.queue("q").trim() == 0
    assert edges(store.queue("q")) == [(0, 3)]
    client.unregister_queue_consumer(f"{home}/q", "faraway://tmp/consumer")
    assert store.queue("q").trim() == 3
