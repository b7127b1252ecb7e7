"""Errors of Spark's analyser in the words of the dialect: the nearest name and the way out instead of a plan."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, NotFoundError, SqlError
from headrace.option_names import nearest
from headrace.streaming_sql.language.lexer import error_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.errors import AnalysisException

    from headrace.streaming_sql.language.statements import ScriptPart

_COLUMN = ("UNRESOLVED_COLUMN", "UNRESOLVED_COLUMN_AMONG_FIELD_NAMES")
_ORDER = re.compile("Sorting is not supported|[Ll]imits? (is|are) not supported|LIMIT .*not supported")
_QUOTED = re.compile("`((?:[^`]|``)*)`")


def translated(
    error: AnalysisException, part: ScriptPart, sent: str | None, names: Sequence[str]
) -> HeadraceError | None:
    """Return the error of a statement in the dialect's words; None if Spark's own error is as good.

    Args:
        part: the statement in its script.
        sent: the statement as Spark got it; None for parts of it.
        names: the tables and scans of the workspace.
    """
    condition = error.getCondition() or ""
    found = error.getMessageParameters() or {}
    if condition.split(".", 1)[0] in _COLUMN:
        column = _last_part(found.get("objectName", ""))
        valid = list(dict.fromkeys(_last_part(each) for each in found.get("proposal", "").split(", ") if each))
        meant = nearest(column, valid)
        details: dict[str, Any] = {
            "received": column,
            "valid": valid or None,
            "remedy": None if meant is None else f"did you mean {meant}?",
        }
        offset = _offset(error) if sent == part.text else None
        if offset is None:
            return SqlError("no such column", **details)
        return error_at("no such column", part.script, part.start + offset, **details)
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        name = ".".join(_QUOTED.findall(found.get("relationName", ""))) or found.get("relationName", "")
        meant = nearest(name, names)
        return NotFoundError(
            "no such table or scan",
            received=name,
            valid=names,
            remedy="CREATE TABLE … USING defines one" if meant is None else f"did you mean {meant}?",
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
    return None


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


def _last_part(name: str) -> str:
    parts = _QUOTED.findall(name)
    return parts[-1].replace("``", "`") if parts else name


def _offset(error: AnalysisException) -> int | None:
    contexts = error.getQueryContext()
    return int(contexts[0].startIndex()) if contexts else None
