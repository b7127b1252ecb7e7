"""Tablestore's official Python SDK, unchanged, with tables and rows of the endpoint."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import headrace
from tests.interop.programs import ACCESS_KEY_ID, ACCESS_KEY_SECRET
from tests.tablestore.interop.conftest import Endpoint

with warnings.catch_warnings():
    # The extension in C++ supports only one version of Python, and is not needed.
    warnings.simplefilter("ignore")
    sdk = pytest.importorskip("tablestore")

IGNORE = sdk.Condition(sdk.RowExistenceExpectation.IGNORE)
EXIST = sdk.Condition(sdk.RowExistenceExpectation.EXPECT_EXIST)
NOT_EXIST = sdk.Condition(sdk.RowExistenceExpectation.EXPECT_NOT_EXIST)
LOWEST = [("pk", sdk.INF_MIN), ("n", sdk.INF_MIN)]
HIGHEST = [("pk", sdk.INF_MAX), ("n", sdk.INF_MAX)]
FREE = sdk.ReservedThroughput(sdk.CapacityUnit(0, 0))
_numbers = itertools.count()

Key = list[tuple[str, Any]]


def client_of(endpoint: Endpoint, instance: str = "shop", **changed: Any) -> Any:
    settings = {"access_key_id": ACCESS_KEY_ID, "access_key_secret": ACCESS_KEY_SECRET, **changed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sdk.OTSClient(
            endpoint.url, instance_name=instance, enable_native=False, retry_policy=sdk.NoRetryPolicy(), **settings
        )


@pytest.fixture(scope="module")
def client(endpoint: Endpoint) -> Any:
    return client_of(endpoint)


@pytest.fixture
def table(client: Any) -> Iterator[str]:
    """A table with the key (pk STRING, n INTEGER)."""
    name = f"t{next(_numbers)}"
    client.create_table(sdk.TableMeta(name, [("pk", "STRING"), ("n", "INTEGER")]), sdk.TableOptions(), FREE)
    yield name
    client.delete_table(name)


def key(pk: str, n: int) -> Key:
    return [("pk", pk), ("n", n)]


def put(client: Any, table: str, pk: str, n: int, condition: Any = IGNORE, **cells: Any) -> Any:
    return client.put_row(table, sdk.Row(key(pk, n), list(cells.items())), condition)


def get(client: Any, table: str, pk: str, n: int, **wanted: Any) -> dict[str, Any] | None:
    row = client.get_row(table, key(pk, n), max_version=1, **wanted)[1]
    return None if row is None else {name: value for name, value, _ in row.attribute_columns}


def scan(
    client: Any, table: str, start: Key = LOWEST, end: Key = HIGHEST, direction: str = "FORWARD", **wanted: Any
) -> list[Any]:
    """Return the rows of a range, read page by page."""
    rows: list[Any] = []
    following: Key | None = start
    while following is not None:
        _, following, page, _ = client.get_range(table, direction, following, end, max_version=1, **wanted)
        rows += page
    return rows


def code_of(call: Any, *arguments: Any, **more: Any) -> tuple[int, str]:
    """Return HTTP status and code of a call that fails."""
    with pytest.raises(sdk.OTSServiceError) as caught:
        call(*arguments, **more)
    assert caught.value.request_id
    return caught.value.http_status, caught.value.code


# -- tables ---------------------------------------------------------------------------------------------------


def test_a_table_is_created_described_updated_and_dropped(client: Any) -> None:
    columns, defined = [("pk", "STRING"), ("n", "INTEGER"), ("b", "BINARY")], [("d", "DOUBLE"), ("s", "STRING")]
    meta = sdk.TableMeta("life", columns, defined)
    client.create_table(meta, sdk.TableOptions(time_to_live=86400, max_time_deviation=1000), FREE)
    assert "life" in client.list_table()
    described = client.describe_table("life")
    assert described.table_meta.schema_of_primary_key == columns
    assert described.table_meta.defined_columns == defined
    assert described.table_options.time_to_live == 86400
    assert described.table_options.max_time_deviation == 1000
    updated = client.update_table("life", sdk.TableOptions(time_to_live=-1, max_version=1, allow_update=False))
    assert updated.table_options.time_to_live == -1
    assert client.describe_table("life").table_options.allow_update is False
    assert code_of(client.create_table, meta, sdk.TableOptions(), FREE) == (409, "OTSObjectAlreadyExist")
    client.delete_table("life")
    assert "life" not in client.list_table()
    for call in (client.describe_table, client.delete_table):
        assert code_of(call, "life") == (404, "OTSObjectNotExist")


@pytest.mark.parametrize(
    ("name", "columns", "options"),
    [
        ("1st", [("pk", "STRING")], {}),
        ("bad", [("p-k", "STRING")], {}),
        ("bad", [], {}),
        ("bad", [(f"k{n}", "STRING") for n in range(5)], {}),
        ("bad", [("pk", "STRING"), ("pk", "STRING")], {}),
        ("bad", [("pk", "INTEGER", "PK_AUTO_INCR")], {}),
        ("bad", [("pk", "STRING")], {"max_version": 0}),
        ("bad", [("pk", "STRING")], {"time_to_live": 60}),
    ],
)
def test_invalid_tables_are_refused(client: Any, name: str, columns: list[Any], options: dict[str, Any]) -> None:
    if len(columns[0] if columns else ()) == 3:
        columns = [(columns[0][0], columns[0][1], sdk.PK_AUTO_INCR)]
    call = client.create_table, sdk.TableMeta(name, columns), sdk.TableOptions(**options), FREE
    assert code_of(*call) == (400, "OTSParameterInvalid")
    assert name not in client.list_table()


def test_an_instance_has_at_most_64_tables(endpoint: Endpoint) -> None:
    client = client_of(endpoint, "many")
    for number in range(64):
        client.create_table(sdk.TableMeta(f"t{number}", [("pk", "STRING")]), sdk.TableOptions(), FREE)
    one_more = sdk.TableMeta("more", [("pk", "STRING")])
    assert code_of(client.create_table, one_more, sdk.TableOptions(), FREE) == (403, "OTSQuotaExhausted")


# -- single rows ------------------------------------------------------------------------------------------------


def test_a_row_keeps_its_types_and_timestamps(client: Any, table: str) -> None:
    before = int(time.time() * 1000)
    cells = {"b": bytearray(b"\0\xff"), "d": -0.5, "i": -(2**63), "s": "é\0\U0001f600", "t": True}
    given = before - 5000
    client.put_row(table, sdk.Row(key("a", 1), [*cells.items(), ("old", 1, given)]), IGNORE)
    row = client.get_row(table, key("a", 1), max_version=1)[1]
    assert row.primary_key == key("a", 1)
    assert {name: value for name, value, _ in row.attribute_columns} == {**cells, "old": 1}
    assert type(row.attribute_columns[4][1]) is str
    stamps = {name: timestamp for name, _, timestamp in row.attribute_columns}
    assert stamps.pop("old") == given
    assert all(before <= timestamp <= int(time.time() * 1000) for timestamp in stamps.values())
    put(client, table, "a", 1)
    assert get(client, table, "a", 1) == {}
    assert get(client, table, "b", 1) is None


def test_a_column_may_change_its_type_from_row_to_row(client: Any, table: str) -> None:
    put(client, table, "a", 1, c=1, d="x")
    put(client, table, "a", 2, c="text", d=bytearray(b"x"))
    put(client, table, "a", 3, c=2.5, d=True)
    client.update_row(table, sdk.Row(key("a", 1), {"PUT": [("c", True)]}), IGNORE)
    found = [{name: value for name, value, _ in row.attribute_columns} for row in scan(client, table)]
    assert found == [{"c": True, "d": "x"}, {"c": "text", "d": bytearray(b"x")}, {"c": 2.5, "d": True}]
    assert get(client, table, "a", 1) == {"c": True, "d": "x"}


def test_an_update_sets_deletes_and_increments_cells(client: Any, table: str) -> None:
    changes = {"PUT": [("a", 1), ("b", "x")], "INCREMENT": [("count", 5)]}
    client.update_row(table, sdk.Row(key("a", 1), changes), IGNORE)
    assert get(client, table, "a", 1) == {"a": 1, "b": "x", "count": 5}
    row = client.get_row(table, key("a", 1), max_version=1)[1]
    (first,) = [timestamp for name, _, timestamp in row.attribute_columns if name == "b"]
    changes = {"PUT": [("a", 2)], "DELETE_ALL": [("b")], "DELETE": [("count", None, first - 1)]}
    client.update_row(table, sdk.Row(key("a", 1), changes), IGNORE)
    assert get(client, table, "a", 1) == {"a": 2, "count": 5}
    row = client.get_row(table, key("a", 1), max_version=1)[1]
    stamps = {name: timestamp for name, _, timestamp in row.attribute_columns}
    assert stamps["count"] == first
    client.update_row(table, sdk.Row(key("a", 1), {"DELETE": [("count", None, first)]}), IGNORE)
    assert get(client, table, "a", 1) == {"a": 2}
    client.update_row(table, sdk.Row(key("b", 1), {"DELETE_ALL": [("a")]}), IGNORE)
    assert get(client, table, "b", 1) is None


def test_increments_add_and_need_integers(client: Any, table: str) -> None:
    put(client, table, "a", 1, n1=2**62, s="x")
    change = sdk.Row(key("a", 1), {"INCREMENT": [("n1", 1)]})
    client.update_row(table, change, IGNORE)
    assert get(client, table, "a", 1, columns_to_get=["n1"]) == {"n1": 2**62 + 1}
    for column, delta in (("s", 1), ("n1", 2**62)):
        change = sdk.Row(key("a", 1), {"INCREMENT": [(column, delta)]})
        assert code_of(client.update_row, table, change, IGNORE) == (400, "OTSParameterInvalid")


def test_the_server_numbers_keys(client: Any) -> None:
    columns = [("pk", "STRING"), ("n", "INTEGER", sdk.PK_AUTO_INCR)]
    client.create_table(sdk.TableMeta("numbered", columns), sdk.TableOptions(), FREE)
    assert client.describe_table("numbered").table_meta.schema_of_primary_key == columns
    numbers = []
    for _ in range(5):
        row = sdk.Row([("pk", "a"), ("n", sdk.PK_AUTO_INCR)], [("c", 1)])
        _, returned = client.put_row("numbered", row, IGNORE, sdk.ReturnType.RT_PK)
        numbers.append(returned.primary_key[1][1])
    assert numbers == sorted(set(numbers))
    assert [row.primary_key[1][1] for row in scan(client, "numbered")] == numbers
    batch = sdk.BatchWriteRowRequest()
    item = sdk.PutRowItem(sdk.Row([("pk", "b"), ("n", sdk.PK_AUTO_INCR)], []), IGNORE, sdk.ReturnType.RT_PK)
    batch.add(sdk.TableInBatchWriteRowItem("numbered", [item] * 10))
    returned = [each.row.primary_key[1][1] for each in client.batch_write_row(batch).get_put()[0]]
    assert len(set(returned)) == 10
    client.delete_table("numbered")


def test_conditions_on_rows_are_checked(client: Any, table: str) -> None:
    failed = (403, "OTSConditionCheckFail")
    assert code_of(put, client, table, "a", 1, EXIST, c=1) == failed
    put(client, table, "a", 1, NOT_EXIST, c=1)
    assert code_of(put, client, table, "a", 1, NOT_EXIST, c=2) == failed
    put(client, table, "a", 1, EXIST, c=2)
    change = sdk.Row(key("b", 1), {"PUT": [("c", 1)]})
    assert code_of(client.update_row, table, change, EXIST) == failed
    assert code_of(client.delete_row, table, sdk.Row(key("b", 1)), EXIST) == failed
    client.delete_row(table, sdk.Row(key("a", 1)), EXIST)
    assert get(client, table, "a", 1) is None
    client.delete_row(table, sdk.Row(key("a", 1)), IGNORE)


def column_is(name: str, value: Any, comparator: Any, *, if_missing: bool = False) -> Any:
    return sdk.SingleColumnCondition(name, value, comparator, pass_if_missing=if_missing)


def test_conditions_on_columns_are_checked(client: Any, table: str) -> None:
    failed = (403, "OTSConditionCheckFail")
    put(client, table, "a", 1, c=5, s="m")
    five = sdk.Condition(sdk.RowExistenceExpectation.IGNORE, column_is("c", 5, sdk.ComparatorType.EQUAL))
    put(client, table, "a", 1, five, c=6, s="m")
    assert code_of(put, client, table, "a", 1, five, c=7) == failed
    both = sdk.CompositeColumnCondition(sdk.LogicalOperator.AND)
    both.add_sub_condition(column_is("c", 6, sdk.ComparatorType.GREATER_EQUAL))
    both.add_sub_condition(column_is("s", "z", sdk.ComparatorType.LESS_THAN))
    client.delete_row(table, sdk.Row(key("a", 1)), sdk.Condition(sdk.RowExistenceExpectation.EXPECT_EXIST, both))
    missing = column_is("nothing", 5, sdk.ComparatorType.EQUAL, if_missing=True)
    put(client, table, "a", 1, sdk.Condition(sdk.RowExistenceExpectation.IGNORE, missing), c=1)
    assert get(client, table, "a", 1) == {"c": 1}


def test_invalid_keys_and_cells_are_refused(client: Any, table: str) -> None:
    wrong = [("pk", 1), ("n", 1)]
    assert code_of(client.put_row, table, sdk.Row(wrong, []), IGNORE) == (400, "OTSInvalidPK")
    assert code_of(client.get_row, table, wrong[:1], max_version=1) == (400, "OTSInvalidPK")
    for cells in ([("c", "x" * (2 * 1024 * 1024 + 1))], [("#name", 1)], [("pk", 1)], [("c", 1, 1000)]):
        assert code_of(client.put_row, table, sdk.Row(key("a", 1), cells), IGNORE) == (400, "OTSParameterInvalid")
    assert code_of(put, client, table, "x" * 1025, 1) == (400, "OTSParameterInvalid")
    many = [(f"c{number}", 1) for number in range(1025)]
    assert code_of(client.put_row, table, sdk.Row(key("a", 1), many), IGNORE) == (400, "OTSParameterInvalid")
    assert scan(client, table) == []


def test_a_request_that_is_too_large_is_refused(client: Any, table: str) -> None:
    cells = [(name, "x" * (2 * 1024 * 1024)) for name in ("a", "b", "c")]
    assert code_of(client.put_row, table, sdk.Row(key("a", 1), cells), IGNORE) == (413, "OTSRequestBodyTooLarge")
    put(client, table, "a", 1, c=1)


# -- reading ----------------------------------------------------------------------------------------------------


def test_reads_return_the_requested_columns(client: Any, table: str) -> None:
    put(client, table, "a", 1, a=1, b=2, c=3)
    assert get(client, table, "a", 1, columns_to_get=["a", "c"]) == {"a": 1, "c": 3}
    assert get(client, table, "a", 1, columns_to_get=["nothing"]) is None
    assert get(client, table, "a", 1, columns_to_get=["pk", "nothing"]) == {}
    assert get(client, table, "a", 1, start_column="b") == {"b": 2, "c": 3}
    assert get(client, table, "a", 1, start_column="b", end_column="c") == {"b": 2}
    bigger = column_is("a", 1, sdk.ComparatorType.GREATER_THAN)
    assert get(client, table, "a", 1, column_filter=bigger) is None
    # The filter sees only the requested columns.
    assert get(client, table, "a", 1, columns_to_get=["b"], column_filter=bigger) is None
    many = [f"c{number}" for number in range(1025)]
    assert code_of(client.get_row, table, key("a", 1), many, max_version=1) == (400, "OTSParameterInvalid")


def test_reads_return_the_requested_versions(client: Any, table: str) -> None:
    now = int(time.time() * 1000)
    client.put_row(table, sdk.Row(key("a", 1), [("a", 1, now - 1000), ("b", 2, now)]), IGNORE)

    def names(**wanted: Any) -> list[str] | None:
        row = client.get_row(table, key("a", 1), **wanted)[1]
        return None if row is None else [name for name, _, _ in row.attribute_columns]

    assert names(max_version=None, time_range=(now, now + 1)) == ["b"]
    assert names(max_version=5, time_range=now - 1000) == ["a"]
    assert names(max_version=1, time_range=(now + 1, now + 2)) == []
    assert names(max_version=1, time_range=(now + 1, now + 2), columns_to_get=["a"]) is None
    older = sdk.Row(key("a", 1), {"PUT": [("b", 1, now - 2000)]})
    client.update_row(table, older, IGNORE)
    assert get(client, table, "a", 1) == {"a": 1, "b": 2}
    assert code_of(client.get_row, table, key("a", 1), max_version=0) == (400, "OTSParameterInvalid")


def test_a_table_keeps_several_versions(client: Any, table: str) -> None:
    client.update_table(table, sdk.TableOptions(max_version=3))
    now = int(time.time() * 1000)
    versions = [(number, now - number) for number in range(5)]
    for value, timestamp in versions[::-1]:
        client.update_row(table, sdk.Row(key("a", 1), {"PUT": [("c", value, timestamp)]}), IGNORE)

    def values(**wanted: Any) -> list[tuple[int, int]] | None:
        row = client.get_row(table, key("a", 1), **wanted)[1]
        return None if row is None else [(value, timestamp) for _, value, timestamp in row.attribute_columns]

    assert values(max_version=9) == versions[:3]
    assert values(max_version=None, time_range=(now - 2, now)) == versions[1:3]
    assert values(max_version=None, time_range=now - 1) == versions[1:2]
    assert get(client, table, "a", 1) == {"c": 0}
    client.update_row(table, sdk.Row(key("a", 1), {"DELETE": [("c", None, now)]}), IGNORE)
    assert values(max_version=9) == versions[1:3]
    client.update_row(table, sdk.Row(key("a", 1), {"DELETE_ALL": ["c"]}), IGNORE)
    assert values(max_version=9) == []


def fill(client: Any, table: str, count: int) -> list[Key]:
    """Put rows with the keys (a, 0), (a, 1), … and return their keys."""
    keys = [key("a", number) for number in range(count)]
    for start in range(0, count, 200):
        batch = sdk.BatchWriteRowRequest()
        rows = [
            sdk.PutRowItem(sdk.Row(each, [("c", each[1][1]), ("s", f"text {each[1][1] % 3}")]), IGNORE)
            for each in keys[start : start + 200]
        ]
        batch.add(sdk.TableInBatchWriteRowItem(table, rows))
        assert client.batch_write_row(batch).is_all_succeed()
    return keys


def test_ranges_are_read_forward_and_backward_page_by_page(client: Any, table: str) -> None:
    keys = fill(client, table, 150)
    assert [row.primary_key for row in scan(client, table)] == keys
    assert [row.primary_key for row in scan(client, table, limit=20)] == keys
    assert [row.primary_key for row in scan(client, table, HIGHEST, LOWEST, "BACKWARD", limit=20)] == keys[::-1]
    assert [row.primary_key for row in scan(client, table, keys[3], keys[6])] == keys[3:6]
    assert [row.primary_key for row in scan(client, table, keys[6], keys[3], "BACKWARD")] == keys[6:3:-1]
    _, following, rows, _ = client.get_range(table, "FORWARD", LOWEST, HIGHEST, limit=5, max_version=1)
    assert (following, len(rows)) == (keys[5], 5)
    _, following, rows, _ = client.get_range(table, "FORWARD", keys[149], HIGHEST, limit=1, max_version=1)
    assert (following, len(rows)) == (None, 1)
    assert code_of(client.get_range, table, "FORWARD", HIGHEST, LOWEST, max_version=1) == (400, "OTSParameterInvalid")
    assert code_of(client.get_range, table, "FORWARD", LOWEST, HIGHEST, limit=0, max_version=1)[0] == 400


def test_ranges_are_filtered(client: Any, table: str) -> None:
    fill(client, table, 400)

    def found(column_filter: Any, **wanted: Any) -> list[int]:
        return [row.primary_key[1][1] for row in scan(client, table, column_filter=column_filter, **wanted)]

    comparators = sdk.ComparatorType
    assert found(column_is("c", 395, comparators.GREATER_EQUAL)) == [395, 396, 397, 398, 399]
    assert found(column_is("c", 395, comparators.GREATER_EQUAL), limit=2) == [395, 396, 397, 398, 399]
    assert found(column_is("s", "text 1", comparators.EQUAL))[:3] == [1, 4, 7]
    assert found(column_is("nothing", 1, comparators.EQUAL)) == []
    assert len(found(column_is("nothing", 1, comparators.EQUAL, if_missing=True))) == 400
    either = sdk.CompositeColumnCondition(sdk.LogicalOperator.OR)
    either.add_sub_condition(column_is("c", 2, comparators.LESS_THAN))
    neither = sdk.CompositeColumnCondition(sdk.LogicalOperator.NOT)
    neither.add_sub_condition(column_is("c", 398, comparators.NOT_EQUAL))
    either.add_sub_condition(neither)
    assert found(either) == [0, 1, 398]


def test_wide_rows_shorten_pages(client: Any, table: str) -> None:
    for number in range(6):
        put(client, table, "a", number, c="x" * 1_000_000)
    sizes = []
    following: Key | None = LOWEST
    while following is not None:
        _, following, rows, _ = client.get_range(table, "FORWARD", following, HIGHEST, max_version=1)
        sizes.append(len(rows))
    assert sum(sizes) == 6
    assert max(sizes) <= 4


# -- batches ----------------------------------------------------------------------------------------------------


def test_a_batch_of_reads_returns_rows_in_order(client: Any, table: str) -> None:
    put(client, table, "a", 1, c=1)
    put(client, table, "a", 2, c=2)
    request = sdk.BatchGetRowRequest()
    request.add(sdk.TableInBatchGetRowItem(table, [key("a", 2), key("x", 1), key("a", 1)], max_version=1))
    results = client.batch_get_row(request).get_result_by_table(table)
    assert [each.is_ok for each in results] == [True] * 3
    assert [None if each.row is None else each.row.primary_key for each in results] == [key("a", 2), None, key("a", 1)]
    request = sdk.BatchGetRowRequest()
    request.add(sdk.TableInBatchGetRowItem(table, [key("a", 1), [("pk", 1), ("n", 1)]], max_version=1))
    request.add(sdk.TableInBatchGetRowItem("none", [key("a", 1)], max_version=1))
    response = client.batch_get_row(request)
    codes = [each.error_code for name in (table, "none") for each in response.get_result_by_table(name)]
    assert codes == [None, "OTSInvalidPK", "OTSObjectNotExist"]
    request = sdk.BatchGetRowRequest()
    request.add(sdk.TableInBatchGetRowItem(table, [key("a", number) for number in range(101)], max_version=1))
    assert code_of(client.batch_get_row, request) == (400, "OTSParameterInvalid")


def test_a_batch_of_writes_reports_each_row(client: Any, table: str) -> None:
    put(client, table, "a", 1, c=1)
    put(client, table, "a", 2, c=1)
    five = sdk.Condition(sdk.RowExistenceExpectation.IGNORE, column_is("c", 5, sdk.ComparatorType.EQUAL))
    batch = sdk.BatchWriteRowRequest()
    items = [
        sdk.PutRowItem(sdk.Row(key("a", 1), [("c", 2)]), NOT_EXIST),
        sdk.UpdateRowItem(sdk.Row(key("a", 2), {"PUT": [("d", "x")], "INCREMENT": [("c", 1)]}), EXIST),
        sdk.DeleteRowItem(sdk.Row(key("a", 2)), five),
        sdk.PutRowItem(sdk.Row(key("a", 3), [("c", 3)]), NOT_EXIST),
        sdk.UpdateRowItem(sdk.Row(key("a", 3), {"INCREMENT": [("c", 1)]}), EXIST),
        sdk.PutRowItem(sdk.Row([("pk", 1), ("n", 1)], []), IGNORE),
    ]
    batch.add(sdk.TableInBatchWriteRowItem(table, items))
    batch.add(sdk.TableInBatchWriteRowItem("none", items[:1]))
    response = client.batch_write_row(batch)
    assert not response.is_all_succeed()
    codes = [each.error_code for each in response.table_of_put[table]]
    assert codes == ["OTSConditionCheckFail", None, "OTSInvalidPK"]
    assert [each.error_code for each in response.table_of_update[table]] == [None, None]
    assert [each.error_code for each in response.table_of_delete[table]] == ["OTSConditionCheckFail"]
    assert [each.error_code for each in response.table_of_put["none"]] == ["OTSObjectNotExist"]
    found = {row.primary_key[1][1]: {n: v for n, v, _ in row.attribute_columns} for row in scan(client, table)}
    assert found == {1: {"c": 1}, 2: {"c": 2, "d": "x"}, 3: {"c": 4}}


def test_a_batch_may_have_rows_with_different_columns(client: Any, table: str) -> None:
    rows = [
        sdk.PutRowItem(sdk.Row(key("a", 1), [("c", 1), ("d", "x")]), IGNORE),
        sdk.PutRowItem(sdk.Row(key("a", 2), [("d", "y"), ("c", 2)]), IGNORE),
        sdk.PutRowItem(sdk.Row(key("a", 3), [("c", "text")]), IGNORE),
        sdk.PutRowItem(sdk.Row(key("a", 4), []), IGNORE),
        sdk.PutRowItem(sdk.Row(key("a", 1), [("c", 5)]), IGNORE),
    ]
    batch = sdk.BatchWriteRowRequest()
    batch.add(sdk.TableInBatchWriteRowItem(table, rows))
    assert client.batch_write_row(batch).is_all_succeed()
    found = [{name: value for name, value, _ in row.attribute_columns} for row in scan(client, table)]
    assert found == [{"c": 5}, {"c": 2, "d": "y"}, {"c": "text"}, {}]
    too_many = sdk.BatchWriteRowRequest()
    too_many.add(sdk.TableInBatchWriteRowItem(table, rows[:1] * 201))
    assert code_of(client.batch_write_row, too_many) == (400, "OTSParameterInvalid")


# -- signatures, refusals, headrace's own tables ----------------------------------------------------------------


def test_version_4_of_the_signature_is_accepted(endpoint: Endpoint) -> None:
    client = client_of(endpoint, region="cn-hangzhou")
    assert isinstance(list(client.list_table()), list)


def test_unauthenticated_requests_are_refused(endpoint: Endpoint) -> None:
    denied = (403, "OTSAuthFailed")
    assert code_of(client_of(endpoint, access_key_secret="guess").list_table) == denied
    assert code_of(client_of(endpoint, access_key_id="nobody").list_table) == denied
    assert code_of(client_of(endpoint, "x").list_table) == denied


def test_missing_features_are_named_in_errors(client: Any, table: str) -> None:
    assert code_of(client.start_local_transaction, table, key("a", 1)) == (400, "OTSParameterInvalid")
    index = sdk.SecondaryIndexMeta("i", ["n"], [])
    meta = sdk.TableMeta("indexed", [("pk", "STRING"), ("n", "INTEGER")])
    assert code_of(client.create_table, meta, sdk.TableOptions(), FREE, [index]) == (400, "OTSParameterInvalid")


def test_headrace_reads_tables_of_the_sdk_and_the_sdk_reads_tables_of_headrace(
    client: Any, table: str, endpoint: Endpoint
) -> None:
    put(client, table, "a", 1, c=1, d="x")
    with headrace.open(endpoint.root / "shop") as store:
        found = store.table(table).scan(["pk", "n", "c", "d"]).read_all().to_pylist()
        assert found == [{"pk": "a", "n": 1, "c": 1, "d": "x"}]
        made = store.create_table("made", {"k": "string", "i": "int", "x": "float", "s": "string"}, "k")
        made.put({"k": "a", "i": 1, "x": 0.5, "s": "text"})
        row = client.get_row("made", [("k", "a")], max_version=1)[1]
        assert {name: value for name, value, _ in row.attribute_columns} == {"i": 1, "x": 0.5, "s": "text"}
        client.update_row("made", sdk.Row([("k", "a")], {"PUT": [("i", 2), ("free", bytearray(b"new"))]}), IGNORE)
        assert made.get({"k": "a"}) == {"k": "a", "i": 2, "x": 0.5, "s": "text", "free": b"new"}
        too_large = sdk.Row([("k", "b")], [("i", 2**40)])
        assert code_of(client.put_row, "made", too_large, IGNORE) == (400, "OTSParameterInvalid")
        client.delete_table("made")
