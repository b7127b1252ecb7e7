"""Splitting queries over followed scans: constructs that are not split, and generated queries against DuckDB."""

from __future__ import annotations

import random
import re

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as s

from headrace.derived.follow.split import FollowedQuery, split_query
from headrace.derived.own_names import ALIVE, GROUPS_VIEW, SIGN, STATE, value_column
from headrace.errors import HeadraceError, SqlError
from headrace.model.own_names import PREFIX
from headrace.sql_text.query_text import with_views

SCANS = ("orders_now", "others_now")


class TextNames:
    """Names by their texts: columns with the same last part are the same."""

    def __init__(self, *columns: str) -> None:
        self._columns = columns

    def is_column(self, name: str) -> bool:
        return _last(name) in self._columns

    def is_same(self, left: str, right: str) -> bool:
        return _last(left) == _last(right)


def _last(name: str) -> str:
    return name.replace("`", "").rpartition(".")[2]


def split(text: str) -> FollowedQuery:
    return split_query(text, SCANS, lambda with_, source: TextNames("user"))


def own(text: str) -> str:
    """Return a text with headrace's names of columns and views."""
    return re.sub(r"\b([gsao]\d+|sign|order|keep|alive|state|groups)\b", rf"{PREFIX}\1", text)


def test_an_aggregate_query_is_split_into_parts() -> None:
    query = split(
        "SELECT user AS u, sum(price) / count(*) AS mean, SUM(price) FROM orders_now o "
        "WHERE status <> 'void' GROUP BY user HAVING count(*) > 1"
    )
    assert query.scans == ("orders_now",)
    assert query.rows_sql == own("SELECT user AS g0, price AS a0, sign, order FROM orders_now o WHERE status <> 'void'")
    groups = query.groups
    assert groups is not None
    assert groups.names == (own("g0"),)
    assert [(call.kind, call.arguments, call.text) for call in groups.aggregates] == [
        ("sum", (own("a0"),), "sum(price)"),
        ("count_rows", (), "count(*)"),
    ]
    assert groups.result_sql == own(
        "SELECT g0 AS o0, CASE WHEN keep THEN (s0 / s1) END AS o1, CASE WHEN keep THEN (s0) END AS o2, "
        "keep, state FROM (SELECT *, coalesce(CASE WHEN alive THEN (s1 > 1) END, false) AS keep FROM groups)"
    )
    assert [(item.name, item.group) for item in groups.items] == [("u", own("g0")), ("mean", None), (None, None)]


