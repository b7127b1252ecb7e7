"""What headrace reads from the text of a followed query, and the settings of Spark under which it reads it so.

Spark says what names, origins and types are. From the text headrace reads

- tokens: names, numbers, strings and their values, brackets, comments;
- the clauses of each SELECT, its items and their aliases, the relations of FROM, the kinds of joins, UNION ALL;
- the calls of aggregates, FILTER and DISTINCT in them;
- numbers, aliases and ALL in GROUP BY, and where the tokens of a group expression occur as a whole operand;
- the literals that distinguish the branches of UNION ALL;
- names of functions, and words of dates and timestamps, which give another value at another time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import SqlError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ASSUMED = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.legacy.parser.havingWithoutGroupByAsWhere": "false",
    "spark.sql.groupByAliases": "true",
    "spark.sql.legacy.parseQueryWithoutEof": "false",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.functionResolution.sessionOrder": "second",
}


def check_text_settings(spark: SparkSession) -> None:
    """Raise `SqlError` if a setting gives the text of a query another meaning than headrace reads."""
    for setting, value in _ASSUMED.items():
        found = str(spark.conf.get(setting, value))
        if found.lower() != value:
            raise SqlError(
                "a followed query cannot have a setting that gives parts of its text another meaning",
                received=f"{setting} = {found}",
                valid=value,
                remedy=f"SET {setting} = {value}, and write the query for that; or use a session of its own",
            )
