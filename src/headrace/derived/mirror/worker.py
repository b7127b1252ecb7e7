"""`MirrorWorker`: a mirror without Spark, exactly once. Several workers share the channels of its tunnel.

The position of a channel is in the target, in the marker of its last batch: rows, position and marker are one
transaction. So a channel continues at the position in the target, whichever worker has read it, and not at the position
that the tunnel has saved, which is the same or an earlier one. A batch has the number behind that of the marker. Of two
workers that believe to have a channel, one publishes this number, and the other one reads the position again.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event, Lock
from typing import NamedTuple

import pyarrow as pa

from headrace.batches.sinks.bad_rows import bad_rows_of, prepare, refuse_history
from headrace.batches.sinks.jobs import TargetJobs, target_taken
from headrace.derived.mirror.evolution import EVOLVE, LENIENT, Evolution, SourceColumn, source_columns
from headrace.derived.mirror.evolution import schema_change as parse_schema_change
from headrace.derived.mirror.forms import MirrorForm, is_newer_source
from headrace.derived.mirror.setup import MirrorSetup, check_source
from headrace.derived.mirror.state import MirrorState
from headrace.errors import (
    AlreadyExistsError,
    ClaimLostError,
    DataLossError,
    HeadraceError,
    NotFoundError,
    OptionError,
    PublicationError,
    SchemaError,
    StoreBusyError,
    StoreError,
    UnsupportedError,
)
from headrace.formats.location import Location
from headrace.model.tables.changes import ChangeOp, RowChange
from headrace.model.tables.packed_rows import PackedShape
from headrace.model.tables.schema import KeylessSchema, columns_of
from headrace.model.tunnels.leases import Saved
from headrace.model.tunnels.records import ChannelEnd, end_from_json, end_to_json
from headrace.model.tunnels.values import FINISHED, ChannelState, Position
from headrace.ports import BadRows, Publisher, Store, Tunnel, Write
from headrace.stores.registry import StoreAddress
from headrace.stores.registry import open as open_store
from headrace.support import counters
from headrace.support.retries import Retries, jitter
from headrace.workers import ChangeBatch, TunnelWorker

BATCH_ROWS = 50_000
"""The maximum number of changes in a batch, unless an option says otherwise."""
FAIL_BATCH, KEEP = "fail", "table"
"""The values of option ``bad_rows``."""
# Batches of different channels that are published at a time, if the target's store can: one transaction waits for the
# disk or for its rows while the other one writes. The changes of a table of PostgreSQL are one channel.
_PUBLISHERS = 2
# A worker waits this long for another one that creates the mirror, before it takes it for a dead one.
_BEGIN_SECONDS = 10.0
_BEGIN_PAUSE = 0.2
# How often a running worker looks whether tables of the mirror were dropped and created again.
_LOOK_SECONDS = 1.0
# How long a batch is attempted again after errors that can pass. The store itself repeats calls before that.
_RETRY_SECONDS = 120.0
# How often a channel is read again when the source has got other columns meanwhile.
_ATTEMPTS = 5
_log = logging.getLogger("headrace")


class _Place(NamedTuple):
    """The number of the last batch of a channel, and the position behind it."""

    number: int
    position: Position


@dataclass(eq=False, repr=False, kw_only=True)
class MirrorWorker:
    """One of the workers that keep a copy of a table, or its history. `mirror_worker` creates it, with its arguments.

    Attributes:
        tunnel_name: the name of the tunnel that the mirror reads, or the name or id of the given tunnel.
    """

    source: str | os.PathLike[str] | Store
    table: str
    target: str | os.PathLike[str] | Store
    target_table: str
    history: bool
    evolution: Evolution
    bad_rows: BadRows | None
    tunnel: str | None
    tunnel_name: str
    client: str
    batch_rows: int
    timeout: float
    idle: str
    _worker: TunnelWorker | None = field(default=None, init=False)
    _progress: Lock = field(default_factory=Lock, init=False)
    _stopping: bool = field(default=False, init=False)

    def __repr__(self) -> str:
        return f"MirrorWorker({self.table!r} into {self.target_table!r})"

    def run(self, progress: Callable[[int], None] | None = None) -> None:
        """Create the tunnel and the target if they do not exist, and copy changes until `stop` or an error.

        With ``idle="stop"`` it ends when the whole tunnel is read and copied, by this worker or others.

        Args:
            progress: is called with the number of changes of each batch, after its publication; by one thread at a
                time, which is not the caller's.

        Raises:
            NotFoundError: a store or the source does not exist, or the tunnel was dropped.
            UnsupportedError: a store does not have what the mirror needs, or cannot follow a change of columns.
            AlreadyExistsError: the target has rows that are not from this source.
            DataLossError: changes were lost; the target is older than the tunnel; or a table of the mirror was dropped.
            SchemaError: the columns of the target do not fit.
            OptionError: another job has taken the target.
            TunnelTakenError: a streaming query has started to read the tunnel.
        """
        with ExitStack() as stack:
            source, target = (
                each if isinstance(each, Store) else stack.enter_context(open_store(each))
                for each in (self.source, self.target)
            )
            copy = MirrorCopy(source, target, self._setup(source, target))
            worker = TunnelWorker(
                copy.tunnel,
                self.client,
                batch_rows=self.batch_rows,
                checkpoint_interval=5.0,
                heartbeat_interval=None,
                timeout=self.timeout,
                idle=self.idle,
                fail_on_data_loss=True,
                resume=copy.resume,
            )
            self._worker = worker
            if self._stopping:
                return
            publishers = _PUBLISHERS if target.capabilities.writes_at_once else 1
            ended = Event()
            with worker, ThreadPoolExecutor(publishers, "headrace-mirror") as threads:
                try:
                    copying = [threads.submit(self._copy, copy, worker, progress, ended) for _ in range(publishers)]
                    for each in as_completed(copying):
                        each.result()
                finally:
                    # After an error, and after Ctrl-C, the other thread neither goes on nor tries again.
                    ended.set()
                    worker.stop()

    def stop(self) -> None:
        """End `run` after the current batch. Signal handlers can call this method."""
        self._stopping = True
        if self._worker is not None:
            self._worker.stop()

    def _setup(self, source: Store, target: Store) -> Callable[[], MirrorSetup]:
        """Return a function that returns the preparation of both stores, with the columns that the source has now."""
        check_source(source)
        if not target.capabilities.markers:
            raise UnsupportedError(
                "a mirror without Spark keeps its position in the markers of its target's store, and this store has "
                "none that can be read",
                received=target.url,
                valid="an embedded store or a PostgreSQL database",
                remedy="mirror the table with Spark: headrace.mirror, or MIRROR in SQL",
            )
        return partial(
            MirrorSetup,
            source,
            Location(StoreAddress(source.url), self.table),
            target,
            self.target_table,
            tunnel=self.tunnel,
            tunnel_name=self.tunnel_name,
            history=self.history,
            evolution=self.evolution,
            bad_rows=self.bad_rows,
            by_workers=True,
        )

    def _copy(
        self, copy: MirrorCopy, worker: TunnelWorker, progress: Callable[[int], None] | None, ended: Event
    ) -> None:
        while (batch := worker.take()) is not None:
            if self._publish(copy, worker, batch, ended) and progress is not None:
                with self._progress:
                    progress(len(batch))

    def _publish(self, copy: MirrorCopy, worker: TunnelWorker, batch: ChangeBatch, ended: Event) -> bool:
        """Copy a batch, and acknowledge it; return False if its channel is read again, from the target's position."""
        retries = Retries(_RETRY_SECONDS, first_pause=0.1, longest_pause=10.0)
        while True:
            try:
                if not copy.publish(batch):
                    worker.read_again(batch)
                    return False
            except HeadraceError as error:
                # A lost connection is a StoreError. The marker shows whether the batch was published.
                passes = (error.retryable or type(error) is StoreError) and not ended.is_set()
                if self._stopping or not passes or not retries.wait(f"mirror {self.target_table!r}: {error}"):
                    raise
            else:
                batch.done()
                return True


