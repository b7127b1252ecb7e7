"""``headrace tunnel``: tunnels, the progress of their readers, and their changes."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, CommandGroup, parse_pairs
from headrace.cli.drop import drop_options, streams_of_tunnel
from headrace.cli.watching import watch_lag
from headrace.errors import DataLossError, NotFoundError
from headrace.inspect.uses import check_unused, uses_of_tunnel

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.model.tunnels.lag import Lag
    from headrace.model.tunnels.values import Position, Start
    from headrace.ports import Store, Tunnel, TunnelDescription

_WAIT_SECONDS = 1.0
_PAGE_ROWS = 4096
_WATCHED = ("channel", "kind", "state", "client", "lag_rows", "lag_seconds")


@click.group(cls=CommandGroup, short_help="Create and show subscriptions to changes.", no_args_is_help=False)
def tunnel() -> None:
    """Create and show tunnels: durable subscriptions to the changes of tables.

    \b
    Example:
      headrace tunnel create orders stats -s shop
      headrace tunnel describe stats -s shop
      headrace tunnel tail stats -s shop
    """


_of_table = click.option("-t", "--table", metavar="NAME", help="The table, if several tables have such a tunnel.")


@tunnel.store_command("list")
@click.option("-t", "--table", metavar="NAME", help="Only the tunnels of this table.")
def list_tunnels(app: App, table: str | None) -> None:
    """List the tunnels of the store.

    Example: headrace tunnel list --table orders -s shop
    """
    with app.store() as store:
        records = [tunnel_summary(found.describe()) for found in store.tunnels(table)]
    app.output.records(
        records,
        columns=("id", "name", "table", "kind", "stage", "lag_rows", "lag_seconds"),
        nothing="The store has no tunnels.",
    )


@tunnel.store_command("create")
@click.argument("names", nargs=-1, required=True, metavar="[TABLE]... NAME")
@click.option(
    "--tables",
    metavar="PATTERNS",
    help="Instead of TABLE, names of tables, or patterns of PostgreSQL, separated by commas: public.*,!public.log",
)
@click.option(
    "-k",
    "--kind",
    type=click.Choice(["BaseData", "Stream", "BaseAndStream"], case_sensitive=False),
    default="BaseAndStream",
    show_default=True,
    help="The existing rows, the later changes, or both.",
)
@click.option("--start", default="latest", show_default=True, help="For Stream: latest, earliest or a timestamp.")
@click.option("--base-channels", type=click.IntRange(min=1), help="The number of channels of a table's base data.")
@click.option("--slot", metavar="NAME", help="An existing replication slot of PostgreSQL, with --publication.")
@click.option("--publication", metavar="NAME", help="An existing publication of PostgreSQL.")
@click.option("--failover", is_flag=True, default=None, help="Let standbys of PostgreSQL copy the new slot.")
@click.option("--max-slot-bytes", metavar="SIZE", help="The log that PostgreSQL may keep for the slot, such as 10g.")
@click.option("--at-slot-limit", type=click.Choice(["warn", "drop"]), help="At this limit: warn, or drop the slot.")
@click.option("--columns", metavar="NAMES", help="The only columns, separated by commas (PostgreSQL).")
@click.option("--exclude", metavar="NAMES", help="The columns that the tunnel leaves out (PostgreSQL).")
@click.option("--where", metavar="CONDITION", help="The condition of the only rows, in SQL (PostgreSQL).")
@click.option(
    "--mask",
    "masks",
    metavar="COLUMN=MASK",
    multiple=True,
    help="null, hash, first(3), last(4) or constant(…) in place of the values of a column (PostgreSQL).",
)
def create_tunnel(
    app: App,
    names: tuple[str, ...],
    tables: str | None,
    kind: str,
    start: str,
    base_channels: int | None,
    masks: tuple[str, ...],
    **options: str | bool | None,
) -> None:
    """Create a tunnel: subscribe to the changes of a table, or of several tables in the order of their transactions.

    \b
    Example:
      headrace tunnel create orders stats --kind BaseAndStream -s shop
      headrace tunnel create orders items customers sales -s shop
    """
    from headrace.model.tunnels.values import TunnelKind

    wanted = TunnelKind.parse(kind)
    *of_table, name = names
    if bool(of_table) == (tables is not None):
        raise click.UsageError("Give one TABLE or several and NAME, or --tables and NAME.")
    with app.store() as store:
        given: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
        if masks:
            given["mask"] = parse_pairs(masks, "--mask")
        if tables is None:
            followed = of_table if len(of_table) > 1 else of_table[0]
            created = store.create_tunnel(followed, name, wanted, start=start, base_channels=base_channels, **given)
        else:
            if start != "latest":
                raise click.UsageError("A tunnel of several tables starts at the latest changes: leave out --start.")
            created = store.create_tunnel_of_tables(tables, name, wanted, base_channels=base_channels, **given)
    table = of_table[0] if len(of_table) == 1 else created.table.name
    app.output.done(f"Created tunnel {name} of {table}: {created.id}", tunnel=name, table=table, id=created.id)


@tunnel.store_command("describe")
@click.argument("id_or_name")
@_of_table
@click.option("--watch", is_flag=True, help="Show only the lag, and refresh it until interrupted.")
def describe_tunnel(app: App, id_or_name: str, table: str | None, watch: bool) -> None:
    """Show a tunnel, and the state, committed position and lag of its channels.

    With --json, the key "checkpoint" of a channel is deprecated; use "committed_position".

    Example: headrace tunnel describe stats -s shop
    """
    with app.store() as store:
        found = store.tunnel(id_or_name, table)
        if watch:
            watch_lag(app.output, lambda: _lag(found.describe()), "channels", _WATCHED)
        description = found.describe()
    details = tunnel_details(description)
    if not app.json:
        for channel, described in zip(details["channels"], description.channels, strict=True):
            channel["committed_position"] = found.shown_position(described.channel.committed)
    for warning in () if app.json else description.warnings:
        app.output.warning(warning)
    if app.json:
        for channel in details["channels"]:
            channel["checkpoint"] = channel["committed_position"]
    app.output.record(details)


@tunnel.store_command("take-in")
@click.argument("id_or_name")
@_of_table
def take_in(app: App, id_or_name: str, table: str | None) -> None:
    """Take in later tables that match the patterns of a tunnel of several, with their rows.

    Readers of JSON rows do so themselves. Run it for a query over typed rows before it starts again.

    Example: headrace tunnel take-in shop -s postgresql://localhost/shop
    """
    with app.store() as store:
        tables = store.tunnel(id_or_name, table).take_in_tables()
    app.output.done(f"Took in {', '.join(tables)}." if tables else "Took in no table.", tables=tables)


@tunnel.store_command("drop")
@click.argument("id_or_name")
@_of_table
@click.option("--if-exists", is_flag=True, help="Do nothing if there is no such tunnel.")
@drop_options
def drop_tunnel(app: App, id_or_name: str, table: str | None, if_exists: bool, force: bool, workspace: Path) -> None:
    """Remove a tunnel. Retention can then remove the changes that it has not read.

    Example: headrace tunnel drop stats -s shop
    """
    with app.store() as store:
        if not force:
            check_unused(
                f"tunnel {id_or_name}",
                lambda: streams_of_tunnel(workspace, store, id_or_name, table),
                lambda: uses_of_tunnel(store, id_or_name, table),
                by="--force",
            )
        borrowed = _borrowed(store, id_or_name, table)
        store.drop_tunnel(id_or_name, table, missing_ok=if_exists)
    more = "".join(f" It has used {each}: this remains." for each in borrowed or ())
    facts = {"remains": borrowed} if borrowed else {}
    app.output.dropped("tunnel", id_or_name, found=borrowed is not None, more=more, **facts)


def _borrowed(store: Store, id_or_name: str, table: str | None) -> list[str] | None:
    """Return what a tunnel uses that is not its own; None if there is no such tunnel."""
    try:
        return list(store.tunnel(id_or_name, table).borrowed)
    except NotFoundError:
        return None


@tunnel.store_command("tail")
@click.argument("id_or_name")
@_of_table
@click.option("--start", default="committed", show_default=True, help="committed, earliest, latest or a timestamp.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="End after this number of changes.")
@click.option("--no-follow", is_flag=True, help="End after the existing changes.")
def tail(app: App, id_or_name: str, table: str | None, start: str, limit: int | None, no_follow: bool) -> None:
    """Show changes as they arrive. The committed positions of the tunnel do not move.

    A TRUNCATE of PostgreSQL is a row without values.

    Example: headrace tunnel tail stats --start earliest --no-follow -s shop
    """
    from headrace.cli.row_files import first_rows

    with app.store() as store:
        found = store.tunnel(id_or_name, table).with_truncations()
        changes = follow(store, found, start, follow=not no_follow, warn=app.output.warning)
        app.output.rows(first_rows(changes, limit))


def follow(
    store: Store, source: Tunnel, start: str, *, follow: bool, warn: Callable[[str], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a tunnel, parent channels before their children. Commits nothing.

    Args:
        start: a text for `headrace.model.tunnels.values.Start.parse`.
        follow: wait for more changes after the existing ones.
        warn: shows a warning.
    """
    from headrace.model.tables.change_columns import ChangeShape
    from headrace.model.tunnels.channels import channel_states
    from headrace.model.tunnels.values import FINISHED, ChannelState, Start, StartKind

    begin = Start.parse(start)
    positions: dict[str, Position] = {}
    if begin.kind != StartKind.COMMITTED:
        positions = _start_positions(source, begin, warn)
    shape = ChangeShape(source.table.schema)
    while True:
        found_any = False
        channels = source.channels()
        for channel in channels:
            positions.setdefault(channel.id, channel.committed)
        finished = {channel for channel, position in positions.items() if position == FINISHED}
        states = channel_states({channel.id: channel.parents for channel in channels}, finished)
        for channel_id in [channel_id for channel_id, state in states.items() if state == ChannelState.OPEN]:
            try:
                page = source.read(channel_id, positions[channel_id], _PAGE_ROWS)
            except DataLossError as error:
                # A look accepts no loss: the reader would not learn of it.
                raise error.with_option("failOnDataLoss=false in the query that reads the tunnel") from None
            found_any |= page.next != positions[channel_id]
            positions[channel_id] = page.next
            if page.changes.num_rows:
                if page.changes.rows.num_columns != len(source.table.schema.names):
                    shape = ChangeShape(source.table.schema)
                yield shape.rows(page.changes)
        if not found_any:
            if not follow:
                return
            store.wait_for_change(_WAIT_SECONDS)


