"""Tunnels of Delta tables that other programs write: feeds, OPTIMIZE, vacuum, losses, tables without a key."""

from __future__ import annotations

import ast
import datetime
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import headrace
from headrace.errors import DataLossError, StoreDamagedError, UnsupportedError
from headrace.model.tables.changes import ChangeOp
from headrace.model.tunnels.values import FINISHED, Position
from headrace.ports import Store
from headrace.testing.reading import Change, drain, read_from, replay, state_of
from headrace_lake.delta.tunnels.tunnel import STREAM
from headrace_lake.home import OWNER
from tests.lake.lakes import append, foreign, opened

KEY = {"headrace.primaryKey": '["id"]'}
FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as found:
        yield found


def rows(*values: tuple[int, str]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([each[0] for each in values], "int64"),
            "name": pa.array([each[1] for each in values], "string"),
        }
    )


def create(directory: Path, properties: dict[str, str], name: str = "theirs") -> None:
    """Create a table of another program, with three rows."""
    DeltaTable.create(
        str(directory / name), rows().schema, configuration=dict(properties), raise_if_key_not_exists=False
    )
    write_deltalake(str(directory / name), rows((1, "a"), (2, "b"), (3, "c")), mode="append")


def shown(changes: list[Change]) -> list[tuple[ChangeOp, int, Any]]:
    return [(change.op, change.row["id"], change.row["name"]) for change in changes]


@pytest.mark.parametrize("properties", [KEY, KEY | FEED], ids=["compared by key", "feed"])
def test_changes_of_another_program(store: Store, tmp_path: Path, properties: dict[str, str]) -> None:
    create(tmp_path, properties)
    tunnel = store.create_tunnel("theirs", "t")
    theirs = foreign(tmp_path, "theirs")
    source = rows((2, "B"), (3, "c"), (4, "d"))
    merge = theirs.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    theirs.delete("id = 1")
    theirs.optimize.compact()
    theirs.optimize.z_order(["id"])
    write_deltalake(str(tmp_path / "theirs"), rows((4, "d"), (5, "e")), mode="overwrite")
    changes = drain(tunnel, page_rows=2)
    assert sorted(shown(changes[:3])) == [(ChangeOp.BASE, n, name) for n, name in ((1, "a"), (2, "b"), (3, "c"))]
    assert shown(changes[3:]) == [
        (ChangeOp.PREIMAGE, 2, "b"),
        (ChangeOp.REPLACE, 2, "B"),
        (ChangeOp.INSERT, 4, "d"),
        (ChangeOp.DELETE_WITH_ROW, 1, "a"),
        (ChangeOp.DELETE_WITH_ROW, 2, "B"),
        (ChangeOp.DELETE_WITH_ROW, 3, "c"),
        (ChangeOp.INSERT, 5, "e"),
    ]
    assert replay(changes, whole_rows=True) == state_of(store.table("theirs"))
    assert drain(tunnel) == []


@pytest.mark.parametrize("vectors", [False, True])
def test_texts_with_characters_at_which_lines_could_end(store: Store, vectors: bool) -> None:
    """JSON has them as they are: the log has them in bounds of columns, and in the values of partitions."""
    columns = {"id": "string", "name": "string"}
    table = store.create_table("odd", columns, "id", partition_by="name", deletion_vectors=vectors, pre_images=True)
    tunnel = store.create_tunnel("odd", "t")
    names = [f"a{character}b" for character in "\n\r\v\f\x1c\x85\u2028\u2029"]
    table.put([{"id": f"{name}{number}", "name": name} for name in names for number in range(8)])
    table.delete([{"id": f"{name}3"} for name in names])
    table.put([{"id": f"{name}4", "name": names[0]} for name in names])
    assert replay(drain(tunnel), whole_rows=True) == state_of(table)
    assert len(state_of(table)) == 7 * len(names)


