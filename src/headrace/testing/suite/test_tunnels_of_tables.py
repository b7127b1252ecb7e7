"""Tunnels of several tables: whole transactions, typed rows, replay, base data, lost changes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from headrace.batches.feeds.channel_reading import read_channel
from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.errors import (
    AlreadyExistsError,
    DataLossError,
    NotFoundError,
    OptionError,
    SchemaError,
    UnsupportedError,
)
from headrace.model.tables.changes import ChangeOp, Changes, RowChange
from headrace.model.tables.several_tables import TABLE
from headrace.model.tunnels.records import INITIAL_BATCH
from headrace.model.tunnels.values import FINISHED, Position, Start, StartKind
from headrace.ports import Store, Table, Tunnel, Write
from headrace.testing import Place
from headrace.testing.effort import thorough
from headrace.testing.reading import Row, drain, filled, only_channel, read_from, rows_of, run_to_the_end

pytestmark = pytest.mark.needs("several_tables", "transactions")

TABLES = ("orders", "items", "customers")
START = 1000


@pytest.fixture
def tables(store: Store) -> dict[str, Table]:
    """Three tables with different columns; `move` keeps the sum of their amounts."""
    return {
        "orders": store.create_table("orders", {"id": "string", "amount": "long"}, "id", **_options(store)),
        "items": store.create_table(
            "items", {"amount": "long", "part": "long", "id": "string"}, ["id", "part"], **_options(store)
        ),
        "customers": store.create_table(
            "customers", {"id": "string", "name": "string", "amount": "long"}, "id", **_options(store)
        ),
    }


def _options(store: Store) -> dict[str, bool]:
    return {"pre_images": True} if store.capabilities.trims else {}


class Bank:
    """Transactions over the three tables that keep the sum of all amounts."""

    def __init__(self, store: Store, tables: dict[str, Table], seed: int = 7) -> None:
        self._publisher = store.publisher("bank")
        self._tables = tables
        self._random = random.Random(seed)
        self._batch = 0
        self.amounts = dict.fromkeys(((name, key) for name in TABLES for key in "abc"), START)
        self.commit(list(self.amounts))

    def commit(self, changed: Sequence[tuple[str, str]]) -> None:
        writes = []
        for name in TABLES:
            rows = [self._row(name, key) for table, key in changed if table == name]
            if rows:
                schema = self._tables[name].schema.arrow
                batch = pa.RecordBatch.from_pylist(rows, schema)
                staged = self._publisher.stage(self._batch, [batch], table=name, change=RowChange.PUT)
                writes.append(Write(name, RowChange.PUT, tuple(staged)))
        self._publisher.publish(self._batch, writes)
        self._batch += 1

    def move(self, count: int = 1) -> None:
        """Move amounts between rows, each in a transaction."""
        for _ in range(count):
            source, target = self._random.sample(list(self.amounts), 2)
            amount = self._random.randint(1, 50)
            self.amounts[source] -= amount
            self.amounts[target] += amount
            self.commit([source, target])

    def _row(self, name: str, key: str) -> Row:
        row: Row = {"id": key, "amount": self.amounts[name, key]}
        return row | ({"part": 1} if name == "items" else {"name": key * 3} if name == "customers" else {})


@pytest.fixture
def bank(store: Store, tables: dict[str, Table]) -> Bank:
    return Bank(store, tables)


@pytest.fixture
def tunnel(store: Store, bank: Bank) -> Tunnel:
    """A tunnel of the three tables, which have rows."""
    return store.create_tunnel(TABLES, "sales").typed()


class Copies:
    """Copies of the tables, made of the changes of a tunnel; each change must fit."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._keys = {name: schema.primary_key for name, schema in tunnel.tables.items()}
        self.rows: dict[str, dict[tuple[object, ...], Row]] = {name: {} for name in tunnel.tables}

    @property
    def total(self) -> int:
        return sum(row["amount"] for rows in self.rows.values() for row in rows.values())

    def apply(self, changes: Changes) -> None:
        for row, code in zip(changes.rows.to_pylist(), changes.ops.to_pylist(), strict=True):
            name, op = row.pop(TABLE), ChangeOp(code)
            assert [table for table, value in row.items() if value is not None] == [name]
            value = row[name]
            key, rows = tuple(value[column] for column in self._keys[name]), self.rows[name]
            if op is ChangeOp.PREIMAGE:
                assert filled({(): rows[key]}) == filled({(): value})
            elif op in (ChangeOp.DELETE, ChangeOp.DELETE_WITH_ROW):
                del rows[key]
            else:
                assert (key in rows) == (op not in (ChangeOp.BASE, ChangeOp.INSERT, ChangeOp.UPSERT))
                rows[key] = value

    def check(self, tables: dict[str, Table]) -> None:
        for name, table in tables.items():
            key = table.schema.primary_key
            assert filled(self.rows[name]) == filled({tuple(row[c] for c in key): row for row in rows_of(table)})


