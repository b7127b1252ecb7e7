"""The records of a tunnel's batches, and its reader and committed positions, as rows of the meta table.

Ends have the layout of the EMR connector: the batch id, the channel id, and in `channelOffset` the token and the number
of rows after it. So the connector can continue at headrace's positions, and headrace at the connector's. All other rows
have channel ids and uuids that start with ``__``, which neither the service nor the connector uses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

from headrace.errors import NotFoundError, StoreDamagedError
from headrace.model.tunnels.records import (
    INITIAL_BATCH,
    BatchPlace,
    BatchPlan,
    ChannelEnd,
    plan_from_json,
    plan_to_json,
    reader_replaced,
)
from headrace.model.tunnels.values import Position
from headrace.ports import BatchRecords
from headrace_tablestore.store.meta_table import MetaRow, MetaTable

PLAN = "__plan__"
READER = "__reader__"
CHAIN = "__chain__"
COMMITTED = "__committed__"
# An attribute may have 2 MB, and so may a row whose other attributes are small.
PLAN_PART_BYTES = 1_000_000
_VERSION = 1
_REMEMBERED = 8
Result = TypeVar("Result")


class TablestoreBatches(BatchRecords):
    """The recorded batches of one tunnel.

    The records of a batch never change, so some are cached: a feed that waits for changes reads its last batch often.
    """

    def __init__(self, table: MetaTable, tunnel_id: str) -> None:
        self._table = table
        self._tunnel = tunnel_id
        self._places: dict[str, BatchPlace] = {}
        self._plans: dict[str, BatchPlan] = {}
        self._ends: dict[str, dict[str, ChannelEnd]] = {}

    def save_plan(self, plan: BatchPlan) -> None:
        """Save a plan, unless the batch has one. The first batch of a chain makes its reader the tunnel's reader.

        The first row of the plan is written last. It makes the plan valid, and `prune` already finds the batch.
        """
        if self._place(plan.batch) is not None:
            return
        before = None if plan.previous == INITIAL_BATCH else self._place(plan.previous)
        place = BatchPlace.of(plan, before)
        first, *others = cut(plan_to_json(plan))
        rows = [MetaRow(plan.batch, f"{PLAN}/{number:06}", {"plan": part}) for number, part in enumerate(others, 1)]
        rows.append(_chain_row(place, plan.batch))
        if plan.previous == INITIAL_BATCH:
            self._table.warn_of_expiry()
            rows.append(MetaRow(READER, READER, {"root": place.root, "version": _VERSION}))
        self._table.put(self._tunnel, rows)
        cells = {"plan": first, "parts": 1 + len(others), "version": _VERSION, **place._asdict()}
        self._table.put_if_absent(self._tunnel, MetaRow(plan.batch, PLAN, cells))

    def check_reader(self, batch: str) -> None:
        """Raise `TunnelTakenError` if a batch does not belong to the chain that was started last."""
        place = self._place(batch)
        reader = None if place is None else self._table.get(self._tunnel, READER, READER)
        if place is not None and reader is not None and reader.cells["root"] != place.root:
            raise reader_replaced(self._tunnel)

    def load_plan(self, batch: str) -> BatchPlan | None:
        """Return the plan of a batch, or None."""
        plan = self._plans.get(batch)
        if plan is None:
            rows = self._table.rows(self._tunnel, batch, first=PLAN, end=_behind(PLAN))
            if not rows:
                return None
            if len(rows) != rows[0].cells.get("parts"):
                raise StoreDamagedError(
                    f"the plan of batch {batch} is incomplete in meta table {self._table.name!r}",
                    received=f"{len(rows)} rows",
                    valid=f"{rows[0].cells.get('parts')} rows",
                )
            plan = plan_from_json("".join(str(row.cells["plan"]) for row in rows))
            _remember(self._places, batch, _place_of(rows[0]))
            _remember(self._plans, batch, plan)
        return plan

    def record_end(self, batch: str, channel: str, end: ChannelEnd) -> ChannelEnd:
        """Save the end of a batch in a channel, unless it has one; return the saved end."""
        cells = {**position_cells(end.position), "rows": end.rows}
        if self._table.put_if_absent(self._tunnel, MetaRow(batch, channel, cells)):
            return end
        saved = self.end(batch, channel)
        if saved is None:
            raise NotFoundError(
                f"the record of batch {batch} was removed while it was read",
                received=f"meta table {self._table.name!r}",
                remedy="set the table's time to live to -1, so that its rows do not expire",
            )
        return saved

    def end(self, batch: str, channel: str) -> ChannelEnd | None:
        """Return the saved end of a batch in one channel, or None."""
        batch_ends = self._ends.get(batch)
        if batch_ends is not None:
            return batch_ends.get(channel)
        row = self._table.get(self._tunnel, batch, channel)
        return None if row is None or "rows" not in row.cells else _end_of(row)

    def ends(self, batch: str) -> dict[str, ChannelEnd]:
        """Return the saved ends of a batch, by channel."""
        batch_ends = self._ends.get(batch)
        if batch_ends is None:
            rows = self._table.rows(self._tunnel, batch, columns=["channelOffset", "rows"])
            batch_ends = {row.channel: _end_of(row) for row in rows if "rows" in row.cells}
            plan = self._plans.get(batch)
            # Only then nothing can come.
            if plan is not None and all(part.channel in batch_ends for part in plan if part.max_rows != 0):
                _remember(self._ends, batch, batch_ends)
        return dict(batch_ends)

    def prune(self, batch: str, keep: int) -> None:
        """Delete the batches that a batch outdates, see `BatchPlace.outdates`."""
        place = self._place(batch)
        if place is None:
            return
        until = f"{place.root}/{place.depth:012}0"
        for row in self._table.rows(self._tunnel, CHAIN, first=f"{place.root}/", end=until):
            _, depth, other = row.channel.rsplit("/", 2)
            if other != batch and place.outdates(BatchPlace(place.root, int(depth)), keep):
                self._forget(other)
                # Deleted last, so that the next call completes an interrupted one.
                self._table.delete(self._tunnel, [row])

    def forget_all(self) -> None:
        """Remove all rows of the tunnel."""
        self._table.delete(self._tunnel, self._table.rows(self._tunnel, None, columns=["version"]))

    # -- positions of others --------------------------------------------------------------------------

    def left_positions(self, batch: str) -> dict[str, Position]:
        """Return the positions of the channels at the end of a batch of headrace or of the EMR connector."""
        rows = self._table.rows(self._tunnel, batch, columns=["channelOffset"])
        return {row.channel: position_of(row.cells) for row in rows if "channelOffset" in row.cells}

    def committed(self) -> dict[str, Position]:
        """Return the committed positions inside a page, by channel. The service cannot save them."""
        return {row.channel: position_of(row.cells) for row in self._table.rows(self._tunnel, COMMITTED)}

    def committed_in(self, channel: str) -> Position | None:
        """Return the committed position inside a page of one channel."""
        row = self._table.get(self._tunnel, COMMITTED, channel)
        return None if row is None else position_of(row.cells)

    def save_committed(self, positions: Mapping[str, Position]) -> None:
        """Save committed positions inside a page."""
        rows = [MetaRow(COMMITTED, channel, position_cells(position)) for channel, position in positions.items()]
        self._table.put(self._tunnel, rows)

    def _place(self, batch: str) -> BatchPlace | None:
        place = self._places.get(batch)
        if place is None:
            row = self._table.get(self._tunnel, batch, PLAN, columns=["root", "depth"])
            if row is None:
                return None
            place = _place_of(row)
            _remember(self._places, batch, place)
        return place

    def _forget(self, batch: str) -> None:
        self._table.delete(self._tunnel, self._table.rows(self._tunnel, batch, columns=["version"]))
        self._places.pop(batch, None)
        self._plans.pop(batch, None)
        self._ends.pop(batch, None)


def cut(text: str) -> list[str]:
    """Cut an ASCII text into parts of at most `PLAN_PART_BYTES`; one, if it is empty."""
    return [text[begin : begin + PLAN_PART_BYTES] for begin in range(0, max(1, len(text)), PLAN_PART_BYTES)]


def position_cells(position: Position) -> dict[str, str | int]:
    """Return a position as the attributes of a row."""
    offset = json.dumps({"logPoint": position.token, "offset": position.skip}, separators=(",", ":"))
    return {"channelOffset": offset, "version": _VERSION}


def position_of(cells: Mapping[str, str | int]) -> Position:
    """Return the position in the attributes of a row; the inverse of `position_cells`.

    Raises:
        StoreDamagedError: the attributes are not a position.
    """
    try:
        offset = json.loads(str(cells["channelOffset"]))
        return Position(str(offset["logPoint"]), int(offset["offset"]))
    except (ValueError, TypeError, KeyError):
        raise StoreDamagedError(
            "a row of the meta table has no valid position",
            received=str(cells.get("channelOffset"))[:200],
            valid='channelOffset {"logPoint": "<token>", "offset": 0}',
        ) from None


def _chain_row(place: BatchPlace, batch: str) -> MetaRow:
    return MetaRow(CHAIN, f"{place.root}/{place.depth:012}/{batch}", {"version": _VERSION})


def _place_of(row: MetaRow) -> BatchPlace:
    return BatchPlace(str(row.cells["root"]), int(row.cells["depth"]))


def _behind(prefix: str) -> str:
    """Return the first text after all texts that begin with ``prefix`` and a slash."""
    return prefix + chr(ord("/") + 1)


def _end_of(row: MetaRow) -> ChannelEnd:
    return ChannelEnd(position_of(row.cells), int(row.cells["rows"]))


def _remember(cache: dict[str, Result], batch: str, value: Result) -> None:
    cache[batch] = value
    while len(cache) > _REMEMBERED:
        del cache[next(iter(cache))]
