"""`headrace capacity`: the model beside the figures of docs/benchmarks*.md, and its limits."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.errors import OptionError
from headrace.inspect.capacity import BUSY, MEASURED_BYTES, QUERIES, READS, WRITES, Stream, need

_TEXT = "\n".join(page.read_text() for page in sorted((Path(__file__).parents[2] / "docs").glob("benchmarks*.md")))
FACTOR = 2.0
_RATE = r"([\d.,]+) (M|k) rows/s"


def row_of(section: str, what: str) -> str:
    """Return the one row of a table of docs/benchmarks*.md with a cell that begins with a text.

    Args:
        section: the begin of the title of the section.
    """
    sections = re.split(r"^#+ ", _TEXT, flags=re.MULTILINE)
    (found,) = [text for text in sections if text.startswith(section)]
    rows = [line for line in found.splitlines() if line.startswith("|") and re.search(rf"\| *{re.escape(what)}", line)]
    assert len(rows) == 1, f"{len(rows)} rows with {what!r} in section {section!r} of docs/benchmarks*.md"
    return rows[0]


def rate_of(section: str, what: str) -> float:
    """Return the first rate of a row of docs/benchmarks*.md in rows a second."""
    row = row_of(section, what)
    found = re.search(_RATE, row)
    assert found, f"no rate in {row}"
    return rows_per_second(*found.groups())


def rows_per_second(number: str, unit: str) -> float:
    return float(number.replace(",", "")) * {"M": 1e6, "k": 1e3}[unit]


def agrees(expected: float, measured: float) -> bool:
    return 1 / FACTOR <= expected / measured <= FACTOR


SOURCE = Stream("embedded-tunnel")
SINK = replace(SOURCE, write="embedded-table")
GROUPS = replace(SINK, query="groups")
YT = Stream("yt-queue")
POSTGRES = Stream("postgres-tunnel")

# Section, row, stream, and the cores that the stream and the server shared. Rows are of 41 bytes if nothing is said.
MEASURED = [
    ("source:", "headrace tunnel", SOURCE, 2),
    ("queue source:", "headrace queue", Stream("embedded-queue"), 2),
    ("queue to queue:", "headrace, queue to queue", Stream("embedded-queue", write="embedded-queue"), 2),
    ("sink:", "a batch, read from a tunnel", SINK, 2),
    ("sink:", "the same with an aggregation by key", GROUPS, 2),
    ("following: count and sum by key", "the same changes as inserts", replace(GROUPS, row_bytes=24), 2),
    ("following: count and sum by key", "signed rows by Spark", replace(GROUPS, row_bytes=24), 2),
    ("mirror:", "plain sink, base data", SINK, 2),
    ("mirror:", "plain sink, changes", SINK, 2),
    ("mirror:", "mirror, base data", SINK, 2),
    ("mirror:", "mirror, changes", SINK, 2),
    ("Tablestore tunnel over HTTP", "changes, per core of both processes", Stream("tablestore-tunnel"), 1),
    ("YTsaurus queue over HTTP", "format yt", YT, 2),
    ("YTsaurus exactly once", "queue to table, ", replace(YT, write="yt-table"), 2),
    ("YTsaurus exactly once", "queue to table in parts, ", replace(YT, write="yt-table"), 2),
    ("YTsaurus exactly once", "queue to queue, ", replace(YT, write="yt-queue"), 2),
    ("YTsaurus exactly once", "queue to queue in parts, ", replace(YT, write="yt-queue"), 2),
    ("PostgreSQL", "slot to Arrow", POSTGRES, 2),
    ("PostgreSQL", "tunnel into noop", POSTGRES, 2),
    ("PostgreSQL", "changes into another table", replace(POSTGRES, write="postgres-table"), 2),
]


@pytest.mark.parametrize(
    ("section", "what", "stream", "cores"), MEASURED, ids=[f"{section} {what}" for section, what, *_ in MEASURED]
)
def test_the_model_agrees_with_each_measured_stream(section: str, what: str, stream: Stream, cores: int) -> None:
    measured, expected = rate_of(section, what), stream.rows_per_second(cores, shared=True)
    assert agrees(expected, measured), f"{expected:,.0f} rows/s instead of {measured:,.0f}"


READ, WRITE = READS["tablestore-tunnel"], WRITES["tablestore-table"]
# Section, row, and the microseconds of the model for a row.
COSTS = [
    ("Tablestore tunnel over HTTP", "changes, per core of the reader", READ.executor.row),
    ("Tablestore tunnel over HTTP", "changes, per core of the server", READ.server.row),
    ("Tablestore put", "Table.put, per core of the writer", WRITE.executor.row),
    ("Tablestore put", "Table.put, per core of the server", WRITE.server.row),
    ("Tablestore put", "Table.put, by the clock", WRITE.executor.row + WRITE.server.row),
]


@pytest.mark.parametrize(("section", "what", "cost"), COSTS, ids=[f"{section} {what}" for section, what, _ in COSTS])
def test_the_costs_agree_with_each_measured_side(section: str, what: str, cost: float) -> None:
    measured = 1e6 / rate_of(section, what)
    assert agrees(cost, measured), f"{cost:.2f} µs instead of {measured:.2f}"


def test_the_costs_of_postgres_agree_with_the_measured_times_of_processors() -> None:
    found = re.search(r"([\d.]+) s and ([\d.]+) s", row_of("PostgreSQL", "CPU for a million rows: Spark and server"))
    assert found
    stream = replace(POSTGRES, write="postgres-table")
    for expected, measured in zip((stream.executor_seconds(), stream.server_seconds()), found.groups(), strict=True):
        assert agrees(expected * 1e6, float(measured)), f"{expected * 1e6:.2f} s instead of {measured}"


# Measured with a setting for small rows, with batches of up to a million rows, or with the numbers of a dense range as
# keys. Each of them makes a stream faster.
FASTER = [
    ("following: projection and filter", "the plain sink", replace(SINK, row_bytes=24, written_bytes=16)),
    ("Kafka", "source, into noop", Stream("embedded-queue")),
    ("Kafka", "copy with a new price", Stream("embedded-queue", write="embedded-queue")),
    ("Delta Lake", "a batch of 100,000 ", SINK),
    ("Delta Lake", "a batch of 1,000,000 ", SINK),
    ("Delta Lake", "changes as a source", SOURCE),
    ("Spark's own sources", "headrace queue", Stream("embedded-queue")),
]


@pytest.mark.parametrize(
    ("section", "what", "stream"), FASTER, ids=[f"{section} {what}" for section, what, _ in FASTER]
)
def test_the_model_does_not_promise_more_than_these_streams_have(section: str, what: str, stream: Stream) -> None:
    measured, expected = rate_of(section, what), stream.rows_per_second(2)
    assert expected / measured <= FACTOR, f"{expected:,.0f} rows/s instead of {measured:,.0f}"


STREAMS = {
    "queue to noop": ("embedded-queue", "rows", "none"),
    "tunnel to noop": ("embedded-tunnel", "rows", "none"),
    "queue to queue": ("embedded-queue", "rows", "embedded-queue"),
    "queue to table": ("embedded-queue", "rows", "embedded-table"),
    "queue to sums by key": ("embedded-queue", "groups", "embedded-table"),
}


def test_the_model_agrees_with_streams_by_cores_and_length_of_rows() -> None:
    found = re.findall(rf"^\| (.*), rows of (\d+) bytes, (\d) cores? \| {_RATE}", _TEXT, re.MULTILINE)
    assert {what for what, *_ in found} == set(STREAMS)
    assert {(width, cores) for _, width, cores, *_ in found} == {(w, c) for w in ("41", "401") for c in "12"}
    for what, width, cores, figure, unit in found:
        expected = Stream(*STREAMS[what], int(width)).rows_per_second(int(cores))
        assert agrees(expected, rows_per_second(figure, unit)), f"{what}, {width} bytes, {cores} cores: {expected:.0f}"


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("read", READS)
def test_the_planned_cores_keep_up_and_fewer_would_not(read: str, query: str, write: str) -> None:
    stream = Stream(read, query, write, 100)
    limit = stream.limit()
    for rate in (10, 10_000, 0.8 * limit if limit else 10_000_000):
        needed = need(stream, rate)
        assert stream.rows_per_second(needed.cores) * BUSY >= rate * 0.999
        if needed.cores > 1:
            assert stream.rows_per_second(needed.cores - 1) * BUSY < rate
        assert needed.partitions == (1 if read == "postgres-tunnel" else needed.cores)
        assert (needed.connections > 0) == ("postgres" in read + write)
        assert (needed.server_cores > 0) == ("embedded" not in read or not write.startswith(("embedded", "none")))
        assert 0 <= needed.serial < 1


@pytest.mark.parametrize("executor_cores", [1, 2, 4, 1000])
def test_the_executors_have_the_cores_that_the_stream_uses_and_one_less_would_not(executor_cores: int) -> None:
    for rate in (10, 1e5, 1e6, 1e7):
        needed = need(Stream("yt-queue", "groups", "yt-table"), rate, executor_cores=executor_cores)
        assert needed.executor_cores == executor_cores
        assert needed.executors >= 1
        assert (needed.executors - 1) * executor_cores < needed.cores <= needed.executors * executor_cores


def test_a_slot_is_read_by_one_task_which_also_writes_rows_that_are_not_grouped() -> None:
    rows, groups = (Stream("postgres-tunnel", query, "postgres-table") for query in QUERIES)
    assert rows.rows_per_second(16) == rows.rows_per_second(1)
    assert need(rows, 50_000).executors == need(rows, 50_000).cores == 1
    assert groups.rows_per_second(16) > 1.5 * groups.rows_per_second(1)
    assert need(groups, 100_000).executors > 1


# Counted in pg_stat_activity, with the checkpoint in the database. tests/spark counts them again on two cores.
CONNECTIONS = [
    (POSTGRES, 2, 6),
    (replace(POSTGRES, write="postgres-table"), 1, 8),
    (replace(POSTGRES, write="postgres-table"), 2, 11),
    (replace(POSTGRES, query="groups", write="postgres-table"), 1, 8),
    (replace(POSTGRES, query="groups", write="postgres-table"), 2, 12),
    (replace(POSTGRES, query="groups", write="postgres-table"), 4, 20),
    (replace(POSTGRES, query="groups", write="postgres-table"), 8, 35),
    (Stream("embedded-queue", write="postgres-table"), 4, 7),
]


@pytest.mark.parametrize(("stream", "cores", "counted"), CONNECTIONS)
def test_the_connections_are_at_least_those_that_were_counted_and_at_most_twice(
    stream: Stream, cores: int, counted: int
) -> None:
    assert counted <= stream.connections(cores) <= FACTOR * counted


def test_groups_write_short_rows_if_nothing_is_said() -> None:
    for query, written in (("rows", 400), ("groups", MEASURED_BYTES)):
        stream = Stream("embedded-queue", query, "embedded-table", 400)
        assert stream.serial_seconds() == replace(stream, written_bytes=written).serial_seconds()
        assert stream.serial_seconds() < replace(stream, written_bytes=4000).serial_seconds()


def test_more_rows_or_longer_rows_need_no_less() -> None:
    stream = Stream("embedded-queue", write="embedded-queue")
    cores = [need(stream, rate).cores for rate in (1e3, 1e5, 3e5, 1e6)]
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
    with pytest.raises(OptionError, match="at least one byte"):
        Stream("embedded-queue", written_bytes=0)
    with pytest.raises(OptionError, match="at least one core"):
        need(Stream("embedded-queue"), 10, executor_cores=0)


def test_the_command_shows_what_a_stream_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", "50000", "--from", "postgres-tunnel", "--to", "postgres-table", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["executors"], found["executor_cores"], found["cores"]) == (1, 2, 1)
    assert found["connections"] > 0
    command = ["capacity", "500000", "--from", "yt-queue", "--query", "groups", "--to", "yt-table"]
    assert main([*command, "--executor-cores", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["executors"] == math.ceil(found["cores"] / 4) > 1
    assert main([*command, "--executor-cores", "4"]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"executors of 4 cores\W+{found['executors']}\b", shown), shown
    assert "connections" not in shown
    assert main([*command, "--written-bytes", "4000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cores"] > found["cores"]
    assert main(["capacity", "50000", "--from", "embedded-queue", "--query", "groups"]) == 0
    shown = capsys.readouterr().out
    assert "spark.sql.shuffle.partitions" in shown
    assert "server" not in shown
    assert main(["capacity", "5000000", "--from", "embedded-queue", "--to", "embedded-table"]) == 1
    assert "up to" in capsys.readouterr().err