def pages(tunnel: Tunnel, batch: str, feed: TunnelFeed) -> list[Changes]:
    return [changes for part in feed.plan(batch) for changes in read_channel(tunnel, batch, part)]


def values(batch: Sequence[Changes]) -> list[tuple[Row, int, int]]:
    return [
        value
        for changes in batch
        for value in zip(changes.rows.to_pylist(), changes.ops.to_pylist(), changes.versions.to_pylist(), strict=True)
    ]


# -- whole transactions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_a_batch_ends_with_a_whole_transaction_of_all_tables(
    tunnel: Tunnel, bank: Bank, tables: dict[str, Table], most: int
) -> None:
    copies, feed = Copies(tunnel), TunnelFeed(tunnel, limits=Limits(rows_per_batch=most))
    previous, stream, totals = INITIAL_BATCH, 0, []
    bank.move(thorough(30))
    while (batch := feed.latest(previous)) != previous:
        found = pages(tunnel, batch, feed)
        for changes in found:
            copies.apply(changes)
        if any(op != ChangeOp.BASE for _, op, _ in values(found)):
            stream += 1
            totals.append(copies.total)
            # A limit of rows is exceeded to the end of a transaction, which has two rows and their old ones.
            assert len(values(found)) <= most + 4
        else:
            assert len(values(found)) <= most
        previous = batch
    assert set(totals) == {9 * START}
    assert stream == 1 if most == 1000 else stream > 2
    copies.check(tables)


