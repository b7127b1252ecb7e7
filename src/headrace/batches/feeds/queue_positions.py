"""Start and end positions of a read of queues: earliest, latest, committed, a timestamp, or row indexes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import OptionError
from headrace.model.queues.values import Bounds
from headrace.model.tunnels.values import Start, StartKind
from headrace.ports import Consumer, Queue

_VALID = 'row indexes such as {"clicks": {"0": 5, "1": 7}}, or {"0": 5} for one queue'


@dataclass(frozen=True)
class RowStart:
    """Row indexes by queue name and partition number. With a single queue, the name may be None."""

    rows: Mapping[str | None, Mapping[int, int]]

    @classmethod
    def parse(cls, text: str) -> RowStart:
        """Parse JSON of the form ``{"<queue>": {"0": 5}}`` or ``{"0": 5}``."""
        try:
            value = json.loads(text)
            if not isinstance(value, dict) or not value:
                raise ValueError
            queues = value if isinstance(next(iter(value.values())), dict) else {None: value}
            rows = {name: {int(number): _row(row) for number, row in each.items()} for name, each in queues.items()}
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise OptionError("invalid row indexes", received=repr(text[:200]), valid=_VALID) from None
        return cls(rows)


def _row(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("a row index must be an integer, 0 or larger")
    return value


QueueStart = Start | RowStart


def parse_position(text: str) -> QueueStart:
    """Parse ``committed``, ``earliest``, ``latest``, an ISO 8601 timestamp, or row indexes as JSON."""
    if text.lstrip().startswith("{"):
        return RowStart.parse(text)
    try:
        return Start.parse(text)
    except OptionError as error:
        valid = f"{error.valid}; for queues also {_VALID}"
        raise OptionError(error.problem, received=error.received, valid=valid) from None


def check_positions(position: QueueStart, queues: Sequence[str]) -> None:
    """Raise `OptionError` for row indexes of other queues, and for a batch of a tunnel."""
    if not isinstance(position, RowStart):
        if position.kind is StartKind.BATCH:
            raise OptionError(
                "a read of a queue cannot start after a batch of a tunnel",
                received=f"batch:{position.batch}",
                valid=f"committed, earliest, latest, a timestamp, or {_VALID}",
            )
        return
    for name in position.rows:
        if name is None and len(queues) > 1:
            raise OptionError("row indexes for several queues need the names of the queues", valid=_VALID)
        if name is not None and name not in queues:
            raise OptionError("row indexes for a queue that the query does not read", received=repr(name), valid=queues)


def resolve_position(
    position: QueueStart, queue: Queue, bounds: Mapping[int, Bounds], consumer: Consumer | None = None
) -> dict[int, int]:
    """Return the row index of a position in each partition.

    ``committed`` is the consumer's offset. Without a consumer, and in partitions that it has never consumed, it is the
    earliest row. If row indexes are set for some partitions only, the others start at their earliest row.

    Raises:
        OptionError: a row index is after the end, or a partition does not exist.
    """
    if isinstance(position, RowStart):
        return _given_rows(position, queue.name, bounds)
    match position.kind:
        case StartKind.LATEST:
            return {number: rows.upper for number, rows in bounds.items()}
        case StartKind.TIMESTAMP:
            assert position.timestamp is not None
            moment = position.timestamp.timestamp()
            return {number: queue.row_at(number, moment) for number in bounds}
        case StartKind.COMMITTED if consumer is not None:
            consumed = {
                status.partition: status.offset
                for status in consumer.status(queue.name)
                if status.offset > 0 or status.last_consumed is not None
            }
            return {number: consumed.get(number, rows.lower) for number, rows in bounds.items()}
        case _:
            return {number: rows.lower for number, rows in bounds.items()}


def _given_rows(position: RowStart, queue: str, bounds: Mapping[int, Bounds]) -> dict[int, int]:
    given = position.rows.get(queue, position.rows.get(None, {}))
    for number, row in given.items():
        if number not in bounds:
            raise OptionError(f"queue {queue!r} has no such partition", received=number, valid=list(bounds))
        if row > bounds[number].upper:
            raise OptionError(
                f"partition {number} of queue {queue!r} has no such row yet",
                received=row,
                valid=f"{bounds[number].lower} to {bounds[number].upper}",
            )
    return {number: given.get(number, rows.lower) for number, rows in bounds.items()}
