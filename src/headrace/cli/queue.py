"""``headrace queue``: queues and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, CommandGroup
from headrace.cli.arguments import (
    TYPES_HELP,
    column_types,
    format_option,
    listed,
    names_option,
    null_option,
    row_numbers,
)
from headrace.cli.drop import check_stored, drop_options
from headrace.errors import OptionError
from headrace.inspect.uses import uses_of_queue

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.ports import Queue, QueueDescription, Store

_PAGE_ROWS = 4096
_WAIT_SECONDS = 1.0


@click.group(cls=CommandGroup, short_help="Create, show, fill and trim queues.", no_args_is_help=False)
def queue() -> None:
    """Create, show, fill and trim queues: append-only tables whose rows have addresses.

    \b
    Example:
      headrace queue create clicks -c user=string -c ms=long -p 3 -s shop
      echo '{"user": "u1", "ms": 12}' | headrace queue append clicks -s shop
      headrace queue read clicks -s shop
    """


@queue.store_command("list")
def list_queues(app: App) -> None:
    """List the queues of the store.

    Example: headrace queue list -s shop
    """
    with app.store() as store:
        records = [queue_summary(store.queue(name).describe()) for name in store.queues()]
    app.output.records(
        records,
        columns=("name", "columns", "partitions", "rows", "bytes", "consumers"),
        nothing="The store has no queues.",
    )


@queue.store_command("create", epilog=TYPES_HELP)
@click.argument("name")
@click.option("-c", "--column", "columns", multiple=True, required=True, metavar="NAME=TYPE", help="A column.")
@click.option(
    "-p", "--partitions", type=click.IntRange(min=1), default=1, show_default=True, help="The number of partitions."
)
@click.option("--auto-trim", is_flag=True, help="Remove rows that all vital consumers have read.")
@click.option(
    "--retained-rows", type=click.IntRange(min=0), metavar="ROWS", help="Keep this number of rows of each partition."
)
@click.option("--retained-seconds", type=float, metavar="SECONDS", help="Keep rows for this time.")
@click.option("--if-not-exists", is_flag=True, help="Keep an existing queue with the same columns.")
def create_queue(
    app: App, name: str, columns: tuple[str, ...], partitions: int, if_not_exists: bool, **options: Any
) -> None:
    """Create a queue, and the store if it does not exist.

    The store fills the columns $timestamp (timestamp) and $cumulative_data_weight (long).

    Example: headrace queue create clicks -c user=string -c ms=long -p 3 --auto-trim -s shop
    """
    from headrace.formats.location import find_queue

    given = {option: value for option, value in options.items() if value is not None}
    with app.store(create=True) as store:
        new = not if_not_exists or find_queue(store, name) is None
        store.create_queue(name, column_types(columns), partitions=partitions, exist_ok=if_not_exists, **given)
    app.output.created("queue", name, new=new)


@queue.store_command("describe")
@click.argument("name")
def describe_queue(app: App, name: str) -> None:
    """Show the columns, options, partitions and consumers of a queue.

    Example: headrace queue describe clicks -s shop
    """
    _describe(app, name)


@queue.store_command("show", hidden=True)
@click.argument("name")
def show_queue(app: App, name: str) -> None:
    """Show a queue. Deprecated: use `headrace queue describe`."""
    app.output.warning("`headrace queue show` is deprecated; use `headrace queue describe`")
    _describe(app, name)


@queue.store_command("append")
@click.argument("name")
@click.argument("file", default="-")
@format_option
@click.option("-p", "--partition", type=click.IntRange(min=0), help="The partition; by default the store chooses.")
@null_option
@names_option("-k", "--key", "keys", help="Rows with the same values in these columns go to the same partition.")
def append(
    app: App,
    name: str,
    file: str,
    file_format: str | None,
    partition: int | None,
    nulls: tuple[str, ...],
    keys: tuple[str, ...],
) -> None:
    """Append rows from a file, or JSON lines from standard input.

    Large files are appended in several transactions.

    Example: headrace queue append clicks clicks.csv --key user -s shop
    """
    from headrace.cli.loading import Loading
    from headrace.cli.row_files import TextRules

    ends: dict[int, int] = {}
    with app.store() as store:
        target = store.queue(name)
        key = listed(keys, target.schema.names)

        def write(portion: pa.Table) -> None:
            for appended in target.append(portion, partition=partition, key=key or None):
                ends[appended.partition] = appended.next

        rules, columns = TextRules(nulls=nulls), target.schema.written
        loading = Loading(app.output, f"Appending to {name}", [file], columns, file_format, rules)
        rows = loading.write(write)
    app.output.done(f"Appended {rows} rows to {name}.", queue=name, rows=rows, ends=ends)


@queue.store_command("read")
@click.argument("name")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option("--from", "first_row", type=click.IntRange(min=0), metavar="ROW", help="Begin with this row index.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="The maximum number of rows.")
@click.option("--follow", is_flag=True, help="After the existing rows, wait for more until interrupted.")
def read(app: App, name: str, partition: int | None, first_row: int | None, limit: int | None, follow: bool) -> None:
    """Show the rows of a queue with their addresses, partition by partition; with --json, one line for each row.

    Example: headrace queue read clicks --partition 0 --from 1000 -n 10 -s shop
    """
    from headrace.cli.row_files import first_rows

    if first_row is not None and partition is None:
        raise OptionError("--from needs a partition", remedy="give --partition, too")
    with app.store() as store:
        source = store.queue(name)
        begin: dict[int, int] = {}
        if partition is not None:
            bounds = source.bounds()
            if partition not in bounds:
                raise OptionError(f"queue {name} has no such partition", received=partition, valid=bounds)
            row = bounds[partition].lower if first_row is None else first_row
            if row < bounds[partition].lower:
                # Reports the trimmed rows.
                source.read(partition, row, 1)
            begin[partition] = row
        page_rows = _PAGE_ROWS if limit is None else min(limit, _PAGE_ROWS)
        rows = _rows(store if follow else None, source, begin, page_rows)
        if not app.output.rows(first_rows(rows, limit)):
            app.output.note("No rows.")


def _rows(waiting: Store | None, source: Queue, begin: Mapping[int, int], page_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a queue, partition by partition.

    Args:
        waiting: the store, to wait for more rows after the existing ones; None ends after these.
        begin: the first row of each partition; empty for all rows of all partitions, also of later partitions.
    """
    from headrace.inspect.querying.queue_rows import queue_rows
    from headrace.model.queues.columns import ROW_INDEX, TABLET_INDEX
    from headrace.model.tables.conditions import Predicate

    rows = dict(begin)
    while True:
        found_any = False
        for partition, bounds in source.bounds().items():
            if begin and partition not in begin:
                continue
            row = rows.setdefault(partition, bounds.lower)
            if row < bounds.lower:
                # Reports the rows that were trimmed before they were read.
                source.read(partition, row, 1)
            where = [Predicate(TABLET_INDEX, "=", partition), Predicate(ROW_INDEX, ">=", row)]
            for page in queue_rows(source, where, page_rows=page_rows):
                yield page
                rows[partition] += page.num_rows
                found_any = True
        if waiting is None:
            return
        if not found_any:
            waiting.wait_for_change(_WAIT_SECONDS)


