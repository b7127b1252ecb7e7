"""Checks of tunnels, the positions of their channels, base data, and the records of batches."""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from headrace.errors import HeadraceError
from headrace.model.tunnels.records import INITIAL_BATCH, end_from_json, plan_from_json
from headrace.model.tunnels.values import FINISHED, ChannelKind, Position
from headrace.stores.embedded.checks.problems import Problem, orphans
from headrace.stores.embedded.tunnels.positions import key_of, row_of, version_of
from headrace.stores.embedded.tunnels.stored_tunnels import SEVERAL

# Errors of records that are not what headrace writes.
_UNREADABLE = (HeadraceError, ValueError, LookupError, TypeError, AttributeError)
_NO_TUNNEL = "tunnel NOT IN (SELECT id FROM tunnel)"


def tunnels(connection: apsw.Connection) -> Iterator[Problem]:
    """Check that tunnels have tables, and channels valid positions inside their logs."""
    for tunnel, name in connection.execute(
        "SELECT t.id, t.name FROM tunnel t LEFT JOIN tunnel_table s ON s.tunnel = t.id"
        " WHERE ifnull(s.object, t.object) NOT IN (SELECT id FROM object WHERE kind = 'table')"
    ):
        yield Problem(f"tunnel {name!r} ({tunnel}) belongs to a table that does not exist")
    ((newest,),) = connection.execute("SELECT version FROM clock")
    found = connection.execute(
        "SELECT t.name, t.object, c.id, c.kind, c.start, c.checkpoint, c.finished, p.next FROM channel c"
        " JOIN tunnel t ON t.id = c.tunnel LEFT JOIN partition p ON p.id = c.partition"
    )
    for name, table, channel, kind, start, committed, finished, end in found:
        place = f"channel {channel} of tunnel {name!r}"
        if kind == ChannelKind.STREAM.value and table == SEVERAL:
            yield from _check_versions(place, start, committed, newest)
            continue
        if kind == ChannelKind.STREAM.value and end is None and not finished:
            yield Problem(f"{place} reads a partition that does not exist")
            continue
        try:
            positions = [Position(token) for token in (start, committed)]
            if kind == ChannelKind.BASE_DATA.value:
                for position in positions:
                    _ = position == FINISHED or key_of(position)
                continue
            read = [row_of(position) for position in positions if position != FINISHED]
        except HeadraceError as error:
            yield Problem(f"{place} has a position that cannot be read: {error.problem}")
            continue
        if read != sorted(read) or (end is not None and read and read[-1] > end):
            yield Problem(f"{place} is at row {read[-1]}, which is before its start or after the end of its log, {end}")
    yield from orphans(connection, "channel", _NO_TUNNEL, "channels of dropped tunnels")
    yield from orphans(connection, "tunnel_client", _NO_TUNNEL, "clients of dropped tunnels")
    yield from orphans(connection, "tunnel_table", _NO_TUNNEL, "tables of dropped tunnels")


def _check_versions(place: str, start: str, committed: str, newest: int) -> Iterator[Problem]:
    """Check the positions of the stream of several tables."""
    try:
        first, now = (version_of(Position(token)) for token in (start, committed))
    except HeadraceError as error:
        yield Problem(f"{place} has a position that cannot be read: {error.problem}")
        return
    if not first[:2] <= now[:2] <= (newest, 0):
        yield Problem(f"{place} is at version {now.version}, which is before its start or after the last, {newest}")


def base_data(connection: apsw.Connection) -> Iterator[Problem]:
    """Check the snapshots of tunnels with unread base data, and the old versions of rows that they keep."""
    for (name,) in connection.execute(
        "SELECT DISTINCT t.name FROM channel c JOIN tunnel t ON t.id = c.tunnel WHERE c.kind = ? AND NOT c.finished"
        " AND t.id NOT IN (SELECT tunnel FROM snapshot)",
        (ChannelKind.BASE_DATA.value,),
    ):
        yield Problem(f"tunnel {name!r} has unread base data and no snapshot")
    yield from orphans(connection, "snapshot", _NO_TUNNEL, "snapshots of dropped tunnels")
    # Only tables with a snapshot, and those of stores of earlier formats, have a table of old rows.
    with_undo = "SELECT id FROM object WHERE kind = 'table' AND 'u' || id IN (SELECT name FROM sqlite_schema)"
    for (number,) in list(connection.execute(with_undo)):
        kept = f"SELECT id FROM snapshot WHERE object = {number} AND tunnel IN (SELECT id FROM tunnel)"
        yield from orphans(
            connection, f"u{number}", f"snapshot NOT IN ({kept})", f"old rows of table {number} without a snapshot"
        )


def batches(connection: apsw.Connection) -> Iterator[Problem]:
    """Check the recorded plans and ends of batches."""
    yield from orphans(connection, "batch_plan", _NO_TUNNEL, "plans of dropped tunnels")
    depths = {
        (tunnel, batch): (root, depth)
        for tunnel, batch, root, depth in connection.execute("SELECT tunnel, batch, root, depth FROM batch_plan")
    }
    for tunnel, batch, previous, text in connection.execute("SELECT tunnel, batch, previous, plan FROM batch_plan"):
        place = f"the plan of batch {batch} of tunnel {tunnel}"
        try:
            plan = plan_from_json(text)
        except _UNREADABLE as error:
            yield Problem(f"{place} cannot be read: {error}")
            continue
        if (plan.batch, plan.previous) != (batch, previous):
            yield Problem(f"{place} is the plan of batch {plan.batch}")
        root, depth = depths[tunnel, batch]
        before = depths.get((tunnel, previous))
        if previous != INITIAL_BATCH and before is not None and (root, depth) != (before[0], before[1] + 1):
            yield Problem(f"{place} does not follow the batch before it")
    for tunnel, batch, channel, text in connection.execute("SELECT tunnel, batch, channel, position FROM batch_end"):
        try:
            end_from_json(text)
        except _UNREADABLE as error:
            yield Problem(f"the end of batch {batch} in channel {channel} of tunnel {tunnel} cannot be read: {error}")
    yield from orphans(
        connection, "batch_end", "(tunnel, batch) NOT IN (SELECT tunnel, batch FROM batch_plan)", "ends without a plan"
    )
