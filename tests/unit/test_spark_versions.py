"""Readers for versions of Spark that do not name the start of a batch, and what old versions refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

import headrace
from headrace.batches.feeds.feed import PAST_START, Offset
from headrace.errors import UnsupportedError
from headrace.ports import Store
from headrace.spark import old_streams, versions
from headrace.spark.data_sources import data_source
from headrace.spark.old_streams import ReaderWithoutStarts
from headrace.spark.stream_reader import StreamReader


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "shop", create=True, synchronous="off") as store:
        store.create_table("orders", {"id": "long"}, "id")
        store.create_tunnel("orders", "changes")
        store.create_queue("clicks", {"id": "long"})
        yield store


def started(store: Store, **options: str) -> ReaderWithoutStarts:
    """Return the reader of a query in a new process."""
    source = data_source("headrace")({"store": store.url, "maxRowsPerTrigger": "10", **options})
    return ReaderWithoutStarts(StreamReader(source.source, source.schema()))


def read(reader: ReaderWithoutStarts, start: Offset, end: Offset) -> list[int]:
    """Return the rows of a batch."""
    batches = [rows for task in reader.partitions(start, end) for rows in reader.read(task)]
    return sorted(pa.Table.from_batches(batches)["id"].to_pylist()) if batches else []


@pytest.mark.parametrize("options", [{"tunnel": "changes"}, {"path": "clicks", "startingPosition": "earliest"}])
def test_batches_follow_each_other_also_after_restarts(store: Store, options: dict[str, Any]) -> None:
    rows = [{"id": number} for number in range(25)]
    (store.table("orders").put if "tunnel" in options else store.queue("clicks").append)(rows)
    reader = started(store, **options)
    first = reader.latestOffset()
    # With availableNow, Spark can ask again for its progress report.
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


@pytest.mark.parametrize("options", [{"tunnel": "changes"}, {"path": "clicks", "startingPosition": "earliest"}])
def test_rows_of_the_start_come_first_then_a_pause(store: Store, options: dict[str, Any]) -> None:
    write = store.table("orders").put if "tunnel" in options else store.queue("clicks").append
    write([{"id": number} for number in range(15)])
    reader = started(store, minRowsPerTrigger="5", **options)
    first = reader.latestOffset()
    write([{"id": number} for number in range(100, 104)])
    assert read(reader, reader.initialOffset(), first) == list(range(10))
    # The rest of the start are 5 rows; later rows are not in their batch, nor in the pause.
    second = reader.latestOffset()
    assert read(reader, first, second) == list(range(10, 15))
    assert [reader.latestOffset(), PAST_START in second] == [second, False]
    # The later rows are fewer than the minimum.
    assert reader.latestOffset() == second
    write([{"id": 104}])
    third = reader.latestOffset()
    assert PAST_START in third
    assert read(reader, second, third) == list(range(100, 105))
    assert reader.latestOffset() == third
    reader.stop()

    # A new run has rows of its start again, and reads the offset of the former one.
    write([{"id": number} for number in range(200, 202)])
    reader = started(store, minRowsPerTrigger="5", **options)
    assert reader.partitions(third, third) == []
    fourth = reader.latestOffset()
    assert PAST_START not in fourth
    assert read(reader, third, fourth) == [200, 201]
    reader.stop()


@pytest.mark.parametrize(
    ("reports", "batches"),
    [
        # The first batch can be one of the former run, with its offsets.
        ([[(1, {PAST_START: True})], [(1, {"n": 2})], [(2, {"n": 3, PAST_START: True})]], 3),
        # A source without new rows has none of its start left.
        ([[(None, 1), (None, 1)], [(1, 2), (1, {PAST_START: True})], [(2, 2), (1, {PAST_START: True})]], 3),
        # The source of another package has no such entry.
        ([[(None, "a")], [("a", "b")], [("b", "c")]], None),
    ],
)
def test_a_query_stops_when_all_sources_are_past_its_start(
    reports: list[list[tuple[Any, Any]]], batches: int | None
) -> None:
    query = Reports(reports)
    old_streams._wait_for_batch_past_start(cast("Any", query))
    assert query.shown == (batches or len(reports) + 1)


class Progress(dict[str, Any]):
    """A progress report."""

    @property
    def json(self) -> str:
        return json.dumps(self)


class Reports:
    """A query that makes one progress report after the other, and ends."""

    def __init__(self, reports: list[list[tuple[Any, Any]]]) -> None:
        self.reports = reports
        self.shown = 0

    def awaitTermination(self, timeout: float) -> bool:
        self.shown += 1
        return self.shown > len(self.reports)

    @property
    def lastProgress(self) -> Progress:
        sources = [{"startOffset": start, "endOffset": end} for start, end in self.reports[self.shown - 1]]
        return Progress(batchId=self.shown, sources=sources)


def test_an_old_version_refuses_a_missing_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "INSTALLED", (4, 0))
    with pytest.raises(UnsupportedError, match=r"Option `pushDownFilters` needs a newer Spark.*pyspark 4\.1 and newer"):
        versions.FILTERS.check()


def test_spark_4_0_warns_of_what_it_does_not_pass_to_formats(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(versions, "INSTALLED", (4, 0))
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/driver/python")
    versions.register(cast("Any", SimpleNamespace(version="4.0.5")), [data_source("headrace")], ["PYSPARK_PYTHON"])
    assert caplog.messages == [
        "Spark 4.0.5 does not pass PYSPARK_PYTHON to the formats headrace, whose sources run with /driver/python: set "
        "them before the first session"
    ]


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
    assert old_streams.trigger_of(trigger) == started


@pytest.mark.parametrize(
    ("text", "version"), [("4.0.5", (4, 0)), ("4.3.0.dev1", (4, 3)), ("17.3.4", (17, 3)), ("4.10.0", (4, 10))]
)
def test_versions_are_numbers(text: str, version: tuple[int, int]) -> None:
    assert versions._numbers(text) == version
