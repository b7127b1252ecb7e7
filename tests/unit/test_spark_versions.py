"""Readers for versions of Spark that do not name the start of a batch, and what old versions refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.batches.feeds.feed import Offset
from headrace.errors import UnsupportedError
from headrace.ports import Store
from headrace.spark import versions
from headrace.spark.data_sources import data_source
from headrace.spark.stream_reader import StreamReader
from headrace.spark.versions import _WithoutStarts


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "shop", create=True, synchronous="off") as store:
        store.create_table("orders", {"id": "long"}, "id")
        store.create_tunnel("orders", "changes")
        store.create_queue("clicks", {"id": "long"})
        yield store


def started(store: Store, **options: str) -> _WithoutStarts:
    """Return the reader of a query in a new process."""
    source = data_source("headrace")({"store": store.url, "maxRowsPerTrigger": "10", **options})
    return _WithoutStarts(StreamReader(source.source, source.schema()))


def read(reader: _WithoutStarts, start: Offset, end: Offset) -> list[int]:
    """Return the rows of a batch."""
    batches = [rows for task in reader.partitions(start, end) for rows in reader.read(task)]
    return sorted(pa.Table.from_batches(batches)["id"].to_pylist()) if batches else []


@pytest.mark.parametrize("options", [{"tunnel": "changes"}, {"path": "clicks", "startingPosition": "earliest"}])
def test_batches_follow_each_other_also_after_restarts(store: Store, options: dict[str, Any]) -> None:
    rows = [{"id": number} for number in range(25)]
    (store.table("orders").put if "tunnel" in options else store.queue("clicks").append)(rows)
    reader = started(store, **options)
    first = reader.latestOffset()
    # With availableNow, Spark asks again for its progress report.
    assert reader.latestOffset() == first
    start = reader.initialOffset()
    assert read(reader, start, first) == list(range(10))
    reader.stop()

    # The first batch was not completed: Spark plans an empty one at its end, and repeats it.
    reader = started(store, **options)
    assert reader.partitions(first, first) == []
    assert read(reader, reader.initialOffset(), first) == list(range(10))
    second = reader.latestOffset()
    assert read(reader, first, second) == list(range(10, 20))
    reader.commit(first)
    reader.stop()

    # The second batch was completed.
    reader = started(store, **options)
    assert reader.partitions(second, second) == []
    third = reader.latestOffset()
    assert read(reader, second, third) == list(range(20, 25))
    assert reader.latestOffset() == third
    reader.stop()


def test_an_old_version_refuses_a_missing_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "INSTALLED", (4, 0))
    with pytest.raises(UnsupportedError, match=r"Option `pushDownFilters` needs a newer Spark.*pyspark 4\.1 and newer"):
        versions.FILTERS.check()


@pytest.mark.parametrize(
    ("installed", "trigger", "started"),
    [
        ((4, 1), {"availableNow": True}, {"processingTime": "0 seconds"}),
        ((4, 1), {"once": True}, {"once": True}),
        ((4, 2), {"availableNow": True}, {"availableNow": True}),
    ],
)
def test_an_old_version_gets_another_trigger(
    installed: tuple[int, int], trigger: dict[str, Any], started: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "INSTALLED", installed)
    assert versions.trigger_of(trigger) == started


@pytest.mark.parametrize(
    ("text", "version"), [("4.0.5", (4, 0)), ("4.3.0.dev1", (4, 3)), ("17.3.4", (17, 3)), ("4.10.0", (4, 10))]
)
def test_versions_are_numbers(text: str, version: tuple[int, int]) -> None:
    assert versions._numbers(text) == version
