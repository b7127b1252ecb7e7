"""Spark's errors in the words of the dialect: its sentence, the nearest name and the way out, without plans."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, NotFoundError, SqlError, own_message
from headrace.model.own_names import is_own
from headrace.options.names import did_you_mean
from headrace.sql_text.lexer import error_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.errors import PySparkException

    from headrace.sql_text.script import ScriptPart

QUERY_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""The loggers by which pyspark writes each error of a query with its stack trace, also one that is caught."""
_COLUMN = ("UNRESOLVED_COLUMN", "UNRESOLVED_COLUMN_AMONG_FIELD_NAMES")
_ORDER = re.compile("Sorting is not supported|[Ll]imits? (is|are) not supported|LIMIT .*not supported")
_QUOTED = re.compile("`((?:[^`]|``)*)`")
# Spark's sentence is between the name of the condition and the state of the SQL standard, or the end of the line.
_SENTENCE = re.compile(r"\s*\[[\w.]+\] (.*?)(?: SQLSTATE: \w+|\n\s*(?:at |JVM stack|==|'|[+:]- )|$)", re.DOTALL)
_POSITION = re.compile(r"\(line (\d+), pos (\d+)\)")


def translated(
    error: PySparkException,
    part: ScriptPart,
    sent: str | None,
    names: Sequence[str],
    functions: Callable[[], Sequence[str]],
) -> HeadraceError | None:
    """Return the error of a statement in the dialect's words; None for an error of a user's function.

    Args:
        part: the statement in its script.
        sent: the statement as Spark got it; None for parts of it.
        names: the tables and scans of the workspace.
        functions: returns the names of Spark's functions.
    """
    condition = error.getCondition() or ""
    found = error.getMessageParameters() or {}
    offset = _offset(error, sent) if sent == part.text else None

    def located(problem: str, **details: Any) -> SqlError:
        if offset is None:
            return SqlError(problem, **details)
        return error_at(problem, part.script, part.start + offset, **details)

    if condition.split(".", 1)[0] in _COLUMN:
        return located("no such column", **_column_details(found.get("objectName", ""), found.get("proposal", "")))
    if condition == "UNRESOLVED_ROUTINE":
        name = _last_part(found.get("routineName", ""))
        remedy = did_you_mean(name, functions()) or "SHOW FUNCTIONS lists them"
        return located("no such function", received=name, remedy=remedy)
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        name = ".".join(_QUOTED.findall(found.get("relationName", ""))) or found.get("relationName", "")
        return NotFoundError(
            "no such table or scan",
            received=name,
            valid=names,
            remedy=did_you_mean(name, names) or "CREATE TABLE … USING defines one",
        )
    if condition == "EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE":
        column, kind = found.get("eventName", "the column"), found.get("eventType", "another type").strip('"')
        plain = column.strip("`")
        return SqlError(
            "a watermark needs a point in time, a column of type timestamp",
            received=f"{plain} of type {kind.lower()}",
            remedy=f"cast it, which takes it in the time zone of the session (spark.sql.session.timeZone): "
            f"FROM … WATERMARK CAST({plain} AS TIMESTAMP) AS event_time DELAY OF INTERVAL …, and use event_time",
        )
    said = sentence(error)
    return None if said is None else located(said, received=None if offset is not None else _fragment(error))


def sentence(error: PySparkException) -> str | None:
    """Return the sentence of one of Spark's errors, or of headrace's own error in one of its Python processes.

    None for an error without a condition of Spark, such as one of a user's function.
    """
    text = str(error)
    own = own_message(text)
    if own is not None:
        return own
    if error.getCondition() == "USER_RAISED_EXCEPTION":
        return (error.getMessageParameters() or {}).get("errorMessage")
    match = _SENTENCE.match(text)
    return None if match is None or error.getCondition() is None else " ".join(match[1].split()).rstrip(".")


@contextlib.contextmanager
def errors_in_a_sentence() -> Iterator[None]:
    """Raise Spark's errors in a block with Spark's sentence only, and the part of the statement that failed."""
    from pyspark.errors import PySparkException, StreamingQueryException

    try:
        yield
    except StreamingQueryException:
        raise
    except PySparkException as error:
        said = sentence(error)
        if said is None:
            raise
        raise SqlError(said, received=_fragment(error)) from None


@contextlib.contextmanager
def unlogged_errors() -> Iterator[None]:
    """Keep pyspark from writing the errors of this thread's queries to the standard error stream."""
    from pyspark.logger import PySparkLogger

    thread = threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    loggers = [PySparkLogger.getLogger(name) for name in QUERY_LOGGERS]
    for each in loggers:
        each.addFilter(is_of_others)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(is_of_others)


@contextlib.contextmanager
def order_errors(target: str) -> Iterator[None]:
    """Say how a top n is kept if Spark refuses ORDER BY or LIMIT in the query of a stream."""
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        if _ORDER.search(str(error)) is None:
            raise
        raise SqlError(
            "a stream cannot keep rows in an order, or the first of them",
            remedy=f"for a top n of groups, add OPTIONS (outputMode = 'complete') to GROUP BY … ORDER BY … LIMIT n: "
            f"each batch then replaces the rows of {target}; else leave it out, and read the first rows: "
            f"SELECT … FROM {target} ORDER BY … LIMIT n",
        ) from None


def _column_details(name: str, proposal: str) -> dict[str, Any]:
    """Return what an error says of a name that is no column, and of the columns that Spark proposes."""
    proposed = [each for each in proposal.split(", ") if each]
    column, columns = _last_part(name), list(dict.fromkeys(map(_last_part, proposed)))
    if column not in columns:
        return {"received": column, "valid": columns or None, "remedy": did_you_mean(column, columns)}
    # There is such a column, but not of the table that the name says.
    return {
        "received": _plain(name),
        "valid": list(map(_plain, proposed)),
        "remedy": "name a table of this FROM or, in a subquery, of the query directly around it: Spark does not know "
        "those further out",
    }


def _plain(name: str) -> str:
    """Return a name with the table, as the user knows them: the query may have been analysed over headrace's views."""
    parts = [part.replace("``", "`") for part in _QUOTED.findall(name)[-2:]]
    return ".".join(part for part in parts if not is_own(part)) or name


def _last_part(name: str) -> str:
    parts = _QUOTED.findall(name)
    return parts[-1].replace("``", "`") if parts else name


def _fragment(error: PySparkException) -> str | None:
    """Return the part of the text that Spark's error is about."""
    contexts = error.getQueryContext()
    return (str(contexts[0].fragment()) or None) if contexts else None


def _offset(error: PySparkException, sent: str) -> int | None:
    """Return where the part is in the text that Spark got."""
    contexts = error.getQueryContext()
    if contexts:
        return int(contexts[0].startIndex())
    position = _POSITION.search(str(error))
    if position is None:
        return None
    # Spark's lines end with a line feed only.
    before = sent.split("\n")[: int(position[1]) - 1]
    return sum(len(line) + 1 for line in before) + int(position[2])