@pytest.mark.parametrize(
    ("text", "rows_sql"),
    [
        ("SELECT * FROM orders_now;", "SELECT * EXCEPT (sign, order), sign, order FROM orders_now"),
        (
            "SELECT d.*, o.* EXCEPT (a), count FROM orders_now o, d // all\n",
            "SELECT d.*, o.* EXCEPT (a, sign, order), count, sign, order FROM orders_now o, d",
        ),
        (
            "WITH x(a, b) AS (SELECT id, k FROM orders_now) SELECT a FROM (SELECT x.* FROM x) AS y(c, d)",
            "WITH x(a, b, sign, order) AS (SELECT id, k, sign, order FROM orders_now) SELECT a, sign, "
            "order FROM (SELECT x.* EXCEPT (sign, order), sign, order FROM x) AS y(c, d, sign, order)",
        ),
        (
            "SELECT a FROM d JOIN orders_now USING (id) WHERE a IS DISTINCT FROM 3",
            "SELECT a, sign, order FROM d JOIN orders_now USING (id) WHERE a IS DISTINCT FROM 3",
        ),
    ],
)
def test_rows_carry_the_sign_and_the_order(text: str, rows_sql: str) -> None:
    assert split(text).rows_sql == own(rows_sql)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("k + 1 AS a, (k + 1) * 2 FROM orders_now GROUP BY k + 1", "g0;(g0) * 2"),
        ("a + b * 2, count(*) FROM orders_now GROUP BY a + b, a, b", "g1 + g2 * 2;s0"),
        ("o.user, `user` x FROM orders_now o GROUP BY user", "g0;g0"),
        ("upper(user) AS user FROM orders_now GROUP BY user", "upper(g0)"),
        ("upper(user) AS u, u || '!' FROM orders_now GROUP BY u", "g0;(g0) || '!'"),
        ("place.city, place.a.b FROM orders_now GROUP BY place", "g0.`city`;g0.`a`.`b`"),
        ("place.city FROM orders_now GROUP BY place, place.city", "g1"),
        ("CAST(max(ts) AS date), date '2026-01-01', date FROM orders_now GROUP BY date",
         "CAST(s0 AS date);date '2026-01-01';g0"),
        ("INTERVAL 1 day, extract(day FROM max(ts)), day FROM orders_now GROUP BY day",
         "INTERVAL 1 day;extract(day FROM s0);g0"),
        ("window.start, window FROM orders_now GROUP BY window(ts, '1 minute')", "g0.`start`;g0"),
        ("CASE WHEN window.end > min(ts) THEN 1 END, window FROM orders_now GROUP BY window(ts, '1 minute')",
         "CASE WHEN g0.`end` > s0 THEN 1 END;g0"),
        ("f(k) AS a, k AS b, sum(v) AS c, c + b FROM orders_now GROUP BY ALL", "g0;g1;s0;(s0) + (g1)"),
        ("CASE WHEN k > 1 THEN k END end_, k FROM orders_now GROUP BY 1, k", "g0;g1"),
        ("CASE WHEN end > 1 THEN end END + 1 FROM orders_now GROUP BY CASE WHEN end > 1 THEN end END", "g0 + 1"),
    ],
)  # fmt: skip
def test_group_expressions_are_replaced_where_they_are_whole(text: str, items: str) -> None:
    groups = split(f"SELECT {text}").groups
    assert groups is not None
    for item in items.split(";"):
        assert own(f"({item})") in groups.result_sql or own(f" {item} AS ") in groups.result_sql, groups.result_sql


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ("SELECT sum(price), user AS u, (count(*)) AS n FROM orders_now GROUP BY user", ("s0", "g0", "s1")),
        ("SELECT upper(user), count(*) FROM orders_now GROUP BY upper(user)", ("g0", "s0")),
        ("SELECT count(*) AS n, n AS same FROM orders_now", ("s0", "s0")),
        ("SELECT user, count(*) + 1 FROM orders_now GROUP BY user", None),
        ("SELECT user, 'all', count(*) FROM orders_now GROUP BY user", None),
        ("SELECT user, count(*) FROM orders_now GROUP BY user HAVING count(*) > 1", None),
        ("SELECT window.start, count(*) FROM orders_now GROUP BY window(at, '1 day')", None),
    ],
)
def test_results_that_only_copy_columns_are_recognised(text: str, copied: tuple[str, ...] | None) -> None:
    groups = split(text).groups
    assert groups is not None
    assert groups.copied == (None if copied is None else tuple(map(own, copied)))


def test_the_relations_and_the_branches_of_a_query_are_known() -> None:
    query = split("SELECT id, o.k FROM orders_now o JOIN d ON o.id = d.k")
    assert (query.scans, query.others, query.has_join) == (("orders_now",), ("d",), True)
    assert split("SELECT id, 'a' AS o FROM orders_now UNION ALL SELECT k, 'b' FROM orders_now").branch_column == 1


def test_views_have_other_names() -> None:
    assert with_views("SELECT 1 FROM a", {"a": "b`"}) == "WITH `a` AS (SELECT * FROM `b```) SELECT 1 FROM a"
    text = with_views("WITH x AS (SELECT 1 FROM a) SELECT * FROM x", {"a": "b"})
    assert text == "WITH `a` AS (SELECT * FROM `b`), x AS (SELECT 1 FROM a) SELECT * FROM x"


