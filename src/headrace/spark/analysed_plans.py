"""Spark's analysed plan of a query as text, which Spark Connect also gives, and what it says about its sources."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import OptionError
from headrace.formats.option_checks import checked_by_spark
from headrace.formats.registry import FORMATS, format_named, source_of
from headrace.formats.source import Source
from headrace.model.own_names import PREFIX
from headrace.model.tables.change_columns import CHANGE_TYPE
from headrace.spark.connect import is_connect
from headrace.spark.settings import changed_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# By default Spark cuts long lists in the texts of plans.
_WHOLE_PLANS = {"spark.sql.debug.maxToStringFields": "1000000", "spark.sql.maxPlanStringLength": "2147483632"}
# A tilde marks the operators of a stream.
_NODE = re.compile(r"^[ :]*[+:]- ['~]?([A-Za-z0-9]+)|^['~]?([A-Za-z0-9]+)")
OF_READERS = frozenset(("StreamingRelationV2", "Project", "SubqueryAlias", "View"))
"""The operators of the plan of a reader, also below views and with fewer columns."""
_OF_WITH = frozenset(("WithCTE", "CTERelationDef", "CTERelationRef"))
_PLAIN = re.compile(r"[ :+-]*~?Project \[(?:\w+#\d+L?(?:, )?)*\]")
# With another name of the same column: with other metadata.
_PASSED_ON = re.compile(
    rf"(cast\({CHANGE_TYPE}#\d+ as string\)|(?<=[\[ ]){CHANGE_TYPE}#\d+) AS {CHANGE_TYPE}#\d+"
    rf"|(?<=[\[ ]){CHANGE_TYPE}#\d+(?=[,\]])"
)
_TABLE_ROWS = re.compile(r"StreamingRelationV2 [^\n]*, headrace, [^\n]*\breadAs=table\b", re.IGNORECASE)


def analysed_plan(spark: SparkSession, sql: str) -> str:
    """Return the text of the analysed plan of a query, with all columns."""
    with changed_settings(spark, _WHOLE_PLANS):
        explained = str(spark.sql(f"EXPLAIN EXTENDED {sql}").collect()[0][0])
    _, _, plan = explained.partition("== Analyzed Logical Plan ==\n")
    plan, _, _ = plan.partition("\n== Optimized Logical Plan ==")
    # The first line has the output columns.
    return plan.partition("\n")[2]


def plan_of(df: DataFrame) -> str:
    """Return the text of the analysed plan of a DataFrame below a view of it."""
    name = f"{PREFIX}{uuid.uuid4().hex}"
    df.createOrReplaceTempView(name)
    try:
        return analysed_plan(df.sparkSession, f"SELECT * FROM {name}")
    finally:
        df.sparkSession.catalog.dropTempView(name)


def stream_sources(df: DataFrame) -> list[Source]:
    """Return what the readers of a streaming DataFrame read, also below views, of headrace's formats.

    Over Spark Connect, where plans do not show it, the list is empty.
    """
    if is_connect(df.sparkSession):
        return []
    return [
        source_of(name, checked_by_spark(format_named(name), dict(leaf.extraOptions().asCaseSensitiveMap())))
        for leaf in leaves(df, "StreamingRelationV2")
        if (name := leaf.sourceName().lower()) in FORMATS
    ]


def leaves(df: DataFrame, operator: str) -> Iterator[Any]:
    """Yield the operators with a name that read something, also below views, as objects of the JVM."""
    found: Any = df._jdf.queryExecution().analyzed().collectLeaves()
    for leaf in map(found.apply, range(found.size())):
        if leaf.getClass().getSimpleName() == operator:
            yield leaf


def operators(plan: str, *, in_views: bool = False) -> Iterator[str]:
    """Yield the names of the operators in the text of an analysed plan; of those below views if ``in_views``.

    A line of a plan that a text with a line break inside of a literal begins is not an operator, and can look like one.
    Then the query is refused.
    """
    below: int | None = None
    for number, line in enumerate(plan.split("\n")):
        match = _NODE.match(line)
        if match is None or (number > 0 and match[1] is None):
            continue
        depth = match.start(1) if match[1] is not None else 0
        if below is not None and depth > below:
            continue
        name = str(match[1] or match[2])
        below = depth if name == "View" and not in_views else None
        yield name


def passes_columns(plan: str) -> bool:
    """Return whether a plan is that of readers whose columns it passes on, under their names, also below views."""
    if not set(operators(plan, in_views=True)) <= OF_READERS | _OF_WITH:
        return False
    return all(_PLAIN.fullmatch(line) for line in plan.split("\n") if "Project [" in line)


def refuse_table_rows(df: DataFrame, what: str) -> None:
    """Raise `OptionError` if a query reads a scan with ``readAs=table`` as if its changes were rows.

    It can read the scan through views and DataFrames. A query with `_change_type` in an expression or in its result
    handles the changes itself.

    Args:
        what: the query, for the message.
    """
    if CHANGE_TYPE in df.columns:
        return
    plan = plan_of(df)
    if _TABLE_ROWS.search(plan) and not any(map(_uses_change_type, plan.split("\n"))):
        raise OptionError(
            f"{what} reads a scan with readAs = 'table' through a view or a DataFrame, and takes its changes for rows",
            received=f"a query without the column {CHANGE_TYPE}",
            valid="a query that names the scan itself, in CREATE STREAM … INSERT INTO or headrace.follow",
            remedy="write the text of the view as a subquery or in WITH; or, to handle changes yourself, read the scan "
            "with readAs = 'changes'",
        )


def _uses_change_type(line: str) -> bool:
    """Return whether an operator does more with the type of changes than to pass it on."""
    operator = _NODE.match(line)
    name = "" if operator is None else operator[1] or operator[2]
    if name in ("StreamingRelationV2", "View"):
        return False
    return f"{CHANGE_TYPE}#" in (_PASSED_ON.sub("", line) if name == "Project" else line)
