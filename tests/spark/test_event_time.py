"""Windows over event time, compared with an oracle: late rows, output modes, sliding windows, sessions."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.testing.effort import THOROUGH
from tests.spark.oracles import (
    EPOCH,
    Row,
    assert_same,
    example,
    flat,
    floor,
    forget_last_commit,
    in_queue,
    in_table,
    in_time,
    minutes,
    play,
    times_of,
    watermarks,
)

late_data, sliding_windows, session_windows = (
    example(name) for name in ("late_data", "sliding_windows", "session_windows")
)
TEN = minutes(10)


def window_end(row: Row) -> datetime:
    return floor(row["time"], TEN) + TEN


def counts(rows: Sequence[Row], closed_by: datetime | None = None) -> list[Row]:
    groups = Counter((floor(row["time"], TEN), row["page"]) for row in rows)
    return [
        {"window": f"{start:%H:%M}", "page": page, "views": views}
        for (start, page), views in groups.items()
        if closed_by is None or start + TEN <= closed_by
    ]


def expected_counts(arrivals: Sequence[Sequence[Row]], mode: str) -> list[Row]:
    marks = watermarks(times_of(arrivals), {"": TEN})
    if mode == "complete":
        return counts(flat(arrivals))
    return counts(flat(in_time(arrivals, marks, window_end)), marks[-1] if mode == "append" else None)


def random_views(seed: int, arrivals: int, rows: int) -> list[list[Row]]:
    """Return views with increasing event times. Many of them are too late."""
    chance = random.Random(seed)
    return [
        [
            {"time": late_data.at("12:00") + minutes(9 * number - chance.randrange(40)), "page": chance.choice("abc")}
            for _ in range(rows)
        ]
        for number in range(1, arrivals + 1)
    ]


def test_append_mode_drops_late_rows_and_writes_closed_windows(spark: SparkSession, tmp_path: Path) -> None:
    late_data.main(tmp_path)
    with headrace.open(tmp_path / "store") as store:
        assert_same(in_table(store, "counts"), expected_counts(late_data.ARRIVALS, "append"))


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_update_mode_drops_late_rows_and_complete_mode_keeps_them(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        late_data.create(store)
        build = partial(late_data.build, spark, store, tmp_path / "checkpoint", mode)
        play(build, [partial(store.queue("views").append, rows) for rows in late_data.ARRIVALS])
        assert_same(in_table(store, "counts"), expected_counts(late_data.ARRIVALS, mode))


@pytest.mark.parametrize("mode", ["append", "update"] if THOROUGH else ["append"])
def test_a_restart_and_a_repeated_batch_change_no_window(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    arrivals = random_views(seed=5, arrivals=6, rows=8)
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        late_data.create(store)
        build = partial(late_data.build, spark, store, tmp_path / "checkpoint", mode)
        feed = [partial(store.queue("views").append, rows) for rows in arrivals]
        play(build, feed[:4], restart_before=[2])
        forget_last_commit(tmp_path / "checkpoint")
        play(build, feed[4:])
        expected = expected_counts(arrivals, mode)
        assert_same(in_table(store, "counts"), expected)
        if mode == "append":
            # The repeated batch has not written any window again.
            assert store.table("counts").describe().partitions[0].next == len(expected)


def test_a_batch_drops_rows_by_the_watermark_of_the_batch_before_it(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    """Without an empty batch in between, a window is still open in the batch that closes it, and no row is lost."""
    arrivals = random_views(seed=11, arrivals=8, rows=6)
    marks = watermarks(times_of(arrivals), {"": TEN})
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        late_data.create(store)
        store.queue("views").append(flat(arrivals))
        views = spark.readStream.format("headrace").options(store=store.url, queue="views", maxRowsPerTrigger=6).load()
        writer = headrace.write_stream(
            late_data.count(views), store=store.url, table="counts", checkpoint=checkpoint, mode="append"
        )
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        dropped = sum(progress.stateOperators[0].numRowsDroppedByWatermark for progress in query.recentProgress)
        kept = in_time(arrivals, [EPOCH, *marks], window_end)
        assert_same(in_table(store, "counts"), counts(flat(kept), marks[-1]))
    # Rows of the same window and page are combined before the state store.
    late = [[row for row in rows if row not in some] for rows, some in zip(arrivals, kept, strict=True)]
    assert dropped == sum(len(counts(rows)) for rows in late) > 0


def test_a_late_row_counts_in_open_sliding_windows(spark: SparkSession, tmp_path: Path) -> None:
    marks = watermarks(times_of(sliding_windows.ARRIVALS), {"": minutes(2)})
    windows: dict[datetime, list[float]] = defaultdict(list)
    for rows, mark in zip(sliding_windows.ARRIVALS, marks, strict=False):
        for row in rows:
            second = floor(row["time"], minutes(5))
            for start in (second - minutes(5), second):
                if start + TEN > mark:
                    windows[start].append(row["celsius"])
    expected = [
        {"start": start, "sensor": "roof", "celsius": sum(given) / len(given), "readings": len(given)}
        for start, given in windows.items()
        if start + TEN <= marks[-1]
    ]
    sliding_windows.main(tmp_path)
    with headrace.open(tmp_path / "store") as store:
        assert_same(in_queue(store, "means"), expected)


def sessions(arrivals: Sequence[Sequence[Row]], marks: Sequence[datetime]) -> list[Row]:
    """Return the sessions that end. A session that has ended gets no more rows."""
    gap = minutes(5)
    closed: list[Row] = []
    live: list[Row] = []
    for rows, mark in zip(in_time(arrivals, marks, lambda row: row["time"] + gap), marks[1:], strict=True):
        for row in rows:
            start, end, clicks = row["time"], row["time"] + gap, 1
            for other in [one for one in live if one["user"] == row["user"]]:
                if start <= other["end"] and other["start"] <= end:
                    start, end = min(start, other["start"]), max(end, other["end"])
                    clicks += other["clicks"]
                    live.remove(other)
            live.append({"user": row["user"], "start": start, "end": end, "clicks": clicks})
        closed += [one for one in live if one["end"] <= mark]
        live = [one for one in live if one["end"] > mark]
    return closed


def test_sessions_grow_merge_and_end(spark: SparkSession, tmp_path: Path) -> None:
    marks = watermarks(times_of(session_windows.ARRIVALS), {"": TEN})
    session_windows.main(tmp_path)
    with headrace.open(tmp_path / "store") as store:
        assert_same(in_queue(store, "visits"), sessions(session_windows.ARRIVALS, marks))


def test_sessions_of_random_clicks_survive_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(3)
    arrivals = [
        [
            {
                "time": session_windows.at("12:00") + minutes(7 * number - chance.randrange(20)),
                "user": chance.choice("ab"),
            }
            for _ in range(5)
        ]
        for number in range(1, 7)
    ]
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        session_windows.create(store)
        build = partial(session_windows.build, spark, store, tmp_path / "checkpoint")
        play(build, [partial(store.queue("clicks").append, rows) for rows in arrivals], restart_before=[3])
        assert_same(in_queue(store, "visits"), sessions(arrivals, watermarks(times_of(arrivals), {"": TEN})))
