"""``headrace lake``: the maintenance, the history and the checks of lake tables."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, CommandGroup
from headrace.errors import HeadraceError, SchemaError, UnsupportedError

if TYPE_CHECKING:
    from headrace.ports import Store
    from headrace_lake.maintenance import LakeStore, Maintenance

_HISTORY = ("version", "time", "operation", "job", "batch")


@click.group(cls=CommandGroup, short_help="Compact, clean, check and show lake tables.")
def lake() -> None:
    """Compact, clean and check tables of Delta Lake, DuckLake and Iceberg, and show their versions.

    \b
    Example:
      headrace lake compact orders -s delta:///data/lake
      headrace lake vacuum -s delta:///data/lake
      headrace lake history orders -s delta:///data/lake
      headrace lake check -s delta:///data/lake
    """


def _lake(store: Store) -> LakeStore:
    from headrace_lake.maintenance import LakeStore

    if not isinstance(store, LakeStore):
        raise UnsupportedError(
            "this store has no lake tables",
            received=store.url,
            valid="delta:///directory, delta+s3://bucket/prefix, ducklake+postgresql://user@host/database, "
            "iceberg+sqlite:///directory/catalog.db or iceberg+postgresql://user@host/database",
        )
    return store


def _run(
    app: App, names: Sequence[str], run: Callable[[Maintenance], Iterable[Mapping[str, Any]]]
) -> tuple[list[dict[str, Any]], bool]:
    """Run a command on tables with some names, or on all, and return the records of each table.

    A problem with one of several tables is a warning, and does not keep the others from the command.

    Returns:
        The records; and whether the command has failed: in a command for all tables not by one that headrace cannot
        maintain.
    """
    records: list[dict[str, Any]] = []
    failed = False
    with app.store() as store:
        lake = _lake(store)
        # An unknown name is an error before anything is done.
        named = {name: lake.maintenance(name) for name in names}
        for name in named or lake.lake_tables():
            try:
                table = named.get(name) or lake.maintenance(name)
                records += [{"table": name, **each} for each in run(table)]
            except HeadraceError as error:
                if len(named) == 1:
                    raise
                app.output.warning(f"table {name}: {error}")
                failed = failed or name in named or not isinstance(error, UnsupportedError | SchemaError)
    return records, failed


def _show(app: App, records: Sequence[dict[str, Any]], columns: Sequence[str], *, failed: bool) -> None:
    app.output.records(records, columns=columns, nothing="No tables.")
    if failed:
        click.get_current_context().exit(1)


@lake.store_command("compact")
@click.argument("tables", nargs=-1)
@click.option("--megabytes", type=click.IntRange(1, 4096), default=64, show_default=True, help="The size of a file.")
def compact(app: App, tables: Sequence[str], megabytes: int) -> None:
    """Replace small files, and those with deleted rows, by larger ones in key order. All TABLES by default.

    Files of Delta and Iceberg tables whose key ranges overlap are replaced, too. Rows do not change, and streams go on.
    Old files stay until headrace lake vacuum.

    Example: headrace lake compact orders -s delta:///data/lake
    """

    def run(table: Maintenance) -> Iterable[Mapping[str, Any]]:
        done = table.compact(megabytes << 20)
        yield {"version": done.version, "files": done.before, "into": done.after}

    records, failed = _run(app, tables, run)
    _show(app, records, ("table", "version", "files", "into"), failed=failed)


@lake.store_command("vacuum")
@click.argument("tables", nargs=-1)
@click.option("--days", type=click.IntRange(1, 36_500), default=7, show_default=True, help="The least age of a file.")
def vacuum(app: App, tables: Sequence[str], days: int) -> None:
    """Delete the files of versions that were replaced, and of writers that have died. All TABLES by default.

    Readers of older versions of Delta and Iceberg tables then fail, and a write that takes longer than that.

    Example: headrace lake vacuum --days 14 -s delta:///data/lake
    """
    records, failed = _run(app, tables, lambda table: [{"files": table.vacuum(days * 86400.0)}])
    _show(app, records, ("table", "files"), failed=failed)


@lake.store_command("check")
@click.argument("tables", nargs=-1)
def check(app: App, tables: Sequence[str]) -> None:
    """Compare the files of tables with the log or the catalog, and look for repeated keys. All TABLES by default.

    The exit code is 1 if a table has a problem. headrace store check also checks the home of Delta and Iceberg tables.

    Example: headrace lake check orders -s delta:///data/lake
    """
    from headrace.model.findings import Status

    def run(table: Maintenance) -> Iterable[Mapping[str, Any]]:
        return ({"status": each.status.value, "found": each.found} for each in table.check())

    with app.output.status("Checking"):
        records, failed = _run(app, tables, run)
    failed = failed or any(each["status"] == Status.FAIL.value for each in records)
    _show(app, records, ("table", "status", "found"), failed=failed)


@lake.store_command("history")
@click.argument("table")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="The number of versions.")
def history(app: App, table: str, limit: int) -> None:
    """Show the newest versions of TABLE, with the job and the batch of each.

    Example: headrace lake history orders -s delta:///data/lake
    """
    with app.store() as store:
        versions = _lake(store).maintenance(table).history(limit)
    records = [
        {
            "version": each.version,
            "time": datetime.datetime.fromtimestamp(each.time, datetime.UTC).isoformat(),
            "operation": each.operation,
            "job": each.job,
            "batch": each.batch,
        }
        for each in versions
    ]
    app.output.records(records, columns=_HISTORY, nothing="No versions.")
