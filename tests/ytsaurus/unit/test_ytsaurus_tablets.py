"""Tablet transactions of the YTsaurus endpoint, compared with a model, and the layout of keys."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from headrace.errors import StoreError
from headrace.stores.embedded.connection import Database
from headrace.stores.embedded.tables.table import EmbeddedTable
from headrace.support import failpoints
from headrace.testing.effort import thorough
from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.endpoint.commands import COMMANDS
from headrace_ytsaurus.endpoint.context import Answer
from headrace_ytsaurus.endpoint.dispatcher import execute
from headrace_ytsaurus.endpoint.formats import JSON
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.storage.snapshot import SnapshotDatabase
from headrace_ytsaurus.endpoint.tables.layout import SortedLayout
from headrace_ytsaurus.endpoint.tables.row_locks import NO_HASHES, Locked, RowLocks
from headrace_ytsaurus.wire.errors import YtError
from headrace_ytsaurus.wire.types import YtColumn

KEYS = st.integers(0, 3)
SCHEMA = [{"name": "k", "type": "int64", "sort_order": "ascending"}, {"name": "v", "type": "int64"}]


def call(cluster: Cluster, name: str, parameters: dict[str, Any], body: bytes = b"") -> Answer:
    context = cluster.context()
    context.input_format = context.output_format = JSON
    return execute(context, COMMANDS[name], Parameters(parameters, name), body)


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """The disk is full when SQLite commits. A double: it accepts what is written before."""

    def reach(point: str) -> None:
        if point == "uncommitted":
            raise apsw.FullError("database or disk is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "reach", reach)
        yield


class Transactions(RuleBasedStateMachine):
    """Several transactions on one table: each reads the state at its start, and the first to commit a row wins."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.cluster = Cluster(Path(self._directory.name))
        call(
            self.cluster,
            "create",
            {"path": "//tmp/t", "type": "table", "attributes": {"dynamic": True, "schema": SCHEMA}},
        )
        call(self.cluster, "mount_table", {"path": "//tmp/t"})
        self.rows: dict[int, int] = {}
        self.changed: dict[int, int] = {}
        self.moment = 0
        self.open: dict[str, tuple[dict[int, int], int, list[tuple[int, int | None]]]] = {}

    def teardown(self) -> None:
        for transaction in list(self.open):
            call(self.cluster, "abort_transaction", {"transaction_id": transaction})
        self.cluster.close()
        self._directory.cleanup()

    def _commit(self, changes: list[tuple[int, int | None]]) -> None:
        self.moment += 1
        for key, value in changes:
            self.changed[key] = self.moment
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def _write(self, key: int, value: int | None, within: dict[str, str]) -> None:
        if value is None:
            call(self.cluster, "delete_rows", {"path": "//tmp/t", **within}, b'{"k":%d}' % key)
        else:
            call(self.cluster, "insert_rows", {"path": "//tmp/t", **within}, b'{"k":%d,"v":%d}' % (key, value))

    @rule(key=KEYS, value=st.none() | st.integers(0, 9))
    def write_at_once(self, key: int, value: int | None) -> None:
        self._write(key, value, {})
        self._commit([(key, value)])

    @precondition(lambda self: len(self.open) < 3)
    @rule()
    def begin(self) -> None:
        transaction = call(self.cluster, "start_transaction", {"type": "tablet", "timeout": 60_000}).value
        self.open[transaction["transaction_id"]] = (dict(self.rows), self.moment, [])

    @precondition(lambda self: self.open)
    @rule(data=st.data(), key=KEYS, value=st.none() | st.integers(0, 9))
    def write(self, data: st.DataObject, key: int, value: int | None) -> None:
        transaction = data.draw(st.sampled_from(list(self.open)))
        self._write(key, value, {"transaction_id": transaction})
        self.open[transaction][2].append((key, value))

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        transaction = data.draw(st.sampled_from([None, *self.open]))
        expected = self.rows if transaction is None else self.open[transaction][0]
        within = {} if transaction is None else {"transaction_id": transaction}
        answer = call(self.cluster, "select_rows", {"query": "k, v from [//tmp/t]", **within})
        assert answer.batches is not None
        found = {row["k"]: row["v"] for batch in answer.batches for row in batch.to_pylist()}
        assert found == expected

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        transaction = data.draw(st.sampled_from(list(self.open)))
        _, since, changes = self.open.pop(transaction)
        if any(self.changed.get(key, -1) > since for key, _ in changes):
            with pytest.raises(YtError) as error:
                call(self.cluster, "commit_transaction", {"transaction_id": transaction})
            assert error.value.code == 1700
        else:
            call(self.cluster, "commit_transaction", {"transaction_id": transaction})
            if changes:
                self._commit(changes)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit_on_a_full_disk(self, data: st.DataObject) -> None:
        transaction = data.draw(st.sampled_from(list(self.open)))
        _, since, changes = self.open.pop(transaction)
        # A conflict is found before the disk is full.
        conflict = any(self.changed.get(key, -1) > since for key, _ in changes)
        with full_disk(), pytest.raises(YtError if conflict else StoreError):
            call(self.cluster, "commit_transaction", {"transaction_id": transaction})

    @rule(key=KEYS, value=st.none() | st.integers(0, 9))
    def write_on_a_full_disk(self, key: int, value: int | None) -> None:
        with full_disk(), pytest.raises(StoreError):
            self._write(key, value, {})

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        transaction = data.draw(st.sampled_from(list(self.open)))
        del self.open[transaction]
        call(self.cluster, "abort_transaction", {"transaction_id": transaction})


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(max_examples=8, stateful_step_count=20, deadline=None)


