"""The dialect's time functions as Spark SQL."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as s

from headrace.errors import HeadraceError, SqlError
from headrace.sql_text.query_text import QueryText
from headrace.sql_text.script import ScriptPart
from headrace.streaming_sql.language.rewriting import rewrite

COLUMNS = {"orders": ["id", "ts"], "clicks": ["id", "click_ts"], "other": ["id", "ts"]}


HISTORY = {"id": "bigint", "valid_from_version": "bigint", "is_current": "boolean"}
HISTORIES = {
    "history": {**HISTORY, "valid_from": "timestamp", "valid_to": "timestamp"},
    "micros": {**HISTORY, "valid_from": "bigint", "valid_to": "bigint"},
}


def types_of(relation: str) -> Mapping[str, str]:
    name = relation.strip("`").lower()
    return HISTORIES.get(name, dict.fromkeys(COLUMNS.get(name, []), "bigint"))


def rewritten(query: str) -> str:
    return rewrite(ScriptPart(query, 0, len(query)), types_of)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT 1 FROM t GROUP BY TUMBLING(ts, interval 1 minute)", "SELECT 1 FROM t GROUP BY window(ts, '1 minute')"),
        ("GROUP BY tumbling(ts, INTERVAL '1' MINUTE)", "GROUP BY window(ts, '1 minute')"),
        ("GROUP BY TUMBLING(f(ts, 1), '2  minutes')", "GROUP BY window(f(ts, 1), '2 minutes')"),
        (
            "GROUP BY HOPPING(ts, interval 1 hour 30 minutes, interval '30 seconds'), id",
            "GROUP BY window(ts, '1 hour 30 minutes', '30 seconds'), id",
        ),
        ("SELECT window.start, delay, watermark FROM t", "SELECT window.start, delay, watermark FROM t"),
        ("SELECT `delay`(a), x.delay(a) FROM t", "SELECT `delay`(a), x.delay(a) FROM t"),
    ],
)
def test_windows_become_those_of_spark(query: str, expected: str) -> None:
    assert rewritten(query) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "SELECT * FROM orders WHERE delay(ts) < '2 minutes' AND id > 3",
            "SELECT * FROM orders WATERMARK `ts` DELAY OF INTERVAL 2 minutes WHERE true AND id > 3",
        ),
        (
            "SELECT * FROM orders WHERE id > limit AND delay(ts) < '2 minutes' LIMIT 3",
            "SELECT * FROM orders WATERMARK `ts` DELAY OF INTERVAL 2 minutes WHERE id > limit AND true LIMIT 3",
        ),
        (
            "SELECT * FROM orders AS o WHERE id BETWEEN 1 AND 2 AND DELAY(o.ts) < interval 10 seconds GROUP BY id",
            "SELECT * FROM orders WATERMARK `ts` DELAY OF INTERVAL 10 seconds AS o "
            "WHERE id BETWEEN 1 AND 2 AND true GROUP BY id",
        ),
        (
            "SELECT * FROM ((SELECT * FROM orders) UNION ALL (SELECT * FROM clicks)) u WHERE delay(ts) < '1 hour'",
            "SELECT * FROM ((SELECT * FROM orders) UNION ALL (SELECT * FROM clicks)) "
            "WATERMARK `ts` DELAY OF INTERVAL 1 hour u WHERE true",
        ),
        (
            "SELECT * FROM orders o JOIN clicks c ON o.id = c.id "
            "WHERE delay(o.ts) < '1 hour' AND delay(c.click_ts) < '2 hours'",
            "SELECT * FROM orders WATERMARK `ts` DELAY OF INTERVAL 1 hour o JOIN clicks WATERMARK `click_ts` "
            "DELAY OF INTERVAL 2 hours c ON o.id = c.id WHERE true AND true",
        ),
        (
            "SELECT * FROM orders, clicks WHERE (delay(ts) < '1 hour' AND (delay(click_ts) < '2 hours'))",
            "SELECT * FROM orders WATERMARK `ts` DELAY OF INTERVAL 1 hour, clicks WATERMARK `click_ts` "
            "DELAY OF INTERVAL 2 hours WHERE (true AND (true))",
        ),
        (
            "SELECT * FROM (SELECT id, ts FROM orders) o WHERE delay(ts) < '1 day' ORDER BY id",
            "SELECT * FROM (SELECT id, ts FROM orders) WATERMARK `ts` DELAY OF INTERVAL 1 day o WHERE true ORDER BY id",
        ),
        (
            "WITH a AS (SELECT * FROM orders WHERE delay(ts) < '1 day') SELECT a IS DISTINCT FROM b FROM a UNION ALL "
            "SELECT * FROM other WHERE delay(other.ts) < '2 days'",
            "WITH a AS (SELECT * FROM orders WATERMARK `ts` DELAY OF INTERVAL 1 day WHERE true) SELECT a IS DISTINCT "
            "FROM b FROM a UNION ALL SELECT * FROM other WATERMARK `ts` DELAY OF INTERVAL 2 days WHERE true",
        ),
        (
            "SELECT offset FROM STREAM k WITH (a='b') x WHERE offset > 5 AND delay(ts) < '1 day' LIMIT 5",
            "SELECT offset FROM STREAM k WITH (a='b') WATERMARK `ts` DELAY OF INTERVAL 1 day x "
            "WHERE offset > 5 AND true LIMIT 5",
        ),
    ],
)
def test_delay_becomes_a_watermark_of_its_relation(query: str, expected: str) -> None:
    assert rewritten(query) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "SELECT id, watermark(ts, interval 10 seconds) FROM orders",
            "SELECT id, `ts` FROM orders WATERMARK `ts` DELAY OF INTERVAL 10 seconds",
        ),
        (
            "SELECT watermark(o.ts, '10 seconds') AS t FROM orders o",
            "SELECT `t` FROM (SELECT *, `ts` AS `t` FROM orders WATERMARK `ts` DELAY OF INTERVAL 10 seconds) o",
        ),
        (
            "SELECT watermark(ts, '10 seconds') t FROM orders WHERE orders.id = 1",
            "SELECT `t` FROM (SELECT *, `ts` AS `t` FROM orders WATERMARK `ts` DELAY OF INTERVAL 10 seconds) "
            "AS `orders` WHERE orders.id = 1",
        ),
        (
            "SELECT watermark(to_timestamp(o.ts / 1000), interval 1 minute) AS t, id FROM orders o, other",
            "SELECT `t`, id FROM orders WATERMARK to_timestamp(ts / 1000) AS `t` DELAY OF INTERVAL 1 minute o, other",
        ),
        (
            "SELECT *, watermark(ts, '10 seconds') FROM orders",
            "SELECT * FROM orders WATERMARK `ts` DELAY OF INTERVAL 10 seconds",
        ),
        (
            "SELECT watermark(ts, '10 seconds'), orders.* FROM orders",
            "SELECT  orders.* FROM orders WATERMARK `ts` DELAY OF INTERVAL 10 seconds",
        ),
        (
            "SELECT 1 FROM t WATERMARK (to_timestamp(x)) AS y DELAY OF INTERVAL 1 day",
            "SELECT 1 FROM t WATERMARK (to_timestamp(x)) AS y DELAY OF INTERVAL 1 day",
        ),
    ],
)
def test_watermark_items_become_a_watermark_of_their_relation(query: str, expected: str) -> None:
    assert rewritten(query) == expected


@pytest.mark.parametrize(
    ("query", "column", "says"),
    [
        ("SELECT 1 FROM t WHERE delay(ts) < '2 minutes' OR id = 1", 23, "combined with others by AND"),
        ("SELECT 1 FROM t WHERE NOT delay(ts) < '2 minutes'", 27, "combined with others by AND"),
        ("SELECT delay(ts) FROM t", 8, "combined with others by AND"),
        ("SELECT 1 FROM t WHERE delay(ts + 1) < '2 minutes'", 23, "one column"),
        ("SELECT 1 FROM t WHERE delay(ts) < '2 parsecs'", 35, "not a duration"),
        ("SELECT 1 FROM t WHERE delay(ts) < 5", 35, "not a duration"),
        ("SELECT 1 FROM orders, other WHERE delay(ts) < '2 minutes'", 35, "several relations"),
        ("SELECT 1 FROM orders, clicks WHERE delay(nope) < '2 minutes'", 36, "no relation"),
        ("SELECT 1 FROM orders WHERE delay(x.ts) < '2 minutes'", 28, "no relation"),
        ("SELECT 1 WHERE delay(x.ts) < '2 minutes'", 16, "FROM clause"),
        ("SELECT 1 FROM t WHERE delay(a) < '1 day' AND delay(b) < '1 day'", 46, "already has a watermark"),
        ("SELECT 1 FROM t WATERMARK a DELAY OF INTERVAL 1 day WHERE delay(a) < '1 day'", 59, "already has a watermark"),
        ("SELECT watermark(a + 1, '1 day') FROM t", 8, "needs a name"),
        ("SELECT watermark(a) AS b FROM t", 8, "takes 2 arguments"),
        ("SELECT 1 FROM t GROUP BY watermark(a, '1 day')", 26, "select list"),
        ("SELECT watermark(o.a + c.b, '1 day') AS x FROM orders o, clicks c", 8, "one relation only"),
        ("SELECT 1 FROM t GROUP BY TUMBLING(ts)", 26, "takes 2 arguments"),
        ("SELECT 1 FROM t GROUP BY HOPPING(ts, '1 minute')", 26, "takes 3 arguments"),
        ("SELECT 1 FROM t GROUP BY TUMBLING(ts, x)", 39, "not a duration"),
        ("SELECT 1 FROM t GROUP BY TUMBLING(ts, '0 minutes')", 39, "cannot be 0"),
    ],
)
def test_invalid_functions_are_errors_with_a_position(query: str, column: int, says: str) -> None:
    with pytest.raises(SqlError, match=says) as caught:
        rewritten(query)
    assert (caught.value.line, caught.value.column) == (1, column)


def test_errors_have_the_position_in_the_whole_script() -> None:
    script = "SELECT 1;\n\nSELECT 2 FROM t GROUP BY TUMBLING(ts, 5)"
    with pytest.raises(SqlError) as caught:
        rewrite(ScriptPart(script, 11, len(script)), types_of)
    assert (caught.value.line, caught.value.column) == (3, 39)


def test_names_of_tables_are_found_in_all_clauses() -> None:
    text = """WITH c AS (SELECT * FROM a1) SELECT (SELECT max(x) FROM `a2`), extract(year FROM y) FROM c
        LEFT JOIN a3 AS z ON z.i = c.i, (a4 CROSS JOIN db.a5), LATERAL (SELECT 1 FROM a6), range(5)
        LATERAL VIEW explode(q) w AS k, v WHERE EXISTS (TABLE a7) UNION SELECT * FROM STREAM a8 s"""
    found = QueryText(text).references()
    assert {"a1", "a2", "a3", "a4", "db.a5", "a6", "a7", "a8", "c"} <= found
    assert not {"z", "v", "k", "i", "q", "x"} & found


WORDS = (
    "SELECT FROM WHERE GROUP BY ORDER LIMIT AND OR NOT BETWEEN JOIN LATERAL VIEW STREAM AS ON UNION ALL EXCEPT WITH "
    "WATERMARK DELAY TUMBLING HOPPING TABLESAMPLE VALUES INTERVAL minute DISTINCT WINDOW | > < * . , ( ) ( ) ( ) t a b "
    "'1 minute' '2 days' '\\ud800' 1 delay( watermark( tumbling( orders clicks"
)


@settings(deadline=None)
@given(
    s.one_of(
        s.lists(s.sampled_from(WORDS.split()), max_size=40).map(" ".join),
        s.text().map(lambda text: f"SELECT delay({text}"),
    )
)
def test_any_query_is_rewritten_or_raises_a_headrace_error(query: str) -> None:
    try:
        text = rewritten(query)
    except HeadraceError:
        return
    assert isinstance(text, str)


def test_deep_parentheses_are_accepted() -> None:
    deep = "(" * 50_000
    assert rewritten(f"SELECT TUMBLING(a, '1 day') FROM {deep}").startswith("SELECT window(a, '1 day')")


def at(relation: str, time: str) -> str:
    """Return the subquery for the rows of a history at a time."""
    return f"(SELECT `id` FROM {relation} WHERE valid_from <= {time} AND (valid_to IS NULL OR valid_to > {time}))"


def cast(time: str) -> str:
    return f"CAST({time} AS TIMESTAMP)"


DAY, YESTERDAY = "CAST('2026-01-01' AS TIMESTAMP)", "CAST(now() - INTERVAL '1' DAY AS TIMESTAMP)"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "SELECT * FROM history TIMESTAMP AS OF '2026-01-01' WHERE id = 1",
            f"SELECT * FROM {at('history', DAY)} AS `history` WHERE id = 1",
        ),
        (
            "SELECT * FROM history FOR SYSTEM_TIME AS OF '2026-01-01' h JOIN orders o ON h.id = o.id",
            f"SELECT * FROM {at('history', DAY)} h JOIN orders o ON h.id = o.id",
        ),
        (
            "SELECT (SELECT count(*) FROM `history` FOR TIMESTAMP AS OF now() - INTERVAL '1' DAY) FROM orders, "
            "history timestamp as of '2026-01-01' AS h",
            f"SELECT (SELECT count(*) FROM {at('`history`', YESTERDAY)} AS `history`) FROM orders, "
            f"{at('history', DAY)} AS h",
        ),
        (
            "SELECT * FROM micros TIMESTAMP AS OF '2026-01-01'",
            f"SELECT * FROM {at('micros', f'unix_micros({DAY})')} AS `micros`",
        ),
        *(
            (f"SELECT h.id FROM history TIMESTAMP AS OF {time} h", f"SELECT h.id FROM {at('history', cast(time))} h")
            for time in (
                "now() - INTERVAL 1 HOUR",
                "now() - INTERVAL '1' DAY",
                "now() - INTERVAL '1:30' HOUR TO MINUTE",
                "current_timestamp",
                "1767225600",
                "'2026-01-01'::timestamp",
                "CASE WHEN true IS NOT NULL THEN now() END",
            )
        ),
        *(
            (
                f"FROM history TIMESTAMP AS OF {time} |> SELECT id",
                f"FROM {at('history', cast(time))} AS `history` |> SELECT id",
            )
            for time in ("now()", "now() - INTERVAL 1 HOUR 30 MINUTES", "'2026-01-01'::date", "DATE '2026-01-01'")
        ),
        # Spark's own tables, streams, and columns with these names.
        ("SELECT * FROM orders TIMESTAMP AS OF '2026-01-01'", "SELECT * FROM orders TIMESTAMP AS OF '2026-01-01'"),
        ("SELECT timestamp AS of FROM history", "SELECT timestamp AS of FROM history"),
        ("SELECT TIMESTAMP '2026-01-01' AS of", "SELECT TIMESTAMP '2026-01-01' AS of"),
    ],
)
def test_a_time_of_a_history_becomes_a_filter(query: str, expected: str) -> None:
    assert rewritten(query) == expected


@pytest.mark.parametrize("time", ["valid_from", "now() - make_interval(`ID`)", "history.valid_to", "valid_from h"])
def test_a_time_of_a_history_has_no_columns(time: str) -> None:
    with pytest.raises(HeadraceError, match="cannot depend on a column"):
        rewritten(f"SELECT * FROM history TIMESTAMP AS OF {time}")


def test_one_query_can_have_a_time_and_a_window() -> None:
    query = "SELECT count(*) FROM history TIMESTAMP AS OF '2026-01-01' GROUP BY TUMBLING(ts, '1 hour')"
    assert rewritten(query) == f"SELECT count(*) FROM {at('history', DAY)} AS `history` GROUP BY window(ts, '1 hour')"
