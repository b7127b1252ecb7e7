"""`headrace.diff_tables` and `headrace.checksum_table`: the tables are read by key ranges, several at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event
from typing import Any, TypeVar

from headrace.errors import OptionError, shown
from headrace.inspect.comparing.columns import chosen, compared_columns
from headrace.inspect.comparing.defaults import (
    DEFAULT_LIMIT,
    DEFAULT_PARALLEL,
    DEFAULT_RANGES,
    MAX_PARALLEL,
    MAX_PAUSE,
    MAX_RANGES,
)
from headrace.inspect.comparing.key_ranges import common_ranges
from headrace.inspect.comparing.passes import Cancelled, Comparison, CountedRows, Found, first_rows
from headrace.inspect.comparing.results import RangeChecksum, RangeComparison, TableChecksum, TableDiff
from headrace.model.tables.conditions import KeyRange
from headrace.ports import Table

Item = TypeVar("Item")
Result = TypeVar("Result")


def diff_tables(
    a: Table,
    b: Table,
    *,
    columns: Iterable[str] | None = None,
    ranges: int = DEFAULT_RANGES,
    parallel: int = DEFAULT_PARALLEL,
    limit: int | None = DEFAULT_LIMIT,
    checksums: bool = False,
    recheck_after: float | None = 0.0,
) -> TableDiff:
    """Find the rows that differ in two tables of any stores, without loading the tables.

    It is a function of two tables rather than a method of one: neither store does the work, and the tables usually
    belong to two different stores.

    Both tables are read once, in the same key ranges. Memory holds one batch of each table for each range being read,
    and 8 bytes for each differing key. Values are compared in canonical form: a `short` equals the same `long`, a
    `string` equals the `binary` of its UTF-8, NaN equals NaN, -0.0 equals 0.0, null equals only null, and the order of
    the entries of a map has no meaning.

    A scan reads one state of a key range (from Tablestore, of a page). Two tables that change meanwhile are not read at
    the same moment. So rows that differ are read a second time in the end, and only keys that differ in both passes are
    reported. For an exact answer about tables that change, stop the writers, or set ``recheck_after`` above the lag of
    the query that copies the rows.

    Args:
        a: the first table.
        b: the second table, with the same primary key.
        columns: the columns to compare besides the key; all by default. Then a column that only one table has is a
            difference.
        ranges: the number of key ranges to aim at; a store may have fewer. 1 to 10,000.
        parallel: the number of ranges to read at a time, 1 to 64.
        limit: the number of differing rows to return; None for all. All are counted.
        checksums: also return the number of rows and the checksum of both tables for each key range.
        recheck_after: seconds between the two passes; None for one pass.

    Raises:
        OptionError: an argument is invalid.
        SchemaError: the primary keys differ, or a table does not have one of ``columns``.
        StoreError: a table returns rows in another order than that of its key (YTsaurus with computed key columns).

    Examples:
        >>> copy = store.create_table("copy", {"id": "string", "price": "double"}, "id")
        >>> version = copy.put([{"id": "o1", "price": 10.0}, {"id": "o2", "price": 3.0}])
        >>> diff = headrace.diff_tables(orders, copy)
        >>> diff.equal, diff.changed
        (False, 1)
    """
    for table in (a, b):
        _check_table(table)
    for name, value, most in (("ranges", ranges, MAX_RANGES), ("parallel", parallel, MAX_PARALLEL)):
        _check_number(name, value, 1, most)
    if limit is not None:
        _check_number("limit", limit, 0, 2**63 - 1)
    _check_pause(recheck_after)
    comparison = Comparison(a, b, compared_columns(a.schema, b.schema, columns), limit, bool(checksums))
    # Only the last pass returns rows.
    first_pass = comparison if recheck_after is None else dataclasses.replace(comparison, limit=0)
    first = in_parallel(first_pass.compare, common_ranges(a, b, ranges), parallel, comparison.cancelled)
    suspects = [each for found in first for each in found.suspects]
    last = first
    if suspects and recheck_after is not None:
        time.sleep(recheck_after)
        last = in_parallel(comparison.compare_again, suspects, parallel, comparison.cancelled)
    return TableDiff(
        rows_a=sum(found.a.rows for found in first),
        rows_b=sum(found.b.rows for found in first),
        **_counts(last),
        compared=comparison.columns.attributes,
        columns=comparison.columns.differences,
        differences=first_rows(last, limit),
        ranges=tuple(RangeComparison(found.a, found.b) for found in first) if checksums else (),
    )


def checksum_table(
    table: Table,
    *,
    columns: Iterable[str] | None = None,
    ranges: int = DEFAULT_RANGES,
    parallel: int = DEFAULT_PARALLEL,
) -> TableChecksum:
    """Count the rows of a table and compute their checksum, to compare tables that no process reaches both.

    Tables with the same rows in the same columns have the same checksum, in all stores, see
    `headrace.inspect.comparing.digests`. The arguments are those of `diff_tables`; the key is always part of the
    checksum.

    Raises:
        OptionError: an argument is invalid.
        SchemaError: the table does not have one of ``columns``.

    Examples:
        >>> headrace.checksum_table(orders).rows
        2
    """
    _check_table(table)
    for name, value, most in (("ranges", ranges, MAX_RANGES), ("parallel", parallel, MAX_PARALLEL)):
        _check_number(name, value, 1, most)
    schema = table.schema
    wanted = schema.names if columns is None else chosen([schema], columns)
    names = tuple(dict.fromkeys((*schema.primary_key, *wanted)))
    cancelled = Event()

    def read(keys: KeyRange) -> RangeChecksum:
        rows = CountedRows(table, names, keys, cancelled, checksums=True)
        for _ in rows:
            pass
        return rows.counted

    parts = in_parallel(read, table.splits(ranges), parallel, cancelled)
    total = sum(part.checksum for part in parts) % 2**64
    return TableChecksum(names, sum(part.rows for part in parts), total, tuple(parts))


def in_parallel(run: Callable[[Item], Result], items: Sequence[Item], parallel: int, cancelled: Event) -> list[Result]:
    """Run a function for all items in threads; return the results in order. The first error ends all runs."""
    with (
        ThreadPoolExecutor(max(1, min(parallel, len(items))), "headrace-compare") as pool,
        _cancelling(cancelled, pool),
    ):
        futures = [pool.submit(run, item) for item in items]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            if (error := future.exception()) is not None and not isinstance(error, Cancelled):
                raise error
        return [future.result() for future in futures]


@contextlib.contextmanager
def _cancelling(cancelled: Event, pool: ThreadPoolExecutor) -> Iterator[None]:
    """End all runs if the block fails, also by an interruption from the keyboard."""
    try:
        yield
    except BaseException:
        cancelled.set()
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _counts(found: Sequence[Found]) -> dict[str, int]:
    return {
        "only_in_a": sum(each.only_in_a for each in found),
        "only_in_b": sum(each.only_in_b for each in found),
        "changed": sum(each.changed for each in found),
    }


def _check_table(table: object) -> None:
    if not isinstance(table, Table):
        raise OptionError("a comparison needs tables", received=shown(table), remedy="use store.table(name)")


def _check_number(name: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise OptionError(f"{name} is not valid", received=shown(value), valid=f"a whole number from {least} to {most}")


def _check_pause(value: Any) -> None:
    if value is None:
        return
    # NaN fails the comparison.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MAX_PAUSE:
        raise OptionError(
            "recheck_after is not valid",
            received=shown(value),
            valid=f"None, or a number of seconds from 0 to {MAX_PAUSE}",
        )
