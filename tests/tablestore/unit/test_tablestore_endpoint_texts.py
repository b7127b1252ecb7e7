"""The endpoint's errors have the messages of Tablestore's service that the tests of its official clients compare.

Sources: tests of the SDKs in Java (functiontest: ParameterLegalityTest, RestrictedItemTest, DataOperationTest,
OTSBasicCompaFourTest, OTSAPIBehaviorTest, TestBulkImportFunction, TestComputeSplitPointsBySize; model:
UnifiedFilterRestrictionAndParamCheckingTest), Python (row_op_test, table_operation_test), PHP and C#.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace_tablestore.endpoint.errors import service_error
from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.operations import OPERATIONS
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.plainbuffer.rows import decode_row, encode_row, encode_value
from headrace_tablestore.wire.plainbuffer.values import Cell, Marker, Row

IGNORED = pb.Condition(row_existence=pb.IGNORE)
INVALID, WRONG_KEY = "OTSParameterInvalid", "OTSInvalidPK"
KEY = [("p", "a"), ("n", 1)]


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    instance = Instance("shop", tmp_path_factory.mktemp("texts") / "shop")
    call(instance, "CreateTable", create("t"))
    call(instance, "CreateTable", create("fixed", allow_update=False))
    yield instance
    instance.store.close()


def create(name: str, *key: tuple[str, int], defined: int = 0, **options: Any) -> pb.CreateTableRequest:
    request = pb.CreateTableRequest(table_options=pb.TableOptions(**options))
    request.table_meta.table_name = name
    for column, kind in key or [("p", pb.STRING), ("n", pb.INTEGER)]:
        request.table_meta.primary_key.add(name=column, type=kind)
    for number in range(defined):
        request.table_meta.defined_column.add(name=f"d{number}", type=pb.DCT_INTEGER)
    request.reserved_throughput.capacity_unit.read = 0
    return request


def call(instance: Instance, operation: str, request: Any) -> Any:
    return OPERATIONS[f"/{operation}"].handle(instance, request)


def error_of(instance: Instance, operation: str, request: Any) -> tuple[str, str]:
    with pytest.raises(HeadraceError) as caught:
        call(instance, operation, request)
    error = service_error(caught.value)
    assert isinstance(error, ServiceError)
    return error.code, error.message


def row(key: Any = KEY, *cells: Cell) -> bytes:
    return encode_row(Row(tuple(key), cells))


def requests_with(key: Any, table: str = "t", *cells: Cell) -> dict[str, tuple[str, Any]]:
    """Return an (operation, request) for each kind of request with a key, by name."""
    data, cells = row(key, *cells), cells or (Cell("a", 1),)
    written = row(key, *cells)
    batch = pb.BatchWriteRowRequest()
    batch.tables.add(table_name=table).rows.add(type=pb.UPDATE, row_change=written, condition=IGNORED)
    read = pb.BatchGetRowRequest()
    read.tables.add(table_name=table, primary_key=[data], max_versions=1)
    bulk = pb.BulkImportRequest(table_name=table)
    bulk.rows.add(type=pb.PUT, row_change=written)
    return {
        "put": ("PutRow", pb.PutRowRequest(table_name=table, row=written, condition=IGNORED)),
        "update": ("UpdateRow", pb.UpdateRowRequest(table_name=table, row_change=written, condition=IGNORED)),
        "delete": ("DeleteRow", pb.DeleteRowRequest(table_name=table, primary_key=row(key), condition=IGNORED)),
        "get": ("GetRow", pb.GetRowRequest(table_name=table, primary_key=row(key), max_versions=1)),
        "range": ("GetRange", scan(key, [("p", Marker.INF_MAX), ("n", Marker.INF_MAX)], table)),
        "batch write": ("BatchWriteRow", batch),
        "batch get": ("BatchGetRow", read),
        "bulk import": ("BulkImport", bulk),
    }


def scan(start: Any, end: Any, table: str = "t", direction: pb.Direction = pb.FORWARD, **more: Any) -> Any:
    bounds: Any = {"inclusive_start_primary_key": row(start), "exclusive_end_primary_key": row(end)}
    return pb.GetRangeRequest(table_name=table, direction=direction, max_versions=1, **bounds, **more)


ALL = ["put", "update", "delete", "get", "range", "batch write", "batch get", "bulk import"]
BY_ROW = {"batch write", "batch get", "bulk import"}
"""Operations whose response has an error of the table in each row."""


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ([("p2", "a"), ("n", 1)], "Validate PK name fail. Input: p2, Meta: p."),
        ([("n", 1), ("p", "a")], "Validate PK name fail. Input: n, Meta: p."),
        ([("p", "a"), ("n", "1")], "Validate PK type fail. Input: VT_STRING, Meta: VT_INTEGER."),
        ([("p", b"a"), ("n", 1)], "Validate PK type fail. Input: VT_BLOB, Meta: VT_STRING."),
        ([("p", "a")], "Validate PK size fail. Input: 1, Meta: 2."),
        ([*KEY, ("m", 1)], "Validate PK size fail. Input: 3, Meta: 2."),
    ],
)
def test_a_key_of_another_table_gets_the_services_message(
    instance: Instance, kind: str, key: Any, message: str
) -> None:
    operation, request = requests_with(key)[kind]
    if kind not in BY_ROW:
        assert error_of(instance, operation, request) == (WRONG_KEY, message)
        return
    answer = call(instance, operation, request)
    (result,) = answer.rows if kind == "bulk import" else answer.tables[0].rows
    assert (result.is_ok, result.error.code, result.error.message) == (False, WRONG_KEY, message)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ([], "Cell data broken, empty PK."),
        ([(f"k{n}", "a") for n in range(5)], "The number of primary key columns must be in range: [1, 4]."),
        ([("p", Marker.INF_MIN), ("n", 1)], "VT_INF_MIN is an invalid type for the primary key."),
        ([("p", "a"), ("n", Marker.INF_MAX)], "VT_INF_MAX is an invalid type for the primary key."),
        ([("p", "a"), ("n", 0.5)], "VT_DOUBLE is an invalid type for the primary key."),
        (
            [("p", "x" * 1025), ("n", 1)],
            "The length of primary key column: 'p' exceeds the MaxLength:1024 with CurrentLength:1025.",
        ),
    ],
)
def test_an_invalid_key_fails_the_whole_request(instance: Instance, kind: str, key: Any, message: str) -> None:
    if kind == "range" and "INF" in message:
        return
    operation, request = requests_with(key)[kind]
    assert error_of(instance, operation, request) == (INVALID, message)


@pytest.mark.parametrize("kind", ["put", "update", "batch write", "bulk import"])
@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([Cell("#a", 1)], "Invalid column name: '#a'."),
        ([Cell("", 1)], "Invalid column name: ''."),
        ([Cell("a" * 256, 1)], f"Invalid column name: '{'a' * 256}'."),
        ([Cell("a", 1, None, (2**63 - 1) // 1000)], "Timestamp must be in range [0, INT64_MAX/1000)."),
        (
            [Cell("a", "x" * 2097153)],
            "The length of attribute column: 'a' exceeds the MaxLength:2097152 with CurrentLength:2097153.",
        ),
        (
            [Cell(f"c{number}", 1) for number in range(1025)],
            "The number of attribute columns exceeds the limit, limit count: 1024, column count: 1025.",
        ),
    ],
    ids=["sign", "empty", "long", "late", "large", "many"],
)
def test_invalid_cells_fail_the_whole_request(instance: Instance, kind: str, cells: list[Cell], message: str) -> None:
    operation, request = requests_with(KEY, "t", *cells)[kind]
    assert error_of(instance, operation, request) == (INVALID, message)


@pytest.mark.parametrize("kind", ALL)
def test_an_invalid_table_name_fails_the_whole_request(instance: Instance, kind: str) -> None:
    operation, request = requests_with(KEY, "3t")[kind]
    assert error_of(instance, operation, request) == (INVALID, "Invalid table name: '3t'.")


def read(**wanted: Any) -> pb.GetRowRequest:
    return pb.GetRowRequest(table_name="t", primary_key=row(), **wanted)


def filtered(*parts: bytes, combinator: pb.LogicalOperator) -> bytes:
    composite = pb.CompositeColumnValueFilter(combinator=combinator, sub_filters=map(pb.Filter.FromString, parts))
    return pb.Filter(type=pb.FT_COMPOSITE_COLUMN_VALUE, filter=composite.SerializeToString()).SerializeToString()


def compared(column: str, value: int | str = 1) -> bytes:
    single = pb.SingleColumnValueFilter(
        comparator=pb.CT_EQUAL,
        column_name=column,
        column_value=encode_value(value),
        filter_if_missing=True,
        latest_version_only=True,
    )
    return pb.Filter(type=pb.FT_SINGLE_COLUMN_VALUE, filter=single.SerializeToString()).SerializeToString()


def batch_of(count: int, size: int = 0) -> pb.BatchWriteRowRequest:
    request = pb.BatchWriteRowRequest()
    rows = request.tables.add(table_name="t").rows
    change = row(KEY, Cell("a", "x" * size))
    for _ in range(count):
        rows.add(type=pb.PUT, row_change=change, condition=IGNORED)
    return request


def emptied(*, tables: int) -> pb.BatchWriteRowRequest:
    request = batch_of(tables)
    request.tables.add(table_name="u")
    return request


def keys_of(count: int, **wanted: Any) -> pb.BatchGetRowRequest:
    return pb.BatchGetRowRequest(
        tables=[pb.TableInBatchGetRowRequest(table_name="t", primary_key=[row()] * count, **wanted)]
    )


def table(name: str) -> dict[str, Any]:
    return {
        "DescribeTable": pb.DescribeTableRequest(table_name=name),
        "DeleteTable": pb.DeleteTableRequest(table_name=name),
        "UpdateTable": pb.UpdateTableRequest(table_name=name, table_options=pb.TableOptions(time_to_live=-1)),
        "CreateTable": create(name),
    }


COLUMNS = [f"c{number}" for number in range(1025)]
TOO_MANY_COLUMNS = "The number of columns from the request exceeds the limit, limit count: 1024, column count: 1025."
FORWARD = "Begin key must less than end key in FORWARD"
BACKWARD = "Begin key must more than end key in BACKWARD"
TOO_MANY_FILTERS = "The count of filter exceeds the max: 32."
PAIRS = "Invalid AND/OR operator: the number of sub-filters must be more than 1."
REFUSED: list[tuple[str, Any, str]] = [
    *[(operation, request, "Invalid table name: ''.") for operation, request in table("").items()],
    *[(operation, request, "Invalid table name: '#'.") for operation, request in table("#").items()],
    (
        "CreateTable",
        create("u", *[(f"k{number}", pb.STRING) for number in range(5)]),
        "The number of primary key columns must be in range: [1, 4].",
    ),
    ("CreateTable", create("u", ("k", pb.STRING), ("k", pb.INTEGER)), "Duplicated primary key name: 'k'."),
    ("CreateTable", create("u", ("k-k", pb.STRING)), "Invalid column name: 'k-k'."),
    ("CreateTable", create("u", defined=33), "The number of defined columns must be in range: [0, 32]."),
    (
        "UpdateRow",
        pb.UpdateRowRequest(table_name="t", row_change=row(), condition=IGNORED),
        "Attribute column is missing.",
    ),
    (
        "UpdateRow",
        pb.UpdateRowRequest(table_name="fixed", row_change=row(KEY, Cell("a", 1)), condition=IGNORED),
        "Update operation is not allowed in this table",
    ),
    ("GetRow", read(), "No version condition is specified."),
    ("GetRow", read(max_versions=1, columns_to_get=["#"]), "Invalid column name: '#'."),
    ("GetRow", read(max_versions=1, columns_to_get=COLUMNS), TOO_MANY_COLUMNS),
    ("GetRow", read(max_versions=1, filter=compared("#")), "Invalid column name: '#'."),
    ("GetRow", read(filter=filtered(*[compared("a")] * 32, combinator=pb.LO_NOT)), TOO_MANY_FILTERS),
    (
        "GetRow",
        read(max_versions=1, filter=filtered(compared("a"), compared("b", "x" * 2097153), combinator=pb.LO_OR)),
        "The length of attribute column: 'b' exceeds the MaxLength:2097152 with CurrentLength:2097153.",
    ),
    ("GetRow", read(max_versions=1, filter=filtered(compared("a"), combinator=pb.LO_AND)), PAIRS),
    ("GetRow", read(max_versions=1, filter=filtered(compared("a"), combinator=pb.LO_OR)), PAIRS),
    (
        "GetRow",
        read(max_versions=1, filter=filtered(*[compared("a")] * 2, combinator=pb.LO_NOT)),
        "Invalid NOT operator: the number of sub-filters must be 1.",
    ),
    ("GetRow", read(max_versions=1, filter=filtered(*[compared("a")] * 32, combinator=pb.LO_AND)), TOO_MANY_FILTERS),
    ("GetRange", scan(KEY, KEY), FORWARD),
    ("GetRange", scan([("p", "b"), ("n", 1)], KEY), FORWARD),
    ("GetRange", scan(KEY, KEY, direction=pb.BACKWARD), BACKWARD),
    ("GetRange", scan(KEY, [("p", "b"), ("n", 1)], direction=pb.BACKWARD), BACKWARD),
    ("GetRange", scan(KEY, [("p", "b"), ("n", 1)], limit=0), "The limit must be greater than 0."),
    ("GetRange", scan(KEY, [("p", "b"), ("n", 1)], limit=-1), "The limit must be greater than 0."),
    ("GetRange", scan(KEY, [("p", "b"), ("n", 1)], columns_to_get=COLUMNS), TOO_MANY_COLUMNS),
    ("BatchGetRow", pb.BatchGetRowRequest(), "No row specified in the request of BatchGetRow."),
    ("BatchGetRow", keys_of(101, max_versions=1), "Rows count exceeds the upper limit: 100."),
    ("BatchGetRow", keys_of(1), "No version condition is specified while querying row."),
    ("BatchWriteRow", pb.BatchWriteRowRequest(), "No row is specified in BatchWriteRow."),
    ("BatchWriteRow", emptied(tables=0), "No operation is specified for table: 't'."),
    ("BatchWriteRow", emptied(tables=1), "No operation is specified for table: 'u'."),
    ("BatchWriteRow", batch_of(201), "Rows count exceeds the upper limit: 200."),
    (
        "BatchWriteRow",
        batch_of(2, 2097152 - 11),
        "The total data size of BatchWriteRow request exceeds the limit, limit size: 4194304, data size: 4194306.",
    ),
    ("BulkImport", pb.BulkImportRequest(table_name="t"), "No operation is specified for table: 't'."),
    (
        "ComputeSplitPointsBySize",
        pb.ComputeSplitPointsBySizeRequest(table_name="t", split_size=0),
        "The split_size should be greater than 0.",
    ),
    (
        "ComputeSplitPointsBySize",
        pb.ComputeSplitPointsBySizeRequest(table_name="t", split_size=1, split_size_unit_in_byte=0),
        "The split_size_unit_in_byte should be greater equal than: 1048576",
    ),
]


@pytest.mark.parametrize(("operation", "request_", "message"), REFUSED)
def test_an_invalid_parameter_gets_the_services_message(
    instance: Instance, operation: str, request_: Any, message: str
) -> None:
    assert error_of(instance, operation, request_) == (INVALID, message)


def test_a_batch_may_have_4_mb_of_names_values_and_timestamps(instance: Instance) -> None:
    request = batch_of(2, 2097152 - 12)
    assert len(request.SerializeToString()) > 4194304
    assert all(result.is_ok for result in call(instance, "BatchWriteRow", request).tables[0].rows)


def test_a_batch_with_an_invalid_last_table_writes_nothing(instance: Instance) -> None:
    request = pb.BatchWriteRowRequest()
    first = request.tables.add(table_name="t").rows
    for number in range(5):
        first.add(type=pb.PUT, row_change=row([("p", "first"), ("n", number)], Cell("a", 1)), condition=IGNORED)
    request.tables.add(table_name="fixed").rows.add(
        type=pb.PUT, row_change=row([("p", "x" * 1025), ("n", 1)]), condition=IGNORED
    )
    assert error_of(instance, "BatchWriteRow", request)[0] == INVALID
    low, high = [("p", "first"), ("n", Marker.INF_MIN)], [("p", "first"), ("n", Marker.INF_MAX)]
    assert not call(instance, "GetRange", scan(low, high)).rows


def test_tables_of_a_batch_get_may_have_no_rows(instance: Instance) -> None:
    (answer,) = call(instance, "BatchGetRow", keys_of(0, max_versions=1)).tables
    assert (answer.table_name, len(answer.rows)) == ("t", 0)


def test_columns_may_have_the_names_that_the_service_accepts(instance: Instance) -> None:
    signs = ".'\"$&*()/\\\n\r "
    names = ["公司", "a" * 255, *(name for sign in signs for name in (sign, f"{sign}a", f"a{sign}", f"a{sign}b"))]
    for number in range(2):
        cells = [Cell(name, number) for name in names]
        for kind in ("put", "update", "batch write", "bulk import"):
            operation, request = requests_with([("p", "names"), ("n", number)], "t", *cells)[kind]
            call(instance, operation, request)
    key = row([("p", "names"), ("n", 1)])
    wanted = pb.GetRowRequest(table_name="t", primary_key=key, max_versions=1, columns_to_get=names)
    found = decode_row(call(instance, "GetRow", wanted).row).cells
    assert {cell.name: cell.value for cell in found} == dict.fromkeys(names, 1)
    operation, request = requests_with(KEY, "t", Cell("a:b", 1))["put"]
    assert "colon" in error_of(instance, operation, request)[1]


@pytest.mark.parametrize("operation", ["ListSearchIndex", "ListTimeseriesTable"])
def test_lists_of_missing_features_are_empty(instance: Instance, operation: str) -> None:
    request: Callable[[], Any] = getattr(pb, f"{operation}Request")
    assert call(instance, operation, request()).SerializeToString() == b""
