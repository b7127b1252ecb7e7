"""The look-up of a MERGE in a task, and the rows that it puts and deletes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.derived.merge.batches import MergeRows
from headrace.derived.merge.queries import CONFLICT, DELETE, NOTHING, PUT, MergeQueries
from headrace.errors import SchemaError, UnsupportedError
from headrace.ports import Store
from tests.unit.test_merge_grammar import CHANGES, plan

SOURCE = ("k", "_change_type", "_commit_version")
KEY, REPEATS = "__merge_key0", "__merge_repeats"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    opened.create_table("copy", {"id": "long", "price": "double"}, "id").put(
        [{"id": 1, "price": 0.5}, {"id": 3, "price": None}]
    )
    return opened


@pytest.fixture
def batches(store: Store) -> MergeRows:
    schema = store.table("copy").schema
    found = plan("WHEN MATCHED AND t.price > 0 THEN DELETE", on="ON t.id = s.k", target=schema, source=SOURCE)
    return MergeRows(MergeQueries(found, SOURCE, ("id",), ("price",)), "copy", schema)


def keyed(keys: list[int | None], kind: str = "insert", repeats: list[int] | None = None) -> pa.RecordBatch:
    columns = {
        "k": pa.array(keys, pa.int32()),
        "_change_type": pa.array([kind] * len(keys)),
        "_commit_version": pa.array([1] * len(keys)),
        KEY: pa.array(keys, pa.int32()),
    }
    if repeats is not None:
        columns[REPEATS] = pa.array(repeats)
    return pa.RecordBatch.from_pydict(columns)


def test_rows_get_the_row_of_their_key_and_rows_without_a_key_get_none(store: Store, batches: MergeRows) -> None:
    found = batches._found(store, keyed([3, None, 2, 1]))
    assert [column.to_pylist() for column in found[3:]] == [
        [3, None, 2, 1],
        [True, False, False, True],
        [3, None, None, 1],
        [None, None, None, 0.5],
    ]
    assert [len(column) for column in batches._found(store, keyed([]))] == [0] * 7


def test_a_delete_without_a_key_is_an_error(store: Store, batches: MergeRows) -> None:
    with pytest.raises(SchemaError, match="has no value for the key"):
        batches._found(store, keyed([1, None], "delete"))


def test_a_truncate_is_refused_by_name(store: Store, batches: MergeRows) -> None:
    with pytest.raises(UnsupportedError, match=r"was truncated.*failOnDataLoss=false"):
        batches._found(store, keyed([None], "truncate"))


def test_several_rows_of_a_key_without_order_are_an_error(store: Store, batches: MergeRows) -> None:
    assert len(batches._found(store, keyed([1, None, None], repeats=[1, 1, 1]))) == 7
    with pytest.raises(SchemaError, match=r"MERGE_CARDINALITY_VIOLATION.*'id': 1"):
        batches._found(store, keyed([1, 1], repeats=[2, 2]))


def test_rows_are_routed_by_their_action(store: Store, batches: MergeRows) -> None:
    def decided(*actions: int) -> pa.RecordBatch:
        ids = list(range(len(actions)))
        return pa.RecordBatch.from_pydict({"id": ids, "price": [0.5] * len(ids), "__merge_action": list(actions)})

    routed = batches._route(store, iter([decided(NOTHING), decided(PUT, DELETE, NOTHING, PUT)]))
    assert [(target, rows.to_pylist()) for target, rows in routed] == [
        (0, [{"id": 0, "price": 0.5}, {"id": 3, "price": 0.5}]),
        (1, [{"id": 1}]),
    ]
    with pytest.raises(SchemaError, match="exclude each other"):
        list(batches._route(store, iter([decided(PUT, CONFLICT)])))


def test_own_columns_have_names_that_the_source_does_not_have(batches: MergeRows) -> None:
    assert batches.queries.action == "__merge_action"
    assert replace(batches.queries, source=("__MERGE_x", *CHANGES)).action == "___merge_action"


def test_a_repeated_batch_sees_the_keys_of_inserted_rows(batches: MergeRows) -> None:
    assert "`s`.`__merge_target0` AS `id`" in batches.queries.decided("v")
    assert "`s`.`__merge_key0` AS `id`" in replace(batches.queries, repeatable=True).decided("v")