NOT_SPLIT = [
    ("SELECT DISTINCT k FROM orders_now", "SELECT DISTINCT"),
    ("SELECT k FROM orders_now ORDER BY k", "the clause ORDER"),
    ("SELECT k FROM orders_now SORT BY k", "the clause SORT"),
    ("SELECT k FROM orders_now CLUSTER BY k", "the clause CLUSTER"),
    ("SELECT k FROM orders_now DISTRIBUTE BY k", "the clause DISTRIBUTE"),
    ("SELECT k FROM orders_now LIMIT 5", "LIMIT"),
    ("SELECT k FROM orders_now OFFSET 5", "OFFSET"),
    ("SELECT k FROM orders_now QUALIFY k > 1", "QUALIFY"),
    ("SELECT k FROM orders_now WINDOW w AS (ORDER BY k)", "WINDOW"),
    ("SELECT sum(k) OVER (PARTITION BY id) FROM orders_now", "function sum"),
    ("SELECT row_number() OVER w FROM orders_now", "row_number"),
    ("SELECT stddev(k) FROM orders_now", "stddev"),
    ("SELECT collect_list(k) FROM orders_now GROUP BY id", "collect_list"),
    ("SELECT first(k) FROM orders_now", "function first"),
    ("SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY k) FROM orders_now", "percentile_cont"),
    ("SELECT sum(DISTINCT k) FROM orders_now", r"sum\(DISTINCT"),
    ("SELECT avg(DISTINCT k) FROM orders_now", r"avg\(DISTINCT"),
    ("SELECT count(DISTINCT *) FROM orders_now", "star"),
    ("SELECT count(o.*) FROM orders_now o", "star"),
    ("SELECT * FROM orders_now GROUP BY ALL", "star"),
    ("SELECT * FROM orders_now PIVOT (sum(k) FOR id IN (1, 2))", "PIVOT"),
    ("SELECT * FROM orders_now TABLESAMPLE (5 PERCENT)", "TABLESAMPLE"),
    ("SELECT * FROM orders_now LATERAL VIEW explode(a) t AS x", "explode"),
    ("SELECT * FROM orders_now, LATERAL (SELECT 1)", "LATERAL"),
    ("SELECT explode(a) FROM orders_now", "explode"),
    ("SELECT k FROM orders_now WHERE k IN (SELECT k FROM d)", "a subquery in an expression"),
    ("SELECT k FROM orders_now o WHERE EXISTS (SELECT 1 FROM d)", "a subquery in an expression"),
    ("SELECT (SELECT max(k) FROM d) FROM orders_now", "subquery"),
    ("SELECT k FROM orders_now WHERE k > (SELECT 1)", "a subquery in an expression"),
    ("SELECT rand() FROM orders_now", "rand"),
    ("SELECT uuid(), k FROM orders_now", "uuid"),
    ("SELECT k FROM orders_now WHERE ts > current_timestamp", "current_timestamp"),
    ("SELECT k FROM orders_now WHERE ts > now() - INTERVAL 1 DAY", "now"),
    ("SELECT unix_timestamp() FROM orders_now", "unix_timestamp"),
    ("SELECT k FROM orders_now WHERE ts > TIMESTAMP 'now'", "TIMESTAMP 'now'"),
    ("SELECT k FROM orders_now WHERE ts > date r'\tToday UTC'", "Today UTC"),
    (r"SELECT k FROM orders_now WHERE ts > DATE '\u006eow'", "DATE"),
    ("SELECT d.k FROM orders_now RIGHT JOIN d ON true", "all rows of its right side"),
    ("SELECT d.k FROM orders_now FULL OUTER JOIN d ON true", "all rows of its right side"),
    ("SELECT d.k FROM d LEFT JOIN orders_now ON true", "on the right of a LEFT"),
    ("SELECT d.k FROM d LEFT ANTI JOIN orders_now ON true", "on the right of a LEFT"),
    ("SELECT d.k FROM d LEFT JOIN (e JOIN orders_now) ON true", "on the right of a LEFT"),
    ("SELECT a.k FROM orders_now a JOIN orders_now b ON a.id = b.id", "a join of two followed scans"),
    ("SELECT 1 FROM orders_now, others_now", "a join of two followed scans"),
    ("WITH x AS (SELECT k FROM orders_now) SELECT x.k FROM x, others_now", "a join of two followed scans"),
    ("SELECT n FROM (SELECT count(*) AS n FROM orders_now)", "count in a subquery"),
    ("SELECT n FROM (SELECT k AS n FROM orders_now GROUP BY k)", "GROUP BY or HAVING inside a subquery"),
    ("WITH x AS (SELECT k AS n FROM d GROUP BY k) SELECT 1 FROM x, orders_now", "GROUP BY or HAVING inside"),
    ("SELECT k FROM orders_now UNION SELECT k FROM others_now", "a set operation"),
    ("SELECT k FROM orders_now INTERSECT SELECT k FROM d", "a set operation"),
    ("SELECT k FROM orders_now EXCEPT ALL SELECT k FROM d", "a set operation"),
    ("SELECT k FROM orders_now MINUS SELECT k FROM d", "a set operation"),
    ("SELECT k FROM orders_now UNION ALL SELECT k FROM others_now", "tells its branches apart"),
    ("SELECT k, 1 FROM orders_now UNION ALL SELECT k, 1 FROM others_now", "tells its branches apart"),
    ("SELECT k, 1 FROM orders_now UNION ALL SELECT k, '2' FROM others_now", "tells its branches apart"),
    ("SELECT k, 1 FROM orders_now UNION ALL SELECT k, 2 FROM d", "reads no followed scan"),
    ("SELECT count(*) FROM (SELECT k FROM orders_now UNION ALL SELECT k FROM d)", "reads no followed scan"),
    ("SELECT k FROM (SELECT k FROM orders_now UNION ALL SELECT k FROM others_now)", "UNION ALL inside of FROM"),
    ("SELECT k FROM orders_now UNION ALL BY NAME SELECT k FROM others_now", "BY NAME"),
    ("SELECT k FROM d", "reads no followed scan"),
    ("SELECT 1", "reads no followed scan"),
    ("VALUES (1)", "does not begin with SELECT"),
    ("FROM orders_now SELECT k", "does not begin with SELECT"),
    ("FROM orders_now |> WHERE k > 1", "does not begin with SELECT"),
    ("SELECT k FROM orders_now |> LIMIT 1", "pipe"),
    ("SELECT k FROM orders_now | WHERE k > 1", "pipe"),
    ("SELECT k FROM STREAM orders_now", "STREAM"),
    ("SELECT k FROM orders_now VERSION AS OF 3", "time travel"),
    ("SELECT k FROM orders_now TIMESTAMP AS OF '2026-01-01'", "time travel"),
    ("SELECT k FROM orders_now WITH ('a' = 'b')", "options"),
    ("SELECT k FROM orders_now WATERMARK ts DELAY OF INTERVAL 1 MINUTE", "WATERMARK"),
    ("SELECT k FROM orders_now, range(5)", "table function"),
    ("SELECT o.k FROM orders_now o JOIN `a.b` ON true", "a dot inside of quotes"),
    ("SELECT k, _change_type FROM orders_now", "no column _change_type"),
    ("SELECT __headrace_sign FROM orders_now", "__headrace_sign begins with"),
    ("SELECT k AS `__HEADRACE_g0` FROM orders_now", "__HEADRACE_g0 begins with"),
    ("SELECT count(*) FROM orders_now GROUP BY ROLLUP (k)", "ROLLUP"),
    ("SELECT count(*) FROM orders_now GROUP BY k WITH CUBE", "CUBE"),
    ("SELECT count(*) FROM orders_now GROUP BY k GROUPING SETS ((k), ())", "GROUPING SETS"),
    ("SELECT count(*) FROM orders_now GROUP BY (k, id)", "list in parentheses"),
    ("SELECT count(*) FROM orders_now GROUP BY session_window(ts, '1 minute')", "session_window"),
    ("SELECT window(ts, '1 minute') FROM orders_now", "window"),
    ("SELECT transform(a, k -> k + 1) FROM orders_now GROUP BY a, k", "a parameter"),
    ("SELECT transform(a, o -> o.k) FROM orders_now o GROUP BY a, k", "a parameter"),
    ("SELECT k AS x, transform(a, x -> x + 1) FROM orders_now GROUP BY a, k", "a parameter"),
    ("SELECT k FROM orders_now HAVING k > 1", "HAVING without"),
    ("SELECT k FROM orders_now WHERE sum(k) > 1", "sum in a subquery"),
    ("SELECT IDENTIFIER('sum')(k) FROM orders_now", "IDENTIFIER"),
    ("WITH orders_now AS (SELECT k FROM orders_now WHERE k > 1) SELECT k FROM orders_now", "the name of a scan"),
    ("WITH D AS (SELECT k FROM d WHERE k > 1) SELECT o.id FROM orders_now o JOIN D USING (k)", "a scan or table"),
    ("WITH a AS (SELECT k FROM d), d AS (SELECT k FROM orders_now) SELECT d.k FROM d, a", "a scan or table"),
    ("WITH RECURSIVE x AS (SELECT k FROM orders_now) SELECT k FROM x", "RECURSIVE"),
    ("SELECT TRANSFORM(k) USING 'cat' FROM orders_now", "TRANSFORM"),
    ("SELECT stack(1, 2) AS (a, b) FROM orders_now", "stack"),
    ("SELECT max(sum(k)) FROM orders_now", "inside of an aggregate"),
    ("SELECT k FROM (orders_now", "not closed"),
]


