"""Which rows of a table a batch leaves out, because they take part in no result: from the text of a query alone."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest

from headrace.derived.gathering.conditions import satisfying
from headrace.derived.gathering.gather import TableChange, TableViews, gather
from headrace.derived.gathering.routes import plan_gather
from headrace.derived.gathering.row_keys import ID, key_kind, row_keys
from headrace.derived.gathering.scopes import Columns, read_model
from headrace.derived.own_names import SIGN
from headrace.sql_text.query_text import QueryText
from tests.views.gathered import RowsInMemory

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "n": pa.array([1, 2, None, 4], pa.int32()),
        "m": pa.array([1, 1, 1, 9], pa.int64()),
        "t": pa.array(["aa", "ab", "b", None]),
        "d": pa.array([date(2026, 1, day) for day in (1, 2, 3, 4)]),
        "x": pa.array([0.5, 1.5, 2.5, 3.5]),
    }
)
OTHERS = pa.table({"id": pa.array([1, 2], pa.int64()), "r": pa.array([1, 3], pa.int64()), "u": pa.array(["a", "b"])})
TABLES = {
    name: Columns({field.name: key_kind(field.type) for field in rows.schema}, ("id",))
    for name, rows in (("rows", ROWS), ("others", OTHERS))
}
ALL = [1, 2, 3, 4]


def _matter(sql: str, table: str = "rows") -> list[int]:
    """Return the ids of the rows that can take part in a result."""
    plan = plan_gather(read_model(QueryText(sql), TABLES))
    rows = {"rows": ROWS, "others": OTHERS}[table]
    number = plan.tables.index(table)
    return list(satisfying(rows, plan.conditions[number]).column("id").to_pylist())


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("t = 'aa'", [1]),
        ("'aa' == r.t AND n < 9", [1]),
        ("t IN ('aa', 'b')", [1, 3]),
        ("t LIKE 'a%'", [1, 2]),
        ("t <> 'aa'", [2, 3]),
        ("n >= 2", [2, 4]),
        ("2 != n", [1, 4]),
        ("n = m", [1]),
        ("n BETWEEN 2 AND 3 AND id < 9", [2]),
        ("d > DATE '2026-01-02' AND d <= CAST('2026-01-03' AS date)", [3]),
        ("(t = 'aa' AND n = 1) OR t = 'b'", [1, 3]),
        ("t = 'aa' OR x > 9", ALL),
        ("NOT t = 'aa'", ALL),
        ("t NOT IN ('aa')", ALL),
        ("t NOT LIKE 'a%'", ALL),
        ("n NOT BETWEEN 2 AND 3", ALL),
        ("t <=> 'aa'", ALL),
        ("n <=> NULL", ALL),
        ("upper(t) = 'aa'", ALL),
        ("t = upper('aa')", ALL),
        ("t = 'a' || 'a'", ALL),
        ("t = 'a' 'a'", ALL),
        ('t = "aa"', ALL),
        ("t = r'aa'", ALL),
        (r"t = 'a\a'", ALL),
        ("t = 'a''a'", ALL),
        ("t LIKE 'a_'", ALL),
        ("t LIKE 'aa' ESCAPE '!'", ALL),
        ("t = 'aa' COLLATE UTF8_LCASE", ALL),
        ("t IN ('aa', upper('b'))", ALL),
        ("t IN (SELECT u FROM others)", ALL),
        ("n = '1'", ALL),
        ("t = 1", ALL),
        ("n = 1.0", ALL),
        ("n = 1L", ALL),
        ("n = -1", ALL),
        ("n + 1 = 1", ALL),
        ("n = 1 + 1", ALL),
        ("m < 9223372036854775808", ALL),
        ("x = 1", ALL),
        ("d = '2026-01-01'", ALL),
        ("d = DATE '2026-1-1'", ALL),
        ("d = DATE '2026-02-30'", ALL),
        ("CASE WHEN n = 1 OR n = 2 OR n = 3 THEN false END", ALL),
    ],
)
def test_conditions_leave_out_rows(condition: str, ids: list[int]) -> None:
    assert _matter(f"SELECT id FROM rows r WHERE {condition}") == ids


@pytest.mark.parametrize(
    ("sql", "ids"),
    [
        ("SELECT r.id FROM rows r JOIN others o ON o.r = r.id AND n = 1", [1]),
        ("SELECT p FROM (SELECT id AS p, t AS q FROM rows) WHERE q = 'aa'", [1]),
        ("WITH w AS (SELECT * FROM rows WHERE n = 1) SELECT w.id, o.u FROM w FULL JOIN others o ON o.r = w.id", [1]),
        ("SELECT u FROM others WHERE NOT EXISTS (SELECT * FROM rows r WHERE r.id = r AND n = 1)", [1]),
        ("SELECT u FROM others o LEFT JOIN rows r ON o.r = r.id AND r.n = 1", [1]),
        ("SELECT u FROM rows r RIGHT JOIN others o ON o.r = r.id AND r.n = 1", [1]),
        ("SELECT u FROM others o ANTI JOIN rows r ON o.r = r.id AND r.n = 1", [1]),
        ("SELECT n, count(*) AS c FROM rows WHERE n = 1 GROUP BY n HAVING n = 2", [1]),
        # Rows stay, or are compared by the condition of a part of the query only.
        (
            "SELECT id FROM (SELECT *, m AS end FROM rows) r "
            "WHERE end < 99 AND CASE WHEN n = 1 AND t = 'aa' AND id = 1 THEN false ELSE true END",
            ALL,
        ),
        (
            "SELECT id FROM (SELECT *, m AS end FROM rows) r "
            "WHERE CASE WHEN r.end = 1 AND n = 1 AND id < 3 THEN true ELSE true END",
            ALL,
        ),
        ("SELECT r.id FROM rows r LEFT JOIN others o ON o.r = r.id AND r.n = 1", ALL),
        ("SELECT r.id FROM rows r FULL JOIN others o ON o.r = r.id AND r.n = 1", ALL),
        ("SELECT r.id FROM rows r ANTI JOIN others o ON o.r = r.id AND r.n = 1", ALL),
        ("SELECT r.id FROM rows r WHERE EXISTS (SELECT * FROM others o WHERE o.r = r.id AND r.n = 1)", ALL),
        ("SELECT id FROM rows r WHERE id IN (SELECT r FROM others) OR n = 1", ALL),
        ("SELECT n, count(*) AS c FROM rows GROUP BY n HAVING n = 1", ALL),
        ("SELECT p FROM (SELECT id AS p, sum(n) OVER (PARTITION BY m) AS q FROM rows) WHERE q = 1", ALL),
        ("SELECT p FROM (SELECT id AS p, upper(t) AS t FROM rows) WHERE t = 'aa'", ALL),
    ],
)
def test_a_condition_is_that_of_its_part_of_the_query(sql: str, ids: list[int]) -> None:
    assert _matter(sql) == ids


def test_texts_with_a_collation_are_left_to_the_query() -> None:
    tables = {"rows": Columns({"id": "integer", "t": "string"}, ("id",), collated=True)}
    model = read_model(QueryText("SELECT id FROM rows WHERE t = 'aa'"), tables)
    assert model.occurrences[0].conditions == []


@pytest.mark.parametrize(
    ("sql", "changed", "rows", "others"),
    [
        # The row that is changed has id 1; of the others, 1 has r = 1 and u = 'a', 2 has r = 3 and u = 'b'.
        ("SELECT * FROM rows a JOIN others o ON o.r = a.id WHERE u = 'a'", 1, [1], [1]),
        ("SELECT * FROM rows a JOIN others o ON o.r = a.id WHERE u = 'b'", 1, None, None),
        ("SELECT * FROM rows a JOIN others o ON o.r = a.id WHERE u = 'b'", 2, None, None),
        ("SELECT * FROM rows a LEFT JOIN others o ON o.r = a.id AND u = 'b'", 1, [1], []),
        ("SELECT * FROM rows a FULL JOIN others o ON o.r = a.id", 2, [2], []),
        ("SELECT id FROM rows a WHERE EXISTS (SELECT * FROM others WHERE r = a.id AND u = 'b')", 1, None, None),
        ("SELECT id FROM rows a WHERE EXISTS (SELECT * FROM others WHERE r = a.id AND u = 'a')", 1, [1], [1]),
        ("SELECT id FROM rows a WHERE NOT EXISTS (SELECT * FROM others WHERE r = a.id AND u = 'b')", 1, [1], []),
        ("SELECT id FROM rows WHERE id IN (SELECT r FROM others WHERE u = 'b') AND n > 0", 1, None, None),
        ("SELECT id FROM rows WHERE NOT (id IN (SELECT r FROM others WHERE u = 'b'))", 1, [1], [1, 2]),
        ("SELECT id FROM rows WHERE id NOT IN (SELECT id FROM others WHERE u = 'b')", 1, [1], []),
        ("SELECT a.id FROM rows a SEMI JOIN others o ON o.r = a.id AND u = 'b'", 1, None, None),
        ("SELECT a.id FROM rows a ANTI JOIN others o ON o.r = a.id AND u = 'b'", 1, [1], []),
        # An aggregate of no rows is a row.
        ("SELECT id FROM rows a WHERE EXISTS (SELECT count(*) FROM others WHERE r = a.id AND u = 'b')", 1, [1], []),
        (
            "SELECT id FROM rows a WHERE EXISTS "
            "(SELECT * FROM (SELECT count(*) AS c FROM others WHERE r = a.id AND u = 'b') x)",
            1,
            [1],
            [1, 2],
        ),
        (
            "SELECT id FROM rows a WHERE NOT EXISTS (SELECT * FROM rows s WHERE s.id = a.id "
            "AND EXISTS (SELECT * FROM others WHERE r = a.id AND u = 'b'))",
            1,
            [1],
            [1, 2],
        ),
    ],
)
def test_nothing_is_read_for_rows_that_take_part_in_no_result(
    sql: str, changed: int, rows: list[int] | None, others: list[int] | None
) -> None:
    plan = plan_gather(read_model(QueryText(sql), TABLES))
    kept = {
        name: RowsInMemory(table.append_column(ID, row_keys(table, ("id",))))
        for name, table in (("rows", ROWS), ("others", OTHERS))
    }
    change = kept["rows"].rows.slice(changed - 1, 1)
    views = gather(plan, {"rows": TableChange(change, change)}, kept, 100)
    assert views is not None
    if rows is None:
        assert views == {}
    else:
        assert set(views["rows"].rows.column("id").to_pylist()) == set(rows)
        assert views["rows"].rows.column(SIGN).to_pylist() == [-1, 1]
        assert views["others"].rows.column("id").to_pylist() == others


def test_rows_that_are_read_and_left_out_are_not_evaluated() -> None:
    """A changed region reaches all orders; two of them have an item of the kind that the query asks for."""
    views = _of_changed_region(orders=20, most=10)
    assert views is not None
    gathered = {name: each.rows.column("id").to_pylist() for name, each in views.items()}
    assert gathered == {"regions": [1, 1], "orders": [3, 7], "items": [3, 7]}
    # Each order and its item are read, at most four for each row that may be evaluated.
    assert _of_changed_region(orders=21, most=10) is None
    assert _of_changed_region(orders=8, most=4) is not None
    # The two orders and their items are more than three.
    assert _of_changed_region(orders=8, most=3) is None


def _of_changed_region(*, orders: int, most: int) -> dict[str, TableViews] | None:
    """Return what a batch gathers that changes the region of all orders. Each order has one item."""
    ids = pa.array(range(orders), pa.int64())
    tables = {
        "regions": pa.table({"id": pa.array([1], pa.int64())}),
        "orders": pa.table({"id": ids, "region": pa.repeat(pa.scalar(1, pa.int64()), orders)}),
        "items": pa.table(
            {"id": ids, "ordered": ids, "kind": pa.array(["a" if i in (3, 7) else "b" for i in range(orders)])}
        ),
    }
    columns = {
        name: Columns({field.name: key_kind(field.type) for field in rows.schema}, ("id",))
        for name, rows in tables.items()
    }
    sql = (
        "SELECT i.id FROM regions r JOIN orders o ON o.region = r.id JOIN items i ON i.ordered = o.id "
        "WHERE i.kind = 'a'"
    )
    kept = {name: RowsInMemory(rows.append_column(ID, row_keys(rows, ("id",)))) for name, rows in tables.items()}
    change = kept["regions"].rows
    return gather(
        plan_gather(read_model(QueryText(sql), columns)), {"regions": TableChange(change, change)}, kept, most
    )
