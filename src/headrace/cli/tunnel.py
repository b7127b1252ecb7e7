"""``headrace tunnel``: tunnels, how far their readers are, and their changes as they come."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, common_options, pass_app, store_option

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.ports import Store, Tunnel, TunnelDescription
    from headrace.tunnels.values import Position

_WAIT_SECONDS = 1.0
_PAGE_ROWS = 4096


@click.group(short_help="Subscriptions to the changes of tables.", no_args_is_help=False)
def tunnel() -> None:
    """Make and look at tunnels: durable subscriptions to a table's changes."""


def _command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    def decorate(function: Callable[..., None]) -> click.Command:
        return tunnel.command(name)(store_option(common_options(pass_app(function))))

    return decorate


_of_table = click.option("-t", "--table", metavar="NAME", help="The table, where the name alone is not unique.")


@_command("list")
@click.option("-t", "--table", metavar="NAME", help="Only the tunnels of this table.")
def list_tunnels(app: App, table: str | None) -> None:
    """List the tunnels of the store."""
    with app.store() as store:
        records = [_summary(found.describe()) for found in store.tunnels(table)]
    app.output.records(
        records,
        columns=("id", "name", "table", "kind", "stage", "lag_rows", "lag_seconds"),
        nothing="The store has no tunnels.",
    )


@_command("create")
@click.argument("table")
@click.argument("name")
@click.option(
    "-k",
    "--kind",
    type=click.Choice(["BaseData", "Stream", "BaseAndStream"], case_sensitive=False),
    default="BaseAndStream",
    show_default=True,
    help="What is there, what comes, or both.",
)
@click.option("--start", default="latest", show_default=True, help="For Stream: latest, earliest or a timestamp.")
@click.option("--base-channels", type=click.IntRange(min=1), help="Into how many pieces the base data is cut.")
def create_tunnel(app: App, table: str, name: str, kind: str, start: str, base_channels: int | None) -> None:
    """Subscribe to the changes of a table."""
    with app.store() as store:
        created = store.create_tunnel(table, name, kind, start=start, base_channels=base_channels)
    app.output.done(f"Created tunnel {name} of {table}: {created.id}", tunnel=name, table=table, id=created.id)


@_command("describe")
@click.argument("id_or_name")
@_of_table
def describe_tunnel(app: App, id_or_name: str, table: str | None) -> None:
    """Show a tunnel, its channels, and what each has that is not yet committed."""
    with app.store() as store:
        description = store.tunnel(id_or_name, table).describe()
    details = _details(description)
    if app.json:
        for channel in details["channels"]:
            # Deprecated: the former name of committed_position.
            channel["checkpoint"] = channel["committed_position"]
    app.output.record(details)


@_command("drop")
@click.argument("id_or_name")
@_of_table
@click.option("--if-exists", is_flag=True, help="Do nothing if there is no such tunnel.")
def drop_tunnel(app: App, id_or_name: str, table: str | None, if_exists: bool) -> None:
    """Remove a tunnel; the changes that it held back can then be removed."""
    with app.store() as store:
        store.drop_tunnel(id_or_name, table, missing_ok=if_exists)
    app.output.done(f"Dropped tunnel {id_or_name}.", tunnel=id_or_name)


@_command("tail")
@click.argument("id_or_name")
@_of_table
@click.option("--start", default="committed", show_default=True, help="committed, earliest, latest or a timestamp.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="End after so many changes.")
@click.option("--no-follow", is_flag=True, help="End when all that is there has been shown.")
def tail(app: App, id_or_name: str, table: str | None, start: str, limit: int | None, no_follow: bool) -> None:
    """Show changes as they come, without moving the tunnel's committed positions."""
    from headrace.cli.rows import first_rows

    with app.store() as store:
        changes = follow(store, store.tunnel(id_or_name, table), start, follow=not no_follow)
        app.output.rows(first_rows(changes, limit))


def follow(store: Store, source: Tunnel, start: str, *, follow: bool) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a tunnel, channels in the order that their parents ask for; commit nothing.

    Args:
        start: as `headrace.tunnels.values.Start.parse` reads it.
        follow: wait for more when all that is there has been read.
    """
    from headrace.tables.change_columns import ChangeShape
    from headrace.tunnels.channels import channel_states
    from headrace.tunnels.values import FINISHED, ChannelState, Start, StartKind

    begin = Start.parse(start)
    positions: dict[str, Position] = {}
    if begin.kind != StartKind.COMMITTED:
        positions = source.start_positions(begin)
    shape = ChangeShape(source.table.schema)
    while True:
        found_any = False
        channels = source.channels()
        for channel in channels:
            positions.setdefault(channel.id, channel.committed)
        finished = {channel for channel, position in positions.items() if position == FINISHED}
        states = channel_states({channel.id: channel.parents for channel in channels}, finished)
        for channel_id in [channel_id for channel_id, state in states.items() if state == ChannelState.OPEN]:
            page = source.read(channel_id, positions[channel_id], _PAGE_ROWS)
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


def _summary(description: TunnelDescription) -> dict[str, Any]:
    ages = [described.backlog.seconds for described in description.channels]
    return {
        "id": description.id,
        "name": description.name,
        "table": description.table,
        "kind": str(description.kind),
        "stage": description.stage,
        "lag_rows": description.backlog_rows,
        "lag_seconds": None if None in ages else round(max((age or 0.0 for age in ages), default=0.0), 3),
    }


def _details(description: TunnelDescription) -> dict[str, Any]:
    created = datetime.datetime.fromtimestamp(description.created, datetime.UTC)
    return {
        **_summary(description),
        "created": created.isoformat(timespec="seconds"),
        "channels": [
            {
                "channel": described.channel.id,
                "kind": str(described.channel.kind),
                "state": str(described.channel.state),
                "parents": list(described.channel.parents),
                "committed_position": described.channel.committed.token,
                "client": described.client,
                "client_tag": described.client_tag,
                "lag_rows": described.backlog.rows,
                "lag_bytes": described.backlog.bytes,
                "lag_seconds": described.backlog.seconds,
            }
            for described in description.channels
        ],
    }
