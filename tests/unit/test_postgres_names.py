"""Names of PostgreSQL tables, and of the tables that headrace keeps beside them."""

from __future__ import annotations

import pytest

from headrace.batches.sinks.jobs import state_name
from headrace.model.own_names import is_internal
from headrace.stores.postgres.connection import Address
from headrace.stores.postgres.names import MAX_NAME_BYTES, TableName
from headrace.stores.postgres.store import PostgresStore


@pytest.fixture
def store() -> PostgresStore:
    """A store that is never connected."""
    return PostgresStore(Address({"host": "nowhere"}), "headrace")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("totals", "kept"),
        ("public.totals", "kept"),
        ("sales.totals", "sales.kept"),
        ('"a.b"."c.d"', '"a.b".kept'),
        ('sales."a ""quoted"" name"', "sales.kept"),
    ],
)
def test_a_table_beside_another_is_in_its_schema(store: PostgresStore, table: str, expected: str) -> None:
    assert store.beside(table, "kept") == expected


@pytest.mark.parametrize("target", ["totals", "sales.totals", '"a.b"."c.d"', f"sales.{'n' * 63}", 'sales."q""q"'])
def test_state_of_a_target_is_an_internal_table_of_its_schema(store: PostgresStore, target: str) -> None:
    name = state_name(store, target, "job") + "_removed"
    assert is_internal(name)
    assert not is_internal(target)
    parsed = TableName.of_new(name)
    assert parsed.schema == TableName.parse(target).schema
    assert len(parsed.table.encode()) <= MAX_NAME_BYTES
    assert state_name(store, target, "other") != state_name(store, target, "job")
