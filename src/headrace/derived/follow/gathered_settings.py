"""Settings with which Spark evaluates a query over the rows of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Few rows are evaluated fastest in one task without stages before it.
_FEW_ROWS = 200_000
# Java code for a plan takes longer to compile than these rows to evaluate without it.
_INTERPRETED_ROWS = 20_000
_FOR_FEW_ROWS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.shuffle.partitions": "1",
}
_EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"
# They fail if a query over UNION ALL has a correlated subquery as an item.
_PUSHED_THROUGH_UNIONS = tuple(
    f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in ("PushProjectionThroughUnion", "CombineUnions")
)
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def settings_for(rows: int) -> dict[str, str]:
    """Return the settings for a number of rows."""
    return (_FOR_FEW_ROWS if rows <= _FEW_ROWS else {}) | (_INTERPRETED if rows <= _INTERPRETED_ROWS else {})


def settings_over_unions(session: SparkSession) -> dict[str, str]:
    """Return the settings for queries over tables that are a UNION ALL of other rows."""
    excluded = filter(None, (session.conf.get(_EXCLUDED_RULES, ""), *_PUSHED_THROUGH_UNIONS))
    return {_EXCLUDED_RULES: ",".join(excluded)}
