"""The batches of a MERGE: Spark evaluates the user's expressions, and tasks read and write the target by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.batches.sinks.jobs import TargetJobs
from headrace.batches.sinks.targets import TableTarget
from headrace.derived.last_rows import DELETES, PUTS
from headrace.derived.merge.queries import CONFLICT, DELETE, NOTHING, PUT, MergeQueries
from headrace.errors import SchemaError, UnsupportedError
from headrace.model.own_names import PREFIX
from headrace.model.tables.change_columns import CHANGE_TYPE, TRUNCATE
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import TableSchema
from headrace.ports import Store
from headrace.spark.arrow_functions import map_in_arrow
from headrace.spark.batch_tasks import BatchContent, BatchTasks, Receipts
from headrace.spark.settings import USED_COLUMNS
from headrace.spark.versions import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SHOWN_KEYS = 3
_ROWS = f"{PREFIX}merge_rows"


@dataclass(frozen=True)
class MergeRows(BatchContent):
    """The rows that a batch of a MERGE puts and deletes.

    Attributes:
        queries: the queries of a batch.
        table: the name of the target.
        schema: its columns when the stream was started.
        declared: its columns as the user declared them, for stores that do not keep a table's schema.
        used: the names of the source's columns that the statement uses, as the setting `USED_COLUMNS`; None for all.
    """

    rereads_published = True

    queries: MergeQueries
    table: str
    schema: TableSchema
    declared: pa.Schema | None = None
    used: str | None = None

    @property
    def targets(self) -> tuple[TableTarget, TableTarget]:
        """The rows that are put, and the keys that are deleted."""
        return (
            TableTarget(self.table, RowChange.PUT, self.declared),
            TableTarget(self.table, RowChange.DELETE, self.declared),
        )

    def run(self, batch: DataFrame, tasks: BatchTasks) -> Receipts:
        """Run the Spark jobs of a batch.

        Raises:
            SchemaError: the target has other columns than at the start of the stream.
        """
        with tasks.open_store() as store:
            published = tasks.writer(store).publisher.published(tasks.batch)
            if not published:
                self._check_target(store)
        if published:
            # Spark's state of the source depends on every row being read. The target has the result already, over
            # which the clauses would give others.
            batch.write.format("noop").mode("overwrite").save()
            return [[], []]
        spark = batch.sparkSession
        if self.used is not None:
            # The session is that of the query alone.
            spark.conf.set(USED_COLUMNS, self.used)
        looked_up = self._looked_up(sql_over(spark, self.queries.keyed, batch), tasks)
        return tasks.stage_routed(sql_over(spark, self.queries.decided, looked_up), self._route)

    def _check_target(self, store: Store) -> None:
        TargetJobs(store).check_other(self.table, "this MERGE")
        now = store.table(self.table, self.declared).schema
        if now != self.schema:
            raise SchemaError(
                f"the columns of table {self.table!r} have changed since this stream was started",
                received=now.names,
                valid=self.schema.names,
                remedy="start the stream again, so that it reads the new columns",
            )

    # -- step 2: the rows of the target -------------------------------------------------------------------

    def empty_rows(self, spark: SparkSession, keyed: StructType) -> DataFrame:
        """Return the columns of the rows with the target's rows, for checks.

        Args:
            keyed: the columns of `MergeQueries.keyed`.
        """
        return spark.createDataFrame([], self._looked_up_columns(keyed))

    def _looked_up_columns(self, keyed: StructType) -> StructType:
        from pyspark.sql.types import BooleanType, StructField, StructType

        found = spark_schema(self.schema.nullable(self.queries.plan.looked_up))
        names = self.queries.looked_up_columns
        fields = [StructField(name, field.dataType) for name, field in zip(names, found, strict=True)]
        rest = [field for field in keyed if field.name != self.queries.repeats]
        return StructType([*rest, StructField(self.queries.matched, BooleanType()), *fields])

    def _looked_up(self, keyed: DataFrame, tasks: BatchTasks) -> DataFrame:
        """Add the rows of the target to rows with keys."""
        wanted = self._looked_up_columns(keyed.schema)
        names = wanted.names

        def look_up(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            with tasks.open_store() as store:
                for part in parts:
                    yield pa.RecordBatch.from_arrays(self._found(store, part), names)

        return map_in_arrow(keyed, look_up, wanted)

    def _found(self, store: Store, rows: pa.RecordBatch) -> list[pa.Array]:
        import pyarrow as pa
        import pyarrow.compute as pc

        queries = self.queries
        keys = rows.select(queries.key_columns).rename_columns(list(queries.key_names))
        known = pc.is_valid(keys.column(0))
        for column in keys.columns[1:]:
            known = pc.and_(known, pc.is_valid(column))
        self._check_deletes(rows, known)
        if queries.repeats in rows.schema.names:
            self._check_repeats(keys, pc.and_(known, pc.greater(rows.column(queries.repeats), 1)))
            rows = rows.drop_columns([queries.repeats])
        found = store.table(self.table, self.declared).get_many(keys.filter(known), queries.plan.looked_up)
        if found.num_rows < rows.num_rows:
            # A row without a key matches nothing: its place is null.
            places = pc.if_else(known, pc.subtract(pc.cumulative_sum(known.cast(pa.int64())), 1), None)
            found = found.take(places)
        columns = found.combine_chunks().columns
        combined = [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in columns]
        return [*rows.columns, pc.is_valid(combined[0]), *combined]

    def _check_repeats(self, keys: pa.RecordBatch, repeated: pa.BooleanArray) -> None:
        import pyarrow.compute as pc

        if pc.any(repeated, min_count=0).as_py():
            raise SchemaError(
                f"several rows of a batch have the same key of table {self.table!r}, and the source gives them no "
                "order (Spark's MERGE_CARDINALITY_VIOLATION)",
                received=repr(keys.filter(repeated).slice(0, _SHOWN_KEYS).to_pylist()),
                remedy="select _commit_version in the source, by which changes are ordered; or reduce the rows to one "
                "for each key with GROUP BY",
            )

    def _check_deletes(self, rows: pa.RecordBatch, known: pa.BooleanArray) -> None:
        import pyarrow.compute as pc

        if known.false_count == 0 or CHANGE_TYPE not in rows.schema.names:
            return
        if pc.any(pc.equal(rows.column(CHANGE_TYPE), TRUNCATE), min_count=0).as_py():
            raise UnsupportedError(
                f"the source of the MERGE into {self.table!r} was truncated: its row has no key, and no clause "
                "can say which rows of the target it deletes",
                received=f"a row with {CHANGE_TYPE} {TRUNCATE!r}",
                remedy="delete the rows from the target yourself, and start the MERGE once with a scan without option "
                "truncations and with failOnDataLoss=false, which continues after the TRUNCATE; write DELETE FROM in "
                "place of TRUNCATE",
            )
        lost = pc.and_(pc.invert(known), pc.equal(rows.column(CHANGE_TYPE), "delete"))
        if pc.any(lost, min_count=0).as_py():
            raise SchemaError(
                f"a deleted row has no value for the key of table {self.table!r}, so that its row cannot be found",
                remedy="let the source table keep the old rows of changes: headrace table set TABLE pre_images=true; "
                "or leave such rows out in the source: WHERE … IS NOT NULL",
            )

    # -- step 3: rows to put and to delete ------------------------------------------------------------------

    def _route(self, store: Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        import pyarrow.compute as pc

        keys = list(self.queries.key_names)
        for part in parts:
            action = part.column(self.queries.action)
            conflicts = pc.equal(action, CONFLICT)
            if pc.any(conflicts, min_count=0).as_py():
                raise SchemaError(
                    "a source row is deleted if its row exists, and inserted if it does not. In a store without "
                    "transactions, a repeated batch would insert the rows that it has deleted",
                    received=repr(part.select(keys).filter(conflicts).slice(0, _SHOWN_KEYS).to_pylist()),
                    remedy="give DELETE and INSERT conditions that exclude each other, such as s._change_type = "
                    "'delete' and s._change_type <> 'delete'",
                )
            if not pc.all(pc.equal(action, NOTHING), min_count=0).as_py():
                yield PUTS, part.filter(pc.equal(action, PUT)).drop_columns([self.queries.action])
                yield DELETES, part.filter(pc.equal(action, DELETE)).select(keys)


def sql_over(spark: SparkSession, query: Callable[[str], str], rows: DataFrame) -> DataFrame:
    """Return a query over a DataFrame.

    Views would not do: over Spark Connect, a query is analysed when it runs, and its views must still exist then.

    Args:
        query: returns the text for the name of the DataFrame.
    """
    return sql_over_named(spark, query(_ROWS), {_ROWS: rows})


def sql_over_named(spark: SparkSession, text: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return a query over several DataFrames, of which each has a name that occurs nowhere else in the text."""
    escaped = text.replace("{", "{{").replace("}", "}}")
    for name in frames:
        escaped = escaped.replace(name, f"{{{name}}}")
    return spark.sql(escaped, args=None, **frames)
