"""Where a sink puts the rows that its table refuses: option ``badRows``; see docs/bad-rows.md."""

from __future__ import annotations

from headrace.batches.sinks.targets import QueueTarget, TableTarget, Target
from headrace.errors import NotFoundError, OptionError
from headrace.model.tables.bad_rows import KEY, table_name
from headrace.model.tables.changes import RowChange
from headrace.ports import BadRows, Store

OPTION = "badRows=table"


def bad_rows_of(table: str, stream: str | None) -> BadRows:
    """Return where the bad rows of a table go.

    Args:
        stream: the name of the query, if it has one.
    """
    return BadRows(table_name(table), stream or "")


def prepare(store: Store, target: Target) -> None:
    """Create the table of a target's bad rows, if it has one.

    Raises:
        OptionError: the target writes rows in a way in which one that is refused cannot be written later.
        UnsupportedError, SchemaError: the store or the table cannot have bad rows, see `Store.create_bad_rows`.
    """
    if not isinstance(target, TableTarget) or target.bad_rows is None:
        return
    if target.change not in (RowChange.PUT, RowChange.DELETE):
        raise OptionError(
            "rows that are refused can be written later only if each of them is the whole row of its key",
            received=f"{OPTION}, and row change {target.change}",
            valid="append and update mode with rowChange put or delete",
            remedy="leave out option badRows",
        )
    store.create_bad_rows(target.name)


def clear(store: Store, bad_rows: BadRows) -> None:
    """Delete the bad rows of an earlier job: its target was another table, or had other rows."""
    try:
        table = store.table(bad_rows.table)
    except NotFoundError:
        return
    for keys in table.scan([KEY]):
        table.delete(keys)


def refuse_history() -> None:
    """Raise `OptionError` for a history, which needs each version of a row."""
    raise OptionError(
        "a history keeps no bad rows: a version that is missing would leave the one before it without an end",
        received=OPTION,
        remedy="leave out option badRows",
    )


def refuse_queue(target: Target) -> None:
    """Raise `OptionError` for a queue, which refuses no single row."""
    if isinstance(target, QueueTarget):
        raise OptionError(
            "a queue refuses no single rows", received=f"{OPTION}, and queue {target.name!r}", valid="a table"
        )
