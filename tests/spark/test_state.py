"""State: deduplication, custom state, and restarts with RocksDB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace
from tests.spark.oracles import (
    Row,
    assert_same,
    example,
    flat,
    forget_last_commit,
    in_queue,
    in_table,
    minutes,
    play,
    times_of,
    watermarks,
)

deduplicate, transform_with_state, state_store = (
    example(name) for name in ("deduplicate", "transform_with_state", "state_store")
)
TEN = minutes(10)


def once(arrivals: Sequence[Sequence[Row]], how: str) -> list[Row]:
    """Return the payments after deduplication."""
    taken: dict[object, datetime] = {}
    result = []
    for rows, mark in zip(arrivals, watermarks(times_of(arrivals), {"": TEN}), strict=False):
        if how == "within":
            taken = {key: expires for key, expires in taken.items() if expires > mark}
        for row in rows:
            key = (row["id"], row["time"]) if how == "exact" else row["id"]
            if key not in taken and (how == "ever" or row["time"] > mark):
                taken[key] = row["time"] + TEN
                result.append(row)
    return result


def test_without_a_watermark_an_id_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    deduplicate.main(tmp_path)
    with headrace.open(tmp_path / "store") as store:
        assert_same(in_queue(store, "payments"), once(deduplicate.ARRIVALS, "ever"))


@pytest.mark.parametrize(("how", "remembered"), [("exact", 2), ("within", 3)])
def test_with_a_watermark_duplicates_are_dropped_and_the_state_is_bounded(
    spark: SparkSession, tmp_path: Path, how: str, remembered: int
) -> None:
    arrivals = deduplicate.ARRIVALS
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        deduplicate.create(store)
        build = partial(deduplicate.build, spark, store, tmp_path / "checkpoint", how)
        progress = play(build, [partial(store.queue("received").append, rows) for rows in arrivals])
        assert_same(in_queue(store, "payments"), once(arrivals, how))
    # The state has no keys older than the watermark, or than the watermark minus the delay.
    assert progress[-1].stateOperators[0].numRowsTotal == remembered


def silences(arrivals: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the reports of silent sensors."""
    heard: dict[str, tuple[datetime, int]] = {}
    result = []
    marks = watermarks(times_of(arrivals), {"": minutes(5)})
    for rows, before, behind in zip(arrivals, marks, marks[1:], strict=False):
        for row in rows:
            if row["time"] > before:
                last, count = heard.get(row["sensor"], (row["time"], 0))
                heard[row["sensor"]] = max(last, row["time"]), count + 1
        for sensor, (last, count) in list(heard.items()):
            if last + TEN < behind:
                result.append({"sensor": sensor, "since": last, "readings": count})
                del heard[sensor]
    return result


def test_custom_timers_and_values_follow_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    transform_with_state.main(tmp_path)
    with headrace.open(tmp_path / "store") as store:
        assert_same(in_queue(store, "silent"), silences(transform_with_state.ARRIVALS))


def test_custom_state_survives_a_restart_and_a_repeated_batch(spark: SparkSession, tmp_path: Path) -> None:
    start = datetime(2026, 5, 1, 12, tzinfo=UTC)
    # Each sensor has its own interval; those with long intervals are silent in between.
    arrivals = [
        [
            {"time": start + timedelta(minutes=6 * number, seconds=sensor), "sensor": f"s{sensor}"}
            for sensor in range(1, 5)
            if number % sensor == 0
        ]
        for number in range(8)
    ]
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        transform_with_state.create(store)
        build = partial(transform_with_state.build, spark, store, tmp_path / "checkpoint")
        feed = [partial(store.queue("signs").append, rows) for rows in arrivals]
        play(build, feed[:5], restart_before=[3])
        forget_last_commit(tmp_path / "checkpoint")
        play(build, feed[5:])
        expected = silences(arrivals)
        assert_same(in_queue(store, "silent"), expected)
    assert expected


def test_a_restart_continues_with_the_state_in_rocksdb(spark: SparkSession, tmp_path: Path) -> None:
    arrivals = state_store.ARRIVALS
    checkpoint = tmp_path / "checkpoint"
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        state_store.create(store)
        build = partial(state_store.build, spark, store, checkpoint)
        feed = [partial(store.queue("words").append, rows) for rows in arrivals]
        play(build, feed[:2])
        forget_last_commit(checkpoint)
        last = play(build, feed[2:])[-1].stateOperators[0]
        counts = Counter(row["word"] for row in flat(arrivals))
        assert_same(in_table(store, "counts"), [{"word": word, "count": count} for word, count in counts.items()])
    # The last run adds two words to the state that it has loaded.
    assert (last.numRowsTotal, last.numRowsUpdated) == (3, 2)
    assert "rocksdbPutLatency" in last.customMetrics
    assert list((checkpoint / "state").glob("0/*/*.changelog"))


def test_the_state_store_example_runs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state_store.main(tmp_path)
    assert "3 words in the state, 2 of them new or changed" in capsys.readouterr().out
