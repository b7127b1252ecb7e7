"""Joins and unions of streams and tables over event time, compared with an oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.testing.effort import THOROUGH
from tests.spark.oracles import (
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
    watermarks,
)

stream_static_join, stream_stream_join, several_sources = (
    example(name) for name in ("stream_static_join", "stream_stream_join", "several_sources")
)
Arrival: TypeAlias = tuple[str, list[Row]]
HALF_AN_HOUR = minutes(30)


def test_each_batch_joins_the_current_static_table(spark: SparkSession, tmp_path: Path) -> None:
    products: dict[int, Row] = {}
    expected = []
    for changed, orders in stream_static_join.ARRIVALS:
        products |= {row["product"]: row for row in changed}
        for row in orders:
            product = products.get(row["product"])
            total = None if product is None else row["pieces"] * product["price"]
            expected.append({"order": row["order"], "name": product and product["name"], "total": total})
    stream_static_join.main(tmp_path)
    with headrace.open(tmp_path / "store") as store:
        assert_same(in_table(store, "priced"), expected)


def matches(arrivals: Sequence[Arrival], how: str, restart_before: Collection[int] = ()) -> list[Row]:
    """Return the join of all rows in time, and the rows for which no match can follow."""
    times = [{name: [row[name] for row in rows]} for name, rows in arrivals]
    marks = watermarks(times, {"shown": minutes(10), "clicked": minutes(20)}, restart_before)
    shown, clicked = (
        flat(in_time([rows if to == name else [] for to, rows in arrivals], marks, itemgetter(name)))
        for name in ("shown", "clicked")
    )
    pairs = [
        (ad, click)
        for ad in shown
        for click in clicked
        if ad["ad"] == click["clicked_ad"] and ad["shown"] <= click["clicked"] <= ad["shown"] + HALF_AN_HOUR
    ]
    result = [ad | click for ad, click in pairs]
    if how != "inner":
        alone = [ad for ad in shown if not any(ad is one for one, _ in pairs)]
        alone = [ad for ad in alone if ad["shown"] + HALF_AN_HOUR < marks[-1]]
        result += [ad | {"clicked_ad": None, "clicked": None} for ad in alone]
    if how == "fullOuter":
        alone = [click for click in clicked if not any(click is one for _, one in pairs)]
        result += [{"ad": None, "shown": None} | click for click in alone if click["clicked"] < marks[-1]]
    return result


def test_two_streams_are_joined_within_their_watermarks(spark: SparkSession, tmp_path: Path) -> None:
    stream_stream_join.main(tmp_path)
    with headrace.open(tmp_path / "store") as store:
        assert_same(in_queue(store, "matches"), matches(stream_stream_join.ARRIVALS, "inner"))


# A full outer join has the rows of a left one, too.
@pytest.mark.parametrize("how", ["leftOuter", "fullOuter"] if THOROUGH else ["fullOuter"])
def test_an_outer_join_survives_restarts_and_a_repeated_batch(spark: SparkSession, tmp_path: Path, how: str) -> None:
    arrivals = stream_stream_join.ARRIVALS
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        stream_stream_join.create(store)
        build = partial(stream_stream_join.build, spark, store, tmp_path / "checkpoint", how)
        feed = [partial(store.queue(name).append, rows) for name, rows in arrivals]
        play(build, feed[:7], restart_before=[5])
        forget_last_commit(tmp_path / "checkpoint")
        play(build, feed[7:])
        expected = matches(arrivals, how, restart_before=[5, 7])
        assert_same(in_queue(store, "matches"), expected)
    # Without the first restart, the click at 12:39 would be too late.
    assert sum(row["ad"] == row["clicked_ad"] for row in expected) == 6


def test_a_query_with_several_sources_follows_the_slowest_one(spark: SparkSession, tmp_path: Path) -> None:
    arrivals = several_sources.ARRIVALS
    sources = ("web", "app", "shop")
    times = [{source: [row["time"] for row in rows]} for source, rows in arrivals]
    marks = watermarks(times, dict.fromkeys(sources, minutes(5)))
    ten = minutes(10)
    named = [[row | {"source": source} for row in rows] for source, rows in arrivals]
    kept = in_time(named, marks, lambda row: floor(row["time"], ten) + ten)
    groups = Counter((floor(row["time"], ten), row["source"]) for row in flat(kept))
    expected = [
        {"start": start, "source": source, "visits": visits}
        for (start, source), visits in groups.items()
        if start + ten <= marks[-1]
    ]
    several_sources.main(tmp_path)
    with headrace.open(tmp_path / "store") as store:
        assert_same(in_queue(store, "counts"), expected)
