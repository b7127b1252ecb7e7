"""What a use of a format reads is chosen once, with the one opening of the store."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

import headrace
from headrace.errors import OptionError, UnsupportedError
from headrace.formats.registry import source_of
from headrace.formats.source import QueueRead, TableRead, TunnelRead
from headrace.ports import Store
from headrace.spark.data_sources import FormatDataSource, data_source
from headrace.spark.stream_reader import StreamReader
from headrace.stores import registry


@pytest.fixture
def store(tmp_path: Path) -> str:
    with headrace.open(tmp_path / "shop", create=True, synchronous="off") as store:
        store.create_table("orders", {"id": "long"}, "id")
        store.create_tunnel("orders", "changes")
        store.create_queue("clicks", {"user": "string"})
        store.create_consumer("stats")
        return store.url


@pytest.mark.parametrize(
    ("options", "stream", "batch"),
    [
        ({"tunnel": "changes"}, TunnelRead, None),
        ({"table": "orders"}, TunnelRead, TableRead),
        ({"path": "clicks"}, QueueRead, QueueRead),
        ({"queue": "clicks"}, QueueRead, QueueRead),
        ({"queues": "clicks"}, QueueRead, QueueRead),
        ({"path": "clicks", "consumer": "stats"}, QueueRead, QueueRead),
    ],
)
def test_the_options_and_the_store_say_what_is_read(
    store: str, options: dict[str, str], stream: type, batch: type | None
) -> None:
    source = source_of("headrace", {"store": store, **options})
    with source.open_store() as opened:
        assert isinstance(source.stream(opened), stream)
        if batch is not None:
            assert isinstance(source.batch(opened), batch)


def test_a_stream_of_a_table_is_refused(store: str) -> None:
    with headrace.open(store) as opened:
        with pytest.raises(OptionError, match="option tunnel is missing for a stream"):
            source_of("headrace", {"store": store, "table": "orders"}).stream(opened).feed(opened)
        with pytest.raises(UnsupportedError, match="format yt reads queues as streams"):
            source_of("yt", {"store": store, "path": "orders"}).stream(opened)


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of all stores that are opened."""
    opened: list[str] = []
    open_store = registry.open

    def noted(url: str, **options: Any) -> Store:
        opened.append(url)
        return open_store(url, **options)

    monkeypatch.setattr(registry, "open", noted)
    return opened


def planned(store: str, options: dict[str, str]) -> tuple[FormatDataSource, StructType]:
    """Return a data source and its schema, in another process than the one that asked for the schema."""
    source = data_source("headrace")({"store": store, **options})
    schema = source.schema()
    source.source = pickle.loads(pickle.dumps(source.source))
    return source, schema


@pytest.mark.parametrize("options", [{"tunnel": "changes"}, {"path": "clicks"}, {"queue": "clicks"}])
def test_a_stream_opens_its_store_once_before_the_first_offset(
    store: str, options: dict[str, str], openings: list[str]
) -> None:
    source, schema = planned(store, options)
    openings.clear()
    reader = StreamReader(source.source, schema)
    reader.next_offset(reader.initialOffset())
    reader.stop()
    assert openings == [store]


@pytest.mark.parametrize("path", ["orders", "clicks"])
def test_a_batch_opens_its_store_once_to_plan_its_tasks(store: str, path: str, openings: list[str]) -> None:
    source, schema = planned(store, {"path": path})
    openings.clear()
    source.reader(schema).partitions()
    assert openings == [store]
