"""Prints the rows of versions of an Iceberg table as DuckDB and polars read them. A program of its own environment."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import duckdb
import polars


def main() -> None:
    """Read the versions whose files of metadata are the arguments, by the first column."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "iceberg"):
        package = find_spec(f"duckdb_extension_{name}")
        assert package is not None
        assert package.origin is not None
        (file,) = Path(package.origin).parent.rglob(f"{name}.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    found = []
    for location in sys.argv[1:]:
        path = location.removeprefix("file://")
        duck = connection.execute(f"SELECT * FROM iceberg_scan('{path}') ORDER BY 1").fetchall()
        frame = polars.scan_iceberg(location, reader_override="native").collect()
        found.append([list(map(list, duck)), list(map(list, frame.sort(frame.columns[0]).rows()))])
    sys.stdout.write(json.dumps(found, default=str))


main()
