"""The rules of queues that need no store: schemas, dispositions, trimming, choice of partitions, data weights."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SchemaError
from headrace.model.queues.columns import QueueSchema, data_weights
from headrace.model.queues.values import Bounds, Disposition, QueuePage, partition_of_keys, trim_target


def test_writers_set_all_columns_except_the_system_columns() -> None:
    schema = QueueSchema.of({"$timestamp": "long", "data": "string not null", "$cumulative_data_weight": "long"})
    assert schema.written.names == ("data",)
    assert not schema.written.column("data").nullable


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"$timestamp": "timestamp"},
        {"data": "string", "$timestamp": "string"},
        {"data": "string", "$cumulative_data_weight": "double"},
        {"data": "string", "$row_index": "long"},
        {"data": "string", "$tablet_index": "long"},
        {"data": "string", "$sequence_number": "long"},
    ],
)
def test_invalid_columns_of_a_queue_are_refused(columns: dict[str, str]) -> None:
    with pytest.raises(SchemaError):
        QueueSchema.of(columns)


def test_columns_as_a_list_are_refused_with_the_valid_form() -> None:
    columns: Any = [{"name": "user", "type": "string"}]
    with pytest.raises(SchemaError, match=r"received: a list; valid: .*\{.user.: .string."):
        QueueSchema.of(columns)


def test_pages_and_bounds_count_from_their_first_row() -> None:
    assert QueuePage(0, 7, pa.RecordBatch.from_pydict({"a": [1, 2, 3]})).next == 10
    assert Bounds(3, 10).rows == 7


def test_the_disposition_follows_from_offset_and_bounds() -> None:
    # Three rows, the first of them trimmed.
    found = [Disposition.of(Bounds(1, 3), offset) for offset in range(5)]
    assert [each.value for each in found] == [
        "expired", "pending_consumption", "pending_consumption", "up_to_date", "ahead",
    ]  # fmt: skip


# -- trimming -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "vital", "retained", "oldest", "expected"),
    [
        (Bounds(0, 5), [], None, None, 0),
        (Bounds(0, 5), [3, 0], None, None, 0),
        (Bounds(0, 5), [3, 2], None, None, 2),
        (Bounds(2, 5), [3, 4], None, None, 3),
        (Bounds(0, 7), [6, 6], None, None, 6),
        (Bounds(0, 5), [3], 3, None, 2),
        (Bounds(0, 10), [3], 3, None, 3),
        (Bounds(0, 7), [6], 3, None, 4),
        (Bounds(0, 2), [2], 3, None, 0),
        (Bounds(0, 7), [6], None, 0, 0),
        (Bounds(0, 7), [6], None, 4, 4),
        (Bounds(3, 7), [1], None, None, 3),
        (Bounds(0, 7), [100], None, None, 7),
    ],
)
def test_trimming_ends_at_the_slowest_vital_consumer_and_the_retained_rows(
    bounds: Bounds, vital: list[int], retained: int | None, oldest: int | None, expected: int
) -> None:
    assert trim_target(bounds, vital, retained, oldest) == expected


@given(
    lower=st.integers(0, 9),
    rows=st.integers(0, 9),
    vital=st.lists(st.integers(0, 20)),
    retained=st.none() | st.integers(0, 20),
    oldest=st.none() | st.integers(0, 20),
)
def test_trimming_removes_no_row_that_a_vital_consumer_or_retention_needs(
    lower: int, rows: int, vital: list[int], retained: int | None, oldest: int | None
) -> None:
    bounds = Bounds(lower, lower + rows)
    target = trim_target(bounds, vital, retained, oldest)
    assert bounds.lower <= target <= bounds.upper
    if target > bounds.lower:
        assert vital
        assert target <= min(vital)
        assert retained is None or bounds.upper - target >= retained
        assert oldest is None or target <= oldest


# -- choice of partitions -------------------------------------------------------------------------------

_key_types: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), st.text(max_size=20)),
    (pa.binary(), st.binary(max_size=20)),
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats()),
    (pa.decimal128(10, 2), st.decimals(-9999, 9999, places=2)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
]


@given(st.data())
def test_equal_keys_go_to_one_partition_at_any_place_in_a_batch(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(_key_types))
    drawn = data.draw(st.lists(st.none() | values, min_size=1, max_size=20))
    partitions = data.draw(st.integers(1, 5))
    array = pa.array(drawn, kind)
    whole = partition_of_keys(pa.table({"key": array}), ["key"], partitions)
    assert whole.min() >= 0
    assert whole.max() < partitions
    alone = [
        partition_of_keys(pa.table({"key": array[row : row + 1]}), ["key"], partitions)[0] for row in range(len(drawn))
    ]
    assert whole.tolist() == alone
    chunked = pa.table({"key": pa.chunked_array([array[:1], array[1:]])})
    assert partition_of_keys(chunked, ["key"], partitions).tolist() == whole.tolist()


def test_the_partition_of_a_key_is_the_same_in_every_version() -> None:
    rows = pa.RecordBatch.from_pydict({"user": ["", "u1", "user 2", None], "order": [0, -1, 1 << 40, None]})
    assert partition_of_keys(rows, ["user"], 1 << 20).tolist() == [0, 839894, 916956, 902289]
    assert partition_of_keys(rows, ["user", "order"], 1 << 20).tolist() == [0, 333025, 337693, 521276]


def test_equal_numbers_go_to_one_partition() -> None:
    def numbers(values: list[Any], kind: pa.DataType) -> list[int]:
        return list(partition_of_keys(pa.table({"key": pa.array(values, kind)}), ["key"], 1 << 30))

    assert numbers([1, -2], pa.int8()) == numbers([1, -2], pa.int64())
    assert len(set(numbers([0.0, -0.0], pa.float64()))) == 1
    assert len(set(numbers([math.nan, -math.nan], pa.float64()))) == 1
    assert numbers([1.5], pa.float32()) == numbers([1.5], pa.float64())


@pytest.mark.parametrize(
    "values", [list(range(10_000)), [f"user {n}" for n in range(10_000)], [n / 7 for n in range(10_000)]]
)
def test_different_keys_are_spread_evenly(values: list[Any]) -> None:
    counts = np.bincount(partition_of_keys(pa.table({"key": values}), ["key"], 16), minlength=16)
    assert counts.min() > 500
    assert counts.max() < 750


def test_the_order_of_key_columns_affects_the_partition() -> None:
    rows = pa.RecordBatch.from_pydict({"a": list(range(100)), "b": list(range(100, 200))})
    one, other = partition_of_keys(rows, ["a", "b"], 1000), partition_of_keys(rows, ["b", "a"], 1000)
    assert one.tolist() != other.tolist()


def test_a_key_column_must_exist_and_must_not_be_composite() -> None:
    rows = pa.RecordBatch.from_pydict({"a": [1], "b": [[1]]})
    with pytest.raises(SchemaError, match="'c'"):
        partition_of_keys(rows, ["c"], 2)
    with pytest.raises(SchemaError, match="'b'"):
        partition_of_keys(rows, ["b"], 2)


# -- data weights ---------------------------------------------------------------------------------------


def _weight(value: Any, kind: pa.DataType) -> int:
    """Return the weight of one value."""
    if value is None:
        return 0
    if pa.types.is_string(kind):
        return len(value.encode())
    if pa.types.is_binary(kind):
        return len(value)
    if pa.types.is_boolean(kind):
        return 1
    if pa.types.is_decimal(kind):
        return 16
    if pa.types.is_map(kind):
        return sum(_weight(key, kind.key_type) + _weight(item, kind.item_type) for key, item in value)
    if pa.types.is_list(kind):
        return sum(_weight(item, kind.value_type) for item in value)
    if pa.types.is_struct(kind):
        return sum(_weight(value[field.name], field.type) for field in kind)
    return 8


_simple = [
    (pa.string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.int16(), st.integers(-5, 5)),
    (pa.float32(), st.floats(width=32)),
    (pa.bool_(), st.booleans()),
    (pa.decimal128(5, 1), st.just(decimal.Decimal("1.5"))),
    (pa.date32(), st.dates()),
]


def _composite(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def lists(pair: Any) -> Any:
        kind, values = pair
        return pa.list_(kind), st.lists(st.none() | values, max_size=3)

    def maps(pair: Any) -> Any:
        kind, values = pair
        return pa.map_(pa.string(), kind), st.lists(st.tuples(st.text(max_size=3), st.none() | values), max_size=3)

    def structs(pair: Any) -> Any:
        kind, values = pair
        fields = {"a": st.none() | st.integers(0, 9), "b": st.none() | values}
        return pa.struct([("a", pa.int64()), ("b", kind)]), st.fixed_dictionaries(fields)

    return inner.flatmap(lambda pair: st.sampled_from([lists(pair), maps(pair), structs(pair)]))


@given(st.data())
def test_the_weight_of_a_row_is_the_sum_over_its_values(data: st.DataObject) -> None:
    kind, values = data.draw(st.recursive(st.sampled_from(_simple), _composite, max_leaves=3))
    drawn = data.draw(st.lists(st.none() | values, max_size=8))
    first = data.draw(st.integers(0, len(drawn)))
    rows = pa.RecordBatch.from_arrays([pa.array(drawn, kind)], names=["value"])
    expected = [1 + _weight(value, kind) for value in drawn]
    assert data_weights(rows).tolist() == expected
    assert data_weights(rows.slice(first)).tolist() == expected[first:]


def test_weights_of_a_row_add_up() -> None:
    now = pa.array([0], pa.timestamp("us", tz="UTC"))
    rows = pa.RecordBatch.from_arrays([pa.array(["foo"]), now, pa.array([20])], names=["data", "time", "weight"])
    assert data_weights(rows.select(["data"])).tolist() == [4]
    assert data_weights(rows.select(["data", "time"])).tolist() == [12]
    assert data_weights(rows).tolist() == [20]
