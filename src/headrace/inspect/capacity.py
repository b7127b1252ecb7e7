"""The resources that a stream needs for a rate: executors, partitions and connections. A model of measured costs.

A row costs time in three places: on the cores of Spark's executors, on those of the store's server, and in a part that
runs once however many cores there are: the one writer of an embedded store, or the one reader of a replication slot.
So a stream of r rows a second needs

    cores = r × parallel / (BUSY − r × serial)

where ``parallel`` are the seconds of a core for a row, and ``serial`` the seconds of the last part. `BUSY` is the part
of the time in which a stream works: the rest is for peaks, and to catch up after a stop.

A replication slot is read by one task. If the query does not group its rows, the same task also writes them, so all
its work is in the serial part.

The costs are from docs/benchmarks.md, and tests/unit/test_capacity.py compares them with its figures. Those of an
embedded store were measured at two lengths of rows. The others are from rows of `MEASURED_BYTES`, and grow with the
length as those of an embedded store. Memory is not modelled: that of executors was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import OptionError

BUSY = 0.7
"""The part of the time in which a planned stream works."""
MEASURED_BYTES = 41
"""The bytes of a row in the benchmarks: a key of 13 characters, two numbers of 8 bytes and a time."""
EXECUTOR_CORES = 2
"""The cores of an executor (`spark.executor.cores`) if nothing is said."""
# Connections to PostgreSQL. The greatest numbers that were counted in pg_stat_activity, with the checkpoint in the
# database: 8 and 11 of a stream between two tables on 1 and 2 cores, 8, 12, 20 and 35 of one with groups on 1, 2, 4 and
# 8, 7 of one from a queue on 4, and 6 of one that only reads on 2. Tasks that read and tasks that write take turns in
# Spark's Python processes, two for each core, and each process keeps the two connections of its last task for some
# seconds. Before they did, 3 were of the process that plans the reads, and of the driver 1 for publications and up to 4
# for checkpoints.
_CONNECTIONS_TO_PLAN = 3
_CONNECTIONS_TO_PUBLISH = 1
_CONNECTIONS_OF_CHECKPOINTS = 3
_CONNECTIONS_OF_A_CORE = 1
_CONNECTIONS_OF_A_CORE_THAT_READS_AND_WRITES = 4
_MORE_CONNECTIONS_OF_TASKS = 1


@dataclass(frozen=True)
class Cost:
    """The cost of a row of `MEASURED_BYTES` in microseconds, and of each further byte in nanoseconds."""

    row: float = 0.0
    byte: float = 0.0

    def seconds(self, row_bytes: int) -> float:
        """Return the seconds for one row of a length."""
        return max(self.row / 4, self.row + (row_bytes - MEASURED_BYTES) * self.byte / 1000) / 1e6


@dataclass(frozen=True)
class Part:
    """A part of a stream: the reading of a store, the query, or the writing into a store.

    Attributes:
        executor: on the cores of Spark's executors.
        server: on the cores of the store's server; nothing for an embedded store, whose work is the executors'.
        serial: in the part of the time that one process or connection takes, whatever the number of cores.
        one_task: one task reads everything, from a replication slot.
        connects: with connections to PostgreSQL.
    """

    executor: Cost = Cost()
    server: Cost = Cost()
    serial: Cost = Cost()
    one_task: bool = False
    connects: bool = False


READS: Mapping[str, Part] = {
    "embedded-queue": Part(executor=Cost(0.45, 1.9)),
    "embedded-tunnel": Part(executor=Cost(0.6, 1.6)),
    # The task decodes while the server does.
    "postgres-tunnel": Part(server=Cost(0.77, 1.6), serial=Cost(1.34, 1.6), one_task=True, connects=True),
    "tablestore-tunnel": Part(executor=Cost(1.98, 1.6), server=Cost(2.36, 1.6)),
    "yt-queue": Part(executor=Cost(0.85, 1.9), server=Cost(0.85, 1.9)),
}
"""The costs of reading, by store and kind."""
WRITES: Mapping[str, Part] = {
    "none": Part(),
    "embedded-queue": Part(executor=Cost(0.4, 0.6), serial=Cost(0.35, 5.8)),
    "embedded-table": Part(executor=Cost(1.3, 2.0), serial=Cost(3.1, 21.2)),
    # The serial part is the one statement that publishes a batch; its time on the server is also in `server`.
    "postgres-table": Part(executor=Cost(2.5, 2.0), server=Cost(4.3, 21.2), serial=Cost(2.5, 21.2), connects=True),
    "tablestore-table": Part(executor=Cost(5.0, 2.0), server=Cost(14.5, 21.2)),
    # Between a batch in one transaction and a large one in parts. How both sides share the time was not measured.
    "yt-queue": Part(executor=Cost(3.3, 0.6), server=Cost(3.3, 5.8)),
    "yt-table": Part(executor=Cost(5.1, 2.0), server=Cost(5.1, 21.2)),
}
"""The costs of writing by store and kind, exactly once where the store can; of tables in update mode, with random keys
of a large table."""
QUERIES: Mapping[str, Part] = {"rows": Part(), "groups": Part(executor=Cost(10.5))}
"""The costs of a query: of rows one by one, or of groups with state in RocksDB (windows, counts, joins)."""


@dataclass(frozen=True)
class Stream:
    """A stream to plan.

    Attributes:
        read, query, write: names in `READS`, `QUERIES` and `WRITES`.
        row_bytes: the bytes of a row that is read: 8 for a number or a time, the length of a text.
        written_bytes: the bytes of a row that is written. None is `row_bytes`, and for groups at most `MEASURED_BYTES`.
    """

    read: str
    query: str = "rows"
    write: str = "none"
    row_bytes: int = MEASURED_BYTES
    written_bytes: int | None = None

    def __post_init__(self) -> None:
        for option, received, known in (
            ("from", self.read, READS),
            ("query", self.query, QUERIES),
            ("to", self.write, WRITES),
        ):
            if received not in known:
                raise OptionError(f"unknown value of option {option}", received=repr(received), valid=list(known))
        for size in (self.row_bytes, self.written_bytes):
            if size is not None and size < 1:
                raise OptionError("a row has at least one byte", received=size)

    def executor_seconds(self) -> float:
        """Return the seconds of an executor's core for a row, without the serial part."""
        return sum(part.executor.seconds(size) for part, size in self._parts())

    def server_seconds(self) -> float:
        """Return the seconds of a core of the store's server for a row."""
        return sum(part.server.seconds(size) for part, size in self._parts())

    def serial_seconds(self) -> float:
        """Return the seconds for a row in which the number of cores does not matter."""
        serial = sum(part.serial.seconds(size) for part, size in self._parts())
        return serial + (self.executor_seconds() if self._in_one_task() else 0.0)

    def parallel_seconds(self) -> float:
        """Return the seconds of an executor's core for a row that several cores can share."""
        return 0.0 if self._in_one_task() else self.executor_seconds()

    def rows_per_second(self, cores: int, *, shared: bool = False) -> float:
        """Return the rate of a stream that always works.

        Args:
            cores: the cores of the executors.
            shared: whether the server of the store is on the same cores.
        """
        parallel = self.parallel_seconds() + (self.server_seconds() if shared else 0.0)
        return 1.0 / (self.serial_seconds() + parallel / cores)

    def limit(self) -> float | None:
        """Return the greatest rate to plan for in rows a second, with any number of cores; None is no limit."""
        serial = self.serial_seconds()
        return BUSY / serial if serial else None

    def connections(self, cores: int) -> int:
        """Return the number of connections to PostgreSQL at most, with the checkpoint in the store that is written.

        Args:
            cores: the cores of the executors; each runs one task.
        """
        reads, writes = READS[self.read].connects, WRITES[self.write].connects
        if not (reads or writes):
            return 0
        of_core = _CONNECTIONS_OF_A_CORE_THAT_READS_AND_WRITES if reads and writes else _CONNECTIONS_OF_A_CORE
        return (
            _MORE_CONNECTIONS_OF_TASKS
            + of_core * cores
            + reads * _CONNECTIONS_TO_PLAN
            + writes * (_CONNECTIONS_TO_PUBLISH + _CONNECTIONS_OF_CHECKPOINTS)
        )

    def _in_one_task(self) -> bool:
        return READS[self.read].one_task and self.query == "rows"

    def _parts(self) -> tuple[tuple[Part, int], ...]:
        """Return the parts, each with the bytes of its rows."""
        written = self.written_bytes
        if written is None:
            written = self.row_bytes if self.query == "rows" else min(self.row_bytes, MEASURED_BYTES)
        return (
            (READS[self.read], self.row_bytes),
            (QUERIES[self.query], self.row_bytes),
            (WRITES[self.write], written),
        )


