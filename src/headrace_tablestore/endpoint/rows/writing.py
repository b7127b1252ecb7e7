"""Writes of rows: conditions, puts, updates with increments and deletions of cells, deletes.

A write reads its rows, checks its conditions, and changes the rows in one transaction. `bulk_writes` writes puts and
updates without conditions, which most clients send, as one Arrow batch.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import HeadraceError, SchemaError
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import Key, TableSchema
from headrace.stores.embedded.for_servers import EmbeddedTable
from headrace_tablestore.endpoint.errors import condition_failed, invalid, refused, service_error
from headrace_tablestore.endpoint.instances import Instance, staying
from headrace_tablestore.endpoint.rows import transactions
from headrace_tablestore.endpoint.rows.filters import Filter, Pagination, column_names, matches, parse_filter
from headrace_tablestore.endpoint.rows.keys import check_written_key, key_table, whole_key
from headrace_tablestore.endpoint.rows.layout import (
    CHANGE,
    TIMESTAMP,
    TIMESTAMPS,
    VERSIONS,
    CellType,
    CellVersion,
    Layout,
    RowState,
    cell_type,
    check_value_size,
    layout_of,
    pack_cells,
    states_of,
    whole_row,
)
from headrace_tablestore.endpoint.rows.reading import check_column_name
from headrace_tablestore.endpoint.rows.transactions import DecidedChange, FoundRows
from headrace_tablestore.endpoint.rows.versions import with_version
from headrace_tablestore.endpoint.tables.settings import TableSettings
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.limits import MAX_COLUMNS_PER_WRITE
from headrace_tablestore.wire.plainbuffer.rows import encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, CellOp, Row, Value, values_of_key

_UNIT_BYTES = 4096
_LARGEST = (1 << 63) - 1
# A number for a key is the version of the commit and, in the lower bits, the index of the row in the request.
_ROWS_BITS = 10
_ATTEMPTS = 5


@dataclass(frozen=True)
class RowWrite:
    """A requested write of one row.

    Attributes:
        kind: `pb.PUT`, `pb.UPDATE` or `pb.DELETE`.
        row: the decoded change.
        size: the size of the change on the wire.
        exists: whether the row must exist; None for no condition.
        condition: the condition on the cells of the row.
        returns: `pb.RT_NONE`, `pb.RT_PK` or `pb.RT_AFTER_MODIFY`.
        columns: the columns to return after the change.
    """

    kind: int
    row: Row
    size: int
    exists: bool | None = None
    condition: Filter | None = None
    returns: int = pb.RT_NONE
    columns: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        kind: int,
        row: Row,
        size: int,
        condition: pb.Condition,
        content: pb.ReturnContent,
        known: Collection[str],
    ) -> RowWrite:
        """Return a write with the condition and the returned content of a request.

        Args:
            known: the names of the table's columns, which may be invalid in Tablestore.

        Raises:
            ServiceError: OTSParameterInvalid: the row is invalid for any table. In a batch this fails the whole
                request.
        """
        _check(kind, row, known)
        wanted = {pb.IGNORE: None, pb.EXPECT_EXIST: True, pb.EXPECT_NOT_EXIST: False}
        columns = condition.column_condition
        parsed = parse_filter(columns) if columns else None
        if isinstance(parsed, Pagination):
            raise invalid("a condition cannot be a column pagination filter")
        for name in () if parsed is None else column_names(parsed):
            check_column_name(name, known)
        exists = wanted[condition.row_existence]
        return cls(kind, row, size, exists, parsed, content.return_type, tuple(content.return_column_names))

    @property
    def conditional(self) -> bool:
        return self.exists is not None or self.condition is not None


@dataclass
class Outcome:
    """The result of a write: an error, or the returned row (may be empty), and its cost."""

    error: ServiceError | None = None
    row: bytes = b""
    read_units: int = 0
    write_units: int = 0


def write_units(size: int) -> int:
    """Return the capacity units of a number of bytes."""
    return max(1, -(-size // _UNIT_BYTES))


def write_rows(
    instance: Instance, table_name: str, writes: Sequence[RowWrite], *, atomic: bool = False
) -> list[Outcome]:
    """Apply the writes of one table in one transaction. Each write sees the previous ones.

    Args:
        atomic: apply all writes or none; the first error is raised. The rows must have the same first key value.

    Returns:
        An outcome for each write. A failed write does not change its row.

    Raises:
        NotFoundError: the table does not exist.
    """
    table = instance.table(table_name)
    settings = instance.settings.get(table_name)
    schema = table.schema
    outcomes = [Outcome() for _ in writes]
    steps: list[_Step] = []
    for write, outcome in zip(writes, outcomes, strict=True):
        try:
            key = whole_key(write.row, schema, None if write.kind == pb.DELETE else settings.auto_increment)
            _check_fits(write, schema, settings)
            steps.append(_Step(write, outcome, key))
        except HeadraceError as error:
            outcome.error = service_error(error)
            if atomic:
                raise
    if not steps:
        return outcomes
    if atomic:
        _check_together([step.key[0] for step in steps])
    layout = add_columns(table, (cell for step in steps for cell in _types(step.write.row)))
    keys = key_table([step.key for step in steps if None not in step.key], schema)
    with staying(table, schema, layout.schema):
        transactions.transact(table, keys, _Transaction(steps, settings, atomic=atomic).decide)
    return outcomes


def add_columns(table: EmbeddedTable, cells: Iterable[tuple[str, CellType]]) -> Layout:
    """Add the missing columns for cells of these names and types. Return the layout of the table."""
    wanted = list(dict.fromkeys(cells))
    for _ in range(_ATTEMPTS):
        layout = layout_of(table.schema)
        missing = layout.missing(wanted)
        if not missing:
            return layout
        try:
            table.add_columns(missing)
        except SchemaError:
            # Another request has added one of the columns, or there are too many.
            if layout_of(table.schema) is layout:
                raise
    raise ServiceError("OTSRowOperationConflict", "The table's columns are being changed.")


def _types(row: Row) -> Iterable[tuple[str, CellType]]:
    for cell in row.cells:
        kind = cell_type(cell.value)
        if kind is not None and cell.op in (None, CellOp.INCREMENT):
            yield cell.name, kind


# -- checks ---------------------------------------------------------------------------------------------


def _check(kind: int, row: Row, known: Collection[str]) -> None:
    """Raise `ServiceError` if a write is invalid for any table with the ``known`` columns."""
    check_written_key(kind, row.key)
    if kind == pb.DELETE:
        return
    if row.delete:
        raise invalid("a put or an update cannot have the mark of a deleted row")
    if len(row.cells) > MAX_COLUMNS_PER_WRITE:
        raise refused(
            "The number of attribute columns exceeds the limit, "
            f"limit count: {MAX_COLUMNS_PER_WRITE}, column count: {len(row.cells)}."
        )
    if kind == pb.UPDATE:
        if not row.cells:
            raise refused("Attribute column is missing.")
    elif any(cell.op is not None for cell in row.cells):
        raise invalid("a put can only have cells with values")
    for cell in row.cells:
        _check_cell(cell, known)


def _check_cell(cell: Cell, known: Collection[str]) -> None:
    check_column_name(cell.name, known)
    if cell.timestamp is not None and not 0 <= cell.timestamp < _LARGEST // 1000:
        raise refused("Timestamp must be in range [0, INT64_MAX/1000).")
    match cell.op:
        case CellOp.DELETE_ALL:
            return
        case CellOp.DELETE_ONE:
            if cell.timestamp is None:
                raise invalid(f"deleting a version of column {cell.name!r} needs its timestamp")
            return
        case CellOp.INCREMENT:
            if type(cell.value) is not int:
                raise invalid(f"column {cell.name!r} can only be incremented by an integer")
            return
    if cell_type(cell.value) is None:
        raise invalid(f"column {cell.name!r} has no value")
    check_value_size(cell.name, cell.value)


def _check_fits(write: RowWrite, schema: TableSchema, settings: TableSettings) -> None:
    """Raise `ServiceError` if a write is invalid for its table, whatever the row is."""
    if write.kind == pb.DELETE:
        return
    if write.kind == pb.UPDATE and not settings.allow_update:
        raise refused("Update operation is not allowed in this table")
    now = time.time_ns() // 1_000_000
    for cell in write.row.cells:
        if cell.name in schema.primary_key:
            raise invalid("a cell has the name of a key column", received=repr(cell.name))
        if cell.timestamp is not None and cell.op is None and abs(cell.timestamp - now) > settings.deviation * 1000:
            raise invalid(
                f"the timestamp of column {cell.name!r} is too far from now",
                received=cell.timestamp,
                valid=f"within {settings.deviation} seconds of {now}",
            )


def _check_together(partition_keys: Sequence[Any]) -> None:
    first = partition_keys[0]
    for other in partition_keys:
        if other != first:
            texts = [key.decode(errors="replace") if isinstance(key, bytes) else key for key in (first, other)]
            problem = f"Data out of scope of atomic. Atomic PartKey:{texts[0]}. Data PartKey:{texts[1]}"
            raise ServiceError("OTSDataOutOfRange", problem)


# -- one transaction --------------------------------------------------------------------------------------


@dataclass
class _Step:
    """A valid write. Its key has None in place of a number that the server chooses."""

    write: RowWrite
    outcome: Outcome
    key: tuple[Any, ...]


class _Transaction:
    """Decides the writes of one request; see `transact`."""

    def __init__(self, steps: Sequence[_Step], settings: TableSettings, *, atomic: bool) -> None:
        self._steps = steps
        self._settings = settings
        self._atomic = atomic
        self._now = 0
        self._expired_before = 0
        self._states: dict[Key, RowState | None] = {}

    def decide(self, found: FoundRows) -> list[DecidedChange]:
        self._now = time.time_ns() // 1_000_000
        layout = layout_of(found.schema)
        self._expired_before = self._settings.expired_before(self._now)
        states = states_of(found.rows, found.present.tolist(), layout, self._now)
        known = [step.key for step in self._steps if None not in step.key]
        self._states = dict(zip(known, states, strict=True))
        changes = _Changes(found.schema, keep_order=len(self._states) < len(known))
        for number, step in enumerate(self._steps):
            number_given = found.version << _ROWS_BITS | number
            step.key = tuple(number_given if value is None else value for value in step.key)
            try:
                self._decide_one(step, layout, changes)
            except ServiceError as error:
                step.outcome.error = error
                if self._atomic:
                    raise
        return changes.decided()

    def _decide_one(self, step: _Step, layout: Layout, changes: _Changes) -> None:
        write, outcome = step.write, step.outcome
        state = self._states.get(step.key)
        visible = None if state is None else state.visible(self._expired_before)
        if write.conditional:
            outcome.read_units = 1
            self._check_condition(write, step.key, None if visible is None else state, layout.schema)
        outcome.write_units = write_units(write.size)
        after: RowState | None = None
        if write.kind == pb.PUT:
            versions: dict[str, list[CellVersion]] = {}
            for cell in write.row.cells:
                self._set_cell(versions, cell, layout)
            after = self._state(versions)
            changes.put(step.key, whole_row(after.cells, layout, self._now, after.older))
        elif write.kind == pb.UPDATE:
            after = self._update(step, state, layout, changes)
        else:
            changes.delete(step.key)
        self._states[step.key] = after
        key = tuple(zip(layout.schema.primary_key, step.key, strict=True))
        if write.returns == pb.RT_PK:
            outcome.row = encode_row(Row(key))
        elif write.returns == pb.RT_AFTER_MODIFY and after is not None:
            named = [after.cells[name].named(name) for name in write.columns if name in after.cells]
            outcome.row = encode_row(Row(key, tuple(named)))

    def _check_condition(self, write: RowWrite, key: Key, state: RowState | None, schema: TableSchema) -> None:
        if write.exists is not None and write.exists is (state is None):
            raise condition_failed()
        if write.condition is not None:
            cells: dict[str, list[Value]] = {}
            if state is not None:
                for name, versions in state.versions(self._expired_before).items():
                    cells[name] = [version.value for version in versions[: self._settings.max_versions]]
                cells.update(
                    (name, [value]) for name, value in zip(schema.primary_key, values_of_key(key), strict=True)
                )
            if not matches(write.condition, cells):
                raise condition_failed()

    def _update(self, step: _Step, state: RowState | None, layout: Layout, changes: _Changes) -> RowState | None:
        versions = {} if state is None else state.versions(self._expired_before)
        effective: list[Cell] = []
        for cell in step.write.row.cells:
            change = self._set_cell(versions, cell, layout)
            if change is not None:
                effective.append(change)
            if cell.op is CellOp.INCREMENT:
                step.outcome.read_units = 1
        if not effective or (not versions and state is None):
            # Deletions of missing cells do not create a row.
            return state
        touched = {cell.name for cell in effective}
        row = dict.fromkeys(each.column for name in touched for each in layout.of_name.get(name, ()))
        after = self._state(versions)
        if state is not None:
            # Expired cells stay expired.
            expired = {name: version for name, version in state.cells.items() if name not in touched}
            after = replace(after, cells={**expired, **after.cells})
        full = whole_row(after.cells, layout, self._now, after.older)
        if layout.versioned:
            full[CHANGE] = pack_cells(effective)
        row.update(
            {column: full[column] for column in [*row, TIMESTAMP, TIMESTAMPS, VERSIONS, CHANGE] if column in full}
        )
        changes.update(step.key, row)
        return after

    def _state(self, versions: Mapping[str, Sequence[CellVersion]]) -> RowState:
        cells = {name: each[0] for name, each in versions.items()}
        return RowState(cells, self._now, {name: each[1:] for name, each in versions.items() if len(each) > 1})

    def _set_cell(self, versions: dict[str, list[CellVersion]], cell: Cell, layout: Layout) -> Cell | None:
        """Apply one cell of a put or an update. Return the effective change; None without effect."""
        most = self._settings.max_versions if layout.versioned else 1
        before = versions.get(cell.name, [])
        if cell.op is None:
            timestamp = self._now if cell.timestamp is None or not layout.timed else cell.timestamp
            added = CellVersion(cell.value, timestamp)
        elif cell.op is CellOp.INCREMENT:
            added = self._incremented(cell, before[0] if before else None)
        else:
            # Without timestamps, there are no versions to choose from.
            is_one = cell.op is CellOp.DELETE_ONE and layout.timed
            left = [version for version in before if is_one and version.timestamp != cell.timestamp]
            if len(left) == len(before):
                return None
            versions[cell.name] = left
            if not left:
                del versions[cell.name]
            return cell
        after = with_version(before, added, most)
        if added not in after:
            # The version is older than all kept versions.
            return None
        versions[cell.name] = after
        return added.named(cell.name)

    def _incremented(self, cell: Cell, newest: CellVersion | None) -> CellVersion:
        assert type(cell.value) is int
        before = 0 if newest is None else newest.value
        if type(before) is not int:
            raise invalid(f"column {cell.name!r} has no integer, and cannot be incremented")
        total = before + cell.value
        if not -_LARGEST - 1 <= total <= _LARGEST:
            raise invalid(f"column {cell.name!r} cannot hold the sum of the increment", received=total)
        return CellVersion(total, self._now if newest is None else max(self._now, newest.timestamp))


class _Changes:
    """Collects changes of rows in groups of the same kind and columns.

    Args:
        schema: the schema of the table.
        keep_order: keep the order of all changes, because some key occurs several times.
    """

    def __init__(self, schema: TableSchema, *, keep_order: bool) -> None:
        self._key = schema.primary_key
        self._keep_order = keep_order
        self._groups: list[tuple[RowChange, frozenset[str], list[dict[str, Any]]]] = []

    def put(self, key: Key, row: dict[str, Any]) -> None:
        self._add(RowChange.PUT, frozenset(), key, row)

    def update(self, key: Key, row: dict[str, Any]) -> None:
        """Set all columns of the row, including nulls."""
        self._add(RowChange.UPDATE, frozenset(row), key, row)

    def delete(self, key: Key) -> None:
        self._add(RowChange.DELETE, frozenset(), key, {})

    def decided(self) -> list[DecidedChange]:
        return [DecidedChange(change, rows, change is RowChange.UPDATE) for change, _, rows in self._groups]

    def _add(self, change: RowChange, columns: frozenset[str], key: Key, row: dict[str, Any]) -> None:
        row.update(zip(self._key, key, strict=True))
        for group_change, group_columns, rows in self._groups[-1:] if self._keep_order else self._groups:
            if group_change is change and group_columns == columns:
                rows.append(row)
                return
        self._groups.append((change, columns, [row]))
