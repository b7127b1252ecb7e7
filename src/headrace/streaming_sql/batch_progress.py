"""Spark's progress reports as records of batches. Pure functions over the JSON of a report."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from headrace.batches.sinks.published_rows import rows_of
from headrace.model.tunnels.lag import Lag
from headrace.spark.listener import lag_of
from headrace.streaming_sql.stream_history import BatchRecord


def has_batch(report: Mapping[str, Any]) -> bool:
    """Return whether a batch has run. Without new rows, Spark reports the number of the next batch at times."""
    return "addBatch" in report.get("durationMs", {})


def total_lag(report: Mapping[str, Any]) -> Lag | None:
    """Return the lag of all sources of a report; None if no source reports its lag."""
    lags = [source.lag for source in lag_of(dict(report)) if source is not None]
    return Lag.total(lags) if lags else None


def batch_record(report: Mapping[str, Any]) -> BatchRecord:
    """Return the record of the batch of a report."""
    state = report.get("stateOperators") or []
    written = int((report.get("sink") or {}).get("numOutputRows", -1))
    return BatchRecord(
        time=_seconds(report["timestamp"]),
        batch=int(report["batchId"]),
        rows_in=sum(int(source["numInputRows"]) for source in report["sources"]),
        # Spark reports -1 for a sink that does not count.
        rows_out=rows_of(report["id"], int(report["batchId"])) if written < 0 else written,
        durations={phase: millis / 1000 for phase, millis in report.get("durationMs", {}).items()},
        lag=total_lag(report),
        # Before the first row with a time, the watermark is the year 1970.
        watermark=_seconds((report.get("eventTime") or {}).get("watermark", "")) or None,
        state_rows=sum(int(operator["numRowsTotal"]) for operator in state) if state else None,
        state_bytes=sum(int(operator["memoryUsedBytes"]) for operator in state) if state else None,
    )


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp() if text else 0.0