@dataclass(frozen=True)
class Need:
    """What a stream needs for a rate.

    Attributes:
        executors: Spark's executors (`spark.executor.instances`). The driver is not counted.
        executor_cores: cores of each executor (`spark.executor.cores`).
        cores: cores of all executors that the stream uses, at most ``executors * executor_cores``.
        partitions: partitions of the queue, tablets, or partitions of the table: one for each core that reads.
        shuffle_partitions: `spark.sql.shuffle.partitions` of a query of groups; None for another query.
        server_cores: cores of the store's server for this stream; 0 for an embedded store.
        connections: connections to PostgreSQL at most; 0 for a stream without it.
        serial: how busy the one writer or reader of the store is, as a part of what it can do for a planned stream.
    """

    executors: int
    executor_cores: int
    cores: int
    partitions: int
    shuffle_partitions: int | None
    server_cores: int
    connections: int
    serial: float


def need(stream: Stream, rate: float, *, executor_cores: int = EXECUTOR_CORES) -> Need:
    """Return what a stream needs to keep up with a rate.

    Args:
        rate: rows a second that the stream reads.
        executor_cores: cores of each executor.

    Raises:
        OptionError: the rate is not positive, or the one writer or reader of the store cannot keep up with it; an
            executor has no core.
    """
    if not rate > 0 or not math.isfinite(rate):
        raise OptionError("the rate must be a positive number of rows a second", received=rate)
    if executor_cores < 1:
        raise OptionError("an executor has at least one core", received=executor_cores)
    limit = stream.limit()
    serial = rate * stream.serial_seconds()
    # Near the limit the formula asks for any number of cores.
    if limit is not None and rate > 0.9 * limit:
        raise OptionError(
            f"one {'slot' if READS[stream.read].one_task else 'writer'} cannot keep up with this rate",
            received=f"{rate:,.0f} rows a second",
            valid=f"up to {0.9 * limit:,.0f} rows a second of {stream.row_bytes} bytes",
            remedy="divide the rows among several stores or databases, or use a store with many writers (YTsaurus, "
            "Tablestore)",
        )
    # The serial part needs a core, too.
    cores = max(1, math.ceil(rate * stream.parallel_seconds() / (BUSY - serial)))
    return Need(
        executors=math.ceil(cores / executor_cores),
        executor_cores=executor_cores,
        cores=cores,
        partitions=1 if READS[stream.read].one_task else cores,
        shuffle_partitions=cores if stream.query == "groups" else None,
        server_cores=math.ceil(rate * stream.server_seconds() / BUSY),
        connections=stream.connections(cores),
        serial=serial / BUSY,
    )