@pytest.mark.parametrize(("text", "reason"), NOT_SPLIT, ids=[text for text, _ in NOT_SPLIT])
def test_a_query_is_not_split_if_signed_rows_are_not_enough(text: str, reason: str) -> None:
    with pytest.raises(SqlError, match=reason):
        split(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT offset, limit FROM orders_now WHERE offset > 5 AND a = offset",
        "SELECT left(user, 1), right(user, 1) l FROM orders_now o JOIN d ON left(o.user, 1) = d.k",
        "SELECT `now`, o.current_date FROM orders_now o",
        "SELECT transform(a, x -> x + 1) AS t FROM orders_now",
        "SELECT 'ORDER BY', ',', ')' FROM orders_now -- LIMIT 5",
        "SELECT a FROM (orders_now o JOIN d ON o.id = d.id) LEFT JOIN e ON e.id = d.id",
        "(SELECT a FROM orders_now)",
    ],
)
def test_words_in_other_places_are_not_refused(text: str) -> None:
    assert split(text).groups is None


@given(s.lists(s.sampled_from([*(" ".join(text for text, _ in NOT_SPLIT)).split(" "), "(", ")", ",", "orders_now"])))
def test_any_text_is_split_or_refused(words: list[str]) -> None:
    for text in ("SELECT " + " ".join(words), " ".join(words)):
        try:
            split(text)
        except HeadraceError:
            continue


