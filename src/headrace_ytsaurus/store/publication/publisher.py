"""Publication: a batch in one tablet transaction with its marker and the consumers' progress; a larger one in parts.

A transaction has at most 100,000 rows of a tablet. A larger batch, or one that replaces the rows of a queue, is
published in parts. First its *intent* is written, which names the files of the batch. Then each part is written in a
way that can be repeated: queues through a producer's session, tables by key. Then one transaction advances consumers
and writes the marker. A later publication that finds an intent completes it from the intent's files, even if the batch
was staged again. So each row is published exactly once; the rows of a batch in parts become visible at different times.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from yt.wrapper import YtClient

from headrace.errors import PublicationError, StoreBusyError
from headrace.model.queues.validation import Route
from headrace.model.tables.changes import RowChange
from headrace.ports import Advance, Append, Claim, Publisher, Staged, Write
from headrace.rows import to_arrow
from headrace.support import failpoints
from headrace_ytsaurus.store.catalog import Names
from headrace_ytsaurus.store.connection import YtConnection
from headrace_ytsaurus.store.failures import YtTooManyRowsError, YtUnmountedError, translated
from headrace_ytsaurus.store.publication import planned_writes
from headrace_ytsaurus.store.publication.markers import Marker, Markers
from headrace_ytsaurus.store.publication.planned_writes import PlannedQueueWrite, PlannedTableWrite, PlannedWrite
from headrace_ytsaurus.store.publication.progress import Progress, ensure_keeper, keeper_of, move_keeper
from headrace_ytsaurus.store.publication.staging import Staging
from headrace_ytsaurus.store.queues import producers
from headrace_ytsaurus.store.queues.consumers import OffsetMove, advance, check_offsets, check_registered
from headrace_ytsaurus.store.queues.queue import YtQueue
from headrace_ytsaurus.store.queues.routing import routed
from headrace_ytsaurus.store.tables.table import YtTable

_KEPT_BYTES = 256 << 20
"""Most bytes of a batch's rows in memory; the other rows of a larger batch are read again for each step."""


class _OvertakenError(Exception):
    """Another process has completed the batch."""