@queue.store_command("trim")
@click.argument("name")
@click.option("--before", multiple=True, metavar="PARTITION=ROW", help="Remove the rows below this row index.")
def trim(app: App, name: str, before: tuple[str, ...]) -> None:
    """Remove old rows now: the rows that all vital consumers have read, or the rows below given row indexes.

    Example: headrace queue trim clicks --before 0=1000 --before 1=950 -s shop
    """
    first_rows = row_numbers(before, "--before")
    with app.store() as store:
        target = store.queue(name)
        if first_rows:
            rows = sum(target.trim(partition, row) for partition, row in first_rows.items())
        else:
            rows = target.trim()
    app.output.done(f"Removed {rows} rows from {name}.", queue=name, rows=rows)


@queue.store_command("add-partitions")
@click.argument("name")
@click.argument("count", type=click.IntRange(min=1))
def add_partitions(app: App, name: str, count: int) -> None:
    """Add empty partitions with the next free numbers.

    Example: headrace queue add-partitions clicks 2 -s shop
    """
    with app.store() as store:
        partitions = store.queue(name).add_partitions(count)
    app.output.done(f"Queue {name} now has {partitions} partitions.", queue=name, partitions=partitions)


@queue.store_command("drop")
@click.argument("name")
@click.option("--if-exists", is_flag=True, help="Do nothing if there is no such queue.")
@drop_options
def drop_queue(app: App, name: str, if_exists: bool, force: bool, workspace: Path) -> None:
    """Remove a queue with its rows, registrations, offsets and producer sessions.

    Example: headrace queue drop clicks -s shop
    """
    from headrace.formats.location import find_queue

    with app.store() as store:
        if not force:
            check_stored("queue", name, workspace, store, uses_of_queue)
        found = not if_exists or find_queue(store, name) is not None
        store.drop_queue(name, missing_ok=if_exists)
    app.output.dropped("queue", name, found=found)


def _describe(app: App, name: str) -> None:
    with app.store() as store:
        description = store.queue(name).describe()
    app.output.record(queue_details(description), title=name if not app.json else None)


def queue_summary(description: QueueDescription) -> dict[str, Any]:
    return {
        "name": description.name,
        "columns": list(description.schema.names),
        "partitions": len(description.partitions),
        "rows": sum(partition.bounds.rows for partition in description.partitions),
        "bytes": sum(partition.bounds.bytes for partition in description.partitions),
        "consumers": [registration.consumer for registration in description.registrations],
    }


def queue_details(description: QueueDescription) -> dict[str, Any]:
    from headrace.model.types import type_name
    from headrace.support.instants import instant

    return {
        **queue_summary(description),
        **vars(description.options),
        "columns": [
            {"column": column.name, "type": type_name(column.type), "nullable": column.nullable}
            for column in description.schema.columns
        ],
        "partitions": [
            {
                "partition": partition.number,
                "lower": partition.bounds.lower,
                "upper": partition.bounds.upper,
                "rows": partition.bounds.rows,
                "bytes": partition.bounds.bytes,
                "weight": partition.weight,
                "last_commit": instant(partition.last_commit),
            }
            for partition in description.partitions
        ],
        "consumers": [
            {"consumer": registration.consumer, "vital": registration.vital}
            for registration in description.registrations
        ],
    }
