"""Compaction, vacuum, checks and their commands."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaRsTable
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError

from headrace.cli.main import main
from headrace.errors import SchemaError
from headrace.model.findings import Status
from headrace.model.tables.changes import RowChange
from headrace.ports import Store
from headrace_lake import data_files
from headrace_lake import maintenance as lake_maintenance
from headrace_lake.delta import maintenance
from headrace_lake.delta.table import DeltaTable
from headrace_lake.maintenance import Compaction
from tests.lake.jobs import write
from tests.lake.lakes import Interference, append, foreign, opened, rows_of

DAY = 86400.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return opened(tmp_path)


@pytest.fixture
def table(store: Store) -> DeltaTable:
    """A table with files that overlap, of 200 rows."""
    found = store.table("t")
    assert isinstance(found, DeltaTable)
    for start in range(5):
        found.put([{"id": number, "name": f"n{number}"} for number in range(start, 200, 5)])
    return found


def bounds(table: DeltaTable) -> list[Any]:
    return sorted(file.bounds for file in table.snapshot().files if file.bounds is not None)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command on the store, and returns its JSON."""

    def in_this_process(*arguments: str) -> Any:
        assert main([*arguments, "-s", f"delta://{tmp_path}", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return in_this_process


def test_compaction_makes_files_in_key_order_and_changes_no_row(
    table: DeltaTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows_of(tmp_path)
    assert maintenance.compact(table) == Compaction(6, 5, 1)
    assert maintenance.compact(table) == Compaction(None)
    # Files of some rows: the target is below what a file has at least.
    monkeypatch.setattr(data_files, "ROW_GROUP_ROWS", 20)
    table.put([{"id": 7, "name": "new"}])
    done = maintenance.compact(table, 1000)
    assert done.before == 2
    assert done.after > 1
    found = bounds(table)
    assert all(low > end for (_, end), (low, _) in pairwise(found))
    after = rows_of(tmp_path)
    assert after == [{"id": 7, "name": "new"} if row["id"] == 7 else row for row in before]
    assert list(table) == after
    # Readers of changes see none.
    entry = (tmp_path / "t" / "_delta_log" / f"{done.version:020}.json").read_text().splitlines()
    actions = [json.loads(line) for line in entry]
    assert {each[kind]["dataChange"] for each in actions for kind in ("add", "remove") if kind in each} == {False}


def test_a_compaction_of_rows_that_compress_well_ends(store: Store) -> None:
    table = store.create_table("packed", {"id": "long", "name": "string", "day": "date"}, "id")
    assert isinstance(table, DeltaTable)
    for start in range(3):
        table.put([{"id": number**3, "name": "much the same " * 50, "day": None} for number in range(start, 60_000, 3)])
    # In memory the rows have many times the bytes of the files.
    done = maintenance.compact(table, 20_000)
    assert done.before == 3
    assert maintenance.compact(table, 20_000) == Compaction(None)
    found = table.snapshot().files
    assert len(found) == done.after > 1
    assert sorted(file.size for file in found)[1] >= 20_000
    assert sum(file.rows or 0 for file in found) == 60_000
    (finding,) = maintenance.check(table)
    assert finding.status is Status.OK


def test_a_stream_merges_its_small_files(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_maintenance, "MOST_SMALL", 4)
    append(tmp_path, [{"id": 100, "name": "theirs"}])
    publisher = store.publisher("job", "t")
    for batch in range(8):
        rows = [{"id": batch, "name": "ours"}]
        assert publisher.publish(batch, [write(store, publisher, batch, "t", rows, RowChange.PUT)])
        assert publisher.published(batch)
    assert [row["id"] for row in rows_of(tmp_path)] == [*range(8), 100]
    found = store.table("t")
    assert isinstance(found, DeltaTable)
    assert len(found.snapshot().files) < 6


@pytest.mark.parametrize("automatic", [False, True])
def test_a_commit_of_another_program_that_began_before_a_compaction_fails(
    table: DeltaTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, automatic: bool
) -> None:
    monkeypatch.setattr(lake_maintenance, "MOST_SMALL", 2)
    calls: list[Callable[[DeltaRsTable], object]] = [
        lambda theirs: theirs.optimize.compact(),
        lambda theirs: theirs.optimize.z_order(["name"]),
        lambda theirs: theirs.delete(),
        lambda theirs: theirs.update(updates={"name": "'theirs'"}),
        lambda theirs: write_deltalake(theirs, pa.table({"id": [0], "name": ["theirs"]}), mode="overwrite"),
    ]
    for call in calls:
        # Files that overlap, and small ones.
        table.put([{"id": number, "name": "again"} for number in range(0, 200, 7)])
        before, theirs = rows_of(tmp_path), foreign(tmp_path)
        done = maintenance.merge_small(table) if automatic else maintenance.compact(table)
        assert done.version is not None
        with pytest.raises(CommitFailedError, match="Metadata changed"):
            call(theirs)
        assert rows_of(tmp_path) == before
    foreign(tmp_path).optimize.compact()
    append(tmp_path, [{"id": 1000, "name": "theirs"}])
    assert rows_of(tmp_path) == [*before, {"id": 1000, "name": "theirs"}]


def test_compaction_gives_way_to_another_commit(
    table: DeltaTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Interference(monkeypatch)
    other.steps = [lambda: foreign(tmp_path).delete("id = 3"), lambda: append(tmp_path, [{"id": 500, "name": "x"}])]
    assert maintenance.compact(table).after == 1
    assert [row["id"] for row in rows_of(tmp_path)] == [*(n for n in range(200) if n != 3), 500]
    assert len(list((tmp_path / "t").glob("hr-*.parquet"))) == 6


def test_files_without_statistics_are_compacted_together(store: Store) -> None:
    store.create_table("b", {"id": "binary", "n": "long"}, "id")
    table = store.table("b")
    assert isinstance(table, DeltaTable)
    for number in range(3):
        table.put({"id": bytes([number]), "n": number})
    assert maintenance.compact(table).before == 3
    assert [row["n"] for row in table] == [0, 1, 2]


def age(path: Path, days: float) -> None:
    moment = time.time() - days * DAY
    os.utime(path, (moment, moment))


def test_vacuum_deletes_orphans_and_replaced_files_of_some_age(
    store: Store, table: DeltaTable, tmp_path: Path, run: Callable[..., Any]
) -> None:
    directory = tmp_path / "t"
    for name, days in (("hr-dead.parquet", 9), ("hr-staged.parquet", 1), ("theirs.parquet", 9)):
        (directory / name).write_bytes(b"x")
        age(directory / name, days)
    for entry in (directory / "_delta_log").iterdir():
        age(entry, 9)
    maintenance.compact(table)
    assert maintenance.orphans(table) == ["hr-dead.parquet"]
    (finding,) = store.check()
    assert (finding.status, "1 files of writers" in finding.found) == (Status.WARN, True)
    # The files that compaction has replaced are young: readers of the version before need them.
    assert run("lake", "vacuum", "t") == [{"table": "t", "files": 1}]
    assert len(list(directory.glob("*.parquet"))) == 8
    assert maintenance.vacuum(table, 0) == 6
    assert sorted(path.name[:2] for path in directory.glob("*.parquet")) == ["hr", "th"]
    assert len(list(table)) == 200


def test_files_that_disappear_meanwhile_are_no_error(
    table: DeltaTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "t" / "_delta_log"
    # Its name is found, and it cannot be opened: as a draft that its writer deletes in between.
    (log / ".draft.tmp").symlink_to("nothing")
    assert maintenance.vacuum(table, 0) == 0
    (tmp_path / "t" / "hr-dead.parquet").touch()
    age(tmp_path / "t" / "hr-dead.parquet", 9)
    assert maintenance.orphans(table) == ["hr-dead.parquet"]
    read_text = Path.read_text

    def removed(path: Path, encoding: str) -> str:
        path.unlink(missing_ok=path.name.endswith("2.json"))
        return read_text(path, encoding)

    foreign(tmp_path).create_checkpoint()
    monkeypatch.setattr(Path, "read_text", removed)
    # An entry that was removed may name the file.
    assert maintenance.orphans(table) == []


def test_orphans_are_unknown_while_the_log_lacks_entries_of_the_time(table: DeltaTable, tmp_path: Path) -> None:
    (tmp_path / "t" / "hr-dead.parquet").touch()
    age(tmp_path / "t" / "hr-dead.parquet", 9)
    foreign(tmp_path).create_checkpoint()
    (tmp_path / "t" / "_delta_log" / f"{0:020}.json").unlink()
    assert maintenance.orphans(table) == []


def test_a_check_finds_what_readers_would_get_wrong(
    store: Store, table: DeltaTable, tmp_path: Path, run: Callable[..., Any]
) -> None:
    assert [finding.status for finding in store.check()] == [Status.OK]
    assert "200 rows in 5 files" in json.dumps(run("store", "check"))
    append(tmp_path, [{"id": 5, "name": "twice"}])
    (finding,) = maintenance.check(table)
    assert (finding.status, finding.found) == (Status.FAIL, "two rows have the same key")
    (path,) = {file.path for file in table.snapshot().files} - {file.name for file in (tmp_path / "t").glob("hr-*")}
    (tmp_path / "t" / path).unlink()
    assert "does not exist as the log has it" in maintenance.check(table)[0].found
    assert main(["lake", "check", "-s", f"delta://{tmp_path}"]) == 1
    (tmp_path / "t" / "_delta_log" / f"{table.snapshot().version + 1:020}.json").write_text("{torn")
    (finding,) = maintenance.check(table)
    assert (finding.status, "log of Delta table 't' cannot be read" in finding.found) == (Status.FAIL, True)


def test_doctor_names_tables_that_cannot_be_written(store: Store, tmp_path: Path) -> None:
    foreign(tmp_path).alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 days"})
    found = {each.name: each for each in store.diagnose()}
    assert found["Store"].status == Status.OK
    assert found["Table t"].status == Status.WARN
    with pytest.raises(SchemaError):
        store.create_table("u", {"wait": "interval day to second", "id": "long"}, "id")


def test_commands(table: DeltaTable, tmp_path: Path, run: Callable[..., Any]) -> None:
    assert run("lake", "compact") == [{"table": "t", "version": 6, "files": 5, "into": 1}]
    (checked,) = run("lake", "check", "t")
    assert (checked["status"], "all keys are different" in checked["found"]) == ("ok", True)
    versions = run("lake", "history", "t", "--limit", "2")
    assert [(each["version"], each["batch"]) for each in versions] == [(6, None), (5, None)]
    assert "t" in json.dumps(run("table", "list"))
    out = tmp_path / "rows.parquet"
    assert main(["export", "t", str(out), "-s", f"delta://{tmp_path}"]) == 0
    with data_files.opened(out) as exported:
        assert exported.metadata.num_rows == 200


def test_a_command_for_all_tables_goes_on_after_one_that_it_cannot_maintain(
    table: DeltaTable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = opened(tmp_path)
    # In the order of names one is before table t, and one is after it.
    for name in ("a", "z"):
        store.create_table(name, {"id": "long", "name": "string"}, "id")
        foreign(tmp_path, name).alter.set_table_properties(
            {"delta.constraints.own" if name == "z" else "delta.setTransactionRetentionDuration": "interval 1 days"},
            raise_if_not_exists=False,
        )
    address = ["-s", f"delta://{tmp_path}", "--json"]
    assert main(["lake", "compact", *address]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == [{"table": "t", "version": 6, "files": 5, "into": 1}]
    assert [name for name in ("a", "t", "z") if f"table {name}: " in shown.err] == ["a", "z"]
    # A table that was named must be maintained, and is an error if it is the only one.
    assert main(["lake", "compact", "t", "a", *address]) == 1
    assert json.loads(capsys.readouterr().out) == [{"table": "t", "version": None, "files": 0, "into": 0}]
    assert main(["lake", "compact", "a", *address]) == 1
    assert '{"error": ' in capsys.readouterr().err
    (tmp_path / "z" / "_delta_log" / f"{0:020}.json").write_text("damaged")
    assert main(["lake", "compact", *address]) == 1
    assert len(json.loads(capsys.readouterr().out)) == 1
    for wrong in (["compact", "t", "missing"], ["vacuum", "--days", "99999999999"], ["compact", "--megabytes", "0"]):
        assert main(["lake", *wrong, *address]) != 0
        assert capsys.readouterr().out == ""


def test_a_table_without_a_key_is_compacted_and_checked(store: Store, tmp_path: Path) -> None:
    for number in range(3):
        rows = pa.table({"id": [number, 0], "name": ["theirs", "again"]})
        write_deltalake(str(tmp_path / "events"), rows, mode="append", configuration={"delta.appendOnly": "true"})
    found, before = store.table("events"), rows_of(tmp_path, "events")
    queued = store.queue("events").read(0, 0, 10).rows
    assert isinstance(found, DeltaTable)
    assert maintenance.compact(found) == Compaction(3, 3, 1)
    assert sorted(map(str, rows_of(tmp_path, "events"))) == sorted(map(str, before))
    assert store.queue("events").read(0, 0, 10).rows.equals(queued)
    (finding,) = maintenance.check(found)
    assert (finding.status, finding.found) == (Status.OK, "version 3, 6 rows in 1 files")