def test_the_log_is_read_in_any_locale(store: Store, tmp_path: Path) -> None:
    table = store.create_table("odd", {"id": "string", "name": "string"}, "id", partition_by="name")
    store.create_tunnel("odd", "t", "Stream")
    table.put({"id": "ü", "name": "月"})
    program = (
        "import sys, headrace\n"
        "from headrace.testing.reading import drain\n"
        "with headrace.open(sys.argv[1]) as store:\n"
        "    print(ascii([each.row for each in drain(store.tunnel('t'))]))\n"
    )
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    call = [sys.executable, "-c", program, store.url]
    printed = subprocess.run(call, env=os.environ | locale, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert ast.literal_eval(printed) == [{"id": "ü", "name": "月"}]


def test_optimize_and_properties_are_no_changes(store: Store, tmp_path: Path) -> None:
    table = store.table("t")
    for number in range(3):
        table.put({"id": number, "name": "x"})
    tunnel = store.create_tunnel("t", "t", "Stream")
    foreign(tmp_path).optimize.compact()
    foreign(tmp_path).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    backlog = tunnel.backlog(STREAM, tunnel.channels()[0].committed)
    assert backlog.empty
    assert drain(tunnel) == []
    # The position goes on, so that the log of the table may be deleted.
    committed = tunnel.channels()[0].committed
    assert (committed.token.partition("@")[0], committed.skip) == ("5", 0)


def test_rows_of_a_table_without_a_key_are_appended(store: Store, tmp_path: Path) -> None:
    create(tmp_path, {})
    tunnel = store.create_tunnel("theirs", "t")
    write_deltalake(str(tmp_path / "theirs"), rows((3, "c"), (3, "c")), mode="append")
    assert len(drain(tunnel)) == 5
    foreign(tmp_path, "theirs").delete("id = 1")
    with pytest.raises(UnsupportedError, match=r"headrace\.primaryKey"):
        drain(tunnel)
    create(tmp_path, FEED, "fed")
    fed = store.create_tunnel("fed", "t", "Stream")
    foreign(tmp_path, "fed").update(updates={"name": "'B'"}, predicate="id = 2")
    assert shown(drain(fed)) == [(ChangeOp.DELETE_WITH_ROW, 2, "b"), (ChangeOp.INSERT, 2, "B")]


def lose_files(directory: Path) -> None:
    """Delete the files that the table no longer has."""
    foreign(directory).vacuum(0, dry_run=False, enforce_retention_duration=False)


def test_a_file_that_vacuum_has_deleted_is_a_loss(store: Store, tmp_path: Path) -> None:
    table = store.table("t")
    table.put([{"id": 1, "name": "a"}])
    both, stream = store.create_tunnel("t", "both"), store.create_tunnel("t", "stream", "Stream")
    table.put([{"id": 1, "name": "b"}])
    table.put([{"id": 1, "name": "c"}])
    table.put([{"id": 2, "name": "d"}])
    lose_files(tmp_path)
    for tunnel, channel in ((both, "base-0"), (stream, STREAM)):
        start = next(each.committed for each in tunnel.channels() if each.id == channel)
        with pytest.raises(DataLossError, match="VACUUM has deleted a file"):
            tunnel.read(channel, start, 10)
    assert "VACUUM" in str(stream.describe().warnings)
    position = stream.channels()[0].committed
    skipped = 0
    while (after := stream.skip_lost(STREAM, position)) != (position, 0):
        position, skipped = after[0], skipped + 1
    assert skipped == 2
    assert shown(read_from(stream, STREAM, position)[0]) == [(ChangeOp.INSERT, 2, "d")]


def test_entries_of_the_log_that_were_deleted_are_a_loss(store: Store, tmp_path: Path) -> None:
    tunnel = store.create_tunnel("t", "t", "Stream")
    for number in range(3):
        append(tmp_path, [{"id": number, "name": "x"}])
    foreign(tmp_path).create_checkpoint()
    for version in range(3):
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(DataLossError, match="no longer has the entry"):
        drain(tunnel)
    start = tunnel.channels()[0].committed
    position, lost = tunnel.skip_lost(STREAM, start)
    assert (position, lost) == (Position("2"), None)
    assert [change.row["id"] for change in read_from(tunnel, STREAM, position)[0]] == [2]
    early = store.create_tunnel("t", "early", "Stream", start="earliest")
    assert [change.row["id"] for change in drain(early)] == [2]


def test_base_data_whose_version_the_log_no_longer_has_is_a_loss(store: Store, tmp_path: Path) -> None:
    store.table("t").put([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    tunnel = store.create_tunnel("t", "t")
    store.table("t").put({"id": 1, "name": "c"})
    theirs = foreign(tmp_path)
    theirs.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    theirs.create_checkpoint()
    theirs.cleanup_metadata()
    start = tunnel.channels()[0].committed
    with pytest.raises(DataLossError, match="no longer has the entry"):
        tunnel.read("base-0", start, 10)
    assert tunnel.skip_lost("base-0", start) == (FINISHED, 2)


@pytest.mark.parametrize("later", [0, 1])
def test_a_table_that_was_replaced_is_a_loss(store: Store, tmp_path: Path, later: int) -> None:
    """Also while it is read, and with the same number of versions; the changes of another table are not skipped to."""
    create(tmp_path, KEY)
    tunnel = store.create_tunnel("theirs", "t", "Stream")
    assert drain(tunnel) == []
    (tmp_path / "theirs").rename(tmp_path / "old")
    create(tmp_path, KEY)
    for number in range(later):
        write_deltalake(str(tmp_path / "theirs"), rows((4 + number, "d")), mode="append")
    start = tunnel.channels()[0].committed
    for call in (lambda: drain(tunnel), lambda: tunnel.skip_lost(STREAM, start)):
        with pytest.raises(DataLossError, match="replaced by another one"):
            call()


def test_an_older_copy_of_a_table_is_a_loss(store: Store, tmp_path: Path) -> None:
    create(tmp_path, KEY)
    shutil.copytree(tmp_path / "theirs", tmp_path / "copy")
    tunnel = store.create_tunnel("theirs", "t", "Stream")
    write_deltalake(str(tmp_path / "theirs"), rows((4, "d")), mode="append")
    changes, end = read_from(tunnel, STREAM, tunnel.channels()[0].committed)
    assert len(changes) == 1
    (tmp_path / "theirs").rename(tmp_path / "newer")
    (tmp_path / "copy").rename(tmp_path / "theirs")
    for call in (lambda: tunnel.read(STREAM, end, 10), lambda: tunnel.skip_lost(STREAM, end)):
        with pytest.raises(DataLossError, match="older copy"):
            call()


@pytest.mark.parametrize("reader", ["a running one", "another process"])
@pytest.mark.parametrize("read", ["committed", "read", "read in part", "nothing"])
def test_an_older_copy_that_has_grown_since_is_a_loss(store: Store, tmp_path: Path, read: str, reader: str) -> None:
    """Also if the end of the last batch is not committed, or nothing was read since the tunnel was created."""
    create(tmp_path, KEY)
    shutil.copytree(tmp_path / "theirs", tmp_path / "copy")
    if read == "nothing":
        write_deltalake(str(tmp_path / "theirs"), rows((9, "d")), mode="append")
    tunnel = store.create_tunnel("theirs", "t", "Stream")
    end = tunnel.channels()[0].committed
    if read != "nothing":
        write_deltalake(str(tmp_path / "theirs"), rows((4, "d"), (5, "d")), mode="append")
        end = tunnel.read(STREAM, end, 1 if read == "read in part" else 10).next
    if read == "committed":
        tunnel.commit({STREAM: end})
        foreign(tmp_path, "theirs").optimize.compact()
        assert not read_from(headrace.open(store.url).tunnel("t"), STREAM, end)[0]
    (tmp_path / "theirs").rename(tmp_path / "newer")
    (tmp_path / "copy").rename(tmp_path / "theirs")
    for key in (5, 6, 7):
        write_deltalake(str(tmp_path / "theirs"), rows((key, "e")), mode="append")
    again = tunnel if reader == "a running one" else headrace.open(store.url).tunnel("t")
    calls: list[Callable[[], object]] = [lambda: again.read(STREAM, end, 10), lambda: again.skip_lost(STREAM, end)]
    if not end.skip:
        # The end of the batch becomes the committed position, and keeps what was read.
        again.commit({STREAM: end})
        calls.append(again.latest_positions)
    for call in calls:
        with pytest.raises(DataLossError, match="older copy"):
            call()


def test_base_data_of_an_older_copy_that_has_grown_since_is_a_loss(store: Store, tmp_path: Path) -> None:
    create(tmp_path, KEY)
    shutil.copytree(tmp_path / "theirs", tmp_path / "copy")
    write_deltalake(str(tmp_path / "theirs"), rows((4, "d")), mode="append")
    tunnel = store.create_tunnel("theirs", "t")
    start = tunnel.channels()[0].committed
    assert tunnel.read("base-0", start, 1).changes.num_rows == 1
    (tmp_path / "theirs").rename(tmp_path / "newer")
    (tmp_path / "copy").rename(tmp_path / "theirs")
    for key in (5, 6):
        write_deltalake(str(tmp_path / "theirs"), rows((key, "e")), mode="append")
    for reader in (tunnel, headrace.open(store.url).tunnel("t")):
        with pytest.raises(DataLossError, match="older copy"):
            reader.read("base-0", start, 2)
        with pytest.raises(DataLossError, match="older copy"):
            reader.skip_lost("base-0", start)


def test_the_same_table_in_another_place_is_read_on(store: Store, tmp_path: Path) -> None:
    """A copy that is as new has the same entries, in other files."""
    create(tmp_path, KEY)
    tunnel = store.create_tunnel("theirs", "t", "Stream")
    write_deltalake(str(tmp_path / "theirs"), rows((4, "d"), (5, "d")), mode="append")
    page = tunnel.read(STREAM, tunnel.channels()[0].committed, 1)
    shutil.copytree(tmp_path / "theirs", tmp_path / "copy")
    (tmp_path / "theirs").rename(tmp_path / "newer")
    (tmp_path / "copy").rename(tmp_path / "theirs")
    write_deltalake(str(tmp_path / "theirs"), rows((6, "e")), mode="append")
    for reader in (tunnel, headrace.open(store.url).tunnel("t")):
        changes, _ = read_from(reader, STREAM, page.next)
        assert [change.row["id"] for change in changes] == [5, 6]


def test_an_empty_entry_of_the_log_is_a_loss(store: Store, tmp_path: Path) -> None:
    """A power failure, or a writer that is not complete, leaves such entries, and readers of tables skip them."""
    create(tmp_path, KEY)
    tunnel = store.create_tunnel("theirs", "t", "Stream")
    (tmp_path / "theirs" / "_delta_log" / f"{2:020}.json").touch()
    write_deltalake(str(tmp_path / "theirs"), rows((4, "d")), mode="append")
    start = tunnel.channels()[0].committed
    with pytest.raises(DataLossError, match="empty entry"):
        tunnel.read(STREAM, start, 10)
    start, lost = tunnel.skip_lost(STREAM, start)
    assert lost is None
    changes, _ = read_from(tunnel, STREAM, start)
    assert [change.row["id"] for change in changes] == [4]


MOMENT = datetime.datetime(2026, 11, 28, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.array([2]), pa.array([True])),
        (pa.array([MOMENT]), pa.array([MOMENT.date()])),
        (pa.array([MOMENT.date()]), pa.array([2], "int32")),
        (pa.array([0.5]), pa.array(["0.5"])),
        (pa.array(["a"]), pa.array([2])),
        (pa.array([1 << 40]), pa.array([2], "int32")),
    ],
    ids=lambda values: str(values.type),
)
def test_columns_that_another_program_replaces(store: Store, tmp_path: Path, before: pa.Array, after: pa.Array) -> None:
    """Earlier rows do not come with values that they have never had."""

    def overwrite(column: pa.Array) -> None:
        found = pa.table({"id": pa.array([1]), "name": column})
        write_deltalake(str(tmp_path / "theirs"), found, mode="overwrite", schema_mode="overwrite")

    create(tmp_path, KEY)
    overwrite(before)
    stream, both = store.create_tunnel("theirs", "stream", "Stream"), store.create_tunnel("theirs", "both")
    overwrite(after)
    for tunnel in (stream, both):
        with pytest.raises(StoreDamagedError, match="other values in column 'name'"):
            drain(tunnel)
    assert [change.row["name"] for change in drain(store.create_tunnel("theirs", "new"))] == after.to_pylist()


def test_columns_that_are_added_are_null_in_earlier_changes(store: Store, tmp_path: Path) -> None:
    tunnel = store.create_tunnel("t", "t", "Stream")
    table = store.table("t")
    table.put({"id": 1, "name": "a"})
    assert tunnel.read(STREAM, tunnel.channels()[0].committed, 10).changes.num_rows == 1
    table.add_columns({"size": "double"})
    table.put([{"id": 1, "name": "a", "size": 0.5}, {"id": 2, "name": "b"}])
    assert [(each.op, each.row["size"]) for each in drain(tunnel)] == [
        (ChangeOp.INSERT, None),
        (ChangeOp.REPLACE, 0.5),
        (ChangeOp.INSERT, None),
    ]


def test_the_home_of_tunnels_is_dropped_with_the_table(store: Store) -> None:
    store.create_tunnel("t", "t")
    store.drop_table("t")
    for name in {*store.tables()} - {OWNER.name}:
        assert list(store.table(name)) == []
