"""What queries over event time must give: computed from all rows in plain Python, with nothing of Spark's.

The rules are those of the Structured Streaming guide. A stream's watermark is the latest event time seen so far minus
its delay, never going back, a query's is the smallest of its streams'; what a batch has seen counts from the next batch
on. A row is too late when the time until which it matters is not behind the watermark.
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
    """Return the query's watermark when each arrival is read, and behind them the one that the last arrival leaves.

    Args:
        arrivals: the event times that arrive together, by stream.
        delays: the delay of each stream; while one has given no row, there is no watermark.
        restart_before: before which arrivals the query is started again. It then knows its watermark, but not how far
            each stream was.
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
    """Return each arrival without the rows that are too late, as a row matters ``until`` some time."""
    return [[row for row in rows if until(row) > mark] for rows, mark in zip(arrivals, marks, strict=False)]


def floor(time: datetime, step: timedelta) -> datetime:
    """Return where the window that holds a time begins."""
    return time - (time - EPOCH) % step


def flat(arrivals: Iterable[Iterable[Row]]) -> list[Row]:
    """Return the rows of all arrivals, in their order."""
    return [row for rows in arrivals for row in rows]


def times_of(arrivals: Iterable[Iterable[Row]], column: str = "time") -> list[dict[str, list[datetime]]]:
    """Return the event times of the arrivals of a single stream, as `watermarks` takes them."""
    return [{"": [row[column] for row in rows]} for rows in arrivals]


# -- running a query, and reading what it has written -----------------------------------------------------------


def play(build: Callable[[], Any], feed: Sequence[Callable[[], object]], restart_before: Collection[int] = ()) -> Any:
    """Run a query, call one function after the other, let the query read what each has written; return its progress.

    Args:
        build: returns what ``start()`` starts.
        feed: writes what arrives together, one function for each arrival.
        restart_before: before which of them the query is stopped and started again.
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
    """Leave the checkpoint as if the query had died behind its last publication: Spark runs that batch again."""
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
    """Compare rows without regard to their order; a row that is there twice must be expected twice."""

    def in_order(some: Iterable[Row]) -> list[list[tuple[str, Any]]]:
        return sorted((sorted(row.items()) for row in some), key=repr)

    assert in_order(rows) == in_order(expected)