class YtPublisher(Publisher):
    """Publishes the batches of one sink of a job in a YTsaurus cluster, each exactly once."""

    def __init__(self, connection: YtConnection, names: Names, job: str, sink: str) -> None:
        self.job = job
        self.sink = sink
        self._connection = connection
        self._names = names
        self._markers = Markers(connection, names, job, sink)
        self._progress = Progress(connection, names)
        self._staging = Staging(connection, names, job, sink)

    def __repr__(self) -> str:
        return f"YtPublisher(job={self.job!r}, sink={self.sink!r})"

    def published(self, batch: int) -> bool:
        marker = self._markers.load()
        return marker is not None and marker.covers(batch)

    def last_batch(self) -> int | None:
        return self._markers.last_of_job()

    def resume(self, batch: int) -> bool:
        marker = self._markers.load()
        if marker is not None and marker.intent is not None and marker.batch <= batch:
            self._finish(marker)
            self._staging.sweep(marker.batch)
        return self.published(batch)

    # -- staging ------------------------------------------------------------------------------------------

    def stage(
        self,
        batch: int,
        rows: Iterable[pa.RecordBatch],
        *,
        table: str | None = None,
        change: RowChange | None = None,
    ) -> list[Staged]:
        return self._staging.put(batch, rows, "" if table is None else self._names.path(table))

    def stage_append(
        self, batch: int, queue: str, rows: Iterable[pa.RecordBatch], *, key: Sequence[str] | None = None
    ) -> list[Staged]:
        """Stage rows; see `headrace.ports.Publisher.stage_append`. Keys choose partitions when rows are staged."""
        handle = YtQueue(self._connection, self._names, queue)
        accepted = handle.layout.accepted
        route, ends = Route.of(None, key), [0] * handle.node.tablets

        def typed(given: pa.RecordBatch) -> list[pa.RecordBatch]:
            found = to_arrow(given, accepted, columns="all")
            if key is not None and found.num_rows:
                found = routed(found, route, ends)
            batches: list[pa.RecordBatch] = found.to_batches()
            return batches

        return self._staging.put(batch, (part for given in rows for part in typed(given)), handle.path)

    def discard(self, batch: int, staged: Sequence[Staged] | None = None) -> None:
        """Remove staged rows, except the files of an intent, which are needed to complete its batch."""
        marker = self._markers.load()
        needed: set[int] = set()
        if marker is not None and marker.intent is not None and marker.batch == batch:
            needed = {number for value in marker.intent["writes"] for number, _ in value["staged"]}
        if staged is not None or not needed:
            receipts = None if staged is None else [one.id for one in staged if one.id not in needed]
            self._staging.discard(batch, receipts)

    # -- publishing ---------------------------------------------------------------------------------------

    def publish(
        self,
        batch: int,
        writes: Sequence[Write | Append],
        *,
        advances: Sequence[Advance] = (),
        content: str = "",
        last: bool = False,
        claim: Claim | None = None,
    ) -> bool:
        """Publish a batch; see `headrace.ports.Publisher.publish`, and this module about batches in parts.

        Raises:
            StoreError: the cluster rejected it, or the result is unknown. The call can be repeated.
        """
        self._markers.ensure()
        marker = self._markers.load()
        if marker is not None and marker.intent is not None:
            if marker.batch >= batch:
                self._check_same(batch, content, marker.batch, marker.content)
            self._finish(marker)
            if marker.batch == batch:
                self._staging.sweep(batch)
                return True
        if marker is not None and marker.batch >= batch:
            self._check_same(batch, content, marker.batch, marker.content)
            return False
        try:
            changed = self._publish(Marker(batch, content, uuid.uuid4().hex), writes, self._moves(advances), claim)
        except PublicationError:
            marker = self._markers.load()
            if marker is None or marker.batch < batch:
                raise
            # Another driver of the job has published the batch meanwhile, and removed the staged rows.
            return self.publish(batch, writes, content=content)
        failpoints.reach("published")
        if changed and last:
            self._markers.remove()
        if changed:
            self._staging.sweep(batch)
        return changed

    def _publish(
        self, attempt: Marker, writes: Sequence[Write | Append], moves: Sequence[OffsetMove], claim: Claim | None
    ) -> bool:
        """Publish a batch that has no marker; return whether this call did it."""
        batch = attempt.batch
        named = [(self._target(write), receipt) for write in writes for receipt in write.staged]
        self._staging.check(batch, named)
        found = self._planned_writes(batch, writes, [{}] * len(writes))
        if not any(isinstance(write, Append) and write.replace for write in writes):
            with suppress(YtTooManyRowsError):
                return self._publish_at_once(attempt, found, moves, claim)
        return self._publish_in_parts(attempt, writes, found, moves, claim)

    def _target(self, write: Write | Append) -> str:
        return self._names.path(write.queue if isinstance(write, Append) else write.table)

    def _planned_writes(
        self, batch: int, writes: Sequence[Write | Append], values: Sequence[Mapping[str, Any]]
    ) -> list[PlannedWrite]:
        """Return the planned writes of a batch; ``values`` are the options in its intent."""
        loaded: dict[int, pa.Table] = {}

        def load(receipt: Staged) -> pa.Table:
            if receipt.id in loaded:
                return loaded[receipt.id]
            rows = self._staging.load(batch, receipt)
            if rows.nbytes + sum(kept.nbytes for kept in loaded.values()) <= _KEPT_BYTES:
                loaded[receipt.id] = rows
            return rows

        return [
            PlannedQueueWrite.of(self._connection, self._names, write, load, value.get("unrouted"))
            if isinstance(write, Append)
            else PlannedTableWrite.of(self._connection, self._names, write, load)
            for write, value in zip(writes, values, strict=True)
        ]

    def _publish_at_once(
        self, marker: Marker, found: Sequence[PlannedWrite], moves: Sequence[OffsetMove], claim: Claim | None
    ) -> bool:
        """Publish in one transaction; return whether this call did it.

        Raises:
            YtTooManyRowsError: the batch is too large for a transaction; nothing was written.
        """
        rows: dict[str, int] = {}
        for planned in found:
            rows[planned.path] = rows.get(planned.path, 0) + planned.most_rows()
            planned_writes.check_size(rows[planned.path])

        def write(client: Any) -> None:
            self._take(client, claim)
            for planned in found:
                if isinstance(planned, PlannedQueueWrite):
                    planned.append(self._connection, client)
                else:
                    planned.apply(client)
            self._advance(client, moves)

        return self._commit(marker, write)

    def _publish_in_parts(
        self,
        marker: Marker,
        writes: Sequence[Write | Append],
        found: Sequence[PlannedWrite],
        moves: Sequence[OffsetMove],
        claim: Claim | None,
    ) -> bool:
        """Write the intent of a batch, and complete the batch; return whether the intent is this call's."""
        for planned in found:
            for _ in planned.pieces():
                # Rows that do not fit are found before the intent is written: such an intent could not be completed.
                pass
        self._ensure_producer()
        described = [
            planned_writes.describe(write, self._details(planned, write))
            for write, planned in zip(writes, found, strict=True)
        ]
        # The form that it will have when it is read.
        intent = json.loads(json.dumps({"writes": described, "moves": [vars(move) for move in moves]}))
        begun = Marker(marker.batch, marker.content, marker.attempt, intent)

        def check(client: Any) -> None:
            # A conflict of offsets is found before the intent is written: this transaction is not committed.
            self._take(client, claim)
            for move in moves:
                self._check_move(client, move)

        if not self._commit(begun, check):
            return False
        failpoints.reach("intent-written")
        self._carry_out(begun, found)
        return True

    def _details(self, planned: PlannedWrite, write: Write | Append) -> dict[str, Any]:
        """Return the options of an append in parts that its repetitions need, besides its files."""
        if not isinstance(planned, PlannedQueueWrite) or not isinstance(write, Append):
            return {}
        opened = producers.open_session(self._connection, self._producer, planned.queue.path, self._session)
        ends = {number: bounds.upper for number, bounds in planned.queue.bounds().items()}
        return {
            "first": int(opened["sequence_number"]) + 1,
            "unrouted": planned.unrouted,
            "trimmed": ends if write.replace else {},
        }

    def _finish(self, marker: Marker) -> None:
        """Complete the batch of an earlier intent."""
        assert marker.intent is not None
        self._ensure_producer()
        values = marker.intent["writes"]
        self._carry_out(
            marker, self._planned_writes(marker.batch, [planned_writes.described(value) for value in values], values)
        )

    def _carry_out(self, marker: Marker, found: Sequence[PlannedWrite]) -> None:
        """Complete an intent, unless another process completes it first: its rows would then overwrite newer ones."""
        assert marker.intent is not None

        def guard(client: YtClient) -> None:
            if self._markers.load(client) != marker:
                raise _OvertakenError
            # The unchanged marker is written: so this commit fails if another process completes the batch.
            self._markers.write(marker, client)

        try:
            self._write_parts(marker.intent, found, guard)
        except _OvertakenError:
            return
        failpoints.reach("parts-written")
        moves = [_move(value) for value in marker.intent["moves"]]
        done = Marker(marker.batch, marker.content, marker.attempt)
        self._commit(done, lambda client: self._advance(client, moves), instead_of=marker)

    def _write_parts(
        self, intent: Mapping[str, Any], found: Sequence[PlannedWrite], guard: Callable[[YtClient], None]
    ) -> None:
        firsts: dict[str, int] = {}
        for value, planned in zip(intent["writes"], found, strict=True):
            if isinstance(planned, PlannedTableWrite):
                planned.in_parts(self._connection, guard)
                continue
            for number, upper in value["trimmed"].items():
                if planned.queue.bounds()[int(number)].lower < upper:
                    planned.queue.trim(int(number), upper)
            first = firsts.get(planned.path, int(value["first"]))
            firsts[planned.path] = planned.push(self._connection, self._producer, self._session, first)

    def _commit(self, marker: Marker, write: Any, instead_of: Marker | None = None) -> bool:
        """Run ``write`` and write the marker in one transaction; return whether this call did it.

        After a lost response the marker shows the result of the commit. Each transaction reads the marker, so only one
        of several concurrent ones can commit.

        Args:
            instead_of: the intent that the marker replaces.
        """

        def attempt() -> Marker | None:
            """Return None, or the marker that already exists."""
            try:
                with self._connection.transaction() as client:
                    there = self._markers.load(client)
                    if there is not None and there.batch >= marker.batch and there != instead_of:
                        return there
                    write(client)
                    failpoints.reach("rows-written")
                    self._markers.write(marker, client)
                    failpoints.reach("marker-written")
            except (StoreBusyError, YtUnmountedError):
                # The response to the commit was lost.
                if self._markers.load() != marker:
                    raise
            return None

        there = self._connection.repeated(attempt)
        if there is None or there == marker:
            return True
        if instead_of is None:
            self._check_same(marker.batch, marker.content, there.batch, there.content)
            if there.intent is not None:
                raise StoreBusyError(
                    f"batch {marker.batch} of job {self.job} is being published by another process",
                    remedy="only one driver may run a query; try again",
                )
        return False

    def _take(self, client: Any, claim: Claim | None) -> None:
        """Check and put the row of a claim in a transaction."""
        if claim is None:
            return
        table = YtTable(self._connection, self._names, claim.table)
        found = table.get({name: claim.after[name] for name in table.schema.primary_key}, client=client)
        if found != claim.before:
            raise claim.lost(found)
        # An unchanged row is put, too: so of two transactions that have found it, only one can commit.
        table.apply(client, RowChange.PUT, to_arrow([claim.after], table.schema, columns="all"))

    # -- consumers ----------------------------------------------------------------------------------------

    def _moves(self, advances: Sequence[Advance]) -> list[OffsetMove]:
        """Check advances, and keep the rows of their batches from trimming."""
        moves = []
        for wanted in advances:
            registered = check_registered(self._connection, self._names, wanted.consumer, wanted.queue)
            consumer, queue = self._names.path(wanted.consumer), self._names.path(wanted.queue)
            handle = YtQueue(self._connection, self._names, wanted.queue)
            check_offsets(handle.node.tablets, wanted.queue, wanted.offsets, wanted.expected)
            self._progress.ensure()
            trims = (handle.node.attributes.get("auto_trim_config") or {}).get("enable")
            kept = keeper_of(self._names, consumer) in registered
            if registered[consumer] and trims and not kept:
                ensure_keeper(self._connection, self._names, consumer, queue)
                kept = True
            offsets, expected = dict(wanted.offsets), dict(wanted.expected)
            moves.append(OffsetMove(wanted.consumer, consumer, wanted.queue, queue, offsets, expected, kept))
        return moves

    def _check_move(self, client: Any, move: OffsetMove) -> None:
        advance(self._connection, client, move, self._published(client, move), dry=True)

    def _published(self, client: Any, move: OffsetMove) -> Callable[[], Mapping[int, int]]:
        return lambda: self._progress.load(client, move.consumer_path, move.queue_path, list(move.offsets), self.job)

    def _advance(self, client: Any, moves: Sequence[OffsetMove]) -> None:
        for move in moves:
            advance(self._connection, client, move, self._published(client, move))
            self._progress.record(client, move.consumer_path, move.queue_path, move.offsets, self.job)
            if move.kept:
                kept = {number: min(move.expected.get(number, row), row) for number, row in move.offsets.items()}
                move_keeper(client, self._names, move.consumer_path, move.queue_path, kept)

    # -- the producer of appends in parts -------------------------------------------------------------------

    @property
    def _producer(self) -> str:
        return f"{self._names.state}/producer"

    @property
    def _session(self) -> str:
        return f"{self.job}/{self.sink}"

    def _ensure_producer(self) -> None:
        if self._connection.attribute(self._producer, "tablet_state") == "mounted":
            return
        with translated("make the producer for batches in parts"):
            client = self._connection.client
            client.create("queue_producer", self._producer, recursive=True, ignore_existing=True)
            client.mount_table(self._producer, sync=True)


def _move(value: Mapping[str, Any]) -> OffsetMove:
    """Return a move from JSON values, which have partitions as texts."""
    offsets, expected = ({int(n): int(row) for n, row in value[name].items()} for name in ("offsets", "expected"))
    return OffsetMove(**{**value, "offsets": offsets, "expected": expected})
