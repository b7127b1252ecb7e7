"""The names in a text of which some are columns, and the tables that it names."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.derived.follow.gathered import gathered_query, named_elsewhere
from headrace.derived.follow.static_tables import StaticTable, reading
from headrace.derived.gathering.arrangements import Arranged
from headrace.derived.gathering.gather import TableChange
from headrace.derived.used_names import used_names
from headrace.errors import SqlError
from headrace.sql_text.query_text import QueryText


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT id, count(*) FROM orders GROUP BY ID", {"id", "count", "orders"}),
        ("SELECT * FROM orders", None),
        ("FROM orders |> WHERE price > 1", None),
        ("SELECT id, user FROM orders | JOIN users USING (user)", None),
        ("WITH big AS (SELECT id FROM orders) FROM users |> WHERE user = 'a'", None),
        ("SELECT id FROM (FROM orders) o", None),
        ("SELECT id FROM orders UNION ALL FROM users", None),
        ("SELECT extract(day FROM at) FROM orders WHERE id IS DISTINCT FROM 1", {"id", "at"}),
        ("SELECT a FROM orders o(a, b)", None),
        ("SELECT x.a FROM (orders o(a, b) JOIN users u ON o.a = u.id) x", None),
    ],
)
def test_a_text_that_renames_columns_uses_all(query: str, names: set[str] | None) -> None:
    found = used_names(QueryText(query))
    assert (found is None) == (names is None)
    assert found is None or names is None or names <= found


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        ("SELECT a FROM orders o JOIN users USING (user)", []),
        ("FROM orders |> WHERE x > 1 |> AGGREGATE count(*) GROUP BY y", ["orders"]),
        ("FROM orders |> JOIN users USING (user)", ["orders", "users"]),
        ("FROM orders JOIN users USING (user, day) |> SELECT id, user", ["orders", "users"]),
        ("FROM orders SELECT id, user WHERE price > 1", ["orders"]),
        ("FROM orders o JOIN users u ON f(o.x, u.x) SELECT o.id, u.city", ["orders", "users"]),
        ("SELECT id FROM orders JOIN (FROM users |> SELECT user, city) u ON true", ["users"]),
        ("SELECT id FROM orders WHERE user IN (TABLE users)", ["users"]),
        ("FROM (orders o JOIN users u ON o.user = u.user) |> SELECT o.id, u.city", ["orders", "users", "users"]),
        ("SELECT id FROM orders JOIN (users u JOIN cities USING (city)) ON true", []),
        ("SELECT id FROM orders, f(1, TABLE(users))", ["users"]),
        ("SELECT extract(day FROM orders) FROM orders", []),
        ("SELECT x FROM orders UNION ALL TABLE users", ["users"]),
        ("SELECT id FROM orders o JOIN LATERAL (SELECT 1 FROM users u WHERE u.id = o.id)", []),
    ],
)
def test_tables_are_found_outside_of_the_from_of_select(query: str, tables: list[str]) -> None:
    assert [each.table for each in named_elsewhere(QueryText(query))] == tables


def test_a_static_table_is_read_beside_a_query_of_with_that_has_its_name() -> None:
    sql = "SELECT x FROM (WITH cities AS (SELECT x FROM orders) SELECT x FROM cities) UNION ALL TABLE cities"
    assert gathered_query(sql, ["orders"]).others == ("cities",)
    assert reading(sql, [StaticTable("cities", "kept", "")]) == sql.replace(
        "TABLE cities", "SELECT * FROM `kept` AS `cities`"
    )


def test_a_query_of_with_can_have_the_name_of_the_static_table_that_it_reads() -> None:
    sql = "WITH cities AS (SELECT city FROM cities) SELECT id FROM orders JOIN cities ON true JOIN (SELECT 1) x"
    assert gathered_query(sql, ["orders"]).others == ("cities",)
    assert reading(sql, [StaticTable("cities", "kept", "")]) == sql.replace("FROM cities", "FROM `kept` AS `cities`")


@pytest.mark.parametrize(
    ("sql", "read"),
    [
        ("SELECT id FROM o WHERE k IN (TABLE dims)", "SELECT id FROM o WHERE k IN (SELECT * FROM `kept` AS `dims`)"),
        (
            "SELECT x FROM o UNION ALL TABLE dims ORDER BY x",
            "SELECT x FROM o UNION ALL SELECT * FROM `kept` AS `dims` ORDER BY x",
        ),
        ("TABLE dims |> WHERE dims.x = 1", "SELECT * FROM `kept` AS `dims` |> WHERE dims.x = 1"),
        ("SELECT x FROM o, f(TABLE dims)", "SELECT x FROM o, f(TABLE `kept`)"),
        ("SELECT x FROM o, f(1, TABLE(dims))", "SELECT x FROM o, f(1, TABLE(`kept`))"),
        ("FROM dims |> WHERE dims.x = 1", "FROM `kept` AS `dims` |> WHERE dims.x = 1"),
        ("SELECT x FROM table JOIN dims USING (x)", "SELECT x FROM table JOIN `kept` AS `dims` USING (x)"),
        ("FROM dims SELECT dims.x", "FROM `kept` AS `dims` SELECT dims.x"),
        ("FROM o |> JOIN dims d USING (x)", "FROM o |> JOIN `kept` d USING (x)"),
        ("FROM (o JOIN dims USING (x)) |> SELECT y", "FROM (o JOIN `kept` AS `dims` USING (x)) |> SELECT y"),
        (
            "SELECT y FROM dims JOIN (FROM dims |> SELECT x) u ON true",
            "SELECT y FROM `kept` AS `dims` JOIN (FROM `kept` AS `dims` |> SELECT x) u ON true",
        ),
        ("WITH dims AS (SELECT * FROM o) TABLE dims", "WITH dims AS (SELECT * FROM o) TABLE dims"),
    ],
)
def test_the_rows_of_a_static_table_are_read_wherever_it_is_named(sql: str, read: str) -> None:
    assert reading(sql, [StaticTable("dims", "kept", "")]) == read


@pytest.mark.parametrize(
    "rows",
    [
        "(1, NULL), (2, true), (3, DATE '2026-01-01')",
        "-1, NULL, DATE '2026-01-01'",
        "NULL",
        "1 + 2",
        "array(1, 2), array(3)",
        "CAST(1 AS INT), current_date()",
        "CASE WHEN true THEN 1 END, NOT true",
        "INTERVAL 1 DAY, INTERVAL '2' HOUR",
    ],
)
@pytest.mark.parametrize("alias", ["", " v", " v (n)", " AS v (n)"])
def test_the_rows_of_a_list_of_values_name_no_table(rows: str, alias: str) -> None:
    query = gathered_query(f"SELECT 1 AS x FROM VALUES {rows}{alias} CROSS JOIN orders JOIN users", ["orders", "users"])
    assert (query.scans, query.others) == (("orders", "users"), ())


@pytest.mark.parametrize("table", ["values", "values v", "values AS v (a)", "values v (a, b)", "values LATERAL VIEW e"])
def test_a_table_can_have_the_name_values(table: str) -> None:
    for sql in (f"SELECT 1 AS x FROM {table}, orders", f"SELECT 1 AS x FROM orders JOIN {table}"):
        assert gathered_query(sql, ["orders"]).others == ("values",)


def test_a_list_of_tables_before_a_pipe_is_refused() -> None:
    with pytest.raises(SqlError, match="CROSS JOIN"):
        list(named_elsewhere(QueryText("FROM orders, users |> SELECT x")))
    with pytest.raises(SqlError, match="CROSS JOIN"):
        list(named_elsewhere(QueryText("FROM orders, users SELECT x")))


def test_a_followed_table_may_have_a_column_of_any_name() -> None:
    rows = pa.table({"id": pa.array([1], pa.int64()), "r": ["x"], "k": ["y"]})
    arranged = Arranged("t", 0, rows.schema, ("id",), (("id",), ("r",)))
    added = arranged.with_ids(rows)
    (first, put, *_) = arranged.writes(TableChange(added.slice(0, 0), added))
    assert (first.rows.num_rows, put.rows.num_rows) == (0, 1)
    assert put.rows.column("c1").to_pylist() == ["x"]
