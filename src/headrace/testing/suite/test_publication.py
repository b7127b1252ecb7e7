"""Publication: a batch's rows become visible at once, once, and not before."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import (
    ClaimLostError,
    DataLossError,
    NotFoundError,
    PublicationError,
    SchemaError,
    UnsupportedError,
)
from headrace.model.own_names import PREFIX
from headrace.model.tables.changes import ChangeOp, RowChange
from headrace.ports import Claim, Marker, Publisher, Staged, Store, Table, Write
from headrace.testing import Place
from headrace.testing.reading import drain, rows_of, state_of

JOBS = f"{PREFIX}jobs"


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    schema = pa.schema([("id", pa.string()), ("price", pa.int64()), ("note", pa.string())])
    return pa.RecordBatch.from_pylist(list(rows), schema)


def stage(publisher: Publisher, batch: int, *rows: dict[str, Any]) -> tuple[Staged, ...]:
    return tuple(publisher.stage(batch, [batch_of(*rows)]))


def put(publisher: Publisher, batch: int, *rows: dict[str, Any], change: RowChange = RowChange.PUT) -> bool:
    """Stage and publish rows for table ``orders``."""
    return publisher.publish(batch, [Write("orders", change, stage(publisher, batch, *rows))])


def replaced(store: Store) -> ChangeOp:
    """Return the kind of change of a put that replaces a row."""
    return ChangeOp.REPLACE if store.capabilities.tells_rows else ChangeOp.INSERT


@pytest.mark.needs("tunnels")
def test_staged_rows_are_invisible_until_they_are_published(store: Store, orders: Table, publisher: Publisher) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    staged = stage(publisher, 0, {"id": "a"}, {"id": "b"})
    assert sum(receipt.rows for receipt in staged) == 2
    assert (rows_of(orders), drain(tunnel), publisher.published(0)) == ([], [], False)
    assert not publisher.resume(0)
    assert publisher.publish(0, [Write("orders", RowChange.PUT, staged)])
    assert [row["id"] for row in rows_of(orders)] == ["a", "b"]
    assert [change.key for change in drain(tunnel)] == [("a",), ("b",)]
    assert publisher.published(0)
    assert publisher.resume(0)
    assert not publisher.published(1)


@pytest.mark.needs("markers")
@pytest.mark.parametrize("in_process", [False, True])
def test_the_marker_has_the_content_of_the_last_batch(
    store: Store, orders: Table, publisher: Publisher, in_process: bool
) -> None:
    publisher.in_process = in_process
    assert publisher.marker() is None
    for batch, content in ((0, "first"), (1, "second"), (1, "second")):
        staged = stage(publisher, batch, {"id": "a", "price": batch})
        publisher.publish(batch, [Write("orders", RowChange.PUT, staged)], content=content)
        publisher.discard(batch)
    assert publisher.marker() == Marker(1, "second")
    assert store.publisher("job", "other").marker() is None
    assert rows_of(orders) == [{"id": "a", "price": 1, "note": None}]


@pytest.mark.needs("tunnels")
def test_receipts_of_many_tasks_are_published_together(store: Store, orders: Table, publisher: Publisher) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    staged = [receipt for key in "abc" for receipt in stage(store.publisher("job"), 0, {"id": key})]
    travelled: list[Staged] = pickle.loads(pickle.dumps(staged))
    assert publisher.publish(0, [Write("orders", RowChange.PUT, tuple(travelled))])
    changes = drain(tunnel)
    assert sorted(change.key[0] for change in changes) == ["a", "b", "c"]
    if store.capabilities.transactions:
        assert len({change.version for change in changes}) == 1


@pytest.mark.needs("tunnels", "transactions")
def test_all_tables_of_a_batch_change_in_one_commit(store: Store, orders: Table, publisher: Publisher) -> None:
    totals = store.create_table("totals", {"id": "string", "price": "long", "note": "string"}, "id")
    tunnels = [store.create_tunnel(name, "changes", "Stream") for name in ("orders", "totals")]
    writes = [
        Write("orders", RowChange.PUT, stage(publisher, 0, {"id": "a"})),
        Write("totals", RowChange.PUT, stage(publisher, 0, {"id": "sum", "price": 1})),
    ]
    publisher.publish(0, writes)
    assert (len(rows_of(orders)), len(rows_of(totals))) == (1, 1)
    assert len({change.version for tunnel in tunnels for change in drain(tunnel)}) == 1


@pytest.mark.needs("transactions")
@pytest.mark.parametrize("broken", ["receipt", "table", "rows"])
def test_a_batch_that_cannot_be_published_changes_nothing(
    store: Store, orders: Table, publisher: Publisher, broken: str
) -> None:
    orders.put({"id": "old"})
    good = Write("orders", RowChange.REPLACE_ALL, stage(publisher, 0, {"id": "a"}))
    misfit = pa.RecordBatch.from_pylist([{"id": "b", "colour": "red"}])
    bad, error = {
        "receipt": (Write("orders", RowChange.PUT, (Staged(10**9, 5),)), PublicationError),
        "table": (Write("nothing", RowChange.PUT, stage(publisher, 0, {"id": "b"})), NotFoundError),
        "rows": (Write("orders", RowChange.PUT, tuple(publisher.stage(0, [misfit]))), SchemaError),
    }[broken]
    with pytest.raises(error):
        publisher.publish(0, [good, bad])
    assert [row["id"] for row in rows_of(orders)] == ["old"]
    assert not publisher.published(0)
    assert publisher.publish(0, [good])
    assert [row["id"] for row in rows_of(orders)] == ["a"]


@pytest.mark.needs("tunnels", "transactions")
def test_a_batch_is_published_once(store: Store, orders: Table, publisher: Publisher) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    assert put(publisher, 0, {"id": "a", "price": 1})
    orders.put({"id": "a", "price": 100})
    assert not put(publisher, 0, {"id": "a", "price": 1})
    assert not put(store.publisher("job"), 0, {"id": "b"})
    assert rows_of(orders) == [{"id": "a", "price": 100, "note": None}]
    assert len(drain(tunnel)) == 2


def test_publishing_the_same_receipts_again_is_no_error(orders: Table, publisher: Publisher) -> None:
    write = Write("orders", RowChange.PUT, stage(publisher, 0, {"id": "a"}))
    assert publisher.publish(0, [write])
    assert not publisher.publish(0, [write])


def test_a_batch_before_the_last_published_one_changes_nothing(orders: Table, publisher: Publisher) -> None:
    assert put(publisher, 5, {"id": "a"})
    assert publisher.published(4)
    assert not put(publisher, 4, {"id": "b"})
    assert put(publisher, 6, {"id": "c"})
    assert [row["id"] for row in rows_of(orders)] == ["a", "c"]


def test_rows_of_an_old_batch_are_not_written_over_newer_ones(
    store: Store, orders: Table, publisher: Publisher
) -> None:
    """An older checkpoint was restored, or a task that Spark has abandoned continues after another publication."""
    assert put(publisher, 5, {"id": "a", "price": 5})
    for late in (publisher, store.publisher(publisher.job, publisher.sink)):
        for batch in (5, 4):
            late.stage(batch, [batch_of({"id": "a", "price": batch - 10})], table="orders", change=RowChange.PUT)
            late.stage(batch, [batch_of({"id": "a"}).select(["id"])], table="orders", change=RowChange.DELETE)
    assert rows_of(orders) == [{"id": "a", "price": 5, "note": None}]


def test_a_batch_with_other_content_under_a_published_number_is_refused(orders: Table, publisher: Publisher) -> None:
    def publish(batch: int, content: str) -> bool:
        rows = stage(publisher, batch, {"id": content, "price": batch})
        return publisher.publish(batch, [Write(orders.name, RowChange.PUT, rows)], content=content)

    assert publish(0, "a")
    assert publish(1, "b")
    assert not publish(1, "b")
    for batch, content in ((1, "other"), (0, "a"), (0, "other")):
        # An older checkpoint was restored: "already published" would silently lose these rows.
        with pytest.raises(PublicationError, match="checkpoint is older than the store"):
            publish(batch, content)
    assert publish(2, "c")


def test_rows_staged_by_a_crashed_attempt_are_never_published(place: Place, store: Store, orders: Table) -> None:
    crashed = stage(store.publisher("job"), 1, {"id": "crashed"})
    with place.open() as other:
        publisher = other.publisher("job")
        assert rows_of(other.table("orders")) == []
        assert put(publisher, 1, {"id": "a"})
        assert put(publisher, 2, {"id": "b"})
        for batch in (1, 2):
            assert not publisher.publish(batch, [Write("orders", RowChange.PUT, crashed)])
        with pytest.raises(PublicationError):
            publisher.publish(3, [Write("orders", RowChange.PUT, crashed)])
    assert [row["id"] for row in rows_of(orders)] == ["a", "b"]


def test_discarded_receipts_cannot_be_published(orders: Table, publisher: Publisher) -> None:
    first, second = stage(publisher, 0, {"id": "a"}), stage(publisher, 0, {"id": "b"})
    publisher.discard(0, first)
    with pytest.raises(PublicationError):
        publisher.publish(0, [Write("orders", RowChange.PUT, first + second)])
    assert publisher.publish(0, [Write("orders", RowChange.PUT, second)])
    third = stage(publisher, 1, {"id": "c"})
    publisher.discard(1)
    with pytest.raises(PublicationError):
        publisher.publish(1, [Write("orders", RowChange.PUT, third)])
    assert [row["id"] for row in rows_of(orders)] == ["b"]


def test_rows_staged_for_another_batch_sink_or_job_are_refused(store: Store, orders: Table) -> None:
    publisher = store.publisher("job", "sink")
    staged = {
        "batch": stage(publisher, 7, {"id": "a"}),
        "sink": stage(store.publisher("job", "other"), 0, {"id": "a"}),
        "job": stage(store.publisher("other", "sink"), 0, {"id": "a"}),
    }
    for receipts in staged.values():
        with pytest.raises(PublicationError):
            publisher.publish(0, [Write("orders", RowChange.PUT, receipts)])
    assert rows_of(orders) == []


def test_each_job_and_sink_has_its_own_marker(store: Store, orders: Table) -> None:
    publishers = [store.publisher(job, sink) for job in ("one", "two") for sink in ("", "left", "right")]
    for number, publisher in enumerate(publishers):
        assert not publisher.published(0)
        assert put(publisher, 0, {"id": str(number)})
        assert publisher.published(0)
    assert len(rows_of(orders)) == 6


@pytest.mark.needs("tunnels")
def test_an_empty_batch_is_published(store: Store, orders: Table, publisher: Publisher) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    assert publisher.stage(0, []) == []
    assert publisher.publish(0, [Write("orders", RowChange.PUT, tuple(publisher.stage(0, [batch_of()])))])
    assert publisher.publish(1, [])
    assert publisher.published(1)
    assert (rows_of(orders), drain(tunnel)) == ([], [])


def test_a_one_off_batch_leaves_no_marker(orders: Table, publisher: Publisher) -> None:
    staged = stage(publisher, 0, {"id": "a"})
    assert publisher.publish(0, [Write("orders", RowChange.PUT, staged)], last=True)
    assert not publisher.published(0)
    assert [row["id"] for row in rows_of(orders)] == ["a"]
    with pytest.raises(PublicationError):
        publisher.publish(0, [Write("orders", RowChange.PUT, staged)], last=True)


def test_a_failing_input_stages_nothing(orders: Table, publisher: Publisher) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield batch_of({"id": "a"})
        raise RuntimeError("the query failed")

    with pytest.raises(RuntimeError, match="the query failed"):
        publisher.stage(0, failing())
    assert put(publisher, 0, {"id": "b"})
    assert [row["id"] for row in rows_of(orders)] == ["b"]


# -- row changes ----------------------------------------------------------------------------------------


def test_rows_are_put_updated_and_deleted(store: Store, orders: Table, publisher: Publisher) -> None:
    orders.put([{"id": key, "price": 1, "note": "x"} for key in "abc"])
    put(publisher, 0, {"id": "a", "price": 2}, {"id": "d", "price": 2})
    put(publisher, 1, {"id": "b", "price": 3}, {"id": "e", "price": 3}, change=RowChange.UPDATE)
    put(publisher, 2, {"id": "c", "price": 9}, {"id": "nobody"}, change=RowChange.DELETE)
    assert rows_of(orders) == [
        {"id": "a", "price": 2, "note": None},
        {"id": "b", "price": 3, "note": "x"},
        {"id": "d", "price": 2, "note": None},
        {"id": "e", "price": 3, "note": None},
    ]


def test_staged_rows_can_lack_columns(orders: Table, publisher: Publisher) -> None:
    orders.put([{"id": "a", "price": 1, "note": "x"}, {"id": "b", "price": 1, "note": "x"}])
    some = pa.RecordBatch.from_pylist([{"price": 2, "id": "a"}])
    publisher.publish(0, [Write("orders", RowChange.UPDATE, tuple(publisher.stage(0, [some])))])
    keys = pa.RecordBatch.from_pylist([{"id": "b"}])
    publisher.publish(1, [Write("orders", RowChange.DELETE, tuple(publisher.stage(1, [keys])))])
    assert rows_of(orders) == [{"id": "a", "price": 2, "note": "x"}]


def test_writes_of_a_batch_are_applied_in_their_order(orders: Table, publisher: Publisher) -> None:
    writes = [
        Write("orders", change, stage(publisher, 0, row))
        for change, row in (
            (RowChange.PUT, {"id": "a", "price": 1}),
            (RowChange.DELETE, {"id": "a"}),
            (RowChange.PUT, {"id": "a", "price": 2}),
            (RowChange.UPDATE, {"id": "a", "note": "x"}),
        )
    ]
    publisher.publish(0, writes)
    assert rows_of(orders) == [{"id": "a", "price": 2, "note": "x"}]


def test_replace_all_makes_the_table_hold_exactly_the_rows(orders: Table, publisher: Publisher) -> None:
    orders.put([{"id": key} for key in "abc"])
    put(publisher, 0, {"id": "b", "price": 1}, {"id": "d", "price": 1}, change=RowChange.REPLACE_ALL)
    assert set(state_of(orders)) == {("b",), ("d",)}
    publisher.publish(1, [Write("orders", RowChange.REPLACE_ALL, ())])
    assert rows_of(orders) == []


@pytest.mark.needs("tunnels")
def test_replace_all_sets_missing_columns_to_null(store: Store, publisher: Publisher) -> None:
    table = store.create_table("wide", {"id": "string", "price": "long", "note": "string"}, "id")
    table.put([{"id": "a", "price": 1, "note": "x"}, {"id": "b", "price": 2, "note": "x"}, {"id": "c", "price": 3}])
    rows = pa.RecordBatch.from_pylist([{"id": "a", "price": 1}, {"id": "b", "price": 9}, {"id": "c", "price": 3}])
    staged = tuple(publisher.stage(0, [rows], table="wide", change=RowChange.REPLACE_ALL))
    tunnel = store.create_tunnel("wide", "changes", "Stream")
    assert publisher.publish(0, [Write("wide", RowChange.REPLACE_ALL, staged)])
    assert [(row["id"], row["price"], row["note"]) for row in rows_of(table)] == [
        ("a", 1, None),
        ("b", 9, None),
        ("c", 3, None),
    ]
    assert [change.key for change in drain(tunnel)] == [("a",), ("b",)]


@pytest.mark.parametrize("change", [RowChange.PUT, RowChange.UPDATE, RowChange.DELETE])
def test_rows_can_be_staged_for_one_table(store: Store, orders: Table, change: RowChange) -> None:
    orders.put({"id": "b", "note": "x"})
    rows = [batch_of({"id": "a", "price": 1}), batch_of({"id": "b", "price": 2})]
    if change is RowChange.DELETE:
        rows = [batch.select(["id"]) for batch in rows]
    for attempt in ("the first", "its replay"):
        publisher = store.publisher("job", "sink")
        staged = tuple(publisher.stage(0, rows, table="orders", change=change))
        assert sum(receipt.rows for receipt in staged) == 2
        if attempt == "the first":
            publisher.discard(0, staged)
        else:
            assert publisher.publish(0, [Write("orders", change, staged)])
    note = {RowChange.PUT: None, RowChange.UPDATE: "x"}.get(change)
    expected = [{"id": "a", "price": 1, "note": None}, {"id": "b", "price": 2, "note": note}]
    assert rows_of(orders) == ([] if change is RowChange.DELETE else expected)
    assert publisher.published(0)


@pytest.mark.needs("tunnels")
@pytest.mark.parametrize("count", [5, 3000])
def test_replace_all_logs_real_differences_only(store: Store, orders: Table, publisher: Publisher, count: int) -> None:
    rows: list[dict[str, Any]] = [
        {"id": f"{number:05}", "price": number, "note": "x" if number % 2 else None} for number in range(count)
    ]
    put(publisher, 0, *rows, change=RowChange.REPLACE_ALL)
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    put(publisher, 1, *reversed(rows), change=RowChange.REPLACE_ALL)
    assert drain(tunnel) == []
    changed: Sequence[dict[str, Any]] = [*rows[:-2], {**rows[-1], "note": "y"}, {"id": "new", "price": 1}]
    put(publisher, 2, *changed, change=RowChange.REPLACE_ALL)
    assert sorted((change.op, change.key[0]) for change in drain(tunnel)) == [
        *sorted([(ChangeOp.INSERT, "new"), (replaced(store), rows[-1]["id"])]),
        (ChangeOp.DELETE, rows[-2]["id"]),
    ]
    assert [row["id"] for row in rows_of(orders)] == [row["id"] for row in changed]


@pytest.mark.needs("tunnels")
def test_replace_all_detects_a_change_of_any_value(store: Store, publisher: Publisher) -> None:
    table = store.create_table("orders", {"id": "string", "real": "double", "flag": "boolean"}, "id")
    rows: list[dict[str, Any]] = [
        {"id": "a", "real": float("nan"), "flag": True},
        {"id": "b", "real": 0.0, "flag": None},
        {"id": "c", "real": None, "flag": False},
    ]
    schema = pa.schema([("id", pa.string()), ("real", pa.float64()), ("flag", pa.bool_())])
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    for batch, flag in enumerate([False, False, False, None]):
        found = pa.RecordBatch.from_pylist([*rows[:2], {**rows[2], "flag": flag}], schema)
        publisher.publish(batch, [Write("orders", RowChange.REPLACE_ALL, tuple(publisher.stage(batch, [found])))])
    assert [change.op for change in drain(tunnel)] == [ChangeOp.INSERT] * 3 + [replaced(store)]
    assert table.get({"id": "c"}) == {"id": "c", "real": None, "flag": None}


def test_a_large_batch_is_published_as_a_whole(orders: Table, publisher: Publisher) -> None:
    count = 120_000
    rows = pa.table({"id": [f"{number:06}" for number in range(count)], "price": range(count)})
    staged = tuple(publisher.stage(0, rows.to_batches(max_chunksize=10_000)))
    assert sum(receipt.rows for receipt in staged) == count
    publisher.publish(0, [Write("orders", RowChange.PUT, staged)])
    assert orders.scan(["price"]).read_all().column("price").to_pylist() == list(range(count))


# -- claims ---------------------------------------------------------------------------------------------------


@pytest.fixture
def jobs(store: Store) -> Table:
    # A table of headrace's own, as each claim has it: a store can keep such tables elsewhere.
    return store.create_table(JOBS, {"target": "string", "job": "string"}, "target")


def claim_of(before: str | None, after: str) -> Claim:
    """Return the claim of a job on table ``orders``."""
    row = None if before is None else {"target": "orders", "job": before}
    return Claim(JOBS, row, {"target": "orders", "job": after})


@pytest.mark.needs("transactions")
def test_of_two_jobs_with_the_same_claim_one_publishes(store: Store, orders: Table, jobs: Table) -> None:
    writes = {}
    for job in ("first", "second"):
        staged = stage(store.publisher(job), 0, {"id": job})
        writes[job] = [Write("orders", RowChange.PUT, staged)]
    assert store.publisher("second").publish(0, writes["second"], claim=claim_of(None, "second"))
    for before in (None, "first"):
        with pytest.raises(ClaimLostError, match="another job"):
            store.publisher("first").publish(0, writes["first"], claim=claim_of(before, "first"))
    assert not store.publisher("first").published(0)
    # The batch is published: a repetition does not need the claim.
    assert not store.publisher("second").publish(0, writes["second"], claim=claim_of(None, "second"))
    held = claim_of("second", "second")
    assert store.publisher("second").publish(1, [], claim=held)
    assert store.publisher("first").publish(0, writes["first"], claim=claim_of("second", "first"))
    with pytest.raises(ClaimLostError):
        store.publisher("second").publish(2, [], claim=held)
    assert rows_of(jobs) == [{"target": "orders", "job": "first"}]
    assert [row["id"] for row in rows_of(orders)] == ["first", "second"]


def test_without_transactions_a_claim_is_taken_before_the_first_batch(
    store: Store, orders: Table, jobs: Table, publisher: Publisher
) -> None:
    if store.capabilities.transactions:
        with pytest.raises(UnsupportedError):
            publisher.take(claim_of(None, "first"))
        return
    publisher.take(claim_of(None, "first"))
    for before in (None, "second"):
        with pytest.raises(ClaimLostError, match="another job"):
            publisher.take(claim_of(before, "second"))
        # A repeated request finds its own row.
        publisher.take(claim_of(before, "first"))
    assert publisher.publish(0, [], claim=claim_of("first", "first"))
    publisher.take(claim_of("first", "second"))
    with pytest.raises(ClaimLostError):
        publisher.publish(1, [], claim=claim_of("first", "first"))
    assert not publisher.published(1)
    assert rows_of(jobs) == [{"target": "orders", "job": "second"}]


def test_a_store_that_lacks_batches_of_a_job_is_older_than_the_checkpoint(
    store: Store, orders: Table, publisher: Publisher
) -> None:
    assert publisher.last_batch() is None
    # A job whose sink was elsewhere.
    publisher.check_complete(5)
    put(publisher, 5, {"id": "a"})
    put(store.publisher("job", "other"), 6, {"id": "b"})
    put(store.publisher("another job"), 9, {"id": "c"})
    assert publisher.last_batch() == 6
    publisher.check_complete(6)
    publisher.check_complete(7)
    with pytest.raises(DataLossError, match="the last batch in the store is 6"):
        publisher.check_complete(8)
