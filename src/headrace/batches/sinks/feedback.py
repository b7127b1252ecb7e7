"""Jobs that write a table whose changes they read: each batch would be the input of the next one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.batches.feeds.tunnel_feed import ReadTunnel
from headrace.batches.sinks.targets import TableTarget, Target
from headrace.errors import NotFoundError, OptionError
from headrace.model.tables.changes import RowChange
from headrace.ports import Store, Table


def check_no_feedback(
    source: Store, table: Table, target: Store, writes: Iterable[str], writer: str, tunnel: str = ""
) -> None:
    """Check that a job writes no table whose changes it reads, or will read once the table exists.

    Args:
        source: the store of the changes.
        table: the table whose changes the job reads, or that of a tunnel of several tables.
        target: the store that the job writes.
        writes: the tables that it writes; they may not exist yet.
        writer: the job, for the message.
        tunnel: the name of the tunnel, if it exists.

    Raises:
        OptionError: it writes such a table.
    """
    changed = dict.fromkeys(name for each in writes for name in target.changed_tables(each, source.id))
    covered = [name for name in changed if table.covers(name, identity_of(source, name))]
    if not covered:
        return
    without = table.without(covered)
    if without is None:
        raise own_rows(covered, writer)
    again = f"create the tunnel again without it, as one of {without}; or " if without else ""
    raise OptionError(
        f"{writer} writes into a table of the tunnel that it reads: each batch would be the input of the next one",
        received=f"table {', '.join(map(repr, covered))}, and tunnel {tunnel!r} of {table.name}",
        remedy=f"{again}write into another table",
    )


def check_batch(read: Iterable[ReadTunnel], store: Store, targets: Iterable[Target]) -> None:
    """Check the same of a batch that is about to be written, for the tunnels of the store that the job writes.

    Args:
        read: the tunnels that the job reads, of any store.
        store: the store of the targets.

    Raises:
        OptionError: a target is such a table.
    """
    writes = put_into(targets)
    for each in read:
        if writes and each.store == store.id:
            tunnel = store.tunnel(each.tunnel)
            check_no_feedback(store, tunnel.table, store, writes, "this stream", tunnel.name)


def put_into(targets: Iterable[Target]) -> list[str]:
    """Return the tables into which targets put whole rows."""
    tables = [target for target in targets if isinstance(target, TableTarget)]
    put = [target.name for target in tables if target.change in (RowChange.PUT, RowChange.REPLACE_ALL)]
    return put + [target.bad_rows.table for target in tables if target.bad_rows is not None]


def own_rows(tables: Sequence[str], writer: str) -> OptionError:
    """Return the error for a job that writes tables whose changes it reads by a tunnel of each."""
    return OptionError(
        f"{writer} puts rows into the table whose changes it reads: each batch would be the input of the next one",
        received=f"table {', '.join(map(repr, tables))}",
        remedy="write into another table; to set some cells of changed rows use headrace.write_stream(…, "
        'row_change="update") with only these columns, and a filter that leaves out rows which have them',
    )


def identity_of(store: Store, name: str) -> str:
    """Return the identity of a table; empty if it does not exist, or if the store knows none."""
    try:
        return store.table(name).identity()
    except NotFoundError:
        return ""
