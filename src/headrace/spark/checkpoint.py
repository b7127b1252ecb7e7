"""What a query's checkpoint tells about the query and its batches, in a directory, in a store or wherever Spark reads.

The checkpoint belongs to Spark; it is only read here, but for what a killed process left half-written. Its ``metadata``
file holds the query's id, and the file ``offsets/<batch>``, written before the batch runs, holds what the batch reads,
and when it was planned: a line with the version, a line of JSON about the batch, and a line for each source with the
offset where the batch ends.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headrace.checkpoint_server.locations import parse_served, store_key
from headrace.checkpoint_server.server import served_files
from headrace.feeds.queue_offset import QueueOffset, advances, is_queue_offset
from headrace.ports import Advance, Files, Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark tells the jobs of a batch, and their tasks, which query and which batch they work for.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
_log = logging.getLogger("headrace")


def query_id(spark: SparkSession, checkpoint: str, store: Store | None = None) -> str:
    """Return the id of the streaming query whose batch is being written: the job's identity."""
    if not is_connect(spark):
        job = spark.sparkContext.getLocalProperty(QUERY_ID)
        if job:
            return job
    # Over Spark Connect a batch is an operation of its own and knows nothing of its query; the checkpoint does.
    text = _read(checkpoint, "metadata", spark, store)
    return str(json.loads(text or "{}")["id"])


def batch_content(checkpoint: str, batch: int, spark: SparkSession | None = None, *, store: Store | None = None) -> str:
    """Return what tells a batch from any other that is ever planned under its number; empty if that is unknown.

    Args:
        spark: without a session, only a checkpoint in a local directory or a store can be read.
        store: the store that is written; a checkpoint in it can be read in every process, one in another store in the
            driver's only.
    """
    text = _read(checkpoint, f"offsets/{batch}", spark, store)
    return "" if text is None else hashlib.sha256(text.encode()).hexdigest()


def queue_progress(
    checkpoint: str, batch: int, store_id: str, spark: SparkSession | None = None, *, store: Store | None = None
) -> tuple[Advance, ...]:
    """Return how far a batch takes the consumers, in one store, of the queues that it reads.

    Empty where the checkpoint cannot be read: then the source moves its consumer when the next batch is planned.
    So it does for a batch that fixes where a queue's stream begins, which has no rows.
    """
    if batch == 0:
        return ()
    try:
        ends = _queue_offsets(_read(checkpoint, f"offsets/{batch}", spark, store), store_id)
        earlier = _read(checkpoint, f"offsets/{batch - 1}", spark, store) if ends else None
        starts = _queue_offsets(earlier, store_id)
    except Exception:
        # Whatever file system it is on: the rows are staged, and can be published without this.
        _log.warning("the offsets of batch %d cannot be read; its consumers follow later", batch, exc_info=True)
        return ()
    return tuple(
        advance for source, end in ends.items() if source in starts for advance in advances(starts[source], end)
    )


def clear_unfinished_start(checkpoint: str) -> None:
    """Remove what a process left that was killed while it wrote the offsets of a query's first batch.

    Spark 4.3 refuses to start a stateful query without a batch whose checkpoint has any file under ``offsets``
    (``STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY``), be it the hidden file that it had not renamed yet: that query
    could never start again. Only a checkpoint in a local directory, or in a store, is looked after.
    """
    in_store = _in_store(checkpoint, None)
    if in_store is not None:
        _clear_in_store(*in_store)
    directory = _local(checkpoint)
    if directory is None:
        return
    files = [*directory.glob("offsets/*"), *directory.glob("commits/*")]
    if all(file.name.startswith(".") for file in files):
        for file in files:
            file.unlink(missing_ok=True)


def _clear_in_store(files: Files, directory: str) -> None:
    logs = [f"{directory}/{name}" for name in ("offsets", "commits")]
    found = [status for log in logs if files.status(log) is not None for status in files.list(log)]
    if all(status.name.startswith(".") for status in found):
        for status in found:
            files.remove(status.path)


def _queue_offsets(text: str | None, store_id: str) -> Mapping[str, QueueOffset]:
    """Return the offsets, by source, where a batch ends in queues of a store, from its offsets file."""
    offsets = {}
    for source, line in _source_lines(text or ""):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if is_queue_offset(value) and value["store"] == store_id:
            offsets[source] = QueueOffset.of_json(value)
    return offsets


def _source_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield (source, its line) of an offsets file; a source that has no offset yet has the line ``-``."""
    version, *lines = text.split("\n")
    for number, line in enumerate(lines[1:]):
        if version == "v1":
            yield str(number), line
        elif version == "v2":
            source, _, offset = line.partition(":")
            yield source, offset


def _read(checkpoint: str, name: str, spark: SparkSession | None, store: Store | None) -> str | None:
    in_store = _in_store(checkpoint, store)
    if in_store is not None:
        files, root = in_store
        content = files.read(f"{root}/{name}")
        return None if content is None else content.decode()
    directory = _local(checkpoint)
    if directory is not None:
        path = directory / name
        return path.read_text() if path.is_file() else None
    if spark is None:
        return None
    lines = spark.read.text(f"{checkpoint.rstrip('/')}/{name}").collect()
    return "\n".join(row.value for row in lines)


def _in_store(checkpoint: str, store: Store | None) -> tuple[Files, str] | None:
    """Return the files and the path of a checkpoint in a store: in this one, or in one that this process serves."""
    served = parse_served(checkpoint)
    if served is None:
        return None
    key, path = served
    if store is not None and store.capabilities.files and store_key(store.id) == key:
        return store.files(), path
    return served_files(checkpoint)


def _local(checkpoint: str) -> Path | None:
    """Return the directory of a checkpoint; None if it is not in a local one."""
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file"):
        return None
    # Hadoop takes the path of a URL as it stands: %20 is no blank.
    return Path(re.sub(r"^file:(//[^/]*)?", "", checkpoint, flags=re.IGNORECASE) if parts.scheme else checkpoint)


def is_connect(spark: SparkSession) -> bool:
    """Tell whether a session is one of Spark Connect."""
    return "connect" in type(spark).__module__
