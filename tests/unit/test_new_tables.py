"""``CREATE TABLE`` with a primary key: the table is created in its store."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.errors import AlreadyExistsError, HeadraceError, OptionError, SchemaError, SqlError
from headrace.streaming_sql.catalog import TableDefinition
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.grammar import parse
from headrace.streaming_sql.new_tables import create_in_store, options_of_table


def parsed(text: str) -> st.CreateTable:
    (statement,) = parse(text)
    assert isinstance(statement, st.CreateTable)
    return statement


def create(text: str) -> bool:
    statement, settings = options_of_table(parsed(text))
    definition = TableDefinition(str(statement.name), statement.provider, dict(statement.options))
    return create_in_store(statement, definition, settings, may_exist=statement.if_not_exists)


def test_a_table_is_created_with_its_store(tmp_path: Path) -> None:
    columns = "id string, n int64 NOT NULL, tags array<struct<a: text>>, PRIMARY KEY (n, id)"
    options = f"store = '{tmp_path / 'shop'}', preImages = true, retentionSeconds = '1h'"
    assert create(f"CREATE TABLE orders ({columns}) USING headrace OPTIONS ({options})")
    with headrace.open(tmp_path / "shop") as store:
        table = store.table("orders")
        assert (table.schema.names, table.schema.primary_key) == (("id", "n", "tags"), ("n", "id"))
        found = table.describe().options
        assert (found.pre_images, found.retention_seconds) == (True, 3600.0)


def test_an_existing_table_is_kept_if_the_statement_says_so(tmp_path: Path) -> None:
    options = f"OPTIONS (store = '{tmp_path / 'shop'}', table = 'Orders')"
    text = f"CREATE TABLE orders (id string PRIMARY KEY, n long) USING headrace {options}"
    assert create(text)
    with pytest.raises(AlreadyExistsError, match="IF NOT EXISTS"):
        create(text)
    assert not create(text.replace("TABLE", "TABLE IF NOT EXISTS"))
    with pytest.raises(HeadraceError, match="columns"):
        create(text.replace("TABLE", "TABLE IF NOT EXISTS").replace("n long", "n string"))


def test_without_a_key_columns_are_the_text_of_a_definition() -> None:
    statement = parsed("CREATE TABLE orders (id string, key long) USING headrace OPTIONS (store = 's', table = 't')")
    assert (statement.columns, statement.new_columns, statement.primary_key) == ("id string, key long", None, ())


def test_the_key_of_a_table_of_spark_is_passed_to_spark() -> None:
    (statement,) = parse("CREATE TABLE t (id INT DEFAULT 1, PRIMARY KEY (id)) USING parquet TBLPROPERTIES ('a' = 'b')")
    assert isinstance(statement, st.SparkStatement)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id string PRIMARY KEY, PRIMARY KEY (id)", "two primary keys"),
        ("id string, id long, PRIMARY KEY (id)", "occurs twice"),
        ("id strin PRIMARY KEY", "unknown column type"),
        ("id string, PRIMARY KEY ()", "a column of the key"),
        ("id string, PRIMARY KEY id", r"\("),
        ("id string DEFAULT 'x', PRIMARY KEY (id)", "cannot be DEFAULT.*coalesce"),
        ("id string, n int DEFAULT 1", "cannot be DEFAULT"),
        ("id string, n int GENERATED ALWAYS AS (1)", "cannot be GENERATED"),
    ],
)
def test_an_invalid_definition_is_an_error_with_its_position(columns: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        parse(f"CREATE TABLE t ({columns}) USING headrace OPTIONS (store = 's')")


def test_a_queue_has_no_key() -> None:
    with pytest.raises(SqlError, match="a queue has no primary key"):
        parse("CREATE QUEUE q (id string PRIMARY KEY)")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("(id string, PRIMARY KEY (nothing)) USING headrace OPTIONS (store = '{store}')", SchemaError),
        ("(id double PRIMARY KEY) USING headrace OPTIONS (store = '{store}')", SchemaError),
        ("(id string PRIMARY KEY) USING headrace OPTIONS (store = '{store}', preImages = 'maybe')", OptionError),
        ("(id string PRIMARY KEY) USING headrace OPTIONS (store = '{store}', preImage = true)", OptionError),
    ],
)
def test_an_invalid_table_is_not_created(tmp_path: Path, text: str, error: type[HeadraceError]) -> None:
    with pytest.raises(error):
        create(f"CREATE TABLE orders {text.format(store=tmp_path / 'shop')}")
    with headrace.open(tmp_path / "shop", create=True) as store:
        assert store.tables() == []
