"""Streams of Spark 4.0 and 4.1, which tell a source neither the start of a batch nor the trigger.

`stream_reader` gives the reader of a source the methods that these versions call. `trigger_of` and `started` are the
trigger ``availableNow`` of headrace's own queries there. With newer versions all three do nothing.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from headrace.batches.feeds.feed import PAST_START, Offset
from headrace.spark.executors import Sent
from headrace.spark.versions import STARTS, PlanningReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.query import StreamingQuery

_POLLING_SECONDS = 0.2
_PAUSE_SECONDS = 0.5
_log = logging.getLogger("headrace")


def stream_reader(reader: PlanningReader) -> DataSourceStreamReader:
    """Return a reader with the methods that the installed version calls."""
    return reader if STARTS.present else ReaderWithoutStarts(reader)


class ReaderWithoutStarts(Sent, DataSourceStreamReader):
    """A reader for Spark 4.0 and 4.1, which ask for the end of the next batch without its start.

    The start is the end of the batch that Spark has planned last. Before the first batch after a restart, Spark plans
    an empty one at the last offset of the checkpoint.

    A reader cannot see the trigger. So every query first reads the rows that exist at its start, in batches that end
    there. Then there is a pause without new rows, in which `started` stops a query. The offsets of later batches say
    that they are later, for a query with several sources, whose pauses differ.
    """

    def __init__(self, reader: PlanningReader) -> None:
        self._reader = reader
        self._initial: Offset | None = None
        self._start: Offset | None = None
        self._planned: Offset | None = None
        self._end_is_fixed: bool | None = None
        self._pauses = False

    def initialOffset(self) -> Offset:
        if self._initial is None:
            self._initial = self._reader.initialOffset()
        return self._initial

    def latestOffset(self) -> Offset:  # type: ignore[override]
        # With spark.sql.streaming.triggerAvailableNowWrapper.enabled, Spark also calls this between plan and batch.
        if self._planned is None:
            start = self._start or self.initialOffset()
            end = self._end_of_batch(start)
            self._planned = None if end == start else end
            return end
        return self._planned

    def _end_of_batch(self, start: Offset) -> Offset:
        if self._end_is_fixed is None:
            self._reader.prepareForTriggerAvailableNow()
            self._end_is_fixed = True
        if self._end_is_fixed:
            if (end := self._reader.next_offset(start)) != start:
                return end
            self._reader.lift_end()
            self._end_is_fixed, self._pauses = False, True
            return start
        if self._pauses:
            time.sleep(_PAUSE_SECONDS)
            self._pauses = False
        end = self._reader.next_offset(start)
        return end if end == start else {**end, PAST_START: True}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._start, self._planned = end, None
        return [] if start == end else self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def commit(self, end: Offset) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()


def started(start: Callable[[], StreamingQuery], trigger: Mapping[str, Any]) -> StreamingQuery:
    """Start a query of headrace, which reads all existing rows with the trigger ``availableNow``."""
    query = start()
    if trigger.get("availableNow") and not STARTS.present:
        for wait in (_wait_for_rest, _wait_for_batch_past_start):
            threading.Thread(target=_stop, args=(query, wait), name=f"headrace-end-{query.id}", daemon=True).start()
    return query


def trigger_of(trigger: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the trigger with which Spark starts a query; see `started`."""
    return {"processingTime": "0 seconds"} if trigger.get("availableNow") and not STARTS.present else trigger


def _wait_for_rest(query: StreamingQuery) -> None:
    """Wait until a query has no new rows."""
    query.processAllAvailable()


def _wait_for_batch_past_start(query: StreamingQuery) -> None:
    """Wait until a query has read what existed at its start, although sources have new rows all the time.

    The first batch does not count: it can be the last one of a former run.
    """
    first: int | None = None
    while not query.awaitTermination(_POLLING_SECONDS):  # type: ignore[arg-type]
        progress = query.lastProgress
        if progress is None:
            continue
        batch = progress["batchId"]
        first = batch if first is None else first
        if batch != first and all(map(_is_past_start, json.loads(progress.json)["sources"])):
            return


def _is_past_start(source: Mapping[str, Any]) -> bool:
    """Return whether a source of a batch has no rows from before the start left."""
    end = source["endOffset"]
    return end == source["startOffset"] or (isinstance(end, dict) and PAST_START in end)


def _stop(query: StreamingQuery, wait: Callable[[StreamingQuery], None]) -> None:
    """Stop a query when a function returns."""
    try:
        wait(query)
        query.stop()
    except Exception:
        # The query has failed, and says so to those who wait for it, or the session has ended.
        _log.debug("query %s was not stopped", query.id, exc_info=True)
