"""Deletion vectors: their form, tables of other programs, changes of rows, and maintenance."""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable as LakeTable
from deltalake import write_deltalake

from headrace.cli.main import main
from headrace.errors import DataLossError, StoreDamagedError, UnsupportedError
from headrace.model.findings import Status
from headrace.model.tables.changes import ChangeOp
from headrace.ports import Store
from headrace.testing.reading import drain, replay, state_of
from headrace_lake.delta import maintenance, vectors
from headrace_lake.delta.actions import Actions, Shortened
from headrace_lake.delta.actions import entry as actions_of
from headrace_lake.delta.log import DataFile
from headrace_lake.delta.table import DeltaTable
from headrace_lake.delta.vectors import Vector
from headrace_lake.maintenance import Compaction
from tests.lake.lakes import foreign, opened, orphans, rows_of

# The vector of the tests of delta-kernel-rs.
KERNEL = {
    "storageType": "i",
    "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
    "sizeInBytes": 44,
    "cardinality": 6,
}
KERNEL_ROWS = [3, 4, 7, 11, 18, 29]
DAY = 86400.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path, deletion_vectors=True) as found:
        yield found


@pytest.fixture
def table(store: Store) -> DeltaTable:
    """A table of 100 rows in a file."""
    found = store.table("t")
    assert isinstance(found, DeltaTable)
    found.put([{"id": number, "name": "old"} for number in range(100)])
    return found


