"""The settings and variables of a session on which a followed query depends.

Its answer: the state of a query has rows of all its runs, so each run needs the settings of the first one. Spark keeps
the settings of a view for the same reason. As there, all settings of SQL count, except settings that only tune it.

Its text: Spark says what names, origins and types are. From the text headrace reads

- tokens: names, numbers, strings and their values, brackets, comments;
- the clauses of each SELECT, its items and their aliases, the relations of FROM, the kinds of joins, UNION ALL;
- the calls of aggregates, FILTER and DISTINCT in them;
- numbers, aliases and ALL in GROUP BY, and where the tokens of a group expression occur as a whole operand;
- the literals that distinguish the branches of UNION ALL;
- names of functions, and words of dates and timestamps, which give another value at another time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.errors import OptionError, SqlError
from headrace.spark.redaction import SECRET_NAMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# These count also where they are not set: their defaults differ between versions of Spark, and between machines.
_ALWAYS = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.caseSensitive")
# The third words of settings that change the speed, the messages, or the reading of tables, whose content is checked.
_TUNING = frozenset(
    (
        "adaptive", "artifact", "autoBroadcastJoinThreshold", "avro", "broadcastTimeout", "cartesianProductExec",
        "catalog", "catalogImplementation", "cbo", "codegen", "dataFrameQueryContext",
        "debug", "defaultSizeInBytes", "execution", "extensions", "files", "hive", "inMemoryColumnarStorage", "join",
        "leafNodeDefaultParallelism", "limit", "maven", "maxMetadataStringLength", "maxPlanStringLength",
        "maxSinglePartitionBytes", "objectHashAggregate", "optimizer", "orc", "parquet", "pyspark", "python",
        "queryExecutionListeners", "redaction", "repl", "sessionWindow", "shuffle", "sortMergeJoinExec", "sources",
        "stackTracesInDataFrameContext", "statistics", "streaming", "subexpressionElimination", "thriftServer",
        "thriftserver", "ui", "view", "warehouse", "windowExec",
    )
)  # fmt: skip
# The conversions of the arguments and results of functions in Python.
_OF_FUNCTIONS = ("spark.sql.execution.pythonUDF.", "spark.sql.execution.pandas.")
# As in Spark's ConfigReader.
_REFERENCE = re.compile(r"\$\{(?:(\w+?):)?(\S+?)\}")
_SOURCES = (None, "spark", "sparkconf", "hivevar", "hiveconf")
_SECRET_NAME = re.compile(SECRET_NAMES)


def changes_answers(setting: str) -> bool:
    """Return whether a setting of Spark can change the answer of a query."""
    words = setting.split(".")
    if words[:2] != ["spark", "sql"] or len(words) < 3:
        return False
    return words[2] not in _TUNING or setting.startswith(_OF_FUNCTIONS)


def answer_settings(spark: SparkSession) -> dict[str, str]:
    """Return the settings of a session that can change the answer of a query, by name."""
    found = {name: str(spark.conf.get(name)) for name in _ALWAYS}
    return found | {name: str(value) for name, value in spark.conf.getAll.items() if changes_answers(name)}


def check_unchanged(before: Mapping[str, str], spark: SparkSession) -> None:
    """Raise `OptionError` if a setting has changed since the query was checked."""
    now = answer_settings(spark)
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if changed:
        raise OptionError(
            "settings of the session have changed since the query was checked",
            received=", ".join(changed),
            remedy="call headrace.follow again",
        )


def with_variables(spark: SparkSession, sql: str) -> tuple[str, dict[str, str]]:
    """Return a text after Spark's substitution of ``${name}``, and the values by their references.

    A value whose name is that of a secret is replaced by its hash in the second result.

    Raises:
        SqlError: a variable is not a setting of the session.
    """
    if "${" not in sql or str(spark.conf.get("spark.sql.variable.substitute", "true")).lower() != "true":
        return sql, {}
    values: dict[str, str] = {}

    def value(match: re.Match[str]) -> str:
        source, name = match.groups()
        if source in ("env", "system"):
            raise SqlError(
                "a followed query cannot have a variable of the environment, which can differ at its next start",
                received=match[0],
                remedy=f"SET {name} = …, and write ${{{name}}}",
            )
        if source not in _SOURCES:
            return match[0]
        if match[0] not in values:
            found = str(spark.conf.get(name, ""))
            values[match[0]] = found
            if match[0] in found:
                raise SqlError("a variable contains itself", received=match[0], remedy=f"SET {name} = …")
            values[match[0]] = _REFERENCE.sub(value, found)
        return values[match[0]]

    return _REFERENCE.sub(value, sql), {name: _shown(name, found) for name, found in values.items()}


def _shown(name: str, value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest() if _SECRET_NAME.search(name) else value


_ASSUMED = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.ansi.relationPrecedence": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.legacy.ctePrecedencePolicy": "corrected",
    "spark.sql.legacy.parser.havingWithoutGroupByAsWhere": "false",
    "spark.sql.groupByAliases": "true",
    "spark.sql.legacy.parseQueryWithoutEof": "false",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.orderByOrdinal": "true",
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
