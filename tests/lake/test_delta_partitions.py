"""Partitioned Delta tables: of headrace and of other programs, as targets and sources."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.cli.main import main
from headrace.errors import SchemaError, StoreError, UnsupportedError
from headrace.model.tables.changes import ChangeOp
from headrace.ports import Store
from headrace.testing.reading import drain, replay, state_of
from headrace_lake.delta import maintenance
from headrace_lake.delta.table import DeltaTable as Table
from tests.lake.lakes import foreign, opened

COLUMNS = {"id": "long", "day": "date", "text": "string", "n": "int"}
DAYS = [datetime.date(2026, 1, day) for day in (1, 2)]
ODD = "a/b c%ü'"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as found:
        yield found


def row(number: int, day: datetime.date | None = DAYS[0], text: str | None = ODD) -> dict[str, Any]:
    return {"id": number, "day": day, "text": text, "n": number}


def rows_of(directory: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = foreign(directory, "p").to_pyarrow_table().sort_by("id").to_pylist()
    return found


def test_a_tunnel_has_the_rows_that_move_between_partitions(store: Store, tmp_path: Path) -> None:
    table = store.create_table("p", COLUMNS, ["day", "id"], partition_by=["day", "text"])
    assert isinstance(table, Table)
    tunnel = store.create_tunnel("p", "t", "Stream")
    table.put([row(1), row(2, DAYS[1]), row(3, DAYS[1], None)])
    assert len(table.snapshot().files) == 3
    table.put([row(1, text="x"), row(4)])
    table.update({"id": 2, "day": DAYS[1], "n": 20})
    table.delete({"id": 3, "day": DAYS[1]})
    expected = [row(1, text="x"), row(2, DAYS[1]) | {"n": 20}, row(4)]
    assert rows_of(tmp_path) == expected
    assert sorted(table, key=lambda each: each["id"]) == expected
    assert replay(drain(tunnel), whole_rows=True) == state_of(table)
    table.put(row(5))
    assert len(drain(tunnel)) == 1
    assert maintenance.compact(table).version is not None
    assert not drain(tunnel)
    assert rows_of(tmp_path) == [*expected, row(5)]


@pytest.mark.parametrize("feed", ["true", "false"])
def test_a_partitioned_table_of_another_program(store: Store, tmp_path: Path, feed: str) -> None:
    path = str(tmp_path / "p")
    fields = pa.schema({"id": pa.int64(), "day": pa.date32(), "text": pa.string(), "n": pa.int32()})
    properties = {"headrace.primaryKey": '["id"]', "delta.enableChangeDataFeed": feed}
    DeltaTable.create(
        path, fields, partition_by=["text", "day"], configuration=properties, raise_if_key_not_exists=False
    )
    tunnel = store.create_tunnel("p", "t")
    write_deltalake(path, pa.Table.from_pylist([row(1), row(2, text=None), row(3, None)], fields), mode="append")
    foreign(tmp_path, "p").update(updates={"n": "10"}, predicate="id = 1")
    changes = drain(tunnel)
    assert [(each.op, each.row) for each in changes[3:]] == [
        (ChangeOp.PREIMAGE, row(1)),
        (ChangeOp.REPLACE, row(1) | {"n": 10}),
    ]
    assert replay(changes, whole_rows=True) == state_of(store.table("p"))
    if feed == "false":
        store.table("p").put([row(1), row(4)])
        assert rows_of(tmp_path) == [row(1), row(2, text=None), row(3, None), row(4)]


def test_a_scan_reads_only_files_of_its_partitions(store: Store, tmp_path: Path) -> None:
    table = store.create_table("p", COLUMNS, ["day", "id"], partition_by=["day", "text"])
    table.put([row(number, DAYS[number % 2], None if number % 3 else ODD) for number in range(12)])
    parts = table.splits(2)
    assert len(parts) == 2
    assert [each["id"] for part in parts for each in table.scan(keys=part).read_all().to_pylist()] == [
        *range(0, 12, 2),
        *range(1, 12, 2),
    ]
    for file in (tmp_path / "p").rglob("*.parquet"):
        if f"day={DAYS[0]}" not in str(file) or "HIVE" not in str(file):
            file.unlink()
    for condition in (("day", "=", DAYS[0]), ("day", "<", DAYS[1])):
        found = table.scan(where=[condition, ("text", "is null", None)]).read_all()
        assert found.column("id").to_pylist() == [2, 4, 8, 10]
    assert table.scan(where={"text": "other"}).read_all().num_rows == 0
    with pytest.raises(StoreError, match="does not exist"):
        table.scan().read_all()


def test_binary_partitions_of_another_program_are_refused(store: Store, tmp_path: Path) -> None:
    fields = pa.schema({"id": pa.int64(), "code": pa.binary()})
    rows = pa.Table.from_pylist([{"id": 1, "code": b"\xff"}], fields)
    write_deltalake(tmp_path / "p", rows, partition_by="code")
    key = {"headrace.primaryKey": '["id"]'}
    foreign(tmp_path, "p").alter.set_table_properties(key, raise_if_not_exists=False)
    for read in (list, lambda table: store.create_tunnel(table.name, "t")):
        with pytest.raises(UnsupportedError, match="partition column 'code' of type binary"):
            read(store.table("p"))


def test_a_partitioned_table_of_the_command_line(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [text for name, kind in COLUMNS.items() for text in ("-c", f"{name}={kind}")]
    assert main(["table", "create", "p", *columns, "-k", "id", "--partition-by", "text,day", "-s", store.url]) == 0
    assert foreign(tmp_path, "p").metadata().partition_columns == ["text", "day"]
    capsys.readouterr()
    assert main(["table", "describe", "p", "-s", store.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["partition_by"] == ["text", "day"]


def test_names_of_partition_columns_in_directories(store: Store, tmp_path: Path) -> None:
    """polars reads a name as it is, and delta-rs writes it so; only what a path cannot have is escaped."""
    names = ["größe x", "a%20b", "a#b?", "a/b", "a=b", "a\nb"]
    row = {"id": 1, **dict.fromkeys(names, "ü")}
    store.create_table("p", {"id": "long", **dict.fromkeys(names, "string")}, "id", partition_by=names).put(row)
    (path,) = (tmp_path / "p").rglob("hr-*.parquet")
    escaped = ["größe x", "a%20b", "a#b?", "a%2Fb", "a%3Db", "a%0Ab"]
    assert path.relative_to(tmp_path / "p").parts[:-1] == tuple(f"{name}=%C3%BC" for name in escaped)
    assert rows_of(tmp_path) == [row] == list(store.table("p"))


def test_values_that_partitions_do_not_have(store: Store, tmp_path: Path) -> None:
    fields = pa.schema({"id": pa.int64(), "day": pa.date32(), "text": pa.string(), "n": pa.int32()})
    table = store.create_table("p", COLUMNS, "id", partition_by=["text", "day"])
    for text in ("", "__HIVE_DEFAULT_PARTITION__"):
        with pytest.raises(SchemaError, match=f"for a null.*'{text}'"):
            table.put(row(1, text=text))
    columns = [pa.array([1]), pa.array([3_000_000], pa.int32()).cast(pa.date32()), pa.array(["x"]), pa.nulls(1)]
    with pytest.raises(SchemaError, match="year 10183"):
        table.put(pa.table(columns, fields.names).cast(fields))
    with pytest.raises(StoreError, match=r"directory of a partition cannot be created.*255 bytes"):
        table.put(row(1, text="月" * 30))
    assert rows_of(tmp_path) == []
    table.put(row(1, text="月" * 20))
    assert rows_of(tmp_path) == [row(1, text="月" * 20)]
