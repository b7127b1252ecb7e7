"""Iceberg tables as tables of headrace, read by pyiceberg, and what is refused by name."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.errors import HeadraceError, NotFoundError, OptionError, SchemaError, StoreError, UnsupportedError
from headrace.model.tables.alterations import Alteration
from headrace.ports import Store
from headrace_lake.iceberg.catalog import Tables
from headrace_lake.iceberg.version import Version
from tests.lake.icebergs import FIELDS, append, catalog, foreign, opened, rows_of, url_of


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return opened(tmp_path)


def test_pyiceberg_reads_all_types(store: Store, tmp_path: Path) -> None:
    kinds = [
        *("boolean", "int", "long", "float", "double", "string", "binary", "date", "timestamp", "timestamp_ntz"),
        *("decimal(9,2)", "decimal(38,3)", "array<long>", "map<string,double>", "struct<a:int,b:string>"),
    ]
    types = store.create_table("types", {"id": "long", **{f"c{n}": kind for n, kind in enumerate(kinds)}}, "id")
    fields = types.schema.arrow
    values: list[Any] = [True, -(2**31), 2**63 - 1, 1.5, float("-inf"), "a\0é", b"\x00\xff"]
    for number, value in enumerate([*values, None]):
        types.put({"id": number, f"c{min(number, 6)}": value})
    text = ["2020-02-29", "2020-02-29 12:00:00.123456Z", "2020-02-29 12:00:00.123456", "-1.25", "1.125"]
    cells = [pa.scalar(each).cast(fields.types[n + 8]).as_py() for n, each in enumerate(text)]
    types.put({"id": 100, **{f"c{n + 7}": cell for n, cell in enumerate(cells)}})
    types.put({"id": 101, "c12": [1, None], "c13": {"x": 1.0}, "c14": {"a": 1, "b": None}})
    ours = list(types)
    theirs = rows_of(tmp_path, "types")
    # pyiceberg returns maps as dictionaries, too.
    assert [dict(row, c13=dict(row["c13"] or ())) for row in ours] == [
        dict(row, c13=dict(row["c13"] or ())) for row in theirs
    ]


def test_readers_skip_files_by_the_statistics(store: Store, tmp_path: Path) -> None:
    table = store.create_table("bounds", {"id": "long", "name": "string", "day": "date"}, "id")
    for start in (0, 100):
        table.put([{"id": start + n, "name": f"{start:03}{'x' * 50}{n}", "day": date(2020, 1, 1)} for n in range(3)])
    for condition, count in (("id > 99", 1), ("name < '1'", 1), ("day = '2020-01-02'", 0), ("id = 2", 1)):
        assert len(list(foreign(tmp_path, "bounds").scan(condition).plan_files())) == count, condition
    assert foreign(tmp_path, "bounds").scan("name > '100'").to_arrow().num_rows == 3


def test_a_rewritten_file_keeps_its_other_rows(store: Store, tmp_path: Path) -> None:
    table = store.table("t")
    table.put([{"id": number, "name": "old"} for number in range(1000)])
    append(tmp_path, [{"id": 2000, "name": "theirs"}, {"id": 1500, "name": "theirs"}])
    table.put([{"id": 5, "name": "new"}, {"id": 1500, "name": "new"}])
    table.delete([{"id": number} for number in range(100, 200)])
    table.update({"id": 999, "name": None})
    expected = {number: "old" for number in range(1000) if not 100 <= number < 200}
    expected |= {5: "new", 1500: "new", 2000: "theirs", 999: None}  # type: ignore[dict-item]
    assert {row["id"]: row["name"] for row in rows_of(tmp_path)} == expected
    assert [row["id"] for row in table] == sorted(expected)
    assert table.get({"id": 1500}) == {"id": 1500, "name": "new"}
    operations = [each.summary.operation.value for each in foreign(tmp_path).snapshots() if each.summary]
    assert operations == ["append", "append", "overwrite", "overwrite", "overwrite"]


def test_new_columns_are_null_in_old_files(store: Store, tmp_path: Path) -> None:
    table = store.table("t")
    table.put({"id": 1, "name": "a"})
    table.add_columns({"n": "long", "tags": "array<string>"})
    table.put({"id": 2, "name": "b", "n": 2, "tags": ["x"]})
    assert next(iter(table)) == {"id": 1, "name": "a", "n": None, "tags": None}
    assert rows_of(tmp_path) == list(table)


def test_a_dropped_table_of_the_same_name_has_other_files(store: Store, tmp_path: Path) -> None:
    store.table("t").put({"id": 1, "name": "a"})
    store.create_table("shop.orders", {"id": "long"}, "id")
    assert store.tables() == ["shop.orders", "t"]
    store.drop_table("t")
    with pytest.raises(NotFoundError):
        store.table("t")
    assert not list((tmp_path / "default").iterdir())
    again = store.create_table("t", {"id": "string"}, "id")
    again.put({"id": "x"})
    assert rows_of(tmp_path) == [{"id": "x"}]


def test_a_table_of_another_program_gets_a_key(store: Store, tmp_path: Path) -> None:
    catalog(tmp_path).create_table("default.events", FIELDS)
    append(tmp_path, [{"id": 2, "name": "b"}, {"id": 1, "name": "a"}], "events")
    with pytest.raises(SchemaError, match=r"headrace\.primaryKey"):
        store.table("events").put({"id": 1, "name": "c"})
    with foreign(tmp_path, "events").transaction() as transaction:
        transaction.set_properties({"headrace.primaryKey": '["id"]', "commit.retry.num-retries": "0"})
    store.table("events").put({"id": 1, "name": "c"})
    assert list(store.table("events")) == [{"id": 1, "name": "c"}, {"id": 2, "name": "b"}]
    assert rows_of(tmp_path, "events") == list(store.table("events"))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"b": "byte"}, "byte"),
        ({"b": "array<short>"}, "short"),
        ({"b": "interval day to second"}, "interval"),
        ({"a b": "long"}, "name"),
        ({"b": "struct<`a.b`:int>"}, "name"),
        ({"ID": "long"}, "upper and lower case"),
    ],
)
def test_columns_that_iceberg_does_not_have_exactly_are_refused(
    store: Store, columns: dict[str, str], problem: str
) -> None:
    with pytest.raises(SchemaError, match=problem):
        store.create_table("refused", {"id": "long", **columns}, "id")
    assert store.tables() == ["t"]


def rename(directory: Path) -> None:
    with foreign(directory).update_schema() as update:
        update.rename_column("name", "title")


def replace_column(directory: Path) -> None:
    kind = foreign(directory).schema().find_type("name")
    with foreign(directory).update_schema() as update:
        update.delete_column("name")
    with foreign(directory).update_schema() as update:
        update.add_column("name", kind)


def set_format(directory: Path) -> None:
    with foreign(directory).transaction() as transaction:
        transaction.set_properties({"write.format.default": "orc"})


@pytest.mark.parametrize(
    ("step", "problem", "reads"),
    [
        (rename, "renamed", False),
        (replace_column, "dropped and added again", False),
        (set_format, r"write\.format\.default", True),
    ],
)
def test_tables_that_headrace_does_not_write_exactly_are_refused(
    store: Store, tmp_path: Path, step: Any, problem: str, reads: bool
) -> None:
    table = store.table("t")
    table.put({"id": 1, "name": "a"})
    step(tmp_path)
    with pytest.raises(UnsupportedError, match=problem):
        table.put({"id": 2})
    if reads:
        assert list(table) == [{"id": 1, "name": "a"}]
    else:
        with pytest.raises(UnsupportedError, match=problem):
            table.scan().read_all()
    assert any(problem.split(r"\.")[0] in str(finding) for finding in store.diagnose())


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.create_tunnel("t", "changes"),
        lambda store: store.create_queue("q", {"n": "long"}),
        lambda store: store.create_table("u", {"id": "long"}, "id", pre_images=True),
        lambda store: store.table("t").drop_columns(["name"]),
        lambda store: store.table("t").alter(Alteration(renamed={"name": "title"})),
    ],
)
def test_uses_that_the_store_does_not_have_are_refused(store: Store, call: Any) -> None:
    with pytest.raises(UnsupportedError):
        call(store)


@pytest.mark.parametrize(
    ("url", "options", "error"),
    [
        ("iceberg:///lake", {}, OptionError),
        ("iceberg+postgresql://host/lake", {}, OptionError),
        ("iceberg+rest://host/lake", {}, OptionError),
        ("iceberg+sqlite://host/catalog.db", {}, OptionError),
        ("iceberg+sqlite:///{}/a%23b/catalog.db", {}, OptionError),
        ("iceberg+sqlite:///{}/catalog.db", {"warehouse": "relative"}, OptionError),
        ("iceberg+sqlite:///{}/missing.db", {}, NotFoundError),
        ("iceberg+sqlite:///{}/damaged.db", {}, StoreError),
    ],
)
def test_addresses_that_are_refused(tmp_path: Path, url: str, options: dict[str, Any], error: type) -> None:
    (tmp_path / "damaged.db").write_text("no database" * 1000)
    with pytest.raises(error) as caught:
        headrace.open(url.format(str(tmp_path)[1:]), **options)
    assert isinstance(caught.value, HeadraceError)


def test_a_warehouse_and_a_catalog_of_other_names(tmp_path: Path) -> None:
    with headrace.open(url_of(tmp_path), create=True, warehouse=str(tmp_path / "files"), catalog="prod") as store:
        store.create_table("t", {"id": "long"}, "id").put({"id": 1})
        assert store.url == url_of(tmp_path)
    assert list((tmp_path / "files" / "default").iterdir())
    assert opened(tmp_path).tables() == ["t"]
    assert list(opened(tmp_path).table("t")) == []


def test_a_change_of_columns_says_that_the_database_fails(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Tables.load

    def load(tables: Tables, name: str) -> Version:
        version = loaded(tables, name)
        with closing(sqlite3.connect(tmp_path / "catalog.db")) as connection:
            connection.execute("ALTER TABLE iceberg_tables RENAME TO moved")
        return version

    monkeypatch.setattr(Tables, "load", load)
    with pytest.raises(StoreError, match="the database of the Iceberg catalog rejects a request"):
        store.table("t").add_columns({"n": "long"})


def test_a_table_has_one_name(store: Store) -> None:
    """A batch with both would write the first part only: the second would find its marker."""
    with pytest.raises(OptionError, match=r"has one name; received: 'default\.t'; valid: 't'"):
        store.table("default.t")


def test_a_store_waits_beside_tables_that_it_cannot_load(store: Store, tmp_path: Path) -> None:
    catalog(tmp_path).create_table("default.naïve", FIELDS)
    lost = catalog(tmp_path).create_table("default.lost", FIELDS)
    Path(lost.metadata_location.removeprefix("file://")).unlink()
    store.wait_for_change(0)
    assert not store.wait_for_change(0)
    store.table("t").put([{"id": 1, "name": "a"}])
    assert store.wait_for_change(0)


@pytest.mark.parametrize("name", ["headrace.keepSnapshots", "commit.manifest.min-count-to-merge"])
def test_a_property_that_is_no_number_is_refused(store: Store, tmp_path: Path, name: str) -> None:
    with foreign(tmp_path).transaction() as transaction:
        transaction.set_properties({name: "many"})
    with pytest.raises(UnsupportedError, match="must be a number; received: 'many'"):
        store.table("t").put({"id": 1, "name": "a"})
