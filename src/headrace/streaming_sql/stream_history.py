"""The history of a workspace's streams: their batches, and how their runs ended. It outlives the streams' processes.

A stream keeps its last `KEPT_BATCHES` batches of the last `KEPT_SECONDS`, up to `PRUNE_EVERY` more until the next
pruning, and its last `KEPT_ENDINGS` ends of runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.batches.sinks import batch_figures
from headrace.model.tunnels.lag import Lag

if TYPE_CHECKING:
    import apsw

    from headrace.streaming_sql.workspace import Workspace

PHASES = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitBatch", "commitOffsets")
"""Spark's phases of a batch, in the order in which it runs them."""
PARTS = batch_figures.PARTS
"""headrace's parts of ``addBatch``."""
WHOLE_BATCH = "triggerExecution"
"""Spark's name for all phases together, and what is between them."""
KEPT_BATCHES = 10_000
KEPT_SECONDS = 7 * 86400.0
KEPT_ENDINGS = 100
# Pruning walks all keys of the stream, which takes about 1 ms: it is done once in this number of batches.
PRUNE_EVERY = 100
_COLUMNS = (
    "time, batch, rows_in, rows_out, durations, lag_rows, lag_unknown, ranges, ranges_done, watermark, state_rows, "
    "state_bytes"
)


@dataclass(frozen=True)
class BatchRecord:
    """One completed batch of a stream.

    Attributes:
        time: the start of the batch, in seconds since 1970.
        batch: Spark's number of the batch. A batch that was repeated after a failure has two records.
        rows_in: the rows read from all sources.
        rows_out: the rows written to all targets; None if the sink does not count them.
        durations: the seconds of each phase, with Spark's names: ``latestOffset``, ``queryPlanning``, ``addBatch``, …;
            ``triggerExecution`` is the duration of the whole batch. If headrace publishes the batch, also those of
            `headrace.batches.sinks.batch_figures.PARTS` within ``addBatch``.
        lag: the unread rows of all sources after the batch; None if no source reports them.
        watermark: the event time in seconds since 1970; None without a watermark.
        state_rows, state_bytes: the rows of the query's state and their bytes: in Spark's memory, or of a query that
            follows tables in the target's store, there as of a few seconds before; None without state.
    """

    time: float
    batch: int
    rows_in: int
    rows_out: int | None = None
    durations: Mapping[str, float] = field(default_factory=dict)
    lag: Lag | None = None
    watermark: float | None = None
    state_rows: int | None = None
    state_bytes: int | None = None

    @property
    def seconds(self) -> float:
        """The duration of the batch."""
        return self.durations.get(WHOLE_BATCH, 0.0)

    @property
    def rows_per_second(self) -> float | None:
        """The rows read in a second of the batch; None if its duration is unknown."""
        return self.rows_in / self.seconds if self.seconds else None


@dataclass(frozen=True)
class Ending:
    """The end of one run of a stream.

    Attributes:
        time: in seconds since 1970.
        state: ``stopped``, ``finished`` or ``failed``.
        error: the error in one line; None without an error.
        remedy: what solves the problem; None if the error does not say it.
    """

    time: float
    state: str
    error: str | None = None
    remedy: str | None = None


