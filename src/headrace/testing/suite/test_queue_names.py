"""The names of queues, consumers and producers, and the state after one of them is dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, SchemaError
from headrace.model.queues.values import RowRange
from headrace.ports import Queue, Store, Table
from headrace.testing import Place
from headrace.testing.queue_reading import consumer_of, data_in, edges, rows_in, values

pytestmark = pytest.mark.needs("queues")


def test_a_queue_is_found_by_its_name(place: Place, store: Store, queue: Queue) -> None:
    store.create_queue("a queue", {"data": "string"})
    assert store.queues() == ["a queue", "clicks"]
    assert store.tables() == []
    queue.append(values("a"), partition=0)
    with place.open() as other:
        assert data_in(other.queue("clicks")) == ["a"]
    with pytest.raises(NotFoundError, match="clicks"):
        store.queue("nothing")


def test_an_existing_queue_is_returned_on_request(store: Store, queue: Queue) -> None:
    queue.append(values("a"), partition=0)
    with pytest.raises(AlreadyExistsError):
        store.create_queue("clicks", {"data": "string"})
    again = store.create_queue("clicks", {"data": "string"}, partitions=7, exist_ok=True)
    assert edges(again) == [(0, 1), (0, 0), (0, 0)]
    with pytest.raises(SchemaError):
        store.create_queue("clicks", {"data": "long"}, exist_ok=True)
    with pytest.raises(SchemaError):
        store.create_queue("clicks", {"data": "string not null"}, exist_ok=True)


def test_all_kinds_of_objects_share_one_namespace(store: Store, queue: Queue, orders: Table) -> None:
    store.create_consumer("reader")
    store.create_producer("writer")
    kinds = {"orders": "table", "clicks": "queue", "reader": "consumer", "writer": "producer"}
    create: dict[str, Any] = {
        "queue": lambda name: store.create_queue(name, {"data": "string"}, exist_ok=True),
        "consumer": lambda name: store.create_consumer(name, exist_ok=True),
        "producer": lambda name: store.create_producer(name, exist_ok=True),
        "table": lambda name: store.create_table(name, {"id": "string", "n": "long"}, "id", exist_ok=True),
    }
    find: dict[str, Any] = {
        "queue": (store.queue, store.drop_queue),
        "consumer": (store.consumer, store.drop_consumer),
        "producer": (store.producer, store.drop_producer),
        "table": (store.table, store.drop_table),
    }
    for name, kind in kinds.items():
        for other in set(kinds.values()) - {kind}:
            with pytest.raises(AlreadyExistsError, match=f"{name}.*{kind}"):
                create[other](name)
            for function in find[other]:
                with pytest.raises(NotFoundError, match=name):
                    function(name)
    assert (store.tables(), store.queues()) == (["orders"], ["clicks"])
    assert (store.consumers(), store.producers()) == (["reader"], ["writer"])


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_a_name_is_a_non_empty_text(store: Store, name: str) -> None:
    for create in (store.create_consumer, store.create_producer):
        with pytest.raises(OptionError, match="name"):
            create(name)
    with pytest.raises(OptionError, match="name"):
        store.create_queue(name, {"data": "string"})


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"$timestamp": "timestamp"},
        {"data": "string", "$row_index": "long"},
        {"data": "string", "$timestamp": "int"},
    ],
)
def test_invalid_columns_of_a_queue_are_refused(store: Store, columns: dict[str, str]) -> None:
    with pytest.raises(SchemaError):
        store.create_queue("q", columns)
    assert store.queues() == []


def test_a_new_queue_with_the_name_of_a_dropped_one_begins_at_0(store: Store, queue: Queue) -> None:
    consumer = consumer_of(store, "reader", "clicks")
    producer = store.create_producer("writer")
    producer.open_session("clicks", "s")
    queue.append(values("a", "b"), partition=0)
    consumer.advance("clicks", {0: 1})
    store.drop_queue("clicks")
    assert store.queues() == []
    for use in (queue.bounds, queue.describe, lambda: queue.append(values("c")), lambda: queue.read(0, 0)):
        with pytest.raises(NotFoundError, match="clicks"):
            use()
    with pytest.raises(NotFoundError):
        store.drop_queue("clicks")
    store.drop_queue("clicks", missing_ok=True)
    assert (consumer.registrations(), producer.sessions()) == ([], [])
    # A handle finds its queue by name.
    store.create_queue("clicks", {"data": "string", "n": "long"})
    assert queue.append({"data": "c", "n": 1}) == [RowRange(0, 0, 1)]
    assert consumer.offsets("clicks") == {0: 0}
    assert rows_in(queue) == [{"data": "c", "n": 1}]


def test_each_store_has_its_own_id(place: Place, store: Store) -> None:
    with place.open() as again, replace(place, directory=place.directory / "other").open() as other:
        assert again.id == store.id
        assert other.id != store.id


def test_a_recreated_queue_has_another_id(place: Place, store: Store, queue: Queue) -> None:
    before = queue.id
    with place.open() as other:
        assert other.queue("clicks").id == before
    store.drop_queue("clicks")
    assert store.create_queue("clicks", {"data": "string"}).id != before
