"""The embedded store without Spark: put and scan, compared with Python's sqlite3."""

from __future__ import annotations

import sqlite3
import statistics
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace
from bench.measure import Ratio, Result, median_of, orders, orders_table, rate, samples_of, seconds

_UPSERT = "INSERT INTO orders VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET price = excluded.price, ts = excluded.ts"


def _plain_sqlite(path: Path, rows: int) -> sqlite3.Connection:
    """Create a table with the same columns and key in plain SQLite, with the same durability and page cache."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -65536")
    connection.execute(
        "CREATE TABLE orders (UserId TEXT, OrderId INTEGER, price REAL, ts INTEGER, "
        "PRIMARY KEY (UserId, OrderId)) WITHOUT ROWID"
    )
    for first in range(0, rows, 100_000):
        connection.execute("BEGIN")
        connection.executemany(_UPSERT, _tuples(orders(first, min(100_000, rows - first))))
        connection.execute("COMMIT")
    return connection


def _tuples(rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def put(directory: Path, scale: float) -> Result:
    """`put` from Arrow with a change log, compared with upserts of tuples without one."""
    rows, batch_rows, repeats = int(1_000_000 * scale), 10_000, 9
    table = orders_table(directory / "store", rows)
    plain = _plain_sqlite(directory / "plain.db", rows)
    batches = iter([orders(n, batch_rows, shuffled=rows) for n in range(1, 2 * repeats + 1)])
    tuples = iter([_tuples(orders(n, batch_rows, shuffled=rows)) for n in range(1, 2 * repeats + 1)])

    def plain_batch() -> None:
        plain.execute("BEGIN")
        plain.executemany(_UPSERT, next(tuples))
        plain.execute("COMMIT")

    ours, theirs = samples_of(
        2 * repeats, lambda: seconds(lambda: table.put(next(batches))), lambda: seconds(plain_batch)
    )
    plain.close()
    median, plain_median = statistics.median(ours), statistics.median(theirs)
    return Result(
        f"put: batches of {batch_rows} random rows into a table of {rows:,} rows, synchronous=full",
        {
            "headrace put, with change log": rate(batch_rows, median),
            "sqlite3 executemany, no log": rate(batch_rows, plain_median),
            "headrace, all batches": rate(batch_rows, statistics.mean(ours)),
            "sqlite3, all batches": rate(batch_rows, statistics.mean(theirs)),
        },
        [Ratio("put / sqlite3", plain_median / median, 1.0)],
        "The ratio is that of medians. Some batches of headrace also write SQLite's log into the file, and all of "
        "sqlite3 do, by its default; so the rates of all batches are closer to each other.",
    )


def scan(directory: Path, scale: float) -> Result:
    """`scan` to Arrow, compared with fetchall."""
    rows = int(1_000_000 * scale)
    table = orders_table(directory / "store", rows)
    plain = _plain_sqlite(directory / "plain.db", rows)
    ours, theirs = median_of(
        5,
        lambda: seconds(lambda: table.scan().read_all()),
        lambda: seconds(lambda: plain.execute("SELECT * FROM orders ORDER BY UserId, OrderId").fetchall()),
    )
    plain.close()
    return Result(
        f"scan: {rows:,} rows, 4 columns",
        {"headrace scan to Arrow": rate(rows, ours), "sqlite3 fetchall to tuples": rate(rows, theirs)},
        [Ratio("scan / fetchall", theirs / ours, 5.0)],
    )


def diff(directory: Path, scale: float) -> Result:
    """`diff_tables` of two equal tables, compared with one scan of both."""
    rows = int(1_000_000 * scale)
    a, b = (orders_table(directory / name, rows) for name in ("a", "b"))

    def compared(**options: Any) -> float:
        found: list[headrace.TableDiff] = []
        taken = seconds(lambda: found.append(headrace.diff_tables(a, b, **options)))
        assert found[0].equal
        assert found[0].rows_a == found[0].rows_b == rows
        return taken

    plain, with_checksums, scans = median_of(
        5,
        compared,
        lambda: compared(checksums=True),
        lambda: seconds(lambda: [table.scan().read_all() for table in (a, b)]),
    )
    return Result(
        f"diff: two equal tables of {rows:,} rows, 4 columns",
        {
            "diff_tables, rows of both tables": rate(2 * rows, plain),
            "diff_tables with checksums": rate(2 * rows, with_checksums),
            "scan of both to Arrow": rate(2 * rows, scans),
        },
        [Ratio("diff / scan of both", scans / plain, 1 / 3)],
    )


def bare_put_rate(table: headrace.Table, rows: int, repeats: int) -> float:
    """Return the seconds of a put of ``rows`` distinct random keys."""
    names = table.schema.names
    batches = iter([orders(n, rows, shuffled=10 * rows).select(names) for n in range(100, 100 + repeats)])
    return median_of(repeats, lambda: seconds(lambda: table.put(next(batches))))[0]
