"""``headrace table``: tables and their rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, CommandGroup, parse_pairs
from headrace.cli.arguments import (
    TYPES_HELP,
    column_types,
    format_option,
    listed,
    names_option,
    null_option,
    row_numbers,
)
from headrace.cli.comparison import checksum, diff
from headrace.cli.drop import check_stored, drop_options
from headrace.errors import OptionError
from headrace.inspect.uses import uses_of_table
from headrace.model.tables.options import PARTITION_BY

if TYPE_CHECKING:
    from headrace.ports import Table, TableDescription, TrimReport


@click.group(cls=CommandGroup, no_args_is_help=False)
def table() -> None:
    """Create, show and change tables and their rows.

    \b
    Example:
      headrace table create orders -c id=string -c price=double -k id -s shop
      headrace table put orders orders.csv -s shop
      headrace table scan orders --where 'price > 10' -s shop
    """


table.add_command(diff)
table.add_command(checksum)


@table.store_command("list")
@click.option("--all", "internal", is_flag=True, help="Also the tables with the state of queries that follow tables.")
def list_tables(app: App, internal: bool) -> None:
    """List the tables of the store.

    Example: headrace table list -s shop
    """
    from headrace.model.own_names import of_users

    with app.store() as store:
        names = store.tables() if internal else of_users(store.tables())
        records = [table_summary(name, store.table(name).describe()) for name in names]
    app.output.records(
        records, columns=("name", "columns", "primary_key", "rows", "partitions"), nothing="The store has no tables."
    )


@table.store_command("create", epilog=TYPES_HELP)
@click.argument("name")
@click.option("-c", "--column", "columns", multiple=True, required=True, metavar="NAME=TYPE", help="A column.")
@names_option("-k", "--key", "keys", required=True, help="The columns of the primary key, in key order.")
@click.option("--pre-images", is_flag=True, help="Keep the row before each change in the change log.")
@click.option("--retention", "retention_seconds", type=float, metavar="SECONDS", help="Keep changes for this time.")
@click.option("--retention-bytes", type=int, metavar="BYTES", help="Keep this much of each partition's change log.")
@names_option("--partition-by", help="The columns by which a lake divides the files of the table.")
@click.option("--if-not-exists", is_flag=True, help="Keep an existing table with the same columns.")
def create_table(
    app: App,
    name: str,
    columns: tuple[str, ...],
    keys: tuple[str, ...],
    partition_by: tuple[str, ...],
    if_not_exists: bool,
    **options: Any,
) -> None:
    """Create a table, and the store if it does not exist.

    Example: headrace table create orders -c id=string -c price=double -k id -s shop
    """
    from headrace.formats.location import find_table

    given = {option: value for option, value in options.items() if value is not None}
    with app.store(create=True) as store:
        new = not if_not_exists or find_table(store, name) is None
        types = column_types(columns)
        if partition_by:
            given[PARTITION_BY] = listed(partition_by, types)
        store.create_table(name, types, listed(keys, types), exist_ok=if_not_exists, **given)
    app.output.created("table", name, new=new)


@table.store_command("describe")
@click.argument("name")
def describe_table(app: App, name: str) -> None:
    """Show the columns, options and partitions of a table.

    Example: headrace table describe orders -s shop
    """
    with app.store() as store:
        description = store.table(name).describe()
    app.output.record(table_details(description), title=name if not app.json else None)


@table.store_command("head")
@click.argument("name")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=10, show_default=True, help="The number of rows.")
def head(app: App, name: str, limit: int) -> None:
    """Show the first rows of a table, in key order.

    Example: headrace table head orders -n 3 -s shop
    """
    _show_rows(app, name, (), (), limit)


@table.store_command("scan")
@click.argument("name")
@click.option(
    "-w",
    "--where",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Such as 'price > 10'; rows must meet all conditions.",
)
@names_option("-c", "--columns", help="Only these columns.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="The maximum number of rows.")
def scan(app: App, name: str, conditions: tuple[str, ...], columns: tuple[str, ...], limit: int | None) -> None:
    """Show the rows of a table, in key order; with --json, one line for each row.

    Example: headrace table scan orders --where 'price > 10' --columns id,price -s shop
    """
    _show_rows(app, name, conditions, columns, limit)


@table.store_command("put")
@click.argument("name")
@click.argument("file", default="-")
@format_option
@null_option
def put(app: App, name: str, file: str, file_format: str | None, nulls: tuple[str, ...]) -> None:
    """Write rows from a file, or JSON lines from standard input. They replace rows with the same keys.

    Example: headrace table put orders orders.csv -s shop
    """
    from headrace.cli.loading import Loading
    from headrace.cli.row_files import TextRules

    with app.store() as store:
        target = store.table(name)
        rules, key = TextRules(nulls=nulls), target.schema.primary_key
        loading = Loading(app.output, f"Writing to {name}", [file], target.schema, file_format, rules, key=key)
        rows = loading.write(target.put)
    text = f"Wrote {rows} rows to {name}.{loading.replaced_note()}"
    app.output.done(text, table=name, rows=rows, replaced=loading.keys.repeated)


@table.store_command("update")
@click.argument("name")
@click.argument("file", required=False)
@format_option
@null_option
@click.option("-k", "--key", "keys", multiple=True, metavar="NAME=VALUE", help="A key column of the row to update.")
@click.option("--set", "values", multiple=True, metavar="NAME=VALUE", help="The new value of a column of this row.")
@names_option("--set-null", "set_null", help="Columns of this row that become null.")
@click.option("--ignore-nulls", is_flag=True, help="A null in the file, or a missing value, changes nothing.")
def update(
    app: App,
    name: str,
    file: str | None,
    file_format: str | None,
    nulls: tuple[str, ...],
    keys: tuple[str, ...],
    values: tuple[str, ...],
    set_null: tuple[str, ...],
    ignore_nulls: bool,
) -> None:
    """Set columns of one row (--key, --set), or of the rows in a file (- is standard input).

    A file has the key columns and the columns to set; other columns keep their values. Rows that do not exist are
    inserted.

    Example: headrace table update orders --key id=o1 --set price=12.5 -s shop
    """
    from headrace.cli.conditions import parse_key, parse_values
    from headrace.cli.loading import Loading
    from headrace.cli.row_files import TextRules

    of_row = bool(keys or values or set_null)
    if of_row == bool(file) or (of_row and not (keys and (values or set_null))):
        raise OptionError(
            "update takes either a file, or the key and the columns of one row",
            remedy="give a file, or --key NAME=VALUE and --set NAME=VALUE",
        )
    if of_row and ignore_nulls:
        raise OptionError("--ignore-nulls is for the rows of a file", remedy="leave out --set-null")
    with app.store() as store:
        target = store.table(name)
        if file:
            rules = TextRules(nulls=nulls)
            loading = Loading(app.output, f"Updating {name}", [file], target.schema, file_format, rules)
            rows = loading.write(lambda portion: target.update(portion, keep_nulls=not ignore_nulls))
        else:
            key = parse_key(parse_pairs(keys, "--key"), target.schema)
            changed = parse_values(parse_pairs(values, "--set"), listed(set_null, target.schema.names), target.schema)
            existed = _exists(target, key)
            target.update([key | changed])
            if not existed:
                app.output.done(f"Inserted a row into {name}: no row had this key.", table=name, rows=1, inserted=1)
                return
            rows = 1
    app.output.done(f"Updated {rows} rows of {name}.", table=name, rows=rows)


@table.store_command("delete")
@click.argument("name")
@click.argument("file", required=False)
@format_option
@click.option("-k", "--key", "keys", multiple=True, metavar="NAME=VALUE", help="A key column of the row to delete.")
def delete(app: App, name: str, file: str | None, file_format: str | None, keys: tuple[str, ...]) -> None:
    """Delete the row of one key (--key), or the rows of all keys in a file (- is standard input).

    Example: headrace table delete orders --key id=o1 -s shop
    """
    from headrace.cli.conditions import parse_key
    from headrace.cli.row_files import read_rows

    if bool(keys) == bool(file):
        raise OptionError("delete takes either a key or a file", remedy="give --key NAME=VALUE, or a file")
    given = 0
    with app.store() as store, app.output.status(f"Deleting from {name}"):
        target = store.table(name)
        if file:
            for batch in read_rows(file, file_format, target.schema):
                target.delete(batch.select(list(target.schema.primary_key)))
                given += batch.num_rows
        else:
            key = parse_key(parse_pairs(keys, "--key"), target.schema)
            existed = _exists(target, key)
            target.delete([key])
            if not existed:
                app.output.done(f"Nothing was deleted: no row of {name} has this key.", table=name, keys=1, missing=1)
                return
            given = 1
    app.output.done(f"Deleted the rows of {given} keys from {name}.", table=name, keys=given)


def _exists(table: Table, key: dict[str, Any]) -> bool:
    """Return whether a row has a key. A key that is not complete is an error of the write that follows."""
    return len(key) < len(table.schema.primary_key) or table.get(key) is not None


@table.store_command("split")
@click.argument("name")
@click.option("-p", "--partition", type=int, help="The partition; by default the largest one.")
@click.option("-k", "--at", "keys", multiple=True, metavar="NAME=VALUE", help="A key; by default the middle.")
def split(app: App, name: str, partition: int | None, keys: tuple[str, ...]) -> None:
    """Split a partition in two.

    Example: headrace table split orders --at id=o500 -s shop
    """
    from headrace.cli.conditions import parse_key

    with app.store() as store:
        target = store.table(name)
        at = parse_key(parse_pairs(keys, "--at"), target.schema) if keys else None
        left, right = target.split(partition, at)
    app.output.done(f"Split a partition of {name} into {left} and {right}.", table=name, partitions=[left, right])


@table.store_command("merge")
@click.argument("name")
@click.argument("left", type=int)
@click.argument("right", type=int)
def merge(app: App, name: str, left: int, right: int) -> None:
    """Merge two neighbouring partitions.

    Example: headrace table merge orders 1 2 -s shop
    """
    with app.store() as store:
        merged = store.table(name).merge(left, right)
    app.output.done(f"Merged partitions {left} and {right} of {name} into {merged}.", table=name, partition=merged)


@table.store_command("add-column")
@click.argument("name")
@click.argument("columns", nargs=-1, required=True, metavar="NAME=TYPE…")
def add_column(app: App, name: str, columns: tuple[str, ...]) -> None:
    """Add columns, which are null in existing rows.

    Example: headrace table add-column orders city=string -s shop
    """
    types = column_types(columns)
    with app.store() as store:
        store.table(name).add_columns(types)
    app.output.done(f"Added {', '.join(types)} to {name}.", table=name, columns=types)


@table.store_command("alter")
@click.argument("name")
@click.option("--drop", multiple=True, metavar="COLUMN", help="Remove a column with its values.")
@click.option("--rename", multiple=True, metavar="COLUMN=NAME", help="Give a column another name.")
@click.option(
    "--widen", multiple=True, metavar="COLUMN=TYPE", help="Give a column a wider type, such as long after int."
)
@click.option("--nullable", multiple=True, metavar="COLUMN", help="Let a column be null.")
@click.option("--add", multiple=True, metavar="COLUMN=TYPE", help="Add a column, which is null in existing rows.")
def alter(
    app: App,
    name: str,
    drop: tuple[str, ...],
    rename: tuple[str, ...],
    widen: tuple[str, ...],
    nullable: tuple[str, ...],
    add: tuple[str, ...],
) -> None:
    """Change columns: all of the changes or none.

    Columns are dropped, then renamed, and the other options take the new names. Tunnels have earlier changes in the new
    columns, too.

    Example: headrace table alter orders --rename note=remark --widen amount=long -s shop
    """
    from headrace.model.tables.alterations import Alteration
    from headrace.model.tables.schema import parse_columns
    from headrace.model.types import type_name

    widened = {column.name: column.type for column in parse_columns(column_types(widen))} if widen else {}
    alteration = Alteration(
        dropped=drop,
        renamed=parse_pairs(rename, "--rename"),
        widened=widened,
        relaxed=nullable,
        added=parse_columns(column_types(add)) if add else (),
    )
    if not alteration:
        raise OptionError("no change of a column", valid="--drop, --rename, --widen, --nullable or --add")
    with app.store() as store:
        store.table(name).alter(alteration)
        columns = store.table(name).schema.columns
    app.output.done(
        f"Changed the columns of {name}.", table=name, columns={each.name: type_name(each.type) for each in columns}
    )


@table.store_command("retry-rows")
@click.argument("name")
def retry_rows(app: App, name: str) -> None:
    """Write the rows again that a table has refused (option badRows = 'table').

    Rows that the table takes now leave the table of bad rows, in the same transaction. The others stay there with their
    error. The stream or mirror that fills the table can run meanwhile.

    Example: headrace table retry-rows copy -s shop
    """
    with app.store() as store:
        done = store.retry_bad_rows(name)
    app.output.done(f"Table {name}: {done}.", table=name, **vars(done))


@table.store_command("set")
@click.argument("name")
@click.argument("options", nargs=-1, required=True, metavar="OPTION=VALUE…")
def set_options(app: App, name: str, options: tuple[str, ...]) -> None:
    """Change the options of a table.

    Options: pre_images, retention_seconds, retention_bytes, retention_ignores_tunnels; deletion_vectors of a Delta
    table. The value none removes a limit. With pre_images=true, each later update and delete has its old row.

    Example: headrace table set orders pre_images=true retention_seconds=86400 -s shop
    """
    changes = {option: _option_value(text) for option, text in parse_pairs(options, "OPTION=VALUE").items()}
    with app.store() as store:
        changed = store.table(name).set_options(**changes)
    app.output.record({"table": name, **changes, **vars(changed)})


@table.store_command("trim")
@click.argument("name")
@click.option(
    "--before", multiple=True, metavar="PARTITION=ROW", help="Remove changes below this row index of the log."
)
@click.option("--cut-tunnels", is_flag=True, help="Also remove changes that a tunnel has not read.")
def trim(app: App, name: str, before: tuple[str, ...], cut_tunnels: bool) -> None:
    """Remove old changes now: by the table's retention, or below given row indexes of the change log.

    Example: headrace table trim orders --before 1=5000 -s shop
    """
    first_rows = row_numbers(before, "--before")
    with app.store() as store:
        report = store.table(name).trim(before=first_rows or None, cut_tunnels=cut_tunnels)
    app.output.done(_trim_text(name, report), table=name, **vars(report))


@table.store_command("drop")
@click.argument("name")
@click.option("--if-exists", is_flag=True, help="Do nothing if there is no such table.")
@drop_options
def drop_table(app: App, name: str, if_exists: bool, force: bool, workspace: Path) -> None:
    """Remove a table with its rows and its change log; with --force also its tunnels.

    Example: headrace table drop orders -s shop
    """
    from headrace.formats.location import find_table

    with app.store() as store:
        if not force:
            check_stored("table", name, workspace, store, uses_of_table)
        found = not if_exists or find_table(store, name) is not None
        store.drop_table(name, missing_ok=if_exists)
    app.output.dropped("table", name, found=found)


def _show_rows(app: App, name: str, conditions: tuple[str, ...], columns: tuple[str, ...], limit: int | None) -> None:
    from headrace.cli.conditions import parse_condition

    with app.store() as store:
        source = store.table(name)
        where = [parse_condition(text, source.schema) for text in conditions]
        if not app.output.rows(source.scan(listed(columns, source.schema.names) or None, where, limit=limit)):
            app.output.note("No rows.")


def table_summary(name: str, description: TableDescription) -> dict[str, Any]:
    """Return the row of a table in a list; its store can know it by another name than the table itself."""
    return {
        "name": name,
        "columns": list(description.schema.names),
        "primary_key": list(description.schema.primary_key),
        "rows": description.rows,
        # A service that partitions its tables may not report the partitions.
        "partitions": sum(partition.open for partition in description.partitions) or None,
    }


def table_details(description: TableDescription) -> dict[str, Any]:
    from headrace.model.types import type_name

    return {
        "name": description.name,
        "rows": description.rows,
        "primary_key": list(description.schema.primary_key),
        "partition_by": list(description.partition_by),
        **vars(description.options),
        "held_by": list(description.held_by),
        "columns": [{"column": column.name, "type": type_name(column.type)} for column in description.schema.columns],
        "partitions": [
            {
                "partition": partition.id,
                "low": list(partition.keys.low or ()),
                "high": list(partition.keys.high or ()),
                "open": partition.open,
                "parents": list(partition.parents),
                "rows": partition.rows,
                "first_change": partition.first,
                "next_change": partition.next,
                "log_bytes": partition.log_bytes,
            }
            for partition in description.partitions
        ],
    }


def _trim_text(name: str, report: TrimReport) -> str:
    text = f"Removed {report.changes} changes ({report.bytes} bytes) from {name}."
    if report.held_by:
        text += f" Kept changes that these tunnels have not read: {', '.join(report.held_by)}."
    if report.cut_from:
        text += f" Tunnels that lost changes: {', '.join(report.cut_from)}."
    return text


def _option_value(text: str) -> bool | float | int | str | None:
    """Return the value that a text shows. The store says which values an option has."""
    word = text.strip().lower()
    if word in ("true", "false"):
        return word == "true"
    if word == "none":
        return None
    try:
        number = float(word)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number
