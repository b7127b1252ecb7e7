"""Rows that a table refuses are in its table of bad rows, in the transaction of the others, until they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.batches.sinks.bad_rows import bad_rows_of, prepare
from headrace.batches.sinks.batch_writer import BatchWriter
from headrace.batches.sinks.targets import TableTarget
from headrace.errors import NotFoundError, OptionError, SchemaError
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import Column
from headrace.ports import RetriedRows, Store
from headrace.testing.reading import rows_of

pytestmark = pytest.mark.needs("bad_rows")

Rows = Sequence[Mapping[str, Any]]
TABLE = "items"
BAD = f"{TABLE}_bad_rows"
_FIELDS = [pa.field("id", pa.string()), pa.field("n", pa.int64()), pa.field("note", pa.string())]


@pytest.fixture(autouse=True)
def table(store: Store) -> None:
    columns = pa.schema([_FIELDS[0], _FIELDS[1].with_nullable(False), _FIELDS[2]])
    store.create_table(TABLE, columns, "id")
    prepare(store, _targets()[0])


def _targets() -> list[TableTarget]:
    bad_rows = bad_rows_of(TABLE, "copy")
    return [TableTarget(TABLE, change, bad_rows=bad_rows) for change in (RowChange.PUT, RowChange.DELETE)]


def publish(store: Store, batch: int, puts: Rows, deletes: Rows = ()) -> int:
    """Publish a batch as a mirror does; return the number of refused rows."""
    writer = BatchWriter(store, "job", _targets())
    staged = [
        writer.stage(batch, target, [pa.RecordBatch.from_pylist(list(rows), pa.schema(_FIELDS))])
        for target, rows in zip(_targets(), (puts, deletes), strict=True)
    ]
    assert writer.publisher.publish(batch, writer.writes(staged))
    return writer.publisher.refused


def row(key: str | None, n: int | None, note: str | None = None) -> dict[str, Any]:
    return {"id": key, "n": n, "note": note}


def bad(store: Store) -> dict[str, Any]:
    return {each["key"]: each for each in rows_of(store.table(BAD))}


def test_refused_rows_are_kept_and_the_others_are_published(store: Store) -> None:
    assert publish(store, 3, [row("a", 1), row("b", None, "no n"), row(None, 4), row("c", 3)]) == 2
    assert rows_of(store.table(TABLE)) == [row("a", 1), row("c", 3)]
    kept = bad(store)
    assert list(kept) == ['{"id":"b"}', '{"id":null}']
    found = kept['{"id":"b"}']
    assert (found["change"], found["row"]) == ("put", '{"id":"b","n":null,"note":"no n"}')
    assert (found["stream"], found["query"], found["batch"], found["former"]) == ("copy", "job", 3, None)
    assert found["error"].startswith("column 'n' is NOT NULL")


def test_rows_that_are_staged_in_memory_are_kept_too(store: Store) -> None:
    (target, _), fields = _targets(), pa.schema([*_FIELDS[:1], pa.field("n", pa.string()), _FIELDS[2]])
    publisher = store.publisher("job")
    publisher.in_process = True
    # Rows that the table can have are staged in its types, and others in their own.
    parts = [
        pa.RecordBatch.from_pylist([row("a", 1)], pa.schema(_FIELDS)),
        pa.RecordBatch.from_pylist([{"id": "b", "n": "no number", "note": None}], fields),
    ]
    staged = target.stage_rows(store, publisher, 0, parts)
    assert publisher.publish(0, [target.write(staged)])
    assert publisher.refused == 1
    assert rows_of(store.table(TABLE)) == [row("a", 1)]
    assert list(bad(store)) == ['{"id":"b"}']


def test_a_later_change_of_the_key_replaces_a_bad_row(store: Store) -> None:
    assert publish(store, 0, [row("a", None), row("b", None), row("c", None), row("d", 1)]) == 3
    assert publish(store, 1, [row("a", 5), row("b", None, "newer"), row("d", None)], [{"id": "c"}]) == 2
    kept = bad(store)
    assert [(key, each["batch"], each["former"]) for key, each in kept.items()] == [
        ('{"id":"b"}', 1, None),
        ('{"id":"d"}', 1, '{"id":"d","n":1,"note":null}'),
    ]
    assert rows_of(store.table(TABLE)) == [row("a", 5), row("d", 1)]


def test_of_the_rows_of_a_key_in_one_batch_the_last_counts(store: Store) -> None:
    assert publish(store, 0, [row("a", None), row("a", 1), row("b", 2), row("b", None)]) == 1
    assert rows_of(store.table(TABLE)) == [row("a", 1), row("b", 2)]
    assert list(bad(store)) == ['{"id":"b"}']


def test_rows_are_written_again_once_their_cause_is_gone(store: Store) -> None:
    publish(store, 0, [row("a", 1), row("a", None, "new"), row("b", None)])
    assert store.retry_bad_rows(TABLE) == RetriedRows(0, 2, 0)
    text = bad(store)['{"id":"a"}']
    # Who keeps the table can correct a row.
    store.table(BAD).update([{"key": text["key"], "row": text["row"].replace("null", "7", 1)}])
    assert store.retry_bad_rows(TABLE) == RetriedRows(1, 1, 0)
    assert rows_of(store.table(TABLE)) == [row("a", 7, "new")]
    assert list(bad(store)) == ['{"id":"b"}']
    assert store.retry_bad_rows(TABLE) == RetriedRows(0, 1, 0)


@pytest.mark.parametrize("other", ["put", "delete"])
def test_a_row_that_others_have_changed_since_is_not_overwritten(store: Store, other: str) -> None:
    publish(store, 0, [row("a", 1), row("a", None)])
    table = store.table(TABLE)
    if other == "put":
        table.put([row("a", 2)])
    else:
        table.delete([{"id": "a"}])
    now = rows_of(table)
    store.table(BAD).update([{"key": '{"id":"a"}', "row": '{"id":"a","n":9}'}])
    assert store.retry_bad_rows(TABLE) == RetriedRows(0, 0, 1)
    assert rows_of(table) == now
    assert "another row of this key" in bad(store)['{"id":"a"}']["error"]


def test_a_row_whose_key_was_corrected_overwrites_no_other_row(store: Store) -> None:
    publish(store, 0, [row("a", 1), row("b", 2), row(None, 3), row("c", None), row("d", None), row("e", None)])
    table, kept = store.table(TABLE), store.table(BAD)
    corrected = {'{"id":null}': "a", '{"id":"c"}': "b", '{"id":"d"}': "f", '{"id":"e"}': "f"}
    kept.update([{"key": key, "row": f'{{"id":"{now}","n":9}}'} for key, now in corrected.items()])
    # The table has a, b, and after the first of both also f.
    assert store.retry_bad_rows(TABLE) == RetriedRows(1, 0, 3)
    assert rows_of(table) == [row("a", 1), row("b", 2), row("f", 9)]
    kept.update([{"key": '{"id":null}', "row": '{"id":"g","n":3}'}])
    assert store.retry_bad_rows(TABLE) == RetriedRows(1, 0, 2)
    assert rows_of(table)[-1] == row("g", 3)


def test_a_broken_text_of_a_person_stops_nothing(store: Store) -> None:
    long = "k" * 3000
    publish(store, 0, [row("a", None), row("b", None), row(long, None)])
    table, kept = store.table(TABLE), store.table(BAD)
    key = f'{{"id":"{long}"}}'
    digest = next(key for key in bad(store) if key.startswith("sha256"))
    for text in ("", "null", "[]", "{", "[" * 5000, f'{{"n":{"9" * 5000}}}', '{"id":"\\ud800","n":1}', None):
        kept.update([{"key": '{"id":"a"}', "row": '{"id":"a","n":1}', "former": text}])
        kept.update([{"key": name, "row": text} for name in ('{"id":"b"}', digest)])
        if text is None:
            break
        assert store.retry_bad_rows(TABLE) == RetriedRows(0, 3, 0)
        assert bad(store)['{"id":"a"}']["error"].startswith("column former is no JSON object: write the row that")
        # Changes of the columns of the table, and a batch, take the texts as they are.
        change = Alteration(added=[Column("x", pa.int64())])
        (target, _), columns = _targets(), pa.schema([*_FIELDS, pa.field("x", pa.int64())])
        altering = replace(target, columns=columns, alteration=change)
        writer = BatchWriter(store, f"job {text}", [altering])
        rows = [pa.RecordBatch.from_pylist([{**row("c", 1), "x": 2}], columns)]
        assert writer.publisher.publish(0, writer.writes([writer.stage(0, altering, rows)]))
        table.alter(Alteration(["x"]))
        assert [each["row"] for name, each in bad(store).items() if name != '{"id":"a"}'] == [text] * 2
    assert store.retry_bad_rows(TABLE) == RetriedRows(1, 2, 0)
    assert set(bad(store)) == {'{"id":"b"}', digest}
    assert rows_of(table) == [row("a", 1), row("c", 1)]
    kept.update([{"key": digest, "row": f'{key[:-1]},"n":3}}'}])
    assert store.retry_bad_rows(TABLE) == RetriedRows(1, 1, 0)


def test_a_table_of_bad_rows_without_a_column_is_named_with_what_to_do(store: Store) -> None:
    publish(store, 0, [row("a", None)])
    kept = store.table(BAD)
    kept.alter(Alteration(["former"], added=[Column("note", pa.string())]))
    for attempt in (
        lambda: prepare(store, _targets()[0]),
        lambda: publish(store, 1, [row("b", None)]),
        lambda: store.retry_bad_rows(TABLE),
    ):
        with pytest.raises(SchemaError, match=rf"{BAD}'? does not have.*error string, stream.*give it these columns"):
            attempt()
    # A new column is the last one, and readers can have more.
    kept.alter(Alteration(added=[Column("former", pa.string())]))
    prepare(store, _targets()[0])
    assert publish(store, 1, [row("b", None)]) == 1
    assert store.retry_bad_rows(TABLE) == RetriedRows(0, 2, 0)


def test_a_row_with_an_unknown_change_stays(store: Store) -> None:
    publish(store, 0, [row("a", None)])
    store.table(BAD).update([{"key": '{"id":"a"}', "change": "PUT", "row": '{"id":"a","n":9}'}])
    assert store.retry_bad_rows(TABLE) == RetriedRows(0, 1, 0)
    assert (rows_of(store.table(TABLE)), bad(store)['{"id":"a"}']["error"]) == (
        [],
        "unknown change; received 'PUT'; valid: put, delete",
    )


def test_key_columns_may_be_in_another_order_than_the_columns(store: Store) -> None:
    fields = [pa.field("part", pa.string()), pa.field("id", pa.string()), pa.field("n", pa.int64(), nullable=False)]
    store.create_table("parts", pa.schema(fields), ["id", "part"])
    target = TableTarget("parts", RowChange.PUT, bad_rows=bad_rows_of("parts", "copy"))
    prepare(store, target)
    table, bad_rows = store.table("parts"), store.table("parts_bad_rows")
    table.put([{"id": "a", "part": "p", "n": 1}])
    writer = BatchWriter(store, "job", [target])
    refused = pa.RecordBatch.from_pylist([{"id": "a", "part": "p", "n": None}], pa.schema(fields))
    writer.publisher.publish(0, writer.writes([writer.stage(0, target, [refused])]))
    (found,) = rows_of(bad_rows)
    assert found["former"] == '{"part":"p","id":"a","n":1}'
    bad_rows.update([{"key": found["key"], "row": found["row"].replace("null", "9")}])
    table.put([{"id": "a", "part": "p", "n": 2}])
    assert store.retry_bad_rows("parts") == RetriedRows(0, 0, 1)
    table.put([{"id": "a", "part": "p", "n": 1}])
    assert store.retry_bad_rows("parts") == RetriedRows(1, 0, 0)
    assert rows_of(table) == [{"part": "p", "id": "a", "n": 9}]


def test_changes_of_columns_that_a_job_makes_change_its_bad_rows(store: Store) -> None:
    fields = [pa.field("id", pa.string()), pa.field("n", pa.int64(), nullable=False), pa.field("f", pa.float32())]
    long = "k" * 3000
    store.create_table("wide", pa.schema([*fields, pa.field("note", pa.string())]), "id").put(row("a", 1, "x"))
    kept, loose = bad_rows_of("wide", "copy"), [fields[0], fields[1].with_nullable(True), fields[2]]

    def publish_one(batch: int, target: TableTarget, values: list[Any]) -> None:
        writer = BatchWriter(store, "job", [target])
        columns = zip(target.columns or loose, values, strict=True)
        rows = pa.record_batch({each.name: pa.array(value, each.type) for each, value in columns})
        assert writer.publisher.publish(batch, writer.writes([writer.stage(batch, target, [rows])]))

    target = TableTarget("wide", RowChange.PUT, bad_rows=kept)
    prepare(store, target)
    publish_one(0, target, [["a", "b", "c", long], [None] * 4, [0.1, None, 1, 2]])
    change = Alteration(["note"], {"id": "key", "n": "m"}, {"f": pa.float64()}, added=[Column("x", pa.int64())])
    columns = pa.schema([("key", pa.string()), ("m", pa.int64()), ("f", pa.float64()), ("x", pa.int64())])
    later = TableTarget("wide", RowChange.PUT, columns, alteration=replace(change, values={"x": 3}), bad_rows=kept)
    publish_one(1, later, [["c", "d"], [5, 6], [1.0, 2.0], [7, 8]])
    table, bad_rows = store.table("wide"), store.table("wide_bad_rows")
    found = {each["key"]: each["row"] for each in rows_of(bad_rows)}
    assert len(found) == 3
    assert found['{"key":"b"}'] == '{"key":"b","m":null,"f":null,"x":3}'
    bad_rows.update([{"key": key, "row": text.replace('"m":null', '"m":9')} for key, text in found.items()])
    assert store.retry_bad_rows("wide") == RetriedRows(3, 0, 0)
    assert rows_of(bad_rows) == []
    assert {each["key"]: (each["m"], each["f"], each["x"]) for each in rows_of(table)} == {
        "a": (9, float(np.float32(0.1)), 3),
        "b": (9, None, 3),
        "c": (5, 1.0, 7),
        "d": (6, 2.0, 8),
        long: (9, 2.0, 3),
    }


def test_keys_of_any_length_and_rows_of_any_value_come_back(store: Store) -> None:
    long = "k" * 3000
    publish(store, 0, [row(long, None, 'a "quoted" text\n'), row("ä\\", None)])
    for key, each in bad(store).items():
        store.table(BAD).update([{"key": key, "row": each["row"].replace('"n":null', '"n":1')}])
    # PostgreSQL's index has no room for the long key in a row of the table, but for this compressed one.
    assert store.retry_bad_rows(TABLE).written == 2
    assert rows_of(store.table(TABLE)) == [row(long, 1, 'a "quoted" text\n'), row("ä\\", 1)]
    publish(store, 1, [row(long, None)])
    publish(store, 2, [row(long, 3)])
    assert bad(store) == {}


def test_a_table_without_bad_rows_says_what_creates_them(store: Store) -> None:
    store.create_table("others", {"id": "long"}, "id")
    with pytest.raises(NotFoundError, match="'others' has no table of bad rows") as error:
        store.retry_bad_rows("others")
    assert "badRows = 'table'" in str(error.value)
    with pytest.raises(NotFoundError, match="no such table"):
        store.retry_bad_rows("none")


def test_a_column_that_the_table_lacks_fails_the_batch(store: Store) -> None:
    writer = BatchWriter(store, "job", _targets()[:1])
    wrong = pa.RecordBatch.from_pylist([{"id": "a", "other": 1}])
    with pytest.raises(SchemaError, match="does not have a column"):
        writer.publisher.publish(0, writer.writes([writer.stage(0, _targets()[0], [wrong])]))


@pytest.mark.parametrize("change", [RowChange.UPDATE, RowChange.REPLACE_ALL])
def test_writes_of_parts_of_rows_are_refused(store: Store, change: RowChange) -> None:
    with pytest.raises(OptionError, match="whole row of its key"):
        prepare(store, TableTarget(TABLE, change, bad_rows=bad_rows_of(TABLE, "copy")))
