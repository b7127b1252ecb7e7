"""The static tables of a followed query: read when the query starts, and the same in each of its batches.

A row that entered a join with one content of a static table must leave it with the same content. So a query that starts
again needs the content with which it began, and its fingerprint is a part of the job's definition. The executors keep
the rows that were read. If some are lost with an executor, the batch reads the table again, and needs the same content,
too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.batches.sinks.jobs import ANEW
from headrace.derived.follow.gathered import NO_CALLS, named_elsewhere
from headrace.errors import OptionError, SqlError
from headrace.formats.registry import FORMATS, format_named
from headrace.model.own_names import PREFIX
from headrace.spark.analysed_plans import leaves
from headrace.spark.connect import is_connect
from headrace.spark.masters import is_this_machine
from headrace.sql_text.lexer import quote_name
from headrace.sql_text.query_text import QueryText

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from headrace.formats.location import Location
    from headrace.ports import Store

# Spark's condition for rows of `localCheckpoint` that no executor has.
_LOSS = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"


@dataclass(frozen=True)
class StaticTable:
    """A static table as a query has read it.

    Attributes:
        name: its name in the query, as written but without quotes.
        view: the temporary view with the rows that were read.
        fingerprint: changes with the columns and rows of the table.
    """

    name: str
    view: str
    fingerprint: str


@contextmanager
def read_static_tables(spark: SparkSession, names: Sequence[str]) -> Iterator[tuple[StaticTable, ...]]:
    """Read static tables, and keep their rows in the session's executors for a query that starts inside.

    The views stay in the session, because the query copies the session in its own thread, some time after its start.
    If the query does not start, they are dropped.

    Raises:
        SqlError: a name is not that of a table or view.
    """
    tables: list[StaticTable] = []
    try:
        for name in names:
            view = f"{PREFIX}static_{uuid.uuid4().hex}"
            rows = _kept(_table(spark, name))
            rows.createOrReplaceTempView(view)
            tables.append(StaticTable(name, view, _fingerprint(rows)))
        yield tuple(tables)
    except BaseException:
        forget(spark, tables)
        raise


def forget(spark: SparkSession, tables: Sequence[StaticTable]) -> None:
    """Drop the views of static tables that no query uses."""
    for table in tables:
        spark.catalog.dropTempView(table.view)


def refuse_target(spark: SparkSession, names: Sequence[str], store: Store, target: str) -> None:
    """Raise `OptionError` if a static table reads the target of its query, whose rows change with each batch.

    Over Spark Connect, plans do not show what they read, and the next start of the query finds other rows.
    """
    if is_connect(spark):
        return
    own = store.table(target).identity() or target
    for name in names:
        for location in _locations(_table(spark, name)):
            with location.open_store() as other:
                table = location.open_table(other)
                if other.id == store.id and (table.identity() or table.name) == own:
                    raise OptionError(
                        "the query reads its own target as a static table, whose rows change with each batch",
                        received=f"{name}, which reads table {target!r}",
                        remedy="write into another table, or read a copy of the rows",
                    )


def _locations(df: DataFrame) -> Iterator[Location]:
    """Yield the tables of headrace's formats that a DataFrame reads, also below views."""
    for leaf in leaves(df, "DataSourceV2Relation"):
        if leaf.table().name().lower() in FORMATS:
            location = format_named(leaf.table().name()).locate(dict(leaf.options().asCaseSensitiveMap()))
            if location.table is not None:
                yield location


def is_loss(error: BaseException) -> bool:
    """Return whether Spark reports that rows are gone which executors kept."""
    # In a classic session, Spark's exception arrives as one of py4j, and only its text has the condition.
    return _LOSS in str(error)


