"""DuckLakes and tables that headrace creates, uses or refuses."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.cli.main import main
from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, SchemaError, UnsupportedError
from headrace.ports import Store
from headrace_lake.ducklake.values import bound_of, wider
from tests.lake.ducklakes import catalog, database, opened

_INSTANTS = ("2026-01-01 00:00:00", "2026-01-01 00:00:00.5")


@pytest.fixture
def url() -> str:
    return database()


@pytest.fixture
def store(url: str, tmp_path: Path) -> Store:
    return opened(url, tmp_path)


def test_a_database_without_a_ducklake(url: str, tmp_path: Path) -> None:
    lake = f"ducklake+{url}"
    with pytest.raises(NotFoundError, match="create=True"):
        headrace.open(lake).tables()
    with pytest.raises(OptionError, match="data"):
        headrace.open(lake, create=True)
    with pytest.raises(OptionError, match="absolute"):
        headrace.open(lake, create=True, data="files")
    with pytest.raises(OptionError, match=r"ducklake\+postgresql://"):
        headrace.open("ducklake:///files")
    headrace.open(lake, create=True, data=tmp_path, catalog="lake").create_table("a", {"id": "long"}, "id")
    assert headrace.open(lake, catalog="lake").tables() == ["a"]
    with pytest.raises(OptionError, match="elsewhere"):
        headrace.open(lake, catalog="lake", data=str(tmp_path / "other")).tables()


def test_names_of_the_lake_and_of_the_database(store: Store, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    store.create_table("sales.t", {"id": "long"}, "id")
    store.create_table("postgresql:t", {"id": "long"}, "id").put([{"id": 5}])
    assert store.tables() == ["postgresql:t", "sales.t", "t"]
    assert list(store.table("postgresql:t")) == [{"id": 5}]
    assert main(["table", "list", "-s", store.url, "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["postgresql:t", "sales.t", "t"]
    with pytest.raises(NotFoundError, match=r"valid: sales\.t, t; .*prefix postgresql:"):
        store.table("u")
    with pytest.raises(AlreadyExistsError):
        store.create_table("SALES.T", {"id": "long"}, "id")
    catalog(url, "INSERT INTO ducklake_view (view_id, schema_id, view_name) VALUES (99, 0, 'Seen')")
    with pytest.raises(AlreadyExistsError, match="view"):
        store.create_table("seen", {"id": "long"}, "id")
    for name in ("", ".t", "a.b.c", "a/b", 'a"b', "1a"):
        with pytest.raises(OptionError, match="cannot have this name"):
            store.create_table(name, {"id": "long"}, "id")
    store.drop_table("sales.t")
    store.create_table("sales.t", {"id": "string"}, "id").put([{"id": "x"}])
    assert list(store.table("sales.t")) == [{"id": "x"}]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"id": "long", "ID": "long"}, "upper and lower case"),
        ({"id": "long", "row_id": "long"}, "row_id"),
        ({"id": "long", "n" * 64: "long"}, "63 bytes"),
        ({"id": "long", **{f"c{number}": "long" for number in range(1500)}}, "at most 1500"),
        ({"id": "long", "i": "interval day to second"}, "long, in microseconds"),
    ],
)
def test_columns_that_are_refused(store: Store, columns: dict[str, str], reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        store.create_table("other", columns, "id")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE ducklake_metadata SET value = '2.0' WHERE key = 'version'", "another version"),
        ("UPDATE ducklake_metadata SET value = 'true' WHERE key = 'encrypted'", "encrypted"),
        ("UPDATE ducklake_metadata SET value = 's3://b/' WHERE key = 'data_path'", "in a directory"),
        (
            "INSERT INTO ducklake_column SELECT column_id, 0, 1, table_id, column_order, 'former', column_type"
            " FROM ducklake_column WHERE column_name = 'name'",
            "dropped, renamed or changed",
        ),
        ("UPDATE ducklake_column SET column_type = 'uint64' WHERE column_name = 'name'", "uint64"),
        ("UPDATE ducklake_column SET initial_default = '1' WHERE column_name = 'name'", "default value"),
        ("UPDATE ducklake_data_file SET mapping_id = 1", "a file that headrace does not support"),
    ],
)
def test_what_headrace_does_not_know_is_refused_by_name(
    store: Store, url: str, tmp_path: Path, statement: str, reason: str
) -> None:
    store.table("t").put([{"id": number, "name": "n"} for number in range(1100)])
    catalog(url, statement)
    with opened_again(url) as other, pytest.raises(UnsupportedError, match=reason):
        list(other.table("t"))


def opened_again(url: str) -> Store:
    return headrace.open(f"ducklake+{url}")


def test_a_snapshot_names_what_it_has_changed(store: Store, url: str) -> None:
    """Other writers find conflicts by it; one of a row in a file must stop a merge of files."""
    table = store.table("t")
    table.put([{"id": number, "name": "n"} for number in range(1100)])
    table.put([{"id": 1, "name": "from the file"}])
    table.put([{"id": 1, "name": "from the catalog"}])
    table.delete([{"id": number} for number in range(1100)])
    # There is no such row, and so no snapshot.
    table.delete([{"id": 1}])
    made = catalog(url, "SELECT changes_made FROM ducklake_snapshot_changes WHERE snapshot_id > 1 ORDER BY snapshot_id")
    assert [each for (each,) in made] == [
        "inserted_into_table:1",
        "deleted_from_table:1,inlined_insert:1,inlined_delete:1",
        "inlined_insert:1,inlined_delete:1",
        "deleted_from_table:1,inlined_delete:1",
    ]
    files = catalog(url, "SELECT next_file_id FROM ducklake_snapshot WHERE snapshot_id > 0 ORDER BY snapshot_id")
    # DuckDB keeps statistics as long as the number is the same.
    assert [number for (number,) in files] == [0, 1, 2, 3, 3]


def test_rows_and_deletes_are_inlined_up_to_a_limit(store: Store, url: str) -> None:
    table, files = store.table("t"), "SELECT count(*) FROM ducklake_data_file"
    table.put([{"id": number} for number in range(1000)])
    assert catalog(url, files) == [(0,)]
    table.put([{"id": number} for number in range(1000, 3100)])
    assert catalog(url, files) == [(1,)]
    for first, count, deletes in ((1000, 1000, 0), (2000, 1001, 1)):
        table.delete([{"id": number} for number in range(first, first + count)])
        assert catalog(url, "SELECT count(*) FROM ducklake_delete_file") == [(deletes,)]


def test_the_catalog_keeps_10000_rows_of_a_table_and_deletes_of_a_file(store: Store, url: str) -> None:
    table, parts = store.table("t"), range(0, 11_000, 1000)
    for first in parts:
        table.put([{"id": number} for number in range(first, first + 1000)])
    assert catalog(url, "SELECT count(*) FROM ducklake_data_file") == [(0,)]
    table.put([{"id": number} for number in range(11_000, 12_000)])
    assert catalog(url, "SELECT record_count FROM ducklake_data_file") == [(12_000,)]
    for first in parts:
        assert catalog(url, "SELECT count(*) FROM ducklake_delete_file") == [(0,)]
        table.delete([{"id": number} for number in range(first, first + 1000)])
    assert catalog(url, "SELECT count(*) FROM ducklake_delete_file") == [(1,)]
    assert [row["id"] for row in table] == list(range(11_000, 12_000))


def test_a_table_without_a_key_takes_appends(store: Store, url: str) -> None:
    store.table("t").put([{"id": 1, "name": "a"}])
    catalog(url, "DELETE FROM ducklake_tag")
    table = opened_again(url).table("t")
    assert [row["id"] for row in table] == [1]
    with pytest.raises(SchemaError, match=r"headrace\.primaryKey"):
        table.put([{"id": 2, "name": "b"}])


@pytest.mark.parametrize(
    ("kind", "bounds", "low", "high"),
    [
        ("int64", ("9", "10"), "9", "10"),
        ("float64", ("nan", "-inf"), "-inf", "nan"),
        ("timestamp", ("2026-01-01 00:00:00.5", "2026-01-01 00:00:00"), *_INSTANTS),
        ("date", ("2026-01-01", "0044-03-15 (BC)"), "-infinity", "infinity"),
        ("varchar", ("é", "z"), "z", "é"),
        ("decimal(10,2)", ("-0.10", None), "-0.10", "-0.10"),
    ],
)
def test_bounds_only_become_wider(kind: str, bounds: tuple[str, str], low: str, high: str) -> None:
    assert wider(kind, *bounds, up=False) == low
    assert wider(kind, *bounds, up=True) == high


def test_bounds_of_small_decimals_have_no_exponent() -> None:
    """DuckDB cannot read a table with the bound 1E-38."""
    least = pa.scalar(Decimal("1E-38"), pa.decimal128(38, 38))
    assert bound_of(least, "decimal(38,38)", up=False) == f"0.{'0' * 37}1"


def test_times_of_other_programs_that_headrace_does_not_read(store: Store, url: str) -> None:
    table = store.create_table("times", {"day": "date", "at": "timestamp"}, "day")
    days = [datetime.date(2000, 1, 1) + datetime.timedelta(number) for number in range(1200)]
    table.put([{"day": day, "at": None} for day in days])
    table.put([{"day": datetime.date(1999, 1, 1), "at": None}])
    ((inlined,),) = catalog(url, "SELECT max(table_name) FROM ducklake_inlined_data_tables WHERE table_id > 1")
    catalog(url, f"UPDATE {inlined} SET at = 'infinity'")
    with pytest.raises(UnsupportedError, match=r"years 1 to 9999.*infinity.*flush"):
        list(table)
    catalog(url, f"DELETE FROM {inlined}")
    catalog(url, "UPDATE ducklake_file_column_stats SET max_value = '12000-01-01' WHERE max_value LIKE '2003%'")
    with pytest.raises(UnsupportedError, match=r"years 1 to 9999.*12000"):
        list(table)


def test_no_text_is_beyond_the_bounds_of_its_file(store: Store) -> None:
    table = store.create_table("texts", {"name": "string", "n": "long"}, "name")
    name = "a" * 256 + "\U0010ffff" * 2
    for number in range(2):
        table.put([{"name": name, "n": number}])
        store.maintenance("texts").compact()  # type: ignore[attr-defined]
    assert list(table) == [{"name": name, "n": 1}]
