"""Tablets: their form in ``@tablets``, pivot keys of sorted tables, first rows of queues."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from headrace.model.queues.values import Bounds
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.ids import NULL_ID
from headrace_ytsaurus.endpoint.parameters import number_of
from headrace_ytsaurus.endpoint.tables.state import UNMOUNTED, Schema, Table
from headrace_ytsaurus.wire.yson.scalars import is_boolean, is_entity

CELLS = "//sys/tablet_cells"
MOST_ROWS = 1 << 40
"""Row indexes of a tablet are less than this."""
STARTS = ("trimmed_row_counts", "cumulative_data_weights")
_WHOLE = re.compile(r"(u?)int(8|16|32|64)")


def cell_of(cypress: Cypress) -> str:
    """Return the id of the tablet cell that is reported for all tablets."""
    return next(iter(cypress.child_names(cypress.find(CELLS))), NULL_ID)


def tablet_value(table: Table, number: int, bounds: Bounds | None, cell: str) -> dict[str, Any]:
    """Return a tablet in the form of ``@tablets``; ``bounds`` are the rows of a queue's tablet."""
    tablet = table.tablets[number]
    value: dict[str, Any] = {
        "index": number,
        "tablet_id": tablet.id,
        "state": tablet.state,
        "performance_counters": {},
        "statistics": {"chunk_count": 0, "tablet_count": 1},
        "error_count": 0,
    }
    if tablet.state != UNMOUNTED:
        value["cell_id"] = cell
    if bounds is None:
        return value | {"pivot_key": list(tablet.pivot)}
    return value | {"trimmed_row_count": bounds.lower, "flushed_row_count": bounds.upper}


def pivots_of(given: Any, schema: Schema) -> list[tuple[Any, ...]]:
    """Check and return the pivot keys of a table.

    Raises:
        YtError: the table is not sorted, or the keys are invalid or not increasing.
    """
    if not schema.keys:
        raise refused("Pivot keys are for sorted tables")
    if not isinstance(given, list) or not given or not all(isinstance(pivot, list) for pivot in given):
        raise refused("Pivot keys must be a list of lists", received=repr(given)[:200])
    pivots = [tuple(plain_key(value) for value in pivot) for pivot in given]
    for pivot in pivots:
        if len(pivot) > len(schema.keys):
            raise refused("A pivot key has more values than the table has key columns", received=repr(pivot)[:200])
    for one, other in pairwise(pivots):
        if not sortable(one) < sortable(other):
            raise refused("Pivot keys must be strictly increasing", received=f"{one!r}, then {other!r}"[:200])
    return pivots


def uniform_pivots(schema: Schema, count: int) -> list[list[int]]:
    """Return the pivot keys that divide the values of the first key column into ranges of equal size.

    Raises:
        YtError: the column is not a whole number, or has fewer values.
    """
    kind = schema.keys[0].yt
    match = _WHOLE.fullmatch(kind) if isinstance(kind, str) else None
    if match is None:
        raise refused("Only tables whose first key column is a whole number are resharded uniformly", received=kind)
    size = 1 << int(match[2])
    if count > size:
        raise refused("A key column has fewer values", received=f"tablet_count={count}", valid=f"1 to {size}")
    least = 0 if match[1] else -size // 2
    return [[], *([least + number * size // count] for number in range(1, count))]


def starts_of(rows: Any, weights: Any, count: int, added: int) -> dict[int, tuple[int, int]]:
    """Return number → (first row index, first cumulative data weight) for tablets of a queue.

    Args:
        rows, weights: the values of the parameters `STARTS`: a number for each of the last tablets, or None.
        count: the number of tablets, of which the last ``added`` are new.

    Raises:
        YtError: the values are invalid.
    """
    starts: dict[int, tuple[int, int]] = {}
    for values, place in ((rows, 0), (weights, 1)):
        if values is None:
            continue
        if not isinstance(values, list) or len(values) not in (added, count):
            problem = f"{STARTS[0]} and {STARTS[1]} have a number for every new tablet"
            raise refused(problem, received=repr(values)[:200], valid=f"{max(added, 0)} numbers")
        for number, value in enumerate(values, start=count - len(values)):
            start = number_of(value, STARTS[place], least=0, most=MOST_ROWS - 1)
            row, weight = starts.get(number, (0, 0))
            starts[number] = (start, weight) if place == 0 else (row, start)
    return starts


def plain_key(value: Any) -> Any:
    """Return a value of a key as a plain Python value."""
    if is_entity(value):
        return None
    if is_boolean(value):
        return bool(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes) or hasattr(value, "_bytes"):
        # YSON strings that are not UTF-8 have a separate class.
        return bytes(getattr(value, "_bytes", value))
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    raise refused("A pivot key has a value that cannot be in a key", received=repr(value)[:200])


def sortable(pivot: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return a key in a form that can be compared across types: null, numbers, booleans, texts."""
    parts: list[tuple[int, Any]] = []
    for value in pivot:
        if value is None:
            parts.append((0, 0))
        elif isinstance(value, bool):
            parts.append((2, value))
        elif isinstance(value, int | float):
            parts.append((1, value))
        else:
            parts.append((3, value.encode() if isinstance(value, str) else value))
    return parts
