"""The seven queries of the matrix, for any store: their tables, their streams, and their expected results.

An append-only result goes into a queue where the store has queues, so that each row and the order of rows can be seen.
Otherwise it goes into a table, whose change log shows a row that was written twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace.model.tables.changes import DELETES, ChangeOp
from headrace.model.tunnels.values import KindName
from headrace.ports import Store
from tests.chaos import actors, followed_actors
from tests.chaos.matrix.places import Place
from tests.chaos.oracle import queue_rows, read_changes, total_by_user

ORDERS, PAYMENTS = "orders", "payments"
PARTITIONS, BATCH_ROWS = 2, 5_000
_ORACLE, _LOG, _RESULT = "oracle", "log", "result"
# The address of a row of a queue as one number.
_PARTITION = 1 << 40
Row: TypeAlias = tuple[Any, ...]


class Change(NamedTuple):
    """A change that a query reads: the stream in which it has an order, its place there, and the row."""

    stream: str
    version: int
    user: str
    order: int
    price: float | None
    timestamp: int | None
    deleted: bool


@dataclass
class Outcome:
    """A result compared with the expected one; `tests.chaos.matrix.log.Entry` explains the counts."""

    rows: int
    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0


@dataclass(frozen=True)
class Query:
    """A query of the matrix.

    Attributes:
        create: creates the tables, queues and tunnels of its source and target.
        start: starts the query, at its checkpoint if that exists.
        check: compares the result with the expected one.
        sources: the tables or queues that writers fill.
    """

    create: Callable[[Place], None]
    start: Callable[[SparkSession, Place], StreamingQuery]
    check: Callable[[Place], Outcome]
    sources: tuple[str, ...] = (ORDERS,)


# -- sources ---------------------------------------------------------------------------------------------------


def _create_sources(place: Place, sources: Iterable[str]) -> None:
    with place.open_source() as store:
        if place.has_queues:
            store.create_consumer(_consumer(place))
            for name in sources:
                store.create_queue(name, actors.COLUMNS, partitions=PARTITIONS)
                store.register_consumer(name, _consumer(place), vital=True)
            return
        # In PostgreSQL, base data has another version in each tunnel, and the tunnel of the check must not differ.
        kind: KindName = "Stream" if place.kind == "postgres" else "BaseAndStream"
        for name in sources:
            store.create_table(name, actors.COLUMNS, ["UserId", "OrderId"])
            for tunnel in (_RESULT, _ORACLE):
                store.create_tunnel(name, f"{name}_{tunnel}", kind=kind)


def _consumer(place: Place) -> str:
    # All storms share a cluster.
    return f"//consumers/{Path(place.directory).name}"


def _changes(spark: SparkSession, place: Place, name: str) -> DataFrame:
    """Return a stream with the columns of `Change`."""
    stream = spark.readStream.format("headrace").option("store", place.source)
    if place.has_queues:
        rows = stream.options(consumer=_consumer(place), includeRowAddress=True, maxRowsPerTrigger=BATCH_ROWS).load(
            name
        )
        return rows.selectExpr(
            "CAST(_partition AS STRING) AS stream",
            f"_partition * {_PARTITION}L + _row_index AS version",
            *("UserId", "OrderId", "price", "timestamp", "false AS deleted"),
        )
    rows = stream.options(tunnel=f"{name}_{_RESULT}", maxRowsPerTrigger=BATCH_ROWS).load()
    return rows.selectExpr(
        "concat(UserId, '/', OrderId) AS stream",
        "_commit_version AS version",
        *("UserId", "OrderId", "price", "timestamp", "_change_type = 'delete' AS deleted"),
    )


def _all_changes(store: Store, place: Place, name: str) -> list[Change]:
    """Read a source to its end in plain Python."""
    if place.has_queues:
        return [
            Change(
                str(partition), partition * _PARTITION + index, row["UserId"], row["OrderId"], row["price"],
                row["timestamp"], deleted=False,
            )
            for partition in store.queue(name).bounds()
            for index, row in enumerate(queue_rows(store, name, partition))
        ]  # fmt: skip
    return [
        Change(
            f"{row['UserId']}/{row['OrderId']}", version, row["UserId"], row["OrderId"], row["price"],
            row["timestamp"], op in DELETES,
        )
        for row, op, version in read_changes(store, f"{name}_{_ORACLE}")
    ]  # fmt: skip


def _table_rows(store: Store, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.table(table).scan().read_all().to_pylist()
    return rows


# -- append-only results ---------------------------------------------------------------------------------------

COPIED = {"stream": "string", "version": "long", "UserId": "string", "OrderId": "long", "price": "double"}
SEEN = {"UserId": "string", "OrderId": "long"}
PAIRS = {"left_version": "long", "right_version": "long", **SEEN, "left_price": "double", "right_price": "double"}


def _create_appended(place: Place, sources: Iterable[str], columns: dict[str, str], key: list[str]) -> None:
    _create_sources(place, sources)
    with place.open_target() as store:
        if store.capabilities.queues:
            store.create_queue(_RESULT, columns, partitions=PARTITIONS)
            return
        store.create_table(_RESULT, columns, key)
        if store.capabilities.transactions:
            store.create_tunnel(_RESULT, _LOG, kind="Stream")


def _append(df: DataFrame, place: Place, key: str) -> StreamingQuery:
    with place.open_target() as store:
        output = (
            headrace.Output(queue=_RESULT, key=key) if store.capabilities.queues else headrace.Output(table=_RESULT)
        )
    return headrace.write_stream(
        df, store=place.target, outputs=[output], checkpoint=place.checkpoint, name=_RESULT
    ).start()


def _appended(store: Store) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of an append-only result in the order in which they were written, and rows written twice."""
    if store.capabilities.queues:
        return [row for partition in store.queue(_RESULT).bounds() for row in queue_rows(store, _RESULT, partition)], 0
    if not store.capabilities.transactions:
        # There, a repeated batch puts the same rows again.
        return _table_rows(store, _RESULT), 0
    changes = read_changes(store, _LOG)
    return [row for row, _, _ in changes], sum(op is not ChangeOp.INSERT for _, op, _ in changes)


