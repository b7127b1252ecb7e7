"""Settings with which Spark evaluates a query over some rows fastest."""

from __future__ import annotations

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
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def settings_for(rows: int) -> dict[str, str]:
    """Return the settings for a number of rows."""
    return (_FOR_FEW_ROWS if rows <= _FEW_ROWS else {}) | (_INTERPRETED if rows <= _INTERPRETED_ROWS else {})
