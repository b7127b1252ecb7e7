"""Errors of a batch's Python function, short enough for Spark.

Spark looks in the text of the error, with all its causes, for an interruption: a query that was stopped has not failed.
Its regular expression recurses for each character after the name of a py4j error, and the error of a job has its plan
and two stacks. A text of 60 kB ends the query with a StackOverflowError.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.errors import BatchFailedError, HeadraceError, own_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LONGEST = 8_000
_SHOWN_AT_ENDS = 1_500
_JVM_STACK = "\nJVM stacktrace:"
# What Spark recognizes: an interrupted call of py4j, and the end of the jobs of a query.
_CALL = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_INTERRUPTED = re.compile(
    r": (java\.(?:lang\.Interrupted|io\.InterruptedIO|nio\.channels\.ClosedByInterrupt)Exception)"
)
_CANCELLED = re.compile(r"org\.apache\.spark\.SparkException: [^\n]{0,300}cancelled[^\n]{0,300}")
_log = logging.getLogger("headrace")


def with_short_errors(write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Return a function of ``foreachBatch`` that logs a long error, and raises a short one in its place.

    An interruption is logged for debugging only: most often the query was stopped.
    """

    def write_batch(batch_df: DataFrame, batch: int) -> None:
        try:
            write(batch_df, batch)
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            if len(text) <= _LONGEST:
                raise
            interruption = _interruption(text)
            _log.log(logging.DEBUG if interruption else logging.ERROR, "batch %d failed", batch, exc_info=True)
            short = _short(error, text, batch, interruption)
        else:
            return
        # Outside of the except clause, so that the long error is not its context.
        raise short

    return write_batch


def _short(error: Exception, text: str, batch: int, interruption: str | None) -> HeadraceError:
    if isinstance(error, HeadraceError) and not interruption:
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    # The error of a Python worker ends with the line that says most.
    message = own_error(text) or f"{type(error).__name__}: {error}".partition(_JVM_STACK)[0].rstrip()
    if len(message) > 2 * _SHOWN_AT_ENDS:
        message = f"{message[:_SHOWN_AT_ENDS]} … {message[-_SHOWN_AT_ENDS:]}"
    return BatchFailedError(
        f"batch {batch} failed: {message}",
        received=interruption,
        remedy=None if interruption else "the log of headrace in this process has the whole error",
    )


def _interruption(text: str) -> str | None:
    """Return a text in which Spark finds the interruption that it would find in the whole text; None if none."""
    start = text.find(_CALL)
    interrupted = _INTERRUPTED.search(text, start) if start >= 0 else None
    if interrupted is not None:
        return f"{_CALL} a job: {interrupted[1]}"
    cancelled = _CANCELLED.search(text)
    return None if cancelled is None else cancelled[0]