class MirrorCopy:
    """A mirror whose stores are open, and the positions of its channels. Several threads publish batches.

    Two of them can have batches of one channel, if this worker had lost it and got it again meanwhile. So no thread
    uses the publisher of another one, and the marker of the channel decides.

    Args:
        begin: returns the preparation of both stores.
    """

    def __init__(self, source: Store, target: Store, begin: Callable[[], MirrorSetup]) -> None:
        self._source = source
        self._target = target
        self._begin = begin
        prepared, self._state = self._prepared()
        self.tunnel = prepared.with_truncations()
        self._publishers: dict[str, Publisher] = {}
        self._places: dict[str, _Place] = {}
        # The columns of the source when a channel began to be read, or was read again.
        self._columns: dict[str, tuple[SourceColumn, ...]] = {}
        self._next_look = 0.0
        # How many batches of a channel, one after the other, had other columns than the source.
        self._misfits = Counter[str]()
        # Columns in which the next batches of all channels may have nulls, although they are NOT NULL.
        self._relaxed = set[str]()
        self._check_target()

    def _prepared(self) -> tuple[Tunnel, MirrorState]:
        """Prepare both stores, also while other workers do so, and return the tunnel and the state of the mirror."""
        deadline = time.monotonic() + _BEGIN_SECONDS
        while True:
            setup = self._begin()
            self._table = setup.table
            waits, record = time.monotonic() < deadline, setup.record()
            # Later, it could be that of a worker that is creating the tunnel, which would be dropped.
            if not (waits and setup.is_beginning(record)):
                tunnel = None
                try:
                    tunnel = setup.prepare(record)
                    state = setup.register(tunnel)
                    prepare(self._target, state.form.targets[0])
                    return tunnel, state
                except (AlreadyExistsError, NotFoundError):
                    if not waits or setup.record() == record:
                        raise
                except OptionError:
                    # Of two workers that change the record of the mirror, one has the row, or reads a given tunnel.
                    if not waits or (tunnel is None and setup.record() == record):
                        raise
            time.sleep(_BEGIN_PAUSE * jitter(0.5, 1.5))

    def resume(self, channel: str, saved: Saved) -> Position:
        """Return the position of a channel in the target.

        Raises:
            DataLossError: the target does not have it, and workers have copied changes of the channel.
            StoreBusyError: a store does not respond.
        """
        try:
            self._columns[channel] = source_columns(*self._table.numbered_schema())
            place = self._place(channel)
        except StoreError as error:
            # A lost connection, see `MirrorWorker._publish`. The worker asks again after a pause.
            if type(error) is not StoreError:
                raise
            raise StoreBusyError(
                f"a store of mirror {self._state.form.target!r} does not respond", received=str(error)
            ) from error
        if place is None and saved.sequence:
            raise self._older_target(channel)
        return saved.position if place is None else place.position

    def _place(self, channel: str) -> _Place | None:
        marker = self._publisher(channel).marker()
        return None if marker is None else _Place(marker.batch, end_from_json(marker.content).position)

    def _publisher(self, channel: str) -> Publisher:
        publisher = self._target.publisher(self._state.tunnel, f"{self._state.form.target}+{channel}")
        publisher.in_process = True
        return publisher

    def _check_target(self) -> None:
        """Check that the target has the end of each channel that workers have finished.

        Raises:
            DataLossError: the target is older than the tunnel.
        """
        finished = [each.id for each in self.tunnel.channels() if each.state is ChannelState.FINISHED]
        unknown = [each for each in finished if (place := self._place(each)) is None or place.position != FINISHED]
        if not unknown:
            return
        client = self.tunnel.connect(tag="check")
        try:
            for channel in unknown:
                # A query of Spark has no numbered saves.
                if client.saved(channel).sequence:
                    raise self._older_target(channel)
        finally:
            client.close()

    def _older_target(self, channel: str) -> DataLossError:
        target = self._state.form.target
        return DataLossError(
            f"the store of mirror {target!r} is older than its tunnel, such as a restored copy: it lacks batches that "
            "workers have copied",
            received=f"channel {channel} of tunnel {self.tunnel.name!r}",
            remedy="restore the newest copy of the target's store; or drop the target table, and start the mirror "
            "again: it copies all rows again",
        )

    def publish(self, batch: ChangeBatch) -> bool:
        """Publish a batch with its position; return False if it does not begin at the target's position.

        Raises:
            OptionError: another job has taken the target.
            DataLossError: a table of the mirror was dropped and created again.
            SchemaError, UnsupportedError: the mirror does not follow a change of the source's columns.
        """
        channel, begun = batch.channel, time.monotonic()
        place = self._places.pop(channel, None)
        if place is None or place.position != batch.start:
            place = self._place(channel)
            if place is not None and place.position != batch.start:
                return False
        number = 0 if place is None else place.number + 1
        publisher = self._publishers.pop(channel, None) or self._publisher(channel)
        content, published = end_to_json(ChannelEnd(batch.position, len(batch))), False
        # Another thread can replace it meanwhile.
        begun_with, relaxed = self._state, frozenset(self._relaxed)
        state = begun_with
        try:
            state = begun_with.as_of_now(self._source, self._table, self._target, relaxed)
            state.check_read(self._columns.get(channel, state.columns))
            writes = self._writes(state.form, publisher, number, batch)
            published = publisher.publish(number, writes, content=content, claim=state.claim)
        except ClaimLostError as error:
            self._join_again(number, error)
        except PublicationError:
            # Another worker has published this number, with another end.
            marker = publisher.marker()
            if marker is None or marker.batch < number:
                raise
        except (SchemaError, UnsupportedError) as error:
            if TargetJobs(self._target).is_lost(begun_with.claim):
                # Another worker or thread has changed the columns of the target.
                self._join_again(number, error)
            elif is_newer_source(error) and self._misfits[channel] < _ATTEMPTS:
                _log.info("channel %s is read again: its source has got other columns", channel)
                self._misfits[channel] += 1
            elif (column := state.relaxed_column(error)) is not None and column not in relaxed:
                _log.info("channel %s is read again: column %s was null in its source for a time", channel, column)
                self._relaxed.add(column)
            else:
                raise
        finally:
            publisher.discard(number)
        if published:
            del self._misfits[channel]
            self._relaxed -= relaxed
            if state.claim.before != state.claim.after:
                # A batch without changes of columns leaves the state to that of another channel.
                self._state = state.published()
            if batch.position == FINISHED:
                self._columns.pop(channel, None)
            else:
                self._publishers[channel] = publisher
                self._places[channel] = _Place(number, batch.position)
            self._look()
            refused = publisher.refused
            if refused and state.form.bad_rows is not None:
                _log.warning("%d rows of a batch were refused, and are in %s", refused, state.form.bad_rows.table)
            if counters.enabled:
                counters.add("mirror", state.form.target, seconds=time.monotonic() - begun, count=len(batch))
                counters.add("mirror_refused", state.form.target, seconds=0.0, count=refused)
        return published

    def _look(self) -> None:
        """Raise `DataLossError` if a table of the mirror was dropped and created again; look once in a while."""
        if time.monotonic() >= self._next_look:
            TargetJobs(self._target).check_whole(self._state.form.target)
            self._next_look = time.monotonic() + _LOOK_SECONDS

    def _writes(self, form: MirrorForm, publisher: Publisher, number: int, batch: ChangeBatch) -> list[Write]:
        """Stage the rows of a batch, and return the writes of all targets, also of those without rows."""
        changes = batch.changes
        rows = PackedShape(KeylessSchema(columns_of(changes.rows.schema)), form.columns).rows(changes)
        routed = defaultdict[int, list[pa.RecordBatch]](list)
        for index, part in form.route(self._target, iter([rows])) if rows.num_rows else ():
            routed[index].append(part)
        writes = [
            target.write(target.stage_rows(self._target, publisher, number, parts) if (parts := routed[index]) else [])
            for index, target in enumerate(form.targets)
        ]
        # A key is once in base data, and its changes come later.
        is_base = rows.num_rows > 0 and changes.ops[0].as_py() == ChangeOp.BASE
        return [replace(each, new=is_base and each.change is RowChange.PUT) for each in writes]

    def _join_again(self, number: int, error: HeadraceError) -> None:
        """Read the record of the mirror again, which another worker has changed.

        Raises:
            OptionError: the target has another job now.
        """
        tunnel, self._state = self._prepared()
        if tunnel.id != self.tunnel.id:
            raise target_taken(self._state.form.target, self.tunnel.id, number + 1) from error


