"""Queries that say by the signs of their rows which rows leave and which enter the result."""

from __future__ import annotations

import pytest

from headrace.derived.gathering.scopes import Columns, UnclearStructure, read_model
from headrace.derived.gathering.signed_joins import signed_join
from headrace.sql_text.query_text import QueryText

TABLES = {
    "orders": Columns({"id": "integer", "user": "string", "price": "integer"}, ("id",)),
    "users": Columns({"user": "string", "city": "string"}, ("user",)),
    "cities": Columns({"city": "string", "land": "string"}, ("city",), changes=False),
}
SIGN = "__headrace_sign"


def signed(query: str) -> str | None:
    text = QueryText(query, strict=True)
    try:
        model = read_model(text, TABLES)
    except UnclearStructure:
        model = None
    return signed_join(text, model, ["orders", "users"])


def test_a_join_gets_the_sign_of_its_rows() -> None:
    signs = f"`o`.{SIGN}, `users`.{SIGN}"
    assert signed(
        "SELECT o.id, city FROM orders o JOIN users ON users.user = o.user JOIN cities USING (city) "
        "WHERE o.price > 1 OR o.price < 0 ORDER BY 1"
    ) == (
        f"SELECT o.id, city, CAST(least(0, {signs}) + greatest(0, {signs}) AS TINYINT) AS {SIGN} "
        "FROM orders o JOIN users ON users.user = o.user JOIN cities USING (city) "
        f"WHERE ( o.price > 1 OR o.price < 0) AND least(0, {signs}) + greatest(0, {signs}) <> 0 ORDER BY 1"
    )


def test_a_subquery_in_from_keeps_rows_that_do_not_change() -> None:
    inner, outer = f"`orders`.{SIGN}", f"`o`.{SIGN}, `u`.{SIGN}"
    assert signed("SELECT id FROM (SELECT id, user FROM orders) o, users u WHERE o.user = u.user") == (
        f"SELECT id, CAST(least(0, {outer}) + greatest(0, {outer}) AS TINYINT) AS {SIGN} "
        f"FROM (SELECT id, user, CAST(least(0, {inner}) + greatest(0, {inner}) AS TINYINT) AS {SIGN} "
        f"FROM orders WHERE (least(0, {inner}) = 0 OR greatest(0, {inner}) = 0)) o, users u "
        f"WHERE ( o.user = u.user) AND least(0, {outer}) + greatest(0, {outer}) <> 0"
    )


@pytest.mark.parametrize(
    "query",
    [
        "SELECT o.id, u.city FROM orders o LEFT JOIN users u ON u.user = o.user",
        "SELECT o.id FROM orders o LEFT ANTI JOIN users u ON u.user = o.user",
        "SELECT o.id FROM orders o JOIN users u ON u.user = o.user WHERE u.city IN (SELECT city FROM cities)",
        "SELECT o.id FROM orders o WHERE EXISTS (SELECT 1 FROM users u WHERE u.user = o.user)",
        "SELECT o.id FROM orders o JOIN users u ON u.user = o.user ORDER BY o.id LIMIT 3",
        "SELECT DISTINCT u.city FROM orders o JOIN users u ON u.user = o.user",
        "SELECT u.city, row_number() OVER (ORDER BY o.id) FROM orders o JOIN users u ON u.user = o.user",
        "SELECT u.city, max(o.id) AS m FROM orders o JOIN users u ON u.user = o.user GROUP BY u.city",
        "SELECT o.id FROM orders o JOIN (SELECT DISTINCT user FROM users) u ON u.user = o.user",
        "SELECT id FROM orders UNION ALL SELECT id FROM orders",
        # The sign would be one of their columns.
        "SELECT * FROM orders o JOIN users u ON u.user = o.user",
        "SELECT struct(o.*) AS s FROM orders o JOIN users u ON u.user = o.user",
        "SELECT o.id FROM orders o NATURAL JOIN users u",
        "SELECT o.id FROM orders o NATURAL JOIN (users u)",
        "SELECT o.id FROM (orders o) NATURAL JOIN (users u JOIN cities c ON c.city = u.city)",
        "SELECT id FROM (SELECT o.id FROM orders o NATURAL JOIN ((SELECT user FROM users) u)) x",
        "SELECT o.a FROM orders AS o (a, b, c) JOIN users u ON u.user = o.b",
        # These are not read here.
        "WITH u AS (SELECT user FROM users) SELECT o.id FROM orders o JOIN u ON u.user = o.user",
        "SELECT o.id FROM orders o JOIN (SELECT user FROM users) ON 1 = 1",
        "SELECT o.id FROM orders o JOIN ((SELECT user FROM users)) u ON u.user = o.user",
        "FROM orders |> SELECT id",
    ],
)
def test_other_queries_are_evaluated_before_and_after_the_batch(query: str) -> None:
    assert signed(query) is None
