"""Tablets: what ``@tablets`` says of one, and the keys at which tablets of sorted tables begin."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from headrace.endpoints.ytsaurus.errors import refused
from headrace.endpoints.ytsaurus.ids import NULL_ID
from headrace.endpoints.ytsaurus.parameters import is_boolean, is_entity
from headrace.endpoints.ytsaurus.table_state import UNMOUNTED, Schema, Table
from headrace.queues import Bounds

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.commands import Context

CELLS = "//sys/tablet_cells"


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
    pivots = [tuple(_plain(value) for value in pivot) for pivot in given]
    for pivot in pivots:
        if len(pivot) > len(schema.keys):
            raise refused("A pivot key has more values than the table has key columns", received=repr(pivot)[:200])
    for one, other in pairwise(pivots):
        if not _sortable(one) < _sortable(other):
            raise refused("Pivot keys must be strictly increasing", received=f"{one!r}, then {other!r}"[:200])
    return pivots


def _plain(value: Any) -> Any:
    if is_entity(value):
        return None
    if is_boolean(value):
        return bool(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    raise refused("A pivot key holds something that is no key", received=repr(value)[:200])


def _sortable(pivot: Sequence[Any]) -> list[tuple[int, Any]]:
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
