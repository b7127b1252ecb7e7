"""``headrace query``: read-only SQL over tables and queues, without Spark."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from headrace.cli.app import App, store_option, with_app
from headrace.cli.arguments import FORMAT_NAMES
from headrace.support.extras import QUERIES, check_extras

if TYPE_CHECKING:
    import pyarrow as pa


@click.command()
@click.argument("sql")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="The maximum number of rows.")
@click.option("--timeout", type=float, metavar="SECONDS", help="End the query after this time.")
@click.option(
    "--memory",
    type=click.IntRange(min=16),
    default=512,
    show_default=True,
    metavar="MB",
    help="The memory for joins, groups and sorts.",
)
@click.option("-o", "--output", "file", metavar="FILE", help="Write the rows to this file.")
@click.option(
    "-f",
    "--format",
    "file_format",
    type=click.Choice(("table", *FORMAT_NAMES)),
    help="The form of the rows; by default a table, or by the file's suffix.",
)
@store_option
@with_app
def query(
    app: App,
    sql: str,
    limit: int | None,
    timeout: float | None,
    memory: int,
    file: str | None,
    file_format: str | None,
) -> None:
    """Run one SELECT over the tables and queues of the store, without Spark. It changes nothing.

    The dialect is DuckDB's. A queue also has the columns "$tablet_index" and "$row_index". SQL - is read from standard
    input.

    \b
    Example:
      headrace query 'SELECT city, count(*), sum(price) FROM orders GROUP BY ALL' -s shop
      headrace query "SELECT * FROM orders WHERE id = 'o1'" --format csv -s shop
    """
    from headrace.inspect.querying.engine import open_query
    from headrace.inspect.querying.process import QueryProcesses

    check_extras("this command", QUERIES, *app.store_extras())
    text = sys.stdin.read() if sql == "-" else sql
    with contextlib.closing(QueryProcesses()) as processes:
        # It starts while the store is opened.
        processes.prepare()
        with (
            app.store() as store,
            open_query(
                store,
                text,
                timeout_seconds=timeout,
                memory_bytes=memory << 20,
                expected_rows=limit,
                processes=processes,
            ) as reader,
        ):
            _show(app, reader, limit, file, file_format)


_ROWS_PER_BATCH = 1000


def _show(app: App, reader: pa.RecordBatchReader, limit: int | None, file: str | None, file_format: str | None) -> None:
    from headrace.cli.row_files import first_rows

    batches = first_rows(reader, limit)
    if file is not None or file_format not in (None, "table"):
        _write(app, file or "-", file_format, reader.schema, batches)
    elif not app.output.rows(_larger(batches)):
        app.output.note("No rows.")


def _larger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return batches as a few larger ones: DuckDB can answer with one row in each, which would be tables of one row."""
    from headrace.rows.rebatching import rebatched

    for table in rebatched(batches, _ROWS_PER_BATCH):
        yield from table.combine_chunks().to_batches()


def _write(app: App, file: str, file_format: str | None, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
    from headrace.cli.file_formats import STANDARD, format_of, open_output
    from headrace.cli.row_writing import write_rows

    chosen = format_of(file, None if file_format == "table" else file_format)
    app.output.stop_waiting()
    with open_output(file) as output:
        rows = write_rows(output, file, chosen, schema, batches)
    if file != STANDARD:
        app.output.done(f"Wrote {rows} rows to {file}.", file=file, rows=rows)