def test_a_transaction_of_many_pages_is_in_one_batch(
    tunnel: Tunnel, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.batches.feeds.channel_reading.PAGE_ROWS", 4)
    feed = TunnelFeed(tunnel, limits=Limits(rows_per_batch=9))
    batches = run_to_the_end(feed)
    bank.amounts |= {(name, f"k{number:02}"): START for name in TABLES for number in range(12)}
    bank.commit(list(bank.amounts))
    bank.move(1)
    batch = feed.latest(batches[-1][0])
    found = pages(tunnel, batch, feed)
    assert {change[0][TABLE] for change in values(found)} == set(TABLES)
    assert len({version for *_, version in values(found)}) == 1
    assert len(values(found)) >= 45
    following = feed.latest(batch)
    assert len({version for *_, version in values(pages(tunnel, following, feed))}) == 1
    assert feed.latest(following) == following


def test_changes_are_in_the_order_of_commits(tunnel: Tunnel, bank: Bank, tables: dict[str, Table]) -> None:
    drain(tunnel)
    for number in range(6):
        name = TABLES[number % 3]
        tables[name].delete({"id": "abc"[number // 3], **({"part": 1} if name == "items" else {})})
    channel = only_channel(tunnel)
    page = tunnel.read(channel, committed(tunnel, channel), 1000)
    assert page.changes.rows.column(TABLE).to_pylist() == [*TABLES, *TABLES]
    versions = page.changes.versions.to_pylist()
    assert versions == sorted(set(versions))
    assert [len(batch) for _, batch in run_to_the_end(TunnelFeed(tunnel, limits=Limits(rows_per_batch=4)))] == [4, 2]


def committed(tunnel: Tunnel, channel: str) -> Position:
    return next(each.committed for each in tunnel.channels() if each.id == channel)


# -- replay ---------------------------------------------------------------------------------------------


def test_a_batch_returns_the_same_rows_every_time(place: Place, tunnel: Tunnel, bank: Bank) -> None:
    feed = TunnelFeed(tunnel, limits=Limits(rows_per_batch=5))
    previous = run_to_the_end(feed)[-1][0]
    bank.move(20)
    batch = feed.latest(previous)
    first = values(pages(tunnel, batch, feed))
    bank.move(70)
    with place.open() as other:
        again = other.tunnel("sales").typed()
        assert values(pages(again, batch, TunnelFeed(again))) == first
    following = feed.latest(batch)
    second = values(pages(tunnel, following, feed))
    assert values(pages(tunnel, batch, feed)) == first
    assert second[0][2] > first[-1][2]


def test_a_position_always_returns_the_same_rows(tunnel: Tunnel, bank: Bank) -> None:
    drain(tunnel)
    channel = only_channel(tunnel)
    start = committed(tunnel, channel)
    bank.move(40)
    whole, end = read_from(tunnel, channel, start)
    bank.move(70)
    for count in range(0, len(whole), 7):
        at = tunnel.advance(channel, start, count)
        assert read_from(tunnel, channel, at, until=end, page_rows=5)[0] == whole[count:]
        assert read_from(tunnel, channel, Position(start.token, start.skip + count), until=end)[0] == whole[count:]
        assert read_from(tunnel, channel, start, until=at, page_rows=3)[0] == whole[:count]


def test_random_histories_are_followed(place: Place, store: Store, tables: dict[str, Table]) -> None:
    for seed in range(thorough(5)):
        rng = random.Random(seed)
        name = f"history{seed}"
        writers = dict.fromkeys(TABLES, 0)
        tunnel = store.create_tunnel(TABLES, name).typed()
        copies, previous = Copies(tunnel), INITIAL_BATCH
        for _ in range(40):
            step = rng.random()
            if step < 0.6:
                table = rng.choice(TABLES)
                keys = [f"{rng.randrange(30):02}" for _ in range(rng.randint(1, 8))]
                part = {"part": rng.randint(1, 2)} if table == "items" else {}
                rows = [{"id": key, **part} for key in dict.fromkeys(keys)]
                if rng.random() < 0.3:
                    tables[table].delete(rows)
                else:
                    writers[table] += 1
                    tables[table].put([{**row, "amount": writers[table]} for row in rows])
            elif step < 0.7 and place.has_partitions:
                table = rng.choice(TABLES)
                if sum(part.rows for part in tables[table].describe().partitions) > 4:
                    place.split(table)
            else:
                with place.open() as other:
                    handle = other.tunnel(name).typed()
                    feed = TunnelFeed(handle, limits=Limits(rows_per_batch=rng.randint(1, 20)))
                    batch = feed.latest(previous)
                    if batch != previous:
                        for changes in pages(handle, batch, feed):
                            copies.apply(changes)
                        previous = batch
        feed = TunnelFeed(tunnel)
        while (batch := feed.latest(previous)) != previous:
            for changes in pages(tunnel, batch, feed):
                copies.apply(changes)
            previous = batch
        copies.check(tables)
        store.drop_tunnel(name)


# -- base data ------------------------------------------------------------------------------------------


def test_base_data_is_handed_over_exactly_for_each_table(tunnel: Tunnel, bank: Bank, tables: dict[str, Table]) -> None:
    bank.move(10)
    copies, feed = Copies(tunnel), TunnelFeed(tunnel, limits=Limits(rows_per_batch=4))
    previous = INITIAL_BATCH
    while (batch := feed.latest(previous)) != previous:
        for changes in pages(tunnel, batch, feed):
            copies.apply(changes)
        if tunnel.describe().stage == "BaseData":
            bank.move(2)
        previous = batch
    copies.check(tables)
    assert copies.total == 9 * START
    assert tunnel.describe().stage == "Stream"


def test_kinds_have_base_data_or_changes_or_both(store: Store, bank: Bank) -> None:
    tunnels = {kind: store.create_tunnel(TABLES, kind, kind).typed() for kind in ("BaseData", "Stream")}
    bank.move(1)
    found = {kind: [change for _, batch in run_to_the_end(TunnelFeed(each)) for change in batch]
             for kind, each in tunnels.items()}  # fmt: skip
    assert [change.op for change in found["BaseData"]] == [ChangeOp.BASE] * 9
    assert {change.op for change in found["Stream"]} <= {ChangeOp.PREIMAGE, ChangeOp.REPLACE}


# -- positions of new readers, and lost changes -------------------------------------------------------------


def test_a_query_starts_where_it_asks(store: Store, tunnel: Tunnel, bank: Bank) -> None:
    drain(tunnel)
    bank.move(2)
    assert [batch for _, batch in run_to_the_end(TunnelFeed(tunnel, start=Start(StartKind.LATEST)))] == [[]]
    if store.capabilities.rewinds:
        with pytest.raises(DataLossError, match="base data was read and released"):
            tunnel.start_positions(Start(StartKind.EARLIEST))
        stream = store.create_tunnel(TABLES, "stream", "Stream").typed()
        bank.move(3)
        drain(stream)
        again = TunnelFeed(stream, start=Start(StartKind.EARLIEST))
        assert len({change.version for _, batch in run_to_the_end(again) for change in batch}) == 3


@pytest.mark.needs("trims")
def test_unread_changes_are_kept_and_their_loss_is_an_error_that_can_be_accepted(
    store: Store, tunnel: Tunnel, bank: Bank, tables: dict[str, Table]
) -> None:
    drain(tunnel)
    bank.move(5)
    ends = {part.id: part.next for part in tables["items"].describe().partitions}
    report = tables["items"].trim(before=ends)
    # The rows before the tunnel.
    assert (report.changes, report.held_by) == (3, ("sales",))
    assert tables["items"].trim(before=ends, cut_tunnels=True).cut_from == ("sales",)
    tables["orders"].put({"id": "z", "amount": 0})
    channel = only_channel(tunnel)
    position = committed(tunnel, channel)
    assert tunnel.backlog(channel, position).rows is None
    with pytest.raises(DataLossError, match=r"changes of tables 'items' were removed .*failOnDataLoss=false"):
        tunnel.read(channel, position, 10)
    feed = TunnelFeed(tunnel)
    batch = feed.latest(INITIAL_BATCH)
    (part,) = [each for each in feed.plan(batch) if each.channel == channel]
    found = values(list(read_channel(tunnel, batch, part, fail_on_data_loss=False)))
    # The changes of the other tables are there.
    assert {row[TABLE] for row, *_ in found} == {"orders", "customers"}
    assert feed.latest(batch) == batch
    drain(tunnel)
    assert tables["orders"].trim(before={part.id: part.next for part in tables["orders"].describe().partitions}).changes


# -- clients, descriptions, names ---------------------------------------------------------------------------


def test_workers_read_the_tunnel(tunnel: Tunnel, bank: Bank, tables: dict[str, Table]) -> None:
    bank.move(3)
    found = [row for batch in tunnel.consume(idle="stop") for row in batch.to_arrow().to_pylist()]
    assert {row[TABLE] for row in found} == set(TABLES)
    assert tunnel.describe().backlog_rows == 0


def test_a_tunnel_is_described_with_its_tables(store: Store, tunnel: Tunnel, bank: Bank) -> None:
    drain(tunnel)
    bank.move(4)
    described = tunnel.describe()
    assert described.table == tunnel.table.name
    assert all(name in described.table for name in TABLES)
    assert described.lag.rows >= 8
    assert list(tunnel.tables) == sorted(tunnel.tables, key=list(tunnel.tables).index)
    assert tunnel.whole_transactions
    assert store.tunnel("sales").id == store.tunnel("sales", "items").id == tunnel.id
    # The tunnel of the table alone comes first.
    alone = store.create_tunnel("orders", "sales")
    assert store.tunnel("sales", "orders").id == alone.id
    store.drop_tunnel(alone.id)
    assert {each.name for each in store.tunnels("orders")} == {"sales"}
    with pytest.raises(UnsupportedError, match="several tables has only their changes"):
        tunnel.table.put({"id": 1})
    assert store.create_tunnel(["orders"], "one").typed().tables.keys() == {"orders"}
    with pytest.raises(AlreadyExistsError, match="several tables have a tunnel of this name"):
        store.create_tunnel(["items"], "sales")
    single = store.create_tunnel("orders", "single")
    with pytest.raises(UnsupportedError, match="tunnel 'single' has the columns of one table"):
        single.typed()
    assert (single.whole_transactions, dict(single.tables)) == (False, {})


def test_wrong_tables_are_refused(store: Store, tables: dict[str, Table]) -> None:
    with pytest.raises(NotFoundError, match="nothing"):
        store.create_tunnel(["orders", "nothing"], "sales")
    with pytest.raises(OptionError):
        store.create_tunnel([], "sales")
    with pytest.raises(OptionError, match="starts at the latest changes"):
        store.create_tunnel(TABLES, "sales", "Stream", start="earliest")
    assert store.tunnels() == []


def test_an_added_column_is_in_later_rows(store: Store, tunnel: Tunnel, tables: dict[str, Table]) -> None:
    drain(tunnel)
    before = tunnel.tables["orders"]
    tables["orders"].add_columns({"note": "string"})
    tables["orders"].put({"id": "a", "amount": 1, "note": "new"})
    assert [*before.names, "note"] == [*tunnel.tables["orders"].names]
    last = drain(tunnel)[-1]
    assert last.row["orders"] == {"id": "a", "amount": 1, "note": "new"}


@pytest.mark.needs("trims")
def test_a_query_whose_table_was_dropped_names_it(store: Store, tunnel: Tunnel, bank: Bank) -> None:
    feed = TunnelFeed(tunnel)
    batch = feed.latest(INITIAL_BATCH)
    store.drop_table("items")
    with pytest.raises(NotFoundError, match=r"a table of tunnel 'sales' was dropped.*'items'"):
        feed.plan(batch)
    assert store.tunnels() == []


def test_a_table_with_a_name_of_another_column_is_refused(store: Store) -> None:
    store.create_table("_table", {"id": "long"}, "id")
    with pytest.raises(SchemaError, match=r"names must differ in more than case.*_table"):
        assert store.create_tunnel(["_table"], "sales").typed().table.schema


def test_the_end_of_base_data_releases_it(store: Store, tunnel: Tunnel, bank: Bank) -> None:
    for channel in tunnel.channels():
        if channel.id != "stream":
            tunnel.commit({channel.id: FINISHED})
    with pytest.raises(DataLossError, match="base data was read and released"):
        tunnel.read(next(each.id for each in tunnel.channels() if each.id != "stream"), Position("x"), 1)
    bank.move(1)
    assert drain(tunnel)
