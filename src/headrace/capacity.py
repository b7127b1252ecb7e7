"""The resources that a stream needs for a rate: cores, partitions and connections. A pure model of measured costs.

A row costs time in three places: on the cores of Spark's executors, on those of the store's server, and in a part that
runs once however many cores there are: the one writer of an embedded store, or the one reader of a replication slot.
So a stream of r rows a second needs

    cores = r × parallel / (BUSY − r × serial)

where ``parallel`` are the seconds of a core for a row, and ``serial`` the seconds of the last part. `BUSY` is the part
of the time in which a stream works: the rest is for peaks, and to catch up after a stop.

The costs are from docs/benchmarks.md. Those of an embedded store were measured at two lengths of rows. The others are
from rows of `MEASURED_BYTES`, and grow with the length as those of an embedded store.
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
# A stream between two tables of PostgreSQL on two cores had 7 connections: a process that reads and one that writes for
# each core, and those of the driver that plan, commit and publish.
_CONNECTIONS_OF_CORE = 2
_CONNECTIONS_OF_DRIVER = 4


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
    """

    executor: Cost = Cost()
    server: Cost = Cost()
    serial: Cost = Cost()


READS: Mapping[str, Part] = {
    "embedded-queue": Part(executor=Cost(0.45, 1.9)),
    "embedded-tunnel": Part(executor=Cost(0.55, 1.6)),
    # One slot is read by one task, which decodes while the server does.
    "postgres-tunnel": Part(server=Cost(0.77, 1.6), serial=Cost(1.34, 1.6)),
    "tablestore-tunnel": Part(executor=Cost(1.98, 1.6), server=Cost(2.36, 1.6)),
    "yt-queue": Part(executor=Cost(0.85, 1.9), server=Cost(0.85, 1.9)),
}
"""The costs of reading, by store and kind."""
WRITES: Mapping[str, Part] = {
    "none": Part(),
    "embedded-queue": Part(executor=Cost(0.4, 0.6), serial=Cost(0.35, 5.8)),
    "embedded-table": Part(executor=Cost(2.0, 2.0), serial=Cost(4.75, 21.2)),
    "postgres-table": Part(executor=Cost(4.9, 2.0), server=Cost(6.0, 21.2), serial=Cost(3.6, 21.2)),
    "tablestore-table": Part(executor=Cost(11.0, 2.0), server=Cost(62.0, 21.2)),
    "yt-queue": Part(executor=Cost(9.5, 0.6), server=Cost(9.5, 5.8)),
    "yt-table": Part(executor=Cost(14.5, 2.0), server=Cost(14.5, 21.2)),
}
"""The costs of writing exactly once, by store and kind; of tables in update mode, with random keys of a large table."""
QUERIES: Mapping[str, Part] = {"rows": Part(), "groups": Part(executor=Cost(8.5))}
"""The costs of a query: of rows one by one, or of groups with state in RocksDB (windows, counts, joins)."""


@dataclass(frozen=True)
class Stream:
    """A stream to plan.

    Attributes:
        read, query, write: names in `READS`, `QUERIES` and `WRITES`.
        row_bytes: the bytes of a row: 8 for a number or a time, the length of a text.
    """

    read: str
    query: str = "rows"
    write: str = "none"
    row_bytes: int = MEASURED_BYTES

    def __post_init__(self) -> None:
        for option, received, known in (
            ("from", self.read, READS),
            ("query", self.query, QUERIES),
            ("to", self.write, WRITES),
        ):
            if received not in known:
                raise OptionError(f"unknown value of option {option}", received=repr(received), valid=list(known))
        if self.row_bytes < 1:
            raise OptionError("a row has at least one byte", received=self.row_bytes)

    def executor_seconds(self) -> float:
        """Return the seconds of an executor's core for a row."""
        return sum(part.executor.seconds(self.row_bytes) for part in self._parts())

    def server_seconds(self) -> float:
        """Return the seconds of a core of the store's server for a row."""
        return sum(part.server.seconds(self.row_bytes) for part in self._parts())

    def serial_seconds(self) -> float:
        """Return the seconds for a row in which the number of cores does not matter."""
        return sum(part.serial.seconds(self.row_bytes) for part in self._parts())

    def rows_per_second(self, cores: int, *, shared: bool = False) -> float:
        """Return the rate of a stream that always works.

        Args:
            cores: the cores of the executors.
            shared: whether the server of the store is on the same cores.
        """
        parallel = self.executor_seconds() + (self.server_seconds() if shared else 0.0)
        return 1.0 / (self.serial_seconds() + parallel / cores)

    def limit(self) -> float | None:
        """Return the greatest rate to plan for, with any number of cores; None is no limit."""
        serial = self.serial_seconds()
        return BUSY / serial if serial else None

    def _parts(self) -> tuple[Part, Part, Part]:
        return READS[self.read], QUERIES[self.query], WRITES[self.write]


@dataclass(frozen=True)
class Need:
    """What a stream needs for a rate.

    Attributes:
        executor_cores: cores of Spark's executors in total.
        partitions: partitions of the queue, tablets, or partitions of the table: one for each core that reads.
        shuffle_partitions: `spark.sql.shuffle.partitions` of a query of groups; None for another query.
        server_cores: cores of the store's server for this stream; 0 for an embedded store.
        connections: connections to the store's server at most; 0 for an embedded store.
        serial: how busy the one writer or reader of the store is, as a part of what it can do for a planned stream.
    """

    executor_cores: int
    partitions: int
    shuffle_partitions: int | None
    server_cores: int
    connections: int
    serial: float


def need(stream: Stream, rate: float) -> Need:
    """Return what a stream needs to keep up with a rate, in rows a second.

    Raises:
        OptionError: the rate is not positive, or the one writer or reader of the store cannot keep up with it.
    """
    if not rate > 0 or not math.isfinite(rate):
        raise OptionError("the rate must be a positive number of rows a second", received=rate)
    limit = stream.limit()
    serial = rate * stream.serial_seconds()
    # Near the limit the formula asks for any number of cores.
    if limit is not None and rate > 0.9 * limit:
        raise OptionError(
            f"one {'slot' if stream.read.startswith('postgres') else 'writer'} cannot keep up with this rate",
            received=f"{rate:,.0f} rows a second",
            valid=f"up to {0.9 * limit:,.0f} rows a second of {stream.row_bytes} bytes",
            remedy="divide the rows among several stores or databases, or use a store with many writers (YTsaurus, "
            "Tablestore)",
        )
    # The serial part needs a core, too.
    cores = max(1, math.ceil(rate * stream.executor_seconds() / (BUSY - serial)))
    servers = 0 if stream.server_seconds() == 0 else math.ceil(rate * stream.server_seconds() / BUSY)
    return Need(
        executor_cores=cores,
        partitions=cores,
        shuffle_partitions=cores if stream.query == "groups" else None,
        server_cores=servers,
        connections=0 if servers == 0 else _CONNECTIONS_OF_DRIVER + _CONNECTIONS_OF_CORE * cores,
        serial=serial / BUSY,
    )