class StreamHistory:
    """The batches of the streams in a workspace. Names of streams are case-insensitive."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def batches(
        self, stream: str, *, since: float | None = None, until: float | None = None, limit: int = KEPT_BATCHES
    ) -> list[BatchRecord]:
        """Return batches of a stream by time, the newest ``limit`` of those that started from ``since`` to ``until``.

        Args:
            since, until: times in seconds since 1970; ``until`` is excluded. None is no bound.
        """
        found = self._workspace.query(
            f"SELECT {_COLUMNS} FROM batch WHERE stream = ? AND time >= ? AND time < ? ORDER BY time DESC LIMIT ?",
            (stream.lower(), since if since is not None else -1e300, until if until is not None else 1e300, limit),
        )
        return [_record(*row) for row in reversed(found)]

    def last_batch(self, stream: str) -> BatchRecord | None:
        """Return the newest batch of a stream; None if it has none."""
        found = self.batches(stream, limit=1)
        return found[0] if found else None

    def endings(self, stream: str, *, limit: int = KEPT_ENDINGS) -> list[Ending]:
        """Return the ends of the last runs of a stream, the newest first."""
        found = self._workspace.query(
            "SELECT time, state, error, remedy FROM ending WHERE stream = ? ORDER BY time DESC LIMIT ?",
            (stream.lower(), limit),
        )
        return [Ending(*row) for row in found]

    def last_error(self, stream: str) -> Ending | None:
        """Return the newest failure of a stream, also if it runs again; None if none is kept."""
        return next((ending for ending in self.endings(stream) if ending.error is not None), None)


def add_batches(connection: apsw.Connection, stream: str, batches: Sequence[BatchRecord]) -> None:
    """Add batches of a stream, and at times prune its older ones, inside the caller's write transaction."""
    name = stream.lower()
    rows = [(name, *_row(batch)) for batch in batches]
    if not rows:
        return
    connection.executemany(
        f"INSERT OR REPLACE INTO batch (stream, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
    )
    if any(batch.batch % PRUNE_EVERY == 0 for batch in batches):
        prune(connection, name)


def add_ending(connection: apsw.Connection, stream: str, ending: Ending) -> None:
    """Add the end of a run of a stream, inside the caller's write transaction."""
    name = stream.lower()
    connection.execute(
        "INSERT OR REPLACE INTO ending (stream, time, state, error, remedy) VALUES (?, ?, ?, ?, ?)",
        (name, ending.time, ending.state, ending.error, ending.remedy),
    )
    connection.execute(
        "DELETE FROM ending WHERE stream = ?1 AND time <= "
        "(SELECT time FROM ending WHERE stream = ?1 ORDER BY time DESC LIMIT 1 OFFSET ?2)",
        (name, KEPT_ENDINGS),
    )


def prune(connection: apsw.Connection, stream: str) -> None:
    """Delete the batches of a stream that are no longer kept, inside the caller's write transaction.

    Both statements only walk the primary key.
    """
    name = stream.lower()
    connection.execute("DELETE FROM batch WHERE stream = ? AND time < ?", (name, time.time() - KEPT_SECONDS))
    connection.execute(
        "DELETE FROM batch WHERE stream = ?1 AND time <= "
        "(SELECT time FROM batch WHERE stream = ?1 ORDER BY time DESC LIMIT 1 OFFSET ?2)",
        (name, KEPT_BATCHES),
    )


def forget(connection: apsw.Connection, stream: str) -> None:
    """Delete the history of a stream, inside the caller's write transaction."""
    for table in ("batch", "ending"):
        connection.execute(f"DELETE FROM {table} WHERE stream = ?", (stream.lower(),))


def _row(batch: BatchRecord) -> tuple[object, ...]:
    lag = batch.lag
    lags = (None, None, None, None) if lag is None else (lag.rows, lag.unknown, lag.ranges, lag.ranges_done)
    return (
        *(batch.time, batch.batch, batch.rows_in, batch.rows_out),
        json.dumps(dict(batch.durations), separators=(",", ":")),
        *lags,
        *(batch.watermark, batch.state_rows, batch.state_bytes),
    )


def _record(
    start: float, batch: int, rows_in: int, rows_out: int | None, durations: str, lag_rows: int | None, *others: Any
) -> BatchRecord:
    """Return the batch of a row of `_COLUMNS`."""
    unknown, ranges, ranges_done, *figures = others
    lag = None if lag_rows is None else Lag(lag_rows, unknown, ranges, ranges_done)
    return BatchRecord(start, batch, rows_in, rows_out, json.loads(durations), lag, *figures)
