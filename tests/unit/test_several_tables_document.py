"""The tables of docs/several-tables.md have the constructs of the code: refusals, and reads of whole tables."""

from __future__ import annotations

import pytest

from headrace.derived.follow.gathered import _NOT_IN_FROM, gathered_query, refuse_constructs
from headrace.derived.gathering import constructs
from headrace.derived.gathering.orders import _OF_ANY_ORDER, _OF_TOTAL_ORDER, refuse_orders
from headrace.derived.gathering.routes import plan_gather
from headrace.derived.gathering.scopes import UnclearStructure, read_model
from headrace.errors import SqlError
from headrace.sql_text.query_text import QueryText
from tests.documents import ROOT
from tests.unit.test_gathering import TABLES

# For each row of the table of refusals, by the beginning of its first cell, queries that it is about.
REFUSED = {
    "`collect_list`": [
        f"SELECT cust, {name}(day) AS d FROM orders GROUP BY cust"
        for name in ("collect_list", "collect_set", "array_agg")
    ],
    "`collect_union`": ["SELECT cust, collect_union(array(day)) AS d FROM orders GROUP BY cust"],
    "`first`": [
        "SELECT cust, max_by(amount, day) AS d FROM orders GROUP BY cust",
        "SELECT cust, first(day) AS d FROM orders GROUP BY cust",
    ],
    "`listagg`": ["SELECT nation, listagg(name) AS n FROM customers GROUP BY nation"],
    "`percentile_approx`": ["SELECT cust, percentile_approx(amount, 0.5) AS d FROM orders GROUP BY cust"],
    "`mode`": ["SELECT cust, mode(day) AS d FROM orders GROUP BY cust"],
    "`approx_top_k`": [
        f"SELECT {call} AS d FROM orders"
        for call in ("approx_top_k(day)", "hll_union_agg(day)", "tuple_sketch_agg_integer(id, cust)")
    ],
    "`row_number`": [
        "SELECT id, row_number() OVER (PARTITION BY cust ORDER BY day) AS r FROM orders",
        "SELECT id, counter_diff(amount) OVER (PARTITION BY cust ORDER BY day) AS r FROM orders",
        "SELECT id, sum(amount) OVER (ORDER BY day ROWS 3 PRECEDING) AS s FROM orders",
    ],
    "`LIMIT`": ["SELECT id FROM orders ORDER BY day LIMIT 3", "SELECT id FROM orders ORDER BY day OFFSET 3"],
    "`rand()`": [
        f"SELECT id, {call} AS r FROM orders" for call in ("rand()", "uuid()", "current_timestamp()", "current_user()")
    ],
    "`IDENTIFIER": ["SELECT IDENTIFIER('id') AS id FROM orders"],
    "`TABLESAMPLE`": ["SELECT id FROM orders TABLESAMPLE (10 PERCENT)"],
    "`WATERMARK`": ["SELECT id FROM orders WATERMARK day DELAY OF INTERVAL 1 DAY"],
    "`STREAM`": ["SELECT id FROM STREAM orders"],
    "`WITH RECURSIVE`": ["WITH RECURSIVE r AS (SELECT 1 AS x) SELECT x FROM r, orders"],
    "time travel": ["SELECT id FROM orders TIMESTAMP AS OF '2026-01-01'"],
    "a query of `WITH`": [
        "WITH orders AS (SELECT 1 AS id) SELECT id FROM orders",
        "SELECT id AS __headrace_x FROM orders",
    ],
    "`_change_type`": ["SELECT id, _change_type FROM orders"],
}
# tests/spark/test_gathered_queries.py has these: Spark's plans show them.
IN_SPARK = ("groups, `DISTINCT` or comparisons", "`DISTRIBUTE BY`")
# For each construct that reads whole tables a query.
READ_WHOLE = {
    constructs.JOIN: "SELECT o.id FROM orders o JOIN customers c ON o.cust < c.id",
    constructs.OUTER_JOIN: "SELECT o.id FROM orders o LEFT JOIN customers c ON o.cust < c.id",
    constructs.BESIDE_FULL_JOIN: "SELECT i.n FROM orders o FULL JOIN customers c ON o.cust = c.id "
    "JOIN items i ON i.ord = o.id",
    constructs.SUBQUERY: "SELECT c.id FROM customers c JOIN (SELECT cust, max(day) AS d FROM orders GROUP BY cust) t "
    "ON t.d IS NOT NULL",
    constructs.EXISTS: "SELECT id FROM customers c WHERE EXISTS (SELECT * FROM orders o WHERE o.cust > c.id)",
    constructs.MEMBERSHIP: "SELECT id FROM customers WHERE id IN (SELECT cust FROM orders) OR nation > 1",
    constructs.NOT_IN: "SELECT id FROM customers WHERE id NOT IN (SELECT cust FROM orders)",
    constructs.SCALAR: "SELECT id FROM orders WHERE amount > (SELECT avg(amount) FROM orders)",
    constructs.TOTAL: "SELECT median(amount) AS m FROM orders",
    constructs.GROUPS: "SELECT cust % 3 AS g, median(amount) AS p FROM orders GROUP BY cust % 3",
    constructs.SETS: "SELECT cust, median(amount) AS p FROM orders GROUP BY CUBE (cust)",
    constructs.WINDOW: "SELECT id, rank() OVER (ORDER BY day) AS r FROM orders",
    constructs.DISTINCT: "SELECT DISTINCT cust % 3 AS g FROM orders",
    constructs.LIMIT: "SELECT id FROM orders ORDER BY amount DESC, id LIMIT 10",
    constructs.SET_OPERATION: "SELECT cust + 1 AS x FROM orders UNION SELECT id FROM customers",
}