# -- generated queries ------------------------------------------------------------------------------------------------

GROUPINGS = ["u", "k", "k % 2", "coalesce(u, 'none')", "CASE WHEN k > 1 THEN 'many' ELSE u END", "k + v", "(k - 1)"]
ARGUMENTS = ["v", "k * v", "coalesce(v, k)", "CASE WHEN k > 1 THEN v END"]
FORMS_OF_CALLS = ["count(*)", "count({})", "sum({})", "avg({})", "min({})", "max({})", "count(DISTINCT {})"]
FORMS_OF_ITEMS = ["concat({}, '/', {})", "CASE WHEN ({}) IS NULL THEN 'x' ELSE CAST(({}) AS VARCHAR) END"]
SOURCES = [
    "t",
    "t AS x",
    "(SELECT k, v, u, id FROM t WHERE k IS NOT NULL) y",
    "(SELECT k, v, u FROM t UNION ALL SELECT k, v + 1, u FROM t)",
    "t JOIN (SELECT n FROM d WHERE n > 1) e ON t.k = e.n",
    "t LEFT JOIN d ON t.k = d.n AND d.n <> 2",
    "(d JOIN t ON true)",
    "c",
]


@s.composite
def aggregate_calls(draw: s.DrawFn) -> str:
    argument = draw(s.sampled_from(ARGUMENTS))
    name = draw(
        s.sampled_from(["count(*)", "count({})", "sum({})", "avg({})", "min({})", "max({})", "count(DISTINCT {})"])
    )
    condition = draw(s.sampled_from(["", "", " FILTER (WHERE v > 1)"]))
    return name.format(argument) + condition