def _compared(expected: Iterable[Row], found: Iterable[Row], rows: int) -> Outcome:
    wanted, there = Counter(expected), Counter(found)
    return Outcome(rows, (wanted - there).total(), (there - wanted).total())


def _start_copy(spark: SparkSession, place: Place) -> StreamingQuery:
    return _append(_changes(spark, place, ORDERS).select(*COPIED), place, "stream")


def _check_copy(place: Place) -> Outcome:
    with place.open_source() as store:
        changes = _all_changes(store, place, ORDERS)
    with place.open_target() as store:
        copied, twice = _appended(store)
        in_table = not store.capabilities.queues
    expected = [(each.stream, each.version, each.user, each.order, each.price) for each in changes]
    found = [tuple(row.values()) for row in copied]
    if in_table:
        # A commit can have several changes of a row, of which the table keeps the last.
        last = {row[:2]: row for row in expected}
        expected, twice = list(last.values()), 0 if place.kind == "tablestore" else twice - (len(expected) - len(last))
        found = list({row[:2]: row for row in found}.values())
    outcome = _compared(expected, found, len(changes))
    outcome.doubled += max(0, twice)
    if not in_table or place.kind != "tablestore":
        reached: dict[str, int] = {}
        for row in copied:
            outcome.out_of_order += row["version"] < reached.get(row["stream"], -1)
            reached[row["stream"]] = max(row["version"], reached.get(row["stream"], -1))
    return outcome


def _start_dedup(spark: SparkSession, place: Place) -> StreamingQuery:
    seen = _changes(spark, place, ORDERS).where("NOT deleted").dropDuplicates([*SEEN]).select(*SEEN)
    return _append(seen, place, "UserId")


def _check_dedup(place: Place) -> Outcome:
    with place.open_source() as store:
        changes = _all_changes(store, place, ORDERS)
    with place.open_target() as store:
        found, twice = _appended(store)
    expected = {(each.user, each.order) for each in changes if not each.deleted}
    outcome = _compared(
        expected, {tuple(row.values()) for row in found} if twice else map(_values, found), len(changes)
    )
    outcome.doubled += twice
    return outcome


def _values(row: dict[str, Any]) -> Row:
    return tuple(row.values())


def _start_join(spark: SparkSession, place: Place) -> StreamingQuery:
    sides = []
    for name, side in ((ORDERS, "left"), (PAYMENTS, "right")):
        rows = _changes(spark, place, name).where("NOT deleted")
        keys = [f"{key} AS {side}_{key}" for key in SEEN]
        sides.append(rows.selectExpr(*keys, f"version AS {side}_version", f"price AS {side}_price"))
    left, right = sides
    pairs = left.join(right, [left[f"left_{key}"] == right[f"right_{key}"] for key in SEEN])
    return _append(
        pairs.selectExpr(*(f"left_{key} AS {key}" if key in SEEN else key for key in PAIRS)), place, "UserId"
    )


