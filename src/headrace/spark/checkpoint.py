"""What a query's checkpoint tells about the query and its batches.

The checkpoint belongs to Spark; it is only read here. Its ``metadata`` file holds the query's id, and the file
``offsets/<batch>``, written before the batch runs, holds what the batch reads, and when it was planned.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark tells the jobs of a batch, and their tasks, which query and which batch they work for.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


def query_id(spark: SparkSession, checkpoint: str) -> str:
    """Return the id of the streaming query whose batch is being written: the job's identity."""
    if not _is_connect(spark):
        job = spark.sparkContext.getLocalProperty(QUERY_ID)
        if job:
            return job
    # Over Spark Connect a batch is an operation of its own and knows nothing of its query; the checkpoint does.
    text = _read(checkpoint, "metadata", spark)
    return str(json.loads(text or "{}")["id"])


def batch_content(checkpoint: str, batch: int, spark: SparkSession | None = None) -> str:
    """Return what tells a batch from any other that is ever planned under its number; empty if that is unknown.

    Without a session, only a checkpoint in a local directory can be read.
    """
    text = _read(checkpoint, f"offsets/{batch}", spark)
    return "" if text is None else hashlib.sha256(text.encode()).hexdigest()


def _read(checkpoint: str, name: str, spark: SparkSession | None) -> str | None:
    parts = urlsplit(checkpoint)
    if parts.scheme in ("", "file"):
        path = Path(unquote(parts.path) if parts.scheme else checkpoint) / name
        return path.read_text() if path.is_file() else None
    if spark is None:
        return None
    lines = spark.read.text(f"{checkpoint.rstrip('/')}/{name}").collect()
    return "\n".join(row.value for row in lines)


def _is_connect(spark: SparkSession) -> bool:
    return "connect" in type(spark).__module__