@s.composite
def queries(draw: s.DrawFn) -> str:
    groups = draw(s.lists(s.sampled_from(GROUPINGS), max_size=3, unique=True))
    calls = draw(s.lists(aggregate_calls(), min_size=0 if groups else 1, max_size=3))
    operands = [*groups, *calls]
    items = list(operands)
    for _ in range(draw(s.integers(0, 2))):
        one, two = draw(s.sampled_from(operands)), draw(s.sampled_from(operands))
        form = draw(
            s.sampled_from(["concat({}, '/', {})", "CASE WHEN ({}) IS NULL THEN 'x' ELSE CAST(({}) AS VARCHAR) END"])
        )
        items.append(form.format(one, two))
    named = [f"{item} AS i{number}" for number, item in enumerate(items)]
    source = draw(s.sampled_from(SOURCES))
    condition = draw(s.sampled_from(["", " WHERE v IS NULL OR v < 4"]))
    having = ""
    if draw(s.booleans()):
        tested = draw(s.sampled_from([*operands, "count(*)"]))
        having = f" HAVING ({tested}) IS NOT NULL AND count(*) > 1"
    style = draw(s.sampled_from(["expressions", "numbers", "aliases"]))
    names = {
        "expressions": groups,
        "numbers": [str(number + 1) for number in range(len(groups))],
        "aliases": [f"i{number}" for number in range(len(groups))],
    }[style]
    with_ = "WITH c(k, v, u) AS (SELECT k, v, u FROM t) " if source == "c" else ""
    by = f" GROUP BY {', '.join(names)}" if names else ""
    return f"{with_}SELECT {', '.join(named)} FROM {source}{condition}{by}{having}"


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    """Tables: ``t_now`` of current rows; ``t_signed`` with rows that came and went; ``d``."""
    numbers = random.Random(1)
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE t_signed (id INT, k INT, v INT, u VARCHAR, __headrace_sign INT, __headrace_order INT)"
    )
    for number in range(60):
        row = (
            number,
            numbers.choice([None, 0, 1, 2, 3]),
            numbers.choice([None, 1, 2, 5]),
            numbers.choice([None, "a", "b", f"{number}"]),
        )
        signs = (1, -1) if number % 2 else (1,)
        connection.executemany(
            "INSERT INTO t_signed VALUES (?, ?, ?, ?, ?, ?)", [(*row, sign, number) for sign in signs]
        )
    connection.execute("CREATE TABLE t_now AS SELECT id, k, v, u FROM t_signed WHERE id % 2 = 0")
    connection.execute("CREATE TABLE d AS SELECT unnest([1, 2, 3, 3]) AS n")
    return connection


@given(text=queries())
def test_generated_queries_give_what_duckdb_gives(duck: duckdb.DuckDBPyConnection, text: str) -> None:
    query = split_query(text, ["t"], lambda with_, source: TextNames("k", "v", "u", "id"))
    parts = query.groups
    assert parts is not None
    expected = duck.execute(with_views(text, {"t": "t_now"}).replace("`", '"')).fetchall()

    def run(sql: str) -> str:
        return sql.replace("`", '"').replace(" EXCEPT (", " EXCLUDE (")

    rows = run(with_views(query.rows_sql, {"t": "t_signed"}))
    columns = [*parts.names, *sorted({each for call in parts.aggregates for each in call.arguments})]
    listed = "".join(f"{column}, " for column in columns)
    by = f" GROUP BY {', '.join(columns)}" if columns else ""
    calls = "".join(f", {call.sql} AS {value_column(number)}" for number, call in enumerate(parts.aggregates))
    groups = ", ".join(parts.names)
    duck.execute(f"CREATE OR REPLACE TEMP TABLE happened AS {rows}")
    duck.execute(
        "CREATE OR REPLACE TEMP TABLE remaining AS SELECT * EXCLUDE (net) FROM "
        f"(SELECT {listed} sum({SIGN})::INT AS net FROM happened{by}) x, LATERAL (SELECT unnest(range(net)))"
    )
    grouped = f"SELECT {groups + ', ' if groups else ''}true AS {ALIVE}{calls} FROM remaining"
    if groups:
        same = " AND ".join(f"h.{name} IS NOT DISTINCT FROM r.{name}" for name in parts.names)
        results = "".join(f", r.{value_column(number)}" for number in range(len(parts.aggregates)))
        grouped = (
            f"SELECT h.*, coalesce(r.{ALIVE}, false) AS {ALIVE}{results} "
            f"FROM (SELECT DISTINCT {groups} FROM happened) h LEFT JOIN ({grouped} GROUP BY {groups}) r ON {same}"
        )
    duck.execute(f"CREATE OR REPLACE TEMP TABLE groups AS SELECT *, NULL AS {STATE} FROM ({grouped})")
    found = duck.execute(run(with_views(parts.result_sql, {GROUPS_VIEW: "groups"}))).fetchall()
    kept = [row[:-2] for row in found if row[-2]]
    assert sorted(map(repr, kept)) == sorted(map(repr, expected))
