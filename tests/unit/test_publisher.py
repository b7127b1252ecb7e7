"""Publication: a batch becomes visible at one moment and once, and unused staged rows are deleted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.errors import PublicationError
from headrace.model.tables.changes import RowChange
from headrace.ports import Publisher, Staged, Store, Table, Write
from headrace.rows import staged_parts
from headrace.stores.embedded.publication import staging
from headrace.testing.processes import CONTEXT


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "store", create=True, synchronous="off")


@pytest.fixture
def table(store: Store) -> Table:
    return store.create_table("sink", {"id": "long", "value": "long", "note": "string"}, "id")


@pytest.fixture
def publisher(store: Store) -> Publisher:
    return store.publisher("job")


def batch_of(*ids: int, value: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(ids), "value": [value] * len(ids), "note": ["n"] * len(ids)})


def content(table: Table) -> dict[int, Any]:
    return {row["id"]: row["value"] for row in table.scan().read_all().to_pylist()}


def staged_rows(store: Store) -> int:
    found = store._database.query("SELECT count(*) FROM stage")  # type: ignore[attr-defined]
    return int(found[0][0])


def put(publisher: Publisher, batch: int, *rows: pa.RecordBatch, change: RowChange = RowChange.PUT) -> bool:
    return publisher.publish(batch, [Write("sink", change, tuple(publisher.stage(batch, rows)))])


def test_staged_rows_are_invisible_until_they_are_published(store: Store, table: Table, publisher: Publisher) -> None:
    receipts = publisher.stage(0, [batch_of(1, 2), batch_of(3)])
    assert sum(receipt.rows for receipt in receipts) == 3
    assert (content(table), publisher.published(0)) == ({}, False)
    assert publisher.publish(0, [Write("sink", RowChange.PUT, tuple(receipts))])
    assert (content(table), publisher.published(0)) == ({1: 0, 2: 0, 3: 0}, True)
    assert staged_rows(store) == 0


def test_a_batch_is_published_once(store: Store, table: Table, publisher: Publisher) -> None:
    assert put(publisher, 3, batch_of(1, value=1))
    assert not put(publisher, 3, batch_of(1, value=2))
    assert not put(publisher, 2, batch_of(1, value=3))
    assert content(table) == {1: 1}
    assert put(store.publisher("other job"), 3, batch_of(1, value=4))
    assert put(store.publisher("job", "other sink"), 3, batch_of(1, value=5))
    assert content(table) == {1: 5}


def test_all_writes_of_a_batch_are_one_commit(store: Store, table: Table, publisher: Publisher) -> None:
    other = store.create_table("other", {"id": "long", "value": "long", "note": "string"}, "id")
    tunnels = [store.create_tunnel(name, "t", "Stream") for name in ("sink", "other")]
    receipts = [tuple(publisher.stage(0, [batch_of(n)])) for n in range(3)]
    publisher.publish(
        0,
        [
            Write("sink", RowChange.PUT, receipts[0] + receipts[1]),
            Write("other", RowChange.PUT, receipts[2]),
        ],
    )
    versions = []
    for tunnel in tunnels:
        (channel,) = tunnel.channels()
        versions += tunnel.read(channel.id, channel.committed, 10).changes.versions.to_pylist()
    assert len(versions) == 3
    assert len(set(versions)) == 1
    assert (set(content(table)), set(content(other))) == ({0, 1}, {2})


def test_a_publication_of_missing_staged_rows_fails_and_changes_nothing(
    store: Store, table: Table, publisher: Publisher
) -> None:
    (receipt,) = publisher.stage(0, [batch_of(1)])
    (wrong_batch,) = publisher.stage(1, [batch_of(2)])
    (wrong_job,) = store.publisher("other").stage(0, [batch_of(3)])
    for missing in (Staged(999, 1), wrong_batch, wrong_job):
        with pytest.raises(PublicationError, match=f"stage {missing.id} of job 'job'"):
            publisher.publish(0, [Write("sink", RowChange.PUT, (receipt, missing))])
    assert (content(table), publisher.published(0), staged_rows(store)) == ({}, False, 3)


def test_updates_keep_cells_that_are_null(table: Table, publisher: Publisher) -> None:
    table.put([{"id": 1, "value": 7, "note": "old"}])
    row = pa.RecordBatch.from_pydict({"id": [1], "value": pa.array([None], pa.int64()), "note": ["new"]})
    put(publisher, 0, row, change=RowChange.UPDATE)
    assert table.get({"id": 1}) == {"id": 1, "value": 7, "note": "new"}


def test_replacing_all_leaves_exactly_the_rows_given(table: Table, publisher: Publisher) -> None:
    table.put([{"id": n, "value": 9} for n in range(5)])
    put(publisher, 0, batch_of(1, 2), batch_of(10), change=RowChange.REPLACE_ALL)
    assert content(table) == {1: 0, 2: 0, 10: 0}
    put(publisher, 1, change=RowChange.REPLACE_ALL)
    assert content(table) == {}


def test_the_last_batch_keeps_no_marker(store: Store, table: Table, publisher: Publisher) -> None:
    receipts = publisher.stage(0, [batch_of(1)])
    assert publisher.publish(0, [Write("sink", RowChange.PUT, tuple(receipts))], last=True)
    assert (content(table), publisher.published(0), staged_rows(store)) == ({1: 0}, False, 0)


def test_rows_of_failed_attempts_are_deleted_with_their_batch(store: Store, table: Table, publisher: Publisher) -> None:
    publisher.stage(0, [batch_of(1)])
    publisher.stage(1, [batch_of(2)])
    publisher.stage(2, [batch_of(3)])
    put(publisher, 1, batch_of(4))
    assert content(table) == {4: 0}
    assert staged_rows(store) == 1


def test_staged_rows_are_deleted_after_a_day_without_publication(
    store: Store, table: Table, publisher: Publisher
) -> None:
    store.publisher("gone").stage(0, [batch_of(1)])
    put(publisher, 0, batch_of(1))
    assert staged_rows(store) == 1
    with store._database.write() as connection:  # type: ignore[attr-defined]
        connection.execute("UPDATE stage SET created = created - 86401")
    put(publisher, 1, batch_of(1))
    assert staged_rows(store) == 0


def test_a_batch_can_be_discarded_in_part_or_completely(store: Store, table: Table, publisher: Publisher) -> None:
    first = publisher.stage(0, [batch_of(1)])
    publisher.stage(0, [batch_of(2)])
    publisher.stage(1, [batch_of(3)])
    publisher.discard(0, first)
    assert staged_rows(store) == 2
    publisher.discard(0)
    assert staged_rows(store) == 1


@pytest.mark.parametrize("flush_bytes", [1, 1 << 30])
def test_a_failing_input_stages_nothing(
    store: Store, table: Table, publisher: Publisher, monkeypatch: pytest.MonkeyPatch, flush_bytes: int
) -> None:
    monkeypatch.setattr(staging, "STAGE_BYTES", 1)
    monkeypatch.setattr(staging, "FLUSH_BYTES", flush_bytes)

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch_of(1, 2)
        raise RuntimeError("the input failed")

    with pytest.raises(RuntimeError, match="the input failed"):
        publisher.stage(0, rows())
    assert staged_rows(store) == 0


def test_large_inputs_are_staged_and_applied_in_pieces(
    store: Store, table: Table, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "STAGE_BYTES", 1000)
    monkeypatch.setattr(staging, "FLUSH_BYTES", 3000)
    monkeypatch.setattr(staged_parts, "APPLY_ROWS", 100)
    receipts = publisher.stage(0, [batch_of(*range(n, n + 250)) for n in range(0, 1000, 250)])
    assert len(receipts) > 10
    publisher.publish(0, [Write("sink", RowChange.PUT, tuple(receipts))])
    assert set(content(table)) == set(range(1000))


def _stage_and_publish_until_killed(path: str, ready: Any) -> None:
    store = headrace.open(path, synchronous="off")
    publisher = store.publisher("job")
    ready.set()
    for batch in range(1_000_000):
        put(publisher, batch, batch_of(*range(50), value=batch))


def test_a_killed_publisher_leaves_complete_batches(store: Store, table: Table, tmp_path: Path) -> None:
    ready = CONTEXT.Event()
    process = CONTEXT.Process(target=_stage_and_publish_until_killed, args=(str(tmp_path / "store"), ready))
    process.start()
    assert ready.wait(60)
    publisher = store.publisher("job")
    while not publisher.published(5):
        store.wait_for_change(1.0)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    process.close()
    values = set(content(table).values())
    (last,) = values
    assert publisher.published(last)
    assert not publisher.published(last + 1)
    put(publisher, last + 1, batch_of(*range(50), value=last + 1))
    assert (set(content(table).values()), staged_rows(store)) == ({last + 1}, 0)
