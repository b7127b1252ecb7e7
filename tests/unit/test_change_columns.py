"""Shapes: what users see of a change, in Spark's words and in Tablestore's."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError, OptionError, SchemaError, UnsupportedError
from headrace.model.tables.change_columns import ROW_KEY, SIGNED, TABLE_COLUMN, ChangeShape, SignedShape
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tables.schema import TableSchema
from headrace_tablestore.format.columns import TablestoreShape, parse_catalog

SCHEMA = TableSchema.of({"id": "long", "name": "string", "price": "double"}, "id")
PAIRS = [
    (ChangeOp.PREIMAGE, 1, "a", 1.0),
    (ChangeOp.REPLACE, 1, "b", 1.0),
    (ChangeOp.PREIMAGE, 1, "b", 1.0),
    (ChangeOp.UPDATE, 1, "c", 1.0),
    (ChangeOp.PREIMAGE, 1, "c", 1.0),
    (ChangeOp.DELETE, 1, "c", 1.0),
]
CATALOG = parse_catalog(
    '{"columns": {"id": {"type": "long"}, "name": {"type": "STRING"}, "price": {"type": "double"}}}'
)
TABLESTORE = TablestoreShape(SCHEMA, CATALOG)


def changes(
    *entries: tuple[ChangeOp, int, str | None, float | None], written: dict[str, list[bool]] | None = None
) -> Changes:
    rows = pa.RecordBatch.from_pylist([{"id": i, "name": n, "price": p} for _, i, n, p in entries], SCHEMA.arrow)
    count = len(entries)
    return Changes(
        rows,
        pa.array([int(op) for op, *_ in entries], pa.int8()),
        pa.array(range(1, count + 1), pa.int64()),
        pa.array([1_000 + n for n in range(count)], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        None if written is None else {name: pa.array(cells) for name, cells in written.items()},
    )


EVERY_KIND = changes(
    (ChangeOp.BASE, 1, "a", 1.0),
    (ChangeOp.INSERT, 2, "b", None),
    (ChangeOp.PREIMAGE, 2, "b", None),
    (ChangeOp.REPLACE, 2, "c", 2.0),
    (ChangeOp.UPDATE, 2, "c", 3.0),
    (ChangeOp.UPDATE, 2, None, 3.0),
    (ChangeOp.UPSERT, 3, "d", None),
    (ChangeOp.DELETE_WITH_ROW, 2, "old", 3.0),
    (ChangeOp.DELETE, 3, None, None),
    written={
        "name": [True, True, True, True, False, True, True, True, True],
        "price": [True, True, True, True, True, False, False, True, True],
    },
)


def test_changes_carry_the_names_that_spark_and_delta_give_them() -> None:
    rows = ChangeShape(SCHEMA).rows(EVERY_KIND)
    assert rows.schema.names == ["id", "name", "price", "_change_type", "_commit_version", "_commit_timestamp"]
    assert rows["_change_type"].to_pylist() == [
        "insert",
        "insert",
        "update_preimage",
        "update_postimage",
        "update_postimage",
        "update_postimage",
        "insert",
        "delete",
        "delete",
    ]
    assert rows["_commit_version"].to_pylist() == list(range(1, 10))
    assert rows["name"].to_pylist()[-2:] == ["old", None]


OLDER_LOG = changes(
    (ChangeOp.PREIMAGE, 1, "a", 1.0),
    (ChangeOp.DELETE, 1, "a", 1.0),
    (ChangeOp.PREIMAGE, 2, "b", 1.0),
    (ChangeOp.REPLACE, 2, "c", 2.0),
    (ChangeOp.DELETE, 3, None, None),
    (ChangeOp.PREIMAGE, 2, "c", 2.0),
    (ChangeOp.DELETE, 2, "c", 2.0),
)


def test_a_delete_in_a_log_of_an_older_release_is_one_row() -> None:
    rows = ChangeShape(SCHEMA).rows(OLDER_LOG)
    assert [(row["_change_type"], row["id"], row["name"], row["_commit_version"]) for row in rows.to_pylist()] == [
        ("delete", 1, "a", 2),
        ("update_preimage", 2, "b", 3),
        ("update_postimage", 2, "c", 4),
        ("delete", 3, None, 5),
        ("delete", 2, "c", 7),
    ]
    without = ChangeShape(SCHEMA, pre_images=False).rows(OLDER_LOG)
    assert without.to_pylist() == [row for row in rows.to_pylist() if row["_change_type"] != "update_preimage"]
    catalog = [(row["__ots_record_type__"], row["name"]) for row in TABLESTORE.rows(OLDER_LOG).to_pylist()]
    assert catalog == [("DELETE", None), ("PUT", "c"), ("DELETE", None), ("DELETE", None)]
    nothing = OLDER_LOG.slice(0, 0)
    assert ChangeShape(SCHEMA).rows(nothing).num_rows == 0


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([(ChangeOp.REPLACE, 1, "b", 1.0)], "an update in the log .* commit version 1"),
        ([(ChangeOp.BASE, 1, "a", 1.0), (ChangeOp.UPDATE, 1, "b", 1.0)], "an update in the log .* commit version 2"),
        ([(ChangeOp.INSERT, 1, "a", 1.0), (ChangeOp.DELETE, 1, None, None)], "a delete in the log .* commit version 2"),
        ([(ChangeOp.PREIMAGE, 1, "a", 1.0), *[(ChangeOp.REPLACE, 1, "b", 1.0)] * 2], "1 such .* commit version 3"),
    ],
)
def test_a_change_without_its_old_row_cannot_be_followed(
    entries: list[tuple[ChangeOp, int, str | None, float | None]], words: str
) -> None:
    for name, argument in {"items": "items", '"My items"': "'\"My items\"'"}.items():
        with pytest.raises(UnsupportedError, match=f"(?s){words}.*headrace table set {argument} pre_images=true"):
            SignedShape(SCHEMA, name).rows(changes(*entries))


def test_changes_with_their_old_rows_can_be_followed() -> None:
    kinds = (ChangeOp.BASE, ChangeOp.INSERT, ChangeOp.UPSERT, ChangeOp.DELETE_WITH_ROW)
    whole = changes(*((op, 1, "a", 1.0) for op in kinds), *PAIRS)
    assert SignedShape(SCHEMA, "items").rows(whole) == ChangeShape(SCHEMA).rows(whole)
    assert SignedShape(SCHEMA, "items", ["id"]).rows(whole.slice(0, 0)).num_rows == 0


def test_the_schema_tells_the_key_of_the_rows_and_whether_they_can_be_followed() -> None:
    for shape, mark in ((ChangeShape(SCHEMA), None), (SignedShape(SCHEMA, "items"), {SIGNED.encode(): b"1"})):
        names = {name: {TABLE_COLUMN.encode(): name.encode()} if mark else {} for name in ("id", "name")}
        assert shape.schema.field("id").metadata == {ROW_KEY.encode(): b"0", **names["id"]}
        assert (shape.schema.field("name").metadata or {}) == names["name"]
        assert (shape.schema.field("_change_type").metadata or {}) == (mark or {})


def test_pre_images_can_be_left_out_and_columns_chosen() -> None:
    rows = ChangeShape(SCHEMA, ["_change_type", "id"], pre_images=False).rows(EVERY_KIND)
    assert rows.schema.names == ["_change_type", "id"]
    assert "update_preimage" not in rows["_change_type"].to_pylist()
    with pytest.raises(SchemaError, match="nme"):
        ChangeShape(SCHEMA, ["nme"])


def test_a_table_column_named_like_a_change_column_is_refused() -> None:
    with pytest.raises(SchemaError, match="_change_type"):
        ChangeShape(TableSchema.of({"id": "long", "_change_type": "string"}, "id"))


def test_tablestore_rows_follow_the_connectors_rules() -> None:
    rows = TablestoreShape(SCHEMA, CATALOG).rows(EVERY_KIND).to_pylist()
    kinds = [row["__ots_record_type__"] for row in rows]
    assert kinds == ["PUT", "PUT", "PUT", "UPDATE", "UPDATE", "UPDATE", "DELETE", "DELETE"]
    assert [row["__ots_record_timestamp__"] for row in rows] == [0, 1001, 1003, 1004, 1005, 1006, 1007, 1008]
    # A key column has no cell of its own; an absent attribute of a put has neither value nor type.
    assert all(row["__ots_column_type_id"] is None for row in rows)
    assert (rows[1]["price"], rows[1]["__ots_column_type_price"]) == (None, None)
    # An update shows the cells that it set, and which of them it removed.
    assert (rows[3]["name"], rows[3]["__ots_column_type_name"]) == (None, None)
    assert (rows[3]["price"], rows[3]["__ots_column_type_price"]) == (3.0, "PUT")
    assert (rows[4]["name"], rows[4]["__ots_column_type_name"]) == (None, "DELETE_ALL_VERSION")
    assert (rows[4]["price"], rows[4]["__ots_column_type_price"]) == (None, None)
    # A delete shows its key alone, whatever the table keeps.
    assert rows[6]["id"] == 2
    assert (rows[6]["name"], rows[6]["price"], rows[6]["__ots_column_type_name"]) == (None, None, None)


def test_a_value_of_another_type_than_in_the_catalog_is_null_with_column_type_put() -> None:
    catalog = parse_catalog(
        '{"columns": {"id": {"type": "byte"}, "name": {"type": "double"}, "other": {"type": "int"}}}'
    )
    rows = TablestoreShape(SCHEMA, catalog).rows(
        changes((ChangeOp.INSERT, 7, "x", 1.0), (ChangeOp.INSERT, 300, "y", 1.0))
    )
    assert rows["id"].to_pylist() == [7, None]
    assert rows["name"].to_pylist() == [None, None]
    assert rows["__ots_column_type_name"].to_pylist() == ["PUT", "PUT"]
    assert rows["other"].to_pylist() == [None, None]


def test_a_catalog_keeps_the_order_of_its_columns_and_ignores_other_keys() -> None:
    catalog = parse_catalog(
        '{"table": 1, "columns": {"z": {"col": "x", "type": "bigint"}, "a": {"type": "Decimal(5,2)"}}}'
    )
    assert catalog == pa.schema([("z", pa.int64()), ("a", pa.decimal128(5, 2))])


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_is_a_catalog_or_a_headrace_error(value: Any) -> None:
    for text in (json.dumps(value), json.dumps({"columns": value}), str(value)):
        with contextlib.suppress(HeadraceError):
            assert isinstance(parse_catalog(text), pa.Schema)


def test_an_unreadable_catalog_shows_a_valid_one() -> None:
    with pytest.raises(OptionError, match=r'valid: \{"columns"'):
        parse_catalog("{columns}")


def test_composite_and_not_null_columns_keep_their_values() -> None:
    schema = TableSchema.of({"id": "long", "n": "int not null", "tags": "map<string,array<int not null>>"}, "id")
    rows = [{"id": 1, "n": 1, "tags": [("a", [1])]}, {"id": 1, "n": 2, "tags": []}, {"id": 1, "n": None, "tags": None}]
    ops = [ChangeOp.INSERT, ChangeOp.UPDATE, ChangeOp.DELETE]
    entries = Changes(
        pa.RecordBatch.from_pylist(rows, schema.changes),
        pa.array(ops, pa.int8()),
        pa.array([1, 2, 3], pa.int64()),
        pa.array([1, 2, 3], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        {"n": pa.array([True, True, True]), "tags": pa.array([True, False, True])},
    )
    plain = ChangeShape(schema).rows(entries)
    assert plain.select(["id", "n", "tags"]).to_pylist() == rows
    assert all(field.nullable for field in plain.schema)
    catalog = parse_catalog(json.dumps({"columns": {"tags": {"type": "map<string, array<int not null>>"}}}))
    given = TablestoreShape(schema, catalog).rows(entries)
    assert given["tags"].to_pylist() == [[("a", [1])], None, None]
    assert given["__ots_column_type_tags"].to_pylist() == ["PUT", None, None]
