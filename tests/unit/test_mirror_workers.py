"""Mirrors without Spark: positions in the target, other workers and other jobs, changes of columns."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.batches.sinks.jobs import TargetJob, TargetJobs
from headrace.batches.sinks.targets import TableTarget
from headrace.derived.mirror import worker
from headrace.derived.mirror.evolution import EVOLVE, LENIENT, Evolution
from headrace.derived.mirror.setup import MirrorRecord, MirrorSetup
from headrace.derived.mirror.worker import MirrorCopy
from headrace.errors import AlreadyExistsError, DataLossError, HeadraceError, OptionError, SchemaError, StoreError
from headrace.formats.location import Location
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.bad_rows import table_name
from headrace.model.tables.schema import Column
from headrace.model.tunnels.leases import Saved
from headrace.monitoring.exposition import exposition, make_registry
from headrace.ports import Marker, Store, Table
from headrace.stores.embedded.publication.publisher import EmbeddedPublisher
from headrace.stores.registry import StoreAddress
from headrace.support import counters
from headrace.workers import ChangeBatch
from tests.clocks import count_pauses, patch_time

COLUMNS = {"id": "long", "name": "string", "price": "double"}


@pytest.fixture
def shop(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "shop", create=True, synchronous="off")


@pytest.fixture
def copies(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "copies", create=True, synchronous="off")


@pytest.fixture
def orders(shop: Store) -> Table:
    table = shop.create_table("orders", COLUMNS, "id")
    table.put([{"id": number, "name": "a", "price": 1.0} for number in range(4)])
    return table


def copy(shop: Store, copies: Store, **options: Any) -> int:
    """Copy until all is copied; return the number of changes."""
    changes = list[int]()
    headrace.mirror_worker(shop, "orders", copies, idle="stop", **options).run(changes.append)
    return sum(changes)


def setup(shop: Store, copies: Store, *, by_workers: bool, keeps: bool = False) -> MirrorSetup:
    return MirrorSetup(
        shop,
        Location(StoreAddress(shop.url), "orders"),
        copies,
        "orders",
        tunnel=None,
        tunnel_name="mirror-orders",
        history=False,
        evolution=Evolution(LENIENT if keeps else EVOLVE, keeps=keeps),
        by_workers=by_workers,
    )


def opened(shop: Store, copies: Store, *, keeps: bool = False) -> MirrorCopy:
    return MirrorCopy(shop, copies, partial(setup, shop, copies, by_workers=True, keeps=keeps))


def first_batches(copied: MirrorCopy) -> list[ChangeBatch]:
    """Return the first batch of each open channel, from the tunnel's position."""
    batches = []
    for channel in copied.tunnel.channels():
        if channel.state == "open":
            page = copied.tunnel.read(channel.id, channel.committed, 100)
            batches.append(ChangeBatch(channel.id, page.changes, page.next, ("id",), lambda: None, channel.committed))
    return batches


def first_batch(copied: MirrorCopy) -> ChangeBatch:
    (batch,) = first_batches(copied)
    return batch


def test_of_two_workers_with_one_batch_one_publishes_it(shop: Store, copies: Store, orders: Table) -> None:
    one, other = opened(shop, copies), opened(shop, copies)
    log = copies.create_tunnel("orders", "log", "Stream")
    batch = first_batch(one)
    assert (one.publish(batch), other.publish(batch), one.publish(batch)) == (True, False, False)
    (channel,) = log.channels()
    assert log.read(channel.id, channel.committed, 100).changes.num_rows == 4


def test_a_worker_continues_at_the_position_in_the_target(shop: Store, copies: Store, orders: Table) -> None:
    copied = opened(shop, copies)
    batch = first_batch(copied)
    assert copied.publish(batch)
    # The tunnel does not know that the batch was copied.
    assert copied.tunnel.channels()[0].committed == batch.start
    assert copy(shop, copies) == 0
    assert headrace.diff_tables(orders, copies.table("orders")).equal
    orders.put({"id": 9, "name": "b", "price": 2.0})
    assert copy(shop, copies) == 1


