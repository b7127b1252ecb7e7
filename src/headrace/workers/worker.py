"""`TunnelWorker`, the result of `Tunnel.consume`: an iterator over batches of changes."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import NoReturn, Self

import pyarrow as pa

from headrace.errors import OptionError, UnsupportedError
from headrace.model.tables.change_columns import ChangeShape
from headrace.model.tables.changes import Changes
from headrace.model.tables.schema import KeylessSchema, TableSchema, columns_of
from headrace.model.tunnels.values import Position
from headrace.workers.engine import Delivery, Engine, Pace, Resume
from headrace.workers.interfaces import ConsumedTunnel

IDLE = ("wait", "stop")
_HEARTBEAT_SECONDS = 5.0


class ChangeBatch:
    """One or more changes of one channel, in commit order.

    Attributes:
        channel: the id of the channel. All changes of a row are in one channel, or in a channel and its children.
        changes: the changes as arrays.
        position: the opaque position after the last change.
        start: the opaque position before the first change.

    Examples:
        >>> for batch in tunnel.consume(idle="stop"):
        ...     for change in batch.to_arrow().to_pylist():
        ...         print(change["_change_type"], change["id"], change["price"])
        ...     batch.done()
        insert o1 10.0
        insert o2 2.5
    """

    def __init__(
        self,
        channel: str,
        changes: Changes,
        position: Position,
        primary_key: tuple[str, ...],
        done: Callable[[], None],
        start: Position | None = None,
        delivery: Delivery | None = None,
    ) -> None:
        self.channel = channel
        self.changes = changes
        self.position = position
        self.start = start
        self._primary_key = primary_key
        self._done = done
        self._delivery = delivery

    def __len__(self) -> int:
        return self.changes.num_rows

    def __repr__(self) -> str:
        return f"ChangeBatch({len(self)} changes of {self.channel})"

    def to_arrow(self) -> pa.RecordBatch:
        """Return the changes as rows: the table's columns, `_change_type`, `_commit_version`, `_commit_timestamp`.

        The rows are those of format ``headrace`` in Spark.

        Raises:
            SchemaError: a column of the table has the name of a change column.
        """
        key = self._primary_key
        # Rows of several tables have no key.
        schema = (TableSchema if key else KeylessSchema)(columns_of(self.changes.rows.schema), key)
        return ChangeShape(schema).rows(self.changes)

    def done(self) -> None:
        """Acknowledge the batch now, instead of with the request for the next one. A second call has no effect."""
        self._done()


class TunnelWorker:
    """One of the workers that share a tunnel: an iterator over its batches, and a context manager.

    The worker connects at the start of the ``with`` block, or with the first batch. Until `close` its threads prefetch
    pages, save positions and send heartbeats, so the processing of a batch can take longer than the timeout. Batches
    are delivered one at a time, to one thread; `take` delivers one of each channel at a time, to several threads.

    At the end of the iteration, also after an error, acknowledged positions are saved and the channels are released.
    After a `break` the current batch is not acknowledged, unless `ChangeBatch.done` was called.

    Raises, from the iteration:
        DataLossError: changes were lost, unless ``fail_on_data_loss`` is false.
        NotFoundError: the tunnel was dropped.
        TunnelTakenError: a streaming query has started to read the tunnel.
        HeadraceError: another permanent error of the store.

    Examples:
        >>> with tunnel.consume(client="audit", batch_rows=1000, idle="stop") as worker:
        ...     print(sum(batch.to_arrow().num_rows for batch in worker))
        2
    """

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            "a worker of a tunnel has threads, and cannot be sent to another process",
            received="pickle of a TunnelWorker",
            remedy="send the tunnel, and call its consume() there",
        )

    def __init__(
        self,
        tunnel: ConsumedTunnel,
        client: str,
        *,
        batch_rows: int,
        checkpoint_interval: float,
        heartbeat_interval: float | None,
        timeout: float,
        idle: str,
        fail_on_data_loss: bool,
        resume: Resume | None = None,
    ) -> None:
        if batch_rows < 1:
            raise OptionError("batch_rows must be at least 1", received=batch_rows)
        if idle not in IDLE:
            raise OptionError("unknown value of option idle", received=repr(idle), valid=IDLE)
        _check_seconds("timeout", timeout)
        _check_seconds("checkpoint_interval", checkpoint_interval)
        if heartbeat_interval is None:
            heartbeat_interval = min(_HEARTBEAT_SECONDS, timeout / 4)
        _check_seconds("heartbeat_interval", heartbeat_interval)
        if heartbeat_interval > timeout / 2:
            raise OptionError(
                "heartbeat_interval is too long: one late heartbeat would exceed the timeout",
                received=f"heartbeat_interval={heartbeat_interval}",
                valid=f"at most half of timeout, {timeout / 2}",
            )
        self.tunnel = tunnel
        self.idle = idle
        pace = Pace(checkpoint_interval, heartbeat_interval, timeout)
        self._engine = Engine(tunnel, client, batch_rows, pace, fail_on_data_loss=fail_on_data_loss, resume=resume)
        self._primary_key: tuple[str, ...] | None = None
        self._last: ChangeBatch | None = None
        # Releases the channels after a loop without `with`. The threads refer to the engine only, not to this object.
        self._finalizer = weakref.finalize(self, self._engine.leave)
        self._finalizer.atexit = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ChangeBatch:
        self._start()
        if self._last is not None:
            self._last.done()
        try:
            self._last = self.take()
        except BaseException:
            self.close()
            raise
        if self._last is None:
            self.close()
            raise StopIteration
        return self._last

    def take(self) -> ChangeBatch | None:
        """Return the next batch of a channel that has no batch in hand; None after the last one.

        Several threads can call it instead of the iteration. It acknowledges no batch, and does not close the worker.
        """
        self._start()
        delivery = self._engine.take(stop_at_the_end=self.idle == "stop")
        if delivery is None:
            return None
        page = delivery.page
        done = partial(self._engine.done, delivery)
        changes = page.changes.with_single_deletes()
        channel, key = delivery.channel.id, self._primary_key or ()
        return ChangeBatch(channel, changes, page.next, key, done, delivery.start, delivery)

    def read_again(self, batch: ChangeBatch) -> None:
        """Read the channel of a batch again from the position that ``resume`` has for it.

        Has no effect if this worker has lost the channel since it has taken the batch.
        """
        if batch._delivery is not None:
            self._engine.read_again(batch._delivery)

    def stop(self) -> None:
        """Acknowledge the current batch and end the iteration. Signal handlers can call this method."""
        self._engine.stop()

    def close(self) -> None:
        """Save acknowledged positions, release the channels, and end. A second call has no effect."""
        self._engine.close()
        # It holds the engine, and with it what `resume` refers to: for ever, if that includes this object.
        self._finalizer.detach()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        if self._primary_key is None:
            primary_key = self.tunnel.table.schema.primary_key
            self._engine.start()
            self._primary_key = primary_key


def _check_seconds(name: str, seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds > 0):
        raise OptionError(f"{name} must be a positive number of seconds", received=seconds)
