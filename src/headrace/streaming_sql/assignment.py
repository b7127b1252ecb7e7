"""Values of a batch in the types of the table that it is written into, by Spark's rules for INSERT.

Spark applies these rules (store assignment, ANSI policy) to its own tables only: a Python sink gets the types of the
query. Here as there, they do not depend on ``spark.sql.ansi.enabled``: a value that does not fit is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.sql_text.lexer import quote_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType


def assigned(frame: DataFrame, types: Mapping[str, DataType], table: str) -> DataFrame:
    """Return rows with the types of a table's columns, where Spark would cast to them.

    Columns that Spark would refuse, nested ones and unknown ones stay as they are: the sink checks them.
    """
    from pyspark.sql import functions as F

    if len(set(frame.columns)) < len(frame.columns):
        return frame
    columns = []
    for field in frame.schema.fields:
        column, wanted = F.col(quote_name(field.name)), types.get(field.name)
        if wanted is not None and wanted != field.dataType and _is_assignable(field.dataType, wanted):
            problem = f"a value does not fit column {field.name!r} of table {table!r}; received: "
            valid = F.lit(f"; valid: {wanted.simpleString()}")
            refused = F.raise_error(F.concat(F.lit(problem), column.cast("string"), valid))
            column = F.coalesce(column.try_cast(wanted), F.when(column.isNotNull(), refused)).alias(field.name)
        columns.append(column)
    return frame.select(*columns)


def _is_assignable(given: DataType, wanted: DataType) -> bool:
    """Return whether Spark casts values of one type for a column of another one."""
    from pyspark.sql import types

    if isinstance(wanted, types.StringType):
        return isinstance(given, types.AtomicType) and not isinstance(given, types.BinaryType)
    return any(
        isinstance(given, kind) and isinstance(wanted, kind) for kind in (types.NumericType, types.DatetimeType)
    ) and not isinstance(wanted, types.TimeType)
