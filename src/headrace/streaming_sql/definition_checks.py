"""Checks of ``CREATE TABLE``: unknown providers are refused, and tables that are missing in their stores are named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, NotFoundError, OptionError
from headrace.option_names import nearest
from headrace.streaming_sql.catalog import TableDefinition
from headrace.streaming_sql.locations import location_of
from headrace.streaming_sql.providers import FILE_PROVIDERS, HEADRACE_PROVIDERS, is_headrace, is_of_files
from headrace.time_limits import within

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS_TO_ANSWER = 2.0
# Such as KAFKA_DATA_SOURCE_NOT_ENABLED.
_ADVICE = re.compile(r"Please deploy [^\n]*? Guide")
_UNKNOWN = re.compile(r"\[(DATA_SOURCE_NOT_FOUND|\w+_DATA_SOURCE_NOT_ENABLED)\]")


def check_provider(spark: SparkSession, definition: TableDefinition) -> None:
    """Raise `OptionError` if neither headrace nor this Spark session knows the provider of a definition."""
    provider = definition.provider
    if is_headrace(provider) or is_of_files(provider):
        return
    try:
        # Without the options of the definition, so that a known source reads and connects to nothing.
        _ = spark.read.format(provider).load().schema
    except Exception as error:
        # Other errors are those of a source that exists. Spark raises this one as different classes.
        if _UNKNOWN.search(str(error)) is not None:
            raise _unknown(definition, error) from None


def _unknown(definition: TableDefinition, error: Exception) -> OptionError:
    known = [*HEADRACE_PROVIDERS, *FILE_PROVIDERS]
    meant = nearest(definition.provider, known)
    # Of a source in a package of its own, Spark says where to get it.
    advice = _ADVICE.search(str(error))
    return OptionError(
        f"table {definition.name} has an unknown provider",
        received=f"USING {definition.provider}",
        valid=[*known, "a source of Spark whose package is in the session"],
        remedy=advice[0] if advice else None if meant is None else f"did you mean {meant}?",
    )


def missing_note(definition: TableDefinition) -> str:
    """Return the end of a message about a definition whose store has no such table; nothing if it has one.

    A definition may come before its table, so this is no error. A store that is slow to answer is not waited for.
    """
    if not is_headrace(definition.provider):
        return ""
    try:
        within(_SECONDS_TO_ANSWER, lambda: _find(definition))
    except TimeoutError:
        return f"; note: its store has not answered within {_SECONDS_TO_ANSWER:g} seconds"
    except NotFoundError as error:
        return f"; note: {error.problem}: {error.received}"
    except HeadraceError as error:
        return f"; note: it was not looked up in its store: {error.problem}"
    return ""


def _find(definition: TableDefinition) -> None:
    location = location_of(definition)
    with location.open_store() as store:
        location.open(store)