def rows_of(heading: str) -> list[tuple[str, str]]:
    """Return the cells of the table under a heading."""
    text = (ROOT / "docs" / "several-tables.md").read_text().split(f"# {heading}\n")[1]
    lines = text.partition("| construct | way out |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines]
    return [(construct, remedy) for construct, remedy in cells]


def refuse(sql: str) -> None:
    refuse_constructs(sql)
    gathered_query(sql, TABLES)
    refuse_orders(QueryText(sql), read_model(QueryText(sql), TABLES))


@pytest.mark.parametrize(("construct", "remedy"), rows_of("What is refused"))
def test_a_refusal_has_the_way_out_of_the_document(construct: str, remedy: str) -> None:
    if construct.startswith(IN_SPARK):
        return
    (examples,) = (queries for begins, queries in REFUSED.items() if construct.startswith(begins))
    for sql in examples:
        with pytest.raises(SqlError) as caught:
            refuse(sql)
        assert caught.value.remedy == remedy.replace("`", ""), sql


def test_the_document_has_every_refusal() -> None:
    rows = list(rows_of("What is refused"))
    cells = " ".join(construct for construct, _ in rows)
    assert [begins for begins in REFUSED if not any(cell.startswith(begins) for cell, _ in rows)] == []
    functions = (*_OF_ANY_ORDER, *(name for name in _OF_TOTAL_ORDER if name not in _OF_ANY_ORDER))
    assert [name for name in functions if f"`{name}`" not in cells] == []
    assert [word for word in _NOT_IN_FROM if word not in cells] == []


def test_the_document_has_every_construct_that_reads_whole_tables() -> None:
    *rows, (unclear, remedy) = rows_of("Reads of whole tables")
    assert rows == [tuple(each) for each in constructs.READ_WHOLE]
    assert constructs.unclear(unclear) == (unclear, remedy)
    # Its name depends on Spark's plan.
    assert {*READ_WHOLE, constructs.UNKNOWN_AGGREGATE} == set(constructs.READ_WHOLE)


@pytest.mark.parametrize("construct", READ_WHOLE, ids=lambda construct: construct.name)
def test_a_read_of_whole_tables_has_the_name_of_its_construct(construct: constructs.Construct) -> None:
    plan = plan_gather(read_model(QueryText(READ_WHOLE[construct]), TABLES))
    assert construct in [read.construct for read in plan.full_reads]


def test_a_part_whose_structure_is_not_read_is_named() -> None:
    with pytest.raises(UnclearStructure, match="PIVOT"):
        read_model(QueryText("SELECT * FROM orders PIVOT (sum(amount) FOR cust IN (1, 2))"), TABLES)
