"""Streams that write the table whose changes they read: each batch would be the input of the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import OptionError
from headrace.model.tables.change_columns import SOURCE, source_mark

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from headrace.ports import Store


def check_no_feedback(rows: StructType, store: Store, table: str, writer: str) -> None:
    """Check that a stream does not put whole rows into the table that it reads.

    They would also replace changes that others have made since. A stream that sets single cells, or deletes rows, can
    come to an end, and is allowed. Only columns that Spark passes through show their table.

    Args:
        rows: the columns of the stream.
        table: the target.

    Raises:
        OptionError: the rows are changes of the target.
    """
    target = store.table(table)
    own = source_mark(store.id, target.identity() or target.name)
    if any(field.metadata.get(SOURCE) == own for field in rows):
        raise OptionError(
            f"{writer} puts rows into the table whose changes it reads: each batch would be the input of the next one",
            received=f"table {table!r}",
            remedy="write into another table; to set some cells of changed rows use headrace.write_stream(…, "
            'row_change="update") with only these columns, and a filter that leaves out rows which have them',
        )
