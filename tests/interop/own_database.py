"""A PostgreSQL database for one test: its address, a connection of a superuser, and a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import psycopg
import pytest

import headrace
from headrace.ports import Store
from headrace.stores.postgres.tables import statements
from tests.conformance import serving

Server: TypeAlias = "psycopg.Connection[Any]"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return serving.postgres_database(f"own{abs(hash(request.node.nodeid)):x}")


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    with psycopg.connect(url, user="postgres", autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store whose tunnels are dropped, because the server has a limited number of slots."""
    with headrace.open(url) as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


@pytest.fixture(params=["parameters", "staged"])
def few_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few rows be parameters of a statement, or be in a temporary table as many rows are."""
    if request.param == "staged":
        monkeypatch.setattr(statements, "_FEW_CELLS", 0)
