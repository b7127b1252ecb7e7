"""Reads the checkpoint of a query: the query's id, and the offsets of its batches.

The checkpoint can be in a local directory, in a store, or in a file system that Spark reads. Spark writes it; headrace
only reads it, except that `clear_unfinished_start` deletes files. The file ``metadata`` has the query's id. Spark
writes the file ``offsets/<batch>`` before the batch runs: a line with the version, a line of JSON with the time of
planning, and a line for each source with the offset where the batch ends.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.batches.feeds.queue_offset import QueueOffset, advances, is_queue_offset
from headrace.batches.feeds.tunnel_feed import TRUNCATES, ReadTunnel, tunnel_of
from headrace.checkpoint_server.locations import parse_served, store_key
from headrace.checkpoint_server.server import served_files
from headrace.errors import DataLossError
from headrace.formats.checkpoint_locations import parse_location
from headrace.formats.registry import checkpoint_scheme
from headrace.ports import Advance, Files, Store
from headrace.spark.connect import is_connect
from headrace.stores.registry import open as open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Local properties that Spark sets for the jobs and tasks of a batch.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
_log = logging.getLogger("headrace")


def query_id(spark: SparkSession, checkpoint: str, store: Store | None = None) -> str:
    """Return the id of the streaming query whose batch is being written. It identifies the job."""
    if not is_connect(spark):
        job = spark.sparkContext.getLocalProperty(QUERY_ID)
        if job:
            return job
    # Spark Connect runs a batch as an operation without these properties.
    return _id_in(_read(checkpoint, "metadata", spark, store) or "{}")


def stored_query_id(checkpoint: str, store: Store | None = None) -> str | None:
    """Return the id of the query that has a checkpoint; None if there is none, or only Spark can read it."""
    text = _read(checkpoint, "metadata", None, store)
    return None if text is None else _id_in(text)


def _id_in(metadata: str) -> str:
    return str(json.loads(metadata)["id"])


@dataclass(frozen=True)
class BatchOffsets:
    """The file with the offsets of a batch, which is read once. It has no text if the checkpoint cannot be read."""

    _batch: int
    _text: str | None
    _earlier: Callable[[], str | None]

    @classmethod
    def read(
        cls, checkpoint: str, batch: int, spark: SparkSession | None = None, *, store: Store | None = None
    ) -> BatchOffsets:
        """Read the offsets of a batch.

        Args:
            spark: the session. Without it, only a checkpoint in a local directory or a store can be read.
            store: the store that the query writes. A checkpoint in this store can be read in every process, a
                checkpoint in another store only in the driver's process.
        """
        return cls(
            batch,
            _read(checkpoint, f"offsets/{batch}", spark, store),
            lambda: _read(checkpoint, f"offsets/{batch - 1}", spark, store),
        )

    @property
    def content(self) -> str:
        """A hash of the offsets; empty without them. Another batch that is planned with the same number has another."""
        return "" if self._text is None else hashlib.sha256(self._text.encode()).hexdigest()

    @property
    def tunnels(self) -> list[ReadTunnel]:
        """The tunnels that the batch reads."""
        return [found for _, offset in _json_offsets(self._text or "") if (found := tunnel_of(offset)) is not None]

    @property
    def truncates(self) -> set[str]:
        """The tables with whose TRUNCATE the batch begins, as far as its plan knows; "" for the one of its tunnel."""
        offsets = [offset for _, offset in _json_offsets(self._text or "") if tunnel_of(offset) is not None]
        return {table for offset in offsets for table in offset.get(TRUNCATES, ())}

    def advances(self, store_id: str) -> tuple[Advance, ...]:
        """Return the advances of the consumers in one store by which the batch reads queues.

        The result is empty if the checkpoint cannot be read: the source then advances its consumer when Spark plans the
        next batch. It is also empty for the first batch, which has no rows and only fixes the starting position.
        """
        if self._batch == 0:
            return ()
        try:
            ends = _queue_offsets(self._text, store_id)
            starts = _queue_offsets(self._earlier() if ends else None, store_id)
        except Exception:
            # A file system can raise any error. The staged rows can be published without the advances.
            _log.warning(
                "the offsets of batch %d cannot be read; its consumers advance later", self._batch, exc_info=True
            )
            return ()
        return tuple(
            advance for source, end in ends.items() if source in starts for advance in advances(starts[source], end)
        )


def source_offsets(
    checkpoint: str, batch: int, spark: SparkSession | None = None, *, store: Store | None = None
) -> list[Any]:
    """Return the offsets of all sources at the end of a batch, in the order in which the query has the sources.

    Raises:
        DataLossError: the checkpoint has no offsets of this batch.
    """
    text = _read(checkpoint, f"offsets/{batch}", spark, store)
    if text is None:
        raise DataLossError(
            "the checkpoint has no offsets of the last batch that was published",
            received=f"batch {batch}",
            remedy="restore the newest checkpoint; or start the query with a new checkpoint location",
        )
    return [json.loads(line) for _, line in _source_lines(text)]


def clear_unfinished_start(checkpoint: str) -> None:
    """Delete the temporary files of a process that was killed while it wrote the offsets of a query's first batch.

    A query without a batch does not start in Spark 4.3 if its checkpoint has any file under ``offsets``
    (``STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY``), even a hidden file before its renaming. Only checkpoints in a local
    directory are checked; the server of checkpoints in a store does not list such files.
    """
    directory = _local(checkpoint)
    if directory is None:
        return
    files = [*directory.glob("offsets/*"), *directory.glob("commits/*")]
    if all(file.name.startswith(".") for file in files):
        for file in files:
            file.unlink(missing_ok=True)


def _queue_offsets(text: str | None, store_id: str) -> Mapping[str, QueueOffset]:
    """Return the offsets at the end of a batch in queues of a store, by source, from the batch's offsets file."""
    return {
        source: QueueOffset.of_json(value)
        for source, value in _json_offsets(text or "")
        if is_queue_offset(value) and value["store"] == store_id
    }


def _json_offsets(text: str) -> Iterator[tuple[str, Any]]:
    """Yield (source, its offset) of an offsets file, without the offsets that are no JSON."""
    for source, line in _source_lines(text):
        with suppress(ValueError):
            yield source, json.loads(line)


def _source_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield (source, its line) of an offsets file. The line of a source without an offset is ``-``."""
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
    """Return the files and path of a checkpoint in a store: ``store``, a store that this process serves, or the store
    that the environment names."""
    served = parse_served(checkpoint)
    if served is None:
        return _bare(checkpoint)
    key, path = served
    if store is not None and store.capabilities.files and store_key(store.id) == key:
        return store.files(), path
    return served_files(checkpoint)


def _bare(checkpoint: str) -> tuple[Files, str] | None:
    """Return the files and path of a bare location, see `headrace.spark.bare_locations`; None for another one."""
    location = parse_location(checkpoint)
    store = None if location is None or location.proxy else checkpoint_scheme(location.scheme).default_store()
    return None if location is None or store is None else (open_store(store).files(), location.path)


def _local(checkpoint: str) -> Path | None:
    """Return the directory of a checkpoint; None if the checkpoint is not in a local directory."""
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file"):
        return None
    # Hadoop does not decode the path of a URL: %20 is not a space.
    return Path(re.sub(r"^file:(//[^/]*)?", "", checkpoint, flags=re.IGNORECASE) if parts.scheme else checkpoint)
