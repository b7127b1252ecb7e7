"""Changes of several tables as Debezium's events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import OptionError, SchemaError
from headrace.formats.headrace.debezium_events import DebeziumShape
from headrace.formats.headrace.source import HeadraceSource
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tables.json_forms import Origin

ROWS = [
    # (operation, table, key, row)
    (ChangeOp.BASE, "film", '{"id":1}', '{"id":1,"title":"a"}'),
    (ChangeOp.INSERT, "film", '{"id":2}', '{"id":2,"title":"b"}'),
    (ChangeOp.PREIMAGE, "film", '{"id":1}', '{"id":1,"title":"a"}'),
    (ChangeOp.REPLACE, "film", '{"id":1}', '{"id":1,"title":"c"}'),
    (ChangeOp.REPLACE, "rental", '{"id":7}', '{"id":7}'),
    (ChangeOp.DELETE_WITH_ROW, "film", '{"id":1}', '{"id":1,"title":"c"}'),
    (ChangeOp.DELETE, "rental", '{"id":7}', '{"id":7}'),
]
ORIGIN = Origin("postgresql", "pagila")


def changes(rows: list[tuple[ChangeOp, str, str, str]], *, transactions: bool = True) -> Changes:
    count = len(rows)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["public"] * count, pa.string()),
            *(pa.array([row[column] for row in rows], pa.string()) for column in (1, 2, 3)),
        ],
        ["schema", "table", "key", "row"],
    )
    return Changes(
        batch,
        pa.array([int(row[0]) for row in rows], pa.int8()),
        pa.array([100] * count, pa.int64()),
        pa.array([1_700_000_000_123_456] * count, pa.timestamp("us", tz="UTC")),
        transactions=pa.array([555] * count, pa.int64()) if transactions else None,
    )


def events(shape: DebeziumShape, rows: list[tuple[ChangeOp, str, str, str]]) -> list[Any]:
    batch = shape.rows(changes(rows))
    assert batch.schema == shape.schema
    return [None if value is None else json.loads(value) for value in batch.column("value").to_pylist()]


def test_each_change_is_one_event_with_the_rows_before_and_after_it() -> None:
    found = events(DebeziumShape(ORIGIN, "shop"), ROWS)
    assert [(each["op"], each["before"], each["after"]) for each in found] == [
        ("r", None, {"id": 1, "title": "a"}),
        ("c", None, {"id": 2, "title": "b"}),
        ("u", {"id": 1, "title": "a"}, {"id": 1, "title": "c"}),
        ("u", None, {"id": 7}),
        ("d", {"id": 1, "title": "c"}, None),
        ("d", {"id": 7}, None),
    ]


def test_an_event_has_the_envelope_of_debezium() -> None:
    shape = DebeziumShape(ORIGIN, "shop")
    _, event, *_ = events(shape, ROWS)
    source = event["source"]
    assert list(event) == ["before", "after", "source", "op", "ts_ms", "transaction"]
    assert isinstance(source.pop("version"), str)
    assert source == {
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1_700_000_000_123,
        "snapshot": "false",
        "db": "pagila",
        "sequence": None,
        "schema": "public",
        "table": "film",
        "txId": 555,
        "lsn": 100,
        "xmin": None,
    }
    assert (event["ts_ms"], event["transaction"]) == (1_700_000_000_123, None)
    assert events(shape, ROWS)[0]["source"]["snapshot"] == "true"
    rows = shape.rows(changes(ROWS))
    assert rows.column("topic").to_pylist()[3:5] == ["shop.public.rental", "shop.public.film"]
    assert rows.column("key").to_pylist()[:2] == ['{"id":1}', '{"id":2}']


def test_the_document_shows_such_an_event() -> None:
    page = (Path(__file__).parents[2] / "docs" / "postgres-tunnels.md").read_text()
    shown = json.loads(page.split("```json\n")[1].split("```")[0])
    row = '{"id":7,"price":"AfQ=","at":"2024-02-29T10:00:00.5Z"}'
    (event,) = events(DebeziumShape(Origin("postgresql", "shop"), "shop"), [(ChangeOp.INSERT, "orders", "{}", row)])
    # tools/release/versions.py checks that the page names the last release.
    shown["source"]["version"] = event["source"]["version"]
    assert json.dumps(shown) == json.dumps(event)


def test_base_data_has_no_transaction() -> None:
    rows = DebeziumShape(ORIGIN, None).rows(changes(ROWS[:1], transactions=False))
    source = json.loads(rows.column("value")[0].as_py())["source"]
    assert (source["txId"], source["name"]) == (None, "pagila")


def test_names_are_escaped() -> None:
    odd = 'a"\\\n'
    rows = DebeziumShape(Origin("postgresql", odd), odd).rows(changes([(ChangeOp.INSERT, odd, "{}", "{}")]))
    source = json.loads(rows.column("value")[0].as_py())["source"]
    assert (source["name"], source["db"], source["table"]) == (odd, odd, odd)


def test_tombstones_follow_deletes() -> None:
    shape = DebeziumShape(ORIGIN, "shop", tombstones=True)
    found = events(shape, ROWS)
    assert [None if each is None else each["op"] for each in found] == ["r", "c", "u", "u", "d", None, "d", None]
    keys = shape.rows(changes(ROWS)).column("key").to_pylist()
    assert keys[4:] == ['{"id":1}', '{"id":1}', '{"id":7}', '{"id":7}']
    only_keys = DebeziumShape(ORIGIN, "shop", ["key"], tombstones=True).rows(changes(ROWS))
    assert only_keys.column("key").to_pylist() == keys


def test_old_rows_can_be_left_out() -> None:
    found = events(DebeziumShape(ORIGIN, "shop", pre_images=False), ROWS)
    assert [each["before"] for each in found if each["op"] == "u"] == [None, None]


def test_no_changes_are_no_events() -> None:
    assert DebeziumShape(ORIGIN, "shop", tombstones=True).rows(changes([])).num_rows == 0


def test_columns_can_be_chosen_and_unknown_ones_are_an_error() -> None:
    shape = DebeziumShape(ORIGIN, "shop", ["value", "topic"])
    assert shape.rows(changes(ROWS)).schema.names == ["value", "topic"]
    with pytest.raises(SchemaError, match="no such column"):
        DebeziumShape(ORIGIN, "shop", ["row"])


def test_events_do_not_add_up_to_a_table() -> None:
    options = {"store": "postgresql://shop@db/shop", "tunnel": "t", "changeformat": "debezium", "readas": "table"}
    with pytest.raises(OptionError, match="changeFormat=debezium and readAs=table"):
        HeadraceSource(options).check_stream_read()