def _check_join(place: Place) -> Outcome:
    with place.open_source() as store:
        lefts, rights = (_all_changes(store, place, name) for name in (ORDERS, PAYMENTS))
    with place.open_target() as store:
        found, twice = _appended(store)
        in_table = not store.capabilities.queues
    by_key: dict[tuple[str, int], list[Change]] = {}
    for right in rights:
        if not right.deleted:
            by_key.setdefault((right.user, right.order), []).append(right)
    expected = [
        (left.version, right.version, left.user, left.order, left.price, right.price)
        for left in lefts
        if not left.deleted
        for right in by_key.get((left.user, left.order), ())
    ]
    pairs = map(_values, found)
    rows = len(lefts) + len(rights)
    if not in_table:
        return _compared(expected, pairs, rows)
    # Changes of one row in one commit have one version, and so one row of the table.
    keys = {row[:4] for row in expected}
    outcome = _compared(keys, {row[:4] for row in pairs}, rows)
    outcome.doubled += max(0, twice - (len(expected) - len(keys)))
    return outcome


# -- tables that follow ----------------------------------------------------------------------------------------


def _create_windows(place: Place) -> None:
    _create_sources(place, (ORDERS,))
    with place.open_target() as store:
        store.create_table(_RESULT, actors.WINDOWS, ["begin", "end"])


def _start_windows(spark: SparkSession, place: Place) -> StreamingQuery:
    windows = actors.windows(_changes(spark, place, ORDERS).where("NOT deleted"))
    return headrace.write_stream(
        windows, store=place.target, table=_RESULT, checkpoint=place.checkpoint, mode="update", name=_RESULT
    ).start()


def _check_windows(place: Place) -> Outcome:
    with place.open_source() as store:
        changes = _all_changes(store, place, ORDERS)
    with place.open_target() as store:
        found = {row["begin"]: (row["count"], row["totalPrice"]) for row in _table_rows(store, _RESULT)}
    expected: dict[str, tuple[int, float]] = {}
    for each in changes:
        if not each.deleted:
            assert each.timestamp is not None
            assert each.price is not None
            begin = f"{datetime.fromtimestamp(each.timestamp // 30_000 * 30, UTC):%Y-%m-%d %H:%M:%S}"
            count, total = expected.get(begin, (0, 0.0))
            expected[begin] = count + 1, total + each.price
    outcome = Outcome(len(changes))
    for begin in expected.keys() | found.keys():
        (wanted, total), (there, sum_there) = expected.get(begin, (0, 0.0)), found.get(begin, (0, 0.0))
        outcome.lost += max(0, wanted - there) + (wanted == there and total != sum_there)
        outcome.doubled += max(0, there - wanted)
    return outcome


def _kept(expected: dict[Row, Row], found: dict[Row, Row], rows: int) -> Outcome:
    """Compare tables that change: a row with another value than the last one is out of order."""
    stale = sum(found[key] != row for key, row in expected.items() if key in found)
    return Outcome(rows, len(expected.keys() - found.keys()), len(found.keys() - expected.keys()), stale)


def _create_followed(place: Place) -> None:
    with place.open_source() as store:
        store.create_table(ORDERS, actors.COLUMNS, ["UserId", "OrderId"], pre_images=True)
        store.create_tunnel(ORDERS, _RESULT, kind="BaseAndStream")
        store.create_tunnel(ORDERS, f"{ORDERS}_{_ORACLE}", kind="Stream")
    with place.open_target() as store:
        store.create_table("totals", followed_actors.TOTALS, "UserId")


def _start_followed(spark: SparkSession, place: Place) -> StreamingQuery:
    reader = spark.readStream.format("headrace").options(store=place.source, tunnel=_RESULT, readAs="table")
    return headrace.follow(
        spark,
        followed_actors.QUERIES["totals"],
        scans={ORDERS: reader.option("maxRowsPerTrigger", BATCH_ROWS).load()},
        store=place.target,
        table="totals",
        checkpoint=place.checkpoint,
        name=_RESULT,
    ).start()


def _check_followed(place: Place) -> Outcome:
    with place.open_source() as store:
        rows, changes = _table_rows(store, ORDERS), len(read_changes(store, f"{ORDERS}_{_ORACLE}"))
    with place.open_target() as store:
        found = {(row.pop("UserId"),): tuple(row.values()) for row in _table_rows(store, "totals")}
    return _kept({(user,): total for user, total in total_by_user(rows).items()}, found, changes)


