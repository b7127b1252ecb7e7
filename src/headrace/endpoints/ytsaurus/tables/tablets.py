"""Tablets: what ``@tablets`` says of one, and the keys at which tablets of sorted tables begin."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from headrace.endpoints.ytsaurus.errors import refused
from headrace.endpoints.ytsaurus.ids import NULL_ID
from headrace.endpoints.ytsaurus.parameters import is_boolean, is_entity
from headrace.endpoints.ytsaurus.tables.state import UNMOUNTED, Schema, Table
from headrace.queues.values import Bounds

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.commands import Context

CELLS = "//sys/tablet_cells"
MOST_ROWS = 1 << 40
"""Row indexes of a tablet are below this."""
STARTS = ("trimmed_row_counts", "cumulative_data_weights")
_WHOLE = re.compile(r"(u?)int(8|16|32|64)")


def cell_of(context: Context) -> str:
    """Return the id of the cell in which all tablets are said to live."""
    return next(iter(context.cypress.child_names(context.cypress.find(CELLS))), NULL_ID)


def tablet_value(table: Table, number: int, bounds: Bounds | None, cell: str) -> dict[str, Any]:
    """Return what ``@tablets`` says of a tablet; ``bounds`` are those of its rows, in a queue."""
    tablet = table.tablets[number]
    found: dict[str, Any] = {
        "index": number,
        "tablet_id": tablet.id,
        "state": tablet.state,
        "performance_counters": {},
        "statistics": {"chunk_count": 0, "tablet_count": 1},
        "error_count": 0,
    }
    if tablet.state != UNMOUNTED:
        found["cell_id"] = cell
    if bounds is None:
        return found | {"pivot_key": list(tablet.pivot)}
    return found | {"trimmed_row_count": bounds.lower, "flushed_row_count": bounds.upper}


def pivots_of(given: Any, schema: Schema) -> list[tuple[Any, ...]]:
    """Check and return the keys at which the tablets of a table begin; the first one begins before all keys.

    Raises:
        YtError: the table is not sorted, or they are no keys that rise.
    """
    if not schema.keys:
        raise refused("Pivot keys are for sorted tables")
    if not isinstance(given, list) or not given or not all(isinstance(pivot, list) for pivot in given):
        raise refused("Pivot keys are a list of lists", received=repr(given)[:200])
    pivots = [tuple(plain_key(value) for value in pivot) for pivot in given]
    for pivot in pivots:
        if len(pivot) > len(schema.keys):
            raise refused("A pivot key has more values than the table has key columns", received=repr(pivot)[:200])
    for one, other in pairwise(pivots):
        if not sortable(one) < sortable(other):
            raise refused("Pivot keys must be strictly increasing", received=f"{one!r}, then {other!r}"[:200])
    return pivots


def uniform_pivots(schema: Schema, count: int) -> list[list[int]]:
    """Return the keys that cut all values of the first key column into ranges of one size.

    Raises:
        YtError: the column is no whole number, or has fewer values.
    """
    kind = schema.keys[0].yt
    found = _WHOLE.fullmatch(kind) if isinstance(kind, str) else None
    if found is None:
        raise refused("Only tables whose first key column is a whole number are resharded uniformly", received=kind)
    size = 1 << int(found[2])
    if count > size:
        raise refused("A key column has fewer values", received=f"tablet_count={count}", valid=f"1 to {size}")
    least = 0 if found[1] else -size // 2
    return [[], *([least + number * size // count] for number in range(1, count))]


def starts_of(rows: Any, weights: Any, count: int, added: int) -> dict[int, tuple[int, int]]:
    """Return for tablets of a queue at which row index and cumulative data weight they begin.

    Args:
        rows, weights: a number for each of the last tablets, or None for the beginning; they are called `STARTS`.
        count: tablets, from number 0 on, of which the last ``added`` are new.

    Raises:
        YtError: they are no such numbers.
    """
    found: dict[int, tuple[int, int]] = {}
    for values, place in ((rows, 0), (weights, 1)):
        if values is None:
            continue
        whole = isinstance(values, list) and all(isinstance(each, int) and 0 <= each < MOST_ROWS for each in values)
        if not whole or len(values) not in (added, count):
            problem = f"{STARTS[0]} and {STARTS[1]} have a number for every new tablet"
            raise refused(problem, received=repr(values)[:200], valid=f"{max(added, 0)} numbers")
        for number, value in enumerate(values, start=count - len(values)):
            row, weight = found.get(number, (0, 0))
            found[number] = (int(value), weight) if place == 0 else (row, int(value))
    return found


def plain_key(value: Any) -> Any:
    """Return a value of a key as a plain one of Python."""
    if is_entity(value):
        return None
    if is_boolean(value):
        return bool(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes) or hasattr(value, "_bytes"):
        # Strings of YSON that are no text have a class of their own.
        return bytes(getattr(value, "_bytes", value))
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    raise refused("A pivot key holds something that is no key", received=repr(value)[:200])


def sortable(pivot: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return a key in a form that sorts across types: null, numbers, booleans, texts."""
    found: list[tuple[int, Any]] = []
    for value in pivot:
        if value is None:
            found.append((0, 0))
        elif isinstance(value, bool):
            found.append((2, value))
        elif isinstance(value, int | float):
            found.append((1, value))
        else:
            found.append((3, value.encode() if isinstance(value, str) else value))
    return found
