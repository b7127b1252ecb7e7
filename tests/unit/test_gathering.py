"""Which rows a batch of a query reads, from the text of the query alone; and keys, differences and orders of rows."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.derived.gathering.arrangements import Arranged, Gathering
from headrace.derived.gathering.gather import difference
from headrace.derived.gathering.orders import refuse_orders
from headrace.derived.gathering.routes import plan_gather
from headrace.derived.gathering.row_keys import key_kind, row_keys
from headrace.derived.gathering.scopes import Columns, UnclearStructure, read_model
from headrace.derived.gathering.tree import blocks, reads
from headrace.errors import SqlError
from headrace.sql_text.query_text import QueryText

TABLES = {
    "orders": Columns({"id": "integer", "cust": "integer", "day": "date", "amount": "decimal 2"}, ("id",)),
    "items": Columns({"ord": "integer", "line": "integer", "product": "integer", "n": "integer"}, ("ord", "line")),
    "customers": Columns({"id": "integer", "name": "string", "nation": "integer"}, ("id",)),
    "products": Columns({"id": "integer", "price": "decimal 2", "code": "string"}, ("id",)),
    "rates": Columns({"day": "date", "rate": "double"}, (), changes=False),
}
SUMS = "(SELECT cust, sum(amount) AS s FROM orders GROUP BY cust)"
# Stands for all rows of each followed table of the query.
EVERYTHING = "all rows of all"
READS = [
    ("SELECT o.id FROM orders o JOIN customers c ON o.cust = c.id", ["customers by (id)", "orders by (cust)"]),
    (
        "SELECT o.id FROM orders o LEFT JOIN customers c ON (c.id = o.cust)",
        ["customers by (id)", "orders by (cust), customers by (id)"],
    ),
    (
        "SELECT o.id FROM orders o RIGHT JOIN customers c ON o.cust = c.id",
        ["customers by (id), orders by (cust)", "orders by (cust)"],
    ),
    (
        "SELECT o.id FROM orders o FULL JOIN customers c ON o.cust = c.id",
        ["customers by (id), orders by (cust)", "orders by (cust), customers by (id)"],
    ),
    (
        "SELECT i.n FROM orders o FULL JOIN customers c ON o.cust = c.id JOIN items i ON i.ord = o.id",
        [
            "customers by (id), orders by (cust), all rows of items",
            "orders by (cust), customers by (id), all rows of items",
            "customers by (id), orders by (cust), all rows of customers, all rows of orders",
        ],
    ),
    ("SELECT o.id FROM orders o, customers c WHERE o.cust == c.id", ["customers by (id)", "orders by (cust)"]),
    ("SELECT o.id FROM orders o CROSS JOIN customers c", ["all rows of customers", "all rows of orders"]),
    (
        "SELECT o.id FROM orders o JOIN customers c ON o.cust = c.id OR o.id = c.id",
        ["all rows of customers", "all rows of orders"],
    ),
    (
        "SELECT o.id FROM orders o, customers c WHERE (o.cust = c.id AND o.id < 9) OR (c.nation = 1 AND c.id = o.cust)",
        ["customers by (id)", "orders by (cust)"],
    ),
    (
        "SELECT o.id FROM orders o, customers c WHERE CASE WHEN o.id = 1 THEN o.cust = c.id OR o.cust = c.id END",
        ["all rows of customers", "all rows of orders"],
    ),
    (
        "SELECT o.id FROM orders o JOIN customers c ON NOT (o.cust = c.id)",
        ["all rows of customers", "all rows of orders"],
    ),
    ("SELECT o.id FROM orders o JOIN products p ON p.code = o.cust", ["all rows of products", "all rows of orders"]),
    (
        "SELECT id FROM customers c WHERE NOT EXISTS (SELECT * FROM orders WHERE cust = c.id)",
        ["orders by (cust)", "customers by (id), orders by (cust)"],
    ),
    (
        "SELECT id FROM customers WHERE id IN (SELECT cust FROM orders) AND nation > 1",
        ["orders by (cust)", "customers by (id), orders by (cust)"],
    ),
    (
        "SELECT id FROM customers WHERE id IN (SELECT cust FROM orders) OR nation > 1",
        ["all rows of orders", EVERYTHING],
    ),
    # A null in the list matters to all rows.
    ("SELECT id FROM customers WHERE id NOT IN (SELECT cust FROM orders)", ["all rows of orders", EVERYTHING]),
    (
        "SELECT id FROM orders WHERE id NOT IN (SELECT ord FROM items)",
        ["items by (ord)", "orders by (id), items by (ord)"],
    ),
    (
        "SELECT c.id, (SELECT max(amount) FROM orders o WHERE o.cust = c.id) AS m FROM customers c",
        ["orders by (cust)", "customers by (id), orders by (cust)"],
    ),
    ("SELECT id FROM orders WHERE amount > (SELECT avg(amount) FROM orders)", ["all rows of orders", EVERYTHING]),
    ("SELECT cust, percentile(amount, 0.5) AS p FROM orders GROUP BY cust", ["orders by (cust)"]),
    ("SELECT cust % 3 AS g, percentile(amount, 0.5) AS p FROM orders GROUP BY cust % 3", [EVERYTHING]),
    ("SELECT cust, day, median(amount) AS p FROM orders GROUP BY ROLLUP (cust, day)", [EVERYTHING]),
    (
        "SELECT c.nation, median(o.amount) AS m FROM orders o JOIN customers c ON o.cust = c.id GROUP BY 1",
        ["customers by (id), customers by (nation), orders by (cust)", "customers by (nation), orders by (cust)"],
    ),
    (
        f"SELECT c.id, t.s FROM customers c LEFT JOIN {SUMS} t ON t.cust = c.id",
        ["orders by (cust)", "customers by (id), orders by (cust)"],
    ),
    (
        f"WITH t AS {SUMS} SELECT a.cust FROM t a JOIN t b ON a.cust = b.cust",
        ["orders by (cust)", "orders by (cust)"],
    ),
    (f"SELECT cust, s FROM {SUMS} WHERE s > 10", ["orders by (cust)"]),
    (f"SELECT s, count(*) AS n FROM {SUMS} GROUP BY s", [EVERYTHING]),
    ("SELECT id, rank() OVER (PARTITION BY cust ORDER BY day) AS r FROM orders", ["orders by (cust)"]),
    ("SELECT id, rank() OVER (ORDER BY day) AS r FROM orders", [EVERYTHING]),
    ("SELECT DISTINCT cust, day FROM orders", ["orders by (cust)"]),
    (
        "SELECT cust FROM orders UNION SELECT id FROM customers",
        ["orders by (cust), customers by (id)", "orders by (cust), customers by (id)"],
    ),
    ("SELECT id FROM orders UNION ALL SELECT id FROM customers", ["nothing else", "nothing else"]),
    # No path leads over a static table, and each batch has it as a whole.
    (
        "SELECT r.rate FROM orders o JOIN rates r ON r.day = o.day JOIN customers c ON c.id = o.cust",
        ["customers by (id)", "orders by (cust)"],
    ),
    (
        "SELECT i.n, p.price FROM orders o JOIN items i ON i.ord = o.id JOIN products p ON p.id = i.product",
        ["items by (ord), products by (id)", "orders by (id), products by (id)", "items by (product), orders by (id)"],
    ),
    (
        "SELECT a.id, b.id AS other FROM orders a JOIN orders b ON a.cust = b.cust AND a.id < b.id",
        ["orders by (cust)", "orders by (cust)"],
    ),
    (
        "SELECT o.id FROM orders o, LATERAL (SELECT count(*) AS n FROM items i WHERE i.ord = o.id) x",
        ["items by (ord)", "orders by (id), items by (ord)"],
    ),
    ("SELECT id FROM orders ORDER BY amount DESC, id LIMIT 10", [EVERYTHING]),
    ("SELECT o.id FROM orders o JOIN customers c USING (id)", ["customers by (id)", "orders by (id)"]),
    ("SELECT o.id FROM orders o NATURAL JOIN items i", ["all rows of items", "all rows of orders"]),
    (
        "SELECT o.id FROM orders o, customers c WHERE o.cust = c.id AND c.nation = 1 OR o.id = 2",
        ["all rows of customers", "all rows of orders"],
    ),
    (
        "SELECT o.id FROM orders o, customers c "
        "WHERE CASE WHEN o.id > 1 AND o.cust = c.id AND true THEN false ELSE true END",
        ["all rows of customers", "all rows of orders"],
    ),
    (
        "SELECT o.id FROM orders o LEFT JOIN customers c ON o.cust = c.id OR c.nation = 1 AND o.id = 2",
        ["all rows of customers", EVERYTHING],
    ),
    # After a RIGHT JOIN, the name is the column of the right side.
    (
        "SELECT i.n FROM orders o RIGHT JOIN customers c USING (id) LEFT JOIN products p USING (id), items i",
        [
            "customers by (id), orders by (id), all rows of items, all rows of products",
            "orders by (id), all rows of items, all rows of products",
            EVERYTHING,
            "orders by (id), all rows of customers, all rows of products",
        ],
    ),
    # Not every row of the subquery satisfies the condition.
    (
        "SELECT c.id, (SELECT count(*) FROM items i LEFT JOIN (SELECT * FROM orders WHERE cust = c.id) o "
        "ON o.id = i.ord) AS n FROM customers c",
        ["all rows of items, all rows of orders", EVERYTHING, EVERYTHING],
    ),
    (
        "SELECT c.id, (SELECT count(*) FROM (SELECT * FROM orders WHERE cust = c.id) o "
        "FULL JOIN items i ON o.id = i.ord) AS n FROM customers c",
        ["all rows of items, all rows of orders", EVERYTHING, EVERYTHING],
    ),
    # The alias of an item of HAVING can be meant.
    (
        "SELECT cust, max(day) AS id FROM orders GROUP BY cust HAVING EXISTS (SELECT * FROM items WHERE ord = id)",
        ["orders by (cust), all rows of items", EVERYTHING],
    ),
    ("SELECT id FROM orders UNION ALL SELECT 0", ["nothing else"]),
    ("SELECT o.day FROM orders o NATURAL JOIN customers c", ["customers by (id)", "orders by (id)"]),
    ("SELECT * EXCEPT (name) FROM orders o JOIN customers c USING (id)", ["customers by (id)", "orders by (id)"]),
    (
        "SELECT b.n FROM (SELECT * FROM items i JOIN products p ON p.id = i.product) b (k, l, p, n, i, price, code) "
        "JOIN orders o ON o.id = b.k",
        ["products by (id), orders by (id)", "items by (product), orders by (id)", "items by (ord), products by (id)"],
    ),
    # The columns of a star over USING: first those of both sides, then the other ones.
    (
        "SELECT b.n FROM (SELECT * FROM items i JOIN products p ON p.id = i.product JOIN orders o USING (id)) "
        "b (i, k, l, p, n, price, code, cust, day, amount) JOIN customers c ON c.id = b.cust",
        [
            "products by (id), orders by (id), customers by (id)",
            "orders by (id), customers by (id), items by (product)",
            "products by (id), customers by (id), items by (product)",
            "orders by (cust), products by (id), items by (product)",
        ],
    ),
    (
        "SELECT o.id, q FROM orders o, customers c LATERAL VIEW explode(array(1, 2)) t AS q WHERE o.cust = c.id",
        ["customers by (id)", "orders by (cust)"],
    ),
    (
        "SELECT o.id, q FROM orders o JOIN customers c ON o.cust = c.id, LATERAL explode(array(o.id)) AS t (q)",
        ["customers by (id)", "orders by (cust)"],
    ),
    (
        "SELECT o.id, c.name, explode(array(o.id)) AS q FROM orders o JOIN customers c ON o.cust = c.id",
        ["customers by (id)", "orders by (cust)"],
    ),
    (
        "SELECT c.id, e.q FROM (SELECT posexplode(array(id)) AS (p, q), cust FROM orders) e "
        "JOIN customers c ON c.id = e.cust",
        ["customers by (id)", "orders by (cust)"],
    ),
    (
        "SELECT o.id, (SELECT count(*) FROM items i, LATERAL explode(array(i.price)) AS e (p) WHERE i.ord = o.id) AS n "
        "FROM orders o",
        ["items by (ord)", "orders by (id), items by (ord)"],
    ),
    # `cust` is the column of VALUES.
    (
        "SELECT id FROM orders WHERE EXISTS (SELECT * FROM items i, (VALUES (1)) v (cust) WHERE i.ord = cust)",
        ["all rows of items", EVERYTHING],
    ),
    (
        "SELECT o.id, v.x FROM orders o JOIN VALUES (1, NULL), (2, DATE '2026-01-01'), (3, true) AS v (n, x) "
        "ON v.n = o.id JOIN customers c ON o.cust = c.id",
        ["customers by (id)", "orders by (cust)"],
    ),
    ("SELECT 'all' AS k, sort_array(collect_list(day) RESPECT NULLS) AS d FROM orders", ["all rows of orders"]),
    ("SELECT 'all' AS k, system.builtin.median(amount) AS m FROM orders", ["all rows of orders"]),
    (
        # Rows of one column need no brackets.
        "SELECT o.id, v.x FROM orders o JOIN VALUES NULL, -1, 2 AS v (x) ON v.x = o.id JOIN customers c ON "
        "o.cust = c.id",
        ["customers by (id)", "orders by (cust)"],
    ),
    (
        "SELECT id, sum(amount) OVER w AS s FROM orders WINDOW w AS (PARTITION BY cust ORDER BY day)",
        ["orders by (cust)"],
    ),
    (
        "SELECT id, sum(amount) OVER (v) AS s FROM orders WINDOW w AS (PARTITION BY cust ORDER BY day), v AS w",
        ["orders by (cust)"],
    ),
    (
        "SELECT id, last_value(day) IGNORE NULLS OVER (ORDER BY id) AS d, sum(amount) OVER (PARTITION BY cust) AS s "
        "FROM orders",
        [EVERYTHING],
    ),
    (
        "SELECT id FROM orders UNION ALL SELECT id FROM customers ORDER BY id LIMIT 3",
        [EVERYTHING, EVERYTHING],
    ),
]
UNCLEAR = [
    "SELECT o.id FROM orders o LATERAL VIEW explode(sequence(1, (TABLE items))) t AS n",
    "SELECT o.id FROM orders o, LATERAL explode(sequence(1, (TABLE items))) t (n)",
    "SELECT o.id FROM orders o JOIN f(TABLE(items)) t ON t.id = o.id",
    "SELECT o.id FROM orders o JOIN f(1, TABLE(items)) t ON t.id = o.id",
    "SELECT o.id FROM orders o JOIN f(n => 1, rows => TABLE items) t ON t.id = o.id",
    "SELECT id, cust FROM orders | WHERE id > 3",
    # Its text names a table that no row of the result is made of.
    "WITH z AS (SELECT n FROM items) SELECT o.id FROM orders o JOIN customers c ON o.cust = c.id",
    "SELECT o.id FROM orders o JOIN (VALUES (1) |> JOIN customers c ON true) v (m, n, o, p) ON v.m = o.id",
    "SELECT id FROM orders JOIN customers JOIN items ON items.ord = orders.id ON customers.id = orders.cust",
    "SELECT * EXCEPT (id.x) FROM orders",
    "SELECT * FROM orders PIVOT (sum(amount) FOR cust IN (1, 2))",
    "SELECT id FROM orders UNION BY NAME SELECT id FROM customers",
    "WITH RECURSIVE r AS (SELECT 1 AS x) SELECT x FROM r",
    "SELECT e.* FROM (SELECT * FROM (SELECT id + 1, cust FROM orders) z) e (p, q) JOIN customers c ON c.id = e.q",
    "SELECT c.id FROM (SELECT st.*, id FROM orders) e (p, q) JOIN customers c ON c.id = e.q",
    "SELECT e.q FROM (SELECT posexplode(array(id)), cust FROM orders) e (p, q, r) JOIN customers c ON c.id = e.r",
    "SELECT explode(collect_set(id)) AS q FROM orders",
    "SELECT o.id FROM orders o, explode((SELECT sort_array(collect_list(id)) FROM customers)) t",
    "SELECT o.id FROM orders o LATERAL VIEW explode((SELECT sort_array(collect_list(id)) FROM customers)) t AS q",
    "SELECT o.id FROM orders o JOIN (VALUES ((SELECT max(id) FROM customers))) v (m) ON v.m = o.id",
]


@pytest.mark.parametrize(("sql", "expected"), READS, ids=[sql for sql, _ in READS])
def test_lookups_of_a_query(sql: str, expected: list[str]) -> None:
    plan = plan_gather(read_model(QueryText(sql), TABLES))
    tables = {name: Arranged(name, 0, pa.schema([]), table.key, ()) for name, table in TABLES.items()}
    gathering = Gathering(plan, tables, None)
    everything = ", ".join(f"all rows of {table}" for table in sorted({table for table in plan.tables if table}))
    shown = [reads(gathering, number) for number, table in enumerate(plan.tables) if table]
    assert shown == [everything if text is EVERYTHING else text for text in expected]
    assert bool(plan.full_reads) == any("all rows of" in text for text in expected)


def test_functions_that_make_rows_are_shown() -> None:
    sql = (
        "SELECT o.id, p, q, r FROM (SELECT id, cust, explode(array(cust)) AS p FROM orders) o "
        "LATERAL VIEW explode(array(1, 2)) v AS q LEFT JOIN LATERAL stack(2, p, q) AS t (r) ON true"
    )
    model = read_model(QueryText(sql), TABLES)
    tables = {"orders": Arranged("orders", 0, pa.schema([]), ("id",), ())}
    lines = list(blocks(Gathering(plan_gather(model), tables, model), {}).lines())
    assert lines[1].endswith(
        "with the rows that explode(array(cust)), explode(array(1, 2)), stack(2, p, q) make of each"
    )


# A table with one row, as that of an inner query without GROUP BY.
MEAN = TABLES | {"mean": Columns({"v": "decimal 6", "name": "string"}, null_keys=True)}
BETWEEN = "orders by (amount) between the old and the new value"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("amount > (SELECT v FROM mean)", BETWEEN),
        ("((SELECT v FROM mean) <= o.amount) AND id < 9", BETWEEN),
        ("amount <> (SELECT v FROM (SELECT v FROM mean) m)", BETWEEN),
        ("amount = (WITH m AS (SELECT v AS w FROM mean) SELECT w FROM m)", EVERYTHING),
        ("amount > (SELECT w FROM listed AS l)", BETWEEN),
        ("amount > (SELECT v FROM (SELECT v FROM mean WHERE v > 0) m)", EVERYTHING),
        ("amount > (SELECT v FROM mean LIMIT 1)", EVERYTHING),
        ("amount > (SELECT v FROM mean LEFT JOIN rates ON rate = v)", EVERYTHING),
        ("amount > (SELECT v * 2 FROM mean)", EVERYTHING),
        ("amount > (SELECT v FROM mean WHERE v > 0)", EVERYTHING),
        ("amount + 1 > (SELECT v FROM mean)", EVERYTHING),
        ("NOT amount > (SELECT v FROM mean)", EVERYTHING),
        ("id = 1 OR amount > (SELECT v FROM mean)", EVERYTHING),
        ("amount > (SELECT v FROM mean) OR id = 1", EVERYTHING),
        ("amount <=> (SELECT v FROM mean)", EVERYTHING),
        ("day = (SELECT v FROM mean)", EVERYTHING),
        ("amount IN (SELECT v FROM mean)", EVERYTHING),
    ],
)
def test_a_change_of_one_value_reads_the_rows_between(condition: str, expected: str) -> None:
    listed = "WITH listed AS (SELECT v AS w FROM mean) " if "listed" in condition else ""
    plan = plan_gather(read_model(QueryText(f"{listed}SELECT id FROM orders o WHERE {condition}"), MEAN))
    tables = {name: Arranged(name, 0, pa.schema([]), table.key, ()) for name, table in MEAN.items()}
    shown = [reads(Gathering(plan, tables, None), number) for number in range(2)]
    everything = "all rows of mean, all rows of orders"
    assert shown[1] == everything if expected is EVERYTHING else shown[1].startswith(expected)
    assert bool(plan.full_reads) == (expected is EVERYTHING)
    # A value in one row is always read.
    assert shown[0] == "all rows of mean"


@pytest.mark.parametrize("sql", UNCLEAR)
def test_a_text_whose_structure_is_not_certain_has_no_model(sql: str) -> None:
    with pytest.raises(UnclearStructure):
        read_model(QueryText(sql), TABLES)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, row_number() OVER (PARTITION BY cust ORDER BY day, id) AS r FROM orders",
        "SELECT i.n, lag(i.n) OVER (ORDER BY i.ord, i.line DESC) AS b FROM items i JOIN orders o ON o.id = i.ord",
        "SELECT id FROM orders ORDER BY amount NULLS LAST, id LIMIT 3",
        "SELECT cust, count(*) AS n FROM orders GROUP BY cust ORDER BY n DESC, cust LIMIT 3",
        "SELECT cust, sort_array(collect_list(day)) AS d FROM orders GROUP BY cust",
        "SELECT id, sum(amount) OVER (PARTITION BY cust ORDER BY day) AS s FROM orders",
        # The columns determine the rows of what a part of the query makes: its groups, its different rows.
        "SELECT trunc(day, 'MM') AS m, sum(amount) AS s FROM orders GROUP BY trunc(day, 'MM') ORDER BY m LIMIT 3",
        "SELECT trunc(day, 'MM') AS month, sum(amount) AS s FROM orders GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 3",
        "SELECT trunc(o.day, 'M') AS m, lag(max(id)) OVER (ORDER BY trunc(day, 'M')) AS b FROM orders o GROUP BY m",
        "WITH t AS (SELECT trunc(day, 'MM') AS m, sum(amount) AS s FROM orders GROUP BY ALL) "
        "SELECT m, s - lag(s) OVER (ORDER BY m) AS growth FROM t",
        f"SELECT cust, row_number() OVER (ORDER BY s DESC, cust) AS r FROM {SUMS}",
        f"SELECT c.nation, c.id, row_number() OVER (PARTITION BY nation ORDER BY s, c.id) AS r "
        f"FROM customers c JOIN {SUMS} t ON t.cust = c.id",
        "SELECT id, r, lag(r) OVER (ORDER BY id) AS b FROM (SELECT id, rank() OVER (ORDER BY day) AS r FROM orders)",
        "SELECT DISTINCT cust FROM orders ORDER BY cust LIMIT 3",
        "SELECT cust, max(id) AS m FROM orders GROUP BY ALL ORDER BY ALL LIMIT 3",
        "SELECT cust FROM orders ORDER BY cust LIMIT 3",
        "SELECT id, day FROM orders UNION ALL SELECT id, day FROM orders ORDER BY day, id LIMIT 3",
        "SELECT id FROM orders WHERE EXISTS (SELECT * FROM items WHERE ord = orders.id) ORDER BY id LIMIT 3",
        "SELECT id, lag(day) OVER w AS r FROM orders WINDOW w AS (ORDER BY id)",
        # Rows that the order of a named window leaves equal have one rank, and one sum without a frame of ROWS.
        "SELECT id, rank() OVER w AS r, sum(amount) OVER W AS s FROM orders WINDOW v AS (ORDER BY id), "
        "w AS (ORDER BY day)",
        # The name can be in brackets, and that of another window.
        "SELECT id, lag(day) OVER (w) AS r, ntile(2) OVER x AS n FROM orders WINDOW w AS (ORDER BY id), x AS (W)",
        "SELECT id, sum(amount) OVER (v) AS s FROM orders WINDOW w AS (ORDER BY day), v AS w",
        "SELECT id, last_value(day) IGNORE NULLS OVER (PARTITION BY cust ORDER BY id) AS d FROM orders",
        "SELECT * EXCEPT (r) FROM (SELECT *, row_number() OVER (ORDER BY id) AS r FROM orders) WHERE r = 1",
        "SELECT *, row_number() OVER (ORDER BY id) AS r FROM orders JOIN customers c USING (id)",
        "SELECT id, q, row_number() OVER (ORDER BY id, q) AS r FROM orders LATERAL VIEW explode(array(1, 2)) t AS q",
        "SELECT id, explode(array(1, 2)) AS q FROM orders ORDER BY id, q LIMIT 1",
        "SELECT id, a, row_number() OVER (ORDER BY id) AS r FROM orders, (SELECT avg(amount) AS a FROM orders) t",
        # What an aggregate chooses is determined.
        "SELECT o.cust, any_value(c.name) AS name FROM orders o JOIN customers c ON c.id = o.cust GROUP BY o.cust",
        "SELECT o.cust, first(c.name) AS n FROM orders o LEFT JOIN customers c ON (c.id = o.cust) GROUP BY o.cust",
        "SELECT cust, max_by(amount, struct(day, id)) AS d FROM orders GROUP BY cust",
        "SELECT nation, listagg(DISTINCT name) WITHIN GROUP (ORDER BY name) AS n FROM customers GROUP BY nation",
        "SELECT nation, listagg(name) WITHIN GROUP (ORDER BY code, c.id) AS names FROM customers c JOIN products p "
        "ON p.id = c.id GROUP BY nation",
        "SELECT cust, size(collect_set(day)) AS d FROM orders GROUP BY cust",
        "SELECT cust, sort_array(collect_list(day) RESPECT NULLS, false) AS d FROM orders GROUP BY cust",
        "SELECT cust, sort_array(collect_union(array(day))) AS d FROM orders GROUP BY cust",
        # Functions can have their schema before their name.
        "SELECT cust, system.builtin.sort_array(system.builtin.collect_list(day)) AS d FROM orders GROUP BY cust",
        "SELECT o.cust, builtin.first(c.name) AS n FROM orders o JOIN customers c ON c.id = o.cust GROUP BY o.cust",
        "SELECT cust, mode(day, true) AS d, mode() WITHIN GROUP (ORDER BY day) AS e FROM orders GROUP BY cust",
        "SELECT r, lag(id) OVER (ORDER BY r) AS b "
        "FROM (SELECT *, row_number() OVER (ORDER BY day, id) AS r FROM orders)",
        "SELECT r, lag(id) OVER (PARTITION BY c ORDER BY r) AS b "
        "FROM (SELECT cust AS c, id, row_number() OVER (PARTITION BY cust ORDER BY day, id) AS r FROM orders)",
    ],
)
def test_total_orders_are_accepted(sql: str) -> None:
    refuse_orders(QueryText(sql), read_model(QueryText(sql), TABLES))


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT id, row_number() OVER (PARTITION BY cust ORDER BY day) AS r FROM orders", "arbitrary"),
        ("SELECT id, lag(day) OVER w AS r FROM orders WINDOW w AS (ORDER BY day)", "arbitrary"),
        ("SELECT id, sum(amount) OVER (ORDER BY day ROWS 3 PRECEDING) AS s FROM orders", "arbitrary"),
        ("SELECT i.n, row_number() OVER (ORDER BY i.ord) AS b FROM items i JOIN orders o ON o.id = i.ord", "arbitrary"),
        ("SELECT id FROM orders LIMIT 3", "arbitrary rows"),
        ("SELECT cust, max(id) AS m FROM orders GROUP BY ALL LIMIT 3", "arbitrary rows"),
        ("SELECT id FROM orders LIMIT +2", "arbitrary rows"),
        ("SELECT id FROM orders LIMIT '2'", "arbitrary rows"),
        ("SELECT id FROM orders SORT BY id LIMIT 3", "arbitrary rows"),
        (
            "SELECT o.id, name FROM orders o FULL JOIN customers c ON o.id = c.id ORDER BY o.id LIMIT 2",
            "arbitrary rows",
        ),
        ("SELECT id, v FROM orders, (VALUES (1), (2)) t (v) ORDER BY id LIMIT 1", "arbitrary rows"),
        # A struct in VALUES is two columns.
        (
            "SELECT id, row_number() OVER (ORDER BY id, x) AS r FROM orders, (VALUES STRUCT(1, 2), (1, 3)) v (x, y)",
            "arbitrary",
        ),
        ("SELECT id, v FROM orders, (SELECT 1 AS v UNION ALL SELECT 2) t ORDER BY id LIMIT 1", "arbitrary rows"),
        ("SELECT id, q FROM orders LATERAL VIEW explode(array(1, 2)) t AS q ORDER BY id LIMIT 1", "arbitrary rows"),
        ("SELECT id, row_number() OVER (ORDER BY id) AS r FROM orders, explode(array(1, 2)) t", "arbitrary"),
        ("SELECT id, explode(array(1, 2)) AS q FROM orders ORDER BY id LIMIT 1", "arbitrary rows"),
        ("SELECT sum(amount) OVER (w) AS s FROM orders WINDOW w AS (ORDER BY day ROWS 1 PRECEDING)", "arbitrary"),
        ("SELECT sum(amount) OVER w AS s FROM orders WINDOW w AS (ORDER BY day ROWS 1 PRECEDING)", "arbitrary"),
        ("SELECT sum(amount) OVER (w) AS s FROM orders WINDOW w AS (v), v AS (w)", "arbitrary"),
        (
            "SELECT lag(id) OVER (ORDER BY r) AS b FROM (SELECT id, row_number() OVER (w) AS r FROM orders "
            "WINDOW w AS (PARTITION BY cust ORDER BY id))",
            "arbitrary",
        ),
        ("SELECT sum(amount) OVER w AS s FROM orders WINDOW v AS (ORDER BY day ROWS 1 PRECEDING), w AS v", "arbitrary"),
        ("SELECT cust, system.builtin.collect_list(day) AS d FROM orders GROUP BY cust", "order of rows"),
        ("SELECT id, builtin.row_number() OVER (ORDER BY day) AS d FROM orders", "arbitrary"),
        ("SELECT cust, array_sort(collect_list(day), (l, r) -> 0) AS d FROM orders GROUP BY cust", "order of rows"),
        ("SELECT id FROM orders ORDER BY day LIMIT 3", "arbitrary rows"),
        ("SELECT cust, day, count(*) AS n FROM orders GROUP BY cust, day ORDER BY n, cust LIMIT 3", "arbitrary rows"),
        ("SELECT day, count(*) AS n FROM orders GROUP BY ROLLUP (cust, day) ORDER BY day LIMIT 3", "arbitrary rows"),
        (f"SELECT cust, row_number() OVER (ORDER BY s) AS r FROM {SUMS}", "arbitrary"),
        ("SELECT DISTINCT cust, day FROM orders ORDER BY cust LIMIT 3", "arbitrary rows"),
        ("SELECT id, day FROM orders UNION SELECT id, day FROM orders ORDER BY id LIMIT 3", "arbitrary rows"),
        (
            "SELECT o.cust, any_value(c.name) AS n FROM orders o LEFT JOIN customers c ON c.id = o.cust AND o.id > 1 "
            "GROUP BY o.cust",
            "order of rows",
        ),
        (
            "SELECT o.cust, first(c.name) AS n FROM orders o LEFT JOIN customers c "
            "ON (c.id = o.cust AND o.id = 1) OR (c.id = o.cust AND o.id = 2) GROUP BY o.cust",
            "order of rows",
        ),
        (
            "SELECT o.cust, first(c.name) AS n FROM orders o LEFT JOIN customers c "
            "ON c.id = o.cust AND c.nation = o.id GROUP BY o.cust",
            "order of rows",
        ),
        (
            "SELECT i.ord, first(c.name) AS n FROM items i JOIN orders o ON o.id = i.ord "
            "LEFT JOIN customers c ON c.id = o.cust AND c.nation = i.n GROUP BY i.ord",
            "order of rows",
        ),
        ("SELECT cust, any_value(day) AS d FROM orders GROUP BY cust", "order of rows"),
        ("SELECT cust, mode(day) AS d FROM orders GROUP BY cust", "order of rows"),
        ("SELECT cust, mode(id = 1 = true) AS d FROM orders GROUP BY cust", "order of rows"),
        ("SELECT cust, sort_array(collect_list(array(id))[0]) AS d FROM orders GROUP BY cust", "order of rows"),
        ("SELECT cust, array_contains(collect_list(array(id))[0], 1) AS d FROM orders GROUP BY cust", "order of rows"),
        (
            "SELECT r, lag(id) OVER (ORDER BY r) AS b "
            "FROM (SELECT id, row_number() OVER (PARTITION BY cust ORDER BY id) AS r FROM orders)",
            "arbitrary",
        ),
        ("SELECT cust, max_by(amount, struct(day, amount)) AS d FROM orders GROUP BY cust", r"max\(struct"),
        ("SELECT listagg(name, ',') WITHIN GROUP (ORDER BY nation) AS names FROM customers", "order of rows"),
        ("SELECT cust, collect_list(day) AS d FROM orders GROUP BY cust", "order of rows"),
        ("SELECT cust, max_by(amount, day) AS d FROM orders GROUP BY cust", r"max\(struct"),
        # `a` is `n`: the name of an item comes before a column of the query around it.
        (
            "SELECT n, row_number() OVER (ORDER BY a, ord, line) AS r FROM products p "
            "JOIN LATERAL (SELECT n AS id, id AS a, n, ord, line FROM items WHERE product > p.id) l",
            "arbitrary",
        ),
    ],
)
def test_results_that_depend_on_an_arbitrary_order_are_refused(sql: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        refuse_orders(QueryText(sql), read_model(QueryText(sql), TABLES))


@pytest.mark.parametrize(
    "sql",
    [
        "FROM orders |> ORDER BY day |> LIMIT 3",
        "SELECT id FROM orders | LIMIT 3",
        "SELECT id | 1 AS x FROM orders |> OFFSET 1",
    ],
)
def test_a_limit_in_a_pipe_is_refused(sql: str) -> None:
    with pytest.raises(SqlError, match="arbitrary rows"):
        refuse_orders(QueryText(sql), None)


def test_keys_are_equal_where_spark_finds_values_equal() -> None:
    small = pa.table(
        {"a": pa.array([1, None], pa.int16()), "d": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2))}
    )
    large = pa.table(
        {"a": pa.array([1, None], pa.int64()), "d": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2))}
    )
    assert row_keys(small, ["a", "d"]) == row_keys(large, ["a", "d"])
    assert row_keys(small, ["a"], nulls=False).to_pylist()[1] is None
    zeros = pa.table({"x": [0.0, float("nan")]}), pa.table({"x": pa.array([-0.0, -float("nan")], pa.float32())})
    assert row_keys(zeros[0], ["x"]) == row_keys(zeros[1], ["x"])
    assert key_kind(pa.int8()) == key_kind(pa.int64()) != key_kind(pa.string())
    assert key_kind(pa.decimal128(5, 2)) != key_kind(pa.decimal128(5, 3))
    assert key_kind(pa.list_(pa.int8())) is None


def test_a_difference_counts_equal_rows_by_their_bytes() -> None:
    before = pa.table({"a": [1, 1, 2, None], "x": [0.0, 0.0, 1.0, 1.0]})
    after = pa.table({"a": [1, 3, 3, None], "x": [0.0, -0.0, -0.0, 1.0]})
    found = {sign: rows.to_pylist() for sign, rows in difference(before, after)}
    assert found == {-1: [{"a": 1, "x": 0.0}, {"a": 2, "x": 1.0}], 1: [{"a": 3, "x": -0.0}] * 2}
    assert dict(difference(before, before)) == {}
    assert dict(difference(before.slice(0, 0), before.slice(0, 0))) == {}
