"""A DuckLake in PostgreSQL on this machine: small batches beside those of an ordinary table of the same database."""

from __future__ import annotations

from pathlib import Path

import headrace
from bench.measure import COLUMNS, Ratio, Result, median_of, orders, rate, seconds
from bench.postgres_server import KEY, postgres_server
from headrace.model.tables.changes import RowChange
from headrace.ports import Write

_BATCH_ROWS, _REPEATS = 100, 41


def ducklake_inlined(directory: Path, scale: float) -> Result:
    """Publication of batches whose rows the catalog keeps, half of them updates, beside an ordinary table."""
    half = _BATCH_ROWS // 2
    with postgres_server() as server:
        url = f"ducklake+{server.url}"
        with headrace.open(url, create=True, data=str(directory / "files")) as store:
            names = ("orders", "postgresql:orders")
            publishers = {name: store.publisher("bench", name) for name in names}
            for name in names:
                store.create_table(name, COLUMNS, KEY)
            batches = dict.fromkeys(names, 0)

            def publish(name: str) -> None:
                number = batches[name]
                batches[name] += 1
                publisher = publishers[name]
                # The second half of a batch is the first half of the next one.
                rows = orders(number * half, _BATCH_ROWS).to_batches()
                staged = publisher.stage(number, rows, table=name, change=RowChange.PUT)
                publisher.publish(number, [Write(name, RowChange.PUT, tuple(staged))], content=str(number))

            lake, plain = median_of(_REPEATS, *(lambda name=name: seconds(lambda: publish(name)) for name in names))
            assert list(store.table("orders")) == list(store.table("postgresql:orders"))
    return Result(
        f"DuckLake in PostgreSQL: publications of {_BATCH_ROWS} rows, half of them updates, with the catalog's rows",
        {"a table of the DuckLake": rate(_BATCH_ROWS, lake), "an ordinary table": rate(_BATCH_ROWS, plain)},
        [Ratio("DuckLake / ordinary table", plain / lake, 1 / 1.3)],
    )