def _start_positions(source: Tunnel, start: Start, warn: Callable[[str], None]) -> dict[str, Position]:
    """Return start positions. Base data that was read, and that the store no longer keeps, is left out."""
    from headrace.model.tunnels.values import ChannelKind, ChannelState, Start, StartKind

    try:
        return source.start_positions(start)
    except DataLossError:
        base = [each for each in source.channels() if each.kind is ChannelKind.BASE_DATA]
        if start.kind is not StartKind.EARLIEST or not any(each.state is ChannelState.FINISHED for each in base):
            raise
    warn("the base data was read and released; only the changes after it are shown")
    # A start at a time has no base data.
    return source.start_positions(Start(StartKind.TIMESTAMP, datetime.datetime.fromtimestamp(0, datetime.UTC)))


def _lag(description: TunnelDescription) -> tuple[str, Lag, dict[str, Any]]:
    facts = tunnel_details(description)
    seconds = facts["lag_seconds"]
    behind = "" if seconds is None else f", {seconds} s behind"
    return f"{description.name}: lag {description.lag}{behind}", description.lag, facts


def tunnel_summary(description: TunnelDescription) -> dict[str, Any]:
    seconds = description.lag.seconds
    return {
        "id": description.id,
        "name": description.name,
        "table": description.table,
        "kind": str(description.kind),
        "stage": description.stage,
        "lag_rows": description.backlog_rows,
        "lag_seconds": None if seconds is None else round(seconds, 3),
    }


def tunnel_details(description: TunnelDescription) -> dict[str, Any]:
    created = datetime.datetime.fromtimestamp(description.created, datetime.UTC)
    return {
        **tunnel_summary(description),
        "lag_rows_at_least": description.lag.rows,
        "base_ranges": description.lag.ranges,
        "base_ranges_read": description.lag.ranges_done,
        "created": created.isoformat(timespec="seconds"),
        **description.details,
        **({"warnings": list(description.warnings)} if description.details else {}),
        "channels": [
            {
                "channel": described.channel.id,
                "kind": str(described.channel.kind),
                "state": str(described.channel.state),
                "parents": list(described.channel.parents),
                "committed_position": described.channel.committed.token,
                "client": described.client,
                "client_tag": described.client_tag,
                "lag_rows": described.backlog.unread,
                "lag_rows_at_least": described.backlog.known,
                "lag_bytes": described.backlog.bytes,
                "lag_seconds": described.backlog.seconds,
            }
            for described in description.channels
        ],
    }