def test_a_transaction_whose_id_cannot_be_saved_does_not_stay_open(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    parameters = {"type": "tablet", "timeout": 60_000}
    with full_disk(), pytest.raises(StoreError):
        call(cluster, "start_transaction", parameters)
    transactions = cluster.tablet_transactions
    assert not transactions.open
    started = call(cluster, "start_transaction", parameters).value["transaction_id"]
    assert transactions.open == {started}
    call(cluster, "abort_transaction", {"transaction_id": started})
    cluster.close()


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_master_transaction_outlives_an_end_that_cannot_be_saved(end: str, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    within = {"transaction_id": call(cluster, "start_transaction", {"timeout": 60_000}).value["transaction_id"]}
    call(cluster, "create", {"path": "//tmp/made", "type": "map_node", **within})
    with full_disk(), pytest.raises(StoreError):
        call(cluster, end, within)
    call(cluster, "ping_transaction", within)
    call(cluster, end, within)
    assert call(cluster, "exists", {"path": "//tmp/made"}).value == {"value": end == "commit_transaction"}
    cluster.close()


# -- locks ----------------------------------------------------------------------------------------------------


def written(*hashes: int) -> Locked:
    return Locked(np.array(hashes, dtype=np.int64), NO_HASHES)


def test_commits_before_all_open_transactions_are_dropped() -> None:
    locks = RowLocks()
    locks.committed(1, {"7": written(1)})
    locks.begin("early")
    locks.committed(2, {"7": written(2)})
    locks.began("early", 2)
    locks.committed(3, {"7": written(3)})
    assert locks.conflict(2, {"7": written(2)}) is None
    assert locks.conflict(2, {"7": written(3)}) == "7"
    assert locks.conflict(2, {"8": written(3)}) is None
    locks.end("early")
    locks.begin("late")
    assert locks.conflict(0, {"7": written(1, 2, 3)}) is None


def test_shared_row_locks_do_not_conflict() -> None:
    locks = RowLocks()
    locks.begin("one")
    read = Locked(NO_HASHES, np.array([1], dtype=np.int64))
    locks.committed(1, {"7": read})
    assert locks.conflict(0, {"7": read}) is None
    assert locks.conflict(0, {"7": written(1)}) == "7"


# -- layout ---------------------------------------------------------------------------------------------------


def sortable(key: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    return [
        (value is not None, "" if value is None else value.encode() if isinstance(value, str) else value)
        for value in key
    ]


@settings(max_examples=thorough(50), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.text(st.sampled_from("\0\x01aé"), max_size=3),
            st.none() | st.integers(0, 2**64 - 1),
            st.none() | st.booleans(),
            st.none() | st.floats(allow_nan=False),
            st.none() | st.integers(-128, 127),
        ),
        min_size=2,
        max_size=10,
    )
)
def test_packed_keys_keep_order_and_equality(keys: list[tuple[Any, ...]]) -> None:
    kinds = ["string", "uint64", "bool", "double", "int8"]
    columns = [
        YtColumn.of(f"k{place}", {"type_name": "optional", "item": kind}, sort_order="ascending")
        for place, kind in enumerate(kinds)
    ]
    # 0.0 and -0.0 are different keys, but equal in Python.
    keys = [tuple(0.0 if value == 0 and isinstance(value, float) else value for value in key) for key in keys]
    layout = SortedLayout(columns)
    arrays = [pa.array([key[place] for key in keys], column.type) for place, column in enumerate(columns)]
    stored = layout.to_stored(pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns]))
    packed = stored.column("$key").to_pylist()
    assert layout.packed
    assert sorted(range(len(keys)), key=packed.__getitem__) == sorted(
        range(len(keys)), key=lambda row: sortable(keys[row])
    )
    assert len(set(packed)) == len({tuple(sortable(key)) for key in keys})


# -- one state ------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


def test_a_snapshot_database_shows_one_state_and_takes_no_writes(cluster: Cluster) -> None:
    table = cluster.store.create_table("t", {"k": "long", "v": "long"}, "k")
    table.put({"k": 1, "v": 1})
    database: Database = cluster.database
    with database.snapshot() as connection:
        list(connection.execute("SELECT 1 FROM clock"))
        snapshot = EmbeddedTable(SnapshotDatabase(database, connection), "t")
        table.put({"k": 1, "v": 2})
        assert snapshot.get({"k": 1}) == {"k": 1, "v": 1}
        with pytest.raises(Exception, match="cannot be changed"):
            snapshot.put({"k": 2, "v": 2})


def test_tables_survive_a_restart(tmp_path: Path) -> None:
    for place in range(2):
        cluster = Cluster(tmp_path)
        if not place:
            attributes = {"dynamic": True, "schema": SCHEMA}
            call(cluster, "create", {"path": "//tmp/t", "type": "table", "attributes": attributes})
            call(cluster, "mount_table", {"path": "//tmp/t"})
        call(cluster, "insert_rows", {"path": "//tmp/t"}, b'{"k":%d}' % place)
        assert call(cluster, "get", {"path": "//tmp/t/@chunk_row_count", "return_only_value": True}).value == place + 1
        cluster.close()
