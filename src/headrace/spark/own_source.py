"""Streams that write tables whose changes they read: each batch would be the input of the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.batches.sinks import feedback
from headrace.formats.source import TunnelRead
from headrace.model.tables.change_columns import SOURCE, source_mark
from headrace.spark.analysed_plans import stream_sources
from headrace.spark.several_tables import tunnel_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.ports import Store


def check_no_feedback(df: DataFrame, store: Store, writes: Sequence[str], writer: str) -> None:
    """Check that a stream does not put whole rows into a table that it reads.

    They would also replace changes that others have made since. A stream that sets single cells, or deletes rows, can
    come to an end, and is allowed. Over Spark Connect, where a DataFrame does not tell what it reads, only columns that
    Spark passes through show their table.

    Args:
        df: the stream.
        writes: the tables that it writes; they may not exist yet.

    Raises:
        OptionError: the rows are changes of such a table, or its tunnel has them, or would take the table in.
    """
    for source in stream_sources(df):
        with source.open_store() as read:
            stream = source.stream(read)
            if isinstance(stream, TunnelRead):
                tunnel = stream.open(read)
                feedback.check_no_feedback(read, tunnel.table, store, writes, writer, tunnel.name)
    several = tunnel_of(df.schema)
    if several is not None and several.store == store.id:
        tunnel = store.tunnel(several.id)
        feedback.check_no_feedback(store, tunnel.table, store, writes, writer, tunnel.name)
    marks = {field.metadata.get(SOURCE) for field in df.schema}
    own = [name for name in writes if source_mark(store.id, feedback.identity_of(store, name) or name) in marks]
    if own:
        raise feedback.own_rows(own, writer)
