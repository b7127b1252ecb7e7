"""The expected results of queries over event time, computed from all rows in plain Python.

The rules are those of the Structured Streaming guide. The watermark of a stream is its latest event time minus its
delay, and never moves back. The watermark of a query is the smallest one of its streams. The rows of a batch move the
watermark of the next batch. A row is too late if the end of its relevance is not after the watermark.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from headrace.ports import Store

Row: TypeAlias = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXAMPLES = Path(__file__).parents[2] / "examples" / "event_time"


def example(name: str) -> ModuleType:
    """Return a script of examples/event_time as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- the guide's rules --------------------------------------------------------------------------------------


def minutes(number: float) -> timedelta:
    return timedelta(minutes=number)


def watermarks(
    arrivals: Iterable[Mapping[str, Iterable[datetime]]],
    delays: Mapping[str, timedelta],
    restart_before: Collection[int] = (),
) -> list[datetime]:
    """Return the query's watermark at the read of each arrival, and the one after the last arrival.

    Args:
        arrivals: the event times of each arrival, by stream.
        delays: the delay of each stream. There is no watermark before each stream has delivered a row.
        restart_before: the arrivals before which the query restarts. After a restart it knows its own watermark, but
            not the latest event times of its streams.
    """
    latest = dict.fromkeys(delays, EPOCH)
    marks = [EPOCH]
    for number, times in enumerate(arrivals):
        if number in restart_before:
            latest = dict.fromkeys(delays, EPOCH)
        for stream, given in times.items():
            latest[stream] = max([latest[stream], *given])
        marks.append(max(marks[-1], min(latest[stream] - delay for stream, delay in delays.items())))
    return marks


def in_time(
    arrivals: Iterable[Sequence[Row]], marks: Iterable[datetime], until: Callable[[Row], datetime]
) -> list[list[Row]]:
    """Return each arrival without the rows that are too late. ``until`` returns the end of a row's relevance."""
    return [[row for row in rows if until(row) > mark] for rows, mark in zip(arrivals, marks, strict=False)]


def floor(time: datetime, step: timedelta) -> datetime:
    """Return the beginning of the window that contains a time."""
    return time - (time - EPOCH) % step


def flat(arrivals: Iterable[Iterable[Row]]) -> list[Row]:
    """Return the rows of all arrivals, in order."""
    return [row for rows in arrivals for row in rows]


def times_of(arrivals: Iterable[Iterable[Row]], column: str = "time") -> list[dict[str, list[datetime]]]:
    """Return the event times of the arrivals of a single stream, for `watermarks`."""
    return [{"": [row[column] for row in rows]} for rows in arrivals]


# -- running a query, and reading its results -------------------------------------------------------------------


def play(build: Callable[[], Any], feed: Sequence[Callable[[], object]], restart_before: Collection[int] = ()) -> Any:
    """Run a query while rows arrive, and wait for it after each arrival; return its progress reports.

    Args:
        build: returns the writer of the query.
        feed: the functions that write the rows of each arrival.
        restart_before: the arrivals before which the query is stopped and started again.
    """
    query = build().start()
    progress = []
    for number, write in enumerate(feed):
        if number in restart_before:
            progress += query.recentProgress
            query.stop()
            query = build().start()
        write()
        query.processAllAvailable()
    progress += query.recentProgress
    query.stop()
    return progress


def forget_last_commit(checkpoint: Path) -> None:
    """Remove the last entry of the commit log, as after a crash after the publication. Spark repeats that batch."""
    last = max((file for file in (checkpoint / "commits").iterdir() if file.name.isdigit()), key=lambda f: int(f.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def in_queue(store: Store, name: str) -> list[Row]:
    """Return all rows of a queue."""
    queue = store.queue(name)
    return flat(queue.read(number, rows.lower).rows.to_pylist() for number, rows in queue.bounds().items())


def in_table(store: Store, name: str) -> list[Row]:
    """Return all rows of a table."""
    return list(store.table(name).scan().read_all().to_pylist())


def assert_same(rows: Iterable[Row], expected: Iterable[Row]) -> None:
    """Compare rows in any order. Duplicates must occur as often as expected."""

    def in_order(some: Iterable[Row]) -> list[list[tuple[str, Any]]]:
        return sorted((sorted(row.items()) for row in some), key=repr)

    assert in_order(rows) == in_order(expected)
