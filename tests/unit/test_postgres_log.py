"""The change log of a PostgreSQL tunnel: the same rows wherever its reads and windows are cut, without a server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataLossError
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.values import Position, TunnelKind
from headrace.stores.postgres.tunnels import log, slot_reads
from headrace.stores.postgres.tunnels.log import ChangeLog, WindowRows
from headrace.stores.postgres.tunnels.members import Member
from headrace.stores.postgres.tunnels.positions import lsn_of, lsn_position
from headrace.stores.postgres.tunnels.publications import Publication
from headrace.stores.postgres.tunnels.snapshots import Snapshots
from headrace.stores.postgres.tunnels.stored_tunnels import StoredTunnel
from headrace.stores.postgres.tunnels.table_images import TableColumns, TableImages
from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.messages import Images, Truncation, WrittenLeaf
from tests.unit import pgoutput_samples as pg

TABLE = TableColumns("orders", TableSchema.of({"k": "string"}, "k"), {})
TUNNEL = StoredTunnel("id", 7, "orders", "changes", TunnelKind.STREAM, 0.0, "slot", "1", "publication", True, True)
END = 400


class Transaction(NamedTuple):
    """A transaction: the LSN of its commit, its rows, and whether it truncates the table after them.

    Its last row can be of another table, ``bills``. Before each row is a description of the partition that it is from.
    """

    lsn: int
    rows: int
    truncates: bool = False
    of_bills: bool = False


class Server:
    """A database with a slot, whose log grows up to ``flushed``."""

    def __init__(self, transactions: Sequence[Transaction]) -> None:
        self.transactions = transactions
        self.flushed = END
        self.peeks = 0

    def query(self, statement: str, parameters: object) -> list[tuple[Any, ...]]:
        return [(self.flushed, 0, 0, 0, 0, 0, "reserved", True, None, None)]

    def ask(self, work: Callable[[Any], Any]) -> Snapshots:
        return Snapshots({})

    def peek(
        self, database: object, slot: str, publication: str, end: int, *, binary: bool, messages: int | None = None
    ) -> tuple[list[pa.RecordBatch], int]:
        self.peeks += 1
        batches, count = list[pa.RecordBatch](), 0
        for lsn, rows, truncates, of_bills in self.transactions:
            if lsn >= end:
                break
            tables = [7] * rows + [8] * of_bills
            found = [pg.begin(lsn)]
            for row, table in enumerate(tables):
                found += [pg.relation(table + 10, "leaf", []), pg.insert(table, [b"%d-%d" % (lsn, row)])]
            found += [*([pg.truncate(7)] if truncates else []), pg.commit(lsn)]
            names = {} if batches else {7: "orders", 8: "bills"}
            relations = [pg.relation(oid, name, [("k", types.TEXT)]) for oid, name in names.items()]
            batches.append(pa.record_batch({"data": pa.array([*relations, *found], pa.binary())}))
            count += len(found)
            if messages is not None and count >= messages:
                return batches, lsn + 1
        return batches, end


class Table:
    """A table that is followed; the changes of some transactions, by their LSNs, cannot be read by its definition.

    Args:
        bills: table ``bills``, if it has joined the tunnel.
    """

    binary, published = False, ()

    def __init__(self, unreadable: Collection[int], bills: Member | None = None) -> None:
        self.unreadable = unreadable
        self.members = {7: Member("orders", None, False)} | ({} if bills is None else {8: bills})
        self.relations = tuple(self.members)
        self.leaves, self.definitions = list[tuple[int, int]](), self

    def are_current(self) -> bool:
        return True

    def pieces(self, images: Sequence[Images]) -> list[TableImages]:
        pieces = [each.filter(each.lsns == lsn) for each in images for lsn in np.unique(each.lsns).tolist()]
        return [replace(pg.table_images(each, TABLE), problem=self.problem(int(each.lsns[0]))) for each in pieces]

    def problem(self, lsn: int) -> str | None:
        return "another type" if lsn in self.unreadable else None

    def check_leaves(self, leaves: Sequence[WrittenLeaf], start: int) -> None:
        self.leaves += [(each.leaf.oid, each.transaction.lsn) for each in leaves]

    def name_of(self, relation: int) -> str:
        return "orders"

    def changes(
        self, pieces: Sequence[TableImages], snapshots: Snapshots | None, truncations: Sequence[Truncation] = ()
    ) -> Changes:
        return pg.changes(pieces, TABLE.schema, snapshots, truncations)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "WINDOW_BYTES", 10)
    monkeypatch.setattr(Publication, "check", lambda *_: None)
    monkeypatch.setattr(
        slot_reads, "peek", lambda database, *rest, **options: database.peek(database, *rest, **options)
    )


def log_of(server: Server, *unreadable: int, bills: Member | None = None) -> ChangeLog:
    database: Any = server
    table: Any = Table(unreadable, bills)
    return ChangeLog(database, TUNNEL, table)


def keys(rows: WindowRows) -> list[str]:
    return list(rows.changes.rows.column(0).to_pylist())


def keys_between(transactions: Sequence[Transaction], start: int, end: int) -> list[str]:
    return [f"{lsn}-{row}" for lsn, rows, *_ in transactions if start <= lsn < end for row in range(rows)]


def keys_after(transactions: Sequence[Transaction], position: Position, end: int) -> list[str]:
    return keys_between(transactions, lsn_of(position), end)[position.skip :]


LSNS = st.integers(0, END)
TRANSACTIONS = st.dictionaries(st.integers(0, END - 1), st.integers(0, 5), max_size=30).map(
    lambda rows: [Transaction(*each) for each in sorted(rows.items())]
)
# The end of the log; a position, with rows to skip; the rows up to a bound; about how many rows are wanted.
CALLS = st.lists(
    st.tuples(LSNS, LSNS, st.integers(0, 12), st.none() | st.integers(0, 30), st.none() | st.integers(1, 20)),
    min_size=1,
    max_size=12,
)


@given(TRANSACTIONS, CALLS)
def test_each_call_has_the_rows_at_its_position_whatever_was_read_before(
    transactions: list[Transaction], calls: list[tuple[int, int, int, int | None, int | None]]
) -> None:
    server = Server(transactions)
    reader = log_of(server)
    # The log only grows.
    for flushed, (_, lsn, skip, bound, total) in zip(sorted(call[0] for call in calls), calls, strict=True):
        server.flushed = flushed
        start = min(lsn, flushed)
        expected = keys_after(transactions, lsn_position(start, skip), flushed)
        until = None
        if bound is not None:
            until, expected = lsn_position(start, skip + bound), expected[:bound]
        found = reader.rows(lsn_position(start, skip), until, total)
        assert keys(found) == expected[: found.count]
        assert bool(found.count) == bool(expected)
        for most in (1, 3):
            page = found.page(most)
            assert page.changes.num_rows == min(most, found.count)
            if found.count:
                following = reader.rows(page.next, Position(page.next.token, page.next.skip + 1))
                assert keys(following) == keys_after(transactions, page.next, flushed)[:1]
        idle = reader.idle_until(start)
        assert idle >= start
        assert keys_between(transactions, start, idle) == []


@given(TRANSACTIONS, st.integers(0, END - 1), st.integers(1, 8))
def test_all_pages_have_each_row_once(transactions: list[Transaction], start: int, most: int) -> None:
    server = Server(transactions)
    reader, position, found = log_of(server), lsn_position(start), list[str]()
    while (rows := reader.rows(position, total=most)).count:
        page = rows.page(most)
        found += page.changes.rows.column(0).to_pylist()
        position = page.next
    assert found == keys_between(transactions, start, END)
    if found:
        # The position is the same in any form.
        assert log_of(server).canonical(lsn_position(start, len(found))) == position


@given(TRANSACTIONS, LSNS, st.lists(LSNS, max_size=5).map(sorted))
def test_log_without_changes_is_read_once(transactions: list[Transaction], start: int, ends: list[int]) -> None:
    server = Server(transactions)
    reader = log_of(server)
    for end in ends:
        server.flushed = max(start, end)
        if reader.rows(lsn_position(start)).count:
            return
        peeks = server.peeks
        assert reader.rows(lsn_position(start)).count == 0
        assert reader.idle_until(start) == server.flushed or server.flushed == start
        assert server.peeks == peeks


@given(TRANSACTIONS, st.integers(0, END - 1), LSNS)
def test_rows_before_a_place_that_cannot_be_read_are_read_and_those_after_it_with_consent(
    transactions: list[Transaction], place: int, start: int
) -> None:
    before = [each for each in transactions if each.lsn < place]
    after = [each for each in transactions if each.lsn > place]
    server = Server([*before, Transaction(place, 2), *after])
    reader = log_of(server, place)
    position, found = lsn_position(start), list[str]()
    lost = 0
    while True:
        try:
            rows = reader.rows(position)
        except DataLossError:
            lost += 1
            position, skipped = reader.skip_lost(position)
            assert (lsn_of(position), skipped) == (place + 1, None)
            continue
        if not rows.count:
            break
        found += keys(rows)
        position = rows.page(1 << 30).next
    assert lost == (start <= place)
    assert found == keys_between(before, start, END) + keys_between(after, start, END)


@given(TRANSACTIONS, st.sets(st.integers(0, END - 1)), LSNS, st.integers(1, 8))
def test_a_truncation_is_an_entry_behind_the_rows_before_it(
    transactions: list[Transaction], places: set[int], start: int, most: int
) -> None:
    of_lsn = {each.lsn: each.rows for each in transactions} | dict.fromkeys(places, 2)
    server = Server([Transaction(lsn, rows, lsn in places) for lsn, rows in sorted(of_lsn.items())])
    reader, position, found = log_of(server), lsn_position(start), list[str | None]()
    while (rows := reader.rows(position, total=most)).count:
        page = rows.to_truncation().page(most)
        assert ChangeOp.TRUNCATE not in page.changes.ops.to_pylist()[1:]
        if page.changes.begin_with_truncation:
            assert reader.skip_lost(position) == (rows.page(1).next, None)
        found, position = found + page.changes.rows.column(0).to_pylist(), page.next
    expected: list[str | None] = []
    for lsn, count in sorted(of_lsn.items()):
        if lsn >= start:
            expected += [*(f"{lsn}-{row}" for row in range(count)), *([None] if lsn in places else [])]
    assert found == expected


@given(TRANSACTIONS, st.sets(st.integers(0, END - 1)), LSNS, LSNS, st.integers(1, 8))
def test_changes_of_a_table_that_has_joined_wait_for_its_base_data(
    transactions: list[Transaction], places: set[int], since: int, start: int, most: int
) -> None:
    of_lsn = {each.lsn: each.rows for each in transactions} | dict.fromkeys(places, 2)
    every = [Transaction(lsn, rows, of_bills=lsn in places) for lsn, rows in sorted(of_lsn.items())]
    server, first = Server(every), min((lsn for lsn in places if lsn >= max(since, start)), default=END)
    reader, position, found = log_of(server, bills=Member("bills", since, True)), lsn_position(start), list[str]()
    while (rows := reader.rows(position, total=most)).count:
        page = rows.page(most)
        found, position = found + page.changes.rows.column(0).to_pylist(), page.next
    assert found == keys_between(every, start, first)
    peeks = server.peeks
    for _ in range(3):
        assert not reader.rows(position).count
        assert reader.backlog(position, None, 10).rows == 0
    assert server.peeks <= peeks + 1
    assert reader.idle_until(lsn_of(position)) <= max(first, lsn_of(position))
    reader = log_of(server, bills=Member("bills", since, False))
    while (rows := reader.rows(position, total=most)).count:
        page = rows.page(most)
        found, position = found + page.changes.rows.column(0).to_pylist(), page.next
    followed = [each._replace(rows=each.rows + (each.of_bills and each.lsn >= since)) for each in every]
    assert found == keys_between(followed, start, END)


@given(TRANSACTIONS, LSNS, st.integers(1, 8))
def test_partitions_are_checked_before_their_rows_are_read(
    transactions: list[Transaction], start: int, most: int
) -> None:
    reader, position = log_of(Server(transactions)), lsn_position(start)
    table: Any = reader._followed
    while (rows := reader.rows(position, total=most)).count:
        page = rows.page(most)
        versions = set(page.changes.versions.to_pylist())
        assert versions <= {lsn for _, lsn in table.leaves}
        position = page.next
    written = {each.lsn for each in transactions if each.rows}
    # Those before the start, too, as far as their messages were decoded.
    assert {lsn for lsn in written if lsn >= start} <= {lsn for _, lsn in table.leaves} <= written


@given(TRANSACTIONS, st.integers(0, END - 1), LSNS)
def test_partitions_of_a_table_that_waits_for_its_base_data_are_checked_behind_it(
    transactions: list[Transaction], place: int, since: int
) -> None:
    every = [each for each in transactions if each.lsn != place] + [Transaction(place, 0, of_bills=True)]
    server = Server(sorted(every))
    for waits in (True, False):
        reader = log_of(server, bills=Member("bills", since, waits))
        table: Any = reader._followed
        position = lsn_position(0)
        while (rows := reader.rows(position)).count:
            position = rows.page(1 << 30).next
        assert ((18, place) in table.leaves) == (not waits and place >= since)


def test_a_window_is_decoded_once_for_all_of_its_pages() -> None:
    server = Server([Transaction(lsn, 4) for lsn in range(0, 80, 2)])
    reader, position, count = log_of(server), Position("0/0"), 0
    while (rows := reader.rows(position)).count:
        count, position = count + 1, rows.page(3).next
    assert count > 40
    assert server.peeks <= 4
