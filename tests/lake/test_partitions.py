"""Partitioned tables of all formats of lakes: the same rows as without partitions, in files of one partition each."""

from __future__ import annotations

import datetime
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.main import main
from headrace.errors import OptionError, SchemaError, UnsupportedError
from headrace.model.findings import Status
from headrace.model.tables.changes import RowChange
from headrace.ports import Store
from headrace.testing.effort import thorough
from headrace.testing.processes import CONTEXT
from headrace_lake import maintenance
from headrace_lake.ducklake import writing
from headrace_lake.maintenance import LakeStore
from tests.lake import ducklakes, icebergs
from tests.lake.jobs import publish, run, write

COLUMNS = {"id": "long", "day": "date", "text": "string", "n": "int"}
TODAY = datetime.date(2026, 1, 1)
DAYS = [TODAY, datetime.date(1969, 12, 31), None]
TEXTS = ["a/b c%ü'", "x", None]
PLACES = ("delta", "ducklake", "iceberg", "iceberg-postgres")


def opened(directory: Path) -> Store:
    """Return the store of a directory, whose name is that of its format."""
    match directory.name:
        case "delta":
            return headrace.open(f"delta://{directory}", create=True)
        case "ducklake":
            url = (directory / "database").read_text()
            return headrace.open(f"ducklake+{url}", create=True, data=str(directory / "files"))
        case _:
            return headrace.open(icebergs.url_of(directory), create=True, warehouse=str(directory))


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a store. Of a DuckLake, writes of four rows are files, those of three are in the catalog."""
    monkeypatch.setattr(writing, "INLINED_ROWS", 3)
    directory = tmp_path / str(request.param)
    directory.mkdir()
    if request.param == "iceberg-postgres":
        icebergs.use_postgres(directory)
    if request.param == "ducklake":
        (directory / "database").write_text(ducklakes.database())
    return directory


@pytest.fixture
def store(place: Path) -> Iterator[LakeStore]:
    with opened(place) as found:
        assert isinstance(found, LakeStore)
        yield found


def row(number: int, day: datetime.date | None = TODAY, text: str | None = TEXTS[0], n: int = 0) -> dict[str, Any]:
    return {"id": number, "day": day, "text": text, "n": n}


def rows_of(store: Store) -> list[dict[str, Any]]:
    return sorted(store.table("p"), key=lambda each: each["id"])


@pytest.mark.parametrize("key", ["id", ["day", "id"]])
def test_rows_move_between_partitions(store: LakeStore, key: str | list[str]) -> None:
    table = store.create_table("p", COLUMNS, key, partition_by=["day", "text"])
    assert table.describe().partition_by == ("day", "text")
    later = datetime.date(2026, 1, 2)
    table.put([row(1), row(2, later), row(3, later, None), row(4)])
    table.put([row(1, text="x"), row(5)])
    table.update({"id": 2, "day": later, "n": 20})
    table.delete({"id": 3, "day": later})
    expected = [row(1, text="x"), row(2, later, n=20), row(4), row(5)]
    assert rows_of(store) == expected
    assert table.get({"id": 4} | ({"day": TODAY} if isinstance(key, list) else {})) == row(4)
    assert list(table.scan(where={"day": later}).read_all().to_pylist()) == expected[1:2]
    publisher = store.publisher("job")
    publisher.publish(0, [write(store, publisher, 0, "p", [row(4, text="y"), row(6)], RowChange.PUT)])
    expected = [*expected[:2], row(4, text="y"), row(5), row(6)]
    assert rows_of(store) == expected
    for number in range(3):
        table.put([row(7 + number + 10 * part, text=text) for part, text in enumerate(("x", "y", None, "z"))])
    before = rows_of(store)
    assert store.maintenance("p").compact().version is not None
    assert rows_of(store) == before
    assert [each.status for each in store.maintenance("p").check()] == [Status.OK]
    assert store.maintenance("p").history(100)[-1].version <= store.maintenance("p").history(1)[0].version
    publisher.publish(1, [write(store, publisher, 1, "p", [row(1)], RowChange.REPLACE_ALL)])
    assert rows_of(store) == [row(1)]
    assert store.maintenance("p").vacuum(0) > 0
    assert rows_of(store) == [row(1)]


def test_random_changes(store: LakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams merge the small files of each partition meanwhile."""
    monkeypatch.setattr(maintenance, "MOST_SMALL", 3)
    table = store.create_table("p", COLUMNS, "id", partition_by=["text", "day"])
    expected: dict[int, dict[str, Any]] = {}
    publisher = store.publisher("job")
    for seed in range(thorough(5)):
        choice = random.Random(seed)
        for step in range(8):
            batch = 8 * seed + step
            numbers = choice.sample(range(12), choice.randint(1, 8))
            if choice.random() < 0.3:
                changed = [{"id": number} for number in numbers]
                publisher.publish(batch, [write(store, publisher, batch, "p", changed, RowChange.DELETE)])
                for number in numbers:
                    expected.pop(number, None)
            else:
                rows = [row(number, choice.choice(DAYS), choice.choice(TEXTS), batch) for number in numbers]
                publisher.publish(batch, [write(store, publisher, batch, "p", rows, RowChange.PUT)])
                expected |= {each["id"]: each for each in rows}
            if choice.random() < 0.2:
                store.maintenance("p").compact()
            assert rows_of(store) == [expected[number] for number in sorted(expected)]
        assert [each.status for each in store.maintenance("p").check()] == [Status.OK], seed
    assert publisher.last_batch() == 8 * thorough(5) - 1
    assert not table.get({"id": 99})


def _opened_with_table(directory: Path) -> Store:
    # In the process of the driver, too: all rows of a DuckLake are in files.
    writing.INLINED_ROWS = 0
    store = opened(directory)
    store.create_table("t", {"id": "long", "name": "string"}, "id", partition_by="name", exist_ok=True)
    return store


@pytest.mark.parametrize("point", ["rows-staged:2", "rows-written:2", "marker-written:2"])
def test_a_driver_that_is_killed_publishes_each_batch_once(place: Path, point: str) -> None:
    _opened_with_table(place).close()
    victim = CONTEXT.Process(target=run, args=(place, 0, 3, False, point, _opened_with_table))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    with _opened_with_table(place) as store:
        done = store.publisher("job", "sink").last_batch()
        for batch in range(0 if done is None else done, 3):
            publish(store, batch, several=False)
        assert not publish(store, 2, several=False)
        assert list(store.table("t")) == [{"id": batch, "name": f"job {batch}"} for batch in range(3)]


def test_what_partitions_cannot_be(store: LakeStore, capsys: pytest.CaptureFixture[str]) -> None:
    for columns in (["nothing"], ["id", "id"], list(COLUMNS), ""):
        with pytest.raises(SchemaError, match="partition columns"):
            store.create_table("p", COLUMNS, "id", partition_by=columns)
    for wrong in (3, [3], {"day": "x"}):
        with pytest.raises(OptionError, match="option partition_by must be a"):
            store.create_table("p", COLUMNS, "id", partition_by=wrong)
    with pytest.raises(UnsupportedError, match="this type"):
        store.create_table("p", COLUMNS | {"x": "double"}, "id", partition_by="x")
    table = store.create_table("p", COLUMNS, "id", partition_by="text")
    with pytest.raises(UnsupportedError, match="when it is created"):
        table.set_options(partition_by="day")
    with pytest.raises((OptionError, UnsupportedError), match="change_log"):
        table.set_options(change_log="x")
    assert main(["table", "set", "p", "partition_by=day", "-s", store.url]) == 1
    assert "when it is created" in capsys.readouterr().err
    assert rows_of(store) == []
