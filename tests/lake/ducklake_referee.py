"""Runs statements of DuckDB over a DuckLake, and prints their rows as JSON. A program of its own environment."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb

_ATTEMPTS = 100
_CONFLICTS = ("Transaction conflict", "could not serialize access")


def main() -> None:
    """Attach the DuckLake of the arguments, and run their statements."""
    address, directory, *statements = sys.argv[1:]
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("postgres_scanner", "ducklake"):
        package = find_spec(f"duckdb_extension_{name}")
        assert package is not None
        assert package.origin is not None
        (file,) = Path(package.origin).parent.rglob(f"{name}.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    connection.execute(f"ATTACH 'ducklake:postgres:{address}' AS lake (DATA_PATH '{directory}/')")
    found = [_rows(connection, statement) for statement in statements]
    sys.stdout.write(json.dumps(found, default=str))


def _rows(connection: Any, statement: str) -> list[Any]:
    """Return the rows of a statement. It is repeated if another writer has changed the same table meanwhile."""
    for attempt in range(_ATTEMPTS):
        try:
            return list(connection.execute(statement).fetchall())
        except duckdb.Error as error:
            if attempt == _ATTEMPTS - 1 or not any(reason in str(error) for reason in _CONFLICTS):
                raise
    return []


main()
