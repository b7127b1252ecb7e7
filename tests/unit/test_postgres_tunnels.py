"""The pure parts of PostgreSQL's tunnels: positions, snapshots, and messages as changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError, UnsupportedError
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.values import FINISHED, Position
from headrace.stores.postgres.tunnels import positions
from headrace.stores.postgres.tunnels.log import Window, WindowRows
from headrace.stores.postgres.tunnels.snapshots import ChunkSnapshot, Snapshot, Snapshots, TableSnapshots
from headrace.stores.postgres.tunnels.table_images import TableColumns
from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.messages import Decoder
from tests.unit import pgoutput_samples as pg
from tests.unit.pgoutput_samples import Unchanged

SCHEMA = TableSchema.of({"k": "string", "note": "string"}, "k")
TABLE = TableColumns("orders", SCHEMA, {})
RELATION = pg.relation(7, "orders", [("k", types.TEXT), ("note", types.TEXT)])


def changes_of(*messages: bytes, snapshots: Snapshots | None = None) -> Changes:
    images = Decoder().decode(pa.array([RELATION, *messages], pa.binary())).images
    return pg.changes([pg.table_images(each, TABLE) for each in images], SCHEMA, snapshots)


def rows_of(found: Changes) -> list[tuple[ChangeOp, str, Any]]:
    return [
        (ChangeOp(op), key, note)
        for op, key, note in zip(
            found.ops.to_pylist(), found.rows.column(0).to_pylist(), found.rows.column(1).to_pylist(), strict=True
        )
    ]


def snapshots_of(*chunks: ChunkSnapshot) -> Snapshots:
    return Snapshots({7: TableSnapshots(chunks)})


def test_each_change_has_its_operation() -> None:
    found = changes_of(
        pg.begin(5),
        pg.insert(7, [b"a", b"1"]),
        pg.update(7, [b"a", b"2"]),
        pg.update(7, [b"a", b"3"], old=[b"a", b"2"]),
        pg.delete(7, key=[b"a", None]),
        pg.delete(7, old=[b"b", b"4"]),
        pg.commit(5),
    )
    assert rows_of(found) == [
        (ChangeOp.INSERT, "a", "1"),
        (ChangeOp.REPLACE, "a", "2"),
        (ChangeOp.PREIMAGE, "a", "2"),
        (ChangeOp.REPLACE, "a", "3"),
        (ChangeOp.DELETE, "a", None),
        (ChangeOp.DELETE_WITH_ROW, "b", "4"),
    ]
    assert set(found.versions.to_pylist()) == {5}


def test_a_change_of_the_key_is_a_delete_and_an_insert() -> None:
    found = changes_of(
        pg.begin(5),
        pg.update(7, [b"b", b"1"], key=[b"a", None]),
        pg.update(7, [b"c", b"1"], old=[b"b", b"1"]),
        pg.commit(5),
    )
    assert rows_of(found) == [
        (ChangeOp.DELETE, "a", None),
        (ChangeOp.INSERT, "b", "1"),
        (ChangeOp.DELETE_WITH_ROW, "b", "1"),
        (ChangeOp.INSERT, "c", "1"),
    ]


def test_an_unchanged_large_value_without_the_old_row_is_an_error_that_names_the_remedy() -> None:
    with pytest.raises(UnsupportedError, match=r"'note'.*pre_images=true"):
        changes_of(pg.begin(5), pg.update(7, [b"a", Unchanged]), pg.commit(5))
    found = changes_of(pg.begin(5), pg.update(7, [b"a", Unchanged], old=[b"a", b"large"]), pg.commit(5))
    assert rows_of(found)[1] == (ChangeOp.REPLACE, "a", "large")


def test_a_position_inside_a_transaction_counts_its_rows() -> None:
    rows = [pg.insert(7, [b"%d" % number, None]) for number in range(4)]
    found = changes_of(pg.begin(3), *rows[:1], pg.commit(3), pg.begin(9), *rows[1:], pg.commit(9))
    window = Window(2, 20, found)
    assert [window.position(row) for row in range(5)] == [
        Position("0/3", 0),
        Position("0/9", 0),
        Position("0/9", 1),
        Position("0/9", 2),
        # Behind the last transaction, and not at the end of the window.
        Position("0/A", 0),
    ]
    assert [window.rows_before(lsn) for lsn in (3, 4, 9, 10)] == [0, 1, 1, 4]
    assert window.behind == 10
    assert Window(2, 20, found.slice(0, 0)).behind == 2


def test_a_page_does_not_separate_an_old_row_from_its_new_one() -> None:
    found = changes_of(pg.begin(5), *(pg.update(7, [b"a", b"2"], old=[b"a", b"1"]) for _ in range(3)), pg.commit(5))
    rows = WindowRows(Window(0, 20, found), 2, 6, 20)
    assert rows.count == rows.changes.num_rows == 4
    assert [rows.page(most).changes.num_rows for most in (0, 1, 2, 3, 4, 100)] == [2, 2, 2, 2, 4, 4]
    assert [rows.page(most).next for most in (1, 4)] == [Position("0/5", 4), Position("0/6", 0)]


def test_a_column_that_the_log_does_not_have_yet_is_null() -> None:
    old = pg.relation(7, "orders", [("k", types.TEXT)])
    images = Decoder().decode(pa.array([old, pg.begin(5), pg.insert(7, [b"a"]), pg.commit(5)], pa.binary())).images
    pieces = [pg.table_images(each, TABLE) for each in images]
    assert rows_of(pg.changes(pieces, SCHEMA)) == [(ChangeOp.INSERT, "a", None)]


@pytest.mark.parametrize(
    ("text", "xid", "visible"),
    [
        ("10:20:10,14", 9, True),
        ("10:20:10,14", 10, False),
        ("10:20:10,14", 11, True),
        ("10:20:10,14", 14, False),
        ("10:20:10,14", 20, False),
        # The 32 bits of a transaction id have wrapped around since, or will before, the snapshot.
        ("4294967290:4294967300:", 4294967289, True),
        ("4294967290:4294967300:", 3, True),
        ("4294967290:4294967300:", 4, False),
        ("4294967280:4294967290:", 5, False),
    ],
)
def test_a_snapshot_sees_the_transactions_that_had_committed(text: str, xid: int, visible: bool) -> None:
    assert Snapshot.parse(text).sees(np.array([xid])).tolist() == [visible]


def test_the_stream_leaves_out_what_the_snapshot_of_a_chunk_has_seen() -> None:
    # The second chunk was read after transaction 6.
    snapshots = snapshots_of(ChunkSnapshot(None, "5:5:"), ChunkSnapshot(("m",), "7:7:"))
    assert snapshots.complete
    messages = [
        part
        for xid in (4, 6, 8)
        for part in (
            pg.begin(xid, xid=xid),
            *(pg.insert(7, [key, b"%d" % xid]) for key in (b"a", b"m")),
            pg.commit(xid),
        )
    ]
    found = changes_of(*messages, snapshots=snapshots)
    assert [(key, note) for _, key, note in rows_of(found)] == [("a", "6"), ("a", "8"), ("m", "8")]


@pytest.mark.parametrize("whole", [True, False])
def test_a_row_that_moves_to_another_chunk_is_left_out_only_where_base_data_has_the_change(whole: bool) -> None:
    # The second chunk was read after transaction 6, and the first one before it.
    snapshots = snapshots_of(ChunkSnapshot(None, "5:5:"), ChunkSnapshot(("m",), "7:7:"))

    def moved(before: bytes, after: bytes) -> bytes:
        old = {"old": [before, b"1"]} if whole else {"key": [before, None]}
        return pg.update(7, [after, b"1"], **old)

    messages = [pg.begin(6, xid=6), moved(b"a", b"x"), moved(b"y", b"b"), pg.insert(7, [b"c", b"2"]), pg.commit(6)]
    delete = ChangeOp.DELETE_WITH_ROW if whole else ChangeOp.DELETE
    assert rows_of(changes_of(*messages, snapshots=snapshots)) == [
        (delete, "a", "1" if whole else None),
        (ChangeOp.INSERT, "b", "1"),
        (ChangeOp.INSERT, "c", "2"),
    ]


def test_a_chunk_that_was_not_read_contains_no_change() -> None:
    snapshots = snapshots_of(ChunkSnapshot(None, None))
    assert not snapshots.complete
    found = changes_of(pg.begin(5), pg.insert(7, [b"a", None]), pg.commit(5), snapshots=snapshots)
    assert found.num_rows == 1


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 1 << 40))
def test_positions_are_read_back(lsn: int, skip: int) -> None:
    assert positions.lsn_of(positions.lsn_position(lsn, skip)) == lsn
    assert positions.parse_lsn(positions.lsn_text(lsn)) == lsn
    assert positions.is_after(FINISHED, positions.lsn_position(lsn, skip))


@pytest.mark.parametrize("token", ["", "row:", "row:x", "0/", "/0", "1/2/3", "0/123456789", "x/1"])
def test_an_invalid_position_is_refused(token: str) -> None:
    with pytest.raises(OptionError):
        positions.lsn_of(Position(token))
    with pytest.raises(OptionError):
        positions.row_of(Position(token))
