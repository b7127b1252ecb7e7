"""`headrace capacity`: the model beside recorded measurements, and its limits."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from headrace.capacity import BUSY, QUERIES, READS, WRITES, Stream, need
from headrace.cli.main import main
from headrace.errors import OptionError

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks.md"
FACTOR = 2.0

# Rates in thousands of rows a second of docs/benchmarks.md, with the cores that stream and server shared.
MEASURED = {
    "source": (Stream("embedded-tunnel"), 2, 3900),
    "queue source": (Stream("embedded-queue"), 2, 4420),
    "queue to queue": (Stream("embedded-queue", write="embedded-queue"), 2, 946),
    "sink": (Stream("embedded-tunnel", write="embedded-table"), 2, 95),
    "following, signed rows by Spark's aggregation": (Stream("embedded-tunnel", "groups", "embedded-table"), 2, 89),
    "Tablestore tunnel, changes per core": (Stream("tablestore-tunnel"), 1, 230),
    "Tablestore put": (Stream("tablestore-tunnel", write="tablestore-table"), 1, 16),
    "YTsaurus queue": (Stream("yt-queue"), 2, 1180),
    "YTsaurus queue to queue": (Stream("yt-queue", write="yt-queue"), 2, 96),
    "YTsaurus queue to table": (Stream("yt-queue", write="yt-table"), 2, 64),
    "postgres_slot": (Stream("postgres-tunnel"), 2, 749),
    "postgres_stream": (Stream("postgres-tunnel", write="postgres-table"), 2, 107),
}


@pytest.mark.parametrize("what", MEASURED)
def test_the_model_agrees_with_a_recorded_rate(what: str) -> None:
    stream, cores, measured = MEASURED[what]
    expected = stream.rows_per_second(cores, shared=True) / 1000
    assert 1 / FACTOR <= expected / measured <= FACTOR, f"{expected:.0f} k rows/s instead of {measured}"


STREAMS = {
    "queue to noop": ("embedded-queue", "rows", "none"),
    "tunnel to noop": ("embedded-tunnel", "rows", "none"),
    "queue to queue": ("embedded-queue", "rows", "embedded-queue"),
    "queue to table": ("embedded-queue", "rows", "embedded-table"),
    "queue to sums by key": ("embedded-queue", "groups", "embedded-table"),
}


def test_the_model_agrees_with_streams_by_cores_and_length_of_rows() -> None:
    found = re.findall(
        r"^\| (.*), rows of (\d+) bytes, (\d) cores? \| ([\d.]+) (M|k) rows/s", BENCHMARKS.read_text(), re.MULTILINE
    )
    assert {what for what, *_ in found} == set(STREAMS)
    assert {(width, cores) for _, width, cores, *_ in found} == {(w, c) for w in ("41", "401") for c in "12"}
    for what, width, cores, figure, unit in found:
        measured = float(figure) * {"M": 1e6, "k": 1e3}[unit]
        expected = Stream(*STREAMS[what], int(width)).rows_per_second(int(cores))
        assert 1 / FACTOR <= expected / measured <= FACTOR, f"{what}, {width} bytes, {cores} cores: {expected:.0f}"


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("read", READS)
def test_the_planned_cores_keep_up_and_fewer_would_not(read: str, query: str, write: str) -> None:
    stream = Stream(read, query, write, 100)
    limit = stream.limit()
    for rate in (10, 10_000, 0.8 * limit if limit else 10_000_000):
        needed = need(stream, rate)
        assert stream.rows_per_second(needed.executor_cores) * BUSY >= rate * 0.999
        if needed.executor_cores > 1:
            assert stream.rows_per_second(needed.executor_cores - 1) * BUSY < rate
        assert needed.partitions == needed.executor_cores
        assert (needed.connections > 0) == (needed.server_cores > 0)
        assert 0 <= needed.serial < 1


def test_more_rows_or_longer_rows_need_no_less() -> None:
    stream = Stream("embedded-queue", write="embedded-queue")
    cores = [need(stream, rate).executor_cores for rate in (1e3, 1e5, 3e5, 1e6)]
    assert cores == sorted(cores)
    for read in READS:
        streams = [Stream(read, row_bytes=width) for width in (1, 41, 400, 4000)]
        costs = [each.executor_seconds() + each.serial_seconds() for each in streams]
        assert costs == sorted(costs)
        assert costs[0] > 0


def test_a_rate_beyond_the_one_writer_is_an_error_that_names_the_limit() -> None:
    stream = Stream("embedded-tunnel", write="embedded-table")
    limit = stream.limit()
    assert limit is not None
    with pytest.raises(OptionError, match="one writer cannot keep up"):
        need(stream, limit)
    with pytest.raises(OptionError, match="one slot cannot keep up"):
        need(Stream("postgres-tunnel"), 10_000_000)
    assert Stream("yt-queue", write="yt-table").limit() is None


@pytest.mark.parametrize("rate", [0, -1, math.inf, math.nan])
def test_a_rate_is_a_positive_number(rate: float) -> None:
    with pytest.raises(OptionError, match="positive number"):
        need(Stream("embedded-queue"), rate)


def test_unknown_parts_are_named_with_the_valid_ones() -> None:
    with pytest.raises(OptionError, match="option to; received: 'kafka'"):
        Stream("embedded-queue", write="kafka")
    with pytest.raises(OptionError, match="at least one byte"):
        Stream("embedded-queue", row_bytes=0)


def test_the_command_shows_what_a_stream_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", "50000", "--from", "postgres-tunnel", "--to", "postgres-table", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["executor_cores"] >= 1
    assert found["connections"] > 0
    assert main(["capacity", "50000", "--from", "embedded-queue", "--query", "groups"]) == 0
    shown = capsys.readouterr().out
    assert "spark.sql.shuffle.partitions" in shown
    assert "server" not in shown
    assert main(["capacity", "5000000", "--from", "embedded-queue", "--to", "embedded-table"]) == 1
    assert "up to" in capsys.readouterr().err