JOINED = {"UserId": "string", "place": "long", "OrderId": "long", "price": "double", "paid": "double"}
_PLACES = 20
_JOIN = f"""
    SELECT UserId, place, OrderId, price, paid FROM (
        SELECT o.UserId, o.OrderId, o.price, p.price AS paid,
            CAST(row_number() OVER (PARTITION BY o.UserId ORDER BY o.price DESC, o.OrderId) AS BIGINT) AS place
        FROM {ORDERS} o LEFT JOIN {PAYMENTS} p ON p.UserId = o.UserId AND p.OrderId = o.OrderId
    ) WHERE place <= {_PLACES}
"""


def _create_gathered(place: Place) -> None:
    with place.open_source() as store:
        for name in (ORDERS, PAYMENTS):
            store.create_table(name, actors.COLUMNS, ["UserId", "OrderId"], pre_images=True)
            store.create_tunnel(name, _RESULT, kind="BaseAndStream")
            store.create_tunnel(name, f"{name}_{_ORACLE}", kind="Stream")
        store.create_table(_RESULT, JOINED, ["UserId", "place"])


def _start_gathered(spark: SparkSession, place: Place) -> StreamingQuery:
    reader = spark.readStream.format("headrace").options(store=place.source, tunnel=_RESULT, readAs="table")
    scans = {name: reader.option("maxRowsPerTrigger", BATCH_ROWS).load(name) for name in (ORDERS, PAYMENTS)}
    return headrace.follow(
        spark, _JOIN, scans=scans, store=place.target, table=_RESULT, checkpoint=place.checkpoint, name=_RESULT
    ).start()


def _check_gathered(place: Place) -> Outcome:
    with place.open_source() as store:
        orders, payments = (_table_rows(store, name) for name in (ORDERS, PAYMENTS))
        changes = sum(len(read_changes(store, f"{name}_{_ORACLE}")) for name in (ORDERS, PAYMENTS))
        found = {(row["UserId"], row["place"]): tuple(row.values())[2:] for row in _table_rows(store, _RESULT)}
    paid = {(row["UserId"], row["OrderId"]): row["price"] for row in payments}
    by_user: dict[str, list[Row]] = {}
    for row in sorted(orders, key=lambda row: (-row["price"], row["OrderId"])):
        key = row["UserId"], row["OrderId"]
        by_user.setdefault(row["UserId"], []).append((row["OrderId"], row["price"], paid.get(key)))
    expected = {(user, number): row for user, rows in by_user.items() for number, row in enumerate(rows[:_PLACES], 1)}
    return _kept(expected, found, changes)


def _create_mirrored(place: Place) -> None:
    with place.open_source() as store:
        store.create_table(ORDERS, actors.COLUMNS, ["UserId", "OrderId"])
        store.create_tunnel(ORDERS, f"{ORDERS}_{_ORACLE}", kind="Stream")
    place.open_target().close()


def _start_mirror(spark: SparkSession, place: Place) -> StreamingQuery:
    return headrace.mirror(
        spark,
        source=place.source,
        table=ORDERS,
        to=place.target,
        to_table="mirrored",
        checkpoint=place.checkpoint,
        name=_RESULT,
        options={"maxRowsPerTrigger": BATCH_ROWS},
    ).start()


def _check_mirror(place: Place) -> Outcome:
    with place.open_source() as store:
        rows, changes = _table_rows(store, ORDERS), len(read_changes(store, f"{ORDERS}_{_ORACLE}"))
    with place.open_target() as store:
        copies = _table_rows(store, "mirrored")
    expected, found = (
        {(row["UserId"], row["OrderId"]): (row["price"], row["timestamp"]) for row in each} for each in (rows, copies)
    )
    return _kept(expected, found, changes)


def _create_copy(place: Place) -> None:
    _create_appended(place, (ORDERS,), COPIED, ["stream", "version"])


def _create_dedup(place: Place) -> None:
    _create_appended(place, (ORDERS,), SEEN, [*SEEN])


def _create_join(place: Place) -> None:
    _create_appended(place, (ORDERS, PAYMENTS), PAIRS, [*PAIRS][:4])


QUERIES = {
    "stateless": Query(_create_copy, _start_copy, _check_copy),
    "window": Query(_create_windows, _start_windows, _check_windows),
    "dedup": Query(_create_dedup, _start_dedup, _check_dedup),
    "join": Query(_create_join, _start_join, _check_join, (ORDERS, PAYMENTS)),
    "readAs=table": Query(_create_followed, _start_followed, _check_followed),
    "several tables": Query(_create_gathered, _start_gathered, _check_gathered, (ORDERS, PAYMENTS)),
    "mirror": Query(_create_mirrored, _start_mirror, _check_mirror),
}
