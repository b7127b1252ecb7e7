"""Delta tables as tables: columns, tables of other programs, reading in key order, and names."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import headrace
from headrace.cli.main import main
from headrace.errors import NotFoundError, OptionError, SchemaError, StoreError, UnsupportedError
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import TableSchema
from headrace.ports import Store
from headrace_lake import data_files, scanning
from tests.lake.lakes import append, define_as_spark, foreign, opened, rows_of

DAY = datetime.date(2026, 1, 31)
NOON = datetime.datetime(2026, 1, 31, 12, 0, 0, 123456)
ROW: dict[str, Any] = {
    "flag": True,
    "tiny": -128,
    "small": -(2**15),
    "number": -(2**31),
    "large": -(2**63),
    "real": -0.0,
    "double": float("inf"),
    "price": decimal.Decimal("-0.01"),
    "exact": decimal.Decimal("9" * 38),
    "text": "a\0b \U0001f600" * 20,
    "data": b"\0\xff",
    "day": DAY,
    "at": NOON.replace(tzinfo=datetime.UTC),
    "local": NOON,
    "tags": ["a", None, ""],
    "counts": [("x", 1), ("y", None)],
    "place": {"x": 0.5, "names": ["p", None]},
    "deep": [{"n": 1, "m": [("k", [DAY, None])]}, None],
    "a b.c;{`": 1,
}
COLUMNS = {
    "flag": "boolean",
    "tiny": "byte",
    "small": "short",
    "number": "int",
    "large": "long",
    "real": "float",
    "double": "double",
    "price": "decimal(10,2)",
    "exact": "decimal(38,0)",
    "text": "string",
    "data": "binary",
    "day": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "tags": "array<string>",
    "counts": "map<string,long>",
    "place": "struct<x:double not null,names:array<string>>",
    "deep": "array<struct<n:int,m:map<string,array<date>>>>",
    "a b.c;{`": "long",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as found:
        yield found


# -- columns ------------------------------------------------------------------------------------------------------


def test_values_of_all_types_are_unchanged(store: Store, tmp_path: Path) -> None:
    table = store.create_table("all", {"id": "long", **COLUMNS, "must": "long not null"}, "id")
    nulls = dict.fromkeys(COLUMNS)
    rows = [{"id": 1, **ROW, "must": 1}, {"id": 2, **nulls, "must": 2}]
    table.put(rows)
    # The second write rewrites the file of the first.
    table.put({"id": 2, **nulls, "must": 3})
    for keep_nulls in (True, False):
        table.update({"id": 1, **ROW}, keep_nulls=keep_nulls)
    table.update({"id": 1, **nulls, "flag": True}, keep_nulls=False)
    assert table.get_many([{"id": 3}, {"id": 1}]).to_pylist() == [{**dict.fromkeys(table.schema.names)}, rows[0]]
    found = table.scan().read_all()
    assert found.to_pylist() == [rows[0], {**rows[1], "must": 3}]
    assert found.schema == table.schema.arrow
    assert str(found.to_pylist()[0]["real"]) == "-0.0"
    theirs = DeltaTable(str(tmp_path / "all")).to_pyarrow_table().sort_by("id")
    assert theirs.to_pylist() == found.to_pylist()
    assert sorted(DeltaTable(str(tmp_path / "all")).protocol().writer_features or ()) == [
        *("appendOnly", "invariants", "timestampNtz"),
    ]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"wait": "interval day to second"}, "store the interval as a long"),
        ({"waits": "array<struct<w:interval day to second>>"}, "store the interval as a long"),
        ({"a": "long", "A": "long"}, "upper and lower case"),
        ({"s": "struct<a:long,A:long>"}, "upper and lower case"),
        ({"a\0b": "long"}, "cannot have this name"),
    ],
)
def test_columns_that_a_delta_table_cannot_have(store: Store, columns: dict[str, str], reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        store.create_table("wrong", {"id": "long", **columns}, "id")
    with pytest.raises(SchemaError, match=reason):
        store.table("t").add_columns(columns)
    assert store.tables() == ["t"]


def test_statistics_contain_the_values(store: Store, tmp_path: Path) -> None:
    columns = {"id": "long", "at": "timestamp", "local": "timestamp_ntz", "text": "string", "day": "date"}
    table = store.create_table("s", columns, "id")
    late = datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)
    rows = [
        {"id": 5, "at": NOON, "local": NOON, "text": "b" * 40, "day": DAY},
        {"id": 9, "at": NOON, "local": late, "text": "\U0010ffff" * 40, "day": DAY},
    ]
    table.put(rows)
    (found,) = pa.table(foreign(tmp_path, "s").get_add_actions()).to_pylist()
    assert found["num_records"] == 2
    assert (found["min"]["id"], found["max"]["id"]) == (5, 9)
    assert found["min"]["at"] < NOON.replace(tzinfo=datetime.UTC) < found["max"]["at"]
    # A time whose milliseconds are rounded up is in no year of four digits.
    assert found["max"]["local"] is None
    assert found["min"]["text"] == "b" * 32
    assert found["max"]["text"] > "\U0010ffff" * 40


# -- tables of other programs -------------------------------------------------------------------------------------


def keyed(path: Path, name: str, key: str = '["id"]') -> None:
    """Set the property with the key of a table."""
    foreign(path, name).alter.set_table_properties({"headrace.primaryKey": key}, raise_if_not_exists=False)


def refused(path: Path) -> dict[str, Any]:
    """Create tables that headrace cannot write; return their names, and the reason of each."""
    rows = pa.table({"id": [1, 2], "part": ["a", "b"]})

    def create(name: str, configuration: dict[str, str]) -> None:
        write_deltalake(str(path / name), rows, configuration=configuration)
        keyed(path, name)

    create("mapping", {"delta.columnMapping.mode": "name"})
    create("append_only", {"delta.appendOnly": "true"})
    create("forgetful", {"delta.setTransactionRetentionDuration": "interval 1 days"})
    create("constrained", {})
    foreign(path, "constrained").alter.add_constraint({"positive": "id > 0"})
    return {
        "mapping": r"feature columnMapping.*without property delta\.columnMapping\.mode",
        "append_only": "appendOnly",
        "forgetful": "setTransactionRetentionDuration",
        "constrained": r"delta\.constraints\.positive",
    }


def test_no_text_is_beyond_the_bounds_of_its_file(store: Store) -> None:
    table = store.create_table("texts", {"name": "string", "n": "long"}, "name")
    name = "a" * 32 + "\U0010ffff" * 2
    for number in range(2):
        table.put([{"name": name, "n": number}])
    assert list(table) == [{"name": name, "n": 1}]


def test_tables_that_need_what_headrace_lacks_are_refused_by_name(store: Store, tmp_path: Path) -> None:
    for name, reason in refused(tmp_path).items():
        before = foreign(tmp_path, name).version()
        with pytest.raises(UnsupportedError, match=reason):
            store.table(name).put([{"id": 1, "part": "new"}])
        assert foreign(tmp_path, name).version() == before


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [
        ({"minReaderVersion": 9, "minWriterVersion": 9}, "reader version 9"),
        (
            {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["later"], "writerFeatures": ["later"]},
            "'later'",
        ),
    ],
)
def test_what_a_reader_must_know_is_named(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], protocol: dict[str, Any], reason: str
) -> None:
    store.create_table("known", {"id": "long"}, "id")
    table = store.table("t")
    define_as_spark(tmp_path, {}, protocol=protocol)
    for known in (table, store.table("t")):
        with pytest.raises(UnsupportedError, match=f"does not support what Delta table 't' needs.*{reason}"):
            known.put([{"id": 1, "name": "new"}])
    assert main(["lake", "compact", "-s", store.url]) == 0
    assert reason in capsys.readouterr().err


def test_boolean_properties_are_read_in_upper_and_lower_case(store: Store, tmp_path: Path) -> None:
    table = store.table("t")
    table.put([{"id": number, "name": "old"} for number in range(10)])
    define_as_spark(tmp_path, {"delta.enableChangeDataFeed": "True", "headrace.preImages": "False"})
    table.delete({"id": 1})
    assert len(list((tmp_path / "t" / "_change_data").iterdir())) == 1
    assert not table.describe().options.pre_images
    define_as_spark(tmp_path, {"delta.appendOnly": "TRUE"})
    with pytest.raises(UnsupportedError, match="appendOnly"):
        table.delete({"id": 2})
    assert store.queue("t").id == table.identity()


def test_a_table_without_a_key_is_read(store: Store, tmp_path: Path) -> None:
    rows = pa.table({"id": [2, 1, 2], "name": ["b", "a", "c"]})
    write_deltalake(str(tmp_path / "events"), rows)
    table = store.table("events")
    assert table.scan().read_all().to_pylist() == rows.to_pylist()
    assert table.scan(where={"id": 2}, columns=["name"]).read_all().to_pylist() == [{"name": "b"}, {"name": "c"}]
    assert table.splits(4) == [KeyRange()]
    for write in (table.put, table.delete):
        with pytest.raises(SchemaError, match=r"headrace\.primaryKey"):
            write([{"id": 1, "name": "x"}])


def test_a_table_of_another_program_gets_a_key(store: Store, tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([5, 3, 4], pa.int64()), "name": pa.array(["e", "c", "d"], pa.string_view())})
    write_deltalake(str(tmp_path / "u"), rows)
    append(tmp_path, [{"id": 2, "name": "b"}, {"id": 6, "name": "f"}], "u")
    foreign(tmp_path, "u").alter.set_table_properties({"headrace.primaryKey": '["id"]'}, raise_if_not_exists=False)
    table = store.table("u")
    assert [row["id"] for row in table] == [2, 3, 4, 5, 6]
    table.put([{"id": 4, "name": "new"}, {"id": 1, "name": "a"}])
    assert [row["name"] for row in table] == ["a", "b", "c", "new", "e", "f"]
    assert rows_of(tmp_path, "u") == list(table)


def test_a_table_gets_another_key(store: Store, tmp_path: Path) -> None:
    rows = [{"id": number, "name": str(9 - number)} for number in range(10)]
    store.create_table("u", {"id": "long", "name": "string"}, "id").put(rows)
    foreign(tmp_path, "u").alter.set_table_properties({"headrace.primaryKey": '["name"]'}, raise_if_not_exists=False)
    table = store.table("u")
    # The file is in the order of the former key.
    assert [row["id"] for row in table] == [*range(9, -1, -1)]
    assert table.scan(keys=KeyRange(("3",), ("6",))).read_all().column("id").to_pylist() == [6, 5, 4]
    table.put([{"id": 10, "name": "4"}])
    assert [row["id"] for row in table] == [9, 8, 7, 6, 10, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("changed", [[5], [1, 5, 9, 13, 17]])
def test_some_row_groups_of_a_file_have_the_keys(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: list[int]
) -> None:
    monkeypatch.setattr(data_files, "ROW_GROUP_ROWS", 4)
    columns = {"text": "string", "id": "long", "part": "long", "at": "timestamp"}
    table = store.create_table("u", columns, ["id", "part"], partition_by="part")
    rows = [{"text": str(number), "id": number, "part": 7, "at": NOON} for number in range(20)]
    table.put(rows)
    table.add_columns({"later": "string"})
    for number in changed:
        rows[number] = {"text": "new", "id": number, "part": 7, "at": None}
    table.put([rows[number] | {"later": "x"} for number in changed])
    table.delete([{"id": 2, "part": 7}])
    at = NOON.replace(tzinfo=datetime.UTC)
    expected = [
        row | {"at": row["at"] and at, "later": "x" if row["id"] in changed else None} for row in rows if row["id"] != 2
    ]
    assert list(table) == rows_of(tmp_path, "u") == expected


def test_numbers_that_differ_are_written_as_differences(store: Store, tmp_path: Path) -> None:
    columns = {"id": "long", "few": "int", "day": "date", "at": "timestamp", "n": "struct<x: long>", "a.b": "long"}
    table = store.create_table("u", columns, "id")
    rows = [
        {
            "id": number * (-1) ** number * 2**52,
            "few": number % 9,
            "day": None if number % 8 == 7 else DAY + datetime.timedelta(number),
            "at": NOON.replace(tzinfo=datetime.UTC) - datetime.timedelta(number),
            "n": {"x": number},
            "a.b": number,
        }
        for number in range(1000)
    ]
    table.put(rows)
    assert rows_of(tmp_path, "u") == sorted(rows, key=lambda row: row["id"])
    (file,) = (tmp_path / "u").glob("*.parquet")
    group = pq.ParquetFile(file).metadata.row_group(0)
    found = {group.column(n).path_in_schema: group.column(n).encodings for n in range(group.num_columns)}
    assert [name for name in found if "DELTA_BINARY_PACKED" in found[name]] == ["id", "day", "at"]
    assert [name for name in found if "RLE_DICTIONARY" in found[name]] == ["few", "n.x", "a.b"]


def test_a_file_with_a_null_key_of_another_program_is_not_rewritten(store: Store, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "u"), pa.table({"id": [3, None, 1], "name": ["c", "b", "a"]}))
    foreign(tmp_path, "u").alter.set_table_properties({"headrace.primaryKey": '["id"]'}, raise_if_not_exists=False)
    before = rows_of(tmp_path, "u")
    with pytest.raises(SchemaError, match="key that is null"):
        store.table("u").put({"id": 1, "name": "new"})
    with pytest.raises(SchemaError, match="key that is null"):
        store.table("u").delete({"id": 3})
    assert rows_of(tmp_path, "u") == before
    foreign(tmp_path, "u").delete("id IS NULL")
    store.table("u").put({"id": 1, "name": "new"})
    assert [row["name"] for row in store.table("u")] == ["new", "c"]


def test_an_invalid_key_property_is_an_error(store: Store, tmp_path: Path) -> None:
    keyed(tmp_path, "t", "id")
    with pytest.raises(StoreError, match=r"headrace\.primaryKey"):
        _ = store.table("t").schema


# -- reading ------------------------------------------------------------------------------------------------------


def test_files_that_overlap_are_read_in_key_order(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(data_files, "ROW_GROUP_ROWS", 10)
    table = store.create_table("two", {"a": "string", "b": "long", "v": "long"}, ["a", "b"])
    rows: list[dict[str, Any]] = [{"a": f"k{number % 7}", "b": number, "v": number} for number in range(200)]
    for start in range(8):
        table.put(rows[start::8])
    ordered = sorted(rows, key=lambda row: (row["a"], row["b"]))
    assert len(list((tmp_path / "two").glob("*.parquet"))) == 8
    assert table.scan().read_all().to_pylist() == ordered
    chosen = KeyRange(("k2", 50), ("k5",))
    expected = [row for row in ordered if (row["a"], row["b"]) >= ("k2", 50) and row["a"] < "k5"]
    assert table.scan(keys=chosen).read_all().to_pylist() == expected
    assert table.scan(["v"], limit=5).read_all().column("v").to_pylist() == [row["v"] for row in ordered[:5]]
    parts = table.splits(4)
    assert len(parts) > 1
    assert [row for part in parts for row in table.scan(keys=part).read_all().to_pylist()] == ordered


def test_a_scan_opens_no_file_that_it_does_not_need(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.table("t")
    for first in (0, 100, 200):
        table.put([{"id": first + number, "name": "x"} for number in range(10)])
    opens: list[Path] = []
    open_file = data_files.opened

    def note(path: Path) -> pq.ParquetFile:
        opens.append(path)
        return open_file(path)

    monkeypatch.setattr(data_files, "opened", note)
    assert table.get({"id": 105}) == {"id": 105, "name": "x"}
    assert table.scan(keys=KeyRange((200,), (205,))).read_all().num_rows == 5
    assert table.scan(limit=3).read_all().num_rows == 3
    assert len(opens) == 3


def test_a_merge_needs_no_bounds() -> None:
    schema = TableSchema.of({"id": "long"}, "id")
    parts = [
        pa.RecordBatch.from_pylist([{"id": value} for value in values], schema.arrow)
        for values in ([1, 4], [2, 9], [3])
    ]
    sources = [(None, lambda part=part: iter([part])) for part in parts]
    found = [row["id"] for batch in scanning._merged(sources, ["id"]) for row in batch.to_pylist()]
    assert found == [1, 2, 3, 4, 9]


# -- stores and names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_t", ".t", "a//b", "../t", "a/_delta_log", "a%20b", "a#b", "", "x" * 201])
def test_names_that_readers_hide_or_misread_are_refused(store: Store, name: str) -> None:
    with pytest.raises(OptionError, match="cannot have this name"):
        store.create_table(name, {"id": "long"}, "id")


def test_tables_in_directories(store: Store) -> None:
    for name in ("shop/orders", "shop/old orders/2025", "ümlaut"):
        store.create_table(name, {"id": "long"}, "id").put({"id": 1})
    assert store.tables() == ["shop/old orders/2025", "shop/orders", "t", "ümlaut"]
    store.drop_table("shop/orders")
    with pytest.raises(NotFoundError):
        store.table("shop/orders")
    assert store.table("shop/old orders/2025").get({"id": 1}) == {"id": 1}


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("delta://host/path", "names the directory"),
        ("delta:///", "names the directory"),
        ("delta:///a#b", "names the directory"),
        ("delta+s3://bucket/path", "option home"),
        ("delta+s3://user:secret@host/path", "the bucket and a prefix"),
        ("s3://bucket/path", "headrace writes Delta tables"),
    ],
)
def test_addresses_that_are_refused(url: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        headrace.open(url, create=True)


def test_a_missing_directory_is_created_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        headrace.open(f"delta://{tmp_path}/none")
    for home in ("", "relative/home"):
        with pytest.raises(OptionError, match="home"):
            headrace.open(f"delta://{tmp_path}", home=home)
    with pytest.raises(OptionError, match="cannot contain %"):
        headrace.open(f"delta://{tmp_path}/a%2520b", create=True)
    store = headrace.open(f"delta://{tmp_path}/a%20b%23", create=True)
    store.create_table("t", {"id": "long"}, "id").put({"id": 1})
    directory = tmp_path / "a b#"
    assert (directory / "t" / "_delta_log").is_dir()
    assert list(headrace.open(store.url).table("t")) == [{"id": 1}]
    # Reading and writing tables in Python need no home.
    assert not list((directory / "_headrace").glob("home"))
    (directory / "u").mkdir()
    (directory / "u" / "file").touch()
    with pytest.raises(StoreError, match="a directory of its own"):
        store.create_table("u", {"id": "long"}, "id")
