"""Tables that SQL creates in their stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

import headrace
from headrace.errors import OptionError, SchemaError
from tests.spark.sql_scripts import sql_session


def test_a_new_table_is_filled_read_and_kept_when_the_script_runs_again(spark: SparkSession, tmp_path: Path) -> None:
    options = f"OPTIONS (store = '{tmp_path / 'shop'}')"
    create = f"CREATE TABLE totals (user STRING, spent DOUBLE, PRIMARY KEY (user)) USING headrace {options};"
    filled = f"CREATE TABLE copies (user STRING PRIMARY KEY) USING headrace {options} AS SELECT user FROM totals;"
    with sql_session(spark, tmp_path / "jobs") as session:
        assert session.run(create)[0].message == "table totals created"
        session.run("INSERT INTO totals (user, spent) VALUES ('u1', 2.5D), ('u2', 1D)")
        assert session.run(create)[0].message == "table totals is already defined"
        session.run(filled)
        assert sorted(session.run("SELECT * FROM copies")[0].fetch()) == [("u1",), ("u2",)]
        with pytest.raises(SchemaError, match="nothing"):
            session.run(f"CREATE TABLE broken (id STRING, PRIMARY KEY (nothing)) USING headrace {options}")
        assert [row[0] for row in session.run("SHOW TABLES")[0].fetch() if row[0] == "broken"] == []
    with headrace.open(tmp_path / "shop") as store:
        assert sorted(store.tables()) == ["copies", "totals"]


def test_a_definition_says_what_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    with sql_session(spark, tmp_path / "jobs") as session:
        with pytest.raises(OptionError, match=r"received: USING headrase; valid: headrace, .*; did you mean headrace"):
            session.run("CREATE TABLE t USING headrase OPTIONS (store = 's', table = 't')")
        with pytest.raises(
            OptionError, match=r"received: USING kafka; valid: headrace, .*whose package is in the session"
        ):
            session.run("CREATE TABLE t USING kafka OPTIONS (subscribe = 't')")
        with pytest.raises(OptionError, match="the address of a store cannot contain a password"):
            session.run("CREATE TABLE t USING headrace OPTIONS (store = 'postgresql://a:b@localhost/d', table = 't')")
        (no_store,) = session.run(f"CREATE TABLE t USING headrace OPTIONS (store = '{tmp_path / 's'}', table = 't')")
        assert no_store.message == f"table t defined; note: no store here: {tmp_path / 's'}"
        with headrace.open(tmp_path / "s", create=True):
            pass
        (no_table,) = session.run(f"CREATE TABLE t USING headrace OPTIONS (store = '{tmp_path / 's'}', table = 't')")
        assert no_table.message == "table t is already defined; note: no such table or queue: 't'"
        spark.dataSource.register(Numbers)
        (own,) = session.run("CREATE TABLE numbers USING numbers OPTIONS (most = '3')")
        assert own.message == "table numbers defined"


class Numbers(DataSource):
    """A source that needs an option."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return f"n int COMMENT '{self.options['most']}'"