def mirror_worker(
    source: str | os.PathLike[str] | Store,
    table: str,
    to: str | os.PathLike[str] | Store,
    to_table: str | None = None,
    *,
    history: bool = False,
    schema_change: str = EVOLVE,
    bad_rows: str = FAIL_BATCH,
    tunnel: str | None = None,
    name: str | None = None,
    client: str = "",
    batch_rows: int = BATCH_ROWS,
    timeout: float = 60.0,
    idle: str = "wait",
) -> MirrorWorker:
    """Keep a copy of a table in another store, exactly once and without Spark: its rows, then each change.

    Several workers with the same source and target share the work, in any processes. If one ends or is killed, the
    others continue at the position that is in the target. The copy, and what happens at changes of columns, are those
    of `headrace.mirror`. The target is in an embedded store or a PostgreSQL database.

    Args:
        source: the store of the source, or its path or URL; ``table`` is the table.
        to: the store of the target, or its path or URL; ``to_table`` is the table, by default the source's name.
        history: keep all versions of each row, with `valid_from`, `valid_to` and `is_current`.
        schema_change: ``evolve``, ``lenient`` or ``fail``, as for `headrace.mirror`.
        bad_rows: rows that the target refuses ``fail`` their batch, or go into a ``table`` beside the target.
        tunnel: an existing tunnel that no reader has read, by name or id; by default the mirror creates one.
        name: of the mirror's own tunnel, ``mirror-<name>``; by default the name of the target.
        client: a name of the worker for the description of the tunnel.
        batch_rows: the maximum number of changes in a batch, which is one transaction of the target.
        timeout: the number of seconds without a heartbeat after which other workers get this worker's channels.
        idle: ``wait`` for new changes, or ``stop`` after all workers have copied all changes.

    Returns:
        A `MirrorWorker`; its ``run()`` copies until ``stop()``.

    Raises:
        OptionError: an option has an invalid value.

    Examples:
        >>> archive = headrace.open("copy", create=True)
        >>> headrace.mirror_worker("shop", "orders", to="copy", idle="stop").run()
        >>> archive.table("orders").get({"id": "o1"})
        {'id': 'o1', 'price': 10.0}
    """
    policy = parse_schema_change(schema_change)
    target_table = to_table or table
    if bad_rows not in (FAIL_BATCH, KEEP):
        raise OptionError("unknown value of option bad_rows", received=repr(bad_rows), valid=(FAIL_BATCH, KEEP))
    if history and bad_rows == KEEP:
        refuse_history()
    return MirrorWorker(
        source=source,
        table=table,
        target=to,
        target_table=target_table,
        history=history,
        evolution=Evolution(policy, keeps=history or policy == LENIENT),
        bad_rows=bad_rows_of(target_table, name or target_table) if bad_rows == KEEP else None,
        tunnel=tunnel,
        tunnel_name=tunnel or f"mirror-{name or target_table}",
        client=client,
        batch_rows=batch_rows,
        timeout=timeout,
        idle=idle,
    )