def test_a_target_that_does_not_respond_when_a_channel_begins_is_asked_again(
    shop: Store, copies: Store, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, errors = EmbeddedPublisher.marker, iter([StoreError("the server ended the connection")] * 2)

    def later(self: EmbeddedPublisher) -> Marker | None:
        if (error := next(errors, None)) is not None:
            raise error
        return marker(self)

    monkeypatch.setattr(EmbeddedPublisher, "marker", later)
    assert copy(shop, copies) == 4
    assert next(errors, None) is None


def test_a_worker_does_not_drop_the_tunnel_of_another_that_begins(
    shop: Store, copies: Store, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (setup(shop, copies, by_workers=True) for _ in range(2))
    before, save = other.record(), MirrorSetup._save

    def late(begun: MirrorSetup, record: MirrorRecord) -> None:
        if record.tunnel is not None:
            monkeypatch.undo()
            with pytest.raises(AlreadyExistsError):
                other.prepare(before)
        save(begun, record)

    monkeypatch.setattr(MirrorSetup, "_save", late)
    assert one.prepare(one.record()).id == shop.tunnel("mirror-orders").id


def test_a_query_of_spark_hands_a_mirror_to_workers_and_never_takes_it_back(
    shop: Store, copies: Store, orders: Table
) -> None:
    spark = setup(shop, copies, by_workers=False)
    claimed = spark.register(spark.prepare(spark.record())).claim
    assert copy(shop, copies) == 4
    # The query publishes nothing more.
    assert TargetJobs(copies).is_lost(claimed)
    with pytest.raises(OptionError, match="workers without Spark fill mirror 'orders'"):
        spark.prepare(spark.record())
    orders.put({"id": 9, "name": "b", "price": 2.0})
    assert copy(shop, copies) == 1


def test_a_mirror_that_keeps_no_bad_rows_does_not_begin_with_some(shop: Store, copies: Store, orders: Table) -> None:
    copy(shop, copies)
    copies.create_bad_rows("orders")
    orders.put({"id": 9, "name": "b", "price": 2.0})
    assert copy(shop, copies) == 1
    bad = copies.table(table_name("orders"))
    bad.put({"key": '{"id":9}', "change": "put", "row": '{"id":9}'})
    with pytest.raises(OptionError, match="the target has bad rows"):
        copy(shop, copies)
    bad.add_columns({"note": "string"})
    with pytest.raises(OptionError, match="the target has bad rows"):
        copy(shop, copies)
    bad.delete({"key": '{"id":9}'})
    assert copy(shop, copies) == 0


@pytest.fixture
def refusing(copies: Store) -> Table:
    """A copy that refuses rows without a price."""
    fields = [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("price", pa.float64(), nullable=False),
    ]
    return copies.create_table("orders", pa.schema(fields), "id")


def test_refused_rows_are_kept_beside_the_copy_until_it_takes_them(
    shop: Store, copies: Store, orders: Table, refusing: Table, caplog: pytest.LogCaptureFixture
) -> None:
    orders.put([{"id": 1, "name": "bad"}, {"id": 2, "name": "bad"}])
    with pytest.raises(SchemaError, match="price"):
        copy(shop, copies)
    assert copy(shop, copies, bad_rows="table") == 4
    bad = copies.table(table_name("orders"))
    assert [(each["key"], each["stream"], each["query"]) for each in bad] == [
        (f'{{"id":{number}}}', "orders", shop.tunnel("mirror-orders").id) for number in (1, 2)
    ]
    assert "2 rows of a batch were refused, and are in orders_bad_rows" in caplog.text
    assert [each["id"] for each in refusing] == [0, 3]
    # A later row and a delete end them.
    orders.put({"id": 1, "name": "good", "price": 2.0})
    orders.delete({"id": 2})
    copy(shop, copies, bad_rows="table")
    assert list(bad) == []
    assert headrace.diff_tables(orders, refusing).equal
    with pytest.raises(OptionError, match="unknown value of option bad_rows"):
        headrace.mirror_worker(shop, "orders", copies, bad_rows="drop")
    with pytest.raises(OptionError, match="a history keeps no bad rows"):
        headrace.mirror_worker(shop, "orders", copies, bad_rows="table", history=True)


def test_a_running_worker_that_keeps_no_bad_rows_publishes_nothing_after_those_of_another(
    shop: Store, copies: Store, orders: Table, refusing: Table
) -> None:
    copy(shop, copies)
    without = opened(shop, copies)
    orders.put({"id": 1, "name": "bad"})
    copy(shop, copies, bad_rows="table")
    orders.put({"id": 1, "name": "good", "price": 2.0})
    with pytest.raises(OptionError, match=r"the target has bad rows.*badRows=table"):
        without.publish(first_batch(without))
    copy(shop, copies, bad_rows="table")
    assert headrace.diff_tables(orders, refusing).equal
    assert list(copies.table(table_name("orders"))) == []


def test_a_worker_that_begins_sees_bad_rows_of_the_last_moment(
    shop: Store, copies: Store, orders: Table, refusing: Table
) -> None:
    copy(shop, copies)
    beginning = setup(shop, copies, by_workers=True)
    tunnel = beginning.prepare(beginning.record())
    orders.put({"id": 1, "name": "bad"})
    copy(shop, copies, bad_rows="table")
    with pytest.raises(OptionError):
        beginning.register(tunnel)
    assert copy(shop, copies, bad_rows="table") == 0


def test_the_mirror_of_a_target_is_not_that_of_another(shop: Store, copies: Store, orders: Table) -> None:
    copy(shop, copies)
    with pytest.raises(AlreadyExistsError, match="a tunnel with the name of the mirror's own tunnel"):
        headrace.mirror_worker(shop, "orders", copies, "other", name="orders").run()
    with pytest.raises(OptionError, match="a mirror puts rows into the table whose changes it reads"):
        headrace.mirror_worker(shop, "orders", shop).run()
    shop.create_table("others", COLUMNS, "id")
    with pytest.raises(AlreadyExistsError, match="mirror of another kind or source"):
        headrace.mirror_worker(shop, "others", copies, "orders").run()


def test_a_target_that_cannot_be_created_fails_at_once(
    shop: Store, copies: Store, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_time(monkeypatch, "headrace.derived.mirror.worker", sleep=waits)
    copies.create_queue("clicks", {"id": "long"})
    copies.create_consumer("reader")
    for name, kind in {"clicks": "queue", "reader": "consumer"}.items():
        for _ in range(2):
            with pytest.raises(AlreadyExistsError, match=f"'{name}', which is a {kind}"):
                headrace.mirror_worker(shop, "orders", copies, name).run()
    assert shop.tunnels() == []


def test_a_target_that_another_worker_creates_at_the_same_time_is_filled(
    shop: Store, copies: Store, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = type(copies).create_table

    def created_twice(store: Any, name: str, *arguments: Any, **options: Any) -> Table:
        if name == "orders":
            monkeypatch.setattr(type(copies), "create_table", create)
            create(store, name, *arguments, **options)
        return create(store, name, *arguments, **options)

    monkeypatch.setattr(type(copies), "create_table", created_twice)
    assert copy(shop, copies) == 4


def test_a_tunnel_that_cannot_be_created_fails_at_once(
    shop: Store, copies: Store, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_time(monkeypatch, "headrace.derived.mirror.worker", sleep=waits)
    with monkeypatch.context() as failing:
        failing.setattr(type(shop), "create_tunnel", failed)
        for _ in range(2):
            with pytest.raises(StoreError, match="no more slots"):
                copy(shop, copies)
    assert copy(shop, copies) == 4


def failed(*_: Any, **__: Any) -> None:
    raise StoreError("no more slots")


def waits(_: float) -> None:
    pytest.fail("the worker waits for another one")


@pytest.mark.parametrize("later", [lambda orders: None, lambda orders: orders.put({"id": 9})], ids=["base", "stream"])
def test_a_target_that_is_older_than_the_tunnel_is_refused(
    shop: Store, copies: Store, orders: Table, later: Callable[[Table], Any], tmp_path: Path
) -> None:
    opened(shop, copies)
    copies.back_up(tmp_path / "backup")
    copy(shop, copies)
    later(orders)
    copy(shop, copies)
    headrace.restore(tmp_path / "backup", tmp_path / "restored")
    with headrace.open(tmp_path / "restored") as older, pytest.raises(DataLossError, match="older than its tunnel"):
        copy(shop, older)


def test_a_target_that_was_created_again_ends_a_running_worker(shop: Store, copies: Store, orders: Table) -> None:
    copied = opened(shop, copies)
    copies.drop_table("orders")
    copies.create_table("orders", COLUMNS, "id")
    with pytest.raises(DataLossError, match="dropped and created again"):
        copied.publish(first_batch(copied))


def test_a_worker_whose_target_was_taken_publishes_nothing_more(shop: Store, copies: Store, orders: Table) -> None:
    copied = opened(shop, copies)
    TargetJobs(copies).register(TargetJob("orders", "other", {}))
    with pytest.raises(HeadraceError, match="a followed query fills table 'orders'"):
        copied.publish(first_batch(copied))
    assert copies.table("orders").scan().read_all().num_rows == 0


def test_the_target_gets_the_changes_of_columns_with_the_rows_behind_them(
    shop: Store, copies: Store, orders: Table
) -> None:
    copy(shop, copies)
    one, other = opened(shop, copies), opened(shop, copies)
    orders.alter(Alteration(renamed={"name": "title"}, dropped=["price"]))
    orders.add_columns({"note": "string"})
    orders.put({"id": 9, "title": "b", "note": "n"})
    batch = first_batch(one)
    assert one.publish(batch)
    assert copies.table("orders").schema == orders.schema
    assert headrace.diff_tables(orders, copies.table("orders")).equal
    # The other one learns of it by its claim.
    orders.put({"id": 10, "title": "c", "note": "n"})
    shop.tunnel("mirror-orders").commit({batch.channel: batch.position})
    following = first_batch(other)
    assert not other.publish(following)
    assert other.publish(following)
    assert headrace.diff_tables(orders, copies.table("orders")).equal


def test_channels_that_were_read_before_a_change_of_columns_are_read_again(
    shop: Store, copies: Store, orders: Table
) -> None:
    orders.put([{"id": number, "name": "a", "price": 1.0} for number in range(64)])
    for _ in range(8):
        orders.split()
    copied = opened(shop, copies)
    before = first_batches(copied)
    assert len(before) == 9
    orders.add_columns({"note": "string"})
    assert not any(map(copied.publish, before))
    assert all(map(copied.publish, first_batches(copied)))
    assert headrace.diff_tables(orders, copies.table("orders")).equal


def test_a_channel_has_one_batch_in_hand(shop: Store, orders: Table) -> None:
    orders.split()
    with shop.create_tunnel("orders", "shared").consume(batch_rows=1) as worker:
        one, other = worker.take(), worker.take()
        assert one is not None
        assert other is not None
        assert one.channel != other.channel
        one.done()
        following = worker.take()
        assert following is not None
        assert (following.channel, following.start) == (one.channel, one.position)
        # The batch in hand is another one now.
        one.done()
        other.done()
        last = worker.take()
        assert last is not None
        assert (last.channel, last.start) == (other.channel, other.position)


def test_values_of_a_dropped_column_do_not_get_into_a_new_one_of_its_name(
    shop: Store, copies: Store, orders: Table
) -> None:
    copy(shop, copies)
    orders.put({"id": 1, "name": "former", "price": 2.0})
    copied = opened(shop, copies)
    (channel,) = [each for each in copied.tunnel.channels() if each.state == "open"]
    saved = Saved(channel.committed, 0)
    copied.resume(channel.id, saved)
    batch = first_batch(copied)
    orders.alter(Alteration(dropped=["name"]))
    orders.add_columns({"name": "string"})
    assert not copied.publish(batch)
    copied.resume(channel.id, saved)
    assert copied.publish(first_batch(copied))
    assert headrace.diff_tables(orders, copies.table("orders")).equal


def test_a_worker_that_keeps_columns_learns_of_those_that_another_has_added(
    shop: Store, copies: Store, orders: Table
) -> None:
    copy(shop, copies, schema_change="lenient")
    one, other = opened(shop, copies, keeps=True), opened(shop, copies, keeps=True)
    orders.add_columns({"note": "string"})
    orders.put({"id": 9, "name": "b", "note": "n"})
    batch = first_batch(one)
    assert one.publish(batch)
    orders.put({"id": 10, "name": "c", "note": "n"})
    shop.tunnel("mirror-orders").commit({batch.channel: batch.position})
    following = first_batch(other)
    assert not other.publish(following)
    assert other.publish(following)
    assert headrace.diff_tables(orders, copies.table("orders")).equal


def test_a_worker_that_begins_does_not_bring_back_former_columns(shop: Store, copies: Store, orders: Table) -> None:
    copy(shop, copies, schema_change="lenient")
    running = opened(shop, copies, keeps=True)
    orders.add_columns({"note": "string"})
    orders.put({"id": 9, "name": "b", "note": "n"})
    beginning = setup(shop, copies, by_workers=True, keeps=True)
    tunnel = beginning.prepare(beginning.record())
    assert running.publish(first_batch(running))
    with pytest.raises(OptionError):
        beginning.register(tunnel)
    assert copy(shop, copies, schema_change="lenient") == 0
    assert headrace.diff_tables(orders, copies.table("orders")).equal


def test_a_worker_begins_a_batch_again_if_another_changes_the_columns_meanwhile(
    shop: Store, copies: Store, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(shop, copies)
    one, other = opened(shop, copies), opened(shop, copies)
    orders.add_columns({"note": "string"})
    orders.put({"id": 9, "name": "b", "note": "n"})
    batch, stage = first_batch(one), TableTarget.stage_rows

    def late(*arguments: Any) -> Any:
        monkeypatch.undo()
        assert one.publish(batch)
        return stage(*arguments)

    monkeypatch.setattr(TableTarget, "stage_rows", late)
    assert not other.publish(batch)
    assert headrace.diff_tables(orders, copies.table("orders")).equal


def test_a_thread_begins_a_batch_again_if_another_one_changes_the_columns_meanwhile(
    shop: Store, copies: Store, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.split()
    copied = opened(shop, copies)
    orders.add_columns({"note": "string"})
    one, other = first_batches(copied)
    stage = TableTarget.stage_rows

    def late(*arguments: Any) -> Any:
        monkeypatch.undo()
        assert copied.publish(one)
        return stage(*arguments)

    monkeypatch.setattr(TableTarget, "stage_rows", late)
    assert not copied.publish(other)
    assert copied.publish(other)
    assert headrace.diff_tables(orders, copies.table("orders")).equal


def test_a_thread_that_fails_discards_no_rows_of_another_one_with_its_channel(
    shop: Store, copies: Store, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(shop, copies)
    orders.put({"id": 9, "name": "b", "price": 2.0})
    orders.delete({"id": 1})
    copied = opened(shop, copies)
    batch, stage, staged = first_batch(copied), TableTarget.stage_rows, list[Any]()

    def late(*arguments: Any) -> Any:
        staged.append(arguments)
        if len(staged) == 2:
            monkeypatch.setattr(TableTarget, "stage_rows", stage)
            with monkeypatch.context() as other:
                other.setattr(EmbeddedPublisher, "publish", failed)
                with pytest.raises(StoreError):
                    copied.publish(batch)
        return stage(*arguments)

    monkeypatch.setattr(TableTarget, "stage_rows", late)
    assert copied.publish(batch)
    assert len(staged) == 2
    assert headrace.diff_tables(orders, copies.table("orders")).equal


def test_a_mirror_with_schema_change_fail_ends_and_a_lenient_one_keeps_columns(
    shop: Store, copies: Store, orders: Table
) -> None:
    copy(shop, copies)
    orders.alter(Alteration(dropped=["price"]))
    orders.put({"id": 9, "name": "b"})
    with pytest.raises(SchemaError, match="schemaChange=fail"):
        copy(shop, copies, schema_change="fail")
    assert copy(shop, copies, schema_change="lenient") == 1
    assert copies.table("orders").get({"id": 9}) == {"id": 9, "name": "b", "price": None}
    with pytest.raises(OptionError, match="unknown schemaChange"):
        headrace.mirror_worker(shop, "orders", copies, schema_change="any")


@pytest.mark.parametrize(
    "change", [Alteration(renamed={"name": "price"}), Alteration(added=[Column("price", pa.float64())])]
)
def test_a_kept_column_is_not_taken_for_another_of_its_name(
    shop: Store, copies: Store, orders: Table, change: Alteration
) -> None:
    copy(shop, copies, schema_change="lenient")
    orders.alter(Alteration(dropped=["price"]))
    orders.alter(change)
    orders.put({"id": 9, "price": None})
    with pytest.raises(SchemaError, match=r"name another column of the source has now.*price.*rename or drop"):
        copy(shop, copies, schema_change="lenient")
    copies.table("orders").alter(Alteration(renamed={"price": "former"}))
    assert copy(shop, copies, schema_change="lenient") == 1
    assert set(orders.schema.names) <= set(copies.table("orders").schema.names)


def test_a_mirror_can_read_an_unread_tunnel_of_the_user(shop: Store, copies: Store, orders: Table) -> None:
    given = shop.create_tunnel("orders", "given")
    assert copy(shop, copies, tunnel=given.id) == 4
    assert [tunnel.name for tunnel in shop.tunnels()] == ["given"]
    with pytest.raises(OptionError, match="base data of the tunnel has been read"):
        copy(shop, copies, to_table="other", tunnel="given")


def test_a_batch_whose_answer_is_lost_is_copied_once(
    shop: Store, copies: Store, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, errors = EmbeddedPublisher.publish, iter([StoreError("the server ended the connection")])

    def lost(publisher: EmbeddedPublisher, number: int, writes: Any, **options: Any) -> bool:
        published = publish(publisher, number, writes, **options)
        if writes and (error := next(errors, None)) is not None:
            raise error
        return published

    monkeypatch.setattr(EmbeddedPublisher, "publish", lost)
    copy(shop, copies, history=True)
    assert next(errors, None) is None
    assert copies.table("orders").describe().rows == 4


def test_a_batch_that_fails_for_a_long_time_ends_the_worker(
    shop: Store, copies: Store, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, failures = EmbeddedPublisher.publish, list[int]()

    def fail(publisher: EmbeddedPublisher, number: int, writes: Any, **options: Any) -> bool:
        if writes:
            failures.append(number)
            raise StoreError("the server ended the connection")
        return publish(publisher, number, writes, **options)

    monkeypatch.setattr(EmbeddedPublisher, "publish", fail)
    count_pauses(monkeypatch)
    monkeypatch.setattr(worker, "_RETRY_SECONDS", 0.3)
    with pytest.raises(StoreError, match="ended the connection"):
        copy(shop, copies)
    assert len(failures) > 1
    monkeypatch.undo()
    assert copy(shop, copies) == 4


def test_a_worker_that_has_ended_does_not_keep_its_stores_open(tmp_path: Path, shop: Store, orders: Table) -> None:
    copies = headrace.open(tmp_path / "copies", create=True, synchronous="off")
    copy(shop, copies)
    kept = weakref.ref(copies)
    del copies
    gc.collect()
    assert kept() is None


def test_metrics_have_the_changes(shop: Store, copies: Store, orders: Table) -> None:
    # Another test of the process may have enabled them.
    counters.disable()
    registry = make_registry(None, shop)
    try:
        copy(shop, copies)
        text, _ = exposition(registry)
    finally:
        counters.disable()
    assert b'headrace_mirror_changes_total{table="orders"} 4.0' in text
    assert b'headrace_mirror_refused_rows_total{table="orders"} 0.0' in text