def read_again(spark: SparkSession, tables: Sequence[StaticTable]) -> None:
    """Read the static tables again of which executors were lost with rows, in the session of a running query.

    Raises:
        OptionError: such a table has other columns or rows now.
    """
    for table in tables:
        if _is_complete(spark.table(table.view)):
            continue
        rows = _kept(_table(spark, table.name))
        if _fingerprint(rows) != table.fingerprint:
            raise OptionError(
                f"executors were lost with the rows of static table {table.name}, and it has other rows now",
                remedy=f"restore its rows, and start the query again; or compute the target again: {ANEW}",
            )
        rows.createOrReplaceTempView(table.view)


def _kept(rows: DataFrame) -> DataFrame:
    """Read rows, and keep them in executors: where these are on several machines, on two of them."""
    from pyspark import StorageLevel

    local = is_this_machine(rows.sparkSession.conf.get("spark.master", "") or "")
    return rows.localCheckpoint(storageLevel=None if local else StorageLevel.MEMORY_AND_DISK_2)


def _is_complete(rows: DataFrame) -> bool:
    try:
        rows.count()
    except Exception as error:
        if not is_loss(error):
            raise
        return False
    return True


def _table(spark: SparkSession, name: str) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException

    try:
        return spark.table(name)
    except ParseException:
        pass
    except AnalysisException as error:
        raise SqlError(f"the query joins {name}, which Spark cannot read", received=str(error).split("\n")[0]) from None
    raise SqlError(
        "a followed query cannot join files or a table whose name needs quotes",
        received=name,
        remedy="make a view of it, and join the view: CREATE TEMPORARY VIEW … AS SELECT * FROM …",
    )


def _fingerprint(rows: DataFrame) -> str:
    """Return a text that is the same for the same columns and rows in any order."""
    from pyspark.sql import functions as F

    columns = [_hashable(name, field.dataType) for name, field in zip(rows.columns, rows.schema, strict=True)]
    # Two sums: one of 64 bits could be equal by chance in a large table.
    hashes = [F.xxhash64(*columns), F.xxhash64(F.lit(1), *columns)]
    sums = rows.select(F.count("*"), *(F.sum(each.cast("decimal(38,0)")) for each in hashes))
    return f"{rows.schema.simpleString()}: {', '.join(map(str, sums.collect()[0]))}"


def _hashable(name: str, data_type: DataType) -> Column:
    """Return a column that Spark can hash: it hashes no maps."""
    from pyspark.sql import functions as F

    column = F.col(quote_name(name))
    return F.to_json(F.struct(column)) if "map<" in data_type.simpleString() else column


def reading(sql: str, tables: Sequence[StaticTable]) -> str:
    """Return a query that reads the rows that were read, instead of the tables."""
    views = {table.name.lower(): table.view for table in tables}
    text = QueryText(sql)
    # `named_elsewhere` yields some relations twice.
    edits: dict[int, tuple[int, str]] = {}
    of_select = [relation for block in text.blocks() for relation in text.all_relations(block)]
    for relation in (*of_select, *named_elsewhere(text)):
        table = relation.table
        if table is None or text.definition_of(relation) is not None or table.lower() not in views:
            continue
        name, start = quote_name(views[table.lower()]), relation.start
        if text.is_word(start - 1, "TABLE") and not _is_argument(text, start - 1):
            # TABLE dims takes no alias, but its columns can have its name.
            edits[start - 1] = (relation.name_end, f"SELECT * FROM {name} AS {quote_name(table)}")
        elif text.is_word(start - 1, "TABLE") or (text.is_symbol(start - 1, "(") and text.is_word(start - 2, "TABLE")):
            edits[start] = (relation.name_end, name)
        else:
            alias = "" if relation.implied_alias is None else f" AS {quote_name(relation.implied_alias)}"
            edits[start] = (relation.end, f"{name}{alias}")
    return text.render(0, len(text.tokens), [(start, *edits[start]) for start in sorted(edits)])


def _is_argument(text: QueryText, index: int) -> bool:
    """Return whether TABLE at a token begins an argument of a function, and not a query."""
    before = index - 1
    called = text.is_symbol(before, "(") and text.is_call(before - 1) and not text.is_word(before - 1, *NO_CALLS)
    return called or text.is_symbol(before, ",")
