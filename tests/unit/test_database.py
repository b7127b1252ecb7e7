"""Transactions of an embedded store's database that end in unusual ways."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.stores.embedded.connection import Database


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "store", create=True, synchronous="off")


def test_a_read_that_outlives_its_connection_ends_without_an_error(database: Database) -> None:
    with database.read():
        database.close()
    assert database.store_id()


def test_an_error_is_not_hidden_when_the_connection_closes(database: Database) -> None:
    def fail() -> None:
        with database.write():
            database.close()
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    with database.write() as connection:
        connection.execute("UPDATE clock SET version = version + 1")


def version(database: Database) -> int:
    return int(database.query("SELECT version FROM clock")[0][0])


def rise(database: Database) -> None:
    with database.write() as connection:
        connection.execute("UPDATE clock SET version = version + 1")


def test_a_nested_write_is_part_of_the_outer_one(database: Database) -> None:
    def fail() -> None:
        with database.write():
            rise(database)
            raise ArithmeticError

    with database.write():
        rise(database)
        with pytest.raises(ArithmeticError):
            fail()
        rise(database)
        # No other transaction sees the writes yet.
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(version, database).result() == 0
    assert version(database) == 2


def test_a_rolled_back_outer_write_rolls_back_nested_writes(database: Database) -> None:
    def fail() -> None:
        with database.write():
            rise(database)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert version(database) == 0
    rise(database)
    assert version(database) == 1
