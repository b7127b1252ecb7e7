"""Compaction, vacuum, checks and the history of Iceberg tables, and their commands; what many batches leave."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main
from headrace.errors import UnsupportedError
from headrace.model.findings import Status
from headrace.model.tables.changes import RowChange
from headrace.ports import Store
from headrace.support import failpoints
from headrace.testing.effort import thorough
from headrace.testing.processes import CONTEXT
from headrace_lake import data_files
from headrace_lake import maintenance as lake_maintenance
from headrace_lake.iceberg.maintenance import IcebergMaintenance
from headrace_lake.iceberg.store import IcebergStore
from headrace_lake.iceberg.version import Version
from headrace_lake.lookup import Keys
from headrace_lake.maintenance import Compaction
from tests.lake.icebergs import (
    FIELDS,
    Interference,
    append,
    catalog,
    foreign,
    needs_referee,
    opened,
    orphans,
    referees,
    rows_of,
    url_of,
)
from tests.lake.jobs import publish, write

DAY = 86400.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return opened(tmp_path)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command on the store, and returns its JSON."""

    def in_this_process(*arguments: str, code: int = 0) -> Any:
        assert main([*arguments, "-s", url_of(tmp_path), "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return in_this_process


def maintained(store: Store, table: str = "t") -> IcebergMaintenance:
    assert isinstance(store, IcebergStore)
    return store.maintenance(table)


def version(store: Store) -> Version:
    assert isinstance(store, IcebergStore)
    return store._tables.load("t")


def fill(store: Store) -> None:
    """Put 200 rows in five files that overlap."""
    for start in range(5):
        store.table("t").put([{"id": number, "name": f"n{number}"} for number in range(start, 200, 5)])


def files_of(directory: Path) -> list[str]:
    """Return the names of all data files below the directory of table ``t``."""
    (found,) = (directory / "default").glob("t-*")
    return sorted(path.name for path in (found / "data").iterdir())


def age(path: Path, days: float) -> None:
    moment = time.time() - days * DAY
    os.utime(path, (moment, moment))


def test_compaction_makes_files_in_key_order_and_changes_no_row(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    before = rows_of(tmp_path)
    assert maintained(store).compact() == Compaction(6, 5, 1)
    assert maintained(store).compact() == Compaction(None)
    # Files of some rows: the target is below what a file has at least.
    monkeypatch.setattr(data_files, "ROW_GROUP_ROWS", 20)
    store.table("t").put([{"id": 7, "name": "new"}])
    done = maintained(store).compact(1000)
    assert done.before == 2
    assert done.after > 1
    bounds = sorted(file.bounds for file in version(store).files if file.bounds is not None)
    assert all(low > end for (_, end), (low, _) in pairwise(bounds))
    after = rows_of(tmp_path)
    assert after == [{"id": 7, "name": "new"} if row["id"] == 7 else row for row in before]
    assert list(store.table("t")) == after


def test_a_compaction_of_rows_that_compress_well_ends(store: Store, tmp_path: Path) -> None:
    table = store.create_table("packed", {"id": "long", "name": "string"}, "id")
    for start in range(3):
        table.put([{"id": number**3, "name": "much the same " * 50} for number in range(start, 60_000, 3)])
    # In memory the rows have many times the bytes of the files.
    done = maintained(store, "packed").compact(20_000)
    assert done.before == 3
    assert done.after > 1
    assert maintained(store, "packed").compact(20_000) == Compaction(None)
    assert [row["id"] for row in rows_of(tmp_path, "packed")] == [number**3 for number in range(60_000)]
    (finding,) = maintained(store, "packed").check()
    assert finding.status is Status.OK


def test_a_table_of_another_program_is_compacted(store: Store, tmp_path: Path) -> None:
    catalog(tmp_path).create_table("default.events", FIELDS, properties={"commit.retry.num-retries": "0"})
    for number in range(3):
        append(tmp_path, [{"id": number, "name": "theirs"}, {"id": 0, "name": "again"}], "events")
    before = rows_of(tmp_path, "events")
    assert maintained(store, "events").compact() == Compaction(4, 3, 1)
    assert rows_of(tmp_path, "events") == before
    (finding,) = maintained(store, "events").check()
    assert (finding.status, finding.found) == (Status.OK, "version 4, 6 rows in 1 files")


def test_a_stream_merges_its_small_files(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_maintenance, "MOST_SMALL", 4)
    append(tmp_path, [{"id": 100, "name": "theirs"}])
    for batch in range(8):
        assert publish(store, batch, several=False)
        assert not publish(store, batch, several=False)
    assert [row["id"] for row in rows_of(tmp_path)] == [*range(8), 100]
    assert len(version(store).files) < 6


def test_compaction_gives_way_to_another_commit(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    other = Interference(monkeypatch)
    other.steps = [
        lambda: foreign(tmp_path).delete("id = 3"),
        lambda: append(tmp_path, [{"id": 500, "name": "theirs"}]),
        lambda: publish(opened(tmp_path), 7, several=False),
    ]
    assert maintained(store).compact().after == 1
    assert not other.steps
    expected = {number: f"n{number}" for number in range(200) if number != 3} | {7: "job 7", 500: "theirs"}
    assert {row["id"]: row["name"] for row in rows_of(tmp_path)} == expected
    assert orphans(tmp_path) == set()


def compact_until(directory: Path, point: str) -> None:
    failpoints.arm(point)
    maintained(opened(directory)).compact()


@pytest.mark.parametrize("point", ["rows-written:1", "marker-written:1"])
def test_a_killed_compaction_loses_no_row(store: Store, tmp_path: Path, point: str) -> None:
    fill(store)
    rows = rows_of(tmp_path)
    process = CONTEXT.Process(target=compact_until, args=(tmp_path, point))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert rows_of(tmp_path) == rows
    maintained(store).compact()
    # The retention is negative: files of this moment are old enough.
    maintained(store).vacuum(-DAY)
    assert rows_of(tmp_path) == rows
    assert len(files_of(tmp_path)) == 1


def test_vacuum_deletes_orphans_and_replaced_files_of_some_age(
    store: Store, tmp_path: Path, run: Callable[..., Any]
) -> None:
    fill(store)
    (directory,) = (tmp_path / "default").glob("t-*")
    for path in (directory / "data").iterdir():
        age(path, 9)
    for name, days in (("hr-dead.parquet", 9), ("hr-young.parquet", 1), ("theirs.parquet", 9)):
        (directory / "data" / name).write_bytes(b"x")
        age(directory / "data" / name, days)
    (finding,) = store.check()
    assert (finding.status, "1 old files" in finding.found) == (Status.WARN, True)
    maintained(store).compact()
    first, *_, last = foreign(tmp_path).snapshots()
    foreign(tmp_path).manage_snapshots().create_tag(first.snapshot_id, "first").commit()
    # The snapshots before the compaction, and the files that it has replaced, are young: readers need them.
    assert run("lake", "vacuum", "t") == [{"table": "t", "files": 1}]
    assert len(foreign(tmp_path).snapshots()) == 6
    assert maintained(store).vacuum(-DAY) > 5
    # The tag keeps its snapshot, with one file.
    kept = {each.snapshot_id for each in foreign(tmp_path).snapshots()}
    assert kept >= {first.snapshot_id, last.snapshot_id}
    assert len(kept) == 3
    assert [name[:3] for name in files_of(tmp_path)] == ["hr-", "hr-", "the"]
    assert len(rows_of(tmp_path)) == 200
    assert foreign(tmp_path).scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == 40
    (finding,) = store.check()
    assert finding.status is Status.OK


def test_files_that_another_vacuum_deletes_meanwhile_are_no_error(store: Store, tmp_path: Path) -> None:
    fill(store)
    (directory,) = (tmp_path / "default").glob("t-*")
    # Its name is found, and it cannot be opened.
    (directory / "data" / "hr-dead.parquet").symlink_to("nothing")
    assert maintained(store).vacuum() == 0
    (finding,) = maintained(store).check()
    assert finding.status is Status.OK


@pytest.mark.parametrize("way", ["batch", "get"])
def test_a_file_that_another_vacuum_deletes_meanwhile_costs_an_attempt(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    row = {"id": 1, "name": "new"}
    store.table("t").put([{"id": 1, "name": "old"}])
    rows_of_keys, steps = Keys.rows_of, [1]

    def after_a_step(*arguments: Any) -> Any:
        if steps:
            steps.pop()
            (old,) = (each.file.file_path for each in foreign(tmp_path).scan().plan_files())
            opened(tmp_path).table("t").put([{"id": 1, "name": "theirs"}])
            Path(old.removeprefix("file://")).unlink()
        return rows_of_keys(*arguments)

    monkeypatch.setattr(Keys, "rows_of", after_a_step)
    if way == "get":
        assert store.table("t").get({"id": 1}) == {"id": 1, "name": "theirs"}
        return
    # A batch of several tables is checked before it is decided.
    store.create_table("u", {"id": "long", "name": "string"}, "id")
    publisher = store.publisher("job", "sink")
    assert publisher.publish(0, [write(store, publisher, 0, name, [row], RowChange.PUT) for name in "tu"])
    assert rows_of(tmp_path) == [row]


def test_vacuum_leaves_the_files_of_a_batch_that_was_staged_long_ago(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = store.publisher("job", "sink")
    rows = write(store, publisher, 0, "t", [{"id": 1, "name": "a"}], RowChange.PUT)
    for path in (tmp_path / "_headrace" / "staged").rglob("*.parquet"):
        age(path, 9)
    other = Interference(monkeypatch)
    other.steps = [lambda: maintained(opened(tmp_path)).vacuum()]
    assert publisher.publish(0, [rows])
    assert rows_of(tmp_path) == [{"id": 1, "name": "a"}]


def test_a_check_finds_what_readers_would_get_wrong(store: Store, tmp_path: Path, run: Callable[..., Any]) -> None:
    fill(store)
    (checked,) = run("lake", "check")
    assert (checked["status"], "200 rows in 5 files; all keys are different" in checked["found"]) == ("ok", True)
    assert "200 rows in 5 files" in json.dumps(run("store", "check"))
    append(tmp_path, [{"id": 5, "name": "twice"}])
    (finding,) = maintained(store).check()
    assert (finding.status, finding.found) == (Status.FAIL, "two rows have the same key")
    version(store).files[0].path.unlink()
    assert "does not exist as the metadata has it" in run("lake", "check", code=1)[0]["found"]
    for path in tmp_path.rglob("*.avro"):
        path.unlink()
    assert "metadata of an Iceberg table does not exist" in run("lake", "check", code=1)[0]["found"]
    with pytest.raises(UnsupportedError):
        store.check(repair=True)


def test_commands(store: Store, run: Callable[..., Any]) -> None:
    fill(store)
    publish(store, 3, several=False)
    assert run("lake", "compact") == [{"table": "t", "version": 7, "files": 6, "into": 1}]
    versions = run("lake", "history", "t", "--limit", "3")
    assert [(each["version"], each["operation"], each["batch"]) for each in versions] == [
        (7, "compaction", None),
        (6, "overwrite", 3),
        (5, "append", None),
    ]
    assert [each["job"] for each in versions] == [None, "job", None]


@needs_referee
@pytest.mark.filterwarnings("ignore:Delete operation did not match:UserWarning")
@pytest.mark.parametrize("seed", range(thorough(10)))
def test_referees_read_the_same_rows_after_each_step(store: Store, tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    table, publisher = store.table("t"), store.publisher("job", "sink")
    rows: dict[int, str] = {}

    def put(numbers: list[int], name: str) -> None:
        table.put([{"id": number, "name": name} for number in numbers])
        rows.update(dict.fromkeys(numbers, name))

    def delete(numbers: list[int], _: str) -> None:
        table.delete([{"id": number} for number in numbers])
        for number in numbers:
            rows.pop(number, None)

    def replace(numbers: list[int], name: str) -> None:
        new = [{"id": number, "name": name} for number in numbers]
        batch = (publisher.last_batch() or 0) + 1
        publisher.publish(batch, [write(store, publisher, batch, "t", new, RowChange.REPLACE_ALL)])
        rows.clear()
        rows.update(dict.fromkeys(numbers, name))

    def add(_: list[int], name: str) -> None:
        number = 100 + len(locations)
        append(tmp_path, [{"id": number, "name": name}])
        rows[number] = name

    def remove(numbers: list[int], _: str) -> None:
        foreign(tmp_path).delete(f"id = {numbers[0]}")
        rows.pop(numbers[0], None)

    def compact(_: list[int], __: str) -> None:
        maintained(store).compact()

    steps = [put, put, put, delete, replace, add, remove, compact]
    locations: list[str] = []
    expected: list[list[list[Any]]] = []
    for number in range(40):
        choice.choice(steps)(choice.sample(range(20), choice.randint(1, 6)), str(number))
        locations.append(foreign(tmp_path).metadata_location)
        expected.append([list(row) for row in sorted(rows.items())])
        assert [list(row.values()) for row in table] == expected[-1]
    for duck, polars in [pair for part in (locations[:20], locations[20:]) for pair in referees(*part)]:
        assert duck == polars == expected.pop(0)
    maintained(store).vacuum(-DAY)
    last = [list(row) for row in sorted(rows.items())]
    assert referees(foreign(tmp_path).metadata_location) == [[last, last]]
    assert [each.status for each in maintained(store).check()] == [Status.OK]
