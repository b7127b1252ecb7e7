"""The columns of a query's result that are unique in it, for the key of a new target."""

from __future__ import annotations

import pytest

from headrace.derived.gathering.scopes import Columns, read_model
from headrace.derived.gathering.unique import unique_columns
from headrace.sql_text.query_text import QueryText

TABLES = {
    "orders": Columns({"id": "integer", "user": "string", "price": "integer"}, ("id",)),
    "users": Columns({"user": "string", "city": "string"}, ("user",)),
}


@pytest.mark.parametrize(
    ("query", "count", "unique"),
    [
        ("SELECT o.id, o.user, u.city FROM orders o JOIN users u ON u.user = o.user", 3, (0,)),
        ("SELECT u.city, o.id FROM users u JOIN orders o ON u.user = o.user", 2, (1,)),
        ("SELECT o.id, u.user FROM orders o CROSS JOIN users u", 2, (0, 1)),
        ("SELECT o.id, u.city FROM orders o LEFT JOIN users u ON u.user = o.user", 2, (0,)),
        # An order can be missing, so its key can be null.
        ("SELECT u.user, o.id FROM users u LEFT JOIN orders o ON u.user = o.user", 2, ()),
        ("SELECT user FROM users u WHERE NOT EXISTS (SELECT * FROM orders o WHERE o.user = u.user)", 1, (0,)),
        ("SELECT u.user FROM users u LEFT SEMI JOIN orders o ON o.user = u.user", 1, (0,)),
        ("SELECT o.price FROM orders o JOIN users u ON u.user = o.user", 1, ()),
        ("SELECT id + 1 AS id FROM orders", 1, ()),
        ("SELECT DISTINCT city, price FROM orders JOIN users USING (user)", 2, (0, 1)),
        ("SELECT user FROM orders UNION SELECT user FROM users", 1, (0,)),
        ("SELECT user FROM orders UNION ALL SELECT user FROM users", 1, ()),
        ("(SELECT user FROM orders) UNION SELECT user FROM users", 1, (0,)),
        ("(SELECT user FROM orders) UNION ALL SELECT DISTINCT user FROM users", 1, ()),
        ("SELECT collect_set(price) AS p, user FROM orders GROUP BY user", 2, (1,)),
        ("SELECT price % 2 AS odd, array_agg(id) FROM orders GROUP BY 1", 2, (0,)),
        ("SELECT upper(user) AS u, array_agg(id) FROM orders GROUP BY u", 2, (0,)),
        ("SELECT user, window(at, '1 day') AS w FROM orders GROUP BY user, window(at, '1 day')", 2, (0, 1)),
        ("SELECT user, window.start AS w FROM orders GROUP BY user, window(at, '1 day')", 2, ()),
        # A user has one city, which can be null.
        ("SELECT user, city, array_agg(id) FROM orders JOIN users USING (user) GROUP BY user, city", 3, (0,)),
        ("SELECT city, u.user, max(id) FROM orders o JOIN users u ON o.user = u.user GROUP BY ALL", 3, (1,)),
        ("SELECT o.user, u.user, city FROM orders o JOIN users u ON o.user = u.user GROUP BY 1, 2, 3", 3, (0,)),
        ("SELECT o.user, u.user, city FROM orders o LEFT JOIN users u ON o.user = u.user GROUP BY 1, 2, 3", 3, (0,)),
        ("SELECT DISTINCT u.city, price, u.user FROM orders o JOIN users u ON o.user = u.user", 3, (1, 2)),
        ("SELECT DISTINCT k.user, city FROM (SELECT u.* FROM users u JOIN orders o ON o.user = u.user) k", 2, (0,)),
        (
            "SELECT g.user, n, max(id) FROM (SELECT user, count(*) AS n FROM orders GROUP BY user) g "
            "JOIN orders USING (user) GROUP BY g.user, n",
            3,
            (0,),
        ),
        # An order of a user can have a city, and another one can have none.
        (
            "SELECT o.user, city FROM orders o LEFT JOIN users u ON o.user = u.user AND price > 1 GROUP BY 1, 2",
            2,
            (0, 1),
        ),
        ("SELECT o.price, o.user FROM orders o JOIN users u ON o.user = u.user GROUP BY 1, 2", 2, (0, 1)),
        ("SELECT array_agg(id) FROM orders GROUP BY user", 1, ()),
        ("SELECT upper(user) AS user, array_agg(id) FROM orders GROUP BY user", 2, ()),
        ("SELECT max_by(id, price) FROM orders", 1, ()),
        ("WITH t AS (SELECT id, user FROM orders) SELECT id FROM t", 1, (0,)),
    ],
)
def test_unique_columns_are_keys_of_rows_groups_and_distinct_rows(
    query: str, count: int, unique: tuple[int, ...]
) -> None:
    text = QueryText(query, strict=True)
    assert unique_columns(text, read_model(text, TABLES), count) == unique


def test_a_generator_makes_several_rows_of_a_group() -> None:
    sql = "SELECT user, explode(collect_set(price)) AS p FROM orders GROUP BY user"
    assert unique_columns(QueryText(sql), None, 2) == ()
