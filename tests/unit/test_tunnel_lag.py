"""The lag of a tunnel over an embedded store: base data and waiting channels count, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.batches.feeds.channel_reading import read_channel
from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.cli.tunnel import tunnel_summary
from headrace.model.queues.values import Bounds, ConsumerPartition, Disposition
from headrace.model.tunnels.lag import Lag, Slot
from headrace.model.tunnels.values import Backlog
from headrace.ports import Store, Tunnel
from headrace.stores.embedded.tunnels.positions import key_position, rows_after

ROWS = 1000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        table = store.create_table("t", columns={"id": "long", "v": "string"}, primary_key=["id"])
        table.put(pa.table({"id": range(ROWS), "v": ["x"] * ROWS}))
        yield store


def read_all(tunnel: Tunnel, limits: Limits) -> Iterator[tuple[dict[str, Any], int]]:
    """Read a tunnel in batches; yield each report with the number of rows read so far, its own batch included."""
    feed, done = TunnelFeed(tunnel, limits=limits), 0
    position = feed.initial()
    while (end := feed.latest(position)) != position:
        for task in feed.tasks(position, end):
            done += sum(changes.num_rows for changes in read_channel(tunnel, task.batch, task.plan))
        yield feed.report(), done
        position = end


@pytest.mark.parametrize("channels", [1, 4])
def test_the_lag_falls_with_each_batch_to_zero(store: Store, channels: int) -> None:
    tunnel = store.create_tunnel("t", "all", base_channels=channels)
    # An update, an insert and a delete after the snapshot: three changes that wait for the base data.
    store.table("t").put([{"id": 5, "v": "y"}, {"id": -1, "v": "y"}])
    store.table("t").delete([{"id": 7}])
    assert tunnel.describe().lag == Lag(ROWS + 3, 0, channels, 0)
    reports = list(read_all(tunnel, Limits(rows_per_batch=300)))
    assert [sum(report["rowsBehindLatest"].values()) for report, _ in reports] == [
        ROWS + 3 - read for _, read in reports
    ]
    assert len(reports) >= 4
    assert all(report["rowsUnknown"] == [] for report, _ in reports)
    assert reports[-1][0]["baseRanges"] == [channels, channels]
    assert reports[-1][1] == ROWS + 3
    assert tunnel.describe().lag.rows == 0


def test_rows_that_were_written_during_the_count_belong_to_the_largest_range(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.stores.embedded.tunnels import stored_tunnels

    counts = stored_tunnels._counts

    def count_then_write(*arguments: Any) -> Any:
        found = counts(*arguments)
        store.table("t").put([{"id": ROWS + number, "v": "late"} for number in range(10)])
        return found

    monkeypatch.setattr(stored_tunnels, "_counts", count_then_write)
    tunnel = store.create_tunnel("t", "all", base_channels=4)
    assert tunnel.describe().lag == Lag(ROWS + 10, 0, 4, 0)
    # The counts of ranges are not exact, so no plan relies on them: all rows are read.
    assert list(read_all(tunnel, Limits(rows_per_batch=400)))[-1][1] == ROWS + 10


def test_positions_of_earlier_releases_have_no_count(store: Store) -> None:
    assert rows_after(key_position((5,))) is None
    assert rows_after(key_position((5,), 10), 4) == 6
    backlog = Backlog(rows=None, ends=True)
    assert (backlog.unread, backlog.known) == (None, 0)
    assert Lag.of([backlog, Backlog(rows=3)]) == Lag(3, 1)


def test_a_backlog_after_a_batch() -> None:
    assert Backlog(rows=10).after(4).rows == 6
    assert Backlog(rows=10).after(None).empty
    counted = Backlog(rows=None, counted=10).after(4)
    assert (counted.rows, counted.unread, counted.empty) == (None, 6, False)
    assert Backlog(rows=None, at_least=10).after(4).known == 6


def test_the_age_and_size_of_a_lag_are_those_of_what_is_unread() -> None:
    unread = [Backlog(rows=2, bytes=30, seconds=4.0), Backlog(rows=1, bytes=5, seconds=9.0), Backlog(rows=0)]
    assert (Lag.of(unread).seconds, Lag.of(unread).bytes) == (9.0, 35)
    # Base data has no age.
    assert (Lag.of([*unread, Backlog(rows=5, bytes=1)]).seconds, Lag.of([Backlog(rows=0)]).seconds) == (None, 0.0)
    assert Lag.total([Lag(1, seconds=2.0, bytes=3), Lag(4, seconds=5.0)]) == Lag(5, seconds=5.0)


def test_several_slots_have_the_worst_status_and_their_size_together() -> None:
    lags = [Lag(1, slot=Slot("extended", 5)), Lag(2), Lag(3, slot=Slot("reserved", 7)), Lag(4, slot=Slot("lost"))]
    assert Lag.total(lags).slot == Slot("lost", 12)
    assert Lag.total(lags[:3]).slot == Slot("extended", 12)
    assert Lag.total([*lags, Lag(0, slot=Slot("of a later server"))]).slot == Slot("of a later server", 12)
    assert Lag.total(lags[1:2]).slot is None


def test_a_tunnel_without_unread_rows_is_up_to_date_where_times_are_unknown(store: Store) -> None:
    described = store.create_tunnel("t", "s", "Stream").describe()
    channels = tuple(replace(each, backlog=Backlog(rows=0)) for each in described.channels)
    assert tunnel_summary(replace(described, channels=channels))["lag_seconds"] == 0.0
    channels = tuple(replace(each, backlog=Backlog(rows=3)) for each in described.channels)
    assert tunnel_summary(replace(described, channels=channels))["lag_seconds"] is None


def test_a_partition_ahead_of_its_queue_does_not_reduce_the_lag_of_a_consumer() -> None:
    bounds = Bounds(0, 10, 0)
    partitions = [
        ConsumerPartition(number, offset, bounds, Disposition.of(bounds, offset), 10 - offset, None, seconds, None)
        for number, offset, seconds in ((0, 4, 2.5), (1, 25, 0.0))
    ]
    lag = Lag.of_consumer(partitions)
    assert (lag.rows, lag.seconds) == (6, 2.5)
    assert (Lag.of_consumer([]).rows, Lag.of_consumer([]).seconds) == (0, 0.0)
