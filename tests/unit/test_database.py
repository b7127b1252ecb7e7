"""Transactions on the database of an embedded store, where they end in an unusual way."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.stores.embedded.database import Database


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "store", create=True, synchronous="off")


def test_a_read_that_outlives_its_connection_ends_quietly(database: Database) -> None:
    with database.read():
        database.close()
    assert database.store_id()


def test_an_error_is_not_hidden_where_the_connection_is_closed(database: Database) -> None:
    def fail() -> None:
        with database.write():
            database.close()
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    with database.write() as connection:
        connection.execute("UPDATE clock SET version = version + 1")
