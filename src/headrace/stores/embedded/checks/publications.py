"""Checks of staged rows, markers, consumers and producers."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pyarrow as pa

from headrace.stores.embedded.checks.problems import Problem, orphans


def staged_rows(connection: apsw.Connection) -> Iterator[Problem]:
    """Check that staged rows can be read, and that none of a published batch are left."""
    yield from orphans(
        connection,
        "stage",
        "EXISTS (SELECT 1 FROM marker m WHERE m.job = stage.job AND m.sink = stage.sink AND m.batch >= stage.batch)",
        "staged rows of published batches",
    )
    yield from orphans(
        connection,
        "stage",
        "queue IS NOT NULL AND queue NOT IN (SELECT id FROM object WHERE kind = 'queue')",
        "staged rows for dropped queues",
    )
    for number, job, count, data in connection.execute("SELECT id, job, n, data FROM stage WHERE queue IS NULL"):
        try:
            rows = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
            rows.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            yield Problem(f"the staged rows {number} of job {job!r} cannot be read: {str(error)[:200]}")
            continue
        if rows.num_rows != count:
            yield Problem(f"the staged rows {number} of job {job!r} are {rows.num_rows} instead of {count}")


def markers(connection: apsw.Connection) -> Iterator[Problem]:
    """Check the markers of published batches."""
    for job, sink, batch in connection.execute(
        "SELECT job, sink, batch FROM marker WHERE typeof(batch) <> 'integer' OR batch < 0 OR job = ''"
    ):
        yield Problem(f"the marker of job {job!r} and sink {sink!r} has the batch {batch!r}")


def consumers(connection: apsw.Connection) -> Iterator[Problem]:
    """Check that registrations, offsets and sessions belong to queues, consumers and producers."""
    owners = {"registration": "consumer", "consumer_offset": "consumer", "producer_session": "producer"}
    for table, owner in owners.items():
        yield from orphans(
            connection,
            table,
            f"queue NOT IN (SELECT id FROM object WHERE kind = 'queue')"
            f" OR {owner} NOT IN (SELECT id FROM object WHERE kind = '{owner}')",
            f"rows of {table} for dropped queues or {owner}s",
        )
    for queue, consumer, number, row in connection.execute(
        "SELECT q.name, c.name, o.number, o.next FROM consumer_offset o JOIN object q ON q.id = o.queue"
        " JOIN object c ON c.id = o.consumer LEFT JOIN partition p ON p.object = o.queue AND p.number = o.number"
        " WHERE p.id IS NULL OR o.next < 0"
    ):
        yield Problem(f"consumer {consumer!r} is at the invalid row {row} of partition {number} of queue {queue!r}")
