"""`write_stream`: any streaming query, in any output mode, into a table, exactly once.

Spark's Python sinks take append mode only, so this goes through ``foreachBatch``: the batch's tasks stage their
rows in the store, and the driver publishes them in one transaction with the marker (job, batch id). A batch that
runs again, after whatever crash, finds the marker and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import LongType, StructField, StructType

from headrace.errors import OptionError, SchemaError
from headrace.model import RowChange, TableSchema
from headrace.opening import open as open_store
from headrace.spark.checkpoint import batch_content, query_id
from headrace.spark.options import HEADRACE_OPTIONS, TABLESTORE_OPTIONS, Location, Settings, locate

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

OUTPUT_MODES = ("append", "update", "complete")
# Not a text: parsing one is a trip to the JVM in every batch.
_RECEIPT = StructType([StructField("id", LongType()), StructField("rows", LongType())])


@dataclass(frozen=True)
class StreamWriter:
    """A stream that is ready to start; `start` starts it."""

    df: DataFrame
    location: Location
    row_change: RowChange
    mode: str
    checkpoint: str
    name: str | None = None
    trigger_options: Mapping[str, Any] | None = None
    store_options: Mapping[str, Any] | None = None

    def trigger(self, **options: Any) -> StreamWriter:
        """Return the same stream with a trigger: ``processingTime="5 seconds"`` or ``availableNow=True``."""
        return replace(self, trigger_options=options)

    def start(self) -> StreamingQuery:
        """Check the query's columns against the table, and start it.

        Raises:
            NotFoundError: no such store or table.
            SchemaError: the columns do not fit the table.
        """
        assert self.location.table is not None
        with open_store(self.location.store_url, **(self.store_options or {})) as store:
            check_columns(self.df, store.table(self.location.table).schema, self.row_change)
            # Absolute: the tasks may have another working directory.
            url = store.url
        stream: DataStreamWriter = self.df.writeStream.outputMode(self.mode)
        stream = stream.option("checkpointLocation", self.checkpoint)
        if self.name:
            stream = stream.queryName(self.name)
        if self.trigger_options:
            stream = stream.trigger(**self.trigger_options)
        return stream.foreachBatch(self._publish_batch(url)).start()

    def _publish_batch(self, url: str) -> Callable[[DataFrame, int], None]:
        table, change, checkpoint = str(self.location.table), self.row_change, self.checkpoint
        options: dict[str, Any] = dict(self.store_options or {})
        job: str | None = None

        def publish_batch(batch_df: DataFrame, batch: int) -> None:
            from headrace.ports import Staged
            from headrace.spark.writers import StagedRows, publish

            nonlocal job
            spark = batch_df.sparkSession
            job = current = job or query_id(spark, checkpoint)

            def stage_rows(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                import pyarrow as pa

                from headrace.spark.writers import stage

                with open_store(url, **options) as store:
                    receipts = stage(store, store.table(table), change, current, batch, rows).staged
                ids, counts = [receipt.id for receipt in receipts], [receipt.rows for receipt in receipts]
                yield pa.RecordBatch.from_arrays(
                    [pa.array(ids, pa.int64()), pa.array(counts, pa.int64())], ["id", "rows"]
                )

            receipts = batch_df.mapInArrow(stage_rows, _RECEIPT).collect()
            staged = StagedRows(current, batch, [Staged(receipt.id, receipt.rows) for receipt in receipts])
            with open_store(url, **options) as store:
                publish(store, table, change, [staged], content=batch_content(checkpoint, batch, spark))

        return publish_batch


def write_stream(
    df: DataFrame,
    *,
    checkpoint: str | Path,
    store: str | Path | None = None,
    table: str | None = None,
    mode: str = "append",
    name: str | None = None,
    row_change: str | RowChange | None = None,
    trigger: Mapping[str, Any] | None = None,
    format: str = "headrace",
    options: Mapping[str, str] | None = None,
) -> StreamWriter:
    """Write a streaming DataFrame into a table, each batch at once and once.

    Args:
        df: the query; its columns are matched to the table's by name.
        checkpoint: the checkpoint location, a directory or any URL that Spark can write.
        store: the store's path or URL; ``table`` the table in it.
        mode: ``append``, ``update`` or ``complete``. In complete mode each batch replaces the table's content.
        name: the query's name.
        row_change: ``put`` (default) replaces rows by key, ``update`` sets the cells that are not null, ``delete``
            removes the rows of the given keys.
        trigger: as for Spark's ``trigger``: ``{"processingTime": "5 seconds"}``, ``{"availableNow": True}``.
        format: ``headrace``, or ``tablestore`` to give store and table in that format's ``options``.
        options: further options of the format.

    Returns:
        A `StreamWriter`; its ``start()`` gives Spark's ``StreamingQuery``.
    """
    given = dict(options or {})
    if store is not None:
        given["store"] = str(store)
    if table is not None:
        given["table"] = table
    location = locate(format, given)
    if location.table is None:
        raise OptionError("option table is missing", remedy='write_stream(df, store=…, table="…")')
    settings = Settings(TABLESTORE_OPTIONS if format.lower() == "tablestore" else HEADRACE_OPTIONS, given)
    mode = mode.lower()
    if mode not in OUTPUT_MODES:
        raise OptionError("unknown output mode", received=repr(mode), valid=OUTPUT_MODES)
    if not df.isStreaming:
        raise OptionError(
            "the DataFrame is not a stream",
            remedy=f'use df.write.format("{format}") for a batch, or read with readStream',
        )
    if row_change is None:
        row_change = settings.get("writer.row.change.type" if format.lower() == "tablestore" else "rowChange")
    change = RowChange.REPLACE_ALL if mode == "complete" else RowChange.parse(str(row_change))
    return StreamWriter(
        df,
        location,
        change,
        mode,
        str(checkpoint),
        name,
        trigger,
        {"synchronous": settings.get("synchronous")},
    )


def check_columns(df: DataFrame, schema: TableSchema, change: RowChange) -> None:
    """Raise `SchemaError` unless rows of the DataFrame can be written to a table."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from headrace.types import parse_type, type_name

    given = to_arrow_schema(df.schema)
    for name in schema.primary_key:
        if name not in given.names:
            raise SchemaError(
                "the query has no column for a key column of the table",
                received=given.names,
                valid=f"a column {name!r}",
            )
    for field in given:
        if field.name not in schema.names:
            if change is RowChange.DELETE:
                continue
            raise SchemaError(
                "the query has a column that the table lacks",
                received=repr(field.name),
                valid=schema.names,
                remedy="select the table's columns only, or add the column to the table",
            )
        wanted = schema.column(field.name).type
        if not _can_hold(wanted, parse_type(field.type)):
            raise SchemaError(
                f"column {field.name!r} has another type than the table's",
                received=type_name(field.type),
                valid=type_name(wanted),
                remedy=f"CAST({field.name} AS {type_name(wanted)})",
            )


def _can_hold(wanted: pa.DataType, given: pa.DataType) -> bool:
    import pyarrow as pa

    if wanted == given or pa.types.is_null(given):
        return True
    whole, real, exact = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal
    # Values of another width are checked one by one when they are written.
    return bool(
        (whole(wanted) and whole(given))
        or (real(wanted) and (real(given) or whole(given)))
        or (exact(wanted) and (exact(given) or whole(given)))
    )
