"""``headrace table diff`` and ``headrace table checksum``."""

from __future__ import annotations

import contextlib
from typing import Any

import click

import headrace
from headrace.cli.app import App, store_option, with_app
from headrace.cli.arguments import listed, names_option
from headrace.inspect.comparing.defaults import (
    DEFAULT_LIMIT,
    DEFAULT_PARALLEL,
    DEFAULT_RANGES,
    MAX_PARALLEL,
    MAX_PAUSE,
    MAX_RANGES,
)

# The codes of the program `diff`, so that scripts distinguish a difference from a failure.
_EXIT_DIFFERENT, _EXIT_FAILED = 1, 2


_columns_option = names_option("-c", "--columns", help="Only the key and these columns.")
_ranges_option = click.option(
    "--ranges",
    type=click.IntRange(1, MAX_RANGES),
    default=DEFAULT_RANGES,
    show_default=True,
    help="The number of key ranges.",
)
_parallel_option = click.option(
    "--parallel",
    type=click.IntRange(1, MAX_PARALLEL),
    default=DEFAULT_PARALLEL,
    show_default=True,
    help="The number of key ranges that are read at a time.",
)


@click.command("diff")
@store_option
@with_app
@click.argument("a")
@click.argument("b")
@click.option("--other-store", metavar="STORE", help="The store of B; by default that of A.")
@_columns_option
@_ranges_option
@_parallel_option
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    default=DEFAULT_LIMIT,
    show_default=True,
    help="The number of differing rows to show.",
)
@click.option("--checksums", is_flag=True, help="Show the number of rows and the checksum of each key range.")
@click.option(
    "--recheck-after",
    type=click.FloatRange(0, MAX_PAUSE),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="Read differing rows again after this time, and report those that still differ.",
)
def diff(app: App, a: str, b: str, other_store: str | None, columns: tuple[str, ...], **options: Any) -> int:
    """Find the rows that differ in two tables, which may be in two stores.

    The exit code is 0 if the tables are equal, 1 if they differ, and 2 after an error.

    Example: headrace table diff orders orders_copy -s shop --other-store yt+https://cluster.example.com//home/shop
    """
    from headrace.cli.comparison_documents import diff_document, diff_tables_for_people

    app.error_code = _EXIT_FAILED
    with app.store() as store, contextlib.ExitStack() as stack:
        other = store if other_store is None else stack.enter_context(headrace.open(other_store))
        tables = store.table(a), other.table(b)
        with app.output.status(f"Comparing {a} with {b}"):
            found = headrace.diff_tables(*tables, columns=listed(columns, tables[0].schema.names) or None, **options)
        schemas = tables[0].schema, tables[1].schema
    if app.json:
        app.output.record(diff_document(found, (a, b), schemas))
    else:
        title = "The tables are equal." if found.equal else "The tables differ."
        app.output.record(diff_tables_for_people(found, (a, b), schemas), title=title)
        if hidden := found.differing_rows - len(found.differences):
            app.output.note(f"{hidden} more rows differ. --limit shows more of them.")
    return 0 if found.equal else _EXIT_DIFFERENT


@click.command("checksum")
@store_option
@with_app
@click.argument("name")
@_columns_option
@_ranges_option
@_parallel_option
def checksum(app: App, name: str, columns: tuple[str, ...], **options: Any) -> None:
    """Count the rows of a table and compute their checksum, also by key range.

    Tables with the same rows have the same checksum in all stores. So you can also compare two tables if no machine
    reaches both.

    Example: headrace table checksum orders --columns price,status -s shop
    """
    from headrace.cli.comparison_documents import checksum_document

    with app.store() as store, app.output.status(f"Reading {name}"):
        table = store.table(name)
        found = headrace.checksum_table(table, columns=listed(columns, table.schema.names) or None, **options)
    app.output.record(checksum_document(found, name))
