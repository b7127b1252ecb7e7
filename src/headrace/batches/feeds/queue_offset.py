"""`QueueOffset`: a position in queues, as a value and as JSON, and the progress of a consumer between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.batches.feeds.feed import PAST_START
from headrace.errors import OptionError
from headrace.ports import Advance


@dataclass(frozen=True)
class QueueOffset:
    """A position of a query in queues.

    Attributes:
        store: the `Store.id` of the store of the queues.
        consumer: the name of the consumer that follows the offsets.
        queues: for each queue and partition number, the index of the first unread row.
        since: the start of the batch that ends at this offset, for queues that the previous offset does not contain.
        ids: the `Queue.id` of each queue. A queue that is dropped and created again gets another id.
        times: in stores that know them, the commit times of the last rows before the offset, in µs since 1970. In an
            older copy of the store that has grown since, the same row index has another time.
    """

    store: str
    consumer: str | None
    queues: Mapping[str, Mapping[int, int]]
    since: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the offset as JSON values, without ``since``, ``ids`` and ``times`` if they are empty."""
        more = {"since": _with_text_keys(self.since), "ids": dict(self.ids), "times": _with_text_keys(self.times)}
        return {
            "store": self.store,
            "consumer": self.consumer,
            "queues": _with_text_keys(self.queues),
            **{name: part for name, part in more.items() if part},
        }

    @classmethod
    def of_json(cls, value: Any) -> QueueOffset:
        """Return the offset of these JSON values; the inverse of `to_json`.

        Raises:
            OptionError: the values are the offset of another kind of source.
        """
        try:
            if not is_queue_offset(value):
                raise ValueError
            queues, since, times = (
                {name: {int(number): int(row) for number, row in rows.items()} for name, rows in part.items()}
                for part in (value["queues"], value.get("since", {}), value.get("times", {}))
            )
            ids = {name: str(queue_id) for name, queue_id in value.get("ids", {}).items()}
        except (ValueError, TypeError, AttributeError):
            raise OptionError(
                "the checkpoint's offset is not the offset of a queue",
                received=str(value)[:200],
                valid='{"store": "<id>", "consumer": null, "queues": {"<queue>": {"0": 5}}}',
                remedy="another source has used this checkpoint location; choose a new location",
            ) from None
        return cls(value["store"], value["consumer"], queues, since, ids, times)


def _with_text_keys(queues: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    return {name: {str(number): row for number, row in rows.items()} for name, rows in queues.items()}


def is_queue_offset(value: Any) -> bool:
    """Return whether parsed JSON has the form of `QueueOffset.to_json`."""
    return (
        isinstance(value, dict)
        and value.keys() - {"since", "ids", "times", PAST_START} == {"store", "consumer", "queues"}
        and isinstance(value["store"], str)
        and isinstance(value["consumer"], str | None)
        and isinstance(value["queues"], dict)
    )


def advances(start: QueueOffset, end: QueueOffset) -> Iterator[Advance]:
    """Yield the progress that a batch between two offsets makes for its consumer; nothing without a consumer."""
    if end.consumer is None:
        return
    for queue, ends in end.queues.items():
        if queue not in start.queues:
            continue
        # A new partition, and a queue that was created again, are read from row 0.
        same = start.ids.get(queue) == end.ids.get(queue)
        starts = start.queues[queue] if same else {}
        moved = {partition: row for partition, row in ends.items() if row != starts.get(partition, 0)}
        if moved:
            yield Advance(end.consumer, queue, moved, {partition: starts.get(partition, 0) for partition in moved})
