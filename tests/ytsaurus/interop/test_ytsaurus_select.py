"""The query language of the endpoint, with YTsaurus' client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from yt import yson
from yt.wrapper import YtClient, YtResponseError

from tests.ytsaurus.interop.ytsaurus_server import YtServer
from tests.ytsaurus.interop.ytsaurus_tables import AT_ONCE

PATH, QUEUE = "//tmp/select/t", "//tmp/select/q"
SCHEMA = [
    {"name": "k", "type": "int64", "sort_order": "ascending"},
    {"name": "s", "type": "string", "sort_order": "ascending", "required": True},
    {"name": "u", "type": "uint64"},
    {"name": "d", "type": "double"},
    {"name": "b", "type": "boolean"},
    {"name": "a-b c", "type": "string"},
    {"name": "y", "type": "any"},
]


@pytest.fixture(scope="module")
def client(yt_server: YtServer) -> Iterator[YtClient]:
    client = yt_server.client(**AT_ONCE)
    client.create("table", PATH, recursive=True, attributes={"dynamic": True, "schema": SCHEMA})
    client.mount_table(PATH, sync=True)
    rows = [
        {
            "k": number // 2,
            "s": "odd" if number % 2 else "even",
            "u": yson.YsonUint64(number) if number else None,
            "d": number / 2,
            "b": number > 3,
            "a-b c": f"x{number}",
            "y": [number],
        }
        for number in range(6)
    ]
    client.insert_rows(PATH, rows)
    columns = [{"name": "data", "type": "string"}, {"name": "offset", "type": "int64"}]
    client.create("table", QUEUE, attributes={"dynamic": True, "schema": columns, "tablet_count": 2})
    client.mount_table(QUEUE, sync=True)
    client.insert_rows(QUEUE, [{"data": str(n), "offset": n, "$tablet_index": n % 2} for n in range(6)])
    yield client
    client.remove("//tmp/select", recursive=True)


def found(client: YtClient, query: str, **options: Any) -> list[dict[str, Any]]:
    return list(client.select_rows(query.replace("T]", f"{PATH}]").replace("Q]", f"{QUEUE}]"), **options))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("k = 1", ["x2", "x3"]),
        ("1 = k", ["x2", "x3"]),
        ("k > 0 and s = 'odd'", ["x3", "x5"]),
        ('k between 1 and 2 and s != "odd"', ["x2", "x4"]),
        ("k in (0, 2)", ["x0", "x1", "x4", "x5"]),
        ("not k in (0, 2)", ["x2", "x3"]),
        ("(k, s) = (1, 'odd')", ["x3"]),
        ("(k, s) in ((0, 'odd'), (2, 'even'))", ["x1", "x4"]),
        ("(k, s) > (1, 'even')", ["x3", "x4", "x5"]),
        ("(k, s) between (0, 'odd') and (1, 'odd')", ["x1", "x2", "x3"]),
        ("(k, s) between (1) and (1)", ["x2", "x3"]),
        ("u = 3u", ["x3"]),
        ("u >= 4", ["x4", "x5"]),
        ("u < 2u", ["x0", "x1"]),
        ("u = #", ["x0"]),
        ("is_null(u)", ["x0"]),
        ("u is null", ["x0"]),
        ("u is not null and u < 2", ["x1"]),
        ("u = null or d >= 2.5", ["x0", "x5"]),
        ("b", ["x4", "x5"]),
        ("b = %false and d > 1.0", ["x3"]),
        ("d > 2", ["x5"]),
        ("`a-b c` = 'x1' or [a-b c] = \"x2\"", ["x1", "x2"]),
        ("[a-b c] like 'x_' and [a-b c] in ('x5')", ["x5"]),
        ("is_prefix('x4', [a-b c]) or is_substr('5', [a-b c])", ["x4", "x5"]),
        ("k * 2 + 1 = 3", ["x2", "x3"]),
        ("int64(u) % 2 = 1", ["x1", "x3", "x5"]),
        ("-k < -1", ["x4", "x5"]),
        ("k = 1 and k = 2", []),
        ("k > -5 /* all */ -- and the end", ["x0", "x1", "x2", "x3", "x4", "x5"]),
        ("if(b, k, 0) = 2", ["x4", "x5"]),
        ("k != 0 and 2 / k = 1", ["x4", "x5"]),
        ("n in ('x1', 'x3')", ["x1", "x3"]),
        ("if_null(u, 77u) = 77u", ["x0"]),
        ("lower(upper([a-b c])) = 'x3' and length(s) = 3", ["x3"]),
    ],
)
def test_conditions_select_rows(client: YtClient, where: str, expected: list[str]) -> None:
    assert [row["n"] for row in found(client, f"[a-b c] as n from [T] where {where}")] == expected


def test_null_equals_itself_unless_relations_are_canonical(client: YtClient) -> None:
    assert len(found(client, "k from [T] where u != 1u", use_canonical_null_relations=False)) == 5
    assert len(found(client, "k from [T] where u != 1u", use_canonical_null_relations=True)) == 4


def test_all_columns_or_expressions_can_be_selected(client: YtClient) -> None:
    first = found(client, "* from [T] limit 1")[0]
    assert first == {"k": 0, "s": "even", "u": None, "d": 0.0, "b": False, "a-b c": "x0", "y": [0]}
    rows = found(client, "k + 1 as next, u * 2u as twice, d, y, concat(s, '!') as text, k = 1 from [T] where k = 1")
    assert rows[0] == {"next": 2, "twice": 4, "d": 1.0, "y": [2], "text": "even!", "k = 1": True}
    assert type(rows[0]["twice"]).__name__ == "YsonUint64"
    assert found(client, "SELECT t.k FROM [T] AS t LIMIT 1") == [{"k": 0}]


def test_order_by_offset_and_limit_select_a_page(client: YtClient) -> None:
    def names(query: str) -> list[str]:
        return [row["n"] for row in found(client, f"[a-b c] as n from [T] {query}")]

    assert names("order by s desc, k limit 10") == ["x1", "x3", "x5", "x0", "x2", "x4"]
    assert names("order by u limit 2") == ["x0", "x1"]
    assert names("order by u desc limit 10") == ["x5", "x4", "x3", "x2", "x1", "x0"]
    assert names("order by n desc offset 1 limit 2") == ["x4", "x3"]
    assert names("offset 4 limit 5") == ["x4", "x5"]
    assert names("limit 0") == []


def test_rows_are_grouped_and_aggregated(client: YtClient) -> None:
    rows = found(
        client, "s, sum(k) as total, min(d) as low, max(u) as high, avg(d) as mean, sum(1) as n from [T] group by s"
    )
    assert rows == [
        {"s": "even", "total": 3, "low": 0.0, "high": 4, "mean": 1.0, "n": 3},
        {"s": "odd", "total": 3, "low": 0.5, "high": 5, "mean": 1.5, "n": 3},
    ]
    assert found(client, "m, sum(k) as total from [T] group by k % 2 as m having sum(k) > 2 order by m limit 5") == [
        {"m": 0, "total": 4}
    ]
    assert found(client, "m + 10 as m10, count(*) as n from [T] where k < 2 group by k as m") == [
        {"m10": 10, "n": 2},
        {"m10": 11, "n": 2},
    ]
    assert found(client, "s, count(*) as n, count(u) as known from [T] group by s") == [
        {"s": "even", "n": 3, "known": 2},
        {"s": "odd", "n": 3, "known": 3},
    ]
    assert found(client, "sum(k) as total from [T] group by 1") == [{"total": 6}]
    assert found(client, "sum(k) as total from [T] where k > 100 group by 1") == []


def test_a_queue_is_sorted_by_tablet_and_row_index(client: YtClient) -> None:
    rows = found(client, "* from [Q]")
    assert [(row["$tablet_index"], row["$row_index"], row["data"]) for row in rows] == [
        (0, 0, "0"),
        (0, 1, "2"),
        (0, 2, "4"),
        (1, 0, "1"),
        (1, 1, "3"),
        (1, 2, "5"),
    ]
    query = "data, `offset` from [Q] where [$tablet_index] = 1 and $row_index between 1 and 5"
    assert found(client, query) == [{"data": "3", "offset": 3}, {"data": "5", "offset": 5}]
    assert found(client, "max([$row_index]) as last from [Q] group by [$tablet_index]") == [{"last": 2}, {"last": 2}]


def test_keys_can_be_any_bytes(client: YtClient) -> None:
    path = "//tmp/select/bytes"
    key = {"type_name": "tagged", "tag": "binary", "item": "string"}
    columns = [{"name": "k", "type_v3": key, "sort_order": "ascending"}, {"name": "n", "type": "int64"}]
    client.create("table", path, attributes={"dynamic": True, "schema": columns})
    client.mount_table(path, sync=True)
    keys = [bytes([one, other]) for one in range(256) for other in (0, 34, 255)]
    rows = [yson.dumps({b"k": key, b"n": number}, yson_format="binary") for number, key in enumerate(keys)]
    client.insert_rows(path, [b";".join(rows)], raw=True, format="yson")

    def numbers(condition: str, **values: Any) -> list[int]:
        return [row["n"] for row in found(client, f"n from [{path}] where {condition}", **values)]

    assert numbers(r'(k) > ("\xfe\x22") and (k) < ("\xff\xff")') == [764, 765, 766]
    assert numbers(r'k = "\x80\""') == numbers(r"k in ('\200\42', '\xff')") == [385]
    assert numbers("k >= '\\xff'", input_row_limit=3) == [765, 766, 767]


def test_placeholders_are_replaced(client: YtClient) -> None:
    values = {"low": 1, "names": ["odd"], "key": [2, "odd"]}
    query = "[a-b c] as n from [T] where k >= {low} and s in {names} and (k, s) = {key}"
    assert [row["n"] for row in found(client, query, placeholder_values=values)] == ["x5"]
    with pytest.raises(YtResponseError, match="Placeholder 'other'"):
        found(client, "k from [T] where k = {other}", placeholder_values=values)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "parsing query"),
        ("k from", "parsing query"),
        ("k from [T] where", "parsing query"),
        ("k from [T] where (k = 1", "parsing query"),
        ("nothing from [T]", "Undefined reference 'nothing'"),
        ("k from [//tmp/select/none]", "has no child with key"),
        ("k from [T] where k = 'x'", "Type mismatch"),
        ("k from [T] where u = k", "Type mismatch"),
        ("k from [T] where k", "not boolean"),
        ("k from [T] where k = 1 / 0", "zero"),
        ("k from [T] where k << 64 = 0", "0 to 63 bits"),
        ("(-9223372036854775807 - 1) / (k - 1) as x from [T] where k = 0", "by -1"),
        ("fly(k) from [T]", "Undefined function 'fly'"),
        ("sum(k) from [T]", "aggregate function"),
        ("s, sum(s) from [T] group by s", "aggregate function got a string"),
        ("k from [T] group by s", "Undefined reference 'k'"),
        ("k, s as k from [T]", "already used"),
        ("k from [T] join [Q] using k", "not supported here: JOIN"),
        ("k from [T] where k in (select k from [T])", "not supported"),
        ("k from [T] group by k with totals", "TOTALS"),
        ("k from [T] limit -1", "whole number"),
        ("k from [T] where s = 18446744073709551616u", "larger than any uint64"),
        ("k from [T] where k = \x00", "unexpected"),
        ("k from [T] where " + "(" * 200 + "k = 1" + ")" * 200, "parentheses"),
        ("k from [T] order by y limit 5", "cannot be sorted"),
    ],
)
def test_unsupported_queries_are_errors(client: YtClient, query: str, message: str) -> None:
    with pytest.raises(YtResponseError, match=message):
        found(client, query)


def test_long_chains_of_conditions_are_evaluated(client: YtClient) -> None:
    chain = " or ".join(f"k = {number}" for number in range(2, 202))
    assert len(found(client, f"k from [T] where {chain}")) == 2
    repeated = " or ".join(["k = 1"] * 2000)
    assert len(found(client, f"k from [T] where {repeated}")) == 2
    with pytest.raises(YtResponseError, match="too many nested expressions"):
        found(client, f"k from [T] where {'k' + ' + 1' * 2000} = 1")


def test_row_limits(client: YtClient) -> None:
    for limits in ({"input_row_limit": 3}, {"output_row_limit": 3}):
        with pytest.raises(YtResponseError, match="terminated prematurely"):
            found(client, "k from [T]", **limits)
    assert len(found(client, "k from [T]", output_row_limit=3, fail_on_incomplete_result=False)) == 3


def test_explain_query_shows_the_condition(client: YtClient) -> None:
    explained = client.explain_query(f"k from [{PATH}] where k > 1", raw=True, format="json")
    assert b"k > 1" in explained.read()


def test_rows_can_be_selected_in_json(client: YtClient) -> None:
    assert list(client.select_rows(f"k, s, d from [{PATH}] where k = 1", format="json")) == [
        {"k": 1, "s": "even", "d": 1.0},
        {"k": 1, "s": "odd", "d": 1.5},
    ]
