"""A PostgreSQL server on this machine: put and scan, compared with statements and drivers used by hand."""

from __future__ import annotations

import io
from pathlib import Path

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa
from pyarrow import csv

import headrace
from bench.measure import Ratio, Result, median_of, orders, rate, seconds
from bench.postgres_server import create_orders, postgres_server

_BATCH_ROWS = 100_000
_STAGE = "CREATE TEMPORARY TABLE staged (LIKE plain) ON COMMIT DROP"
_UPSERT = """
INSERT INTO plain SELECT * FROM staged ORDER BY "UserId", "OrderId"
ON CONFLICT ("UserId", "OrderId") DO UPDATE SET price = EXCLUDED.price, timestamp = EXCLUDED.timestamp
"""


def _by_hand(connection: psycopg.Connection, rows: pa.Table) -> None:
    """Upsert rows by the fastest COPY that psycopg has for Arrow: CSV that Arrow writes."""
    text = io.BytesIO()
    csv.write_csv(rows, text, csv.WriteOptions(include_header=False))
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(_STAGE)
        with cursor.copy("COPY staged FROM STDIN (FORMAT csv)") as copy:
            copy.write(text.getbuffer())
        cursor.execute(_UPSERT)


def postgres_put(directory: Path, scale: float) -> Result:
    """`put` of rows of which half exist, compared with COPY into a temporary table and one INSERT ON CONFLICT."""
    rows, repeats = int(1_000_000 * scale), 7
    half = _BATCH_ROWS // 2
    with postgres_server() as server, headrace.open(server.url) as store, server.connect() as connection:
        create_orders(store, "orders", "plain")
        table = store.table("orders")
        for first in range(0, rows, _BATCH_ROWS):
            table.put(orders(first, _BATCH_ROWS))
        connection.execute("INSERT INTO plain SELECT * FROM orders")
        connection.execute("VACUUM ANALYZE")
        batches = [
            pa.concat_tables([orders(number, half, shuffled=rows), orders(rows + number * half, half)])
            for number in range(repeats)
        ]
        ours, theirs = iter(batches), iter(batches)
        put, by_hand = median_of(
            repeats,
            lambda: seconds(lambda: table.put(next(ours))),
            lambda: seconds(lambda: _by_hand(connection, next(theirs))),
        )
        differences = connection.execute("SELECT count(*) FROM (TABLE orders EXCEPT TABLE plain) d").fetchone()
        assert differences == (0,)
    return Result(
        f"PostgreSQL put: {_BATCH_ROWS:,} rows, half of them updates, into a table of {rows:,} rows",
        {"headrace put": rate(_BATCH_ROWS, put), "COPY and INSERT ON CONFLICT by hand": rate(_BATCH_ROWS, by_hand)},
        [Ratio("put / by hand", by_hand / put, 1.0)],
    )


def postgres_scan(directory: Path, scale: float) -> Result:
    """`scan` to Arrow in key order, compared with ADBC's query of the same rows."""
    rows = int(1_000_000 * scale)
    with postgres_server() as server, headrace.open(server.url) as store, adbc.connect(server.url) as connection:
        create_orders(store, "orders")
        table = store.table("orders")
        for first in range(0, rows, _BATCH_ROWS):
            table.put(orders(first, _BATCH_ROWS))
        with server.connect() as session:
            session.execute("VACUUM ANALYZE")

        def query(order: str) -> None:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT * FROM orders {order}")
                assert cursor.fetch_arrow_table().num_rows == rows

        scan, ordered, unordered = median_of(
            5,
            lambda: seconds(lambda: table.scan().read_all()),
            lambda: seconds(lambda: query('ORDER BY "UserId", "OrderId"')),
            lambda: seconds(lambda: query("")),
        )
    return Result(
        f"PostgreSQL scan: {rows:,} rows, 4 columns",
        {
            "headrace scan, in key order": rate(rows, scan),
            "ADBC, in key order": rate(rows, ordered),
            "ADBC, in the order of the table": rate(rows, unordered),
        },
        [Ratio("scan / ADBC in key order", ordered / scan, 0.9)],
    )
