"""Random shapes of queries: each gives Spark's batch answer over the current rows after each step, or is refused."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
from hypothesis import HealthCheck, Phase, event, given, note, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import headrace
from headrace.errors import HeadraceError
from headrace.model.types import parse_type
from headrace.ports import Store
from headrace.testing.effort import THOROUGH
from tests.spark.followed_histories import prepare
from tests.spark.following import Following, view_rows
from tests.spark.random_queries import comparable
from tests.spark.random_shapes import COLUMNS, KEY, ZONES, Commit, Shape, commits, group_shapes, row_shapes

_NUMBERS = itertools.count()
# What a query can fail with where Spark's batch does not.
_FAILURES = re.compile(r"several rows with the same key|null for key column")


@given(
    shapes=st.lists(row_shapes() | group_shapes() | group_shapes(), min_size=5, max_size=5),
    steps=st.lists(commits, min_size=3, max_size=3),
)
@settings(
    max_examples=20 if THOROUGH else 1,
    # An example takes seconds; a failed one is reported as it is.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_a_query_of_any_shape_gives_the_answer_of_spark_or_is_refused(
    spark: SparkSession, tmp_path: Path, shapes: list[Shape], steps: list[Commit]
) -> None:
    prepare(spark)
    spark.createDataFrame(ZONES, "region string, k long, zone string").createOrReplaceTempView("zones")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW zone_view AS SELECT * FROM zones")
    directory = tmp_path / str(next(_NUMBERS))
    with headrace.open(directory / "shop", create=True, synchronous="off") as store, ExitStack() as stack:
        table = store.create_table("items", COLUMNS, list(KEY), pre_images=True)
        running: list[Following] | None = None
        for step in steps:
            for each in running or ():
                if step.restart:
                    each.restart()
            table.put(pa.Table.from_pylist(list(step.put), _schema()))
            table.delete([{name: row[name] for name in KEY} for row in step.delete])
            if running is None:
                started = [_started(spark, store, shape, directory) for shape in shapes]
                running = [stack.enter_context(each) for each in started if each is not None]
            running = [each for each in running if _agrees(each)]


def _agrees(following: Following) -> bool:
    """Compare a query with Spark's answer; return whether both succeeded.

    If the query fails for a row, Spark must fail too. Spark also fails for groups that HAVING leaves out.
    """
    note(following.sql)
    try:
        expected = _answer(following)
    except PySparkException:
        event("Spark fails for a row")
        return False
    try:
        found = following.advance()
    except StreamingQueryException as error:
        failure = _FAILURES.search(str(error))
        if failure is None:
            raise
        event(f"failed: {failure[0]}")
        return False
    assert _plain(found) == _plain(expected), following.sql
    return True


def _started(spark: SparkSession, store: Store, shape: Shape, directory: Path) -> Following | None:
    """Return a query that follows a new target; None if Spark or headrace refuses it."""
    spark.createDataFrame([], _spark_schema(spark, store)).createOrReplaceTempView("items")
    try:
        schema = spark.sql(shape.sql).schema
    except AnalysisException:
        event("invalid in Spark")
        return None
    target = f"t{next(_NUMBERS)}"
    following = Following(spark, store, shape.sql, ["items"], target, directory)
    try:
        columns = {field.name: field.dataType.simpleString().replace("bigint", "long") for field in schema}
        store.create_table(target, columns, list(shape.key))
        following.start()
    except HeadraceError as error:
        event(f"refused: {re.sub(r'table .t[0-9]+.', 'the target', error.problem)[:80]}")
        note(f"refused: {shape.sql}: {error}")
        return None
    event("followed")
    return following


def _plain(rows: Sequence[Mapping[str, object]]) -> list[tuple[object, ...]]:
    """Return rows in the form of `comparable`. A store gives a map as pairs, Spark as a dictionary."""

    def same(value: object) -> object:
        return tuple(sorted(dict(value).items())) if isinstance(value, dict | list) else value

    return comparable([{name: same(value) for name, value in row.items()} for row in rows])


def _answer(following: Following) -> list[dict[str, object]]:
    view_rows(following.spark, following.store, "items")
    return [row.asDict() for row in following.spark.sql(following.sql).collect()]


def _schema() -> pa.Schema:
    return pa.schema([(name, parse_type(kind)) for name, kind in COLUMNS.items()])


def _spark_schema(spark: SparkSession, store: Store) -> StructType:
    return spark.read.format("headrace").options(store=store.url, table="items").load().schema
