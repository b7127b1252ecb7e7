"""Attempts at a write whose rows satisfy the constraints of their table together, and not one after the other.

A value of a unique column moves from one row to another, or two rows swap theirs: the server checks each row as it
writes it, and refuses the first. The source has checked the same rows at the end of a statement or transaction. So a
write that violates a constraint is attempted again in a way that costs more, if it can help. A temporary error is
repeated by `headrace.stores.postgres.connection`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar

from headrace.stores.postgres.connection import Bulk, value_of
from headrace.stores.postgres.failures import Passes, ViolationError
from headrace.stores.postgres.schemas import TableLayout

Result = TypeVar("Result")

# An action of a foreign key, and a trigger, would see that rows are deleted which only change.
_REPLACEABLE = """
SELECT NOT EXISTS (SELECT FROM pg_constraint WHERE confrelid = $1 AND contype = 'f' AND confdeltype <> 'a')
    AND NOT EXISTS (
        SELECT FROM pg_trigger
        WHERE NOT tgisinternal AND tgrelid IN (SELECT $1 UNION SELECT relid FROM pg_partition_tree($1))
    )
    AND has_table_privilege($1::oid, 'DELETE')
"""


class Care(IntEnum):
    """How a write is attempted: each way includes those before it."""

    ROW_BY_ROW = 0
    """As fast as possible: rows in pieces, each checked when it is written."""
    TOGETHER = 1
    """All rows of a table in one statement; deferrable constraints are checked at the commit."""
    REPLACED = 2
    """Existing rows are deleted and inserted in one statement, if nothing but the table notices."""


def attempts(write: Callable[[Care], Result], rows: int) -> Result:
    """Run a function that writes in a transaction, with more care if rows violate a constraint that it may satisfy.

    Args:
        rows: the number of rows to write. One row has no order.

    Raises:
        ViolationError: the rows violate the constraint in any order.
    """
    care = Care.ROW_BY_ROW
    while True:
        try:
            return write(care)
        except ViolationError as error:
            more = _NEXT[error.passes]
            if more <= care or (rows == 1 and error.passes is not Passes.IF_REPLACED):
                raise
            care = more


_NEXT = {
    Passes.NEVER: Care.ROW_BY_ROW,
    Passes.TOGETHER: Care.TOGETHER,
    Passes.MOVED: Care.REPLACED,
    Passes.IF_REPLACED: Care.REPLACED,
}


def replaceable(bulk: Bulk, table: TableLayout) -> bool:
    """Return whether deleting and inserting a row in one statement is the same as updating it."""
    return bool(value_of(bulk, _REPLACEABLE, table.oid))
