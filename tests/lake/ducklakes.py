"""DuckLakes in databases of the tests' PostgreSQL server, and DuckDB as the referee.

DuckDB's extensions come in wheels that need one version of DuckDB, so the referee is a program of an environment of its
own: ``make ducklake-referee``.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import headrace
from headrace.ports import Store
from tests.conformance import serving

PROGRAM = os.environ.get("HEADRACE_DUCKLAKE_PYTHON") or str(
    Path(__file__).parents[2] / "build" / "ducklake" / "bin" / "python"
)
needs_referee = pytest.mark.skipif(not Path(PROGRAM).exists(), reason="needs the program of make ducklake-referee")
COLUMNS = {"id": "long", "name": "string"}
_REFEREE = Path(__file__).parent / "ducklake_referee.py"


def database() -> str:
    """Return the URL of a new database."""
    return serving.postgres_database()


def opened(url: str, directory: Path) -> Store:
    """Return the store of a DuckLake in a database, with table ``t``."""
    store = headrace.open(f"ducklake+{url}", create=True, data=str(directory / "files"))
    store.create_table("t", COLUMNS, "id", exist_ok=True)
    return store


def catalog(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query over the catalog; none for another statement."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description is not None else []


def referee(url: str, directory: Path, *statements: str) -> list[list[list[Any]]]:
    """Return the rows of statements that DuckDB runs over a DuckLake, which it calls ``lake``."""
    parts = urlsplit(url)
    address = f"dbname={parts.path[1:]} host={parts.hostname} port={parts.port} user={parts.username}"
    call = [PROGRAM, str(_REFEREE), address, str(directory / "files"), *statements]
    found: list[list[list[Any]]] = json.loads(subprocess.run(call, check=True, stdout=subprocess.PIPE).stdout)
    return found