def entry(path: Path, table: str, version: int) -> list[dict[str, Any]]:
    text = (path / table / "_delta_log" / f"{version:020}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def ids(path: Path) -> list[int]:
    return [row["id"] for row in rows_of(path)]


def delete_as_spark(path: Path, name: str, vector: Mapping[str, Any], version: int) -> None:
    """Delete rows of the only file of a table by a vector, as another program."""
    (add,) = [action["add"] for action in entry(path, name, version - 1) if "add" in action]
    remove = {key: add[key] for key in ("path", "partitionValues", "size")}
    old = {"deletionVector": add["deletionVector"]} if add.get("deletionVector") else {}
    actions = [
        {"commitInfo": {"timestamp": int(time.time() * 1000), "operation": "DELETE"}},
        {"remove": remove | old | {"deletionTimestamp": 1, "dataChange": True, "extendedFileMetadata": True}},
        {"add": {key: value for key, value in add.items() if value is not None} | {"deletionVector": vector}},
    ]
    log = path / name / "_delta_log" / f"{version:020}.json"
    log.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


# -- the form -----------------------------------------------------------------------------------------------------


def test_the_vector_of_the_kernel_is_read(tmp_path: Path) -> None:
    vector = Vector.of(KERNEL)
    assert vector is not None
    assert vectors.load(tmp_path, vector).tolist() == KERNEL_ROWS
    assert vector.content == KERNEL


def test_the_file_of_a_vector_has_the_name_of_the_protocol() -> None:
    vector = Vector("u", "ab^-aqEH.-t@S}K{vb[*k^", 4, 40, 6)
    assert vector.file == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    with pytest.raises(UnsupportedError, match="outside"):
        assert Vector("p", "s3://mytable/deletion_vector.bin", 4, 40, 6).file


def test_vectors_are_read_as_they_were_written(tmp_path: Path) -> None:
    # Arrays, a bitmap, and numbers beyond 32 bits.
    rows = [[0], [7, 2**32 + 1], list(range(0, 200_000, 3))]
    written = vectors.write(tmp_path, [np.array(each, np.uint64) for each in rows])
    assert [vectors.load(tmp_path, each).tolist() for each in written] == rows
    assert len({each.file for each in written}) == 1
    path = next((tmp_path / vectors.DIRECTORY).glob(vectors.FILES))
    assert vectors.location_of(path.name) == written[0].location
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    assert vectors.load(tmp_path, written[0]).tolist() == [0]
    with pytest.raises(StoreDamagedError):
        vectors.load(tmp_path, written[2])


@pytest.mark.parametrize(
    ("statistics", "expected"),
    [
        # Python's number would be 1.2345678901234568e+16.
        (
            '{"numRecords":7,"maxValues":{"d":12345678901234567.89}}',
            '{"tightBounds":false,"numRecords":7,"maxValues":{"d":12345678901234567.89}}',
        ),
        ('{"numRecords":7,"tightBounds" : true}', '{"numRecords":7,"tightBounds" : false}'),
        ('{"numRecords":7,"tightBounds":false}', '{"numRecords":7,"tightBounds":false}'),
        (None, '{"numRecords":9,"tightBounds":false}'),
    ],
)
def test_the_statistics_of_a_file_with_a_vector(statistics: str | None, expected: str) -> None:
    file = DataFile("f.parquet", 1, 9)
    actions = Actions(shortened=[Shortened(file, Vector("i", "", None, 0, 1))])
    stored = {"f.parquet": {"path": "f.parquet", "stats": statistics, "tags": None}}
    options: dict[str, Any] = {"now": 0, "read_version": 0, "data_change": True, "markers": {}, "information": {}}
    (add,) = [action["add"] for action in actions_of(actions, **options, stored=stored) if "add" in action]
    assert add["stats"] == expected
    assert "tags" not in add


# -- tables of other programs -------------------------------------------------------------------------------------


def test_vectors_of_another_program_are_read_followed_and_changed(store: Store, tmp_path: Path) -> None:
    key = {"headrace.primaryKey": '["id"]', "delta.enableDeletionVectors": "true"}
    fields = store.table("t").schema.arrow
    rows = pa.Table.from_pylist([{"id": number, "name": "old"} for number in range(40)], fields)
    LakeTable.create(str(tmp_path / "theirs"), fields, configuration=key, raise_if_key_not_exists=False)
    write_deltalake(str(tmp_path / "theirs"), rows, mode="append")
    tunnel = store.create_tunnel("theirs", "t", "Stream")
    delete_as_spark(tmp_path, "theirs", KERNEL, 2)
    table = store.table("theirs")
    left = [number for number in range(40) if number not in KERNEL_ROWS]
    assert [row["id"] for row in table] == left
    assert table.describe().rows == len(left)
    assert table.get({"id": 3}) is None
    assert table.get_many([{"id": 4}, {"id": 5}]).column("name").to_pylist() == [None, "old"]
    assert [(each.op, each.row["id"]) for each in drain(tunnel)] == [
        (ChangeOp.DELETE_WITH_ROW, number) for number in KERNEL_ROWS
    ]
    base = store.create_tunnel("theirs", "base", "BaseAndStream")
    table.put([{"id": 4, "name": "new"}, {"id": 5, "name": "new"}])
    assert "deletionVector" in json.dumps(entry(tmp_path, "theirs", 3))
    table.delete([{"id": 4}, {"id": 3}, {"id": 6}])
    assert replay(drain(base), whole_rows=True) == state_of(table)
    assert [row["id"] for row in rows_of(tmp_path, "theirs")] == [number for number in left if number != 6]
    assert maintenance.check(table)[0].status is Status.OK  # type: ignore[arg-type]
    assert [table.set_options(pre_images=each).pre_images for each in (False, False, True)] == [False, False, True]
    assert foreign(tmp_path, "theirs").version() == 6


def test_without_the_property_files_with_vectors_are_rewritten(store: Store, table: DeltaTable, tmp_path: Path) -> None:
    table.delete([{"id": 1}])
    table.set_options(deletion_vectors=False)
    table.delete([{"id": 2}])
    assert all(file.vector is None for file in table.snapshot().files)
    assert ids(tmp_path) == [0, *range(3, 100)]


# -- changes ------------------------------------------------------------------------------------------------------


def test_a_change_writes_a_vector_and_its_rows(table: DeltaTable, tmp_path: Path) -> None:
    table.put([{"id": 5, "name": "new"}, {"id": 200, "name": "new"}])
    table.update({"id": 7, "name": "newer"})
    table.delete([{"id": 5}, {"id": 8}])
    assert {(file.stored_rows, file.deleted_rows) for file in table.snapshot().files} == {(100, 3), (1, 0), (1, 0)}
    expected = [{"id": n, "name": "newer" if n == 7 else "old"} for n in range(100) if n not in (5, 8)]
    assert rows_of(tmp_path) == list(table) == [*expected, {"id": 200, "name": "new"}]
    assert orphans(tmp_path) == set()
    actions = entry(tmp_path, "t", 4)
    (add,) = [action["add"] for action in actions if "add" in action and "deletionVector" in action["add"]]
    statistics = json.loads(add["stats"])
    assert (statistics["numRecords"], statistics["tightBounds"]) == (100, False)
    # The data file of the base rows is still the only one of them.
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 4


def test_a_file_with_many_deleted_rows_is_rewritten(table: DeltaTable, tmp_path: Path) -> None:
    table.delete([{"id": number} for number in range(25)])
    assert [file.deleted_rows for file in table.snapshot().files] == [25]
    table.delete({"id": 25})
    assert [(file.stored_rows, file.vector) for file in table.snapshot().files] == [(74, None)]
    table.delete([{"id": number} for number in range(26, 99)])
    table.delete({"id": 99})
    assert table.snapshot().files == ()
    assert ids(tmp_path) == []


def test_the_command_line_gives_vectors_to_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(tmp_path) as store:
        store.table("t").put({"id": 1, "name": "a"})
    assert main(["table", "set", "t", "deletion_vectors=true", "-s", f"delta://{tmp_path}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deletion_vectors"] is True
    assert "deletionVectors" in (foreign(tmp_path).protocol().reader_features or ())


def test_an_existing_table_gets_vectors(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        table = store.table("t")
        table.put([{"id": number, "name": "old"} for number in range(100)])
        assert table.set_options(deletion_vectors=True) == table.set_options(deletion_vectors=True)
        assert foreign(tmp_path).version() == 2
        table.delete({"id": 1})
    protocol = foreign(tmp_path).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert (protocol.reader_features, sorted(protocol.writer_features or ())) == (
        ["deletionVectors"],
        ["appendOnly", "deletionVectors", "invariants"],
    )
    assert ids(tmp_path) == [0, *range(2, 100)]


def test_changes_between_checkpoints_and_after_them(
    table: DeltaTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_lake.delta.snapshot._CHECKPOINT_INTERVAL_OF_VECTORS", 4)
    for number in range(10):
        table.put({"id": number, "name": f"n{number}"})
    assert len(list((tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet"))) == 2
    for path in sorted((tmp_path / "t" / "_delta_log").glob("*.json"))[:8]:
        path.unlink()
    assert ids(tmp_path) == [row["id"] for row in table] == list(range(100))
    table.delete({"id": 50})
    assert sum(file.deleted_rows for file in table.snapshot().files) == 11
    assert len(ids(tmp_path)) == 99


@pytest.mark.parametrize("missing", [False, True])
def test_a_checkpoint_of_several_parts(table: DeltaTable, tmp_path: Path, missing: bool) -> None:
    """As Spark writes it; without one of its parts, the entries before it are read."""
    table.delete([{"id": 1}, {"id": 30}])
    foreign(tmp_path).create_checkpoint()
    version, log = foreign(tmp_path).version(), tmp_path / "t" / "_delta_log"
    actions = pq.read_table(log / f"{version:020}.checkpoint.parquet")
    middle = actions.num_rows // 2
    for number, part in enumerate((actions.slice(0, middle), actions.slice(middle)), 1):
        pq.write_table(part, log / f"{version:020}.checkpoint.{number:010}.{2:010}.parquet")
    (log / f"{version:020}.checkpoint.parquet").unlink()
    (log / "_last_checkpoint").write_text(json.dumps({"version": version, "size": actions.num_rows, "parts": 2}))
    if missing:
        (log / f"{version:020}.checkpoint.{1:010}.{2:010}.parquet").unlink()
        with pytest.raises(StoreDamagedError, match="checkpoint"):
            list(opened(tmp_path).table("t"))
        (log / "_last_checkpoint").unlink()
    else:
        for entry_of_version in log.glob("*.json"):
            entry_of_version.unlink()
    again = opened(tmp_path).table("t")
    again.delete([{"id": 31}])
    assert ids(tmp_path) == [row["id"] for row in again] == [each for each in range(100) if each not in (1, 30, 31)]


@pytest.mark.parametrize("texts", [True, False])
def test_a_checkpoint_of_spark_repeats_statistics_and_partitions_in_their_types(
    store: Store, tmp_path: Path, texts: bool
) -> None:
    columns = {"id": "long", "at": "timestamp", "day": "date"}
    visits = store.create_table("visits", columns, "id", partition_by="day", deletion_vectors=True)
    row = {"at": datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC), "day": datetime.date(2026, 1, 31)}
    visits.put([{"id": number, **row} for number in range(10)])
    foreign(tmp_path, "visits").create_checkpoint()
    log = tmp_path / "visits" / "_delta_log"
    checkpoint = log / f"{1:020}.checkpoint.parquet"
    actions = pq.read_table(checkpoint)
    bounds = {"id": 0, "at": row["at"]}
    parsed = {"stats_parsed": {"numRecords": 10, "minValues": bounds}, "partitionValues_parsed": {"day": row["day"]}}
    content = actions.to_pylist()
    for each in content:
        each["add"] = each["add"] and each["add"] | parsed | ({} if texts else {"stats": None})
    added = pa.struct([*actions.schema.field("add").type, *pa.Table.from_pylist([parsed]).schema])
    schema = pa.schema([pa.field("add", added) if field.name == "add" else field for field in actions.schema])
    pq.write_table(pa.Table.from_pylist(content, schema), checkpoint)
    hint = json.loads((log / "_last_checkpoint").read_text())
    (log / "_last_checkpoint").write_text(json.dumps({name: hint[name] for name in ("version", "size")}))
    visits.delete({"id": 5})
    (add,) = [action["add"] for action in entry(tmp_path, "visits", 2) if "add" in action]
    assert add["deletionVector"]["cardinality"] == 1
    assert not [name for name in add if name.endswith("_parsed")]
    assert [each["id"] for each in rows_of(tmp_path, "visits")] == [0, 1, 2, 3, 4, 6, 7, 8, 9]


# -- maintenance --------------------------------------------------------------------------------------------------


def test_compaction_applies_vectors(table: DeltaTable, tmp_path: Path) -> None:
    table.delete([{"id": 1}])
    assert maintenance.compact(table) == Compaction(3, 1, 1)
    assert [file.vector for file in table.snapshot().files] == [None]
    assert ids(tmp_path) == [0, *range(2, 100)]
    assert maintenance.compact(table).version is None
    kinds = {kind: action[kind] for action in entry(tmp_path, "t", 3) for kind in action}
    assert not kinds["add"]["dataChange"]
    assert kinds["remove"]["deletionVector"]["cardinality"] == 1


def test_vacuum_deletes_vectors_that_were_replaced(table: DeltaTable, tmp_path: Path) -> None:
    for number in range(3):
        table.delete({"id": number})
    directory = tmp_path / "t"
    dead = directory / "hr" / "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    dead.write_bytes(b"x")
    for path in (dead, *(directory / "_delta_log").iterdir()):
        os.utime(path, (time.time() - 9 * DAY,) * 2)
    assert maintenance.orphans(table) == [f"hr/{dead.name}"]
    (finding,) = maintenance.check(table)
    assert "3 rows are in deletion vectors; 1 files of writers that have died" in finding.found
    # Two vectors were replaced just now, as far as the clock of the files tells.
    assert maintenance.vacuum(table) == 1
    for path in (directory / "hr").iterdir():
        os.utime(path, (time.time() - 9 * DAY,) * 2)
    assert maintenance.vacuum(table) == 2
    assert len(list((directory / "hr").iterdir())) == 1
    assert ids(tmp_path) == list(range(3, 100))


def test_vacuum_keeps_vectors_that_only_a_checkpoint_names(table: DeltaTable, tmp_path: Path) -> None:
    table.delete({"id": 1})
    log = tmp_path / "t" / "_delta_log"
    foreign(tmp_path).create_checkpoint()
    for path in (*(tmp_path / "t" / "hr").iterdir(), *log.iterdir()):
        os.utime(path, (time.time() - 40 * DAY,) * 2)
    foreign(tmp_path).cleanup_metadata()
    assert [path.name for path in log.glob("*.json")] == [f"{2:020}.json"]
    (log / f"{2:020}.json").unlink()
    table.put({"id": 200, "name": "new"})
    age = time.time() - 20 * DAY
    os.utime(log / f"{3:020}.json", (age, age))
    assert maintenance.vacuum(table) == 0
    assert ids(tmp_path) == [0, *range(2, 100), 200]


def test_a_vector_that_was_deleted_is_an_error(store: Store, table: DeltaTable, tmp_path: Path) -> None:
    tunnel = store.create_tunnel("t", "t", "Stream")
    table.delete({"id": 1})
    for path in (tmp_path / "t" / "hr").iterdir():
        path.unlink()
    with pytest.raises(DataLossError):
        drain(tunnel)
    with pytest.raises(Exception, match="deletion vectors does not exist"):
        list(table)
    (finding,) = maintenance.check(table)
    assert (finding.status, "deletion vectors does not exist" in finding.found) == (Status.FAIL, True)


def test_a_vector_outside_of_the_directory_is_refused() -> None:
    content = {"storageType": "p", "pathOrInlineDv": "s3://b/v.bin", "offset": 1, "sizeInBytes": 34, "cardinality": 1}
    vector = Vector.of(content)
    assert vector is not None
    with pytest.raises(UnsupportedError, match=r"s3://b/v\.bin; .*REORG"):
        assert vector.file
