"""``headrace lake``: the maintenance, the history and the checks of lake tables."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, CommandGroup
from headrace.errors import UnsupportedError

if TYPE_CHECKING:
    from headrace.ports import Store
    from headrace_lake.maintenance import Maintenance

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


def _tables(store: Store, names: Sequence[str]) -> list[tuple[str, Maintenance]]:
    """Return lake tables of a store with their maintenance: those with these names, or all."""
    from headrace_lake.maintenance import LakeStore

    if not isinstance(store, LakeStore):
        raise UnsupportedError(
            "this store has no lake tables",
            received=store.url,
            valid="delta:///directory, delta+s3://bucket/prefix, ducklake+postgresql://user@host/database or "
            "iceberg+sqlite:///directory/catalog.db",
        )
    return [(name, store.maintenance(name)) for name in names or store.lake_tables()]


@lake.store_command("compact")
@click.argument("tables", nargs=-1)
@click.option("--megabytes", type=click.IntRange(1, 4096), default=64, show_default=True, help="The size of a file.")
def compact(app: App, tables: Sequence[str], megabytes: int) -> None:
    """Replace small files, and those with deleted rows, by larger ones in key order. All TABLES by default.

    Files of Delta and Iceberg tables whose key ranges overlap are replaced, too. Rows do not change, and streams go on.
    Old files stay until headrace lake vacuum.

    Example: headrace lake compact orders -s delta:///data/lake
    """
    records: list[dict[str, Any]] = []
    with app.store() as store:
        for name, table in _tables(store, tables):
            done = table.compact(megabytes << 20)
            records.append({"table": name, "version": done.version, "files": done.before, "into": done.after})
    app.output.records(records, columns=("table", "version", "files", "into"), nothing="No tables.")


@lake.store_command("vacuum")
@click.argument("tables", nargs=-1)
@click.option("--days", type=click.IntRange(min=1), default=7, show_default=True, help="The least age of a file.")
def vacuum(app: App, tables: Sequence[str], days: int) -> None:
    """Delete the files of versions that were replaced, and of writers that have died. All TABLES by default.

    Readers of older versions of Delta and Iceberg tables then fail, and a write that takes longer than that.

    Example: headrace lake vacuum --days 14 -s delta:///data/lake
    """
    with app.store() as store:
        records = [{"table": name, "files": table.vacuum(days * 86400.0)} for name, table in _tables(store, tables)]
    app.output.records(records, columns=("table", "files"), nothing="No tables.")


@lake.store_command("check")
@click.argument("tables", nargs=-1)
def check(app: App, tables: Sequence[str]) -> None:
    """Compare the files of tables with the log or the catalog, and look for repeated keys. All TABLES by default.

    The exit code is 1 if a table has a problem. headrace store check also checks the home of Delta and Iceberg tables.

    Example: headrace lake check orders -s delta:///data/lake
    """
    from headrace.model.findings import Status

    with app.store() as store, app.output.status("Checking"):
        found = [(name, finding) for name, table in _tables(store, tables) for finding in table.check()]
    records = [{"table": name, "status": each.status.value, "found": each.found} for name, each in found]
    app.output.records(records, columns=("table", "status", "found"), nothing="No tables.")
    if any(each.status is Status.FAIL for _, each in found):
        click.get_current_context().exit(1)


@lake.store_command("history")
@click.argument("table")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="The number of versions.")
def history(app: App, table: str, limit: int) -> None:
    """Show the newest versions of TABLE, with the job and the batch of each.

    Example: headrace lake history orders -s delta:///data/lake
    """
    with app.store() as store:
        ((_, found),) = _tables(store, [table])
        versions = found.history(limit)
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
