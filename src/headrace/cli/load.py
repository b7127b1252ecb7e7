"""``headrace load`` and ``headrace export``: rows of files into tables and queues, and back."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from headrace.cli.app import App, store_option, with_app
from headrace.cli.arguments import TYPES_HELP, column_types, format_option, listed, names_option, null_option
from headrace.errors import HeadraceError, NotFoundError, OptionError, SchemaError
from headrace.model.own_names import of_users
from headrace.options.names import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.cli.file_formats import InputFile
    from headrace.cli.output import ShowProgress
    from headrace.cli.row_files import TextRules
    from headrace.ports import Queue, Store, Table

_FILES_HELP = (
    "Files: CSV, JSON lines, Parquet and Arrow, also compressed (.gz, .bz2, .zst, .lz4). Patterns such as '2026-*.csv' "
    "are expanded, - is standard input. " + TYPES_HELP
)


@click.command(epilog=_FILES_HELP)
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("-t", "--table", metavar="NAME", help="The table; it is created if --key is given.")
@click.option("-q", "--queue", metavar="NAME", help="The queue; it is created if it does not exist.")
@names_option("-k", "--key", "keys", help="The primary key of the table, or the columns that choose a partition.")
@click.option(
    "-c",
    "--column",
    "columns",
    multiple=True,
    metavar="NAME=TYPE",
    help="The type of a column of a new table or queue, instead of the inferred one.",
)
@click.option("-p", "--partitions", type=click.IntRange(min=1), default=1, help="The partitions of a new queue.")
@click.option("--timezone", metavar="ZONE", help="The time zone of timestamps without one, such as Europe/Berlin.")
@null_option
@click.option("--skip", type=click.IntRange(min=0), default=0, metavar="ROWS", help="Leave out these first rows.")
@format_option
@store_option
@with_app
def load(
    app: App,
    files: tuple[str, ...],
    table: str | None,
    queue: str | None,
    keys: tuple[str, ...],
    columns: tuple[str, ...],
    partitions: int,
    timezone: str | None,
    nulls: tuple[str, ...],
    skip: int,
    file_format: str | None,
) -> None:
    """Load rows of files into a table or a queue, and create it if it does not exist.

    A table row replaces the row with the same key, so a load can be repeated. A queue gets all rows, in the order of
    the files. Large files are written in several transactions; an error tells how many rows were written.

    \b
    Example:
      headrace load flights-*.csv.gz --table flights --key id -s shop
      zstdcat clicks.jsonl.zst | headrace load - --queue clicks -s shop
    """
    from headrace.cli.file_formats import format_of, open_input, paths_of
    from headrace.cli.loading import Loading, total_bytes
    from headrace.cli.row_files import TextRules, check_timezone
    from headrace.model.queues.columns import QueueSchema

    if (table is None) == (queue is None):
        raise OptionError("a load has one target", received="both" if table else "neither", valid="--table or --queue")
    check_timezone(timezone)
    name, kind = str(table or queue), "table" if table else "queue"
    rules = TextRules(timezone, nulls)
    paths = paths_of(files)
    # Before a store is created for them.
    total_bytes(paths)
    with app.store(create=True) as store, contextlib.ExitStack() as stack:
        target = _existing(store, table, queue)
        opened = None
        if target is None:
            if table and not keys:
                raise NotFoundError(
                    f"no such table {table!r}",
                    valid=of_users(store.tables()),
                    remedy="give --key with its primary key to create it",
                )
            opened = stack.enter_context(open_input(paths[0]))
            chosen = format_of(paths[0], file_format, beginning=opened.beginning(8))
            given = column_types(columns)
            found = _columns(app, opened, chosen, given, rules)
            rules = replace(rules, inferred=tuple(name for name in found.names if name not in given))
            key = _known(listed(keys, found.names), found.names)
            made = (
                store.create_table(name, found, key)
                if table
                else store.create_queue(name, found, partitions=partitions)
            )
        else:
            made = target
            key = listed(keys, made.schema.names)
            _check_existing(made, key, columns)
        schema = made.schema.written if isinstance(made.schema, QueueSchema) else made.schema
        replaced = made.schema.primary_key if table else ()
        loading = Loading(app.output, f"Loading {name}", paths, schema, file_format, rules, skip, opened, replaced)
        try:
            rows = loading.write(_writer(made, key))
        except BaseException:
            if target is None and not loading.written:
                _drop_empty(store, made)
            raise
    text = f"Loaded {rows} rows into {name}." if target else f"Created {kind} {name}, and loaded {rows} rows."
    facts = {"replaced": loading.keys.repeated} if table else {}
    text += loading.replaced_note()
    app.output.done(text, **{kind: name}, rows=rows, files=len(paths), created=target is None, **facts)


def _existing(store: Store, table: str | None, queue: str | None) -> Table | Queue | None:
    with contextlib.suppress(NotFoundError):
        return store.queue(str(queue)) if table is None else store.table(table)
    return None


def _drop_empty(store: Store, made: Table | Queue) -> None:
    """Remove a table or queue that this load has created, unless others have begun to use it."""
    from headrace.inspect.uses import uses_of_queue, uses_of_table
    from headrace.ports import Table

    # The error of the load must not be hidden by that of a store that has failed.
    with contextlib.suppress(HeadraceError):
        if isinstance(made, Table):
            if not uses_of_table(store, made.name) and not any(batch.num_rows for batch in made.scan([], limit=1)):
                store.drop_table(made.name)
        elif not uses_of_queue(store, made.name) and not any(bounds.upper for bounds in made.bounds().values()):
            store.drop_queue(made.name)


def _columns(app: App, source: InputFile, file_format: str, given: dict[str, str], rules: TextRules) -> pa.Schema:
    """Return the columns of a new table or queue: the inferred ones, with the given types."""
    from headrace.cli.exact_values import NUMBERS
    from headrace.cli.file_columns import infer_columns, spoiled_by_markers
    from headrace.model.tables.schema import RowSchema, parse_columns
    from headrace.model.types import type_name

    found, widened = infer_columns(source, file_format, rules)
    wanted = {column.name: column for column in parse_columns(given)}
    _known(wanted, found.names)
    for name, (text, narrow) in widened.items():
        if name not in wanted:
            remedy = f"; with --column {name}={narrow} it is a {narrow}" if narrow in NUMBERS else ""
            kind = type_name(found.column(name).type)
            app.output.warning(f"column {name} becomes a {kind}: a {narrow} would change {text!r}{remedy}")
    if file_format == "csv":
        for name, marker, kind in spoiled_by_markers(source, found, rules):
            if name not in wanted:
                app.output.warning(
                    f"column {name} becomes a string because of {marker!r}; with --null {marker} it is a {kind}"
                )
    return RowSchema(tuple(wanted.get(column.name, column) for column in found.columns)).arrow


def _known(names: Iterable[str], columns: Sequence[str]) -> list[str]:
    """Return names of columns; raises `SchemaError` for one that the file does not have."""
    for name in names:
        if name not in columns:
            raise SchemaError(
                "the file has no such column",
                received=repr(name),
                valid=columns,
                remedy=did_you_mean(name, columns),
            )
    return list(names)


def _check_existing(target: Table | Queue, key: list[str], columns: tuple[str, ...]) -> None:
    """Check options that describe a new table or queue."""
    if columns:
        raise OptionError(
            f"{target.name} exists already, with its own types",
            received=", ".join(columns),
            remedy="leave out --column",
        )
    from headrace.model.tables.schema import TableSchema

    if isinstance(target.schema, TableSchema):
        target.schema.check_keyed()
    own = target.schema.primary_key
    if key and own and tuple(key) != own:
        raise OptionError(f"table {target.name} has another primary key", received=",".join(key), valid=",".join(own))


def _writer(target: Table | Queue, key: list[str]) -> Callable[[pa.Table], object]:
    """Return a function that writes rows in one transaction."""
    from headrace.ports import Table

    if isinstance(target, Table):
        return target.put
    return functools.partial(target.append, key=key or None)


@click.command(epilog=_FILES_HELP)
@click.argument("name")
@click.argument("file", default="-")
@click.option(
    "-w", "--where", "conditions", multiple=True, metavar="CONDITION", help="Only rows of a table such as 'price > 10'."
)
@names_option("-c", "--columns", help="Only these columns.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="The maximum number of rows.")
@format_option
@store_option
@with_app
def export(
    app: App,
    name: str,
    file: str,
    conditions: tuple[str, ...],
    columns: tuple[str, ...],
    limit: int | None,
    file_format: str | None,
) -> None:
    """Write the rows of a table or a queue to a file, or to standard output as JSON lines.

    The suffix chooses the format and the compression. The file appears when it is complete.

    Example: headrace export orders orders.parquet --where 'price > 10' -s shop
    """
    from headrace.cli.file_formats import STANDARD, format_of, open_output
    from headrace.cli.row_writing import write_rows
    from headrace.inspect.querying.names import Name, find

    chosen = format_of(file, file_format)
    with app.store() as store:
        source = find(store, Name(None, name))
        selected = listed(columns, source.schema.names)
        reader = _reader(source, selected or None, conditions, limit)
        with open_output(file) as output, app.output.progress(f"Exporting {name}", None) as show:
            rows = write_rows(output, file, chosen, reader.schema, _counted(reader, show))
    if file != STANDARD:
        app.output.done(f"Exported {rows} rows of {name} to {file}.", name=name, file=file, rows=rows)


def _reader(
    source: Table | Queue, columns: list[str] | None, conditions: tuple[str, ...], limit: int | None
) -> pa.RecordBatchReader:
    import pyarrow as pa

    from headrace.cli.conditions import parse_condition
    from headrace.cli.row_files import first_rows
    from headrace.inspect.querying.queue_rows import queue_rows
    from headrace.ports import Table

    if isinstance(source, Table):
        return source.scan(columns, [parse_condition(text, source.schema) for text in conditions], limit=limit)
    if conditions:
        raise OptionError("conditions select rows of tables", remedy="use `headrace query` with -o for a queue")
    names = [source.schema.written.column(name).name for name in columns or source.schema.written.names]
    schema = pa.schema([source.schema.arrow.field(name) for name in names])
    batches = (batch.select(names) for batch in first_rows(queue_rows(source), limit))
    return pa.RecordBatchReader.from_batches(schema, batches)


def _counted(batches: Iterable[pa.RecordBatch], show: ShowProgress) -> Iterator[pa.RecordBatch]:
    rows = size = 0
    for batch in batches:
        yield batch
        rows += batch.num_rows
        size += batch.nbytes
        show(rows, size)
