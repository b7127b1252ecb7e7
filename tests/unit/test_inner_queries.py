"""The inner queries of a text, each with what it names of WITH, and the text with others in their places."""

from __future__ import annotations

from headrace.derived.follow.inner_queries import InnerQueries

LISTED = """
WITH r AS (SELECT a, sum(b) AS t FROM l GROUP BY a), unread AS (SELECT 1 FROM r), z (c) AS (SELECT 2)
SELECT s, exists (SELECT 1 FROM z) FROM s, r
WHERE t = (SELECT max(t) FROM r) AND q IN (WITH k AS (SELECT w FROM r) SELECT min(w) FROM k, unread)
"""


def texts_of(sql: str) -> list[str]:
    """Return the texts of the inner queries, inner ones first."""
    found: list[str] = []
    InnerQueries(sql).replace(found.append)
    return found


def replaced(sql: str, wanted: str, *, last: bool = False) -> str:
    """Return a text in which each inner query that begins as wanted is another one."""
    queries = InnerQueries(sql)
    queries.replace(lambda text: "SELECT x FROM g" if wanted in text.rpartition("SELECT")[2] else None)
    if last:
        queries.replace_last(lambda text: f"SELECT y FROM ({text})")
    return queries.text


def test_an_inner_query_has_the_queries_of_with_that_it_names() -> None:
    of_r = "WITH r AS (SELECT a, sum(b) AS t FROM l GROUP BY a)"
    unread = "unread AS (SELECT 1 FROM r)"
    assert texts_of(LISTED) == [
        "SELECT a, sum(b) AS t FROM l GROUP BY a",
        f"{of_r} SELECT 1 FROM r",
        "SELECT 2",
        "WITH z (c) AS (SELECT 2) SELECT 1 FROM z",
        f"{of_r} SELECT max(t) FROM r",
        f"{of_r} SELECT w FROM r",
        f"{of_r}, {unread},  k AS (SELECT w FROM r) SELECT min(w) FROM k, unread",
    ]


def test_an_outer_query_has_what_is_in_place_of_inner_ones() -> None:
    sql = "SELECT max(s) FROM (SELECT sum(n) AS s FROM (SELECT count(*) AS n FROM t GROUP BY a) GROUP BY b)"
    assert replaced(sql, "count(") == sql.replace("SELECT count(*) AS n FROM t GROUP BY a", "SELECT x FROM g")
    found: list[str] = []

    def read(text: str) -> str:
        found.append(text)
        return f"SELECT x FROM g{len(found)}"

    queries = InnerQueries(f"({sql})")
    queries.replace(read)
    assert found == ["SELECT count(*) AS n FROM t GROUP BY a", "SELECT sum(n) AS s FROM (SELECT x FROM g1) GROUP BY b"]
    assert queries.text == "(SELECT max(s) FROM (SELECT x FROM g2))"


def test_queries_of_with_that_are_no_longer_named_are_left_out() -> None:
    sql = "WITH r AS (SELECT a FROM t), u AS (SELECT sum(a) AS s FROM r) SELECT b FROM o WHERE b > (SELECT s FROM u)"
    assert replaced(sql, "sum(") == "WITH u AS (SELECT x FROM g) SELECT b FROM o WHERE b > (SELECT s FROM u)"
    assert replaced(sql, " s FROM u") == "SELECT b FROM o WHERE b > (SELECT x FROM g)"


def test_the_last_query_is_replaced_with_its_with_clause() -> None:
    sql = "WITH r AS (SELECT a FROM t) SELECT sum(a) FROM r"
    assert replaced(sql, "nothing", last=True) == (
        "WITH r AS (SELECT a FROM t) SELECT y FROM (WITH r AS (SELECT a FROM t) SELECT sum(a) FROM r)"
    )
    assert replaced("SELECT sum(a) FROM t", "nothing", last=True) == "SELECT y FROM (SELECT sum(a) FROM t)"


def test_commas_before_queries_make_no_with_clause() -> None:
    sql = "SELECT a, exists (SELECT 1 FROM t WHERE c) FROM t WITH_, u (b)"
    assert texts_of(sql) == ["SELECT 1 FROM t WHERE c"]
